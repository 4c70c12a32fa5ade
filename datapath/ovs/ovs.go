// Package ovs is the switch on Open vSwitch: one bridge whose OpenFlow tables carry out the rule language and ordinary switching. It owns
// the bridge, its ports and entries, and, where the host runs no Open vSwitch, private processes under the instance's run directory.
// DESIGN.md has the pipeline.
//
// It does not make links or namespaces and computes no rules.
package ovs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/lifecycle"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
	"weir.dev/weir/ovsdb"
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

// Switch implements datapath.Switch. It belongs to the network namespace of the thread that opened it. Each part owns what its fields say; all of it is
// under the gate's lock. Parts know those above them only.
type Switch struct {
	opts  *Options
	gate  *lifecycle.Gate
	work  *lifecycle.Work
	home  *home.Home
	state *state // switch.json

	processes  *processes
	config     *config
	bridge     *bridge
	connection *connection
	ports      *ports
	counters   *counters
	rules      *rules
	hooks      *hooks
	liveness   *liveness
	joining    *joining
	prober     *prober
}

var _ datapath.Switch = (*Switch)(nil)

// ErrClosed says that the switch has been closed or destroyed.
var ErrClosed = lifecycle.ErrClosed

// Open takes the instance's switch into its hands, as it finds it: what an earlier process made goes on and is not touched, what a
// crash left half done is repaired. The first Open makes the bridge.
func Open(ctx context.Context, o Options) (*Switch, error) {
	if err := o.defaults(); err != nil {
		return nil, fmt.Errorf("open ovs switch %s: %w", o.Instance.Name, err)
	}
	s := newSwitch(&o)
	if err := s.open(ctx); err != nil {
		s.letGo()
		return nil, fmt.Errorf("open ovs switch %s: %w", o.Instance.Name, err)
	}
	return s, nil
}

// newSwitch puts the parts together. It makes nothing.
func newSwitch(o *Options) *Switch {
	s := &Switch{opts: o, gate: &lifecycle.Gate{}, work: lifecycle.NewWork(), state: &state{}, ports: newPorts()}
	s.home = &home.Home{Instance: o.Instance, Log: o.Logger, Store: newStore(o.Instance)}
	s.processes = &processes{home: s.home, state: s.state}
	s.config = &config{home: s.home, state: s.state, processes: s.processes}
	s.bridge = &bridge{home: s.home, opts: o, state: s.state, config: s.config, processes: s.processes}
	s.connection = &connection{gate: s.gate, work: s.work, home: s.home, state: s.state, processes: s.processes, ready: make(chan struct{})}
	s.counters = &counters{home: s.home, connection: s.connection, ports: s.ports}
	s.rules = &rules{gate: s.gate, home: s.home, state: s.state, ports: s.ports, processes: s.processes, connection: s.connection, counters: s.counters,
		installed: entrySet{}}
	s.connection.restore = s.rules.reconcile
	s.hooks = &hooks{home: s.home, state: s.state}
	s.liveness = &liveness{gate: s.gate, work: s.work, home: s.home, ports: s.ports, rules: s.rules, deaths: map[string]*death{}}
	s.joining = &joining{gate: s.gate, work: s.work, home: s.home, ports: s.ports, bridge: s.bridge, connection: s.connection, rules: s.rules}
	s.prober = &prober{gate: s.gate, home: s.home, ports: s.ports, ears: map[string]*ear{}}
	return s
}

func (s *Switch) open(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("want root (CAP_NET_ADMIN, CAP_BPF, CAP_SYS_ADMIN)")
	}
	if err := s.home.Open(); err != nil {
		return err
	}
	if err := s.load(); err != nil {
		return err
	}
	if err := s.choose(ctx); err != nil {
		return err
	}
	if err := s.hooks.load(); err != nil {
		return err
	}
	if err := s.bridge.make(ctx); err != nil {
		return err
	}
	if err := s.restorePorts(ctx); err != nil {
		return err
	}
	s.work.Go(s.connection.watch)
	return s.connection.wait(ctx)
}

// load reads all records.
func (s *Switch) load() error {
	if _, err := s.home.Store.Read("switch.json", s.state); err != nil {
		return err
	}
	if err := s.counters.load(); err != nil {
		return err
	}
	if err := s.ports.load(s.home); err != nil {
		return err
	}
	_, err := s.home.Store.Read(record.Rules(s.state.Version), &s.rules.set)
	return err
}

// choose which Open vSwitch this switch is in, and remember it.
func (s *Switch) choose(ctx context.Context) error {
	if err := s.chooseDatabase(ctx); err != nil {
		return err
	}
	if s.state.OVSDB == Private {
		s.state.RunDir = s.processes.dir()
		if err := s.processes.start(ctx); err != nil {
			return err
		}
	} else {
		path, ok := strings.CutPrefix(s.state.OVSDB, "unix:")
		if !ok {
			return fmt.Errorf("database %s: want unix:PATH", s.state.OVSDB)
		}
		s.state.RunDir = cmp.Or(s.opts.RunDir, filepath.Dir(path))
	}
	if s.state.Datapath == "" {
		kind, err := s.chooseDatapath(ctx)
		if err != nil {
			return err
		}
		s.state.Datapath = kind
	}
	return s.home.Store.Write("switch.json", s.state)
}

// chooseDatabase, unless that was done before: what was asked for, else the host's own if it answers.
func (s *Switch) chooseDatabase(ctx context.Context) error {
	want := s.opts.OVSDB
	if s.state.OVSDB != "" {
		if want != "" && want != s.state.OVSDB {
			return fmt.Errorf("the switch is in Open vSwitch %s, not %s: destroy it first", s.state.OVSDB, want)
		}
		return nil
	}
	if want == "" {
		want = Private
		if inInitialNamespace() && answers(ctx, HostDB) {
			want = HostDB
		}
	}
	s.state.OVSDB = want
	return nil
}

// chooseDatapath: what was asked for, else the kernel's where Open vSwitch has it. Private processes leave the kernel's datapaths alone: these are one set
// for all of the machine.
func (s *Switch) chooseDatapath(ctx context.Context) (string, error) {
	if s.opts.Datapath != "" {
		return s.opts.Datapath, nil
	}
	if s.processes.own != nil {
		return netdev, nil
	}
	inKernel, err := s.config.hasKernelDatapath(ctx)
	if inKernel {
		return system, err
	}
	return netdev, err
}

func answers(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := ovsdb.Dial(ctx, address, ovsdb.Options{})
	if err != nil {
		return false
	}
	defer c.Close()
	return c.Echo(ctx) == nil
}

// inInitialNamespace: the thread is in the namespace of process 1.
func inInitialNamespace() bool {
	own, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return false
	}
	first, err := os.Stat("/proc/1/ns/net")
	return err == nil && os.SameFile(own, first)
}

// restorePorts compares records and database: a port without a record is taken out, a record without a port is plugged again.
func (s *Switch) restorePorts(ctx context.Context) error {
	db, err := s.config.client(ctx)
	if err != nil {
		return err
	}
	res, err := db.Transact(ctx, database, ovsdb.Select{Table: "Interface", Columns: []string{"name", "external_ids", "ofport"},
		Where: []ovsdb.Condition{{Column: "external_ids", Test: ovsdb.Includes, Value: ovsdb.Map{markInstance: s.home.Instance.Name}}}})
	if err != nil {
		return err
	}
	plugged := map[string]bool{}
	for _, r := range res[0].Rows {
		name := r.Text("name")
		if p := s.ports.byName[r.Texts("external_ids")[markObject]]; p != nil && p.Link == name {
			n, ok := r.Int("ofport")
			plugged[p.Name] = ok && flow.Port(n) == p.Number
			continue
		}
		if err := s.bridge.unplug(ctx, name); err != nil {
			return err
		}
	}
	var missing []*port
	for _, p := range newWorld(s.ports.all, &s.rules.set).sorted() {
		if plugged[p.Name] || p.E.Held {
			continue
		}
		if _, err := s.home.Space.Link(p.Link); errors.Is(err, netns.ErrNoLink) {
			continue // whoever makes it again adds it again
		}
		missing = append(missing, p)
	}
	if err := s.bridge.plug(ctx, missing...); err != nil {
		return err
	}
	return s.liveness.restore()
}

// Datapath in use, "system" or "netdev".
func (s *Switch) Datapath() string { return s.state.Datapath }

// Close lets go and leaves everything forwarding.
func (s *Switch) Close() error {
	if !s.gate.Shut() {
		return nil
	}
	s.gate.Lock()
	err := s.counters.save()
	s.gate.Unlock()
	s.letGo()
	return err
}

// halt ends what goes on in the background; the switch goes on. Safe to call twice.
func (s *Switch) halt() {
	s.work.Stop()
	s.gate.Lock()
	s.liveness.stop()
	s.connection.close()
	s.gate.Unlock()
	s.work.Wait()
}

// letGo ends what this process does; the switch goes on. No other method runs any more.
func (s *Switch) letGo() {
	s.halt()
	s.prober.close()
	s.config.close()
	s.hooks.close()
	s.home.Close()
}
