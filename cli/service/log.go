package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/instance"
)

const (
	logName      = "weir.log"
	maxLogBytes  = 16 << 20 // then it becomes weir.log.1
	maxTailBytes = 16 << 10
	maxTailLines = 20
)

func logPath(i instance.Instance) string { return filepath.Join(i.Root, logName) }

// openLog opens the daemon's log to append to, and says where the new part begins.
func openLog(i instance.Instance) (*os.File, int64, error) {
	if err := os.MkdirAll(i.Root, 0o700); err != nil {
		return nil, 0, fmt.Errorf("root directory: %w: run as root (sudo), or name one that can be made and written with --root", err)
	}
	path := logPath(i)
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogBytes {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, 0, fmt.Errorf("turn log over: %w", err)
		}
	}
	f, err := appendTo(path)
	if err != nil {
		return nil, 0, fmt.Errorf("log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("log: %w", err)
	}
	return f, info.Size(), nil
}

func appendTo(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// ownLog is the log of a daemon in the background, while it writes it: turned over when it is large, so that there are never more than two
// times limit. Safe for use by several goroutines.
type ownLog struct {
	path  string
	limit int64
	out   *os.File // what path was opened as, for this process
	// also are further descriptors of it; out and they change to the new file in place: what writes to them without asking (a crash of the
	// runtime, a child that begins) is in the log, too.
	also []int

	mu sync.Mutex
}

func (l *ownLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if info, err := l.out.Stat(); err == nil && info.Size() > 0 && info.Size()+int64(len(b)) > l.limit {
		if err := l.turn(); err != nil { // the log is given up for the sake of the rest
			_ = l.out.Truncate(0)
			fmt.Fprintf(l.out, "weir: the log until now is lost: turn it over: %v\n", err)
		}
	}
	return l.out.Write(b)
}

func (l *ownLog) turn() error {
	if err := os.Rename(l.path, l.path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := appendTo(l.path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, fd := range append([]int{int(l.out.Fd())}, l.also...) {
		err = errors.Join(err, unix.Dup3(int(f.Fd()), fd, 0))
	}
	return err
}

// tail returns the last lines of a log, of what was written after begin; of one that was turned over then, of what was written since.
func tail(path string, begin int64) string {
	f, err := os.Open(path)
	if err != nil {
		return "  " + err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		if begin > info.Size() {
			begin = 0 // it has been turned over since
		}
		begin = max(begin, info.Size()-maxTailBytes)
	}
	b := make([]byte, maxTailBytes)
	n, _ := f.ReadAt(b, begin)
	lines := strings.Split(strings.TrimRight(string(b[:n]), "\n"), "\n")
	lines = lines[max(0, len(lines)-maxTailLines):]
	for i, l := range lines {
		lines[i] = "  " + command.Printable(l)
	}
	return strings.Join(lines, "\n")
}
