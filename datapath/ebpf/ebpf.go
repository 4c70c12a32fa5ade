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
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/datapath/internal/netfilter"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
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
	Logger    *slog.Logger

	build string // tests: pretends to be another build of the programs
	fault func(step string) error
}

// MaxSlots bounds the options' sizes: slots are 16 bits wide.
const maxSlots = 1 << 16

// lists is the size of the table of lists of masks: a key may have one of its own. Tables have room for twice what a set of rules may have, since
// the former set is there until the new one is in force.
func (o *Options) lists() int { return 2*o.Keys + 2*o.Masks }

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
	if o.build == "" {
		o.build = bpf.Build()
	}
	return nil
}

// Switch implements datapath.Switch. It belongs to the network namespace of the thread that opened it.
type Switch struct {
	opts Options
	log  *slog.Logger
	home *netns.Space
	nl   *netlink.Handle // in home
	lock *os.File
	tcx  bool // the kernel has it
	exit bool // processes' ends are told by the kernel

	programsOfOthers netfilter.Programs

	stop context.CancelFunc // what goes on in the background, see done
	done sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	touched  time.Time // last change of ports: promotion waits until it is quiet
	losses   hostlink.Losses
	bridge   int // interface index
	maps     tables
	programs programs
	store    record.Store
	state    state             // switch.json
	ports    map[uint16]*port  // by slot
	byIndex  map[uint32]uint16 // interface index -> slot
	byName   map[string]uint16 // "endpoint/alice", "function/fw/in" -> slot
	fns      map[string]*function
	near     map[uint32]uint32   // place in the table nearby -> interface index
	stations map[flow.MAC]uint16 // whose address is in the programs' table -> slot
	owned    map[flow.MAC]bool   // in the programs' table of guarded MACs
	lastSlot uint16
	todo     map[uint16]bool // ports whose filters tcx links may replace
	wake     chan struct{}   // promoteAll's
	image    *image          // in force
	pending  changes         // keys whose copy that is not in force is still the former one
	rules    ruleSet
	version  uint32
	past     bool      // frames may pass the bridge by
	unknown  error     // why it is not known whether they may
	kept     time.Time // when stations' entries were last looked at
	probes   *os.File  // nil until the first probe
}

var _ datapath.Switch = (*Switch)(nil)

// Open takes the instance's switch into its hands, as it finds it: what an earlier process made goes on and is not
// touched, what a crash left half done is repaired. The first Open makes bridge and maps.
func Open(ctx context.Context, o Options) (*Switch, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	s := &Switch{
		opts: o, log: o.Logger, store: newStore(o.Instance),
		ports: map[uint16]*port{}, byIndex: map[uint32]uint16{}, byName: map[string]uint16{}, fns: map[string]*function{},
		near: map[uint32]uint32{}, stations: map[flow.MAC]uint16{}, owned: map[flow.MAC]bool{}, todo: map[uint16]bool{}, wake: make(chan struct{}, 1),
		image: newImage(), rules: ruleSet{Slots: map[uint64]uint32{}},
	}
	if err := s.open(ctx); err != nil {
		s.letGo()
		return nil, fmt.Errorf("open ebpf switch %s: %w", o.Instance.Name, err)
	}
	return s, nil
}

func (s *Switch) open(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("want root (CAP_NET_ADMIN, CAP_BPF, CAP_SYS_ADMIN)")
	}
	var err error
	if s.lock, err = s.store.Lock(); err != nil {
		return err
	}
	if err := s.probe(); err != nil {
		return err
	}
	if s.home, err = netns.At(""); err != nil {
		return err
	}
	if s.nl, err = hostlink.Handle(s.home); err != nil {
		return err
	}
	if err := mountBPFFS(s.opts.Instance.BPFFS()); err != nil {
		return err
	}
	if err := s.openTables(); err != nil {
		return err
	}
	if err := s.openBridge(); err != nil {
		return err
	}
	if err := s.restore(ctx); err != nil {
		return err
	}
	work, stop := context.WithCancel(context.Background())
	s.stop = stop
	if s.state.Hook == HookAuto {
		s.done.Go(func() { s.promoteAll(work) })
	}
	s.done.Go(func() { s.watch(work) })
	return nil
}

// Close lets go and leaves everything forwarding.
func (s *Switch) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.halt()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.letGo()
	return nil
}

// halt ends what goes on in the background; the switch goes on.
func (s *Switch) halt() {
	s.stop()
	s.done.Wait()
}

// letGo closes what is open, when nothing goes on in the background any more.
func (s *Switch) letGo() {
	s.programs.close()
	s.maps.close()
	if s.probes != nil {
		s.probes.Close() // errors of one that is sending are its own
	}
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

// ErrClosed says that the switch has been closed or destroyed.
var ErrClosed = errors.New("switch is closed")

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

// at is a place where a test can make the process "die".
func (s *Switch) at(step string) error {
	if s.opts.fault == nil {
		return nil
	}
	return s.opts.fault(step)
}
