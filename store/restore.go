package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"weir.dev/weir/api/backup"
)

const (
	damagedFile  = "damaged"  // in a store that was found to be: the reason
	restoredFile = "restored" // in a store that was restored, until FinishRestore has done the rest
	keyFile      = "secrets.key"

	// A restored store's revisions begin far above all that anybody has seen: who watched the former one lists anew instead of missing a part.
	revisionLeap = 1_000_000_000

	restoreOps   = 1000
	restoreBytes = 8 << 20
)

// ErrWhole refuses to restore over a state that is there and is not damaged.
var ErrWhole = errors.New("a state exists already, and is not damaged")

// RestoreOptions say what replaces what.
type RestoreOptions struct {
	Dir       string // of the embedded store, as in Options
	SocketDir string
	Header    backup.Header
	Values    []backup.Value
	Replace   bool // also a state that is whole
}

// Backup reads all that a store holds, but who leads.
func Backup(ctx context.Context, s Store) (values []backup.Value, revision int64, err error) {
	items, revision, err := s.List(ctx, "", ListOptions{})
	if err != nil {
		return nil, 0, err
	}
	for _, i := range items {
		if !strings.HasPrefix(i.Key, LeasePrefix) {
			values = append(values, backup.Value{Key: i.Key, Text: i.Value})
		}
	}
	return values, revision, nil
}

// building is where a restored store is made, and the former one is found until it is put aside.
func building(dir string) string { return dir + ".restoring" }

// Restore makes a store out of a backup, beside the one that is there, and exchanges the two in one step. No other process may use the directory. After a
// kill at any moment there is the former store or the new one, whole. FinishRestore has to come before, since the former store may still be where this one
// is built, and has to follow.
func Restore(ctx context.Context, o RestoreOptions) error {
	into := building(o.Dir)
	if _, err := os.Lstat(into); err == nil && Restoring(o.Dir) {
		return fmt.Errorf("restore: %s is the state before the last restore, and was not put aside", into)
	}
	former, err := examine(o.Dir, o.Replace)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := os.RemoveAll(into); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	s, err := Open(ctx, Options{Dir: into, SocketDir: o.SocketDir})
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	err = errors.Join(fill(ctx, s, o.Values), s.Close())
	if err == nil {
		err = leap(filepath.Join(into, "member", "snap", "db"), max(former, o.Header.Revision)+revisionLeap+rand.Int64N(revisionLeap))
	}
	if err == nil {
		err = errors.Join(os.Remove(filepath.Join(into, digestFile)), // of revisions that are over
			writeSynced(filepath.Join(into, keyFile), o.Header.SecretsKey), writeSynced(filepath.Join(into, restoredFile), "by weir\n"))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("restore: %w", err), os.RemoveAll(into))
	}
	if _, err := os.Lstat(o.Dir); errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(into, o.Dir)
		return errors.Join(err, syncDir(filepath.Dir(o.Dir)))
	}
	if err := unix.Renameat2(unix.AT_FDCWD, into, unix.AT_FDCWD, o.Dir, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("restore: exchange %s and %s: %w", into, o.Dir, err)
	}
	return syncDir(filepath.Dir(o.Dir))
}

// examine refuses if a store is there, and is whole. It returns the last revision that the store is known to have had.
func examine(dir string, replace bool) (revision int64, err error) {
	last, err := readDigest(dir)
	if err != nil && !replace {
		return 0, err
	}
	if last != nil {
		revision = last.Revision
	}
	files, err := os.ReadDir(filepath.Join(dir, "member"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(files) == 0 {
		return revision, nil
	}
	e := &embedded{dir: dir}
	t, err := checkTree(e.tree(), defaultPrefix)
	if t != nil {
		revision = max(revision, t.last)
	}
	_, noted := os.Stat(filepath.Join(dir, damagedFile))
	if err != nil || noted == nil || replace {
		return revision, nil
	}
	if _, err := logEnd(e.log()); err != nil {
		return revision, nil
	}
	return 0, fmt.Errorf("%w, in %s: start without --restore, or put this state aside and take the backup's with --replace", ErrWhole, dir)
}

// fill puts all values.
func fill(ctx context.Context, s *Etcd, values []backup.Value) error {
	var ops []Op
	bytes := 0
	for n, v := range values {
		if strings.HasPrefix(v.Key, LeasePrefix) {
			continue // nobody would ever give it back
		}
		if v.Key == "" || !json.Valid(v.Text) {
			return fmt.Errorf("value %d of the backup has no key, or is not JSON: take another backup", n+1)
		}
		ops, bytes = append(ops, Op{Key: v.Key, Value: v.Text}), bytes+len(v.Text)
		if len(ops) == restoreOps || bytes > restoreBytes {
			if _, err := s.Txn(ctx, nil, ops); err != nil {
				return err
			}
			ops, bytes = nil, 0
		}
	}
	if len(ops) == 0 {
		return nil
	}
	_, err := s.Txn(ctx, nil, ops)
	return err
}

// leap has etcd begin at a revision, with all before it compacted.
func leap(tree string, revision int64) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: %v", tree, p)
		}
	}()
	b := backend.NewDefaultBackend(zap.NewNop(), tree)
	tx := b.BatchTx()
	tx.LockOutsideApply()
	mvcc.UnsafeSetScheduledCompact(tx, revision)
	tx.Unlock()
	b.ForceCommit()
	return b.Close()
}

// FinishRestore does what is left of a Restore: it puts the former store into the folder aside, and the key of secrets in place. It tells where the
// former store is now; "": there was none. Nothing happens when nothing was restored. Safe to repeat; a start calls it before it opens the store.
func FinishRestore(dir, key, aside string, now time.Time) (former string, restored bool, err error) {
	if _, err := os.Stat(filepath.Join(dir, restoredFile)); errors.Is(err, fs.ErrNotExist) {
		return "", false, os.RemoveAll(building(dir)) // one that was not finished
	}
	into := filepath.Join(aside, "etcd-"+now.UTC().Format("20060102T150405.000Z"))
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return "", true, fmt.Errorf("put the former state aside: %w", err)
	}
	if _, err := os.Lstat(building(dir)); err == nil {
		if err := os.Rename(building(dir), into); err != nil {
			return "", true, fmt.Errorf("put the former state aside: %w", err)
		}
		former = into
	}
	return former, true, takeKey(filepath.Join(dir, keyFile), key, filepath.Join(aside, filepath.Base(into)+"."+keyFile))
}

// takeKey puts the backup's key of secrets in place, if it has one and it is another than the one that is there.
func takeKey(from, to, aside string) error {
	next, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) || len(next) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("key of secrets: %w", err)
	}
	if have, err := os.ReadFile(to); err == nil && string(have) == string(next) {
		return nil
	} else if err == nil {
		if err := os.Rename(to, aside); err != nil {
			return fmt.Errorf("key of secrets: %w", err)
		}
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("key of secrets: %w", err)
	}
	return syncDir(filepath.Dir(to))
}

// Restoring tells that a store was restored and RestoreDone not called yet.
func Restoring(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, restoredFile))
	return err == nil
}

// RestoreDone ends a restore: what a start had to do after it is done.
func RestoreDone(dir string) error {
	err := os.Remove(filepath.Join(dir, restoredFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_ = os.Remove(filepath.Join(dir, keyFile)) // is in its place
	return err
}

// writeSynced writes a file that is there after a power cut.
func writeSynced(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
