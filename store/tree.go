package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
)

// checkTree reads etcd's tree through, page by page. Etcd does so when it needs to, on goroutines of its own, and over a page that is
// cut off or damaged the process would die.
func checkTree(path string) (err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // is filled from the log
	}
	if err != nil {
		return err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // what a file lacks that is mapped is a fault
	defer func() {
		p := recover()
		if _, fault := p.(runtime.Error); fault {
			err = fmt.Errorf("%s cannot be read through: it was cut short, or its disk is bad", path)
		} else if p != nil {
			err = fmt.Errorf("%s cannot be read through: %v", path, p)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(_, _ []byte) error { return nil })
		})
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
