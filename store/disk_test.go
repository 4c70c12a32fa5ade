package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/store"
)

func TestAFullDiskRefusesWritesAndChangesNothing(t *testing.T) {
	t.Parallel()
	cmd, stderr := child(t, shortDir(t), "disk-work")
	cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	err := cmd.Run()
	if errors.Is(err, syscall.EPERM) && os.Getenv("CI") == "" {
		t.Fatal("needs root, for a mount namespace of its own: run the tests as root")
	}
	if err != nil {
		t.Error(err)
	}
	t.Log(stderr)
}

// What the machine lacks for a moment is no damage: nothing is noted that would let a restore replace the store without a further word.
func TestTooFewDescriptorsAreNoDamage(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	s, err := store.Open(t.Context(), options(dir))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Txn(t.Context(), nil, []store.Op{{Key: "chain/a", Value: []byte("{}")}})
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	for files := 8; files <= 20; files += 2 {
		cmd, stderr := child(t, dir, "few-files")
		cmd.Env = append(cmd.Env, fmt.Sprintf("WEIR_TEST_FILES=%d", files))
		if err := cmd.Run(); err != nil {
			t.Errorf("%d descriptors: %v: %s", files, err, stderr)
		}
	}
	s, err = store.Open(t.Context(), options(dir))
	if err != nil {
		t.Fatal(err)
	}
	if i, err := s.Get(t.Context(), "chain/a"); err != nil || string(i.Value) != "{}" {
		t.Errorf("afterwards: %s, %v", i.Value, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// fewFiles opens the store with so few descriptors that it may fail.
func fewFiles(dir string) error {
	n, err := strconv.ParseUint(os.Getenv("WEIR_TEST_FILES"), 10, 64)
	if err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
		return err
	}
	s, err := store.Open(context.Background(), options(dir))
	switch {
	case err == nil:
		return s.Close()
	case errors.Is(err, store.ErrDamaged):
		return fmt.Errorf("taken for damage: %w", err)
	}
	if found, globErr := filepath.Glob(filepath.Join(options(dir).Dir, "*damaged*")); globErr != nil || len(found) > 0 {
		return fmt.Errorf("%v, %w: noted as damage", found, globErr)
	}
	fmt.Fprintln(os.Stderr, err)
	return nil
}

// The children below follow one another in one process, in a mount namespace of its own with a disk of 96 MiB. Each is a new
// program: as `weir up` does, a store that could not be opened ends the program.

func goOn(args ...string) error {
	return syscall.Exec("/proc/self/exe", append([]string{"child"}, args...), os.Environ())
}

func diskOptions(dir string) store.Options {
	return store.Options{Dir: filepath.Join(dir, "disk", "etcd"), SocketDir: filepath.Join(dir, "run"), Reserve: 16 << 20}
}

func hogOf(dir string) string { return filepath.Join(dir, "disk", "hog") }

// diskWork uses a store while somebody else fills the disk.
func diskWork(dir string) error {
	ctx := context.Background()
	disk, hog := filepath.Join(dir, "disk"), hogOf(dir)
	err := errors.Join(
		syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		os.MkdirAll(disk, 0o700),
		syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=96m"))
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	o := diskOptions(dir)
	s, err := store.Open(ctx, o)
	if err != nil {
		return err
	}
	put := func(value string) error {
		_, err := s.Txn(ctx, nil, []store.Op{{Key: "chain/a", Value: []byte(value)}})
		return err
	}
	if err := errors.Join(put("before"), settled(filepath.Join(o.Dir, "member", "snap", "db")), fill(hog)); err != nil {
		return err
	}
	if err := put("refused"); !errors.Is(err, store.ErrFull) {
		return fmt.Errorf("put on a full disk: %v, want ErrFull", err)
	}
	if i, err := s.Get(ctx, "chain/a"); err != nil || string(i.Value) != "before" {
		return fmt.Errorf("read on a full disk: %s, %w", i.Value, err)
	}
	<-time.After(6 * time.Second) // etcd's own timers meet the full disk
	if err := os.Remove(hog); err != nil {
		return err
	}
	if err := put("after"); err != nil {
		return fmt.Errorf("put once there is room again: %w", err)
	}
	if err := errors.Join(s.Close(), fill(hog)); err != nil {
		return err
	}
	return goOn("disk-start")
}

// diskStart opens the store while the disk is full: it works, or says why not.
func diskStart(dir string) error {
	s, err := store.Open(context.Background(), diskOptions(dir))
	if err != nil && !errors.Is(err, store.ErrFull) {
		return fmt.Errorf("open on a full disk: %w, want ErrFull", err)
	}
	if err == nil {
		s.Close()
	}
	return goOn("disk-start-anew")
}

// diskStartAnew opens a store for the first time while the disk is full.
func diskStartAnew(dir string) error {
	o := diskOptions(dir)
	o.Dir += "2"
	if _, err := store.Open(context.Background(), o); !errors.Is(err, store.ErrFull) {
		return fmt.Errorf("open anew on a full disk: %w, want ErrFull", err)
	}
	return goOn("disk-room")
}

// diskRoom opens both once there is room. Then it has etcd itself meet the full disk: it stops with a reason, and does not end the
// process.
func diskRoom(dir string) error {
	ctx := context.Background()
	if err := os.Remove(hogOf(dir)); err != nil {
		return err
	}
	anew := diskOptions(dir)
	anew.Dir += "2"
	s, err := store.Open(ctx, anew)
	if err != nil {
		return fmt.Errorf("open anew once there is room: %w", err)
	}
	s.Close()
	o := diskOptions(dir)
	o.Reserve = -1
	if s, err = store.Open(ctx, o); err != nil {
		return fmt.Errorf("open once there is room: %w", err)
	}
	if i, err := s.Get(ctx, "chain/a"); err != nil || string(i.Value) != "after" {
		return fmt.Errorf("read once there is room: %s, %w", i.Value, err)
	}
	for n := 1; n < 1000; n++ {
		value := append(fmt.Append(nil, n, " "), make([]byte, 512<<10)...)
		if _, err := s.Txn(ctx, nil, []store.Op{{Key: "chain/a", Value: value}}); err != nil {
			fmt.Fprintf(os.Stderr, "write %d on a full disk: %v\n", n, err)
			if !errors.Is(err, store.ErrStopped) {
				return fmt.Errorf("etcd on a full disk: %w, want ErrStopped", err)
			}
			<-s.Failed()
			return goOn("disk-after", fmt.Sprint(n-1))
		}
		if n == 10 {
			if err := fill(hogOf(dir)); err != nil {
				return err
			}
		}
	}
	return errors.New("a full disk takes 500 MiB")
}

// diskAfter opens the store that had to stop: nothing that was acknowledged is lost.
func diskAfter(dir string) error {
	ctx := context.Background()
	if err := os.Remove(hogOf(dir)); err != nil {
		return err
	}
	s, err := store.Open(ctx, diskOptions(dir))
	if err != nil {
		return fmt.Errorf("open after etcd had stopped: %w", err)
	}
	defer s.Close()
	i, err := s.Get(ctx, "chain/a")
	if err != nil {
		return err
	}
	var have, last int
	if _, err := fmt.Sscan(string(i.Value[:8]), &have); err != nil {
		return err
	}
	if _, err := fmt.Sscan(os.Args[2], &last); err != nil || have < last {
		return fmt.Errorf("has %d, %w: %d was acknowledged", have, err, last)
	}
	_, err = s.Txn(ctx, nil, []store.Op{{Key: "chain/a", Value: []byte("on it goes")}})
	return err
}

// settled waits until a file has not been written for a while.
func settled(path string) error {
	for {
		info, err := os.Stat(path)
		if err != nil || time.Since(info.ModTime()) > 300*time.Millisecond {
			return err
		}
		<-time.After(20 * time.Millisecond)
	}
}

// fill writes a file until the disk is full.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		_, err := f.Write(make([]byte, size))
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			return err
		}
	}
	return nil
}

// The tree's file has all of its blocks: on a disk that becomes full what it replaces can be written.
func TestTheTreeHasItsBlocks(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	s, err := store.Open(t.Context(), store.Options{Dir: filepath.Join(dir, "etcd"), SocketDir: filepath.Join(dir, "run")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.Txn(t.Context(), nil, []store.Op{{Key: "chain/a", Value: []byte("1")}}); err != nil {
		t.Fatal(err)
	}
	var tree syscall.Stat_t
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := syscall.Stat(filepath.Join(dir, "etcd/member/snap/db"), &tree); err != nil {
			t.Fatal(err)
		}
		if tree.Blocks*512 >= tree.Size {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d bytes, and blocks for %d", tree.Size, tree.Blocks*512)
		}
	}
}
