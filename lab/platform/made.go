package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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
	// lead what one station sends through functions, one behind the other, to the other station. Of several chains the first leads everything but what
	// comes from the SourceMAC of one of the others.
	lead(ctx context.Context, chains [][]string) error
	// entry is the link in the namespace home where frames of the first station enter.
	entry() string
	close(ctx context.Context) error
}

// networkMaker makes networks of one kind.
type networkMaker struct {
	name, about string
	check       func(o Options) string
	process     bool              // it forwards in a process of its own
	splits      bool              // see Kind
	threads     int               // of it that never wait for frames; more than 0: it has ports of vhost-user
	wires       bool              // it puts the program of the function wire into the function's namespace itself
	inherent    map[string]string // see Kind
	open        func(ctx context.Context, l links, f function) (network, error)
	// destroy removes what a crashed run has left. It is safe where another network was, or none.
	destroy func(ctx context.Context, l links) error
}

// work is what a runtime runs in a function.
type work struct {
	name, space string
	program     *program // nil: nothing that forwards
	ports       ports
}

// runtime runs the process of a function, if it has one.
type runtime interface {
	// run it in a namespace that has the function's links; pid 0: there is none.
	run(ctx context.Context, w work) (pid int, err error)
	// ill says what has ended that should run; nil: nothing.
	ill(ctx context.Context) error
	// conditions that say what its functions are.
	conditions() map[string]string
	close(ctx context.Context) error
}

// runtimeMaker makes runtimes of one kind.
type runtimeMaker struct {
	name, about string
	machine     bool // its functions are machines, which forward by themselves: by a bridge
	check       func(o Options) string
	open        func(ctx context.Context, o Options, i instance.Instance, f function) (runtime, error)
}

// function is what forwards between the two links of a function.
type function struct {
	name, about string
	forwarder   string // of a switch, by its name; empty: none
	// inside makes it forward between links in and out of the thread's namespace, until it is closed; nil: its program forwards.
	inside  func() (io.Closer, error)
	program *program // a process that forwards; nil: there is none
	// turns are the programs of a chain's functions, one after another, where they are not alike; nil: all have program, which is the first of these.
	turns []*program
	// neighbours: it answers ARP, which therefore has to lead through it.
	neighbours bool
	machine    bool // it is in a virtual machine
}

// at is the program of a chain's i-th function.
func (f function) at(i int) *program {
	if len(f.turns) > 0 {
		return f.turns[i%len(f.turns)]
	}
	return f.program
}

// all programs of the function.
func (f function) all() []*program {
	if f.program == nil || len(f.turns) > 0 {
		return f.turns
	}
	return []*program{f.program}
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
	inForce   Layout        // of the path in force
	led       bool          // one is
	each      time.Duration // that making a function may take
	destroyer func(context.Context, links) error
	pollers   pollers // functions
	switching pollers // the switch
	weighing  sync.Mutex
	weights   tally // SettingWeight of all processes that were functions
}

func openMade(ctx context.Context, o Options, r runtimeMaker, n networkMaker, f function) (Platform, error) {
	inst, err := newInstance(o)
	if err != nil {
		return nil, err
	}
	m := &made{links: linksOf(inst), fn: f, inside: !r.machine && f.inside != nil && (f.forwarder == "" || !n.wires), each: time.Second, destroyer: n.destroy, weights: tally{}}
	if r.machine {
		m.each = bootsIn
		if n.threads > 0 { // beside threads that poll, and without a template
			m.each *= 2
		}
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
	if n, ok := m.net.(*flows); ok && n.polls != nil {
		if err := m.switching.add(n.process.SwitchPID()); err != nil {
			return err
		}
	}
	if m.rt, err = r.open(ctx, o, m.inst, m.fn); err != nil {
		return err
	}
	if err := m.net.station(ctx, "alice", m.from, sourceAddress); err != nil {
		return err
	}
	if err := m.net.station(ctx, "bob", m.to, targetAddress); err != nil || m.fn.program == nil || !m.fn.program.whole {
		return err
	}
	for _, space := range []string{m.from, m.to} { // see copies
		if err := wholeFrames(space, Station); err != nil {
			return err
		}
	}
	return nil
}

// wholeFrames has an interface send frames as they are on a wire.
func wholeFrames(space, name string) error {
	at, err := netns.At(space)
	if err != nil {
		return err
	}
	return errors.Join(at.Offloads(name, false), at.Close())
}

// Path grows the platform to the functions of a layout and leads everything between the stations through them.
func (m *made) Path(ctx context.Context, l Layout) (Path, error) {
	p := Path{From: m.from, To: m.to, Source: sourceAddress.Addr(), Address: targetAddress.Addr(), Space: m.home, Link: m.net.entry(), Chains: l.Parallel}
	if n := l.side() * l.Chain; n > len(m.names) { // what polls would take the processors meanwhile
		if err := errors.Join(m.restToGrow(), m.grow(ctx, n)); err != nil {
			return p, err
		}
	}
	if err := m.wake(); err != nil {
		return p, err
	}
	middle := []string{m.home}
	var chains [][]string
	for i := range l.side() {
		chains = append(chains, m.names[i*l.Chain:(i+1)*l.Chain])
		for _, name := range chains[i] {
			middle = append(middle, m.space(name))
		}
	}
	p.Middle = joinSpaces(middle)
	if m.led && l == m.inForce {
		return p, nil
	}
	m.led = false
	if err := m.net.lead(ctx, chains); err != nil {
		return p, err
	}
	m.inForce, m.led = l, true
	return p, m.try(ctx, p)
}

// checkup is how often programs that should run are looked at while a path is tried.
const checkup = 500 * time.Millisecond

// try a path. A program that has ended is not waited for.
func (m *made) try(ctx context.Context, p Path) error {
	if m.fn.program == nil {
		return p.Try(ctx)
	}
	return watched(ctx, p, m.rt.ill)
}

// watched tries a path while what should run does; ill says what does not.
func watched(ctx context.Context, p Path, ill func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tried := make(chan error, 1)
	go func() { tried <- p.Try(ctx) }()
	for {
		select {
		case err := <-tried:
			if err == nil {
				return nil
			}
			return errors.Join(err, ill(context.WithoutCancel(ctx)))
		case <-time.After(checkup):
			if err := ill(ctx); err != nil {
				cancel(err)
				<-tried
				return err
			}
		}
	}
}

func (m *made) space(name string) string { return filepath.Join(m.inst.NetnsDir(), name) }

const wirePattern = "w%03d"

func wireName(i int) string { return fmt.Sprintf(wirePattern, i) }

// wireNumber of a name that wireName made.
func wireNumber(name string) (i int) {
	_, _ = fmt.Sscanf(name, wirePattern, &i)
	return i
}

// grow makes functions until there are n.
func (m *made) grow(ctx context.Context, n int) error {
	within := patience + time.Duration(n-len(m.names))*m.each
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("not all of %d functions came up within %s: this machine is too busy, or has too few processors for them", n-len(m.names), within))
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
	if err := errors.Join(append(errs, context.Cause(ctx))...); err != nil {
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
	w := work{name: name, space: space, program: m.fn.at(wireNumber(name))}
	w.ports = m.portsOf(name)
	pid, err := m.rt.run(ctx, w)
	if err != nil {
		return forwards, err
	}
	if w.program != nil || m.fn.machine {
		if err := m.weigh(pid); err != nil {
			return forwards, err
		}
	}
	if w.program != nil && w.program.polls {
		if err := m.pollers.add(pid); err != nil {
			return forwards, err
		}
	}
	return forwards, m.net.ready(ctx, name, pid)
}

// weigh what a function's process gets of a processor.
func (m *made) weigh(pid int) error {
	weight, err := weighedOf(pid)
	if err != nil || weight == "" {
		return err
	}
	m.weighing.Lock()
	defer m.weighing.Unlock()
	m.weights.add(SettingWeight, weight)
	return nil
}

// Conditions under which it carries, beside those of a path.
func (m *made) Conditions() map[string]string {
	m.weighing.Lock()
	out := m.weights.texts()
	m.weighing.Unlock()
	maps.Copy(out, m.rt.conditions())
	if n, ok := m.net.(*flows); ok {
		maps.Copy(out, n.conditions())
	}
	return out
}

// portsOf a function: sockets where the network has such for it, and a processor in turns if its program polls.
func (m *made) portsOf(name string) (p ports) {
	threads := 0
	if n, ok := m.net.(*flows); ok && n.polls != nil {
		threads = n.polls.threads
		if n.shares() {
			p.sockets = n.sockets(name)
			p.seen = p.sockets
		}
	}
	_, cpus := shareOut(processors(), threads)
	p.cpu = cpus[wireNumber(name)%len(cpus)]
	return p
}

// Close removes everything.
func (m *made) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	errs := []error{m.wake()}
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
	m.pollers.close()
	m.switching.close()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove %s: %w", m.inst.Name, err)
	}
	return RemoveInstance(m.inst)
}

func joinSpaces(list []string) string { return strings.Join(list, string(filepath.ListSeparator)) }
