package platform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
)

// Claim is a name of a run, or of a test, by which everything that it makes is found again. Its directories are locked as long as its process lives: what is not
// locked is a leftover.
type Claim struct{ locks []*os.File }

// Homes are where runs keep what they make. A run has a directory in each, and each tells that it lives: a process in another mount namespace may
// see one of them only.
func Homes() []string { return []string{Run, State} }

// Take a name, if it is free. The caller holds Guard.
func Take(name string) (c *Claim, ok bool, err error) {
	c = &Claim{}
	for _, home := range Homes() {
		if ok, err = c.take(home, name); !ok || err != nil {
			return nil, false, errors.Join(err, c.LetGo())
		}
	}
	return c, true, nil
}

func (c *Claim) take(home, name string) (ok bool, err error) {
	dir := filepath.Join(home, name)
	if others, err := filepath.Glob(dir + "-*"); err != nil || len(others) > 0 {
		return false, err
	}
	if err := instance.MakeDir(home, 0o755); err != nil { // `weir down` of the last instance may have just removed it
		return false, err
	}
	if err := os.Mkdir(dir, 0o755); errors.Is(err, os.ErrExist) || errors.Is(err, os.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	f, free, err := lock(dir)
	if err != nil || !free {
		return false, errors.Join(fmt.Errorf("lock %s", dir), err, os.Remove(dir))
	}
	c.locks = append(c.locks, f)
	return true, nil
}

// LetGo removes the directories. A claim of nil has none.
func (c *Claim) LetGo() error {
	if c == nil {
		return nil
	}
	var errs []error
	for _, f := range c.locks {
		errs = append(errs, os.RemoveAll(f.Name()), f.Close())
	}
	c.locks = nil
	return errors.Join(errs...)
}

// Leave ends the claim as a crash would: the directories stay, and the next run removes what goes by the name.
func (c *Claim) Leave() error {
	var errs []error
	for _, f := range c.locks {
		errs = append(errs, f.Close())
	}
	c.locks = nil
	return errors.Join(errs...)
}

// lock a directory, if nobody has.
func lock(dir string) (f *os.File, free bool, err error) {
	if f, err = os.Open(dir); err != nil {
		return nil, false, err
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, false, f.Close()
	case err != nil:
		return nil, false, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return f, true, nil
}

// Claimed tells whether a name has the directories of a claim, and whether the claim's process lives.
func Claimed(name string) (is, lives bool) {
	for _, home := range Homes() {
		f, free, err := lock(filepath.Join(home, name))
		if err != nil {
			continue // it has none there
		}
		if is = true; !free {
			return true, true
		}
		_ = f.Close() // it was only locked
	}
	return is, false
}

// guardLook is how often a guard that another run holds is looked at.
const guardLook = 20 * time.Millisecond

// Guard is held while names are taken and leftovers removed.
func Guard(ctx context.Context) (end func(), err error) {
	var held []*os.File
	end = func() {
		for _, f := range held {
			_ = f.Close() // it was only locked
		}
	}
	for _, home := range Homes() {
		if err := instance.MakeDir(home, 0o755); err != nil {
			end()
			return nil, err
		}
		f, err := os.Open(home)
		if err != nil {
			end()
			return nil, err
		}
		held = append(held, f)
		for err = unix.EWOULDBLOCK; errors.Is(err, unix.EWOULDBLOCK); {
			if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
				break
			}
			select {
			case <-ctx.Done():
				end()
				return nil, fmt.Errorf("another run of the lab removes what is left of earlier ones: %w", context.Cause(ctx))
			case <-time.After(guardLook):
			}
		}
		if err != nil {
			end()
			return nil, fmt.Errorf("lock %s: %w", home, err)
		}
	}
	return end, nil
}
