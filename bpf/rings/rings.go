package rings

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
)

// hook is a program at a group. One that is attached is known again by its name.
type hook struct {
	program string
	at      ebpf.AttachType
}

var (
	options = hook{"weir_rings", ebpf.AttachCGroupSetsockopt} // always there
	// Those that see sockets of IP, in the order in which they are attached: none is counted before it can be given back.
	ofIP = []hook{{"weir_ip_closed", ebpf.AttachCgroupInetSockRelease}, {"weir_ip_made", ebpf.AttachCGroupInetSockCreate}, {"weir_ip_sent", ebpf.AttachCGroupInetEgress}}
)

// Bound is the program at a group. It may be used by several goroutines.
type Bound struct {
	dir   string
	scope uint64

	mu    sync.Mutex
	o     RingsObjects
	iter  *ebpf.Program // nil: this kernel cannot go over sockets
	lacks error         // why

	unseen error    // why sockets are not seen when they are made and closed; nil: they are
	pinned []string // files, by which they are
}

// Attach bounds what each group below one may take, in bytes. dir is the group's directory. pins is a directory of its own, in which the programs are pinned that see sockets
// when they are made and closed. Programs that are there already are taken over with what they have counted.
func Attach(dir, pins string, most uint64) (*Bound, error) {
	if most == 0 {
		return nil, errors.New("bound the rings of sockets: 0 bytes: want more")
	}
	b, err := attach(dir, pins, most)
	if err != nil {
		return nil, fmt.Errorf("bound the rings of sockets: %w", err)
	}
	return b, nil
}

func attach(dir, pins string, most uint64) (_ *Bound, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := &Bound{dir: dir}
	if b.scope, err = inode(f.Stat()); err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil { // before Linux 5.11
		return nil, err
	}
	spec, err := LoadRings()
	if err != nil {
		return nil, err
	}
	if err := likeHost(spec); err != nil {
		return nil, err
	}
	apart := takeApart(spec)
	old, err := options.found(f)
	if err != nil {
		return nil, err
	}
	maps, err := mapsOf(old, spec)
	defer func() {
		old.Close()
		for _, m := range maps {
			m.Close()
		}
		if err != nil {
			b.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	// The iterator is loaded apart: it takes types of the kernel (CONFIG_DEBUG_INFO_BTF), and rings are bounded without it.
	all, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: maps})
	if err != nil {
		return nil, loading(err)
	}
	b.o.RingsPrograms.WeirRings = all.DetachProgram("weir_rings")
	b.o.RingsMaps = RingsMaps{Bounds: all.DetachMap("bounds"), Groups: all.DetachMap("groups"), Gone: all.DetachMap("gone"), Lives: all.DetachMap("lives"),
		Sockets: all.DetachMap("sockets"), Denied: all.DetachMap("denied"), Heirs: all.DetachMap("heirs")}
	all.Close()
	live, err := ebpf.NewCollectionWithOptions(with(spec, apart, "weir_rings_live"), b.shared())
	if err != nil {
		b.lacks = fmt.Errorf("go over sockets: %w", err)
	} else {
		b.iter = live.DetachProgram("weir_rings_live")
		live.Close()
	}
	bound := RingsBound{Scope: b.scope, Bytes: most}
	if b.iter == nil {
		bound.Blind = 1
	}
	if err := b.o.Bounds.Put(uint32(0), bound); err != nil {
		return nil, fmt.Errorf("set the limit: %w", err)
	}
	if err := options.attach(f, b.o.WeirRings); err != nil {
		return nil, err
	}
	b.unseen = errors.Join(b.seeIP(f, with(spec, apart, programs(ofIP)...)), b.see(with(spec, apart, seeing...), pins))
	return b, nil
}

const usualOptmem = 128 << 10

// likeHost gives programs the host's settings as they are now.
func likeHost(spec *ebpf.CollectionSpec) error {
	for _, name := range []string{"rmem_max", "optmem_max"} {
		raw, err := os.ReadFile("/proc/sys/net/core/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // in another network namespace than the host's: as kernels have it
		}
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 32)
		if err != nil {
			return fmt.Errorf("net.core.%s: %w", name, err)
		}
		if name == "optmem_max" { // functions' network namespaces have the usual one since Linux 6.7, whatever the host has
			n = max(n, usualOptmem)
		}
		if err := spec.Variables[name].Set(uint32(n)); err != nil {
			return fmt.Errorf("net.core.%s: %w", name, err)
		}
	}
	return nil
}

func programs(hooks []hook) (out []string) {
	for _, h := range hooks {
		out = append(out, h.program)
	}
	return out
}

// attach has a program at a group, in place of the one that is there.
func (h hook) attach(group *os.File, p *ebpf.Program) error {
	old, err := h.found(group)
	if err != nil {
		return err
	}
	defer old.Close()
	at := link.RawAttachProgramOptions{Target: int(group.Fd()), Program: p, Attach: h.at, Flags: unix.BPF_F_ALLOW_MULTI}
	if old != nil {
		at.Anchor = link.ReplaceProgram(old)
	}
	return link.RawAttachProgram(at)
}

// seeIP attaches the programs that see sockets of IP, as far as the kernel does not count what they take.
func (b *Bound) seeIP(group *os.File, spec *ebpf.CollectionSpec) error {
	all, err := ebpf.NewCollectionWithOptions(spec, b.shared())
	if err != nil {
		return fmt.Errorf("raw, ping and UDP sockets are not seen when they are made, nor what sockets send: %w (CONFIG_DEBUG_INFO_BTF is needed)", err)
	}
	defer all.Close()
	for _, h := range ofIP {
		if err := h.attach(group, all.Programs[h.program]); err != nil {
			return fmt.Errorf("raw, ping and UDP sockets are not seen when they are made, nor what sockets send: %w", err)
		}
	}
	return nil
}

// shared has programs use this bound's maps.
func (b *Bound) shared() ebpf.CollectionOptions {
	return ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		"bounds": b.o.Bounds, "groups": b.o.Groups, "gone": b.o.Gone, "lives": b.o.Lives, "sockets": b.o.Sockets, "denied": b.o.Denied, "heirs": b.o.Heirs,
	}}
}

// seeing are the programs that see other sockets, in the order in which they are attached: none is refused before that can be done, and none is counted before it can be given back.
var seeing = []string{"weir_closed", "weir_denied", "weir_made"}

// takeApart takes those programs from spec that want types of the kernel (CONFIG_DEBUG_INFO_BTF). Rings are bounded without them.
func takeApart(spec *ebpf.CollectionSpec) map[string]*ebpf.ProgramSpec {
	apart := map[string]*ebpf.ProgramSpec{}
	for _, name := range slices.Concat([]string{"weir_rings_live"}, programs(ofIP), seeing) {
		apart[name] = spec.Programs[name]
		delete(spec.Programs, name)
	}
	return apart
}

// with is spec with some programs of those that were taken apart alone.
func with(spec *ebpf.CollectionSpec, apart map[string]*ebpf.ProgramSpec, names ...string) *ebpf.CollectionSpec {
	out := &ebpf.CollectionSpec{Maps: spec.Maps, Programs: map[string]*ebpf.ProgramSpec{}, Types: spec.Types, ByteOrder: spec.ByteOrder}
	for _, name := range names {
		out.Programs[name] = apart[name]
	}
	return out
}

// see attaches the programs that see other sockets, unless they are there. Those of another version, or for other maps, go when these are there: of both together each socket counts
// once.
func (b *Bound) see(spec *ebpf.CollectionSpec, pins string) error {
	all, err := ebpf.NewCollectionWithOptions(spec, b.shared())
	if err != nil {
		return unseen(err)
	}
	defer all.Close()
	if err := bpf.Mount(pins); err != nil {
		return err
	}
	entries, err := os.ReadDir(pins)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, e := range entries {
		there[e.Name()] = true
	}
	maps, err := b.o.Groups.Info()
	if err != nil {
		return err
	}
	id, _ := maps.ID()
	names, want := map[string]string{}, map[string]bool{}
	for _, program := range seeing {
		info, err := all.Programs[program].Info()
		if err != nil {
			return err
		}
		names[program] = fmt.Sprintf("%s-%s-%d", program, info.Tag, id)
		want[names[program]] = true
	}
	if slices.ContainsFunc(seeing, func(program string) bool { return !there[names[program]] }) {
		// What only a part is there of is of a process that was killed meanwhile. They share a map that this process has not.
		if err := unpin(pins, func(name string) bool { return want[name] }); err != nil {
			return err
		}
		for _, program := range seeing {
			if err := pin(all.Programs[program], filepath.Join(pins, names[program])); err != nil {
				return unseen(err)
			}
		}
	}
	if err := unpin(pins, func(name string) bool { return !want[name] }); err != nil {
		return err
	}
	for name := range want {
		b.pinned = append(b.pinned, filepath.Join(pins, name))
	}
	return nil
}

// pin attaches a program for as long as the pin is there.
func pin(p *ebpf.Program, path string) error {
	l, err := link.AttachTracing(link.TracingOptions{Program: p})
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Pin(path)
}

// unpin removes pins.
func unpin(dir string, which func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if which(e.Name()) && !strings.Contains(e.Name(), ".") { // the kernel's own have dots
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("unpin: %w", err)
			}
		}
	}
	return nil
}

// unseen says what a kernel may lack that does not take the programs that see sockets.
func unseen(err error) error {
	var e unix.Errno
	if errors.As(err, &e) {
		err = e // the rest is long, and nobody's concern
	}
	return fmt.Errorf("netlink and packet sockets are not seen when they are made: %w (programs at functions of the kernel need CONFIG_DEBUG_INFO_BTF and CONFIG_SECURITY_NETWORK, and a policy that lets them be)", err)
}

// Unseen tells why sockets are not seen when they are made and closed, so that only their rings and long queues are bounded; nil: they are.
func (b *Bound) Unseen() error { return b.unseen }

// loading says what a kernel may lack that does not take the program.
func loading(err error) error {
	var v *ebpf.VerifierError
	if errors.As(err, &v) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w (Linux 6.1 with CONFIG_CGROUP_BPF has what is needed)", err)
	}
	return err
}

// found is the program that is attached to a group, nil if none is.
func (h hook) found(group *os.File) (*ebpf.Program, error) {
	there, err := link.QueryPrograms(link.QueryOptions{Target: int(group.Fd()), Attach: h.at})
	if err != nil {
		return nil, err
	}
	for _, p := range there.Programs {
		old, err := ebpf.NewProgramFromID(p.ID)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		info, err := old.Info()
		if err == nil && info.Name == h.program {
			return old, nil
		}
		old.Close()
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// counts are the maps in which the program of options counts, in every version.
var counts = []string{"bounds", "groups", "gone", "sockets"}

// mapsOf are the maps of the program at a group. They are left out if one of them is not as this version has it: what one says is true with the others only. A map that is new in
// this version may be missing.
func mapsOf(p *ebpf.Program, spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	if p == nil {
		return nil, nil
	}
	info, err := p.Info()
	if err != nil {
		return nil, err
	}
	ids, _ := info.MapIDs()
	maps := map[string]*ebpf.Map{}
	for _, id := range ids {
		var m *ebpf.Map
		if m, err = ebpf.NewMapFromID(id); err != nil {
			break
		}
		mi, err := m.Info()
		if err == nil && spec.Maps[mi.Name] != nil && maps[mi.Name] == nil && spec.Maps[mi.Name].Compatible(m) == nil && !strings.HasPrefix(mi.Name, ".") { // constants are a version's own
			maps[mi.Name] = m
			continue
		}
		m.Close()
	}
	if err != nil || slices.ContainsFunc(counts, func(name string) bool { return maps[name] == nil }) {
		for _, m := range maps {
			m.Close()
		}
		maps = nil
	}
	return maps, err
}

// Close lets the program go, which stays at its group.
func (b *Bound) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.iter != nil {
		b.iter.Close()
	}
	return b.o.Close()
}

// At tells whether a directory is still the group that has the program, and the pins are there: one of that name may have been removed and made anew.
func (b *Bound) At(dir string) bool {
	for _, pin := range b.pinned {
		if _, err := os.Lstat(pin); err != nil {
			return false
		}
	}
	id, err := inode(os.Stat(dir))
	return err == nil && id == b.scope
}

// Group is what is known of one.
type Group struct {
	Name    string
	Bytes   uint64 // of rings and sockets that are there, as far as is known
	Refused uint64 // how often a ring or a socket was refused since the group was made
}

// Sweep finds out which rings are gone, and which groups. It gives those groups in which somebody has asked for rings, if they are known also with an error, which says
// that what is gone goes on to count.
func (b *Bound) Sweep() ([]Group, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	counted, err := all[RingsGroup](b.o.Groups)
	if err != nil || len(counted) == 0 {
		return nil, err
	}
	names, err := groupsIn(b.dir, b.scope)
	if err != nil {
		return nil, err
	}
	gone, err := all[RingsSum](b.o.Gone)
	if err != nil {
		return nil, err
	}
	taken := false
	for id, g := range counted {
		taken = taken || held(g, gone[id]) > 0
	}
	if taken {
		err = b.free(counted, gone)
	}
	var out []Group
	for id, g := range counted {
		if n, ok := names[id]; ok {
			out = append(out, Group{n, held(g, gone[id]), g.Refused})
			continue
		}
		// Its processes are gone with it.
		err = errors.Join(err, forget(b.o.Groups, id), forget(b.o.Gone, id))
	}
	return out, err
}

// free writes down what is gone. What groups had been granted was read before the sockets are looked at: what is granted meanwhile does not count as gone.
func (b *Bound) free(counted map[uint64]RingsGroup, gone map[uint64]RingsSum) error {
	lives, err := b.live()
	if err != nil {
		return err
	}
	then, err := all[RingsGroup](b.o.Groups)
	if err != nil {
		return err
	}
	for id, g := range counted {
		if then[id].Xdp != g.Xdp { // a socket that was not seen may share what one has that was
			g.Xdp = 0
		}
		now := freed(g, lives[id], gone[id], then[id].Closed)
		if now == gone[id] {
			continue
		}
		gone[id] = now
		if err := b.o.Gone.Put(id, now); err != nil {
			return fmt.Errorf("rings that are gone: %w", err)
		}
	}
	return nil
}

// held is what a group has of rings and sockets, when some of it is gone.
func held(g RingsGroup, gone RingsSum) uint64 {
	return g.Granted - g.Closed - gone.Packet - gone.Xdp - gone.Queues
}

// freed is what is gone of a group's bytes, but for the queues that were given back at once. An AF_XDP socket shares the memory and the rings of another one, which stay when that
// one is closed. So those of AF_XDP are gone when the last such socket is.
func freed(g RingsGroup, live, before RingsSum, closed uint64) RingsSum {
	if g.Packet > live.Packet {
		before.Packet = max(before.Packet, g.Packet-live.Packet)
	}
	if live.Xdp == 0 {
		before.Xdp = max(before.Xdp, g.Xdp)
	}
	if g.Queues > live.Queues+closed {
		before.Queues = max(before.Queues, g.Queues-live.Queues-closed)
	}
	return before
}

// live sums up the rings and queues of all sockets, by group.
func (b *Bound) live() (map[uint64]RingsSum, error) {
	if b.iter == nil {
		return nil, b.lacks
	}
	old, err := all[RingsSum](b.o.Lives)
	if err != nil {
		return nil, err
	}
	for id := range old {
		if err := forget(b.o.Lives, id); err != nil {
			return nil, err
		}
	}
	it, err := link.AttachIter(link.IterOptions{Program: b.iter, Map: b.o.Sockets})
	if err != nil {
		return nil, fmt.Errorf("go over sockets: %w", err)
	}
	defer it.Close()
	r, err := it.Open()
	if err != nil {
		return nil, fmt.Errorf("go over sockets: %w", err)
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, fmt.Errorf("go over sockets: %w", err)
	}
	return all[RingsSum](b.o.Lives)
}

// all reads a map of groups. Programs add to it meanwhile.
func all[V any](m *ebpf.Map) (map[uint64]V, error) {
	out := map[uint64]V{}
	var id uint64
	var v V
	it := m.Iterate()
	for it.Next(&id, &v) {
		out[id] = v
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read the rings of groups: %w", err)
	}
	return out, nil
}

func forget(m *ebpf.Map, id uint64) error {
	if err := m.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget the rings of a group: %w", err)
	}
	return nil
}

// groupsIn are the groups directly below one, by number, and itself.
func groupsIn(dir string, scope uint64) (map[uint64]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := map[uint64]string{scope: ""}
	for _, d := range entries {
		if !d.IsDir() {
			continue
		}
		if id, err := inode(os.Stat(filepath.Join(dir, d.Name()))); err == nil {
			out[id] = d.Name()
		}
	}
	return out, nil
}

// inode is a group's number as programs have it.
func inode(info fs.FileInfo, err error) (uint64, error) {
	if err != nil {
		return 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("%s has no number", info.Name())
	}
	return st.Ino, nil
}

// Detach takes the programs of a group away, as far as there are any. Where the kernel attaches none there is none. The group itself may be gone.
func Detach(dir, pins string) error {
	if err := bpf.Unmount(pins); err != nil {
		return err
	}
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var errs []error
	for _, h := range append([]hook{options}, ofIP...) {
		errs = append(errs, h.detach(f))
	}
	return errors.Join(errs...)
}

func (h hook) detach(group *os.File) error {
	old, err := h.found(group)
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	if err != nil || old == nil {
		return err
	}
	defer old.Close()
	return link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(group.Fd()), Program: old, Attach: h.at})
}

// Supported tells why this kernel cannot bound rings; nil: it can.
func Supported() error {
	spec, err := LoadRings()
	if err != nil {
		return err
	}
	takeApart(spec)
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return loading(err)
	}
	c.Close()
	return nil
}

// Seen tells why this kernel shows no sockets when they are made and closed; nil: it does.
func Seen() error {
	spec, err := LoadRings()
	if err != nil {
		return err
	}
	c, err := ebpf.NewCollection(with(spec, takeApart(spec), seeing...))
	if err != nil {
		return unseen(err)
	}
	defer c.Close()
	for _, program := range seeing {
		l, err := link.AttachTracing(link.TracingOptions{Program: c.Programs[program]})
		if err != nil {
			return unseen(err)
		}
		l.Close()
	}
	return nil
}
