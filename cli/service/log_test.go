package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A log that grows is turned over in time: what was written last is there whole, in at most two files, and so is what goes to the process's
// descriptors without asking.
func TestOwnLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), logName)
	const limit = 4000
	out, err := appendTo(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	also, err := appendTo(path)
	if err != nil {
		t.Fatal(err)
	}
	defer also.Close()
	l := &ownLog{path: path, limit: limit, out: out, also: []int{int(also.Fd())}}
	read := func(path string) string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var all strings.Builder
	for n := range 1000 {
		line := fmt.Sprintf("line %d\n", n)
		all.WriteString(line)
		if _, err := l.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() > limit {
			t.Fatalf("after line %d: %v, %v", n, info.Size(), err)
		}
	}
	old, now := read(path+".1"), read(path)
	if len(old) > limit || len(old)+len(now) < limit || !strings.HasSuffix(all.String(), old+now) {
		t.Errorf("%d and %d bytes are left, and they are not the last ones in order", len(old), len(now))
	}
	if _, err := also.WriteString("panic\n"); err != nil {
		t.Fatal(err)
	}
	if got := read(path); got != now+"panic\n" {
		t.Errorf("a further descriptor writes elsewhere: %q", got)
	}
}

// Where a log cannot be turned over it starts anew: a daemon does not fill a disk with it.
func TestOwnLogThatCannotBeTurnedOverStartsAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), logName)
	if err := os.MkdirAll(filepath.Join(path+".1", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := appendTo(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	l := &ownLog{path: path, limit: 1000, out: out}
	for n := range 200 {
		if _, err := fmt.Fprintf(l, "line %d\n", n); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil || len(b) > 1500 || !strings.HasPrefix(string(b), "weir: the log until now is lost: turn it over: rename ") || !strings.HasSuffix(string(b), "line 199\n") {
		t.Errorf("%v: %d bytes: %s", err, len(b), b)
	}
}

func TestTailShowsWhatIsNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), logName)
	if err := os.WriteFile(path, []byte("former\nnew\nlast\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for begin, want := range map[int64]string{
		7:    "  new\n  last",
		0:    "  former\n  new\n  last",
		1000: "  former\n  new\n  last", // turned over since, so all of it is new
	} {
		if got := tail(path, begin); got != want {
			t.Errorf("after %d bytes: %q, want %q", begin, got, want)
		}
	}
}

func TestTailShowsOnlyWhatIsNew(t *testing.T) {
	path := t.TempDir() + "/log"
	old := "an old line\n"
	text := old
	for i := range 30 {
		text += fmt.Sprintf("line %d\x1b[31m\n", i)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := tail(path, int64(len(old)))
	want := ""
	for i := 10; i < 30; i++ {
		want += fmt.Sprintf("  line %d?[31m\n", i)
	}
	if got+"\n" != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := tail(path, int64(len(text))); got != "  " {
		t.Errorf("nothing new: got %q", got)
	}
}
