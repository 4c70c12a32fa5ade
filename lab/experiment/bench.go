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

	"weir.dev/weir/instance"
	"weir.dev/weir/lab/controllers"
	"weir.dev/weir/lab/guest"
	"weir.dev/weir/lab/platform"
)

// Bench is what the experiments of a run share: its name, which it has claimed, and the platforms that are up.
type Bench struct {
	Name   string
	Images []string
	API    platform.API // of the Weir whose hosts are the platform hosts
	// Program is the Weir of which daemons are run; empty: this program.
	Program string
	Former  platform.Former // another version of Weir, for the platform former; empty: none

	claim     *platform.Claim
	platforms map[string]platform.Platform
	starters  map[string]starter
	shared    []common
	starting  sync.Mutex  // of the engine
	site      *guest.Site // of guests; it stays until Close, they until Clear
}

// madeName begins the names of what runs make, and tests of the package platform.
var madeName = regexp.MustCompile(`^(lab|tst)-[0-9a-f]{4}(-|$)`)

const (
	nameLength = len("lab-0000")
	ofTests    = "tst-"
	testEnds   = 24 * time.Hour // no test takes as long: what has no claim is left over then
)

// NewBench takes a name that is free, and first removes what crashed runs have left.
func NewBench(ctx context.Context, images []string) (*Bench, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNoRoot()
	}
	unguard, err := platform.Guard(ctx)
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
		var ok bool
		if b.claim, ok, err = platform.Take(b.Name); err != nil {
			return nil, err
		} else if ok {
			return b, nil
		}
	}
}

func ErrNoRoot() error {
	return fmt.Errorf("measuring needs root (network namespaces, BPF, containers): use sudo: %w", os.ErrPermission)
}

// Leftovers are the names of runs, and of tests of platforms, that ended without removing what they made. A Weir of the user's may be called like one: a daemon's lock
// tells.
func Leftovers() (names []string, err error) {
	others, changed := map[string]bool{}, map[string]time.Time{}
	for _, top := range platform.Homes() {
		entries, err := os.ReadDir(top)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if !madeName.MatchString(e.Name()) {
				continue
			}
			name := e.Name()[:nameLength]
			names = append(names, name)
			if _, err := os.Lstat(filepath.Join(top, e.Name(), instance.LockFile)); err == nil {
				others[name] = true
			}
			info, err := e.Info()
			switch {
			case errors.Is(err, os.ErrNotExist): // gone meanwhile
			case err != nil:
				return nil, err
			case info.ModTime().After(changed[name]):
				changed[name] = info.ModTime()
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return slices.DeleteFunc(names, func(name string) bool {
		claimed, lives := platform.Claimed(name)
		// A test of an earlier version has no claim.
		young := strings.HasPrefix(name, ofTests) && !claimed && time.Since(changed[name]) < testEnds
		return others[name] || lives || young
	}), nil
}

// Sweep removes what crashed runs have left, and gives their names.
func Sweep(ctx context.Context) ([]string, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNoRoot()
	}
	unguard, err := platform.Guard(ctx)
	if err != nil {
		return nil, err
	}
	defer unguard()
	names, err := Leftovers()
	if err != nil {
		return nil, err
	}
	return names, remove(ctx, names)
}

func sweep(ctx context.Context) error {
	names, err := Leftovers()
	if err != nil {
		return err
	}
	return remove(ctx, names)
}

// remove what goes by some names.
func remove(ctx context.Context, names []string) error {
	for _, n := range names {
		errs := []error{calm(rcuExpedited, hurryMark(n)), platform.Remove(ctx, n), removeBoot(ctx, n), guest.Remove(ctx, n), controllers.Remove(ctx, installDir(n)), removeFig2(n)}
		for _, home := range platform.Homes() {
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
	return errors.Join(err, b.claim.LetGo())
}
