package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv(reacher) != "" {
		if err := reach(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	if limit := os.Getenv(limited); limit != "" {
		fmt.Println(makeLimited(limit))
		return
	}
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "netns: these tests make network namespaces: run them as root")
		os.Exit(1)
	}
	tmp, err := os.MkdirTemp("", "netns-") // what other processes mount is none of ours
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv("TMPDIR", tmp)
	before := footprint()
	code := m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, "leaked:", err)
		code = 1
	}
	if diff := cmp.Diff(before, footprint()); diff != "" {
		fmt.Fprintln(os.Stderr, "leaked (-before +after):\n"+diff)
		code = 1
	}
	if err := os.RemoveAll(tmp); err != nil {
		fmt.Fprintln(os.Stderr, "leaked:", err)
		code = 1
	}
	os.Exit(code)
}

// footprint is what a test must leave as it was: this namespace, its links, open sockets and namespaces, mounts.
func footprint() []string {
	var all []string
	self, _ := os.Readlink("/proc/self/ns/net")
	all = append(all, self)
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		to, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		if strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "net:") {
			all = append(all, fd.Name()+" "+to)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " nsfs ") && strings.Contains(line, os.TempDir()) {
			all = append(all, line)
		}
	}
	links, _ := Links("")
	for _, l := range links {
		all = append(all, l.Name)
	}
	return all
}

// space makes a fresh namespace that goes with the test.
func space(t testing.TB, o Options) *Space {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ns", "n")
	if err := Create(path, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Delete(path); err != nil {
			t.Error(err)
		}
	})
	s, err := At(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestCreateIsIdempotentAndDeleteRemovesAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "n")
	var inodes []string
	for range 2 {
		if err := Create(path, Options{Quiet: true}); err != nil {
			t.Fatal(err)
		}
		var s unix.Stat_t
		if err := unix.Stat(path, &s); err != nil {
			t.Fatal(err)
		}
		inodes = append(inodes, strconv.FormatUint(s.Ino, 10))
	}
	if inodes[0] != inodes[1] {
		t.Errorf("the second Create made another namespace: %v", inodes)
	}
	if !Exists(path) {
		t.Error("not there after Create")
	}
	for range 2 {
		if err := Delete(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there after Delete: %v", err)
	}
}

// A namespace with many links is empty before it ends, and who has no more time goes on later.
func TestEmptyRemovesManyLinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	if err := Empty(t.Context(), path, nil); err != nil {
		t.Fatalf("no namespace: %v", err)
	}
	if err := Create(path, Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Delete(path) })
	s, err := At(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	add := func(from, to int) {
		t.Helper()
		err := s.Netlink(func(h *netlink.Handle) (err error) {
			for i := from; i < to && err == nil; i++ {
				err = h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "b" + strconv.Itoa(i)}})
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	count := func() int {
		t.Helper()
		links, err := s.Links("")
		if err != nil {
			t.Fatal(err)
		}
		return len(links) - 1 // lo
	}
	add(0, 10)
	if err := Empty(t.Context(), path, nil); err != nil || count() != 10 {
		t.Fatalf("a few links: %v, %d are left of 10: want all", err, count())
	}
	add(10, 60)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Empty(over, path, nil); !errors.Is(err, context.Canceled) || count() != 60 {
		t.Fatalf("no time: %v, %d links of 60", err, count())
	}
	var told []int
	tell := func(done, all int) { told = append(told, all-done) }
	if err := Empty(t.Context(), path, tell); err != nil || count() != 0 {
		t.Fatalf("%v, %d links are left", err, count())
	}
	if len(told) != 61 || told[0] != 61 || told[60] != 1 { // with lo
		t.Errorf("links that were left, as was told: %v", told)
	}
}

func TestCreateReplacesTheFileThatARebootLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "ordinary file") {
		t.Errorf("Open of a plain file: %v", err)
	}
	if err := Create(path, Options{}); err != nil {
		t.Fatal(err)
	}
	defer Delete(path)
	if !Exists(path) {
		t.Error("no namespace")
	}
}

func TestDeleteTakesOffStackedMounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	if err := Create(path, Options{}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/proc/self/ns/net", path, "none", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := Delete(path); err != nil {
		t.Fatal(err)
	}
}

func TestASharedFolderHidesNothing(t *testing.T) {
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	mounts := func() int {
		all, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		var n int
		for line := range strings.Lines(string(all)) {
			if strings.HasPrefix(strings.Fields(line)[4], dir) {
				n++
			}
		}
		return n
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := shareDir(dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := mounts(); got != 1 {
		t.Fatalf("%d mounts, want 1", got)
	}
	path := filepath.Join(dir, "n")
	if err := Create(path, Options{}); err != nil {
		t.Fatal(err)
	}
	if err := shareDir(dir); err != nil { // as an `ip netns add` beside it
		t.Error(err)
	}
	if got := mounts(); got != 2 {
		t.Errorf("%d mounts, want the folder's and the namespace's", got)
	}
	if err := Delete(path); err != nil {
		t.Error(err)
	}
	if err := shareDir(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func TestOpenNamesTheRemedy(t *testing.T) {
	_, err := Open("weir-test-missing")
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "`ip netns add weir-test-missing`") {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"", ".", ".."} {
		if _, err := Open(name); !errors.Is(err, ErrNotFound) {
			t.Errorf("Open(%q): %v", name, err)
		}
	}
}

func TestDoEntersAndComesBack(t *testing.T) {
	s := space(t, Options{})
	home, _ := os.Readlink("/proc/self/ns/net")
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			var there string
			err := s.Do(func() error {
				there, _ = os.Readlink("/proc/thread-self/ns/net")
				return nil
			})
			if err != nil || there == home || there == "" {
				t.Errorf("in %q, home %q: %v", there, home, err)
			}
			if now, _ := os.Readlink("/proc/thread-self/ns/net"); now != home {
				t.Errorf("afterwards in %q, not in %q", now, home)
			}
		})
	}
	wg.Wait()
	wanted := errors.New("wanted")
	if err := s.Do(func() error { return wanted }); err != wanted {
		t.Errorf("error of the function: %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a panic inside was swallowed")
			}
		}()
		s.Do(func() error { panic("inside") })
	}()
	if now, _ := os.Readlink("/proc/thread-self/ns/net"); now != home {
		t.Errorf("after a panic in %q, not in %q", now, home)
	}
}

func BenchmarkCreate(b *testing.B) {
	dir := b.TempDir()
	for i := range b.N {
		if err := Create(filepath.Join(dir, strconv.Itoa(i)), Options{Quiet: true}); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	for i := range b.N {
		if err := Delete(filepath.Join(dir, strconv.Itoa(i))); err != nil {
			b.Fatal(err)
		}
	}
}
