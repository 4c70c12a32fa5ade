package ask

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/remote"
	"weir.dev/weir/manager/web"
)

// openTimeout bounds the first exchange over a host's connection.
const openTimeout = 5 * time.Second

// connect takes over the connection that a host's agent opens, and asks it over that until it ends.
func (a *Asker) connect(w http.ResponseWriter, r *http.Request) error {
	host := r.PathValue("name")
	if err := web.WantUpgrade(w, r, "connect", api.NodeProtocol); err != nil {
		return err
	}
	if err := object.CheckName(api.KindHost, host); err != nil {
		return err
	}
	conn, err := web.Upgrade(w, api.NodeProtocol)
	if conn == nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := web.StreamContext(r)
	defer cancel()
	c := remote.Dial(host, conn)
	defer c.Close()
	open, opened := context.WithTimeout(ctx, openTimeout)
	err = c.Open(open)
	opened()
	if err != nil {
		a.Log.Warn("connection of a host", "host", host, "error", err)
		return nil
	}
	a.nodes.put(host, c)
	defer a.nodes.drop(host, c)
	a.Log.Info("host connected", "host", host, "peer", r.RemoteAddr)
	select {
	case <-c.Done():
	case <-ctx.Done():
	}
	a.Log.Info("host disconnected", "host", host)
	return nil
}

// nodes are the hosts that keep a connection open to this manager.
type nodes struct {
	mu sync.Mutex
	by map[string]*remote.Client
}

// put replaces a host's connection: the newest is the one that works.
func (n *nodes) put(host string, c *remote.Client) {
	n.mu.Lock()
	old := n.by[host]
	if n.by == nil {
		n.by = map[string]*remote.Client{}
	}
	n.by[host] = c
	n.mu.Unlock()
	if old != nil {
		old.Close()
	}
}

func (n *nodes) drop(host string, c *remote.Client) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.by[host] == c {
		delete(n.by, host)
	}
}

func (n *nodes) get(host string) *remote.Client {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.by[host]
}

// Remote is the Node of a host elsewhere whose agent is connected to this manager, else nil.
func (a *Asker) Remote(host string) *remote.Client { return a.nodes.get(host) }

// Remotes are the hosts elsewhere whose agents are connected to this manager.
func (a *Asker) Remotes() []string {
	a.nodes.mu.Lock()
	defer a.nodes.mu.Unlock()
	return slices.Sorted(maps.Keys(a.nodes.by))
}
