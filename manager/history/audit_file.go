package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"weir.dev/weir/api"
)

// Bounds of the audit log's files: PATH, PATH.1 and so on, the oldest last.
const (
	auditFileSize  = 16 << 20
	auditFileCount = 5
)

// File is the audit log as JSON lines, mode 0600. It is used under audit.mu.
type File struct {
	Path string // "" none
	f    *os.File
	size int64
}

func (a *File) write(rec api.AuditRecord) error {
	if a.Path == "" {
		return nil
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if a.f != nil && a.size+int64(len(b)) > auditFileSize {
		if err := a.rotate(); err != nil {
			return err
		}
	}
	if a.f == nil {
		if err := a.open(); err != nil {
			return err
		}
	}
	n, err := a.f.Write(b) // in one call: a line is whole, or cut by a full disk
	a.size += int64(n)
	return err
}

func (a *File) open() error {
	f, err := os.OpenFile(a.Path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = f.Chmod(0o600)
	}
	if err == nil && info.Size() > 0 { // a line that a crash or a full disk cut ends here
		var last [1]byte
		if _, e := f.ReadAt(last[:], info.Size()-1); e == nil && last[0] != '\n' {
			_, err = f.Write([]byte("\n"))
		}
	}
	if err != nil {
		f.Close()
		return err
	}
	a.f, a.size = f, info.Size()
	return nil
}

// rotate gives the file a number; the oldest goes.
func (a *File) rotate() error {
	a.close()
	for n := auditFileCount - 1; n > 0; n-- {
		from := a.Path
		if n > 1 {
			from = fmt.Sprintf("%s.%d", a.Path, n-1)
		}
		if err := os.Rename(from, fmt.Sprintf("%s.%d", a.Path, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (a *File) close() {
	if a.f != nil {
		a.f.Close()
		a.f = nil
	}
}
