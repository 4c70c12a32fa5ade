package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
	"weir.dev/weir/manager"
)

const (
	snapshotEnd   = ".backup"
	snapshotsKept = 3 // the newest
	snapshotEvery = 24 * time.Hour
	snapshotLook  = 10 * time.Minute
	snapshotBound = 20 * time.Second
	snapshotRoom  = 128 << 20 // stays free for the store, which refuses to write below half of it
)

// saver makes backups of the store by itself: one a day, and one when the daemon ends in good order, if anything has changed. So a store that is damaged
// can be restored although nobody has ever made a backup.
type saver struct {
	dir string
	m   *manager.Manager
	log *slog.Logger
	now func() time.Time
}

// start saves once a day until ctx ends; then the channel closes.
func (s *saver) start(ctx context.Context) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(snapshotLook)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if s.due() {
					s.save(ctx)
				}
			}
		}
	}()
	return done
}

// due tells that the newest one is a day old, or of a time to come: somebody has set the clock back.
func (s *saver) due() bool {
	have := snapshots(s.dir)
	if len(have) == 0 {
		return true
	}
	info, err := os.Stat(have[len(have)-1])
	if err != nil {
		return true
	}
	age := s.now().Sub(info.ModTime())
	return age >= snapshotEvery || age < 0
}

// path is the name of one.
func (s *saver) path(revision int64) string {
	return filepath.Join(s.dir, fmt.Sprintf("weir-%016d%s", revision, snapshotEnd))
}

func (s *saver) save(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, snapshotBound)
	defer cancel()
	if err := s.write(ctx); err != nil {
		s.log.Warn("backup of the state", "error", err)
	}
}

func (s *saver) write(ctx context.Context) (err error) {
	revision, err := s.m.Read.Revision(ctx)
	if err != nil {
		return err
	}
	if have := snapshots(s.dir); len(have) > 0 && have[len(have)-1] == s.path(revision) {
		return nil // nothing has changed
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if err := s.room(); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, "next"+instance.FileNew), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	out := bufio.NewWriter(f)
	h, err := s.m.Read.Backup(ctx, out)
	if err = errors.Join(err, out.Flush(), f.Sync(), f.Close()); err != nil {
		return err
	}
	path := s.path(h.Revision)
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	others := slices.DeleteFunc(snapshots(s.dir), func(p string) bool { return p == path }) // if the clock was set back, it is not the newest
	for _, old := range others[:max(len(others)-(snapshotsKept-1), 0)] {
		if err := os.Remove(old); err != nil {
			return fmt.Errorf("remove an old one: %w", err)
		}
	}
	return nil
}

// room refuses when a backup could take the room that the store needs to go on.
func (s *saver) room() error {
	var size int64 // of the store; a backup is at most a third larger
	if info, err := os.Stat(filepath.Join(filepath.Dir(s.dir), etcdDir, "member", "snap", "db")); err == nil {
		size = info.Size()
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		return fmt.Errorf("%s: %w", s.dir, err)
	}
	if free, need := int64(fs.Bavail)*fs.Bsize, snapshotRoom+2*size; free < need {
		return fmt.Errorf("the disk of %s has %d MiB free, %d MiB are needed: free some space, or save one elsewhere (weir backup FILE)", s.dir, free>>20, need>>20)
	}
	return nil
}
