package ask

import (
	"maps"
	"slices"
	"sync"

	"weir.dev/weir/manager/remote"
)

// Nodes are the hosts that keep a connection open to this manager.
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
