package catalogue

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// origin is a server at bob that notes its requests.
type origin struct {
	mu    sync.Mutex
	asked map[string]int // paths, and clients' addresses
}

func (o *origin) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	host, _, _ := net.SplitHostPort(q.RemoteAddr)
	o.mu.Lock()
	o.asked[q.URL.Path]++
	o.asked[host]++
	o.mu.Unlock()
	w.Header().Set("Content-Length", fmt.Sprint(len(page(q.URL.Path))))
	if q.Method == http.MethodGet {
		_, _ = io.WriteString(w, page(q.URL.Path))
	}
}

func (o *origin) count(what string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked[what]
}

// page of a path: 200 KB.
func page(path string) string { return strings.Repeat(path+" ", 200_000/(len(path)+1)) }

// TestWebIsCachedInAChain: the policy of its README between two stations, by IPv4 and IPv6: a page that is asked for again comes whole, and not from the server;
// the server sees the clients' addresses; HTTPS, pings and a stream to another port pass. With nginx dead clients reach the server, and the function comes back.
func TestWebIsCachedInAChain(t *testing.T) {
	t.Parallel()
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			showLogs(t, r, "web")
			r.MustApply(ctx, t, r.DualEndpoints()+example(t, "cache"))
			o := &origin{asked: map[string]int{}}
			for addr, secure := range map[string]bool{":80": false, ":443": true} {
				var l net.Listener
				if err := netns.Do(r.Bob(), func() (err error) { l, err = net.Listen("tcp", addr); return err }); err != nil {
					t.Fatal(err)
				}
				s := httptest.NewUnstartedServer(o)
				s.Listener.Close()
				s.Listener = l
				if secure {
					s.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
					s.StartTLS()
				} else {
					s.Start()
				}
				t.Cleanup(s.Close)
			}
			get := func(url string) (string, error) {
				out, err := r.Command(ctx, r.Alice(), "curl", "-sSk", "--max-time", "5", "-i", url).Output()
				return string(out), err
			}
			for server, client := range map[string]string{"10.9.0.2": "10.9.0.1", "[2001:db8:9::2]": "2001:db8:9::1"} {
				path := "/page-" + client
				rig.Eventually(ctx, t, "the server answers "+client, func() (bool, string) { got, err := get("http://" + server + path); return err == nil, got })
				for range 3 {
					if got, err := get("http://" + server + path); err != nil || !strings.Contains(got, "X-Cache: HIT") || !strings.HasSuffix(got, page(path)) {
						t.Errorf("%s: %.300s (%d bytes), %v", server, got, len(got), err)
					}
				}
				if n := o.count(path); n != 1 {
					t.Errorf("%s: the server was asked %d times", server, n)
				}
				if o.count(client) != o.count(path) {
					t.Errorf("%s: the server was not asked by the client: %v", server, o.asked)
				}
				before := o.count("/secure")
				for range 2 {
					if got, err := get("https://" + server + "/secure"); err != nil || strings.Contains(got, "X-Cache") || !strings.HasSuffix(got, page("/secure")) {
						t.Errorf("HTTPS of %s: %.300s, %v", server, got, err)
					}
				}
				if n := o.count("/secure") - before; n != 2 {
					t.Errorf("HTTPS of %s: the server was asked %d times", server, n)
				}
				host := strings.Trim(server, "[]")
				if _, err := r.Ping(ctx, r.Alice(), host, 5, "0.05"); err != nil {
					t.Error(err)
				}
				if rate, err := stream(ctx, r, host); err != nil {
					t.Error(err)
				} else {
					t.Logf("%s: a stream to another port: %.2f Gbit/s", host, rate/1e9)
				}
			}
			before := started(ctx, t, r, "web")
			if out, err := r.Weir(ctx, "function", "exec", "web", "--", "sh", "-c", "kill -9 $(cat /run/cache/nginx.pid)"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			rig.Eventually(ctx, t, "the function is started again", func() (bool, string) {
				var f api.Function
				err := r.Get(ctx, &f, "function", "web")
				return err == nil && f.Status.Restarts > before.Status.Restarts && f.Status.State == api.FunctionStarted, fmt.Sprint(f.Status, err)
			})
			rig.Eventually(ctx, t, "it caches again", func() (bool, string) {
				got, err := get("http://10.9.0.2/after")
				return err == nil && strings.Contains(got, "X-Cache: HIT"), fmt.Sprintf("%.300s %v", got, err)
			})
		})
	}
}
