package store_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"

	"weir.dev/weir/store"
	"weir.dev/weir/store/standalone"
	"weir.dev/weir/store/suite"
)

// shortDir is a directory whose path leaves room for Unix sockets.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func options(dir string) store.Options {
	return store.Options{Dir: filepath.Join(dir, "etcd"), SocketDir: filepath.Join(dir, "run"), Reserve: 1}
}

func open(t testing.TB, o store.Options) *store.Etcd {
	t.Helper()
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestEmbeddedSuite(t *testing.T) {
	t.Parallel()
	suite.Run(t, func(t *testing.T) store.Store {
		t.Parallel()
		return open(t, options(shortDir(t)))
	})
}

// TestExternalSuite connects to an etcd as to a cluster elsewhere. Each test has keys of its own.
func TestExternalSuite(t *testing.T) {
	dir := shortDir(t)
	open(t, options(dir))
	var log bytes.Buffer
	endpoints := []string{"unix://" + filepath.Join(dir, "run", "etcd", "client")}
	open(t, store.Options{Endpoints: endpoints, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if log.Len() > 0 {
		t.Errorf("a cluster with the limits of the embedded one is warned of: %s", log.String())
	}
	var n atomic.Int64
	suite.Run(t, func(t *testing.T) store.Store {
		return open(t, store.Options{
			Endpoints: endpoints,
			Prefix:    fmt.Sprintf("/test/%d/", n.Add(1)),
		})
	})
}

// plainEtcd is an etcd with its own default limits; it returns its endpoint.
func plainEtcd(t *testing.T) string {
	t.Helper()
	endpoint, stop, err := standalone.Start(standalone.Options{Dir: shortDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return endpoint
}

func TestATransactionBeyondAnExternalClustersLimitIsRefusedWhole(t *testing.T) {
	var log bytes.Buffer
	s := open(t, store.Options{Endpoints: []string{plainEtcd(t)}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if said := log.String(); !strings.Contains(said, "level=WARN") || !strings.Contains(said, "--max-txn-ops=200000 --max-request-bytes=67108864") {
		t.Errorf("at the start it says %q, want a warning with the limits to set", said)
	}
	for name, ops := range map[string][]store.Op{
		"129 operations": manyOps(129, 10),
		"3 MiB":          manyOps(3, 1<<20),
	} {
		_, err := s.Txn(t.Context(), nil, ops)
		if !errors.Is(err, store.ErrTooLarge) || !strings.Contains(err.Error(), "--max-txn-ops") {
			t.Errorf("%s: %v, want ErrTooLarge with what to do", name, err)
		}
	}
	if n, err := s.Count(t.Context(), ""); n != 0 || err != nil {
		t.Errorf("%d keys were written, %v", n, err)
	}
	if _, err := s.Txn(t.Context(), nil, manyOps(128, 10)); err != nil {
		t.Errorf("128 operations: %v", err)
	}
}

func manyOps(n, size int) []store.Op {
	ops := make([]store.Op, n)
	for i := range ops {
		ops[i] = store.Op{Key: fmt.Sprintf("policy/%05d", i), Value: make([]byte, size)}
	}
	return ops
}

func TestAnExternalClusterThatIsNotThere(t *testing.T) {
	t.Parallel()
	_, err := store.Open(t.Context(), store.Options{Endpoints: []string{"unix://" + filepath.Join(shortDir(t), "none")}})
	if err == nil || !strings.Contains(err.Error(), "check the address") {
		t.Errorf("%v, want what to check", err)
	}
}

func TestBadTLSFilesAreNamed(t *testing.T) {
	junk := filepath.Join(t.TempDir(), "junk.pem")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]store.Options{
		"no such CA":     {CA: "/none.pem"},
		"CA of junk":     {CA: junk},
		"pair of junk":   {Cert: junk, KeyFile: junk},
		"cert, no key":   {Cert: junk},
		"nothing at all": {},
	} {
		if name != "nothing at all" {
			o.Endpoints = []string{"https://127.0.0.1:1"}
		}
		if _, err := store.Open(t.Context(), o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestDirectoriesArePrivate(t *testing.T) {
	o := options(shortDir(t))
	open(t, o)
	for _, dir := range []string{o.Dir, filepath.Join(o.SocketDir, "etcd")} {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v, want mode 0700", dir, info.Mode(), err)
		}
	}
}

func TestASecondStoreOnTheSameDirectoryIsRefused(t *testing.T) {
	o := options(shortDir(t))
	s := open(t, o)
	began := time.Now()
	_, err := store.Open(t.Context(), o)
	if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) || !strings.Contains(err.Error(), "weir down") {
		t.Errorf("after %v: %v, want ErrLocked with the process and what to do", time.Since(began), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, o)
}

func TestDamagedDirectoriesAreRefusedWithWhatToDo(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(member string) error{
		"database of junk":       func(m string) error { return os.WriteFile(filepath.Join(m, "snap", "db"), make([]byte, 1<<16), 0o600) },
		"database cut short":     func(m string) error { return os.Truncate(filepath.Join(m, "snap", "db"), 5000) },
		"log of junk":            func(m string) error { return junkLogs(m) },
		"log without a file":     func(m string) error { return eachLog(m, os.Remove) },
		"member is a plain file": func(m string) error { return errors.Join(os.RemoveAll(m), os.WriteFile(m, []byte("x"), 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(shortDir(t))
			s := open(t, o)
			for range 20 {
				if _, err := s.Txn(t.Context(), nil, manyOps(20, 100)); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if err := damage(filepath.Join(o.Dir, "member")); err != nil {
				t.Fatal(err)
			}
			s, err := store.Open(t.Context(), o)
			if err == nil {
				s.Close()
			}
			if !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), "mv "+o.Dir) {
				t.Errorf("%v, want ErrDamaged with what to do", err)
			}
			if err := os.Rename(o.Dir, o.Dir+".bad"); err != nil {
				t.Fatal(err)
			}
			open(t, o) // the advice works
		})
	}
}

func eachLog(member string, f func(string) error) error {
	logs, err := filepath.Glob(filepath.Join(member, "wal", "*.wal"))
	for _, l := range logs {
		err = errors.Join(err, f(l))
	}
	return err
}

func junkLogs(member string) error {
	return eachLog(member, func(l string) error {
		f, err := os.OpenFile(l, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt([]byte(strings.Repeat("junk", 64)), 100)
		return err
	})
}

// TestWhatIsAcknowledgedSurvivesKill kills a writing process at random moments: every acknowledged transaction is there, whole.
func TestWhatIsAcknowledgedSurvivesKill(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	for round := range 5 {
		cmd, stderr := child(t, dir, "writer")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		last, lines := 0, bufio.NewScanner(out)
		until := 0
		for lines.Scan() {
			if _, err := fmt.Sscan(lines.Text(), &last); err != nil {
				t.Fatal(err)
			}
			if until == 0 {
				until = last + 1 + rand.IntN(40)
			}
			if last == until {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait() // killed
		if last == 0 {
			t.Fatalf("round %d: the writer wrote nothing: %s", round, stderr)
		}
		s := open(t, options(dir))
		items, _, err := s.List(t.Context(), "chain/", store.ListOptions{})
		if err != nil || len(items) != batch {
			t.Fatalf("round %d: %d keys, %v", round, len(items), err)
		}
		var have int
		if _, err := fmt.Sscan(string(items[0].Value), &have); err != nil || have < last {
			t.Fatalf("round %d: has %d, %v: %d was acknowledged", round, have, err, last)
		}
		for _, i := range items {
			if string(i.Value) != string(items[0].Value) {
				t.Fatalf("round %d: half a transaction: %s=%s, %s=%s", round, items[0].Key, items[0].Value, i.Key, i.Value)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAStartThatWasKilledCanBeRepeated kills the very first start at many moments.
func TestAStartThatWasKilledCanBeRepeated(t *testing.T) {
	t.Parallel()
	for delay := time.Duration(0); delay < 600*time.Millisecond; delay += 60 * time.Millisecond {
		t.Run(delay.String(), func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			cmd, _ := child(t, dir, "writer")
			cmd.Stdout = io.Discard
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-time.After(delay)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // killed
			if _, err := open(t, options(dir)).Txn(t.Context(), nil, manyOps(1, 1)); err != nil {
				t.Error(err)
			}
		})
	}
}

// A start can be killed when it has made its log and nothing is in it yet, or all but what says that it counts.
func TestAStartThatWasKilledBeforeItsFirstEntryCanBeRepeated(t *testing.T) {
	t.Parallel()
	for name, entries := range map[string]int{"an empty log": 0, "entries that do not count yet": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(shortDir(t))
			if err := open(t, o).Close(); err != nil {
				t.Fatal(err)
			}
			log := filepath.Join(o.Dir, "member", "wal")
			whole, err := wal.OpenForRead(nil, log, &walpb.Snapshot{})
			if err != nil {
				t.Fatal(err)
			}
			metadata, state, all, err := whole.ReadAll()
			err = errors.Join(err, os.RemoveAll(filepath.Dir(log)), os.MkdirAll(filepath.Join(filepath.Dir(log), "snap"), 0o700),
				os.Remove(filepath.Join(o.Dir, "weir-store-1")))
			if err != nil {
				t.Fatal(err)
			}
			begun, err := wal.Create(nil, log, metadata)
			if err != nil {
				t.Fatal(err)
			}
			state.Reset()
			if err := errors.Join(begun.Save(state, all[:entries]), begun.Close()); err != nil {
				t.Fatal(err)
			}
			if _, err := open(t, o).Txn(t.Context(), nil, manyOps(1, 1)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAReachedQuotaRefusesWritesUntilThereIsRoom(t *testing.T) {
	o := options(shortDir(t))
	o.Quota = 4 << 20
	s := open(t, o)
	var full error
	n := 0
	for ; n < 100 && full == nil; n++ {
		_, full = s.Txn(t.Context(), nil, []store.Op{{Key: fmt.Sprintf("policy/%03d", n), Value: make([]byte, 256<<10)}})
	}
	if !errors.Is(full, store.ErrFull) || !strings.Contains(full.Error(), "nothing was changed") {
		t.Fatalf("after %d writes: %v, want ErrFull", n, full)
	}
	items, _, err := s.List(t.Context(), "policy/", store.ListOptions{KeysOnly: true})
	if err != nil || len(items) != n-1 {
		t.Fatalf("%d keys, %v, want %d", len(items), err, n-1)
	}
	var ops []store.Op
	for _, i := range items {
		ops = append(ops, store.Op{Key: i.Key})
	}
	if _, err := s.Txn(t.Context(), nil, ops); err != nil {
		t.Fatalf("removing: %v", err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for room := 0; room < n; { // room is made at most a tenth of the time
		_, err := s.Txn(t.Context(), nil, []store.Op{{Key: "policy/new", Value: make([]byte, 256<<10)}})
		switch {
		case err == nil:
			room++
		case !errors.Is(err, store.ErrFull) || time.Now().After(deadline):
			t.Fatalf("write %d once there is room: %v", room, err)
		}
	}
}

// rawClient is of somebody else's tools.
func rawClient(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
