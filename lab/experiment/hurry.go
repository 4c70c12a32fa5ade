package experiment

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"weir.dev/weir/lab/platform"
)

// rcuExpedited is the kernel's switch for short waits. While it is 0, the kernel waits 10 to 20 ms at each program that is attached to an interface or
// detached from it: half a minute for a block with a few chains of 100 functions. Trials are measured with the value that the machine had.
const rcuExpedited = "/sys/kernel/rcu_expedited"

// Hurry makes the kernel's waits short until the returned function is called: while variants are set up or taken down, never during a trial. It changes
// nothing where they are short already, or where the kernel does not let it. The next run undoes the change of one that is killed.
func (b *Bench) Hurry() (back func() error, err error) {
	if b == nil {
		return func() error { return nil }, nil
	}
	return hurry(rcuExpedited, hurryMark(b.Name))
}

// hurryMark is a file of a run that has changed rcuExpedited.
func hurryMark(name string) string { return filepath.Join(platform.Run, name, "rcu-expedited") }

func hurry(file, mark string) (back func() error, err error) {
	nothing := func() error { return nil }
	if was, err := os.ReadFile(file); err != nil || !bytes.Equal(bytes.TrimSpace(was), []byte("0")) {
		return nothing, nil
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return nil, fmt.Errorf("note that %s is changed: %w", file, err)
	}
	if err := os.WriteFile(file, []byte("1\n"), 0o644); err != nil { // in a container it is often read-only
		return nothing, os.Remove(mark)
	}
	return func() error { return calm(file, mark) }, nil
}

// calm undoes hurry, if a mark says that it is to be undone.
func calm(file, mark string) error {
	if _, err := os.Lstat(mark); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.WriteFile(file, []byte("0\n"), 0o644); err != nil {
		return fmt.Errorf("set the kernel's waits back (by hand: echo 0 > %s): %w", file, err)
	}
	return os.Remove(mark)
}
