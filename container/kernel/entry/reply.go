package entry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// StepError says which step failed.
type StepError struct {
	Step  string
	Errno unix.Errno
}

func (e *StepError) Error() string { return fmt.Sprintf("%s: %v", e.Step, e.Errno) }
func (e *StepError) Unwrap() error { return e.Errno }

// commandError says what is wrong with a command: it is not in the image, or is not executable.
func commandError(command string, errno unix.Errno) error {
	switch errno {
	case unix.ENOENT:
		return fmt.Errorf("command %q not found in the image: name one that it has", command)
	case unix.EACCES, unix.ENOEXEC:
		return fmt.Errorf("command %q is not executable in the image", command)
	}
	return fmt.Errorf("command %q: %w", command, errno)
}

// readReply reads one report. nil: ready. io.EOF: the program has been executed, or has ended.
func readReply(r io.Reader, command string, lists ...*List) error {
	var raw [8]byte
	if _, err := io.ReadFull(r, raw[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return io.EOF
		}
		return err
	}
	at, errno := binary.LittleEndian.Uint32(raw[:]), unix.Errno(binary.LittleEndian.Uint32(raw[4:]))
	if at == ready {
		return nil
	}
	for _, l := range lists {
		if i := int64(at) - int64(l.first); i >= 0 && i < int64(len(l.steps)) {
			if s := l.steps[i]; s.kind != find && (s.kind != execute || s.text[0] != 0) {
				return &StepError{s.says, errno}
			}
			break
		}
	}
	return commandError(command, errno) // nothing else can fail behind the gate
}

// fifo makes a named pipe and opens it.
func fifo(path string, flags int) (*os.File, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make pipe %s: %w", path, err)
	}
	return openFIFO(path, flags)
}

// blocking makes a named pipe that never ends, for a process that waits in read(2).
func blocking(path string) (*os.File, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make pipe %s: %w", path, err)
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open pipe %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func openFIFO(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open pipe: %w", err)
	}
	return f, nil
}

// lastLines is the end of a text that a program left, in one line.
func lastLines(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if n := len(lines); n > 4 {
		lines = lines[n-4:]
	}
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "; ")
}
