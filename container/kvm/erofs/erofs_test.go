package erofs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// tree is what a directory holds.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		text := ""
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = fmt.Sprint(len(b), string(b[:min(len(b), 40)]), string(b[max(0, len(b)-40):]))
		case info.Mode()&fs.ModeSymlink != 0:
			if text, err = os.Readlink(path); err != nil {
				return err
			}
		}
		rel, _ := filepath.Rel(dir, path)
		links := uint64(0)
		if !d.IsDir() { // not every file system counts directories
			links = uint64(st.Nlink)
		}
		out[rel] = fmt.Sprint(info.Mode(), st.Uid, st.Gid, info.ModTime().UnixNano(), links, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// mount lets the kernel read an image.
func mount(t *testing.T, image string) string {
	t.Helper()
	at := t.TempDir()
	if err := unix.Mount(image, at, "erofs", unix.MS_RDONLY, ""); err != nil {
		t.Fatalf("mount %s: %v (EROFS of a plain file: Linux 6.12)", image, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	return at
}

func write(t *testing.T, root *Node) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Write(f, root); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func TestTheKernelReadsTheSameTree(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "many"), 0o755))
	for i := range 700 { // of several blocks
		must(os.WriteFile(filepath.Join(dir, "many", fmt.Sprintf("%0*d", i%200+1, i)), nil, 0o644))
	}
	must(os.WriteFile(filepath.Join(dir, "large"), []byte(strings.Repeat("0123456789", 100_001)), 0o640))
	must(os.WriteFile(filepath.Join(dir, "block"), []byte(strings.Repeat("x", blockSize)), 0o600))
	must(os.WriteFile(filepath.Join(dir, "suid"), []byte("x"), 0o755))
	must(os.Chmod(filepath.Join(dir, "suid"), 0o755|fs.ModeSetuid))
	must(os.Link(filepath.Join(dir, "large"), filepath.Join(dir, "many", "hard")))
	must(os.Symlink("../large", filepath.Join(dir, "many", "soft")))
	must(os.Symlink(strings.Repeat("long/", 700), filepath.Join(dir, "farther")))
	must(os.Chown(filepath.Join(dir, "block"), 70000, 70001))
	must(os.MkdirAll(filepath.Join(dir, "a/b/c/d"), 0o711))
	must(os.Mkdir(filepath.Join(dir, "tmp"), 0o755))
	must(os.Chmod(filepath.Join(dir, "tmp"), 0o777|fs.ModeSticky))
	root, err := Scan(dir, Limits{Files: 1000, Bytes: 10 << 20}, nil)
	must(err)
	if diff := cmp.Diff(tree(t, dir), tree(t, mount(t, write(t, root)))); diff != "" {
		t.Error(diff)
	}
}

func TestScanLeavesOutWhatIsNoFileAndShiftsOwners(t *testing.T) {
	dir := t.TempDir()
	for name, id := range map[string]int{"root": 100_000, "user": 100_007, "host": 5} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(dir, name), id, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	n, err := Scan(dir, Limits{Files: 10, Shift: 100_000}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint32{}
	for _, c := range n.Children {
		got[c.Name] = c.UID
	}
	if diff := cmp.Diff(map[string]uint32{"root": 0, "user": 7, "host": nobody}, got); diff != "" {
		t.Error(diff)
	}
}

func TestScanIsBounded(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 100), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, l := range map[string]Limits{"files": {Files: 2, Bytes: 1000}, "bytes": {Files: 10, Bytes: 199}} {
		if _, err := Scan(dir, l, nil); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBadTreesAreRefused(t *testing.T) {
	for name, root := range map[string]*Node{
		"no directory": File("x", 0o644, nil), "slash": Dir("", File("a/b", 0o644, nil)), "twice": Dir("", File("a", 0o644, nil), File("a", 0o644, nil)),
		"dots": Dir("", Dir("..")), "long": Dir("", File(strings.Repeat("x", 256), 0o644, nil)),
	} {
		f, err := os.Create(filepath.Join(t.TempDir(), "image"))
		if err != nil {
			t.Fatal(err)
		}
		if err := Write(f, root); err == nil {
			t.Errorf("%s: no error", name)
		}
		f.Close()
	}
}
