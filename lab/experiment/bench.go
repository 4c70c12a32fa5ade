package experiment

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
	"weir.dev/weir/lab/controllers"
	"weir.dev/weir/lab/guest"
	"weir.dev/weir/lab/platform"
)

// Bench is what the experiments of a run share: its name, by which everything that it makes is found again, and the platforms that are up.
// Its directories are locked as long as its process lives: what is not locked is a leftover.
type Bench struct {
	Name   string
	Images []string
	API    platform.API // of the Weir whose hosts are the platform hosts
	// Program is the Weir of which daemons are run; empty: this program.
	Program string
	Former  platform.Former // another version of Weir, for the platform former; empty: none

	locks     []*os.File
	platforms map[string]platform.Platform
	starters  map[string]starter
	shared    []common
	starting  sync.Mutex  // of the engine
	site      *guest.Site // of guests; it stays until Close, they until Clear
}

var benchName = regexp.MustCompile(`^lab-[0-9a-f]{4}$`)

// NewBench takes a name that is free, and first removes what crashed runs have left.
func NewBench(ctx context.Context, images []string) (*Bench, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNoRoot()
	}
	unguard, err := guard(ctx)
	if err != nil {
		return nil, err
	}
	defer unguard()
	if err := sweep(ctx); err != nil {
		return nil, fmt.Errorf("remove what an earlier run has left: %w", err)
	}
	for {
		id := make([]byte, 2)
		if _, err := rand.Read(id); err != nil {
			return nil, err
		}
		b := &Bench{Name: "lab-" + hex.EncodeToString(id), Images: images, platforms: map[string]platform.Platform{}, starters: map[string]starter{}}
		if ok, err := b.take(); err != nil {
			return nil, errors.Join(err, b.letGo())
		} else if ok {
			return b, nil
		}
		if err := b.letGo(); err != nil {
			return nil, err
		}
	}
}

// homes are where runs keep what they make. A run has a directory in each, and each tells that it lives: a process in another mount namespace may
// see one of them only.
func homes() []string { return []string{platform.Run, "/var/lib/weir"} }

// take the bench's directories, if its name is free.
func (b *Bench) take() (ok bool, err error) {
	for _, home := range homes() {
		dir := filepath.Join(home, b.Name)
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
		b.locks = append(b.locks, f)
	}
	return true, nil
}

// letGo removes the bench's directories.
func (b *Bench) letGo() error {
	var errs []error
	for _, f := range b.locks {
		errs = append(errs, os.RemoveAll(f.Name()), f.Close())
	}
	b.locks = nil
	return errors.Join(errs...)
}

func ErrNoRoot() error {
	return fmt.Errorf("measuring needs root (network namespaces, BPF, containers): use sudo: %w", os.ErrPermission)
}

// guardLook is how often a guard that another run holds is looked at.
const guardLook = 20 * time.Millisecond

// guard is held while benches are made and swept.
func guard(ctx context.Context) (end func(), err error) {
	var held []*os.File
	end = func() {
		for _, f := range held {
			_ = f.Close() // it was only locked
		}
	}
	for _, home := range homes() {
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

// Leftovers are the names of runs that ended without removing what they made. A Weir of the user's may be called like one: a daemon's lock tells.
func Leftovers() (names []string, err error) {
	others := map[string]bool{}
	for _, top := range homes() {
		entries, err := os.ReadDir(top)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if len(e.Name()) >= 8 && benchName.MatchString(e.Name()[:8]) && (len(e.Name()) == 8 || e.Name()[8] == '-') {
				names = append(names, e.Name()[:8])
				if _, err := os.Lstat(filepath.Join(top, e.Name(), instance.LockFile)); err == nil {
					others[e.Name()[:8]] = true
				}
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return slices.DeleteFunc(names, func(name string) bool { return others[name] || lives(name) }), nil
}

// lives tells whether a process holds a directory of the run.
func lives(name string) bool {
	for _, home := range homes() {
		f, free, err := lock(filepath.Join(home, name))
		if err != nil {
			continue // it has none there
		}
		if !free {
			return true
		}
		_ = f.Close()
	}
	return false
}

// Sweep removes what crashed runs have left, and gives their names.
func Sweep(ctx context.Context) ([]string, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNoRoot()
	}
	unguard, err := guard(ctx)
	if err != nil {
		return nil, err
	}
	defer unguard()
	names, err := Leftovers()
	if err != nil {
		return nil, err
	}
	return names, sweep(ctx)
}

func sweep(ctx context.Context) error {
	names, err := Leftovers()
	if err != nil {
		return err
	}
	for _, n := range names {
		errs := []error{calm(rcuExpedited, hurryMark(n)), platform.Remove(ctx, n), removeBoot(ctx, n), guest.Remove(ctx, n), controllers.Remove(ctx, installDir(n)), removeFig2(n)}
		for _, home := range homes() {
			errs = append(errs, os.RemoveAll(filepath.Join(home, n)))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bench) options() platform.Options {
	return platform.Options{Name: b.Name, Images: b.Images, API: b.API, Program: b.Program, Former: b.Former}
}

// program of the daemons that it runs, as an absolute path.
func (b *Bench) program() (string, error) {
	if b.Program != "" {
		return filepath.Abs(b.Program)
	}
	return os.Executable()
}

// CheckPlatform tells why a platform cannot be had here; empty: it can.
func (b *Bench) CheckPlatform(k platform.Kind) string { return k.Check(b.options()) }

// Platform opens a platform, once.
func (b *Bench) Platform(ctx context.Context, name string) (platform.Platform, error) {
	if p, ok := b.platforms[name]; ok {
		return p, nil
	}
	k, ok := platform.Find(name)
	if !ok {
		return nil, fmt.Errorf("there is no platform %q: want one of %s", name, strings.Join(platform.Names(), ", "))
	}
	p, err := k.Open(ctx, b.options())
	if err != nil {
		return nil, err
	}
	b.platforms[name] = p
	return p, nil
}

// clearing bounds the removal of what is left of functions.
const clearing = 2 * time.Minute

// Clear closes all platforms and runtimes. A bench of nil has none.
func (b *Bench) Clear() error {
	if b == nil {
		return nil
	}
	errs := make([]error, 0, len(b.platforms))
	var mu sync.Mutex
	var all sync.WaitGroup
	for name, p := range b.platforms { // there are few
		all.Go(func() {
			if err := p.Close(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("platform %s: %w", name, err))
			}
		})
	}
	all.Wait()
	clear(b.platforms)
	for name, r := range b.starters {
		errs = append(errs, r.close())
		delete(b.starters, name)
	}
	errs = append(errs, b.closeShared()...)
	if b.site != nil {
		errs = append(errs, b.site.Clear())
	}
	ctx, cancel := context.WithTimeout(context.Background(), clearing)
	defer cancel()
	return errors.Join(append(errs, removeBoot(ctx, b.Name))...)
}

// Close removes everything. A bench of nil has nothing.
func (b *Bench) Close() error {
	if b == nil {
		return nil
	}
	err := b.Clear()
	if b.site != nil {
		err = errors.Join(err, b.site.Close())
		b.site = nil
	}
	return errors.Join(err, b.letGo())
}
