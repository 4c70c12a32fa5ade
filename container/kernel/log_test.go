package kernel

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The end of a log is found soon also in a file that a container has made longer than anybody can read.
func TestTailOfAnEndlessLog(t *testing.T) {
	for name, x := range map[string]struct{ text, want string }{
		"nothing after the hole": {"", strings.Repeat("\x00", 8192)},
		"a line after the hole":  {"\nlast words\n", "last words\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := os.Create(filepath.Join(t.TempDir(), "log"))
			must(t, err)
			must(t, f.Truncate(1<<40))
			_, err = f.WriteAt([]byte(x.text), 1<<40)
			must(t, err)
			l := &logReader{ctx: t.Context(), files: []*os.File{f}}
			defer l.Close()
			must(t, l.seekTail(1, 8192))
			text, err := io.ReadAll(l)
			must(t, err)
			if string(text) != x.want {
				t.Errorf("%d bytes, %q", len(text), text[:min(len(text), 20)])
			}
		})
	}
}
