package instance

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// FileNew is the end of the name under which WriteFile writes; a crash may leave such a file.
const FileNew = ".new"

// WriteFile writes a file of mode 0600, whole or not at all: whatever happens, also to the power, there is the former one or this, and this once
// WriteFile has returned. Its directory is made with mode 0700.
func WriteFile(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return write(path, text, 0o600)
}

// WriteShared is WriteFile for what everybody may read: mode 0644. Its directory is there.
func WriteShared(path string, text []byte) error { return write(path, text, 0o644) }

func write(path string, text []byte, mode fs.FileMode) error {
	next := path + FileNew
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
