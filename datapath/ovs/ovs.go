// Package ovs is the switch on Open vSwitch: one bridge whose OpenFlow tables carry out the rule language and ordinary switching. It owns
// the bridge, its ports and entries, and, where the host runs no Open vSwitch, private processes under the instance's run directory.
// DESIGN.md has the pipeline.
//
// It does not make links or namespaces and computes no rules.
package ovs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
	"weir.dev/weir/openflow"
	"weir.dev/weir/ovsdb"
	"weir.dev/weir/ovsdb/ovsproc"
)

// HostDB is the database of the host's own Open vSwitch.
const HostDB = "unix:/run/openvswitch/db.sock"

// Options of a switch.
type Options struct {
	Instance instance.Instance
	// OVSDB is the database's address, "unix:PATH". Empty: HostDB where it answers and the switch is in the initial network namespace, else
	// private processes in the switch's namespace. "private" asks for these. Once made, a switch stays where it is.
	OVSDB string
	// RunDir is where that Open vSwitch keeps its bridges' sockets; empty: the directory of the database's socket.
	RunDir string
	// Datapath is "system" (the kernel's), "netdev" (in user space), or empty: system where the kernel has it.
	Datapath string
	// Learned bounds the addresses in each of the three tables of learned ones, when the first Open makes the bridge; 0: 65536. The
	// oldest give way: frames to them are flooded until they are learned anew.
	Learned int
	Logger  *slog.Logger
}

// Private asks for processes of the switch's own.
const Private = "private"

// Bounds.
const (
	maxPorts     = 4096
	maxEndpoints = 1000  // flooding is one entry, whose length the wire limits
	maxRules     = 65536 // of one commit
	maxLearned   = 65536 // addresses, in each of three tables, if Options do not say; the oldest give way
)

func (o *Options) defaults() error {
	if o.Instance.Name == "" {
		return errors.New("an instance is needed")
	}
	if o.Datapath != "" && o.Datapath != system && o.Datapath != netdev {
		return fmt.Errorf("datapath %q: want %s or %s", o.Datapath, system, netdev)
	}
	if o.Learned < 0 {
		return fmt.Errorf("at most %d learned addresses: want a positive number", o.Learned)
	}
	if o.Learned == 0 {
		o.Learned = maxLearned
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

const (
	system = "system"
	netdev = "netdev"
)

// Switch implements datapath.Switch. It belongs to the network namespace of the thread that opened it.
type Switch struct {
	opts  Options
	log   *slog.Logger
	store record.Store
	lock  *os.File
	home  *netns.Space
	nl    *netlink.Handle  // in home
	procs *ovsproc.Process // nil: the host's own Open vSwitch

	mu        sync.Mutex
	closed    bool
	state     state
	db        *ovsdb.Client  // nil: not connected
	of        *openflow.Conn // nil: not connected
	ofReady   chan struct{}  // closed when of is there and the entries are as they should be
	programs  programs
	ports     map[flow.Port]*port
	byName    map[string]*port // "endpoint/alice", "function/fw/in"
	fns       map[string]*function
	rules     ruleSet
	installed map[entryKey]*entry // as the switch has, or is to have, them
	ruleEnts  []*entry            // of the rules in force
	counts    counters
	losses    hostlink.Losses
	unsent    map[flow.Port]uint64 // as Open vSwitch has told last, by its ports
	deaths    map[string]*death    // watched processes, by function
	ears      map[string]*ear      // of probes, by function
	joiners   []*joiner            // wait for becoming ports
	joining   bool                 // somebody sees to them
	wanted    uint64               // changes of states and ports so far
	applied   uint64               // of these, in force

	stop context.CancelFunc
	done sync.WaitGroup
	work context.Context
}

var _ datapath.Switch = (*Switch)(nil)

// ErrClosed says that the switch has been closed or destroyed.
var ErrClosed = errors.New("switch is closed")

// Open takes the instance's switch into its hands, as it finds it: what an earlier process made goes on and is not touched, what a
// crash left half done is repaired. The first Open makes the bridge.
func Open(ctx context.Context, o Options) (*Switch, error) {
	s, err := newSwitch(o)
	if err != nil {
		return nil, fmt.Errorf("open ovs switch %s: %w", o.Instance.Name, err)
	}
	if err := s.open(ctx); err != nil {
		s.letGo()
		return nil, fmt.Errorf("open ovs switch %s: %w", o.Instance.Name, err)
	}
	return s, nil
}

func newSwitch(o Options) (*Switch, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	s := &Switch{opts: o, log: o.Logger, store: newStore(o.Instance), ports: map[flow.Port]*port{}, byName: map[string]*port{},
		fns: map[string]*function{}, installed: map[entryKey]*entry{}, deaths: map[string]*death{}, ears: map[string]*ear{}, ofReady: make(chan struct{})}
	s.work, s.stop = context.WithCancel(context.Background())
	return s, nil
}

func (s *Switch) open(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("want root (CAP_NET_ADMIN, CAP_BPF, CAP_SYS_ADMIN)")
	}
	if err := s.enterHome(); err != nil {
		return err
	}
	if err := s.loadState(); err != nil {
		return err
	}
	if err := s.choose(ctx); err != nil {
		return err
	}
	if err := s.programs.load(); err != nil {
		return err
	}
	if err := s.makeBridge(ctx); err != nil {
		return err
	}
	if err := s.restorePorts(ctx); err != nil {
		return err
	}
	s.done.Go(s.watch)
	return s.ready(ctx)
}

// enterHome takes the lock and opens the namespace that the thread is in.
func (s *Switch) enterHome() error {
	var err error
	if s.lock, err = s.store.Lock(); err != nil {
		return err
	}
	if s.home, err = netns.At(""); err != nil {
		return err
	}
	s.nl, err = hostlink.Handle(s.home)
	return err
}

// Close lets go and leaves everything forwarding.
func (s *Switch) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	err := s.saveCounters()
	s.mu.Unlock()
	s.letGo()
	return err
}

// halt ends what goes on in the background; the switch goes on. Safe to call twice.
func (s *Switch) halt() {
	s.stop()
	s.mu.Lock()
	for _, d := range s.deaths {
		d.stop()
	}
	if s.of != nil {
		s.of.Close()
	}
	s.mu.Unlock()
	s.done.Wait()
}

// letGo ends what this process does; the switch goes on. No other method runs any more.
func (s *Switch) letGo() {
	s.halt()
	for name := range s.ears {
		s.deafen(name)
	}
	if s.db != nil {
		s.db.Close()
	}
	s.programs.close()
	if s.nl != nil {
		s.nl.Close()
	}
	if s.home != nil {
		s.home.Close()
	}
	if s.lock != nil {
		s.lock.Close()
	}
}

// enter takes the lock for one operation.
func (s *Switch) enter(ctx context.Context) (func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	return s.mu.Unlock, nil
}

// patience with an Open vSwitch that is being restarted, for operations whose context sets no shorter bound.
const patience = 10 * time.Second

// ready waits until the switch is connected and has the entries that it should have. The lock must not be held.
func (s *Switch) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		s.mu.Lock()
		ready, up := s.ofReady, s.of != nil
		s.mu.Unlock()
		if up {
			return nil
		}
		select {
		case <-ready:
		case <-s.work.Done():
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("no connection to bridge %s of Open vSwitch (is ovs-vswitchd running?): %w", s.opts.Instance.Bridge(), ctx.Err())
		}
	}
}

// enterReady is enter with a connection.
func (s *Switch) enterReady(ctx context.Context) (func(), error) {
	for {
		leave, err := s.enter(ctx)
		if err != nil {
			return nil, err
		}
		if s.of != nil && s.of.Err() == nil {
			return leave, nil
		}
		if s.of != nil {
			s.lost()
		}
		leave()
		if err := s.ready(ctx); err != nil {
			return nil, err
		}
	}
}
