package socket

import (
	"context"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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

// However fast a function asks, only so many of its requests and connections are taken in a second.
func TestRequestsArePaced(t *testing.T) {
	dir := t.TempDir()
	var served atomic.Int64
	s, err := Serve(filepath.Join(dir, "fresh"), filepath.Join(dir, "socket"), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, fresh := range map[string]bool{"over one connection": false, "over connections of their own": true} {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: fresh, DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", s.socket) }}}
		served.Store(0)
		begin := time.Now()
		var all sync.WaitGroup
		for range 2 * Conns {
			all.Go(func() {
				for time.Since(begin) < 3*time.Second {
					if r, err := c.Get("http://function/"); err == nil {
						r.Body.Close()
					}
				}
			})
		}
		all.Wait()
		most := Burst + int64(time.Since(begin).Seconds()*PerSecond) + 2*Conns
		if n := served.Load(); n > most || n < Burst {
			t.Errorf("%s: %d requests were served in %s: want %d to %d", name, n, time.Since(begin).Round(time.Millisecond), Burst, most)
		}
		c.CloseIdleConnections()
	}
}
