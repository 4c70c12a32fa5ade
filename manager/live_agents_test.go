package manager_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"testing"
	"time"

	"weir.dev/weir/manager"
	"weir.dev/weir/pki"
)

// Agents' watches are bounded for each, so that there can be any number of hosts, and one of them takes nothing from others, nor from people.
func TestAgentsWatchesAreBoundedEach(t *testing.T) {
	const bound, hosts = 100, 11 // together more than all others may have
	w := joinWorld(t, manager.Options{})
	watch := func(c *http.Client, url string) int {
		t.Helper()
		r := must(http.NewRequestWithContext(ctx(t), http.MethodGet, url+"/v1/functions?watch", http.NoBody))(t)
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp.StatusCode
	}
	for i := range hosts {
		_, id := w.member(t, "h"+string(rune('a'+i)))
		c := agentTransport(t, w, id)
		for n := range bound {
			if got := watch(c, "https://"+w.addr); got != http.StatusOK {
				t.Fatalf("watch %d of host %d: status %d", n, i, got)
			}
		}
		if got := watch(c, "https://"+w.addr); got != http.StatusServiceUnavailable {
			t.Errorf("watch %d of host %d: status %d, want 503", bound, i, got)
		}
	}
	people := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
	}}}
	t.Cleanup(people.CloseIdleConnections)
	if got := watch(people, "http://weir"); got != http.StatusOK {
		t.Errorf("a watch over the socket: status %d", got)
	}
}

// agentTransport sends an agent's requests over HTTP/2.
func agentTransport(t *testing.T, w *world, id *pki.Identity) *http.Client {
	t.Helper()
	tr := &http.Transport{ForceAttemptHTTP2: true, DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&tls.Dialer{Config: id.Client(time.Now, "h2")}).DialContext(ctx, "tcp", w.addr)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}
