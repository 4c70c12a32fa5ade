package rings

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// name of the program, by which one that is attached is known again.
const name = "weir_rings"

// Bound is the program at a group. It may be used by several goroutines.
type Bound struct {
	dir   string
	scope uint64

	mu    sync.Mutex
	o     RingsObjects
	iter  *ebpf.Program // nil: this kernel cannot go over sockets
	lacks error         // why
}

// Attach bounds what each group below one may take, in bytes. dir is the group's directory. A program that is there already is taken over with what it has counted.
func Attach(dir string, most uint64) (*Bound, error) {
	if most == 0 {
		return nil, errors.New("bound the rings of sockets: 0 bytes: want more")
	}
	b, err := attach(dir, most)
	if err != nil {
		return nil, fmt.Errorf("bound the rings of sockets: %w", err)
	}
	return b, nil
}

func attach(dir string, most uint64) (_ *Bound, err error) {
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
	iter := spec.Programs["weir_rings_live"]
	delete(spec.Programs, "weir_rings_live")
	old, maps, err := found(f, spec)
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
	b.o.RingsPrograms.WeirRings = all.Programs["weir_rings"]
	b.o.RingsMaps = RingsMaps{Bounds: all.Maps["bounds"], Groups: all.Maps["groups"], Gone: all.Maps["gone"], Lives: all.Maps["lives"], Sockets: all.Maps["sockets"]}
	live, err := ebpf.NewCollectionWithOptions(&ebpf.CollectionSpec{Maps: spec.Maps, Programs: map[string]*ebpf.ProgramSpec{"iter": iter}, Types: spec.Types, ByteOrder: spec.ByteOrder},
		ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{"bounds": b.o.Bounds, "groups": b.o.Groups, "gone": b.o.Gone, "lives": b.o.Lives, "sockets": b.o.Sockets}})
	if err != nil {
		b.lacks = fmt.Errorf("go over sockets: %w", err)
	} else {
		b.iter = live.DetachProgram("iter")
		live.Close()
	}
	if err := b.o.Bounds.Put(uint32(0), RingsBound{Scope: b.scope, Bytes: most}); err != nil {
		return nil, fmt.Errorf("set the limit: %w", err)
	}
	at := link.RawAttachProgramOptions{Target: int(f.Fd()), Program: b.o.WeirRings, Attach: ebpf.AttachCGroupSetsockopt, Flags: unix.BPF_F_ALLOW_MULTI}
	if old != nil {
		at.Anchor = link.ReplaceProgram(old)
	}
	return b, link.RawAttachProgram(at)
}

// loading says what a kernel may lack that does not take the program.
func loading(err error) error {
	var v *ebpf.VerifierError
	if errors.As(err, &v) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w (Linux 6.1 with CONFIG_CGROUP_BPF has what is needed)", err)
	}
	return err
}

// found is the program that is attached to a group, nil if none is, and its maps. They are left out if one of them is not as this version has it: what one says is true
// with the others only.
func found(group *os.File, spec *ebpf.CollectionSpec) (*ebpf.Program, map[string]*ebpf.Map, error) {
	there, err := link.QueryPrograms(link.QueryOptions{Target: int(group.Fd()), Attach: ebpf.AttachCGroupSetsockopt})
	if err != nil {
		return nil, nil, err
	}
	for _, p := range there.Programs {
		old, err := ebpf.NewProgramFromID(p.ID)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		info, err := old.Info()
		if err == nil && info.Name != name {
			old.Close()
			continue
		}
		maps := map[string]*ebpf.Map{}
		var ids []ebpf.MapID
		if err == nil {
			ids, _ = info.MapIDs()
		}
		for _, id := range ids {
			m, merr := ebpf.NewMapFromID(id)
			if merr != nil {
				err = merr
				break
			}
			mi, merr := m.Info()
			if merr == nil && spec.Maps[mi.Name] != nil && maps[mi.Name] == nil && spec.Maps[mi.Name].Compatible(m) == nil {
				maps[mi.Name] = m
				continue
			}
			m.Close()
		}
		if len(maps) < len(spec.Maps)-1 { // the iterator alone has lives
			for _, m := range maps {
				m.Close()
			}
			maps = nil
		}
		return old, maps, err
	}
	return nil, nil, nil
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

// At tells whether a directory is still the group that has the program: one of that name may have been removed and made anew.
func (b *Bound) At(dir string) bool {
	id, err := inode(os.Stat(dir))
	return err == nil && id == b.scope
}

// Group is what is known of one.
type Group struct {
	Name    string
	Bytes   uint64 // of rings that are there, as far as is known
	Refused uint64 // how often one was refused since the group was made
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
		taken = taken || g.Granted > gone[id].Packet+gone[id].Xdp
	}
	if taken {
		err = b.free(counted, gone)
	}
	var out []Group
	for id, g := range counted {
		if n, ok := names[id]; ok {
			out = append(out, Group{n, g.Granted - gone[id].Packet - gone[id].Xdp, g.Refused})
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
		now := freed(g, lives[id], gone[id])
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

// freed is what is gone of a group's bytes. An AF_XDP socket shares the memory and the rings of another one, which stay when that one is closed. So those of AF_XDP
// are gone when the last such socket is.
func freed(g RingsGroup, live, before RingsSum) RingsSum {
	if g.Packet > live.Packet {
		before.Packet = max(before.Packet, g.Packet-live.Packet)
	}
	if live.Xdp == 0 {
		before.Xdp = max(before.Xdp, g.Xdp)
	}
	return before
}

// live sums up the rings of all sockets, by group.
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

// Detach takes the program of a group away, if it has one. Where the kernel attaches none there is none.
func Detach(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	spec, err := LoadRings()
	if err != nil {
		return err
	}
	old, maps, err := found(f, spec)
	for _, m := range maps {
		m.Close()
	}
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	if err != nil || old == nil {
		return err
	}
	defer old.Close()
	return link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(f.Fd()), Program: old, Attach: ebpf.AttachCGroupSetsockopt})
}

// Supported tells why this kernel cannot bound rings; nil: it can.
func Supported() error {
	spec, err := LoadRings()
	if err != nil {
		return err
	}
	delete(spec.Programs, "weir_rings_live")
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return loading(err)
	}
	c.Close()
	return nil
}
