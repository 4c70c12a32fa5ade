package kvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kvm/channel"
	"weir.dev/weir/container/kvm/erofs"
)

// copiedFile of a bundle has the marks of what its machine has copies of, for a daemon that takes over.
const copiedFile = "copied"

// marks tell the state of files in directories that are mounted read-only, by their paths: the number of the mount, then the path below it.
type marks map[string]string

// scan reads a mount of a container, and marks what is in it.
func (m marks) scan(c kernel.Container, i int) (*erofs.Node, error) {
	mount, bounds := c.Mounts[i], configLimits
	bounds.Shift = c.IDs.First
	return erofs.Scan(mount.Source, bounds, func(path string, st *syscall.Stat_t, target string) {
		rel, err := filepath.Rel(mount.Source, path)
		dir := st.Mode&syscall.S_IFMT == syscall.S_IFDIR
		if err != nil || !mount.ReadOnly || rel == "." && !dir {
			return
		}
		mark := fmt.Sprintf("%o %d %d", st.Mode, st.Uid, st.Gid)
		if !dir { // a directory's time changes with its files, which have marks of their own
			mark += fmt.Sprintf(" %d %d %d.%09d %s", st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, target)
		}
		m[filepath.Join(strconv.Itoa(i), rel)] = mark
	})
}

func (m marks) save(bundle string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, copiedFile), text, 0o600)
}

// scans bounds how often a directory is read anew because a file in it has gone meanwhile.
const scans = 3

// refresh copies into a machine what has changed in the directories that are mounted read-only, since the machine was made or the last refresh.
func (l *line) refresh(ctx context.Context, c kernel.Container) error {
	l.copying.Lock()
	defer l.copying.Unlock()
	return l.follow(ctx, c)
}

// refreshSoon is refresh that nobody waits for. What fails is tried again the next time.
func (l *line) refreshSoon(c kernel.Container) {
	if l.copying.TryLock() {
		go func() {
			defer l.copying.Unlock()
			_ = l.follow(context.Background(), c)
		}()
	}
}

// follow is called with copying held.
func (l *line) follow(ctx context.Context, c kernel.Container) (err error) {
	if !l.takesCopies() {
		return nil // an earlier Weir has made the machine
	}
	ctx, cancel := context.WithTimeout(ctx, answersIn)
	defer cancel()
	for range scans {
		if err = l.copyChanges(ctx, c); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil // the directory itself is gone: what is mounted stays
}

func (l *line) takesCopies() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state != nil && l.state.Copies
}

func (l *line) copyChanges(ctx context.Context, c kernel.Container) error {
	have, had, roots := marks{}, marks{}, map[int]*erofs.Node{}
	text, err := os.ReadFile(filepath.Join(c.Bundle, copiedFile))
	if err == nil {
		err = json.Unmarshal(text, &had)
	}
	if err != nil {
		return err
	}
	for i, mount := range c.Mounts {
		if !mount.ReadOnly {
			continue // the machine's copy is its own
		}
		if roots[i], err = have.scan(c, i); err != nil {
			return fmt.Errorf("copy %s into the virtual machine: %w", mount.Source, err)
		}
	}
	if maps.Equal(had, have) {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(had)) {
		if have[key] == "" {
			if err := l.copy(ctx, channel.Copy{Path: key, Gone: true}, nil); err != nil {
				return err
			}
		}
	}
	var walk func(key string, n *erofs.Node) error
	walk = func(key string, n *erofs.Node) error {
		if n == nil || have[key] == "" {
			return nil
		}
		if have[key] != had[key] {
			if err := l.copy(ctx, channel.Copy{Path: key, Mode: n.Mode, UID: n.UID, GID: n.GID, Target: n.Target}, n); err != nil {
				return err
			}
		}
		for _, child := range n.Children {
			if err := walk(filepath.Join(key, child.Name), child); err != nil {
				return err
			}
		}
		return nil
	}
	for i, root := range roots {
		if err := walk(strconv.Itoa(i), root); err != nil {
			return err
		}
	}
	return have.save(c.Bundle)
}

// copy has the machine take one file, or remove its copy.
func (l *line) copy(ctx context.Context, what channel.Copy, n *erofs.Node) error {
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	s, err := l.conn.New(l.streams.Add(1) << 1)
	if err != nil {
		return err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, s.Reset)()
	if err = l.conn.Send(channel.Frame{Kind: channel.CopyFile, Stream: s.ID(), Payload: text}); err == nil {
		err = sendFile(s, n)
	}
	for err == nil {
		var p channel.Piece
		if p, err = s.Next(); err == nil && p.Kind == channel.Copied {
			if len(p.Data) == 0 {
				return nil
			}
			err = errors.New(printable(string(p.Data)))
		}
	}
	s.Reset() // the machine waits for the rest
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return fmt.Errorf("copy a changed file (mount %s) into the virtual machine: %w", what.Path, err)
}

// sendFile sends the text of a regular file, and nothing of others.
func sendFile(s *channel.Stream, n *erofs.Node) error {
	if n != nil && n.Same != nil {
		n = n.Same
	}
	if n != nil && n.Mode.IsRegular() {
		f, err := n.Open()
		if err != nil {
			return err
		}
		defer f.Close()
		buf := make([]byte, channel.MaxPayload)
		for {
			k, err := f.Read(buf)
			if k > 0 {
				if err := s.Write(channel.Data, buf[:k]); err != nil {
					return err
				}
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
		}
	}
	return s.Put(channel.EOF, nil)
}
