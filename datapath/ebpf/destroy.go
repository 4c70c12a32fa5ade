package ebpf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/netns"
)

// Destroy removes all that the switch made: programs, pins, the bpffs, the bridge, its files. The ports' links are given back as
// they were. The switch is closed then.
func (s *Switch) Destroy(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return Destroy(ctx, s.opts)
	}
	s.closed = true
	s.mu.Unlock()
	s.halt()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.letGo()
	s.programs.close()
	s.maps.close()
	if err := s.demolish(); err != nil {
		return fmt.Errorf("destroy ebpf switch %s: %w", s.opts.Instance.Name, err)
	}
	return nil
}

// Destroy removes a switch that no process drives, whatever state a crash left it in. Nothing there: nil.
func Destroy(ctx context.Context, o Options) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := o.defaults(); err != nil {
		return err
	}
	s := &Switch{opts: o, log: o.Logger, store: newStore(o.Instance), ports: map[uint16]*port{}, byName: map[string]uint16{},
		byIndex: map[uint32]uint16{}, fns: map[string]*function{}}
	defer s.letGo()
	var err error
	if s.lock, err = s.store.Lock(); err == nil {
		s.home, err = netns.At("")
	}
	if err == nil {
		s.nl, err = hostlink.Handle(s.home)
	}
	if err == nil {
		err = s.demolish()
	}
	if err != nil {
		return fmt.Errorf("destroy ebpf switch %s: %w", o.Instance.Name, err)
	}
	return nil
}

// demolish goes on after errors: what can be removed is.
func (s *Switch) demolish() error {
	var errs []error
	try := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	bridge, err := s.nl.LinkByName(s.opts.Instance.Bridge())
	if err != nil && !hostlink.Missing(err) {
		try(fmt.Errorf("bridge: %w", err))
	}
	ours := err == nil && bridge.Attrs().Alias == s.opts.Instance.Alias("bridge")
	s.bridge = -1
	if ours {
		s.bridge = bridge.Attrs().Index
	}
	if len(s.ports)+len(s.fns) == 0 {
		try(s.loadLeft())
	}
	for _, p := range s.ports {
		if p.kind() == portEndpoint {
			try(s.releaseLink(p))
		} else {
			try(s.releasePort(p))
		}
	}
	for _, fn := range s.fns {
		try(s.releaseInner(fn))
	}
	try(s.removePins())
	if ours {
		if err := s.nl.LinkDel(bridge); err != nil && !hostlink.Gone(err) {
			try(fmt.Errorf("remove bridge: %w", err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...) // the records stay, for another attempt
	}
	if err := os.RemoveAll(s.store.Dir); err != nil {
		return err
	}
	os.Remove(s.opts.Instance.Run) // if nothing else is there
	return nil
}

// loadLeft reads what records there are; one that cannot be read is left out, the pins tell enough.
func (s *Switch) loadLeft() error {
	o := s.opts.Ports
	s.opts.Ports = maxSlots
	defer func() { s.opts.Ports = o }()
	if err := s.loadRecords(); err != nil {
		s.log.Warn("records of the switch are damaged", "error", err)
	}
	for name, fn := range s.fns {
		if fn.F.Check() != nil || len(fn.Ports) == 0 {
			delete(s.fns, name)
		}
	}
	return nil
}

// removePins removes our bpffs and all in it. Links that are pinned nowhere else end with it.
func (s *Switch) removePins() error {
	dir := s.opts.Instance.BPFFS()
	for range 16 { // mounts may be stacked
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return fmt.Errorf("statfs %s: %w", dir, err)
		}
		if st.Type != unix.BPF_FS_MAGIC {
			break
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries { // a mount elsewhere (a namespace's copy) must not keep them alive
			if strings.Contains(e.Name(), ".") {
				continue // the kernel's own
			}
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove pins: %w", err)
			}
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// own tells a link that this Weir made.
func (s *Switch) own(l netlink.Link) bool {
	return strings.HasPrefix(l.Attrs().Alias, s.opts.Instance.Alias(""))
}
