package socket

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// Whatever lies where a socket belongs, the socket is made, for all to use, and nothing that is not the agent's gets its mode.
func TestSocketIsMadeOverALink(t *testing.T) {
	dir := t.TempDir()
	victim, fresh, path := filepath.Join(dir, "victim"), filepath.Join(dir, "fresh"), filepath.Join(dir, "socket")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{fresh, path} { // the first as a killed agent may have left it, the second as a function may
		if err := os.Symlink(victim, p); err != nil {
			t.Fatal(err)
		}
	}
	l, err := Listen(fresh, path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o666 {
		t.Errorf("%v, %v; want a socket for all", info, err)
	}
	if info, err := os.Stat(victim); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want it as it was", info, err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := os.Lstat(fresh); err == nil {
		t.Error("the socket is there twice")
	}
}
