package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"weir.dev/weir/image"
)

// Programs that guests have, where this machine has them: of the network, of compression and of disks.
func Programs() []string { return []string{"busybox", "dd", "nuttcp", "sysbench", "xz"} }

// Places in a guest.
const (
	Probe = "/bin/probe" // the lab's own program
	Data  = "/data"      // the directory that a guest may write to, if its Spec wants one
)

// Program is where a guest has one of Programs.
func Program(name string) string { return "/bin/" + name }

// makeRoot makes a root file system of this machine's programs and the libraries that they need, at the places where the loader finds them. What a crash
// left of it is made anew.
func makeRoot(ctx context.Context, dir string) error {
	half := dir + ".half"
	if err := errors.Join(os.RemoveAll(half), os.RemoveAll(dir)); err != nil {
		return err
	}
	for _, d := range []string{"bin", "data", "dev", "etc", "proc", "run", "sys", "tmp", "usr/bin", "var"} {
		if err := os.MkdirAll(filepath.Join(half, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(half, Probe), probe, 0o755); err != nil {
		return err
	}
	for _, name := range Programs() {
		path, err := exec.LookPath(name)
		if errors.Is(err, exec.ErrNotFound) {
			continue // the experiment that wants it says so
		}
		if err != nil {
			return err
		}
		if err := addProgram(ctx, half, name, path); err != nil {
			return fmt.Errorf("root of guests: %s: %w", path, err)
		}
	}
	return os.Rename(half, dir)
}

func addProgram(ctx context.Context, root, name, path string) error {
	libraries, err := image.Libraries(ctx, path)
	if err != nil {
		return err
	}
	if err := copyFile(path, filepath.Join(root, Program(name))); err != nil {
		return err
	}
	for _, l := range libraries {
		if err := copyFile(l, filepath.Join(root, l)); err != nil {
			return err
		}
	}
	return nil
}

// copyFile with what is behind links. What is there already is left as it is.
func copyFile(from, to string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
