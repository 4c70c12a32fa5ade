package instance

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// What a crash left of an earlier write is in nobody's way, whatever its mode.
func TestFilesAreWrittenOverWhatACrashLeft(t *testing.T) {
	secret, shared, volatile := filepath.Join(t.TempDir(), "dir", "secret"), filepath.Join(t.TempDir(), "shared"), filepath.Join(t.TempDir(), "volatile")
	t.Run("secret", func(t *testing.T) { writtenOver(t, secret, WriteFile, 0o600) })
	t.Run("shared", func(t *testing.T) { writtenOver(t, shared, WriteShared, 0o644) })
	t.Run("volatile", func(t *testing.T) {
		writtenOver(t, volatile, func(path string, text []byte) error { return Replace(path, text, 0o400) }, 0o400)
	})
}

func writtenOver(t *testing.T, path string, write func(string, []byte) error, mode fs.FileMode) {
	for _, text := range []string{"one", "two"} {
		if err := write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("got %q, %v, want %q", b, err, text)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
			t.Errorf("left: %v, %v", left, err)
		}
		if err := os.WriteFile(path+FileNew, []byte("half a sec"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// What cannot be written leaves the former file, and nothing beside it.
func TestFileThatCannotBeReplacedStays(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.Mkdir(path, 0o700); err != nil { // a rename to it fails
		t.Fatal(err)
	}
	if WriteFile(path, []byte("text")) == nil || Replace(path, []byte("text"), 0o600) == nil {
		t.Error("a directory was replaced")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || !left[0].IsDir() {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A directory is made though others remove its empty parent all the time.
func TestMakeDirBesideRemovals(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "weir")
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			_ = os.Remove(parent)
		}
	})
	defer wg.Wait()
	defer stop.Store(true)
	for range 2000 {
		dir := filepath.Join(parent, "x")
		if err := MakeDir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
}
