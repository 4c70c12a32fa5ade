package store_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"weir.dev/weir/store"
)

// childEnv makes this test binary one of the children below instead; its value is a directory.
const childEnv = "WEIR_STORE_TEST_CHILD"

const batch = 200 // keys that the writing child puts in one transaction

func TestMain(m *testing.M) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	run := children()[os.Args[1]]
	if err := run(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func children() map[string]func(dir string) error {
	return map[string]func(string) error{
		"writer":          writer,
		"disk-work":       diskWork,
		"disk-start":      diskStart,
		"disk-start-anew": diskStartAnew,
		"disk-room":       diskRoom,
		"disk-after":      diskAfter,
		"dump":            dump,
		"few-files":       fewFiles,
	}
}

// child is a process that runs this binary's other side.
func child(t *testing.T, dir, what string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", what)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, &stderr
}

// writer puts batches for ever, each value its number, and prints each number once it is acknowledged.
func writer(dir string) error {
	ctx := context.Background()
	s, err := store.Open(ctx, options(dir))
	if err != nil {
		return err
	}
	first := 0
	if i, err := s.Get(ctx, "chain/000"); err == nil {
		if _, err := fmt.Sscan(string(i.Value), &first); err != nil {
			return err
		}
	}
	for n := first + 1; ; n++ {
		var ops []store.Op
		for i := range batch {
			ops = append(ops, store.Op{Key: fmt.Sprintf("chain/%03d", i), Value: fmt.Append(nil, n)})
		}
		if _, err := s.Txn(ctx, nil, ops); err != nil {
			return err
		}
		fmt.Println(n)
	}
}
