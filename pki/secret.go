package pki

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// SecretNew is the end of the name under which WriteSecret writes; a crash may leave such a file.
const SecretNew = ".new"

// WriteSecret writes a file of mode 0600, whole or not at all; its directory is made with mode 0700.
func WriteSecret(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	next := path + SecretNew
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
	return nil
}
