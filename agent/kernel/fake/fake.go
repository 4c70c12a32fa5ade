// Package fake is a kernel's namespaces and links in memory, for tests of the agent without rights.
package fake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"weir.dev/weir/netns"
)

// Kernel has the host's namespace, "", from the beginning; see New.
type Kernel struct {
	mu       sync.Mutex
	spaces   map[string]map[string]*link // by path
	index    int
	watchers map[int]func(netns.LinkEvent)
}

type link struct {
	netns.Link
	peer *link // of a veth
	in   string
}

// New makes a kernel with links in the host's namespace, such as network cards.
func New(links ...string) *Kernel {
	k := &Kernel{spaces: map[string]map[string]*link{"": {}}, watchers: map[int]func(netns.LinkEvent){}}
	for _, name := range links {
		k.add("", netns.Link{Name: name, MTU: 1500})
	}
	return k
}

func (k *Kernel) add(space string, l netns.Link) *link {
	k.index++
	l.Index, l.Up, l.Carrier = k.index, true, true
	x := &link{Link: l, in: space}
	k.spaces[space][l.Name] = x
	return x
}

// HasLink tells whether the host has a link.
func (k *Kernel) HasLink(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.spaces[""][name] != nil
}

// Namespace makes a namespace of somebody else's, such as a station's.
func (k *Kernel) Namespace(path string) { k.make(path) }

func (k *Kernel) make(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.spaces[path] == nil {
		k.spaces[path] = map[string]*link{}
	}
}

// Create makes a namespace.
func (k *Kernel) Create(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	k.make(path)
	return nil
}

// CreateOwned refuses: files cannot be another user's here.
func (k *Kernel) CreateOwned(_, _ string, _ netns.IDs) error {
	return fmt.Errorf("%w: this kernel is a fake", netns.ErrNoUserns)
}

// Exists tells whether there is a namespace.
func (k *Kernel) Exists(path string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.spaces[path] != nil
}

// Empty does nothing: no links but ours are in memory.
func (k *Kernel) Empty(context.Context, string, func(done, all int)) error { return nil }

// Delete removes a namespace with its links, or a symbolic link to one.
func (k *Kernel) Delete(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	k.mu.Lock()
	var gone []string
	for _, l := range k.spaces[path] {
		if l.peer != nil && l.peer.in == "" {
			gone = append(gone, l.peer.Name)
		}
	}
	delete(k.spaces, path)
	k.mu.Unlock()
	return k.DeleteLinks(gone...)
}

// Check tells why there is no such namespace.
func (k *Kernel) Check(space string) error {
	if path := at(space); !k.Exists(path) {
		return fmt.Errorf("%w: %s", netns.ErrNotFound, path)
	}
	return nil
}

func at(space string) string {
	if space == "" {
		return ""
	}
	return netns.Path(space)
}

// Veth makes pairs between the host's namespace and another.
func (k *Kernel) Veth(space string, pairs ...netns.VethOptions) (made bool, err error) {
	if err := k.Check(space); err != nil {
		return false, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, o := range pairs {
		if l := k.spaces[""][o.HostName]; l != nil && l.peer != nil && l.peer.in == at(space) && l.peer.Name == o.PeerName {
			continue
		}
		host := k.add("", netns.Link{Name: o.HostName, Alias: o.Alias, MAC: o.HostMAC, MTU: o.MTU, Kind: "veth"})
		peer := k.add(at(space), netns.Link{Name: o.PeerName, Alias: o.Alias, MAC: o.PeerMAC, MTU: o.MTU, Kind: "veth"})
		host.peer, peer.peer = peer, host
		made = true
	}
	return made, nil
}

// Finish does nothing: no frames are in memory.
func (k *Kernel) Finish(link string) error {
	if !k.HasLink(link) {
		return fmt.Errorf("%w: %s", netns.ErrNoLink, link)
	}
	return nil
}

// ProbeXDP says that functions can have AF_XDP sockets.
func (k *Kernel) ProbeXDP() error { return nil }

// Links lists the host's links by the beginning of their alias.
func (k *Kernel) Links(prefix string) ([]netns.Link, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []netns.Link
	for _, l := range k.spaces[""] {
		if strings.HasPrefix(l.Alias, prefix) {
			out = append(out, l.Link)
		}
	}
	slices.SortFunc(out, func(a, b netns.Link) int { return a.Index - b.Index })
	return out, nil
}

// Link reads a link.
func (k *Kernel) Link(space, name string) (netns.Link, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.spaces[at(space)][name]; l != nil {
		return l.Link, nil
	}
	return netns.Link{}, fmt.Errorf("%w: %s in %q", netns.ErrNoLink, name, space)
}

// DeleteLinks removes links of the host, and their other ends. Watchers hear of it.
func (k *Kernel) DeleteLinks(names ...string) error {
	for _, name := range names {
		k.mu.Lock()
		l := k.spaces[""][name]
		delete(k.spaces[""], name)
		if l != nil && l.peer != nil {
			delete(k.spaces[l.peer.in], l.peer.Name)
		}
		var watchers []func(netns.LinkEvent)
		for _, f := range k.watchers {
			watchers = append(watchers, f)
		}
		k.mu.Unlock()
		if l == nil {
			continue
		}
		for _, f := range watchers {
			f(netns.LinkEvent{Index: l.Index, Name: name, Gone: true})
		}
	}
	return nil
}

// DeleteMarked removes the links that carry the mark of an object or of a part of it.
func (k *Kernel) DeleteMarked(alias string) error {
	links, err := k.Links(alias)
	for _, l := range links {
		if l.Marked(alias) {
			err = errors.Join(err, k.DeleteLinks(l.Name))
		}
	}
	return err
}

// SetMTU of both ends of pairs.
func (k *Kernel) SetMTU(space string, mtu int, pairs map[string]string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for out, in := range pairs {
		host, inside := k.spaces[""][out], k.spaces[at(space)][in]
		if host == nil || inside == nil {
			return fmt.Errorf("%w: %s or %s in %q", netns.ErrNoLink, out, in, space)
		}
		host.MTU, inside.MTU = mtu, mtu
	}
	return nil
}

// Received counts nothing: frames do not pass links here.
func (k *Kernel) Received(string) (uint64, error) { return 0, nil }

// LearningBridge finds none.
func (k *Kernel) LearningBridge(_, _, _ string) (string, error) { return "", nil }

// WatchLinks tells of links that are deleted.
func (k *Kernel) WatchLinks(ctx context.Context, f func(netns.LinkEvent)) error {
	k.mu.Lock()
	k.index++
	id := k.index
	k.watchers[id] = f
	k.mu.Unlock()
	<-ctx.Done()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.watchers, id)
	return ctx.Err()
}

// LinkWith finds none: links have no addresses here.
func (k *Kernel) LinkWith(a netip.Addr) (netns.Link, error) {
	return netns.Link{}, fmt.Errorf("%w with the address %s", netns.ErrNoLink, a)
}

// VXLAN makes a tunnel's link in the host.
func (k *Kernel) VXLAN(_ string, o netns.VXLANOptions) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.spaces[""][o.Name] == nil {
		k.add("", netns.Link{Name: o.Name, Alias: o.Alias, MAC: o.MAC, MTU: o.MTU, Kind: "vxlan"})
	}
	return nil
}

// WireGuard makes the namespace with the interface.
func (k *Kernel) WireGuard(path string, o netns.WireGuardOptions) error {
	k.make(path)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.spaces[path][o.Name] == nil {
		k.add(path, netns.Link{Name: o.Name, Alias: o.Alias, MTU: o.MTU, Kind: "wireguard"})
	}
	return nil
}

// ProbeWireGuard says that there is WireGuard.
func (k *Kernel) ProbeWireGuard() error { return nil }
