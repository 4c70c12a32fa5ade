package ask

import (
	"context"
	"net/http"
	"slices"
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
	if old, connected := a.nodes.Swap(host, c); connected { // the newest is the one that works
		old.(*remote.Client).Close()
	}
	defer a.nodes.CompareAndDelete(host, c)
	a.Log.Info("host connected", "host", host, "peer", r.RemoteAddr)
	select {
	case <-c.Done():
	case <-ctx.Done():
	}
	a.Log.Info("host disconnected", "host", host)
	return nil
}

// Remote is the Node of a host elsewhere whose agent is connected to this manager, else nil.
func (a *Asker) Remote(host string) *remote.Client {
	c, _ := a.nodes.Load(host)
	client, _ := c.(*remote.Client)
	return client
}

// Remotes are the hosts elsewhere whose agents are connected to this manager.
func (a *Asker) Remotes() (hosts []string) {
	a.nodes.Range(func(host, _ any) bool {
		hosts = append(hosts, host.(string))
		return true
	})
	slices.Sort(hosts)
	return hosts
}
