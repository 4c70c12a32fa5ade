package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/store"
)

// childEnv makes this test binary one of the children below instead; its value is a directory.
const childEnv = "WEIR_STORE_TEST_CHILD"

const batch = 200 // keys that the writing child puts in one transaction

func TestMain(m *testing.M) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	run := writer
	if os.Args[len(os.Args)-1] == "small-disk" {
		run = smallDisk
	}
	if err := run(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// child is a process that runs this binary's other side.
func child(t *testing.T, dir, what string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", what)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, &stderr
}

// writer puts batches for ever, each value its number, and prints each number once it is acknowledged.
func writer(dir string) error {
	ctx := context.Background()
	s, err := store.Open(ctx, options(dir))
	if err != nil {
		return err
	}
	first := 0
	if i, err := s.Get(ctx, "chain/000"); err == nil {
		if _, err := fmt.Sscan(string(i.Value), &first); err != nil {
			return err
		}
	}
	for n := first + 1; ; n++ {
		var ops []store.Op
		for i := range batch {
			ops = append(ops, store.Op{Key: fmt.Sprintf("chain/%03d", i), Value: fmt.Append(nil, n)})
		}
		if _, err := s.Txn(ctx, nil, ops); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

// smallDisk uses a store on a disk of its own, of 96 MiB, while somebody else fills it.
func smallDisk(dir string) error {
	ctx := context.Background()
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	disk := filepath.Join(dir, "disk")
	if err := os.MkdirAll(disk, 0o700); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=96m"); err != nil {
		return fmt.Errorf("tmpfs: %w", err)
	}
	o := store.Options{Dir: filepath.Join(disk, "etcd"), SocketDir: filepath.Join(dir, "run"), Reserve: 16 << 20}
	s, err := store.Open(ctx, o)
	if err != nil {
		return err
	}
	put := func(value string) error {
		_, err := s.Txn(ctx, nil, []store.Op{{Key: "chain/a", Value: []byte(value)}})
		return err
	}
	if err := put("before"); err != nil {
		return err
	}
	hog := filepath.Join(disk, "hog")
	if err := fill(hog); err != nil {
		return err
	}
	if err := put("refused"); !errors.Is(err, store.ErrFull) {
		return fmt.Errorf("put on a full disk: %v, want ErrFull", err)
	}
	if i, err := s.Get(ctx, "chain/a"); err != nil || string(i.Value) != "before" {
		return fmt.Errorf("read on a full disk: %s, %v", i.Value, err)
	}
	<-time.After(3 * time.Second) // etcd's own timers meet the full disk
	if err := os.Remove(hog); err != nil {
		return err
	}
	if err := put("after"); err != nil {
		return fmt.Errorf("put once there is room again: %w", err)
	}
	if err := s.Close(); err != nil {
		return err
	}
	return fullAtStart(ctx, o, hog)
}

// fullAtStart opens the store while the disk is full: it works or says why not, and works again afterwards.
func fullAtStart(ctx context.Context, o store.Options, hog string) error {
	if err := fill(hog); err != nil {
		return err
	}
	s, err := store.Open(ctx, o)
	if err != nil && !errors.Is(err, store.ErrFull) {
		return fmt.Errorf("open on a full disk: %w, want ErrFull", err)
	}
	if err == nil {
		s.Close()
	}
	fresh := o
	fresh.Dir += "2"
	if _, err := store.Open(ctx, fresh); !errors.Is(err, store.ErrFull) {
		return fmt.Errorf("open anew on a full disk: %v, want ErrFull", err)
	}
	if err := os.Remove(hog); err != nil {
		return err
	}
	for _, o := range []store.Options{o, fresh} {
		s, err := store.Open(ctx, o)
		if err != nil {
			return fmt.Errorf("open once there is room again: %w", err)
		}
		s.Close()
	}
	return nil
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
