package ebpf

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/flow"
)

// tables are the maps and programs in the kernel, pinned in the instance's bpffs, and switch.json, which says which of them are in force.
type tables struct {
	home     *home.Home
	opts     *Options
	kernel   *kernel
	maps     mapSet
	programs programSet
	state    state // switch.json
}

// mapSet has the names that are in the C.
type mapSet struct {
	bpf.SteerMaps
	Processes *ebpf.Map `ebpf:"processes"`
}

// programSet has a nil ProcessExit where processes' ends are not told, and a nil Settle where the kernel cannot compare and exchange.
type programSet struct {
	bpf.SteerPrograms
	bpf.WirePrograms
	bpf.ExitPrograms
	bpf.SettlePrograms
}

// close lets go of maps and programs, which stay pinned. Safe to call twice and before open.
func (t *tables) close() {
	t.programs.SteerPrograms.Close() // nil is fine
	t.programs.WirePrograms.Close()
	t.programs.ExitPrograms.Close()
	t.programs.SettlePrograms.Close()
	t.maps.SteerMaps.Close()
	t.maps.Processes.Close()
}

// save writes switch.json.
func (t *tables) save() error { return t.home.Store.Write("switch.json", &t.state) }

// specs are what there is to load, with all maps at the sizes asked for.
type specs struct{ steer, exit, settle *ebpf.CollectionSpec }

// specs and the name of their layout: maps of another one are not reused.
func (o *Options) specs() (all specs, abi string, err error) {
	if all.steer, err = bpf.LoadSteer(); err != nil {
		return all, "", err
	}
	if all.exit, err = bpf.LoadExit(); err != nil {
		return all, "", err
	}
	if all.settle, err = bpf.LoadSettle(); err != nil {
		return all, "", err
	}
	sizes := map[string]int{
		"ports": o.Ports, "slots": o.Ports, "functions": o.Ports, "probes": o.Ports, "port_counts": o.Ports, "processes": o.Ports,
		"settled": o.Ports, "stations": o.Ports, "homes": o.Ports, "guards": o.Ports, "guard_counts": o.Ports, "owners": flow.MaxGuardMACs * o.Ports,
		"lists": o.limits().Lists(), "masks": 2 * o.Masks, "tuples": 2 * o.Keys, "flows": o.Flows, "learned": o.Flows / 2, "rule_counts": 2 * o.Rules,
	}
	h := sha256.New()
	fmt.Fprintln(h, "layout", bpf.Layout)
	for _, spec := range []*ebpf.CollectionSpec{all.steer, all.exit, all.settle} {
		var names []string
		for name, m := range spec.Maps {
			if size, ok := sizes[name]; ok {
				m.MaxEntries = uint32(size)
			}
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			m := spec.Maps[name]
			fmt.Fprintln(h, name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags)
			if in := m.InnerMap; in != nil {
				in.MaxEntries = uint32(o.Settled)
				fmt.Fprintln(h, "its maps", in.Type, in.KeySize, in.ValueSize, in.MaxEntries, in.Flags)
			}
		}
	}
	return all, hex.EncodeToString(h.Sum(nil)[:6]), nil
}

func (t *tables) mapsDir(abi string) string {
	return filepath.Join(t.home.Instance.BPFFS(), "maps-"+abi)
}

func (t *tables) programsDir(abi, build string) string {
	return filepath.Join(t.home.Instance.BPFFS(), "programs-"+abi+"-"+build)
}

func (t *tables) linksDir() string { return filepath.Join(t.home.Instance.BPFFS(), "links") }

// open opens the maps and programs of this build's layout, or makes them. state tells afterwards which were in force before.
func (t *tables) open() error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("raise RLIMIT_MEMLOCK: %w", err)
	}
	if _, err := t.home.Store.Read("switch.json", &t.state); err != nil {
		return err
	}
	all, abi, err := t.opts.specs()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(t.linksDir(), 0o700); err != nil {
		return err
	}
	pinned, err := openMaps(t.mapsDir(abi), all.steer, all.exit, all.settle)
	if err != nil {
		return err
	}
	if err := (&ebpf.Collection{Maps: maps.Clone(pinned)}).Assign(&t.maps); err != nil {
		return err
	}
	wire, err := bpf.LoadWire()
	if err != nil {
		return err
	}
	load := []*ebpf.CollectionSpec{all.steer, wire}
	if t.kernel.exit {
		load = append(load, all.exit)
	}
	if t.kernel.settles {
		load = append(load, all.settle)
	}
	if err := t.openPrograms(t.programsDir(abi, t.opts.build), pinned, load); err != nil {
		return err
	}
	return t.adopt(abi)
}

// adopt makes the maps and programs just opened those of the switch.
func (t *tables) adopt(abi string) error {
	was := t.state
	if t.state.Secret == 0 {
		var b [4]byte
		if _, err := rand.Read(b[:]); err != nil {
			return err
		}
		t.state.Secret = binary.NativeEndian.Uint32(b[:]) | 1<<31 // secret ^ ifindex is never 0
	}
	hook := t.state.Hook
	if hook == "" {
		if hook = t.opts.Hook; hook == HookAuto {
			hook = HookClsact
			if t.kernel.tcx {
				hook = HookAuto
			}
		}
	}
	if t.opts.Hook != HookAuto && hook != t.opts.Hook {
		return fmt.Errorf("the switch is attached by %s: destroy it first to attach it by %s", hook, t.opts.Hook)
	}
	t.state.Hook, t.state.ABI, t.state.Build = hook, abi, t.opts.build
	if was.ABI != "" && was.ABI != abi && was.Previous == "" {
		if _, err := os.Stat(t.mapsDir(was.ABI)); err == nil {
			t.state.Previous = was.ABI
		}
	}
	if t.state.Rules == nil {
		t.state.Rules, t.state.Ports = map[uint64]counter{}, map[string]portCounters{}
	}
	return t.save()
}

// openMaps opens the pinned maps, or makes them all: half a set, left by a crash, lies under another name and is removed.
func openMaps(dir string, specs ...*ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	err := makeOnce(dir, func(fresh string) error { return makeMaps(fresh, specs) })
	if err != nil {
		return nil, err
	}
	c := &ebpf.Collection{Maps: map[string]*ebpf.Map{}}
	for _, spec := range specs {
		for name := range spec.Maps {
			if c.Maps[name] != nil {
				continue
			}
			if c.Maps[name], err = ebpf.LoadPinnedMap(filepath.Join(dir, name), nil); err != nil {
				c.Close()
				return nil, fmt.Errorf("open map %s: %w", name, err)
			}
		}
	}
	return c.Maps, nil
}

// makeOnce makes a directory of pins unless it is there.
func makeOnce(dir string, fill func(fresh string) error) error {
	fresh := dir + "-new" // no dots: bpffs reserves them
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return err
	}
	if err := fill(fresh); err != nil {
		return err
	}
	if err := os.Rename(fresh, dir); err != nil {
		return fmt.Errorf("pin %s: %w", filepath.Base(dir), err)
	}
	return nil
}

func makeMaps(dir string, specs []*ebpf.CollectionSpec) error {
	done := map[string]bool{}
	for _, spec := range specs {
		for name, ms := range spec.Maps {
			if done[name] {
				continue
			}
			done[name] = true
			m, err := ebpf.NewMap(ms)
			if err != nil {
				return fmt.Errorf("make map %s of %d entries: %w", name, ms.MaxEntries, err)
			}
			err = m.Pin(filepath.Join(dir, name))
			m.Close()
			if err != nil {
				return fmt.Errorf("pin map %s: %w", name, err)
			}
		}
	}
	return nil
}

// openPrograms opens the pinned programs of this build, or loads them.
func (t *tables) openPrograms(dir string, all map[string]*ebpf.Map, specs []*ebpf.CollectionSpec) error {
	err := makeOnce(dir, func(fresh string) error { return loadPrograms(fresh, all, specs) })
	if err != nil {
		return err
	}
	c := &ebpf.Collection{Programs: map[string]*ebpf.Program{}}
	defer c.Close() // of what is not assigned
	for _, spec := range specs {
		for name := range spec.Programs {
			if c.Programs[name], err = ebpf.LoadPinnedProgram(filepath.Join(dir, name), nil); err != nil {
				return fmt.Errorf("open program %s: %w", name, err)
			}
		}
	}
	err = errors.Join(c.Assign(&t.programs.SteerPrograms), c.Assign(&t.programs.WirePrograms))
	if err == nil && t.kernel.exit {
		err = c.Assign(&t.programs.ExitPrograms)
	}
	if err == nil && t.kernel.settles {
		err = c.Assign(&t.programs.SettlePrograms)
	}
	return err
}

func loadPrograms(dir string, all map[string]*ebpf.Map, specs []*ebpf.CollectionSpec) error {
	for _, spec := range specs {
		have := map[string]*ebpf.Map{}
		for name := range spec.Maps {
			have[name] = all[name]
		}
		c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: have})
		if err != nil {
			return fmt.Errorf("load programs: %w", err)
		}
		for name, p := range c.Programs {
			if err := p.Pin(filepath.Join(dir, name)); err != nil {
				c.Close()
				return fmt.Errorf("pin program %s: %w", name, err)
			}
		}
		c.Close()
	}
	return nil
}

// carry calls over with a map that is being replaced, if there is one.
func (t *tables) carry(name string, over func(*ebpf.Map) error) error {
	old, err := ebpf.LoadPinnedMap(filepath.Join(t.mapsDir(t.state.Previous), name), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer old.Close()
	return over(old)
}

// sweep removes pins that nothing uses: of other builds and layouts, and of ports that are not used.
func (t *tables) sweep(used func(slot uint16) bool) error {
	root := t.home.Instance.BPFFS()
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	keep := map[string]bool{t.linksDir(): true, t.mapsDir(t.state.ABI): true, t.programsDir(t.state.ABI, t.state.Build): true}
	for _, e := range entries {
		if path := filepath.Join(root, e.Name()); !keep[path] && !strings.Contains(e.Name(), ".") { // the kernel's own have dots
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("remove old pins: %w", err)
			}
		}
	}
	if entries, err = os.ReadDir(t.linksDir()); err != nil {
		return err
	}
	for _, e := range entries {
		number, _, _ := strings.Cut(e.Name(), "-")
		slot, err := strconv.ParseUint(number, 10, 16)
		if err != nil || used(uint16(slot)) {
			continue
		}
		if err := os.Remove(filepath.Join(t.linksDir(), e.Name())); err != nil {
			return fmt.Errorf("remove old pins: %w", err)
		}
	}
	return nil
}

// unpin removes our bpffs and all in it. Links that are pinned nowhere else end with it.
func (t *tables) unpin() error { return bpf.Unmount(t.home.Instance.BPFFS()) }

// unlearn forgets the addresses met at a port that goes.
func (m *mapSet) unlearn(slot uint16) error {
	var k bpf.SteerExitKey
	var at uint32
	var stale []bpf.SteerExitKey
	it := m.Learned.Iterate()
	for it.Next(&k, &at) {
		if at == uint32(slot) {
			stale = append(stale, k)
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read learned addresses: %w", err)
	}
	for _, k := range stale {
		if err := m.Learned.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget learned address: %w", err)
		}
	}
	if len(stale) == 0 {
		return nil
	}
	var moves uint32
	if err := m.Moves.Lookup(uint32(0), &moves); err != nil {
		return fmt.Errorf("read moves: %w", err)
	}
	if err := m.Moves.Put(uint32(0), moves+1); err != nil {
		return fmt.Errorf("write moves: %w", err)
	}
	return nil
}

// barrier waits until no program runs that started before: the kernel's synchronize_rcu, some 10 ms.
func barrier() error {
	const cmdGlobal = 1 // MEMBARRIER_CMD_GLOBAL, kernel 4.3
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, cmdGlobal, 0, 0); errno != 0 {
		return fmt.Errorf("membarrier: %w", errno)
	}
	return nil
}

// now is the clock of the programs, ns.
func now() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, err
	}
	return uint64(t.Nano()), nil
}
