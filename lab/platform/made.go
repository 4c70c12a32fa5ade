package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// network joins stations and functions. Its methods are called from one goroutine, add and ready from several.
type network interface {
	// station joins a station's namespace; the interface there is Station.
	station(ctx context.Context, name, space string, address netip.Prefix) error
	// add joins a function's namespace by two links, in and out there.
	add(ctx context.Context, name, space string) error
	// ready says that a function runs; pid 0: it has no process.
	ready(ctx context.Context, name string, pid int) error
	// lead what one station sends through functions, one behind the other, to the other station.
	lead(ctx context.Context, functions []string) error
	// entry is the link in the namespace home where frames of the first station enter.
	entry() string
	close(ctx context.Context) error
}

// networkMaker makes networks of one kind.
type networkMaker struct {
	name, about string
	check       func(o Options) string
	process     bool              // it forwards in a process of its own
	wires       bool              // it puts the program of the function wire into the function's namespace itself
	inherent    map[string]string // see Kind
	open        func(ctx context.Context, l links, f function) (network, error)
	// destroy removes what a crashed run has left. It is safe where another network was, or none.
	destroy func(ctx context.Context, l links) error
}

// runtime runs the process of a function, if it has one.
type runtime interface {
	// run it in a namespace that has the function's links; pid 0: there is none.
	run(ctx context.Context, name, space string) (pid int, err error)
	// conditions that say what its functions are.
	conditions() map[string]string
	close(ctx context.Context) error
}

// runtimeMaker makes runtimes of one kind.
type runtimeMaker struct {
	name, about string
	machine     bool // its functions are machines, which forward by themselves: by a bridge
	check       func(o Options) string
	open        func(ctx context.Context, o Options, i instance.Instance) (runtime, error)
}

// function is what forwards between the two links of a function.
type function struct {
	name, about string
	forwarder   string // of a switch, by its name; empty: none
	// inside makes it forward between links in and out of the thread's namespace, until it is closed.
	inside func() (io.Closer, error)
}

// links are the veth pairs of a platform: one end in its namespace home, the other one in that of a station or of a function.
type links struct {
	inst instance.Instance
	home string
}

// linksOf an instance.
func linksOf(i instance.Instance) links { return links{i, filepath.Join(i.NetnsDir(), "home")} }

// bootsIn bounds the time of a machine on a busy host.
const bootsIn = 30 * time.Second

// builders is how many functions are made at a time.
const builders = 2

// Interface indexes inside a function's namespace, as an agent gives them.
const (
	indexIn  = 1024
	indexOut = 1025
)

func stationObject(name string) string { return "endpoint/" + name }

// join makes one pair and gives its end in the namespace home.
func (l links) join(object, space string, o netns.VethOptions) (netns.Link, error) {
	o.HostName, o.Alias, o.HostMAC, o.PeerMAC = l.inst.Link(object), l.inst.Alias(object), l.inst.MAC(object+"/switch"), l.inst.MAC(object)
	p, err := netns.Veth(l.home, space, o)
	return p.Host, err
}

func (l links) joinStation(name, space string, address netip.Prefix) (netns.Link, error) {
	return l.join(stationObject(name), space, netns.VethOptions{PeerName: Station, Addresses: []netip.Prefix{address}})
}

func (l links) joinFunction(name, space string) (in, out netns.Link, err error) {
	if in, err = l.join(flow.In.Of(name), space, netns.VethOptions{PeerName: flow.In.String(), PeerIndex: indexIn, Quiet: true}); err == nil {
		out, err = l.join(flow.Out.Of(name), space, netns.VethOptions{PeerName: flow.Out.String(), PeerIndex: indexOut, Quiet: true})
	}
	return in, out, err
}

// made is a platform that the lab makes of its parts.
type made struct {
	links
	net       network
	rt        runtime
	fn        function
	inside    bool // the function is to be made to forward here: nobody else does
	from, to  string
	names     []string // of the functions that are there
	forwards  []io.Closer
	inForce   int           // functions of the path in force; -1 none
	each      time.Duration // that making a function may take
	destroyer func(context.Context, links) error
}

func openMade(ctx context.Context, o Options, r runtimeMaker, n networkMaker, f function) (Platform, error) {
	inst, err := newInstance(o)
	if err != nil {
		return nil, err
	}
	m := &made{links: linksOf(inst), fn: f, inside: !r.machine && (f.forwarder == "" || !n.wires), inForce: -1, each: time.Second, destroyer: n.destroy}
	if r.machine {
		m.each = bootsIn
	}
	if err := m.build(ctx, o, r, n); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *made) build(ctx context.Context, o Options, r runtimeMaker, n networkMaker) (err error) {
	s := spaces{dir: m.inst.NetnsDir()}
	if _, err := s.add(filepath.Base(m.home), true); err != nil {
		return err
	}
	if m.from, err = s.add("alice", false); err != nil {
		return err
	}
	if m.to, err = s.add("bob", false); err != nil {
		return err
	}
	if m.net, err = n.open(ctx, m.links, m.fn); err != nil {
		return err
	}
	if m.rt, err = r.open(ctx, o, m.inst); err != nil {
		return err
	}
	if err := m.net.station(ctx, "alice", m.from, sourceAddress); err != nil {
		return err
	}
	return m.net.station(ctx, "bob", m.to, targetAddress)
}

// Path grows the platform to the functions of a layout and leads everything between the stations through them.
func (m *made) Path(ctx context.Context, l Layout) (Path, error) {
	p := Path{From: m.from, To: m.to, Source: sourceAddress.Addr(), Address: targetAddress.Addr(), Space: m.home, Link: m.net.entry()}
	if err := m.grow(ctx, l.Chain); err != nil {
		return p, err
	}
	chain := m.names[:l.Chain]
	middle := []string{m.home}
	for _, name := range chain {
		middle = append(middle, m.space(name))
	}
	p.Middle = joinSpaces(middle)
	if l.Chain == m.inForce {
		return p, nil
	}
	m.inForce = -1
	if err := m.net.lead(ctx, chain); err != nil {
		return p, err
	}
	m.inForce = l.Chain
	return p, p.Try(ctx)
}

// Conditions say what the functions are.
func (m *made) Conditions() map[string]string { return m.rt.conditions() }

func (m *made) space(name string) string { return filepath.Join(m.inst.NetnsDir(), name) }

func wireName(i int) string { return fmt.Sprintf("w%03d", i) }

// grow makes functions until there are n.
func (m *made) grow(ctx context.Context, n int) error {
	if n <= len(m.names) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(n)*m.each)
	defer cancel()
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	next := make(chan string)
	for range builders {
		all.Go(func() {
			for name := range next {
				forwards, err := m.add(ctx, name)
				mu.Lock()
				if err != nil {
					errs = append(errs, fmt.Errorf("function %s: %w", name, err))
				}
				if forwards != nil {
					m.forwards = append(m.forwards, forwards)
				}
				mu.Unlock()
			}
		})
	}
	names := m.names
	for i := len(m.names); i < n && ctx.Err() == nil; i++ {
		names = append(names, wireName(i))
		next <- wireName(i)
	}
	close(next)
	all.Wait()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return err
	}
	m.names = names
	return nil
}

// add makes one function: namespace, links, what forwards in it, process.
func (m *made) add(ctx context.Context, name string) (forwards io.Closer, err error) {
	space := m.space(name)
	if err := netns.Create(space, netns.Options{Quiet: true}); err != nil {
		return nil, err
	}
	if err := m.net.add(ctx, name, space); err != nil {
		return nil, err
	}
	if m.inside {
		if err := netns.Do(space, func() (err error) { forwards, err = m.fn.inside(); return err }); err != nil {
			return nil, fmt.Errorf("in %s: %w", space, err)
		}
	}
	pid, err := m.rt.run(ctx, name, space)
	if err != nil {
		return forwards, err
	}
	return forwards, m.net.ready(ctx, name, pid)
}

// Close removes everything.
func (m *made) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	if m.rt != nil {
		errs = append(errs, m.rt.close(ctx))
	}
	for _, f := range m.forwards {
		errs = append(errs, f.Close())
	}
	if m.net != nil {
		errs = append(errs, m.net.close(ctx))
	} else {
		errs = append(errs, m.destroyer(ctx, m.links))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove %s: %w", m.inst.Name, err)
	}
	return RemoveInstance(m.inst)
}

func joinSpaces(list []string) string { return strings.Join(list, string(filepath.ListSeparator)) }
