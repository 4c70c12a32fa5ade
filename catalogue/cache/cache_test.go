package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The function as its image has it. The image is made once for all of these.
func TestCache(t *testing.T) {
	root := rig.Mounted(t)
	t.Run("web", func(t *testing.T) { testWeb(t, root) })
	t.Run("what is not kept", func(t *testing.T) { testNotKept(t, root) })
	t.Run("what is one person's", func(t *testing.T) { testPersonal(t, root) })
	t.Run("others", func(t *testing.T) { testOthers(t, root) })
	t.Run("from before", func(t *testing.T) { testFromBefore(t, root) })
	t.Run("lasts", func(t *testing.T) { testLasts(t, root) })
	t.Run("no shortcut", func(t *testing.T) { testNoShortcut(t, root) })
	t.Run("inner addresses", func(t *testing.T) { testInnerAddresses(t, root) })
	t.Run("each once", func(t *testing.T) { testEachOnce(t, root) })
	t.Run("full", func(t *testing.T) { testFull(t, root) })
	t.Run("hostile", func(t *testing.T) { testHostile(t, root) })
	t.Run("nginx dies", func(t *testing.T) { testDies(t, root) })
	t.Run("bad configuration", func(t *testing.T) { testBadConfig(t, root) })
}

const (
	client4, client6 = "10.77.0.1", "fd77::1"
	server4, server6 = "10.77.0.2", "fd77::2"
)

// start runs the function between two stations with addresses of IPv4 and IPv6, and waits until nginx answers.
func start(t testing.TB, root, config string) (*rig.Rig, *rig.Process) {
	t.Helper()
	r := rig.New(t, false)
	for s, addr := range map[*rig.Station]string{r.Client: client6, r.Server: server6} {
		r.Do(s.Netns, func() error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/"+s.Link.Name+"/disable_ipv6", []byte("0"), 0)
		})
		rig.Command(t, s, "ip", "addr", "add", addr+"/64", "dev", s.Link.Name, "nodad")
	}
	return r, launch(t, r, root, config)
}

func launch(t testing.TB, r *rig.Rig, root, config string) *rig.Process {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644))
	rig.WriteProbe(t, dir)
	p := r.StartImage(root, dir, "/usr/bin/cache")
	p.Await("cache in force")
	nginx := children(t, p.PID()) // in a container they end with its first process
	t.Cleanup(func() {
		for _, pid := range nginx { // the master's group, in which are those that it has started since
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
	})
	return p
}

// site is a server that notes what it is asked, and by whom. /keep... may be kept for a minute.
type site struct {
	mu    sync.Mutex
	asked map[string]int
	from  map[string]bool
	next  chan struct{} // /slow waits for it
}

const bigLength = 3 << 20

func (s *site) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	host, _, _ := net.SplitHostPort(q.RemoteAddr)
	s.mu.Lock()
	s.asked[q.Method+" "+q.URL.RequestURI()]++
	s.from[host] = true
	s.mu.Unlock()
	text := fmt.Sprintf("%s|%s|%s", q.Host, q.URL.RequestURI(), body)
	switch {
	case strings.HasPrefix(q.URL.Path, "/keep"):
		w.Header().Set("Cache-Control", "max-age=60")
	case q.URL.Path == "/revalidate":
		w.Header().Set("Cache-Control", "must-revalidate, no-transform")
	case q.URL.Path == "/private":
		w.Header().Set("Cache-Control", "private, max-age=60")
	case q.URL.Path == "/cookie":
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Set-Cookie", "a=b")
	case q.URL.Path == "/internal": // nginx would make a request of its own of this
		w.Header().Set("X-Accel-Redirect", "/keep")
	}
	switch q.URL.Path {
	case "/keep/slow":
		<-s.next
	case "/keep/big":
		text = strings.Repeat("0123456789abcdef", bigLength/16)
	case "/keep/chunks":
		for _, part := range []string{"one ", "two ", "three"} {
			_, _ = io.WriteString(w, part)
			w.(http.Flusher).Flush()
		}
		return
	case "/switch": // to another protocol
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.WriteHeader(http.StatusSwitchingProtocols)
		c, b, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = io.Copy(c, b)
			c.Close()
		}
		return
	}
	http.ServeContent(w, q, "", time.Time{}, strings.NewReader(text))
}

func (s *site) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[what]
}

// serve a site at a port of the server, by IPv4 and IPv6.
func serveSite(t testing.TB, r *rig.Rig, port string) *site {
	t.Helper()
	s := &site{asked: map[string]int{}, from: map[string]bool{}, next: make(chan struct{})}
	var l net.Listener
	r.Do(r.Server.Netns, func() (err error) { l, err = net.Listen("tcp", ":"+port); return err })
	server := &http.Server{Handler: s, ReadHeaderTimeout: rig.Patience}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return s
}

// curl prints the head and the body of an answer.
func curl(t testing.TB, r *rig.Rig, args ...string) string {
	t.Helper()
	return rig.Command(t, r.Client, append([]string{"curl", "-sS", "--max-time", "8", "--path-as-is", "-D", "-"}, args...)...)
}

// An answer that may be kept comes from the server once, by IPv4 and IPv6. Both ends see each other's addresses.
func testWeb(t *testing.T, root string) {
	r, p := start(t, root, `{"ports": [8080, 80]}`)
	s := map[string]*site{"80": serveSite(t, r, "80"), "8080": serveSite(t, r, "8080")}
	for server, client := range map[string]string{server4: client4, "[" + server6 + "]": client6} {
		for port, site := range s {
			before := site.count("GET /keep?a=%20b")
			for i, want := range []string{"MISS", "HIT", "HIT"} {
				got := curl(t, r, "http://"+server+":"+port+"/keep?a=%20b")
				if !strings.HasPrefix(got, "HTTP/1.1 200") || !strings.Contains(got, "X-Cache: "+want) || !strings.HasSuffix(got, "|/keep?a=%20b|") {
					t.Errorf("%s, request %d: %s", server, i, got)
				}
			}
			if n := site.count("GET /keep?a=%20b") - before; n != 1 {
				t.Errorf("%s: the server was asked %d times", server, n)
			}
			if !site.from[client] {
				t.Errorf("%s: not asked by %s: %v", server, client, site.from)
			}
		}
	}
	site := s["80"]
	if got := curl(t, r, "--http2-prior-knowledge", "http://"+server4+"/keep?a=%20b"); !strings.HasPrefix(got, "HTTP/2 200") || !strings.Contains(got, "x-cache: HIT") {
		t.Errorf("by HTTP/2: %s", got)
	}
	// Many ask for one thing at once: the server is asked once.
	var asking sync.WaitGroup
	for range 5 {
		asking.Go(func() { curl(t, r, "http://"+server4+"/keep/slow") })
	}
	rig.Eventually(t, "the server is asked", func() bool { return site.count("GET /keep/slow") > 0 })
	close(site.next)
	asking.Wait()
	if n := site.count("GET /keep/slow"); n != 1 {
		t.Errorf("five clients at once: the server was asked %d times", n)
	}
	// What a client wants anew comes anew.
	if got := curl(t, r, "-H", "Cache-Control: no-cache", "http://"+server4+"/keep?a=%20b"); !strings.Contains(got, "X-Cache: BYPASS") {
		t.Errorf("no-cache: %s", got)
	}
	p.Signal(syscall.SIGUSR1)
	p.Await(" hit=") // the counters
	if got := regexp.MustCompile(`hit=(\d+)`).FindStringSubmatch(p.Output()); got[1] == "0" {
		t.Errorf("counters: %v", got)
	}
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
	nothingPasses(t, r)
}

// testPersonal: with default_ttl_s, what says nothing of caches is not kept from a request that says who asks, and not given to one.
func testPersonal(t *testing.T, root string) {
	r, _ := start(t, root, `{"default_ttl_s": 600}`)
	s := serveSite(t, r, "80")
	at := "http://" + server4
	path, asked := "/plain", 0
	ask := func(what string, more bool, args ...string) {
		t.Helper()
		got := curl(t, r, append(args, at+path)...)
		if more {
			asked++
		}
		if n := s.count("GET " + path); n != asked || strings.Contains(got, "X-Cache: HIT") == more {
			t.Errorf("%s: the server was asked %d times, want %d: %.200s", what, n, asked, got)
		}
	}
	for _, header := range []string{"Cookie: session=1", "X-Api-Key: 1", "Authorization: Basic bWU6c2VjcmV0"} {
		ask(header, true, "-H", header)
		ask(header+" again", true, "-H", header)
	}
	ask("nobody", true)
	ask("nobody again", false)
	ask("somebody then", true, "-H", "Cookie: session=2")
	ask("nobody at last", false)
	path, asked = "/revalidate", 0 // Cache-Control, which does not say how long
	ask("with a cookie, must-revalidate", true, "-H", "Cookie: session=1")
	ask("nobody, must-revalidate", true)
	ask("nobody again, must-revalidate", false)
	path, asked = "/keep/who", 0 // it says how long: it is for all
	ask("with a cookie, max-age", true, "-H", "Cookie: session=1")
	ask("nobody, max-age", false)
}

// What is private, long, of unknown length, with credentials or a cookie, or not a GET comes from the server each time, whole.
func testNotKept(t *testing.T, root string) {
	r, _ := start(t, root, `{"max_object_kb": 1000}`)
	s := serveSite(t, r, "80")
	at := "http://" + server4
	for name, tt := range map[string]struct {
		args []string
		what string // the request at the server
		end  string // of the answer
	}{
		"says nothing":  {[]string{at + "/plain"}, "GET /plain", "|/plain|"},
		"private":       {[]string{at + "/private"}, "GET /private", "|/private|"},
		"a cookie":      {[]string{at + "/cookie"}, "GET /cookie", "|/cookie|"},
		"credentials":   {[]string{"-u", "me:secret", at + "/keep/1"}, "GET /keep/1", "|/keep/1|"},
		"a POST":        {[]string{"-d", "word", at + "/keep/2"}, "POST /keep/2", "|/keep/2|word"},
		"long":          {[]string{at + "/keep/big"}, "GET /keep/big", "0123456789abcdef"},
		"chunks":        {[]string{at + "/keep/chunks"}, "GET /keep/chunks", "one two three"},
		"dots":          {[]string{at + "/a/../%61//b"}, "GET /a/../%61//b", "|/a/../%61//b|"},
		"internal":      {[]string{at + "/internal"}, "GET /internal", "|/internal|"},
		"HTTP/1.0":      {[]string{"-0", at + "/old"}, "GET /old", "|/old|"},
		"another range": {[]string{"-r", "2000000-2000015", at + "/keep/big?r"}, "GET /keep/big?r", "0123456789abcdef"},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range 2 {
				got := curl(t, r, tt.args...)
				if strings.Contains(got, "HIT") || !strings.HasSuffix(got, tt.end) || name == "long" && len(got) < bigLength {
					t.Errorf("%.300s (%d bytes)", got, len(got))
				}
				if n := s.count(tt.what); n != i+1 {
					t.Errorf("after %d requests the server was asked %d times", i+1, n)
				}
			}
		})
	}
	// What one host has is not given for another, nor what one server has for another.
	curl(t, r, "-H", "Host: one", at+"/keep/host")
	if got := curl(t, r, "-H", "Host: other", at+"/keep/host"); !strings.Contains(got, "X-Cache: MISS") || !strings.HasSuffix(got, "other|/keep/host|") {
		t.Errorf("another host: %s", got)
	}
	if got := curl(t, r, "-H", "Host: one", "http://["+server6+"]/keep/host"); !strings.Contains(got, "X-Cache: MISS") {
		t.Errorf("another server: %s", got)
	}
	c := dial(t, r, server4+":80")
	fmt.Fprint(c, "GET /switch HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("another protocol: %+v, %v", resp, err)
	}
	fmt.Fprint(c, "other words\n")
	if line, err := in.ReadString('\n'); line != "other words\n" {
		t.Errorf("another protocol: %q, %v", line, err)
	}
}

func dial(t testing.TB, r *rig.Rig, addr string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	c, err := r.Client.Dial(ctx, "tcp", addr)
	must(t, err)
	must(t, c.SetDeadline(time.Now().Add(2*rig.Patience)))
	t.Cleanup(func() { c.Close() })
	return c
}

// Everything else passes as it came: frames of any kind, TLS, other ports.
func testOthers(t *testing.T, root string) {
	r := rig.New(t, false)
	p := launch(t, r, root, ``)
	r.PassUnchanged(200, 60, []byte{0x12, 0x34}, []byte{8, 6}, []byte{0x81, 0, 0, 7, 0x12, 0x34}, []byte{0x88, 0xa8, 0, 3, 0x81, 0, 0, 7, 8, 0, 0x45}, []byte{8, 0, 0x45, 0, 0, 40, 0, 0, 0x20, 1, 64, 6})
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, q.RemoteAddr) }))
	secure.Listener.Close()
	r.Do(r.Server.Netns, func() (err error) { secure.Listener, err = net.Listen("tcp", server4+":443"); return err })
	secure.StartTLS()
	defer secure.Close()
	r.Server.Echo(server4 + ":8080")
	c := tls.Client(dial(t, r, server4+":443"), &tls.Config{RootCAs: secure.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com"})
	fmt.Fprint(c, "GET / HTTP/1.0\r\n\r\n")
	if got, err := io.ReadAll(c); !strings.HasSuffix(string(got), c.LocalAddr().String()) { // the port, too
		t.Errorf("TLS: %q, %v", got, err)
	}
	other := dial(t, r, server4+":8080")
	want := bytes.Repeat([]byte("no HTTP at all\n"), 10_000)
	go func() { _, _ = other.Write(want) }()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(other, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("another port: %v", err)
	}
	for r.Server.Receive(300*time.Millisecond) != nil { // what was on its way
	}
	if f := r.Server.Receive(time.Second); f != nil && !bytes.Equal(f[12:14], []byte{8, 6}) {
		t.Errorf("it says something for itself: % x", f)
	}
	p.Signal(syscall.SIGUSR1)
	p.Await("connections=0")
}

// A connection from before the start goes on, past nginx.
func testFromBefore(t *testing.T, root string) {
	r := rig.New(t, false)
	r.Server.Echo(server4 + ":80")
	h := rig.Try
	for _, argv := range [][]string{{"ip", "link", "add", "br0", "type", "bridge"}, {"ip", "link", "set", "in", "master", "br0"}, {"ip", "link", "set", "out", "master", "br0"}, {"ip", "link", "set", "br0", "up"}} {
		if out, err := h(t, &rig.Station{Netns: r.Netns}, argv...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	c := dial(t, r, server4+":80")
	say := func(text string) {
		t.Helper()
		_, err := io.WriteString(c, text)
		must(t, err)
		got := make([]byte, len(text))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
			t.Fatalf("%q, %v", got, err)
		}
	}
	say("before")
	if out, err := h(t, &rig.Station{Netns: r.Netns}, "ip", "link", "del", "br0"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	launch(t, r, root, ``)
	say("after")
}

// A connection that lasts is the kernel's: it goes on while the function is stopped, with right checksums, whoever computes them.
func testLasts(t *testing.T, root string) {
	for what, tt := range map[string]struct {
		config  string
		without []string // links that leave no checksums to others
	}{
		"checksums by senders":        {``, []string{"client", stackLink}},
		"checksums by the next links": {``, []string{loopLink, "in"}},
		"through the loop's link":     {fmt.Sprintf(`{"ports": [80, %d]}`, listenFrom), nil}, // see takesAtOnce
	} {
		t.Run(what, func(t *testing.T) {
			r, p := start(t, root, tt.config)
			if strings.Contains(p.Output(), "the kernel has no shortcut") {
				t.Fatalf("this kernel cannot do what is tested here: %s", p.Output())
			}
			serveSite(t, r, "80")
			for _, link := range tt.without {
				at := &rig.Station{Netns: r.Netns}
				if link == "client" {
					at = r.Client
				}
				rig.Command(t, at, "ethtool", "-K", link, "tx", "off")
			}
			c := dial(t, r, server4+":80")
			in := bufio.NewReader(c)
			path := "/keep/lasts?" + strings.Repeat("long", 1500) // several segments both ways
			get := func(what string) {
				t.Helper()
				must(t, c.SetDeadline(time.Now().Add(rig.Patience)))
				fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "x|"+path+"|" {
					t.Fatalf("%s: %.60s (%d bytes), %v", what, got, len(got), err)
				}
			}
			for range 2 * few {
				get("at first")
			}
			p.Signal(syscall.SIGSTOP)
			for range few {
				get("while the function is stopped")
			}
			p.Signal(syscall.SIGCONT)
			get("afterwards")
			p.Signal(syscall.SIGUSR1)
			p.Await("shortened=")
			if strings.Contains(p.Output(), "shortened=0 ") {
				t.Error("no connection was shortened")
			}
		})
	}
}

// Where the kernel has no shortcut, the loop has all segments.
func testNoShortcut(t *testing.T, root string) {
	r := rig.New(t, false)
	takeShortcut(t, r)
	p := launch(t, r, root, ``)
	p.Await("the kernel has no shortcut")
	serveSite(t, r, "80")
	urls := slices.Repeat([]string{"http://" + server4 + "/keep/long"}, 2*few)
	if got := curl(t, r, urls...); strings.Count(got, "X-Cache: HIT") != len(urls)-1 {
		t.Errorf("%s", got)
	}
}

// takeShortcut leaves the function none: another one has the table, which it may not have then.
func takeShortcut(t *testing.T, r *rig.Rig) {
	t.Helper()
	r.Do(r.Netns, func() error {
		other, err := openShortcut("in", "out", "out", make([]byte, 14), []uint16{80})
		if err == nil {
			t.Cleanup(other.Close)
		}
		return err
	})
}

// Whoever knows the addresses by which the loop speaks to nginx, and the ports' MAC addresses, reaches nginx by the loop alone: by neither port, with the shortcut and without.
func testInnerAddresses(t *testing.T, root string) {
	for _, short := range []bool{true, false} {
		r := rig.New(t, false)
		if !short {
			takeShortcut(t, r)
		}
		p := launch(t, r, root, ``)
		serveSite(t, r, "80")
		half := func() (n int) { // connections of nginx's that have begun, and others than it serves
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", p.PID()))
			must(t, err)
			for line := range strings.Lines(string(raw)) {
				if f := strings.Fields(line); len(f) > 3 && f[3] == "03" { // SYN_RECV
					n++
				}
			}
			return n
		}
		for from, port := range map[*rig.Station]string{r.Client: "in", r.Server: "out"} {
			for _, to := range []net.HardwareAddr{r.MAC(port), {2, 9, 9, 9, 9, 1}} {
				for i, sender := range [][4]byte{{asClient, 0, 0, 1}, {10, 77, 0, 1}, {dialled, 0, 0, 1}} {
					p := nf.Packet{Type: nf.EtherIPv4, Network: 14, Src: netip.AddrFrom4(sender), Dst: address(asServer, 1), SrcPort: uint16(8192 + i), DstPort: listenFrom}
					from.Send(p.MakeTCP(slices.Concat(to, []byte{2, 9, 9, 9, 9, 2, 8, 0}), nf.Segment{Seq: 1, Flags: nf.SYN, Window: 0xffff}).Data)
				}
			}
		}
		if got := curl(t, r, "http://"+server4+"/keep/inner"); !strings.HasPrefix(got, "HTTP/1.1 200") { // behind them
			t.Errorf("%s", got)
		}
		if n := half(); n != 0 {
			t.Errorf("shortcut %t: %d connections of nginx have begun by other ways than the loop", short, n)
		}
	}
}

// What is not nginx's passes once, whichever socket of the loop it comes by.
func testEachOnce(t *testing.T, root string) {
	r := rig.New(t, false)
	launch(t, r, root, ``)
	segment := []byte{2, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 2, 8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 8, 10, 77, 0, 9, 0x20, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 5 << 4, nf.ACK, 1, 0, 0, 0, 0, 0}
	for what, change := range map[string]func(f []byte) []byte{
		"plain":            func(f []byte) []byte { return f },
		"a tag":            func(f []byte) []byte { return slices.Insert(f, 12, 0x81, 0, 0, 7) },
		"a tag without ID": func(f []byte) []byte { return slices.Insert(f, 12, 0x81, 0, 0x60, 0) },
		"two tags":         func(f []byte) []byte { return slices.Insert(f, 12, 0x88, 0xa8, 0, 3, 0x81, 0, 0, 7) },
		"options":          func(f []byte) []byte { f[14], f[17] = 0x46, 44; return slices.Insert(f, 34, 1, 1, 1, 1) },
		"a first fragment": func(f []byte) []byte { f[20] = 0x20; return f },
		"a later fragment": func(f []byte) []byte { f[20], f[21] = 0, 5; return f },
		"another port":     func(f []byte) []byte { f[37] = 81; return f },
		"cut":              func(f []byte) []byte { return f[:36] },
		"UDP":              func(f []byte) []byte { f[23] = 17; return f },
		"another length":   func(f []byte) []byte { f[17] = 30; return f },
		"FIN":              func(f []byte) []byte { f[47] |= nf.FIN; return f },
	} {
		f := change(slices.Clone(segment))
		r.Client.Send(f)
		seen := 0
		for n := range byte(2) { // the second one comes after all that the loop had at the first
			mark := rig.Probe(n)
			r.Client.Send(mark)
			for got := []byte(nil); !bytes.Equal(got, mark); {
				if got = r.Server.Receive(rig.Patience); got == nil {
					t.Fatalf("%s: no probe passes", what)
				}
				if bytes.Equal(got, f) {
					seen++
				}
			}
		}
		if seen != 1 {
			t.Errorf("%s: it came %d times", what, seen)
		}
	}
}

// While there is no room for answers none are kept, and all come.
func testFull(t *testing.T, root string) {
	r, p := start(t, root, ``)
	s := serveSite(t, r, "80")
	fill := func(count string) {
		t.Helper()
		if out, err := exec.Command("nsenter", "-m", "-t", fmt.Sprint(p.PID()), "dd", "if=/dev/zero", "of="+root+"/tmp/other", "bs=1M", "count="+count).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	fill("60")
	n := 0
	rig.Eventually(t, "nginx keeps no more", func() bool {
		n++
		path := fmt.Sprintf("/keep/full?%d", n)
		curl(t, r, "http://"+server4+path)
		got := curl(t, r, "http://"+server4+path)
		return strings.Contains(got, "X-Cache: MISS") && strings.HasSuffix(got, "|"+path+"|") && s.count("GET "+path) == 2
	})
	fill("0")
	rig.Eventually(t, "nginx keeps again", func() bool { return strings.Contains(curl(t, r, "http://"+server4+"/keep/again"), "X-Cache: HIT") })
}

// If nginx dies or hangs, the function ends, and nothing passes.
func testDies(t *testing.T, root string) {
	for signal, says := range map[syscall.Signal]string{syscall.SIGKILL: "nginx has ended", syscall.SIGSTOP: "nginx does not answer"} {
		r, p := start(t, root, ``)
		for _, pid := range children(t, p.PID()) {
			must(t, syscall.Kill(pid, signal))
		}
		select {
		case <-time.After(20 * time.Second):
			t.Fatalf("signal %v: it goes on", signal)
		case <-ended(p):
		}
		if err := p.End(); err == nil || !strings.Contains(p.Output(), says) {
			t.Errorf("signal %v: %v\n%s", signal, err, p.Output())
		}
		nothingPasses(t, r)
	}
}

func nothingPasses(t *testing.T, r *rig.Rig) {
	t.Helper()
	r.Client.Send(rig.Probe(1))
	for deadline := time.Now().Add(500 * time.Millisecond); time.Now().Before(deadline); {
		if bytes.Equal(r.Server.Receive(time.Until(deadline)), rig.Probe(1)) {
			t.Error("a frame passes without it")
		}
	}
}

// children of the function: nginx's master, and its workers.
func children(t testing.TB, pid int) (pids []int) {
	t.Helper()
	out, err := exec.Command("pgrep", "-P", fmt.Sprint(pid)).Output()
	must(t, err)
	for _, word := range strings.Fields(string(out)) {
		var child int
		_, err := fmt.Sscan(word, &child)
		must(t, err)
		more, _ := exec.Command("pgrep", "-P", word).Output()
		for _, word := range strings.Fields(string(more)) {
			var worker int
			_, err := fmt.Sscan(word, &worker)
			must(t, err)
			pids = append(pids, worker)
		}
		pids = append(pids, child)
	}
	return pids
}

func ended(p *rig.Process) <-chan struct{} {
	c := make(chan struct{})
	go func() {
		for strings.Count(p.Output(), "cache ends") == 0 {
			time.Sleep(50 * time.Millisecond)
		}
		close(c)
	}()
	return c
}

func testBadConfig(t *testing.T, root string) {
	r, dir := rig.New(t, false), t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"ports": [0]}`), 0o644))
	p := r.StartImage(root, dir, "/usr/bin/cache")
	if err := p.End(); err == nil || !strings.Contains(p.Output(), "want 1 to 8 TCP ports") {
		t.Errorf("%v: %s", err, p.Output())
	}
}

func TestConfig(t *testing.T) {
	for text, want := range map[string]string{
		``: "", `{}`: "", `{"ports": [8080, 80], "size_mb": 40, "max_object_kb": 8192, "default_ttl_s": 60}`: "",
		`{"ports": []}`: "want 1 to 8", `{"ports": [1,2,3,4,5,6,7,8,9]}`: "want 1 to 8", `{"ports": [80, 80]}`: "each one once", `{"size_mb": 0}`: "want 1 to 40", `{"size_mb": 41}`: "want 1 to 40",
		`{"max_object_kb": 0}`: "want 1 to 8192", `{"size_mb": 1, "max_object_kb": 1025}`: "more than the cache", `{"default_ttl_s": -1}`: "want 0 to", `{"port": 1}`: "unknown field",
	} {
		_, err := parseConfig([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// The expression that tells nginx which lengths are short enough.
func TestAtMost(t *testing.T) {
	for _, limit := range []int{1, 9, 10, 1024, 1048576, 8388608, 1000000, 1999} {
		e := regexp.MustCompile(strings.Trim(strings.TrimPrefix(atMost(limit), `"~`), `"`))
		for _, n := range []int{0, 1, limit / 10, limit - 1, limit, limit + 1, limit + 9, limit * 10, limit * 2} {
			if got := e.MatchString(fmt.Sprint(n)); got != (n <= limit) {
				t.Errorf("%d of at most %d: %v by %s", n, limit, got, e)
			}
		}
		for _, odd := range []string{"", "-1", "1x", " 1", "1, 1"} {
			if e.MatchString(odd) {
				t.Errorf("%q is a number of at most %d", odd, limit)
			}
		}
	}
}
