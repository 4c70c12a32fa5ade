package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// A program is asked once, and again when its file is another one or could not be asked.
func TestPerFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a, b := write("a", "1"), write("b", "1")
	var p PerFile[string]
	asked := 0
	var failure error
	of := func(path string) string {
		v, err := p.Of(path, func() (string, error) {
			asked++
			raw, err := os.ReadFile(path)
			return string(raw), errors.Join(err, failure)
		})
		return fmt.Sprintf("%s %v %d", v, err, asked)
	}
	expect := func(path, want string) {
		t.Helper()
		if got := of(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	failure = errors.New("fails")
	expect(a, "1 fails 1")
	failure = nil
	expect(a, "1 <nil> 2")
	expect(a, "1 <nil> 2")
	expect(b, "1 <nil> 3")
	if err := os.Rename(write("new", "2"), a); err != nil {
		t.Fatal(err)
	}
	expect(a, "2 <nil> 4")
	write("a", "3 longer")
	expect(a, "3 longer <nil> 5")
	expect(b, "1 <nil> 5")
	for range 2 {
		if _, err := p.Of(filepath.Join(dir, "none"), func() (string, error) { asked++; return "", os.ErrNotExist }); !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
	if asked != 7 {
		t.Errorf("asked %d times, want 7", asked)
	}
	for i := range 2 * mostFiles {
		of(write(fmt.Sprint("f", i), "x"))
	}
	if len(p.known) > mostFiles {
		t.Errorf("%d files are known, want at most %d", len(p.known), mostFiles)
	}
	// Several at once ask once.
	c := write("c", "1")
	var wg sync.WaitGroup
	before := asked
	for range 8 {
		wg.Go(func() { of(c) })
	}
	wg.Wait()
	if asked != before+1 {
		t.Errorf("asked %d times, want once", asked-before)
	}
}
