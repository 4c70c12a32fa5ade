package manager_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/remote"
	"weir.dev/weir/pki"
)

func (*node) Admit(_ context.Context, _, changed api.Document) []api.Problem {
	if _, ok := changed.Functions["bad"]; ok {
		return []api.Problem{{Path: "functions.bad.image", Message: "is not there"}}
	}
	return nil
}

// serveNode opens a host's connection and answers on it until the test ends.
func serveNode(t testing.TB, w *world, id *pki.Identity, host string) (end func()) {
	t.Helper()
	before := w.m.Ask.Remote(host)
	conn := must((&tls.Dialer{Config: id.Client(time.Now, "http/1.1")}).DialContext(ctx(t), "tcp", w.addr))(t)
	fmt.Fprintf(conn, "GET /v1/hosts/%s/connect HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", host, api.NodeProtocol)
	r := bufio.NewReader(conn)
	resp := must(http.ReadResponse(r, nil))(t)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("connect: %s", resp.Status)
	}
	c, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = remote.Serve(c, behind{conn, r}, &node{}, slog.New(slog.DiscardHandler))
	}()
	end = func() { cancel(); <-done }
	t.Cleanup(end)
	for now := w.m.Ask.Remote(host); now == nil || now == before; now = w.m.Ask.Remote(host) {
		select {
		case <-ctx(t).Done():
			t.Fatal("the manager does not take the connection")
		case <-time.After(time.Millisecond):
		}
	}
	return end
}

type behind struct {
	net.Conn
	r *bufio.Reader
}

func (b behind) Read(p []byte) (int, error) { return b.r.Read(p) }

func TestHostThatDisconnectsCannotBeAsked(t *testing.T) {
	w := joinWorld(t, manager.Options{})
	_, id := w.member(t, "h1")
	if err := w.Report(ctx(t), api.StatusReport{Host: "h1", HostState: &api.HostStatus{State: "ready"}}); err != nil {
		t.Fatal(err)
	}
	end := serveNode(t, w, id, "h1")
	if got := w.m.Ask.Remotes(); len(got) != 1 || got[0] != "h1" {
		t.Errorf("connected: %v", got)
	}
	if p, err := w.m.Ask.Remote("h1").Admit(ctx(t), api.Document{}, api.Document{Functions: map[string]api.FunctionSpec{"bad": {}}}); err != nil || len(p) != 1 || p[0].Path != "functions.bad.image" {
		t.Errorf("admission: %v", p)
	}
	end()
	for {
		_, err := w.Counters(ctx(t), "h1")
		if err != nil {
			refused(t, err, 503, `host "h1"`)
		}
		if len(w.m.Ask.Remotes()) == 0 {
			break
		}
		select {
		case <-ctx(t).Done():
			t.Fatal("the host is still connected")
		case <-time.After(time.Millisecond):
		}
	}
	second := serveNode(t, w, id, "h1") // the newest connection is the one that counts
	defer second()
	third := serveNode(t, w, id, "h1")
	defer third()
	if _, err := w.Counters(ctx(t), "h1"); err != nil {
		t.Error(err)
	}
}

// BenchmarkReverse is how long a question to a host takes: counters, over TLS on loopback.
func BenchmarkReverse(b *testing.B) {
	w := joinWorld(b, manager.Options{})
	_, id := w.member(b, "h1")
	serveNode(b, w, id, "h1")
	c := w.m.Ask.Remote("h1")
	b.ResetTimer()
	for b.Loop() {
		if _, err := c.Counters(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
