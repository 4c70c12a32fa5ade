package daemon

import (
	"context"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api/backup"
	"weir.dev/weir/instance"
	"weir.dev/weir/manager"
	"weir.dev/weir/store"
	"weir.dev/weir/store/mem"
)

// stateOf makes an instance whose store holds one chain.
func stateOf(t *testing.T, name string) UpOptions {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir") // short, for the path of etcd's socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	o := UpOptions{Instance: instance.Instance{Name: "x", Root: filepath.Join(dir, "root"), Run: filepath.Join(dir, "run")}, Log: slog.New(slog.DiscardHandler)}
	withStore(t, o, o.storeDir(), func(s *store.Etcd) {
		if _, err := s.Txn(t.Context(), nil, []store.Op{{Key: "chain/" + name, Value: []byte(`{}`)}}); err != nil {
			t.Fatal(err)
		}
	})
	return o
}

func withStore(t *testing.T, o UpOptions, dir string, f func(s *store.Etcd)) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: dir, SocketDir: o.Instance.Run, Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	f(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// chains that a store holds.
func chains(t *testing.T, o UpOptions, dir string) (names []string) {
	t.Helper()
	withStore(t, o, dir, func(s *store.Etcd) {
		items, _, err := s.List(t.Context(), "", store.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range items {
			names = append(names, i.Key)
		}
	})
	return names
}

func writeBackup(t *testing.T, o UpOptions, h backup.Header, values ...backup.Value) string {
	t.Helper()
	f, err := os.Create(filepath.Join(filepath.Dir(o.Instance.Root), "backup"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := backup.Write(f, h, values); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// TestARestoreThatIsKilledAndRepeatedLosesNoState kills a restore after it has exchanged the states, and runs the same command again.
func TestARestoreThatIsKilledAndRepeatedLosesNoState(t *testing.T) {
	o := stateOf(t, "former")
	o.Replace = true
	values := []backup.Value{{Key: "chain/saved", Text: []byte(`{}`)}}
	h := backup.Header{Revision: 9, SecretsKey: "of the backup"}
	r := store.RestoreOptions{Dir: o.storeDir(), SocketDir: o.Instance.Run, Header: h, Values: values, Replace: true}
	if err := store.Restore(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := store.Restore(t.Context(), r); err == nil || !strings.Contains(err.Error(), "not put aside") { // where the former state is
		t.Fatalf("a restore over one that was not finished: %v", err)
	}
	o.Restore = writeBackup(t, o, h, values...)
	if err := o.restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if have := chains(t, o, o.storeDir()); !slices.Equal(have, []string{"chain/saved"}) {
		t.Errorf("restored: %v", have)
	}
	if key, err := o.secretsKey(); err != nil || key != h.SecretsKey {
		t.Errorf("key of secrets %q, %v", key, err)
	}
	aside, err := filepath.Glob(filepath.Join(o.Instance.Root, replacedDir, "etcd-*Z"))
	if err != nil || len(aside) != 2 {
		t.Fatalf("put aside: %v, %v: want the former state and the one that the first restore had made", aside, err)
	}
	if have := chains(t, o, aside[0]); !slices.Equal(have, []string{"chain/former"}) {
		t.Errorf("put aside first: %v", have)
	}
}

func TestReplaceIsOfARestore(t *testing.T) {
	o := stateOf(t, "former")
	o.Replace = true
	if err := o.restore(t.Context()); err == nil || !strings.Contains(err.Error(), "--restore FILE") {
		t.Errorf("--replace alone: %v", err)
	}
}

// TestABackupCannotMakeAStateThatNeverStarts restores what no Weir writes, with a right checksum.
func TestABackupCannotMakeAStateThatNeverStarts(t *testing.T) {
	chain := backup.Value{Key: "chain/saved", Text: []byte(`{}`)}
	for name, c := range map[string]struct {
		h       backup.Header
		values  []backup.Value
		refused string
	}{
		"revisions that overflow": {backup.Header{Revision: math.MaxInt64 - 1}, []backup.Value{chain}, "revision"},
		"negative revisions":      {backup.Header{Revision: -1}, []backup.Value{chain}, "revision"},
		"no JSON":                 {backup.Header{}, []backup.Value{chain, {Key: "chain/x", Text: []byte("{")}}, "not JSON"},
		"an empty value":          {backup.Header{}, []backup.Value{chain, {Key: "chain/x", Text: []byte{}}}, "not JSON"},
		"no key":                  {backup.Header{}, []backup.Value{chain, {Text: []byte("{}")}}, "no key"},
		"a leader for ever":       {backup.Header{}, []backup.Value{chain, {Key: store.LeasePrefix + "manager", Text: []byte("me")}}, ""},
		"nothing":                 {backup.Header{}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := stateOf(t, "former")
			o.Replace, o.Restore = true, writeBackup(t, o, c.h, c.values...)
			err := o.restore(t.Context())
			want := []string{"chain/former"}
			switch {
			case c.refused == "" && err != nil, c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
				t.Fatalf("error %v, want %q", err, c.refused)
			case c.refused == "":
				want = nil
				for range min(1, len(c.values)) {
					want = append(want, chain.Key)
				}
			}
			if have := chains(t, o, o.storeDir()); !slices.Equal(have, want) {
				t.Errorf("the store holds %v, want %v", have, want)
			}
		})
	}
}

// TestAStartThatFailsKeepsTheKeyOfAStateThatStays is of the key that a restore has put beside the state.
func TestAStartThatFailsKeepsTheKeyOfAStateThatStays(t *testing.T) {
	c := &claim{before: []string{etcdDir}}
	for name, want := range map[string]bool{etcdDir: true, secretsKeyFile: true, replacedDir: true, "weir.log": true, "token": false, "images": false} {
		if have := c.keeps(name); have != want {
			t.Errorf("over a state: %s is kept: %v", name, have)
		}
	}
	if c.before = nil; c.keeps(secretsKeyFile) || c.keeps(etcdDir) {
		t.Error("without a state before: something is kept")
	}
}

// TestSnapshotsLeaveTheStoreItsRoom has a disk with less than the store needs besides.
func TestSnapshotsLeaveTheStoreItsRoom(t *testing.T) {
	root := t.TempDir()
	if err := unix.Mount("none", root, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	m, err := manager.New(manager.Options{Store: mem.New(), ID: "m", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s := saver{dir: filepath.Join(root, snapshotDir), m: m, log: slog.New(slog.DiscardHandler), now: time.Now}
	if err := s.write(t.Context()); err == nil || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("error %v, want it to refuse", err)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v are left", left, err)
	}
}

// TestSnapshotsOfAStateBegunAnew are kept although those of the former state have higher revisions.
func TestSnapshotsOfAStateBegunAnew(t *testing.T) {
	m, err := manager.New(manager.Options{Store: mem.New(), ID: "m", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	o := UpOptions{Instance: instance.Instance{Root: t.TempDir()}}
	s := saver{dir: filepath.Join(o.Instance.Root, snapshotDir), m: m, log: slog.New(slog.DiscardHandler), now: time.Now}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-48 * time.Hour)
	for n := range int64(snapshotsKept) {
		former := s.path(2_000_000_000 + n)
		if err := os.WriteFile(former, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(former, long, long.Add(time.Duration(n)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if !s.due() {
		t.Error("not due after two days")
	}
	if err := s.write(context.Background()); err != nil {
		t.Fatal(err)
	}
	revision, err := m.Read.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	have := snapshots(s.dir)
	if len(have) != snapshotsKept || have[len(have)-1] != s.path(revision) {
		t.Fatalf("%v, want %s to be the newest of %d", have, s.path(revision), snapshotsKept)
	}
	if s.due() || !strings.Contains(o.remedy(), s.path(revision)) {
		t.Errorf("the remedy is %s", o.remedy())
	}
}
