package testbed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
)

// Errors that callers tell apart.
var (
	ErrNotFound  = errors.New("not found")
	ErrConflict  = errors.New("conflict")
	ErrForbidden = errors.New("root is needed (network namespaces, Open vSwitch, containers): use sudo")
	ErrMissing   = errors.New("this machine lacks what it needs")
)

// record is what a later command needs to know about a testbed; it is written before anything is made.
type record struct {
	Spec  Spec   `json:"spec"`
	File  string `json:"file,omitempty"`
	Ready bool   `json:"ready"` // up came to its end
}

func recordPath(name string) string { return filepath.Join(runBase, name, "testbed.json") }

// checkName refuses what is no testbed's name before it becomes a part of paths: without one they would be those of all testbeds.
func checkName(name string) error {
	if _, err := instance.New(name, ""); err != nil || name == "" {
		return fmt.Errorf("name of a testbed: %q: want 1 to 10 characters of a-z, 0-9 and inner '-': %w", name, ErrInvalid)
	}
	return nil
}

func readRecord(name string) (record, error) {
	var r record
	if err := checkName(name); err != nil {
		return r, err
	}
	b, err := os.ReadFile(recordPath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("testbed %s is not up: %w", name, ErrNotFound)
	}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read record of testbed %s: %w", name, err)
	}
	return r, nil
}

func (r record) write() error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := instance.WriteFile(recordPath(r.Spec.Name), append(b, '\n')); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// same tells whether two files describe one testbed.
func (r record) same(s Spec) bool {
	a, errA := json.Marshal(r.Spec)
	b, errB := json.Marshal(s)
	return errA == nil && errB == nil && string(a) == string(b)
}

// Names lists the testbeds that are up, or half up.
func Names() ([]string, error) {
	entries, err := os.ReadDir(runBase)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list testbeds: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && checkName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// lingers bounds the wait for a lock: a process that was killed leaves a child that it had just forked, which has the lock until it begins
// its program.
const lingers = 2 * time.Second

// lock makes up and down of one testbed exclude each other. The kernel releases it when the process dies.
func lock(name string) (release func(remove bool), err error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	path := filepath.Join(runBase, name+".lock")
	for range 10 { // whoever had it may have removed the file while we waited for it
		if err := instance.MakeDir(runBase, 0o755); err != nil {
			return nil, fmt.Errorf("lock testbed %s: %w", name, err)
		}
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrNotExist) { // the last testbed has just removed the directory
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lock testbed %s: %w", name, err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		for end := time.Now().Add(lingers); errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("testbed %s: another `weir testbed` works on it: %w", name, ErrConflict)
		}
		if sameFile(f, path) {
			return func(remove bool) {
				if remove {
					_ = os.Remove(path)
					_ = os.Remove(runBase) // if this was the last testbed
				}
				f.Close()
			}, nil
		}
		f.Close()
	}
	return nil, fmt.Errorf("testbed %s: its lock comes and goes: %w", name, ErrConflict)
}

func sameFile(f *os.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// Find tells which testbed a command without a file means: name if it is given, else the only one that is up.
func Find(name string) (string, error) {
	names, err := Names()
	if err != nil {
		return "", err
	}
	switch {
	case name != "":
		if _, err := readRecord(name); err != nil {
			return "", err
		}
		return name, nil
	case len(names) == 1:
		return names[0], nil
	case len(names) == 0:
		return "", fmt.Errorf("no testbed is up: %w (weir testbed up FILE)", ErrNotFound)
	}
	return "", fmt.Errorf("several testbeds are up (%s): say which with --name: %w", strings.Join(names, ", "), ErrConflict)
}
