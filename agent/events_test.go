package agent

import (
	"context"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
)

// Whatever lies where the socket for events belongs, the socket is made, for all to use, and nothing that is not the agent's gets its mode.
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
	l, err := listenFor(fresh, path)
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

// A function that opens connections without end takes few of the agent's descriptors, and is served again when those have been idle.
func TestConnectionsForEventsAreBounded(t *testing.T) {
	dir := t.TempDir()
	f := &function{a: &Agent{Options: Options{Instance: instance.Instance{Run: dir}, Log: slog.New(slog.DiscardHandler)}}, name: "fw"}
	if err := os.MkdirAll(f.path("run"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.serveEvents()
	defer f.stopEvents()
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := descriptors()
	const many = 200
	var conns []net.Conn
	for range many {
		c, err := net.Dial("unix", f.path("run", eventSocket))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(500 * time.Millisecond); time.Now().Before(deadline); <-tick.C {
		if took := descriptors() - before - many; took > eventConns+1 {
			t.Fatalf("%d connections took %d descriptors of the agent", many, took)
		}
	}
	for _, c := range conns {
		c.Close()
	}
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", f.path("run", eventSocket))
		}}}
	r, err := client.Get("http://weir/")
	if err != nil {
		t.Fatalf("not served again: %v", err)
	}
	r.Body.Close()
}

// All that a container has of the host's files it can only read.
func TestFunctionMountsAreReadOnly(t *testing.T) {
	f := &function{a: &Agent{unshared: func() error { return nil }}, name: "fw"}
	s, err := f.spec(api.Function{}, image.Image{}, "/")
	if err != nil || len(s.Mounts) == 0 {
		t.Fatal(s.Mounts, err)
	}
	for _, m := range s.Mounts {
		if !m.ReadOnly {
			t.Errorf("%s can be written to at %s", m.Source, m.Target)
		}
	}
}
