package guest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	libraries, err := librariesOf(ctx, path)
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

// librariesOf a program, the loader among them, as ldd tells them; a static program has none.
func librariesOf(ctx context.Context, path string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "ldd", path)
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if bytes.Contains(out, []byte("not a dynamic executable")) || bytes.Contains(out, []byte("statically linked")) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ldd: %w: %s", err, bytes.TrimSpace(out))
	}
	return parseLdd(string(out))
}

// parseLdd reads lines such as "libc.so.6 => /lib/libc.so.6 (0x7f)" and "/lib64/ld-linux-x86-64.so.2 (0x7f)"; what the kernel itself has is no file.
func parseLdd(out string) (files []string, err error) {
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		name, place, arrow := strings.Cut(strings.TrimSpace(lines.Text()), " => ")
		if !arrow {
			place = name
		}
		if strings.HasPrefix(place, "not found") {
			return nil, fmt.Errorf("library %s is not there: install the program's package anew", name)
		}
		if file, _, ok := strings.Cut(place, " ("); ok && filepath.IsAbs(file) {
			files = append(files, filepath.Clean(file))
		}
	}
	return files, nil
}

// copyFile with what is behind links, whole or not at all. What is there already is left as it is.
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
	part := to + ".part" // what was killed in the middle is written anew
	out, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return os.Rename(part, to)
}
