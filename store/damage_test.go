package store_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"weir.dev/weir/store"
)

// flips is how many bits are flipped, one at a time.
const flips = 200

// dump opens a store and prints a hash of all that it holds.
func dump(dir string) error {
	ctx := context.Background()
	o := options(dir)
	o.SocketDir = os.Args[2]
	s, err := store.Open(ctx, o)
	if err != nil {
		if !errors.Is(err, store.ErrDamaged) {
			return fmt.Errorf("no ErrDamaged: %w", err)
		}
		return err
	}
	text, err := held(ctx, s)
	if err != nil {
		return err
	}
	if _, err := s.Txn(ctx, nil, []store.Op{{Key: "chain/later", Value: []byte(`{}`)}}); err != nil {
		return err
	}
	if i, err := s.Get(ctx, "chain/later"); err != nil || string(i.Value) != `{}` {
		return fmt.Errorf("what it acknowledges is not there: %s, %w", i.Value, err)
	}
	fmt.Println(text)
	return s.Close()
}

func held(ctx context.Context, s store.Store) (string, error) {
	items, _, err := s.List(ctx, "", store.ListOptions{})
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	n := 0
	for _, i := range items {
		if !strings.HasPrefix(i.Key, store.LeasePrefix) && i.Key != "chain/later" {
			fmt.Fprintf(sum, "%d %s=%s\n", i.Revision, i.Key, i.Value)
			n++
		}
	}
	return fmt.Sprintf("%d keys %x", n, sum.Sum(nil)), nil
}

// history fills a store with what a Weir has after a while: values that changed, some that are gone, a compaction, a snapshot of etcd's.
func history(t *testing.T, s *store.Etcd) (want string) {
	t.Helper()
	ctx := t.Context()
	value := func(n int) []byte {
		return fmt.Appendf(nil, `{"name":"p%d","spec":{"note":%q}}`, n, strings.Repeat("x", n%300))
	}
	for n := range 2300 {
		ops := []store.Op{{Key: fmt.Sprintf("policy/p%03d", n%400), Value: value(n)}, {Key: "meta/spec", Value: []byte("{}")}}
		if n%7 == 3 {
			ops = append(ops, store.Op{Key: fmt.Sprintf("policy/p%03d", (n+200)%400)})
		}
		rev, err := s.Txn(ctx, nil, ops)
		if err != nil {
			t.Fatal(err)
		}
		if n == 1500 {
			if err := s.Compact(ctx, rev-100); err != nil {
				t.Fatal(err)
			}
		}
	}
	want, err := held(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	return want
}

func seed(t *testing.T) *rand.Rand {
	t.Helper()
	n := uint64(1)
	if s := os.Getenv("SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return rand.New(rand.NewPCG(n, n))
}

// TestAFlippedBitIsNeverServed flips one bit of a store's files, many times, in a store that was closed and in one whose process was killed. Each start
// serves exactly what was there, or says which file is damaged and what to do. It never panics.
func TestAFlippedBitIsNeverServed(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	s := open(t, options(filepath.Join(dir, "live")))
	want := history(t, s)
	killed := filepath.Join(dir, "killed")
	if out, err := exec.Command("cp", "-a", filepath.Join(dir, "live"), killed).CombinedOutput(); err != nil { // as a kill leaves it
		t.Fatalf("%v: %s", err, out)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	random := seed(t)
	var served, refused atomic.Int64
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for n := range flips {
		from := filepath.Join(dir, "live")
		if n%4 == 3 {
			from = killed
		}
		copied := filepath.Join(dir, strconv.Itoa(n))
		slots <- struct{}{}
		if out, err := exec.Command("cp", "-a", from, copied).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		what := flip(t, random, copied, n%5 == 4)
		wg.Go(func() {
			defer func() { os.RemoveAll(copied); <-slots }()
			cmd, stderr := child(t, copied, "dump")
			cmd.Args = append(cmd.Args, filepath.Join(dir, "s"+strconv.Itoa(n)))
			out, err := cmd.Output()
			var code *exec.ExitError
			switch text := stderr.String(); {
			case err == nil && strings.TrimSpace(string(out)) == want:
				served.Add(1)
			case errors.As(err, &code) && code.ExitCode() == 1 && strings.Contains(text, copied) && strings.Contains(text, store.ErrDamaged.Error()+": ") &&
				strings.Contains(text, "restore it from a backup") && !strings.Contains(text, "goroutine "):
				refused.Add(1)
			default:
				t.Errorf("%s: %v, holds %swant %s\n%s", what, err, out, want, stderr)
			}
		})
	}
	wg.Wait()
	t.Logf("%d flipped bits: %d starts served what was there, %d were refused", flips, served.Load(), refused.Load())
	if served.Load() == 0 || refused.Load() == 0 {
		t.Error("the flips had all the same outcome")
	}
}

// flip flips one bit of the database, a log, a snapshot or the digest: anywhere, or where there is something.
func flip(t *testing.T, random *rand.Rand, dir string, anywhere bool) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "etcd", "member", "wal", "*.wal"))
	if err != nil {
		t.Fatal(err)
	}
	for range 4 + len(files) { // half of them in the database
		files = append(files, filepath.Join(dir, "etcd", "member", "snap", "db"))
	}
	snaps, err := filepath.Glob(filepath.Join(dir, "etcd", "member", "snap", "*.snap"))
	if err != nil || len(snaps) == 0 {
		t.Fatalf("no snapshots, %v", err)
	}
	path := append(append(files, snaps...), filepath.Join(dir, "etcd", "digest"))[random.IntN(len(files)+len(snaps)+1)]
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := random.IntN(len(b))
	if !anywhere {
		for b[at] == 0 {
			at = random.IntN(len(b))
		}
	}
	bit := random.IntN(8)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{b[at] ^ 1<<bit}, int64(at)); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("bit %d of byte %d of %s", bit, at, path)
}

// TestADamagedValueIsNotUsed changes values behind Weir's back in an etcd elsewhere: they are named, and neither read nor watched.
func TestADamagedValueIsNotUsed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	endpoint := plainEtcd(t)
	s := open(t, store.Options{Endpoints: []string{endpoint}})
	raw := rawClient(t, endpoint)
	rev, err := s.Txn(ctx, nil, []store.Op{{Key: "policy/a", Value: []byte(`{"name":"a"}`)}, {Key: "policy/b", Value: []byte(`{"name":"b"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := raw.Get(ctx, "/weir/v1/policy/a")
	if err != nil {
		t.Fatal(err)
	}
	good := r.Kvs[0].Value
	for at := range good {
		bad := bytes.Clone(good)
		bad[at] ^= 1 << (at % 8)
		if _, err := raw.Put(ctx, "/weir/v1/policy/a", string(bad)); err != nil {
			t.Fatal(err)
		}
		i, err := s.Get(ctx, "policy/a")
		if !errors.Is(err, store.ErrDamaged) || i.Value != nil || !strings.Contains(err.Error(), "policy/a") || !strings.Contains(err.Error(), "restore") {
			t.Fatalf("byte %d: %q, %v: want ErrDamaged with the key and what to do", at, i.Value, err)
		}
	}
	if _, _, err := s.List(ctx, "policy/", store.ListOptions{}); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("list: %v, want ErrDamaged", err)
	}
	w, err := s.Watch(ctx, "policy/", rev)
	if err != nil {
		t.Fatal(err)
	}
	for b := range w.C {
		t.Errorf("a watch tells %v", b)
	}
	if err := w.Err(); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("watch: %v, want ErrDamaged", err)
	}
	other, err := s.Watch(ctx, "chain/", rev) // what is damaged elsewhere does not concern it
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Txn(ctx, nil, []store.Op{{Key: "chain/c", Value: []byte(`{}`)}}); err != nil {
		t.Fatal(err)
	}
	if keys := keysOf(t, other, 1); len(keys) != 1 || !strings.HasPrefix(keys[0], "chain/c@") {
		t.Errorf("a watch of what is whole tells %q", keys)
	}
	if i, err := s.Get(ctx, "policy/b"); err != nil || string(i.Value) != `{"name":"b"}` {
		t.Errorf("another value: %s, %v", i.Value, err)
	}
	if _, err := raw.Put(ctx, "/weir/v1/policy/b", string(good)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, "policy/b"); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("another key's value: %v, want ErrDamaged", err)
	}
}

// TestValuesOfAFormerVersionAreRead reads values without a checksum. A former version reads ours, too: to JSON the checksum is white space.
func TestValuesOfAFormerVersionAreRead(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	endpoint := plainEtcd(t)
	s := open(t, store.Options{Endpoints: []string{endpoint}})
	raw := rawClient(t, endpoint)
	const former = `{"name":"a","spec":{"note":"   "}}`
	if _, err := raw.Put(ctx, "/weir/v1/policy/a", former); err != nil {
		t.Fatal(err)
	}
	i, err := s.Get(ctx, "policy/a")
	if err != nil || string(i.Value) != former {
		t.Errorf("%s, %v", i.Value, err)
	}
	if _, err := s.Txn(ctx, []store.Cond{{Key: "policy/a", Revision: i.Revision}}, []store.Op{{Key: "policy/a", Value: i.Value}}); err != nil {
		t.Fatal(err)
	}
	r, err := raw.Get(ctx, "/weir/v1/policy/a")
	if err != nil {
		t.Fatal(err)
	}
	if v := r.Kvs[0].Value; len(v) == len(former) || string(bytes.TrimSpace(v)) != former {
		t.Errorf("stored %q: want the text, then white space", v)
	}
}
