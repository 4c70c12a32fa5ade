package study

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Names of a journal in the directory of its run: as the run writes it, and compressed, as a run that is over may be kept.
const (
	JournalFile = journalName
	JournalKept = journalName + ".gz"
)

// mostKept is how long a compressed journal may become: more than maxTrials trials take.
const mostKept = 8 << 30

// errTooLong says that a compressed journal holds more than mostKept.
var errTooLong = fmt.Errorf("%w: more than %d bytes once it is decompressed", ErrJournal, int64(mostKept))

// OpenRaw opens the journal of a directory to read it: the run's own, or the compressed one if there is no other. name is its path.
func OpenRaw(dir string) (raw io.ReadCloser, name string, err error) {
	f, err := os.Open(filepath.Join(dir, JournalFile))
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return f, filepath.Join(dir, JournalFile), err
	}
	kept, keptErr := os.Open(filepath.Join(dir, JournalKept))
	if errors.Is(keptErr, os.ErrNotExist) {
		return nil, "", err // of the name that a reader knows
	}
	if keptErr != nil {
		return nil, "", keptErr
	}
	z, err := gzip.NewReader(bufio.NewReader(kept))
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("%w: %s: %w", ErrJournal, kept.Name(), err), kept.Close())
	}
	return &keptJournal{z, kept, mostKept}, kept.Name(), nil
}

// keptJournal is a compressed journal that is read; left is how many bytes more it may have.
type keptJournal struct {
	z    *gzip.Reader
	f    *os.File
	left int64
}

func (k *keptJournal) Read(b []byte) (int, error) {
	n, err := k.z.Read(b)
	if k.left -= int64(n); k.left < 0 {
		return 0, errTooLong
	}
	return n, err
}

func (k *keptJournal) Close() error { return errors.Join(k.z.Close(), k.f.Close()) }

// isKept tells whether a directory has a compressed journal.
func isKept(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, JournalKept))
	return err == nil
}
