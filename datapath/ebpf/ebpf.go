// Package ebpf is the switch that needs nothing but the kernel: eBPF programs at the host side of every port steer
// what rules select, a Linux bridge forwards the rest. It owns the bridge, the programs' attachment and the maps, all pinned in
// the instance's own bpffs, so that traffic flows on while the daemon is away. DESIGN.md tells how.
//
// It does not make links or namespaces and computes no rules.
package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/ebpf/internal/compile"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/lifecycle"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
)

// Hook says where programs are attached.
const (
	HookAuto   = "auto"   // as tc filters at once; replaced by tcx links soon after, where the kernel has tcx
	HookTCX    = "tcx"    // as tcx links (kernel 6.6) at once, which takes the kernel some 10 ms each
	HookClsact = "clsact" // as tc filters
)

// Options of a switch. Zero sizes take the defaults. Changing a size takes effect at the next Open, without loss.
type Options struct {
	Instance instance.Instance
	Hook     string // HookAuto when empty
	Ports    int    // at most; default 4096
	Rules    int    // at most, counters included; default 32768
	Keys     int    // entries into which rules expand (a port range takes several); default 131072
	Masks    int    // different shapes of rules; default 16384
	Flows    int    // known flows cached; default 65536
	// Addresses bounds what the bridge learns (kernel 6.8); default 65536. Frames for others are flooded.
	Addresses int
	Settled   int // flows of one function that are known, so that it can settle them; default 32768 (5 MB)
	Logger    *slog.Logger
	// AcceptBridged has the host's iptables accept what the bridge forwards, where bridged packets are shown to them.
	AcceptBridged bool

	settlers int    // tests: at most so many functions settle flows
	build    string // tests: pretends to be another build of the programs
	fault    func(step string) error
}

// MaxSlots bounds the options' sizes: slots are 16 bits wide.
const maxSlots = 1 << 16

func (o *Options) limits() compile.Limits { return compile.Limits{Keys: o.Keys, Masks: o.Masks} }

func (o *Options) defaults() error {
	if o.Instance.Name == "" {
		return errors.New("open ebpf switch: an instance is needed")
	}
	switch o.Hook {
	case "":
		o.Hook = HookAuto
	case HookAuto, HookTCX, HookClsact:
	default:
		return fmt.Errorf("open ebpf switch: hook %q: want %s, %s or %s", o.Hook, HookAuto, HookTCX, HookClsact)
	}
	for _, s := range []struct {
		name          string
		size          *int
		standard, max int
	}{
		{"ports", &o.Ports, 4096, maxSlots}, {"rules", &o.Rules, 32768, 1 << 22}, {"keys", &o.Keys, 131072, 1 << 24},
		{"masks", &o.Masks, 16384, maxSlots / 2}, {"flows", &o.Flows, 65536, 1 << 24}, {"addresses", &o.Addresses, 65536, 1 << 24},
		{"settled", &o.Settled, 32768, 1 << 20},
	} {
		if *s.size == 0 {
			*s.size = s.standard
		}
		if *s.size < 16 || *s.size > s.max {
			return fmt.Errorf("open ebpf switch: %d %s: want 16 to %d", *s.size, s.name, s.max)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.settlers == 0 {
		o.settlers = maxSettlers
	}
	if o.build == "" {
		o.build = bpf.Build()
	}
	return nil
}

// at is a place where a test can make the process "die".
func (o *Options) at(step string) error {
	if o.fault == nil {
		return nil
	}
	return o.fault(step)
}

// Switch implements datapath.Switch. It belongs to the network namespace of the thread that opened it. Each part owns what its fields say; all of it is
// under the gate's lock. Parts know those above them only.
type Switch struct {
	opts   *Options
	gate   *lifecycle.Gate
	work   *lifecycle.Work
	home   *home.Home
	kernel *kernel
	tables *tables
	bridge *bridge

	ports     *ports
	control   *control
	guards    *guards
	stations  *stations
	onlookers *onlookers
	accepting *acceptance
	counters  *counters
	rules     *rules
	hooks     *hooks
	promoter  *promoter
	liveness  *liveness
	settlers  *settlers
	upgrade   *upgrade
	prober    *prober
}

var _ datapath.Switch = (*Switch)(nil)

// ErrClosed says that the switch has been closed or destroyed.
var ErrClosed = lifecycle.ErrClosed

// Open takes the instance's switch into its hands, as it finds it: what an earlier process made goes on and is not
// touched, what a crash left half done is repaired. The first Open makes bridge and maps.
func Open(ctx context.Context, o Options) (*Switch, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	s := newSwitch(&o)
	if err := s.open(ctx); err != nil {
		s.letGo()
		return nil, fmt.Errorf("open ebpf switch %s: %w", o.Instance.Name, err)
	}
	return s, nil
}

// newSwitch puts the parts together. It makes nothing.
func newSwitch(o *Options) *Switch {
	s := &Switch{opts: o, gate: &lifecycle.Gate{}, work: lifecycle.NewWork(), kernel: &kernel{}}
	s.home = &home.Home{Instance: o.Instance, Log: o.Logger, Store: newStore(o.Instance)}
	s.tables = &tables{home: s.home, opts: o, kernel: s.kernel}
	maps := &s.tables.maps
	s.bridge = &bridge{home: s.home, opts: o}
	s.ports = newPorts(o, maps)
	s.control = &control{maps: maps, state: &s.tables.state}
	s.guards = &guards{maps: maps, ports: s.ports, control: s.control, owned: map[flow.MAC]bool{}}
	s.stations = &stations{home: s.home, maps: maps, ports: s.ports, bridge: s.bridge, slots: map[flow.MAC]uint16{}}
	s.onlookers = &onlookers{home: s.home, bridge: s.bridge, control: s.control, stations: s.stations}
	s.accepting = &acceptance{home: s.home, opts: o}
	s.counters = &counters{home: s.home, tables: s.tables, ports: s.ports, guards: s.guards}
	s.rules = &rules{opts: o, home: s.home, maps: maps, ports: s.ports, control: s.control, counters: s.counters,
		image: compile.NewImage(), set: ruleSet{Slots: map[uint64]uint32{}}}
	s.rules.onward = func() error { return errors.Join(s.onlookers.look(), s.stations.leaveHomes()) }
	s.hooks = &hooks{home: s.home, tables: s.tables, bridge: s.bridge, waiting: newWaiting()}
	s.promoter = &promoter{gate: s.gate, home: s.home, ports: s.ports, hooks: s.hooks, waiting: s.hooks.waiting}
	s.liveness = &liveness{tables: s.tables, kernel: s.kernel}
	s.settlers = &settlers{opts: o, home: s.home, tables: s.tables, ports: s.ports, liveness: s.liveness}
	s.rules.leads = s.settlers.judgeAnew
	s.upgrade = &upgrade{home: s.home, tables: s.tables, ports: s.ports, control: s.control, rules: s.rules, counters: s.counters, liveness: s.liveness}
	s.prober = &prober{gate: s.gate, home: s.home, maps: maps, ports: s.ports}
	return s
}

func (s *Switch) open(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("want root (CAP_NET_ADMIN, CAP_BPF, CAP_SYS_ADMIN)")
	}
	if err := s.home.Open(); err != nil {
		return err
	}
	if err := s.kernel.probe(s.opts.Hook); err != nil {
		return err
	}
	if err := bpf.Mount(s.home.Instance.BPFFS()); err != nil {
		return err
	}
	if err := s.tables.open(); err != nil {
		return err
	}
	if err := s.bridge.open(); err != nil {
		return err
	}
	if err := s.accepting.look(ctx); err != nil {
		return err
	}
	if err := s.restore(ctx); err != nil {
		return err
	}
	if s.tables.state.Hook == HookAuto {
		s.work.Go(s.promoter.run)
	}
	s.work.Go(s.watch)
	return nil
}

// Close lets go and leaves everything forwarding.
func (s *Switch) Close() error {
	if !s.gate.Shut() {
		return nil
	}
	s.halt()
	s.gate.Lock()
	defer s.gate.Unlock()
	s.letGo()
	return nil
}

// halt ends what goes on in the background; the switch goes on.
func (s *Switch) halt() {
	s.work.Stop()
	s.work.Wait()
}

// letGo closes what is open, when nothing goes on in the background any more.
func (s *Switch) letGo() {
	s.work.Stop()
	s.tables.close()
	s.prober.close()
	s.home.Close()
}
