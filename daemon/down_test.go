package daemon

import (
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
