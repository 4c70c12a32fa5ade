// Package record keeps what a switch driver must know after a crash and the switch cannot tell: JSON files in a directory of the instance, and
// the lock that keeps a second process from driving the same switch. What the files hold is the drivers' affair.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
)

// Store is the directory. A file is replaced as a whole.
type Store struct{ Dir string }

// File of an endpoint or function.
func File(kind, name string) string { return kind + "." + url.PathEscape(name) + ".json" }

// Rules is the file of a rule set: of the last two versions, each has its own.
func Rules(version uint32) string { return fmt.Sprintf("rules.%d.json", version&1) }

// Write replaces a file.
func (s Store) Write(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := instance.Replace(filepath.Join(s.Dir, name), data, 0o600); err != nil {
		return fmt.Errorf("write switch state: %w", err)
	}
	return nil
}

// Read is false for a file that is not there.
func (s Store) Read(name string, v any) (bool, error) {
	path := filepath.Join(s.Dir, name)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read switch state: %w", err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, fmt.Errorf("read switch state %s: %w; remove the file to start the switch anew", path, err)
	}
	return true, nil
}

// Remove takes a file away; one that is not there is no error.
func (s Store) Remove(name string) error {
	if err := os.Remove(filepath.Join(s.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove switch state: %w", err)
	}
	return nil
}

// All reads the files of a kind.
func All[T any](s Store, kind string) ([]*T, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read switch state: %w", err)
	}
	var all []*T
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), kind+".") && strings.HasSuffix(e.Name(), ".json") {
			v := new(T)
			if _, err := s.Read(e.Name(), v); err != nil {
				return nil, err
			}
			all = append(all, v)
		}
	}
	return all, nil
}

// Lock makes the directory and keeps two processes from driving one switch, until the file is closed.
func (s Store) Lock() (*os.File, error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(s.Dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: another process drives this switch: %w", path, err)
	}
	return f, nil
}
