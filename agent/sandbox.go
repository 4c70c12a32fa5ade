package agent

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

// A sandbox is where one start of a function runs, and no other start after it: a network namespace, the user namespace that owns it, the image's
// root as that user namespace sees it, and links to the switch. Whatever a process leaves in its sandbox ends with it.
//
// Sandboxes of a function are numbered. Their number is part of everything that they have (directory, links, container), so that two of them can
// be there at the same time. INSTANCE.Run/sandboxes/NAME.N holds:
//
//	user, net  the namespaces; no user: the host cannot
//	root       the image's root, mounted for the container
//	ids        a symbolic link: the first of its ids
//	used       a container was made in it
//
// After a crash the sandbox of the container that exists is found by the container's id, which is NAME.N too; all others of the function go.
type sandbox struct {
	name string // of the function
	n    int    // from 1; 0: none
	dir  string
	ids  netns.IDs // zero: no user namespace
	used bool
}

func (b sandbox) net() string  { return filepath.Join(b.dir, "net") }
func (b sandbox) user() string { return filepath.Join(b.dir, "user") }
func (b sandbox) root() string { return filepath.Join(b.dir, "root") }

// whole: it is there and can be used.
func (b sandbox) whole() bool {
	return b.n > 0 && netns.Exists(b.net()) && (b.ids == netns.IDs{} || netns.Exists(b.user()))
}

// id of the container in the sandbox.
func (b sandbox) id() string { return b.name + "." + strconv.Itoa(b.n) }

// linkName of one of the sandbox's links on the switch's side.
func (a *Agent) linkName(b sandbox, side flow.Side) string {
	return a.Instance.Link(side.Of(b.name) + "/" + strconv.Itoa(b.n))
}

func sandboxesDir(i instance.Instance) string { return filepath.Join(i.Run, "sandboxes") }

// sandboxOf splits a container's id into the function and the sandbox's number. A container of a former version has the function's name alone: 0.
func sandboxOf(id string) (function string, n int) {
	name, number, ok := strings.Cut(id, ".")
	if n, err := strconv.Atoi(number); ok && err == nil && n > 0 {
		return name, n
	}
	return id, 0
}

// findSandboxes lists what there is of sandboxes, whole or not, of one function ("" of all), in order of their numbers.
func (a *Agent) findSandboxes(function string) ([]sandbox, error) {
	entries, err := os.ReadDir(sandboxesDir(a.Instance))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var found []sandbox
	for _, e := range entries {
		name, n := sandboxOf(e.Name())
		if function != "" && name != function {
			continue
		}
		b := sandbox{name: name, n: n, dir: filepath.Join(sandboxesDir(a.Instance), e.Name())}
		if first, err := os.Readlink(filepath.Join(b.dir, "ids")); err == nil {
			if v, err := strconv.ParseUint(first, 10, 32); err == nil {
				b.ids = netns.OwnIDs(uint32(v))
			}
		}
		_, err := os.Lstat(filepath.Join(b.dir, "used"))
		b.used = err == nil
		found = append(found, b)
	}
	slices.SortFunc(found, func(x, y sandbox) int { return x.n - y.n })
	return found, nil
}

// newSandbox makes a pristine one. What a crash leaves of it findSandboxes finds.
func (a *Agent) newSandbox(function string, n int) (b sandbox, err error) {
	b = sandbox{name: function, n: n, dir: filepath.Join(sandboxesDir(a.Instance), function+"."+strconv.Itoa(n))}
	if err := errors.Join(makeSandboxesDir(a.Instance), os.Mkdir(b.dir, 0o700)); err != nil {
		return b, fmt.Errorf("sandbox of function %s: %w", function, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("sandbox of function %s: %w", function, err), a.deleteSandbox(b))
		}
	}()
	switch err := a.unshared(); {
	case err != nil && !cannot(err): // else a full disk would make functions root of the host
		return b, fmt.Errorf("whether functions can have user namespaces is not known: %w", err)
	case err != nil:
		return b, netns.Create(b.net(), netns.Options{Quiet: true})
	}
	if b.ids, err = netns.TakeIDs(b.dir); err != nil {
		return b, err
	}
	first := int(b.ids.First)
	if err := os.Symlink(strconv.Itoa(first), filepath.Join(b.dir, "ids")); err != nil {
		return b, err
	}
	if err := os.Chown(b.dir, first, first); err != nil {
		return b, err
	}
	return b, netns.CreateOwned(b.user(), b.net(), b.ids, netns.Options{Quiet: true})
}

// makeSandboxesDir makes the directory of sandboxes. Root of a container is nobody outside, and has to get through to its root directory.
func makeSandboxesDir(i instance.Instance) error {
	dir := sandboxesDir(i)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	for _, d := range []string{dir, i.Run, filepath.Dir(i.Run)} {
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

// enter fills in where a container runs that is made from a template, and mounts its root. From here on the sandbox is used.
func (a *Agent) enter(ctx context.Context, b *sandbox, image string, s container.Spec) (container.Spec, error) {
	if err := os.WriteFile(filepath.Join(b.dir, "used"), nil, 0o600); err != nil {
		return s, fmt.Errorf("sandbox of function %s: %w", b.name, err)
	}
	b.used = true
	s.ID, s.Log, s.Netns = b.id(), b.name, b.net()
	if err := a.copyConfig(b, &s); err != nil {
		return s, fmt.Errorf("sandbox of function %s: %w", b.name, err)
	}
	if (b.ids == netns.IDs{}) {
		return s, nil
	}
	user, err := os.Open(b.user())
	if err != nil {
		return s, fmt.Errorf("sandbox of function %s: %w", b.name, err)
	}
	defer user.Close()
	if err := os.Mkdir(b.root(), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return s, fmt.Errorf("sandbox of function %s: %w", b.name, err)
	}
	if err := a.Images.MountFor(ctx, image, b.root(), user); err != nil {
		return s, err
	}
	s.Rootfs, s.Userns, s.IDs = b.root(), b.user(), b.ids
	return s, nil
}

// copyConfig gives the container the configuration as it is now. A change is the next one's: what runs until that is up does not see it.
func (a *Agent) copyConfig(b *sandbox, s *container.Spec) error {
	s.Mounts = slices.Clone(s.Mounts)
	for i, m := range s.Mounts {
		if m.Target != configDir {
			continue
		}
		to := filepath.Join(b.dir, "etc")
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		entries, err := os.ReadDir(m.Source)
		if err != nil {
			return err
		}
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(m.Source, e.Name()))
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

// deleteSandbox removes all of a sandbox, its links first. What is gone already is no error.
func (a *Agent) deleteSandbox(b sandbox) error {
	return errors.Join(a.deleteSandboxLinks(b), removeSandbox(b.dir))
}

func (a *Agent) deleteSandboxLinks(b sandbox) error {
	host, err := netns.At("")
	if err != nil {
		return err
	}
	defer host.Close()
	for side := range flow.Sides {
		err = errors.Join(err, host.Delete(a.linkName(b, side)))
	}
	return err
}

// DeleteSandboxes removes all sandboxes of an instance that no process uses any more.
func DeleteSandboxes(i instance.Instance) error {
	entries, err := os.ReadDir(sandboxesDir(i))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, removeSandbox(filepath.Join(sandboxesDir(i), e.Name())))
	}
	if err != nil {
		return err
	}
	return os.Remove(sandboxesDir(i))
}

// removeSandbox removes a sandbox's directory with what is mounted in it, and frees its ids. Its links go with the namespace.
func removeSandbox(dir string) error {
	first, _ := os.Readlink(filepath.Join(dir, "ids")) // none
	err := unix.Unmount(filepath.Join(dir, "root"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		err = nil // not mounted
	}
	if err == nil {
		err = errors.Join(netns.Delete(filepath.Join(dir, "net")), netns.Delete(filepath.Join(dir, "user")))
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
