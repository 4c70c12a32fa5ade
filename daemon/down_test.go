package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"weir.dev/weir/instance"
)

// A state directory may hold other people's files; Weir's own go, those too that a crash left half written.
func TestStateIsRemovedAndNothingElse(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	write := func(names ...string) {
		t.Helper()
		for _, name := range names {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	ours := []string{"etcd/member/x", "images/layers/x", "logs/fw.log", "token", "token.new", "agent.pem", "agent.pem.new", "inforce.json.new", "weir.log", "lock"}
	write(append(ours, "notes.txt")...)
	i, err := instance.New("x", root)
	if err != nil {
		t.Fatal(err)
	}
	if err := removeState(i); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(root)
	if err != nil || len(left) != 1 || left[0].Name() != "notes.txt" {
		t.Errorf("left: %v, %v: want notes.txt", left, err)
	}
	if err := os.Remove(filepath.Join(root, "notes.txt")); err != nil {
		t.Fatal(err)
	}
	write(ours...)
	if err := removeState(i); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}

// A directory given by mistake, a home for example, is refused before anything in it is touched.
func TestOtherPeoplesDirectoryIsRefused(t *testing.T) {
	for what, c := range map[string]struct {
		there   string
		refused bool
	}{
		"pictures":               {"images/holiday.jpg", true},
		"logs of others":         {"logs/app.log", true},
		"containers of others":   {"containers/x", true},
		"nothing in the way":     {"notes.txt", false},
		"a start that failed":    {"weir.log", false},
		"an image layout":        {"images/layout/index.json", false},
		"a state directory":      {"lock", false},
		"pictures in a layout's": {"images/layouts", true},
		"a token chosen before":  {"token", false},
	} {
		root := t.TempDir()
		path := filepath.Join(root, c.there)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		i := instance.Instance{Name: "x", Root: root, Run: filepath.Join(t.TempDir(), "run", "x")}
		got, err := take(i)
		if refused := errors.Is(err, ErrForeign); refused != c.refused || err != nil && !refused {
			t.Errorf("%s: %v", what, err)
		}
		if got != nil {
			got.undo()
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(i.Run); !os.IsNotExist(err) {
			t.Errorf("%s: %s is left: %v", what, i.Run, err)
		}
	}
}
