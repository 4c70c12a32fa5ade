package instance

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// FileNew is the end of the name under which files are written before they replace others; a crash may leave such a file.
const FileNew = ".new"

// mostVanished bounds how often a directory is made whose parent is removed meanwhile.
const mostVanished = 100

// MakeDir is os.MkdirAll for a directory whose parent others remove when it is empty: /run/weir goes with the last instance in it.
func MakeDir(path string, mode fs.FileMode) (err error) {
	for range mostVanished {
		if err = os.MkdirAll(path, mode); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// WriteFile writes a file of mode 0600, whole or not at all: whatever happens, also to the power, there is the former one or this, and this once
// WriteFile has returned. Its directory is made with mode 0700.
func WriteFile(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return writeSynced(path, text, 0o600)
}

// WriteShared is WriteFile for what everybody may read: mode 0644. Its directory is there.
func WriteShared(path string, text []byte) error { return writeSynced(path, text, 0o644) }

func writeSynced(path string, text []byte, mode fs.FileMode) error {
	if err := replace(path, text, mode, true); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Replace writes a file whole or not at all, unless the power fails: nothing is synced. It is for what a reboot removes, as all in Run, and for what
// can be made anew. Its directory is there.
func Replace(path string, text []byte, mode fs.FileMode) error {
	return replace(path, text, mode, false)
}

func replace(path string, text []byte, mode fs.FileMode, synced bool) error {
	next := path + FileNew
	if err := syscall.Unlink(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "unlink", Path: next, Err: err}
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if synced {
		err = errors.Join(err, f.Sync())
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return nil
}
