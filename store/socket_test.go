package store_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/store"
)

// Whoever reaches a listener of etcd can write everything: there is one, and only its owner can reach it. A raft message needs no right at all, so there is
// no listener for peers.
func TestTheStoreListensOnOnePrivateSocket(t *testing.T) {
	dir := shortDir(t)
	before := listening(t)
	open(t, options(dir))
	var fresh []string
	for s := range listening(t) {
		if !before[s] {
			fresh = append(fresh, s)
		}
	}
	want := filepath.Join(dir, "run", "etcd", "client")
	if len(fresh) != 1 || fresh[0] != "unix "+want {
		t.Errorf("the store listens at %q, want only %q", fresh, want)
	}
	info, err := os.Stat(filepath.Dir(want))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its directory: %v, %v; want mode 0700", info, err)
	}
}

// A state directory remembers the peer address that it was made with. Nothing listens there, and it may be another at the next start.
func TestAStoreWhoseSocketsMovedOpens(t *testing.T) {
	dir := shortDir(t)
	s := open(t, options(dir))
	if _, err := s.Txn(t.Context(), nil, []store.Op{{Key: "chain/a", Value: []byte("{}")}}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	moved := options(dir)
	moved.SocketDir = filepath.Join(dir, "other")
	s = open(t, moved)
	if _, err := s.Get(t.Context(), "chain/a"); err != nil {
		t.Error(err)
	}
}

// listening are the sockets of this process that somebody can connect to.
func listening(t *testing.T) map[string]bool {
	t.Helper()
	own := map[string]bool{}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if link, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil {
			if inode, ok := strings.CutPrefix(link, "socket:["); ok {
				own[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	out := map[string]bool{}
	for file, inode := range map[string]int{"unix": 6, "tcp": 9, "tcp6": 9, "udp": 9, "udp6": 9, "raw": 9, "packet": 8} {
		b, err := os.ReadFile("/proc/self/net/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(b), "\n")[1:] {
			f := strings.Fields(line)
			if len(f) <= inode || !own[f[inode]] {
				continue
			}
			switch {
			case file == "unix" && f[3] == "00010000": // accepts connections
				out["unix "+strings.Join(f[7:], " ")] = true
			case file == "tcp" || file == "tcp6":
				if f[3] == "0A" {
					out[file+" "+f[1]] = true
				}
			case file != "unix":
				out[file+" "+f[1]] = true
			}
		}
	}
	return out
}
