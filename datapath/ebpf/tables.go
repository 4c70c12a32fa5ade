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

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/flow"
)

// tables of the switch. The names are those in the C.
type tables struct {
	bpf.SteerMaps
	Processes *ebpf.Map `ebpf:"processes"`
}

func (m *tables) close() {
	m.SteerMaps.Close() // nil is fine
	m.Processes.Close()
}

// programs of the switch; ProcessExit is nil where processes' ends are not told.
type programs struct {
	bpf.SteerPrograms
	bpf.WirePrograms
	bpf.ExitPrograms
}

func (p *programs) close() {
	p.SteerPrograms.Close()
	p.WirePrograms.Close()
	p.ExitPrograms.Close()
}

// specs of all maps at the sizes asked for, and the name of their layout: maps of another one are not reused.
func (o *Options) specs() (steer, exit *ebpf.CollectionSpec, abi string, err error) {
	if steer, err = bpf.LoadSteer(); err != nil {
		return nil, nil, "", err
	}
	if exit, err = bpf.LoadExit(); err != nil {
		return nil, nil, "", err
	}
	sizes := map[string]int{
		"ports": o.Ports, "slots": o.Ports, "functions": o.Ports, "probes": o.Ports, "port_counts": o.Ports, "processes": o.Ports,
		"stations": o.Ports, "homes": o.Ports, "guards": o.Ports, "guard_counts": o.Ports, "owners": flow.MaxGuardMACs * o.Ports,
		"lists": o.lists(), "masks": 2 * o.Masks, "tuples": 2 * o.Keys, "flows": o.Flows, "learned": o.Flows / 2, "rule_counts": 2 * o.Rules,
	}
	h := sha256.New()
	fmt.Fprintln(h, "layout", bpf.Layout)
	for _, spec := range []*ebpf.CollectionSpec{steer, exit} {
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
		}
	}
	return steer, exit, hex.EncodeToString(h.Sum(nil)[:6]), nil
}

// mountBPFFS mounts the instance's own bpffs. Not under /sys: `ip netns exec` mounts that anew.
func mountBPFFS(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("statfs %s: %w", dir, err)
	}
	if fs.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount bpffs at %s: %w", dir, err)
	}
	return nil
}

func (s *Switch) mapsDir(abi string) string {
	return filepath.Join(s.opts.Instance.BPFFS(), "maps-"+abi)
}

func (s *Switch) programsDir(abi, build string) string {
	return filepath.Join(s.opts.Instance.BPFFS(), "programs-"+abi+"-"+build)
}

func (s *Switch) linksDir() string { return filepath.Join(s.opts.Instance.BPFFS(), "links") }

// openTables opens the maps and programs of this build's layout, or makes them. s.state tells afterwards which were in force before.
func (s *Switch) openTables() error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("raise RLIMIT_MEMLOCK: %w", err)
	}
	if _, err := s.store.Read("switch.json", &s.state); err != nil {
		return err
	}
	steer, exit, abi, err := s.opts.specs()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.linksDir(), 0o700); err != nil {
		return err
	}
	pinned, err := openMaps(s.mapsDir(abi), steer, exit)
	if err != nil {
		return err
	}
	if err := (&ebpf.Collection{Maps: maps.Clone(pinned)}).Assign(&s.maps); err != nil {
		return err
	}
	wire, err := bpf.LoadWire()
	if err != nil {
		return err
	}
	specs := []*ebpf.CollectionSpec{steer, wire}
	if s.exit {
		specs = append(specs, exit)
	}
	if err := s.openPrograms(s.programsDir(abi, s.opts.build), pinned, specs); err != nil {
		return err
	}
	return s.adopt(abi)
}

// adopt makes the maps and programs just opened those of the switch.
func (s *Switch) adopt(abi string) error {
	was := s.state
	if s.state.Secret == 0 {
		var b [4]byte
		if _, err := rand.Read(b[:]); err != nil {
			return err
		}
		s.state.Secret = binary.NativeEndian.Uint32(b[:]) | 1<<31 // secret ^ ifindex is never 0
	}
	hook := s.state.Hook
	if hook == "" {
		if hook = s.opts.Hook; hook == HookAuto {
			hook = HookClsact
			if s.tcx {
				hook = HookAuto
			}
		}
	}
	if s.opts.Hook != HookAuto && hook != s.opts.Hook {
		return fmt.Errorf("the switch is attached by %s: destroy it first to attach it by %s", hook, s.opts.Hook)
	}
	s.state.Hook, s.state.ABI, s.state.Build = hook, abi, s.opts.build
	if was.ABI != "" && was.ABI != abi && was.Previous == "" {
		if _, err := os.Stat(s.mapsDir(was.ABI)); err == nil {
			s.state.Previous = was.ABI
		}
	}
	if s.state.Rules == nil {
		s.state.Rules, s.state.Ports = map[uint64]counter{}, map[string]portCounters{}
	}
	return s.store.Write("switch.json", &s.state)
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
func (s *Switch) openPrograms(dir string, all map[string]*ebpf.Map, specs []*ebpf.CollectionSpec) error {
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
	err = errors.Join(c.Assign(&s.programs.SteerPrograms), c.Assign(&s.programs.WirePrograms))
	if err == nil && s.exit {
		err = c.Assign(&s.programs.ExitPrograms)
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
