package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"weir.dev/weir/container/kvm/channel"
)

// copyFile puts a file that has changed outside into a copy of a mount.
func (m *machine) copyFile(f channel.Frame) {
	var c channel.Copy
	err := json.Unmarshal(f.Payload, &c)
	if err == nil {
		err = m.follows(c.Path)
	}
	s, serr := m.conn.New(f.Stream)
	if serr != nil {
		m.reply(channel.Copied, f.Stream, []byte(serr.Error()))
		return
	}
	go func() {
		defer s.Close()
		next := filepath.Join(copies, "new-"+strconv.Itoa(int(f.Stream)))
		defer os.Remove(next) // unless it is where it belongs
		if rerr := receive(s, next, &err); rerr != nil {
			return
		}
		if err == nil {
			err = place(c, next)
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		_ = s.Put(channel.Copied, []byte(text))
	}()
}

func (m *machine) follows(path string) error {
	number, _, _ := strings.Cut(path, "/")
	i, err := strconv.Atoi(number)
	if err != nil || i < 0 || i >= len(m.spec.Mounts) || !m.spec.Mounts[i].Follows() || !filepath.IsLocal(path) {
		return errors.New(path + " is in no mount that changes")
	}
	return nil
}

// receive writes what comes to a file, up to its end: the sender does not look before that. An error of the stream is returned, another one is left in failed.
func receive(s *channel.Stream, to string, failed *error) error {
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if *failed == nil {
		*failed = err
	}
	if out != nil {
		defer out.Close()
	}
	for {
		p, err := s.Next()
		if err != nil {
			return err
		}
		if p.Kind == channel.EOF {
			return nil
		}
		if p.Kind == channel.Data && *failed == nil {
			_, *failed = out.Write(p.Data)
		}
		_ = s.Done(p)
	}
}

// place puts a copy where it belongs, at once: the program finds the former file or the new one. next has the text of a regular file.
func place(c channel.Copy, next string) error {
	at := filepath.Join(copies, c.Path)
	if was, err := os.Lstat(at); err == nil && (c.Gone || was.IsDir() != c.Mode.IsDir()) {
		if err := os.RemoveAll(at); err != nil {
			return err
		}
	}
	if c.Gone {
		return nil
	}
	switch c.Mode.Type() {
	case fs.ModeDir:
		if err := os.Mkdir(at, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return errors.Join(os.Chown(at, int(c.UID), int(c.GID)), os.Chmod(at, c.Mode))
	case fs.ModeSymlink:
		if err := errors.Join(os.Remove(next), os.Symlink(c.Target, next), os.Lchown(next, int(c.UID), int(c.GID))); err != nil {
			return err
		}
	default:
		if err := errors.Join(os.Chown(next, int(c.UID), int(c.GID)), os.Chmod(next, c.Mode)); err != nil {
			return err
		}
	}
	return os.Rename(next, at)
}
