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
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	next := path + FileNew
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
