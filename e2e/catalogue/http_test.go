package catalogue

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// TestHTTPIsFilteredInAChain: the policy of its README between two stations, with curl and a real server, by IPv4 and IPv6: what is allowed comes whole, what is
// forbidden does not come, however it is cut or coded; other traffic is untouched; a changed configuration and a restart let nothing by.
func TestHTTPIsFilteredInAChain(t *testing.T) {
	t.Parallel()
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			document := r.DualEndpoints() + example(t, "http-filter")
			r.MustApply(ctx, t, document)
			site(t, r)
			for _, addr := range []string{"10.9.0.2", "[2001:db8:9::2]"} {
				w := web{ctx, t, r, addr}
				rig.Eventually(ctx, t, "the server answers by "+addr, func() (bool, string) { got := w.curl("good.example", "/"); return got == "200 fine", got })
				w.rules()
				w.cutAndCoded()
				w.others()
			}
			settled(ctx, t, r, sw)
			s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 7000, 200) // datagrams through the function
			if err != nil {
				t.Fatal(err)
			}
			w := web{ctx, t, r, "10.9.0.2"}
			w.kept("weir function restart", func() {
				if out, err := r.Weir(ctx, "function", "restart", "filter"); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			})
			w.kept("weir apply", func() { r.MustApply(ctx, t, strings.Replace(document, "/admin*", "/other*", 1)) })
			rig.Eventually(ctx, t, "the changed rules are in force", func() (bool, string) {
				got := w.curl("good.example", "/admin") + "|" + w.curl("good.example", "/other")
				return strings.HasPrefix(got, "200 fine|403"), got
			})
			if o, err := s.Stop(); err != nil || o.Received == 0 {
				t.Errorf("datagrams beside: %+v, %v", o, err)
			}
			rig.Eventually(ctx, t, "the operator is told", func() (bool, string) {
				out, err := r.Weir(ctx, "events")
				return err == nil && strings.Contains(out, "Blocked") && strings.Contains(out, `rule "games"`) && strings.Contains(out, "games.example"), out
			})
			var f api.Function
			if err := r.Get(ctx, &f, "function", "filter"); err != nil || f.Status.State != api.FunctionStarted {
				t.Errorf("%+v, %v", f.Status, err)
			}
		})
	}
}

// settled: where the switch can, what need not be looked at has passed the function by.
func settled(ctx context.Context, t *testing.T, r *rig.Rig, sw string) {
	t.Helper()
	var all api.Counters
	if err := r.Get(ctx, &all, "ports"); err != nil {
		t.Fatal(err)
	}
	for _, p := range all.Ports {
		if p.Name != "function/filter/in" {
			continue
		}
		t.Logf("%d packets settled, %d to the function", p.Settled.Packets, p.Tx.Packets)
		if (p.Settled.Packets > 0) != (sw == "ebpf") {
			t.Errorf("%s: %+v", sw, p)
		}
		return
	}
	t.Errorf("no port of the function: %+v", all)
}

// site serves HTTP/1, HTTP/2 without TLS, and TLS at bob.
func site(t *testing.T, r *rig.Rig) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		_, _ = io.WriteString(w, "fine")
	})
	mux.HandleFunc("/long", func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("0123456789", 400_000))
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, q *http.Request) { // in chunks
		for _, part := range []string{"it is top", "sec", "ret"} {
			_, _ = io.WriteString(w, part)
			w.(http.Flusher).Flush()
		}
	})
	mux.HandleFunc("/gzip", func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, strings.Repeat("filling ", 10_000)+"topsecret")
		_ = z.Close()
	})
	serve := func(addr string, secure bool) {
		var l net.Listener
		if err := netns.Do(r.Bob(), func() (err error) { l, err = net.Listen("tcp", addr); return err }); err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(mux)
		s.Listener.Close()
		s.Listener = l
		s.Config.Protocols = &http.Protocols{}
		s.Config.Protocols.SetHTTP1(true)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		if secure {
			s.StartTLS()
		} else {
			s.Start()
		}
		t.Cleanup(s.CloseClientConnections)
		t.Cleanup(func() { l.Close() })
	}
	serve(":80", false)
	serve(":443", true)
	serve(":9999", false) // a port that the filter does not look at
}

// web is what a client at alice sees at an address.
type web struct {
	ctx  context.Context
	t    *testing.T
	r    *rig.Rig
	addr string
}

// curl gets a page of a host, as "status content", or curl's error.
func (w web) curl(host, path string, more ...string) string {
	w.t.Helper()
	scheme := "http"
	if strings.HasPrefix(path, "https:") {
		scheme, path = "https", strings.TrimPrefix(path, "https:")
	}
	argv := append([]string{"curl", "-sSk", "--path-as-is", "--max-time", "30", "-w", "|%{http_code}", "--connect-to", "::" + w.addr + ":", scheme + "://" + host + path}, more...)
	out, err := w.r.Command(w.ctx, w.r.Alice(), argv...).Output()
	text := string(out)
	i := strings.LastIndex(text, "|")
	if err != nil || i < 0 {
		return fmt.Sprintf("failed: %v", err)
	}
	return text[i+1:] + " " + text[:i]
}

// expect compares the begin of what comes; "failed" is a reset, never a timeout.
func (w web) expect(want, host, path string, more ...string) {
	w.t.Helper()
	got := w.curl(host, path, more...)
	if !strings.HasPrefix(got, want) || strings.Contains(got, "exit status 28") {
		w.t.Errorf("%s: %s%s %q: %.200q, want %q", w.addr, host, path, more, got, want)
	}
}

// rules of the README.
func (w web) rules() {
	w.t.Helper()
	w.expect("200 fine", "good.example", "/")
	w.expect("200 0123456789", "good.example", "/long")
	w.expect("403 No games here.", "games.example", "/")
	w.expect("403 No games here.", "www.GAMES.example.", "/x?y")
	w.expect("403 ", "good.example", "/a/../%61dmin/x")
	w.expect("200 fine", "good.example", "/admin", "-X", "OPTIONS")
	w.expect("failed", "good.example", "/", "-d", "this is TopSecret")
	w.expect("failed", "good.example", "/?q=top%73ecret")
	w.expect("200 fine", "good.example", "https:/")
	w.expect("failed", "games.example", "https:/")
	w.expect("200 fine", "good.example", "/", "--http2-prior-knowledge")
	w.expect("403 No games here.", "games.example", "/", "--http2-prior-knowledge")
	w.expect("failed", "good.example", "/", "--http2-prior-knowledge", "-d", "topsecret")
	w.expect("200 fine", "games.example:9999", "/")
}

// cutAndCoded content, and requests as no browser sends them.
func (w web) cutAndCoded() {
	w.t.Helper()
	w.expect("failed", "good.example", "/cut")
	w.expect("failed", "good.example", "/gzip")
	w.expect("failed", "good.example", "/gzip", "--http2-prior-knowledge")
	const good, games = "GET /%d HTTP/1.1\r\nHost: good.example\r\n\r\n", "GET / HTTP/1.1\r\nHost: games.example\r\n\r\n"
	if got := w.talk(2, fmt.Sprintf(good, 1), fmt.Sprintf(good, 2)); strings.Count(got, "fine") != 2 {
		w.t.Errorf("%s: pipelined: %q", w.addr, got)
	}
	if got := w.talk(1, games[:20], games[20:28], games[28:]); !strings.HasPrefix(got, "HTTP/1.1 403") {
		w.t.Errorf("%s: in three segments: %q", w.addr, got)
	}
	if got := w.talk(2, fmt.Sprintf(good, 1)+games); strings.Contains(got, "200 OK") && strings.Count(got, "fine") > 1 {
		w.t.Errorf("%s: pipelined behind another: %q", w.addr, got)
	}
	if got := w.talk(1, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\ntop", "sec", "ret"); got != "" {
		w.t.Errorf("%s: a word in three segments: %q", w.addr, got)
	}
}

// talk sends pieces, each as a segment, and tells what comes back: so many answers, or all until the connection ends.
func (w web) talk(answers int, pieces ...string) string {
	w.t.Helper()
	var c net.Conn
	if err := netns.Do(w.r.Alice(), func() (err error) { c, err = net.Dial("tcp", w.addr+":80"); return err }); err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	for _, p := range pieces { // without Nagle's algorithm
		if _, err := io.WriteString(c, p); err != nil {
			break
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	got := make([]byte, 0, 64<<10)
	for strings.Count(string(got), "fine") < answers && len(got) < cap(got) {
		n, err := c.Read(got[len(got):cap(got)])
		got = got[:len(got)+n]
		if errors.Is(err, os.ErrDeadlineExceeded) {
			w.t.Errorf("%s: nothing more comes, and no end: %q", w.addr, got)
		}
		if err != nil {
			break
		}
	}
	return string(got)
}

// others pass: pings, datagrams, streams to other ports.
func (w web) others() {
	w.t.Helper()
	host := strings.Trim(w.addr, "[]")
	if _, err := w.r.Ping(w.ctx, w.r.Alice(), host, 5, "0.05"); err != nil {
		w.t.Errorf("%s: %v", w.addr, err)
	}
	if rate, err := stream(w.ctx, w.r, host); err != nil {
		w.t.Errorf("%s: %v", w.addr, err)
	} else {
		w.t.Logf("%s: a stream to another port: %.2f Gbit/s", w.addr, rate/1e9)
	}
}

// kept: while something is done, no forbidden page comes, a connection from before does not go on unread, and soon all is as before.
func (w web) kept(what string, do func()) {
	w.t.Helper()
	var c net.Conn
	if err := netns.Do(w.r.Alice(), func() (err error) { c, err = net.Dial("tcp", w.addr+":80"); return err }); err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	lines := bufio.NewReader(c)
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n")
	if _, err := lines.ReadString('e'); err != nil { // of "fine", or before
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(w.ctx)
	var busy sync.WaitGroup
	busy.Go(func() {
		for ctx.Err() == nil {
			if got := w.curl("games.example", "/", "--max-time", "1"); strings.Contains(got, "fine") {
				w.t.Errorf("during %s: %s", what, got)
			}
		}
	})
	do()
	stop()
	busy.Wait()
	rig.Eventually(w.ctx, w.t, "all is well after "+what, func() (bool, string) {
		got := w.curl("good.example", "/", "--max-time", "1")
		return got == "200 fine", got
	})
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: games.example\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if rest, err := io.ReadAll(lines); strings.Count(string(rest), "fine") > 1 || errors.Is(err, os.ErrDeadlineExceeded) { // reset, or the page of the instance that knows it
		w.t.Errorf("%s: a connection from before got %q, %v", what, rest, err)
	}
	w.expect("403 No games here.", "games.example", "/")
}
