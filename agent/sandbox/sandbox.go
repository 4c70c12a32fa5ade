// Package sandbox makes the place where one start of a function runs, and no other start after it: a network namespace, the user namespace that owns it,
// the image's root as that user namespace sees it, and links to the switch. Whatever a process leaves in its sandbox ends with it.
//
// Sandboxes of a function are numbered. Their number is part of everything that they have (directory, links, container), so that two of them can
// be there at the same time. INSTANCE.Run/sandboxes/NAME.N holds:
//
//	user, net  the namespaces; no user: the host cannot
//	root       the image's root, mounted for the container
//	etc        the function's configuration as it was at this start
//	ids        a symbolic link: the first of its ids
//	used       a container was made in it
//
// After a crash the sandbox of the container that exists is found by the container's id, which is NAME.N too; all others of the function go.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// ConfigDir is where a function finds its configuration, inside the container.
const ConfigDir = "/etc/weir"

// Interface indexes inside a function's namespace: in and out differ in the last bit only, as the forwarder "wire" of the switches wants it.
var indexes = [flow.Sides]int{flow.In: 1024, flow.Out: 1025, flow.Tap: 1026}

// Kernel is what sandboxes need of the kernel; see package kernel.
type Kernel interface {
	Create(path string) error
	CreateOwned(user, net string, ids netns.IDs) error
	Exists(path string) bool
	Delete(path string) error
	Empty(ctx context.Context, path string, told func(done, all int)) error
	Veth(space string, pairs ...netns.VethOptions) (made bool, err error)
	SetMTU(space string, mtu int, pairs map[string]string) error
	DeleteLinks(names ...string) error
}

// Images is what sandboxes need of an image store.
type Images interface {
	// MountFor mounts an image's root at target as a user namespace sees it; CheckShift tells why that cannot be.
	MountFor(ctx context.Context, ref, target string, userns *os.File) error
	CheckShift(userns *os.File) error
}

// Maker makes, finds and removes the sandboxes of an instance.
type Maker struct {
	// Told hears what is being removed, and how much of it is gone; nil: nobody does.
	Told func(what string, done, all int)

	instance instance.Instance
	kernel   Kernel
	images   Images
	unshared func() error
}

// New prepares a Maker; nothing happens yet.
func New(i instance.Instance, k Kernel, images Images) *Maker {
	m := &Maker{instance: i, kernel: k, images: images}
	m.unshared = onceKnown(m.check)
	return m
}

// Unshared tells why functions have no user namespaces of their own; nil: they have. Cannot tells whether that is known for good.
func (m *Maker) Unshared() error { return m.unshared() }

// Box is one sandbox.
type Box struct {
	Name string // of the function
	N    int    // from 1; 0: none
	Dir  string
	IDs  netns.IDs // zero: no user namespace
	Used bool
}

// Net is the path of its network namespace.
func (b Box) Net() string  { return filepath.Join(b.Dir, "net") }
func (b Box) user() string { return filepath.Join(b.Dir, "user") }
func (b Box) root() string { return filepath.Join(b.Dir, "root") }

// ID of the container in the sandbox.
func (b Box) ID() string { return b.Name + "." + strconv.Itoa(b.N) }

// Of splits a container's id into the function and the sandbox's number. A container of a former version has the function's name alone: 0.
func Of(id string) (function string, n int) {
	name, number, ok := strings.Cut(id, ".")
	if n, err := strconv.Atoi(number); ok && err == nil && n > 0 {
		return name, n
	}
	return id, 0
}

// Dir holds all sandboxes of the instance, NAME.N each.
func (m *Maker) Dir() string { return filepath.Join(m.instance.Run, "sandboxes") }

// Whole tells whether a sandbox is there and can be used.
func (m *Maker) Whole(b Box) bool {
	return b.N > 0 && m.kernel.Exists(b.Net()) && (b.IDs == netns.IDs{} || m.kernel.Exists(b.user()))
}

// Link is the name of one of the sandbox's links on the switch's side.
func (m *Maker) Link(b Box, side flow.Side) string {
	return m.instance.Link(side.Of(b.Name) + "/" + strconv.Itoa(b.N))
}

// Find lists what there is of sandboxes, whole or not, of one function, in order of their numbers.
func (m *Maker) Find(function string) ([]Box, error) {
	entries, err := os.ReadDir(m.Dir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var found []Box
	for _, e := range entries {
		name, n := Of(e.Name())
		if name != function {
			continue
		}
		b := Box{Name: name, N: n, Dir: filepath.Join(m.Dir(), e.Name())}
		if first, err := os.Readlink(filepath.Join(b.Dir, "ids")); err == nil {
			if v, err := strconv.ParseUint(first, 10, 32); err == nil {
				b.IDs = netns.OwnIDs(uint32(v))
			}
		}
		_, err := os.Lstat(filepath.Join(b.Dir, "used"))
		b.Used = err == nil
		found = append(found, b)
	}
	slices.SortFunc(found, func(x, y Box) int { return x.N - y.N })
	return found, nil
}

// New makes a pristine one, without links. What a crash leaves of it Find finds. One that is plain has no user namespace: its container could not be in it.
func (m *Maker) New(function string, n int, plain bool) (b Box, err error) {
	b = Box{Name: function, N: n, Dir: filepath.Join(m.Dir(), function+"."+strconv.Itoa(n))}
	if err := errors.Join(m.makeDir(), os.Mkdir(b.Dir, 0o700)); err != nil {
		return b, fmt.Errorf("sandbox of function %s: %w", function, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("sandbox of function %s: %w", function, err), m.Delete(context.Background(), b))
		}
	}()
	if plain {
		return b, m.kernel.Create(b.Net())
	}
	switch err := m.unshared(); {
	case err != nil && !Cannot(err): // else a full disk would make functions root of the host
		return b, fmt.Errorf("whether functions can have user namespaces is not known: %w", err)
	case err != nil:
		return b, m.kernel.Create(b.Net())
	}
	if b.IDs, err = netns.TakeIDs(b.Dir); err != nil {
		return b, err
	}
	first := int(b.IDs.First)
	if err := os.Symlink(strconv.Itoa(first), filepath.Join(b.Dir, "ids")); err != nil {
		return b, err
	}
	if err := os.Chown(b.Dir, first, first); err != nil {
		return b, err
	}
	return b, m.kernel.CreateOwned(b.user(), b.Net(), b.IDs)
}

// makeDir makes the directory of sandboxes. Root of a container is nobody outside, and has to get through to its root directory.
func (m *Maker) makeDir() error {
	if err := os.MkdirAll(m.Dir(), 0o711); err != nil {
		return err
	}
	for _, d := range []string{m.Dir(), m.instance.Run, filepath.Dir(m.instance.Run)} {
		info, err := os.Stat(d)
		if err == nil && info.Mode()&0o001 == 0 && d != "/" { // made with a narrow umask
			err = os.Chmod(d, info.Mode().Perm()|0o001)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Plug makes the links between a sandbox and the switch, as far as they are not there.
func (m *Maker) Plug(b Box, tap bool, mtu int) error {
	var pairs []netns.VethOptions
	for _, side := range flow.SidesOf(tap) {
		object := side.Of(b.Name)
		pairs = append(pairs, netns.VethOptions{
			HostName: m.Link(b, side), Alias: m.instance.Alias(object),
			HostMAC: m.instance.MAC(object + "/switch"), PeerMAC: m.instance.MAC(object),
			PeerName: side.String(), PeerIndex: indexes[side], Quiet: true, MTU: mtu,
		})
	}
	_, err := m.kernel.Veth(b.Net(), pairs...)
	return err
}

// Resize sets the MTU of a sandbox's links, on both sides, while they are in use.
func (m *Maker) Resize(b Box, tap bool, mtu int) error {
	pairs := map[string]string{}
	for _, side := range flow.SidesOf(tap) {
		pairs[m.Link(b, side)] = side.String()
	}
	return m.kernel.SetMTU(b.Net(), mtu, pairs)
}

// Enter fills in where a container runs that is made from a template, and mounts its root. From here on the sandbox is used.
func (m *Maker) Enter(ctx context.Context, b *Box, image string, s container.Spec) (container.Spec, error) {
	if err := os.WriteFile(filepath.Join(b.Dir, "used"), nil, 0o600); err != nil {
		return s, fmt.Errorf("sandbox of function %s: %w", b.Name, err)
	}
	b.Used = true
	s.ID, s.Image, s.Log, s.Netns = b.ID(), image, b.Name, b.Net()
	if err := copyConfig(b, &s); err != nil {
		return s, fmt.Errorf("sandbox of function %s: %w", b.Name, err)
	}
	if (b.IDs == netns.IDs{}) {
		return s, nil
	}
	user, err := os.Open(b.user())
	if err != nil {
		return s, fmt.Errorf("sandbox of function %s: %w", b.Name, err)
	}
	defer user.Close()
	if err := os.Mkdir(b.root(), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return s, fmt.Errorf("sandbox of function %s: %w", b.Name, err)
	}
	if err := m.images.MountFor(ctx, image, b.root(), user); err != nil {
		return s, err
	}
	s.Rootfs, s.Userns, s.IDs = b.root(), b.user(), b.IDs
	return s, nil
}

// copyConfig gives the container the configuration as it is now. A change is the next one's: what runs until that is up does not see it.
func copyConfig(b *Box, s *container.Spec) error {
	s.Mounts = slices.Clone(s.Mounts)
	for i, mount := range s.Mounts {
		if mount.Target != ConfigDir {
			continue
		}
		to := filepath.Join(b.Dir, "etc")
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		entries, err := os.ReadDir(mount.Source)
		if err != nil {
			return err
		}
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(mount.Source, e.Name()))
			if err == nil {
				err = os.WriteFile(filepath.Join(to, e.Name()), text, 0o644)
			}
			if err != nil {
				return err
			}
		}
		s.Mounts[i].Source = to
	}
	return nil
}

// Delete removes all of a sandbox, its links first. What is gone already is no error.
func (m *Maker) Delete(ctx context.Context, b Box) error {
	return errors.Join(m.DeleteLinks(b), m.Remove(ctx, b.Dir))
}

// DeleteLinks removes a sandbox's links.
func (m *Maker) DeleteLinks(b Box) error {
	var names []string
	for side := range flow.Sides {
		names = append(names, m.Link(b, side))
	}
	return m.kernel.DeleteLinks(names...)
}

// DeleteAll removes all sandboxes of the instance that no process uses any more.
func (m *Maker) DeleteAll(ctx context.Context) error {
	entries, err := os.ReadDir(m.Dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for i, e := range entries {
		m.tell("sandboxes", i, len(entries))
		err = errors.Join(err, m.Remove(ctx, filepath.Join(m.Dir(), e.Name())))
	}
	if err != nil {
		return err
	}
	return os.Remove(m.Dir())
}

// Remove removes a sandbox's directory with what is mounted in it, and frees its ids. Its links go with the namespace; many that the function made go
// before it, see netns.Empty: that can take minutes, until ctx ends.
func (m *Maker) Remove(ctx context.Context, dir string) error {
	first, _ := os.Readlink(filepath.Join(dir, "ids")) // none
	err := unmount(filepath.Join(dir, "root"))
	if err == nil {
		err = m.kernel.Empty(ctx, filepath.Join(dir, "net"), func(done, all int) {
			m.tell("links that the function of sandbox "+filepath.Base(dir)+" made", done, all)
		})
	}
	if err == nil {
		err = errors.Join(m.kernel.Delete(filepath.Join(dir, "net")), m.kernel.Delete(filepath.Join(dir, "user")))
	}
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		return fmt.Errorf("remove sandbox %s: %w", dir, err)
	}
	if v, err := strconv.ParseUint(first, 10, 32); err == nil {
		return netns.GiveIDsBack(dir, netns.OwnIDs(uint32(v)))
	}
	return nil
}

func (m *Maker) tell(what string, done, all int) {
	if m.Told != nil {
		m.Told(what, done, all)
	}
}

func unmount(root string) error {
	if _, err := os.Lstat(root); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := unix.Unmount(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // not mounted
	}
	return err
}
