package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
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

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

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
func TestSuricata(t *testing.T) {
	root := rig.Mounted(t)
	t.Run("frames", func(t *testing.T) { testFrames(t, root) })
	t.Run("reload", func(t *testing.T) { testReload(t, root) })
	t.Run("unread", func(t *testing.T) { testUnread(t, root) })
	t.Run("one direction", func(t *testing.T) { testOneDirection(t, root) })
	t.Run("settles", func(t *testing.T) { testSettles(t, root) })
	t.Run("bad rules", func(t *testing.T) { testBadRules(t, root) })
	t.Run("hostile frames", func(t *testing.T) { testHostile(t, root) })
	t.Run("hostile frames, tap", func(t *testing.T) { testHostileTap(t, root) })
}

// start runs the function between two stations, and waits until Suricata reads packets.
func start(t *testing.T, root, config string) (*rig.Rig, *rig.Process, string) {
	t.Helper()
	r, file := rig.New(t, false), filepath.Join(t.TempDir(), "config.json")
	write(t, file, config)
	return r, launch(t, r, root, file), file
}

func launch(t *testing.T, r *rig.Rig, root, file string, args ...string) *rig.Process {
	t.Helper()
	p := r.StartImage(root, filepath.Dir(file), append([]string{"/usr/bin/ids"}, args...)...)
	await(t, p, "rules in force", 1)
	return p
}

// await waits longer than the rig's patience: Suricata takes a while on a busy machine.
func await(t *testing.T, p *rig.Process, text string, times int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); strings.Count(p.Output(), text) < times; {
		if time.Now().After(deadline) {
			t.Fatalf("not %d times %q:\n%s", times, text, p.Output())
		}
		<-time.After(10 * time.Millisecond)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	must(t, os.WriteFile(file+".new", []byte(text), 0o644))
	must(t, os.Rename(file+".new", file))
}

var macs = []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8}

func frame(parts ...[]byte) []byte { return bytes.Join(append([][]byte{macs}, parts...), nil) }

// udp is a datagram with its IPv4 header.
func udp(payload []byte) []byte {
	b := make([]byte, 28, 28+len(payload))
	b[0], b[8], b[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(payload)))
	copy(b[12:], netip.MustParseAddr("10.77.0.1").AsSlice())
	copy(b[16:], netip.MustParseAddr("10.77.0.2").AsSlice())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(b[20:], 1234)
	binary.BigEndian.PutUint16(b[22:], 9)
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(payload)))
	return append(b, payload...) // without a checksum, as UDP may be
}

// What no rule drops passes as it is, whatever it is; what is dropped does not, behind VLAN tags neither. Nothing is said that nobody sent.
func testFrames(t *testing.T, root string) {
	r, p, _ := start(t, root, `{"rules": "drop udp any any -> any any (msg:\"bad\"; content:\"evil-word\"; sid:1;)"}`)
	rig.Eventually(t, "the doors are open", func() bool {
		r.Client.Send(rig.Probe(0))
		return r.Server.Receive(20*time.Millisecond) != nil
	})
	long := bytes.Repeat([]byte{'x'}, 1472)
	for name, f := range map[string][]byte{
		"IPv4":                           frame([]byte{8, 0}, udp([]byte("good"))),
		"full size":                      frame([]byte{8, 0}, udp(long)),
		"VLAN":                           frame([]byte{0x81, 0, 0x20, 7, 8, 0}, udp([]byte("good"))),
		"VLAN, full size":                frame([]byte{0x81, 0, 0x20, 7, 8, 0}, udp(long)),
		"two tags, nearly full size":     frame([]byte{0x81, 0, 0, 3, 0x81, 0, 0x20, 7, 8, 0}, udp(long[4:])),
		"unknown ethertype":              frame([]byte{0x12, 0x34}, make([]byte, 60)),
		"ARP":                            frame([]byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, make([]byte, 50)),
		"LLDP":                           append([]byte{1, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 8, 0x88, 0xcc}, make([]byte, 46)...),
		"IPv4, too short for its header": frame([]byte{8, 0, 0x45, 0, 0, 99}, make([]byte, 42)),
		"IPv4, wrong version":            frame([]byte{8, 0, 0x65}, make([]byte, 45)),
		"IPv6, cut":                      frame([]byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 99, 17}, make([]byte, 39)),
		"an option without an end":       frame([]byte{8, 0, 0x4f, 0, 0, 60, 0, 0, 0, 0, 64, 6, 0, 0}, make([]byte, 48)),
		"length of 802.3":                frame([]byte{0, 46}, make([]byte, 46)),
	} {
		t.Run(name, func(t *testing.T) {
			if !rig.Passes(r.Client, r.Server, f) {
				t.Error("does not come to the server as it was")
			}
			if !rig.Passes(r.Server, r.Client, f) {
				t.Error("does not come to the client as it was")
			}
		})
	}
	// Suricata writes the tag that the kernel took off always as one of 802.1Q.
	ad := frame([]byte{0x88, 0xa8, 0, 3, 8, 0}, udp([]byte("good")))
	r.Client.Send(ad)
	if got, want := r.Server.Receive(rig.Patience), frame([]byte{0x81, 0, 0, 3, 8, 0}, udp([]byte("good"))); !bytes.Equal(got, want) {
		t.Errorf("a tag of 802.1ad: got % x, want % x", got, want)
	}
	for name, f := range map[string][]byte{
		"plain":     frame([]byte{8, 0}, udp([]byte("an evil-word"))),
		"VLAN":      frame([]byte{0x81, 0, 0x20, 7, 8, 0}, udp([]byte("an evil-word"))),
		"two tags":  frame([]byte{0x88, 0xa8, 0, 3, 0x81, 0, 0x20, 7, 8, 0}, udp([]byte("an evil-word"))),
		"no length": lengthless,
	} {
		if rig.Passes(r.Client, r.Server, f) || rig.Passes(r.Server, r.Client, f) {
			t.Errorf("%s: what a rule drops passes", name)
		}
	}
	if f := r.Server.Receive(time.Second); f != nil {
		t.Errorf("it says something for itself: % x", f)
	}
	p.Signal(syscall.SIGTERM)
	if err := p.End(); err != nil {
		t.Errorf("stopped: %v", err)
	}
	nothingPasses(t, r)
}

// Rules are read again while connections go on; a bad one is refused and changes nothing. If Suricata is killed, the function ends and nothing passes.
func testReload(t *testing.T, root string) {
	rule := func(word string) string {
		return fmt.Sprintf(`{"rules": "drop tcp any any -> any any (msg:\"bad\"; content:\"%s\"; sid:1;)", "rule_files": ["decoder-events.rules"], "home_nets": ["10.77.0.0/24", "fd00::1"], "depth": "64KB"}`, word)
	}
	r, p, file := start(t, root, rule("first-word"))
	r.Server.Echo("10.77.0.2:7")
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:7")
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(2*time.Minute)))
	exchange := func(text string) {
		t.Helper()
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, len(text))
		if n, err := c.Read(b); err != nil || string(b[:n]) != text {
			t.Fatalf("%q, %v: want %q", b[:n], err, text)
		}
	}
	exchange("good")
	write(t, file, `{"rules": "drop nonsense any any -> any any (sid:1;)", "depth": "64KB"}`)
	p.Signal(syscall.SIGHUP)
	await(t, p, "configuration refused", 1)
	if !strings.Contains(p.Output(), "nonsense") {
		t.Errorf("why it is refused is not told:\n%s", p.Output())
	}
	write(t, file, `{"overload": "pass"}`) // and the depth is another: Suricata would go on with the former ones
	p.Signal(syscall.SIGHUP)
	await(t, p, "configuration refused", 2)
	if !strings.Contains(p.Output(), "depth, overload changed, which Suricata reads at its start only") {
		t.Errorf("what needs a start is taken, or not told:\n%s", p.Output())
	}
	write(t, file, rule("second-word"))
	p.Signal(syscall.SIGHUP)
	await(t, p, "rules in force", 2)
	exchange("a first-word that may pass now")
	if _, err := c.Write([]byte("a second-word")); err != nil {
		t.Fatal(err)
	}
	await(t, p, "msg=alert sid=1 rule=bad", 1)
	if !strings.Contains(p.Output(), "action=blocked proto=TCP src=10.77.0.1:") {
		t.Errorf("alert:\n%s", p.Output())
	}
	// So are networks and thresholds, while a connection goes on.
	c2, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:7")
	must(t, err)
	defer c2.Close()
	must(t, c2.SetDeadline(time.Now().Add(2*time.Minute)))
	c = c2
	outside := func(home, thresholds string) string {
		var rules []string
		for sid, word := range []string{3: "third-word", 4: "fourth-word", 5: "fifth-word"} {
			if word != "" {
				rules = append(rules, fmt.Sprintf(`alert tcp $EXTERNAL_NET any -> any any (msg:\"%s\"; content:\"%s\"; sid:%d;)`, word, word, sid))
			}
		}
		return fmt.Sprintf(`{"rules": "%s", "home_nets": ["%s"], "thresholds": "%s", "depth": "64KB"}`, strings.Join(rules, `\n`), home, thresholds)
	}
	write(t, file, outside("10.77.0.0/24", ""))
	p.Signal(syscall.SIGHUP)
	await(t, p, "rules in force", 3)
	exchange("a third-word of home")
	write(t, file, outside("192.0.2.0/24", "suppress gen_id 1, sig_id 4, track by_src, ip 10.77.0.1"))
	p.Signal(syscall.SIGHUP)
	await(t, p, "rules in force", 4)
	if strings.Contains(p.Output(), "sid=3") {
		t.Errorf("a rule about others meets what comes from home:\n%s", p.Output())
	}
	exchange("a third-word from outside, and a fourth-word")
	exchange("a fifth-word")
	await(t, p, "msg=alert sid=3 rule=third-word severity=3 action=allowed proto=TCP src=10.77.0.1:", 1)
	await(t, p, "msg=alert sid=5 rule=fifth-word severity=3 action=allowed proto=TCP src=10.77.0.1:", 1)
	if strings.Contains(p.Output(), "sid=4 rule=fourth-word severity=3 action=allowed proto=TCP src=10.77.0.1:") {
		t.Errorf("what is suppressed is told:\n%s", p.Output())
	}
	out, err := exec.Command("pgrep", "-P", fmt.Sprint(p.PID())).Output()
	must(t, err)
	var suricata int
	_, err = fmt.Sscan(string(out), &suricata)
	must(t, err)
	must(t, syscall.Kill(suricata, syscall.SIGKILL))
	if err := p.End(); err == nil || !strings.Contains(p.Output(), "suricata has ended") {
		t.Errorf("Suricata was killed: %v\n%s", err, p.Output())
	}
	nothingPasses(t, r)
}

// web is a server at a station that notes what it is asked for.
type web struct {
	mu     sync.Mutex
	seen   []string
	resume chan struct{} // closed: /big goes on, and /slow is answered
}

const half = 256 << 10 // bytes of /big

func (w *web) ServeHTTP(to http.ResponseWriter, q *http.Request) {
	_, _ = io.Copy(io.Discard, q.Body)
	w.mu.Lock()
	w.seen = append(w.seen, q.Method+" "+q.URL.String())
	w.mu.Unlock()
	if q.URL.Path == "/slow" {
		<-w.resume
	}
	if q.URL.Path != "/big" {
		_, _ = io.WriteString(to, "for "+q.URL.Path)
		return
	}
	to.Header().Set("Content-Length", fmt.Sprint(2*half))
	_, _ = to.Write(bytes.Repeat([]byte("a\r\n\x00"), half/4))
	to.(http.Flusher).Flush()
	select {
	case <-w.resume:
	case <-q.Context().Done():
		return
	}
	_, _ = to.Write(bytes.Repeat([]byte("text \n"), half/6+1)[:half])
}

// saw tells whether it was asked for something that has a text in it.
func (w *web) saw(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(strings.Join(w.seen, "\n"), text)
}

// A request that Suricata's parser gives up on does not arrive, and nothing behind it. Ordinary traffic does, also that of connections that are older than the function.
func testUnread(t *testing.T, root string) {
	config := `{"rules": "drop http any any -> any any (msg:\"no secrets\"; http.uri; content:\"/secret\"; sid:1;)"%s}`
	r, p, file := start(t, root, fmt.Sprintf(config, ""))
	w := &web{resume: make(chan struct{})}
	plain, secret := httptest.NewUnstartedServer(w), httptest.NewUnstartedServer(w)
	for s, addr := range map[*httptest.Server]string{plain: "10.77.0.2:80", secret: "10.77.0.2:443"} {
		s.Listener.Close()
		r.Do(r.Server.Netns, func() (err error) { s.Listener, err = net.Listen("tcp", addr); return err })
	}
	plain.Start()
	secret.StartTLS()
	t.Cleanup(func() {
		plain.CloseClientConnections()
		secret.CloseClientConnections()
		plain.Close()
		secret.Close()
	})
	r.Server.Echo("10.77.0.2:7")
	dial := func(port string) (net.Conn, *bufio.Reader) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:"+port)
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(30*time.Second)))
		t.Cleanup(func() { c.Close() })
		return c, bufio.NewReader(c)
	}
	ask := func(c net.Conn, in *bufio.Reader, request string) *http.Response {
		t.Helper()
		_, err := io.WriteString(c, request)
		must(t, err)
		got, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("%.60q: %v", request, err)
		}
		return got
	}
	want := func(c net.Conn, in *bufio.Reader, request, answer string) {
		t.Helper()
		got := ask(c, in, request)
		if b, err := io.ReadAll(got.Body); err != nil || string(b) != answer {
			t.Errorf("%.60q: %q, %v", request, b, err)
		}
	}
	ordinary := func() {
		t.Helper()
		c, in := dial("80")
		for range 3 {
			want(c, in, "GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n", "for /a")
			want(c, in, "POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n"+strings.Repeat("body\r\n", 10000), "for /p")
			want(c, in, "PUT /q HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "for /q")
			want(c, in, "GET /long?"+strings.Repeat("x", 8000)+" HTTP/1.1\r\nHost: x\r\nCookie: "+strings.Repeat("y", 4000)+"\r\n\r\n", "for /long")
		}
		client := secret.Client()
		client.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return r.Client.Dial(ctx, "tcp4", "10.77.0.2:443")
		}
		for range 2 {
			got, err := client.Get("https://example.com/tls")
			must(t, err)
			b, err := io.ReadAll(got.Body)
			must(t, err)
			got.Body.Close()
			if string(b) != "for /tls" {
				t.Errorf("TLS: %q", b)
			}
		}
		client.CloseIdleConnections()
		c, in = dial("7")
		b := bytes.Repeat([]byte{0, 1, 0xff, 'G', '\r', '\n'}, 10000)
		go func() { _, _ = c.Write(b) }()
		if _, err := io.ReadFull(in, make([]byte, len(b))); err != nil {
			t.Errorf("no protocol: %v", err)
		}
	}
	ordinary()
	long := strings.Repeat("A", 20000) + " HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, request := range []string{"GET /secret HTTP/1.1\r\nHost: x\r\n\r\n", "GET /secret?1" + long, "GET /1 HTTP/1.1\r\nX: " + strings.Repeat("x", 20000) + "\r\nHost: x\r\n\r\nGET /secret?2 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /2?" + long + "GET /secret?3 HTTP/1.1\r\nHost: x\r\n\r\n"} {
		c, in := dial("80")
		_, err := io.WriteString(c, request)
		must(t, err)
		must(t, c.SetReadDeadline(time.Now().Add(time.Second)))
		for err == nil {
			var got *http.Response
			if got, err = http.ReadResponse(in, nil); err == nil {
				_, err = io.Copy(io.Discard, got.Body)
			}
		}
		must(t, c.(*net.TCPConn).SetLinger(0)) // what is left of it is not sent again, to the next function
		c.Close()
	}
	if w.saw("/secret") {
		t.Errorf("the server is asked for secrets: %.200q", w.seen)
	}
	for deadline := time.Now().Add(30 * time.Second); !regexp.MustCompile(`unread=[1-9]`).MatchString(p.Output()); p.Signal(syscall.SIGUSR1) { // Suricata counts every 5 s
		if time.Now().After(deadline) {
			t.Fatalf("they are not counted:\n%s", p.Output())
		}
		<-time.After(200 * time.Millisecond)
	}
	// A new function takes over.
	idle, idleIn := dial("80")
	want(idle, idleIn, "GET /idle HTTP/1.1\r\nHost: x\r\n\r\n", "for /idle")
	busy, busyIn := dial("80")
	big := ask(busy, busyIn, "GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
	_, err := io.ReadFull(big.Body, make([]byte, half))
	must(t, err)
	slow, slowIn := dial("80")
	_, err = io.WriteString(slow, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
	must(t, err)
	upload, uploadIn := dial("80")
	body := strings.Repeat("a=b\r\n", half/5)
	_, err = io.WriteString(upload, fmt.Sprintf("POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 2*len(body))+body)
	must(t, err)
	rig.Eventually(t, "the slow request arrives", func() bool { return w.saw("/slow") })
	echo, echoIn := dial("7")
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
	launch(t, r, root, file)
	close(w.resume)
	if n, err := io.Copy(io.Discard, big.Body); n != half || err != nil {
		t.Errorf("a download that is older: %d bytes, %v", n, err)
	}
	want(upload, uploadIn, body, "for /upload")
	want(upload, uploadIn, "GET /behind HTTP/1.1\r\nHost: x\r\n\r\n", "for /behind")
	answer, err := http.ReadResponse(slowIn, nil)
	if err != nil {
		t.Fatalf("a request that is older is not answered: %v", err)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	must(t, err)
	want(slow, slowIn, "GET /behind HTTP/1.1\r\nHost: x\r\n\r\n", "for /behind")
	want(busy, busyIn, "GET /behind HTTP/1.1\r\nHost: x\r\n\r\n", "for /behind")
	want(idle, idleIn, "GET /again HTTP/1.1\r\nHost: x\r\n\r\n", "for /again")
	_, err = io.WriteString(echo, "hello")
	must(t, err)
	if _, err = io.ReadFull(echoIn, make([]byte, 5)); err != nil {
		t.Errorf("an older connection without a protocol: %v", err)
	}
	_, err = io.WriteString(idle, "GET /secret?4 HTTP/1.1\r\nHost: x\r\n\r\n")
	must(t, err)
	must(t, idle.SetReadDeadline(time.Now().Add(time.Second)))
	if got, err := http.ReadResponse(idleIn, nil); err == nil || w.saw("/secret") {
		t.Errorf("an older connection leads to secrets: %v", got)
	}
	ordinary()
}

// A policy may select only one direction: what it sees of a connection passes.
func testOneDirection(t *testing.T, root string) {
	r, _, _ := start(t, root, `{}`)
	rig.Eventually(t, "the doors are open", func() bool {
		r.Client.Send(rig.Probe(0))
		return r.Server.Receive(20*time.Millisecond) != nil
	})
	segment := func(seq, ack uint32, flags layers.TCP, data string) []byte {
		flags.SrcPort, flags.DstPort, flags.Seq, flags.Ack, flags.Window = 4000, 80, seq, ack, 1000
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: net.IPv4(10, 77, 0, 1), DstIP: net.IPv4(10, 77, 0, 2)}
		must(t, flags.SetNetworkLayerForChecksum(ip))
		b := gopacket.NewSerializeBuffer()
		must(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, &flags, gopacket.Payload(data)))
		return frame([]byte{8, 0}, b.Bytes())
	}
	const data = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	for i, f := range [][]byte{
		segment(99, 0, layers.TCP{SYN: true}, ""), segment(100, 5000, layers.TCP{ACK: true}, ""), segment(100, 5000, layers.TCP{ACK: true, PSH: true}, data), segment(100+uint32(len(data)), 9000, layers.TCP{ACK: true}, ""),
		segment(100+uint32(len(data)), 9000, layers.TCP{ACK: true, PSH: true}, data), segment(100+2*uint32(len(data)), 90000, layers.TCP{ACK: true, FIN: true}, ""), segment(101+2*uint32(len(data)), 90001, layers.TCP{ACK: true}, ""),
	} {
		if !rig.Passes(r.Client, r.Server, f) {
			t.Errorf("segment %d of one direction does not pass", i)
		}
	}
}

// nothingPasses after what is on its way.
func nothingPasses(t *testing.T, r *rig.Rig) {
	t.Helper()
	r.Client.Send(rig.Probe(77))
	for f := r.Server.Receive(300 * time.Millisecond); f != nil; f = r.Server.Receive(300 * time.Millisecond) {
		if bytes.Equal(f, rig.Probe(77)) {
			t.Error("a frame passes without Suricata")
		}
	}
}

// verdicts takes what the function says of flows, as the platform does, and tells of it.
func verdicts(t testing.TB, path string) <-chan string {
	t.Helper()
	l, err := net.Listen("unix", path)
	must(t, err)
	said := make(chan string, 1000)
	var serving sync.WaitGroup
	serving.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		defer context.AfterFunc(t.Context(), func() { c.Close() })()
		for lines := bufio.NewScanner(c); lines.Scan(); {
			said <- lines.Text()
			if _, err := io.WriteString(c, "ok 2\n"); err != nil {
				return
			}
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	return said
}

// Of a connection behind the depth, and of a flow that a rule bypasses, the switch is told; of no other. Rules hold up to there. When rules change, all is
// taken back.
func testSettles(t *testing.T, root string) {
	r, file := rig.New(t, false), filepath.Join(t.TempDir(), "config.json")
	config := `{"depth": "16KB", "rules": "drop tcp any any -> any any (msg:\"bad\"; content:\"evil-word\"; sid:1;)\nalert udp any any -> any 9 (msg:\"\\; bypass\\;\"; noalert; bypass; sid:2;)%s"}`
	write(t, file, fmt.Sprintf(config, ""))
	said := verdicts(t, filepath.Join(filepath.Dir(file), "settle.sock"))
	p := launch(t, r, root, file, "-settle", "/etc/weir/settle.sock")
	r.Server.Echo("10.77.0.2:7")
	dial := func() net.Conn {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:7")
		must(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	exchange := func(c net.Conn, text string, patience time.Duration) error {
		must(t, c.SetDeadline(time.Now().Add(patience)))
		if _, err := io.WriteString(c, text); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, len(text)))
		return err
	}
	await := func(what string, each func()) {
		t.Helper()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			each()
			select {
			case got := <-said:
				if got == what {
					return
				}
				t.Fatalf("said %q, want %q", got, what)
			case <-time.After(100 * time.Millisecond):
			}
		}
		t.Fatalf("nobody says %q\n%s", what, p.Output())
	}
	short := dial()
	must(t, exchange(short, "a few words", rig.Patience))
	// A byte that nobody takes, far behind the receiver's window, ends no inspection.
	jumped := dial()
	must(t, exchange(jumped, "a few words", rig.Patience))
	seq, ack := places(t, jumped)
	r.Client.Send(segment(jumped, seq+1<<30, ack))
	time.Sleep(2 * settledAfter)
	must(t, exchange(jumped, "more of them", rig.Patience))
	if err := exchange(jumped, "an evil-word", time.Second); err == nil {
		t.Error("a word passes behind a byte that nobody takes")
	}
	// What is said late, as on a busy machine, is not said at all: then another connection has to do.
	settled := func() net.Conn {
		t.Helper()
		for range 5 {
			long := dial()
			there, back := fmt.Sprintf("pass tcp %s %s oneway", long.LocalAddr(), long.RemoteAddr()), fmt.Sprintf("pass tcp %s %s oneway", long.RemoteAddr(), long.LocalAddr())
			either := map[string]string{there + " at in": back, back + " at out": there} // the direction in which it is decided is settled at its port
			then := ""
			for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
				must(t, exchange(long, strings.Repeat("harmless", 200), rig.Patience))
				select {
				case got := <-said:
					next, first := either[got]
					switch {
					case then == "" && first:
						then = next
					case then != "" && got == then:
						return long
					case got == there || got == back: // the one before was late
					default:
						t.Fatalf("said %q, want one of %v, or %q", got, either, then)
					}
				case <-time.After(50 * time.Millisecond):
				}
			}
		}
		t.Fatalf("no connection is settled\n%s", p.Output())
		return nil
	}
	long := settled()
	must(t, exchange(long, "an evil-word behind the depth", rig.Patience)) // it is bypassed, and goes on
	if err := exchange(short, "an evil-word", time.Second); err == nil {
		t.Error("a word passes in a connection that is not settled")
	}
	datagram := udp([]byte("x"))
	await("pass udp 10.77.0.1:1234 10.77.0.2:9 oneway at in", func() {
		datagram[20], datagram[21] = 4, 210 // port 1234
		r.Client.Send(frame([]byte{8, 0}, datagram))
	})
	await("pass udp 10.77.0.2:9 10.77.0.1:1234 oneway", func() {})
	if text := p.Output(); strings.Contains(text, "msg=alert sid=429") || strings.Contains(text, "msg=alert sid=2 ") {
		t.Errorf("alerts of our own rules, or of one that has none, are told:\n%s", text)
	}
	write(t, file, fmt.Sprintf(config, `\n`))
	p.Signal(syscall.SIGHUP)
	await("reset", func() {})
}

// places are the numbers of the next bytes that a connection sends and gets.
func places(t *testing.T, c net.Conn) (seq, ack uint32) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		const receives, sends, silently = 1, 2, -1
		must(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1))
		for queue, at := range map[int]*uint32{receives: &ack, sends: &seq} {
			must(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, queue))
			n, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
			must(t, err)
			*at = uint32(n)
		}
		must(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, silently))
	}))
	return seq, ack
}

// segment of a connection's client, with one byte.
func segment(c net.Conn, seq, ack uint32) []byte {
	b := make([]byte, 40)
	b[0], b[3], b[8], b[9], b[32] = 0x45, 40, 64, nf.TCP, 0x50
	from, to := c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
	copy(b[12:], from.Addr().Unmap().AsSlice())
	copy(b[16:], to.Addr().Unmap().AsSlice())
	binary.BigEndian.PutUint16(b[20:], from.Port())
	binary.BigEndian.PutUint16(b[22:], to.Port())
	like := frame([]byte{8, 0}, b)
	p := nf.Decode(like)
	return p.MakeTCP(like, nf.Segment{Seq: seq, Ack: ack, Flags: nf.PSH | nf.ACK, Window: 1 << 9, Data: []byte{'x'}}).Data
}

// Only what Suricata has just said of a flow that goes on is handed to the switch, in its words.
func TestWhatIsSettled(t *testing.T) {
	for _, x := range []struct {
		name, line string
		want       []string
		age        time.Duration
	}{
		{"from a server", `"in_iface":"out-i","src_ip":"10.0.0.2","src_port":80,"dest_ip":"10.0.0.1","dest_port":7,"proto":"TCP","verdict":{"action":"alert"}`, []string{"pass tcp 10.0.0.2:80 10.0.0.1:7 oneway at out", "pass tcp 10.0.0.1:7 10.0.0.2:80 oneway"}, 0},
		{"from nowhere", `"in_iface":"eth0","src_ip":"10.0.0.1","src_port":5,"dest_ip":"10.0.0.2","dest_port":88,"proto":"TCP","verdict":{"action":"alert"}`, nil, 0},
		{"IPv6, with a tag", `"in_iface":"in-i","src_ip":"fd00:0000:0000:0000:0000:0000:0000:0001","src_port":5,"dest_ip":"fd00::2","dest_port":80,"proto":"TCP","vlan":[7],"verdict":{"action":"alert"}`, []string{"pass tcp [fd00::1]:5 [fd00::2]:80 vlan 7 oneway at in", "pass tcp [fd00::2]:80 [fd00::1]:5 vlan 7 oneway"}, 0},
		{"a priority alone", `"in_iface":"in-i","src_ip":"10.0.0.1","src_port":5,"dest_ip":"10.0.0.2","dest_port":80,"proto":"UDP","vlan":[0],"verdict":{"action":"pass"}`, []string{"pass udp 10.0.0.1:5 10.0.0.2:80 oneway at in", "pass udp 10.0.0.2:80 10.0.0.1:5 oneway"}, 0},
		{"nearly late", `"in_iface":"in-i","src_ip":"10.0.0.1","src_port":6,"dest_ip":"10.0.0.2","dest_port":80,"proto":"TCP","verdict":{"action":"alert"}`, []string{"pass tcp 10.0.0.1:6 10.0.0.2:80 oneway at in", "pass tcp 10.0.0.2:80 10.0.0.1:6 oneway"}, fresh / 2},
		{"late", `"in_iface":"in-i","src_ip":"10.0.0.1","src_port":5,"dest_ip":"10.0.0.2","dest_port":81,"proto":"TCP","verdict":{"action":"alert"}`, nil, fresh + time.Millisecond},
		{"from the future", `"in_iface":"in-i","src_ip":"10.0.0.1","src_port":5,"dest_ip":"10.0.0.2","dest_port":82,"proto":"TCP","verdict":{"action":"alert"}`, nil, -time.Second},
		{"dropped by another rule", `"in_iface":"in-i","src_ip":"10.0.0.1","src_port":5,"dest_ip":"10.0.0.2","dest_port":83,"proto":"TCP","verdict":{"action":"drop"}`, nil, 0},
		{"without a verdict", `"in_iface":"in-i","src_ip":"10.0.0.1","src_port":5,"dest_ip":"10.0.0.2","dest_port":84,"proto":"TCP"`, nil, 0},
		{"two tags", `"in_iface":"in-i","src_ip":"10.0.0.1","src_port":5,"dest_ip":"10.0.0.2","dest_port":85,"proto":"TCP","vlan":[7,8],"verdict":{"action":"alert"}`, nil, 0},
		{"ICMP", `"in_iface":"in-i","src_ip":"10.0.0.1","dest_ip":"10.0.0.2","proto":"ICMP","icmp_type":8,"verdict":{"action":"alert"}`, nil, 0},
		{"no address", `"in_iface":"in-i","src_ip":"","src_port":5,"dest_ip":"10.0.0.2","dest_port":86,"proto":"TCP","verdict":{"action":"alert"}`, nil, 0},
		{"no port", `"in_iface":"in-i","src_ip":"10.0.0.1","src_port":65541,"dest_ip":"10.0.0.2","dest_port":87,"proto":"TCP","verdict":{"action":"alert"}`, nil, 0},
	} {
		rig.Eventually(t, x.name, func() bool { // a machine that is busy meanwhile makes verdicts late
			got, intime := settledBy(t, x.line, x.age)
			if intime && !slices.Equal(got, x.want) {
				t.Errorf("%s: said %q, want %q", x.name, got, x.want)
			}
			return intime
		})
	}
}

// settledBy an alert about a packet of an age; intime: nothing can have become late on the way.
func settledBy(t *testing.T, line string, age time.Duration) (said []string, intime bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settle.sock")
	lines := verdicts(t, path)
	to := nf.NewSettler(path, slog.New(slog.DiscardHandler))
	defer to.Close()
	a, now := newAlerts(slog.New(slog.DiscardHandler)), time.Now()
	a.settle = func(e eve) { settle(to, e, []string{"in-i", "out-i"}, now) }
	a.take([]byte(`{"event_type":"alert","timestamp":"` + now.Add(-age).UTC().Format("2006-01-02T15:04:05.000000-0700") + `","alert":{"signature_id":` + fmt.Sprint(sidDepth) + `},` + line + `}`))
	if len(a.tallies) != 0 {
		t.Error("an alert of our own is an event")
	}
	end := netip.MustParseAddrPort("10.0.0.9:1")
	to.PassFlow(nf.TCP, end, end, nf.NoVLAN, time.Now())
	for {
		select {
		case l := <-lines:
			if l == fmt.Sprintf("pass tcp %s %s", end, end) {
				return said, time.Since(now) < fresh/2
			}
			said = append(said, l)
		case <-time.After(time.Second):
			return said, false
		}
	}
}

// Options are replaced, and no text that looks like one.
func TestRulesMarkWhatTheyBypass(t *testing.T) {
	for in, want := range map[string]string{
		`alert tcp any any -> any any (msg:"a"; bypass; sid:1;)`:        `alert tcp any any -> any any (msg:"a"; flowbits:set,weir.bypass; sid:1;)`,
		`alert tcp any any -> any any (bypass;sid:1;)`:                  `alert tcp any any -> any any (flowbits:set,weir.bypass;sid:1;)`,
		`pass tcp any any -> any any (bypass; sid:1;)`:                  `pass tcp any any -> any any (bypass; sid:1;)`,
		`# alert tcp any any -> any any (bypass; sid:1;)`:               `# alert tcp any any -> any any (bypass; sid:1;)`,
		`alert tcp any any -> any any (msg:"a\; bypass\; b"; sid:1;)`:   `alert tcp any any -> any any (msg:"a\; bypass\; b"; sid:1;)`,
		`alert tcp any any -> any any (content:"a\;"; bypass ; sid:1;)`: `alert tcp any any -> any any (content:"a\;"; flowbits:set,weir.bypass ; sid:1;)`,
		"":            "",
		"bypass;\n((": "bypass;\n((",
		"drop ip any any -> any any (bypass;)\nalert udp any any -> any any (bypass;)\n": "drop ip any any -> any any (flowbits:set,weir.bypass;)\nalert udp any any -> any any (flowbits:set,weir.bypass;)\n",
	} {
		if got := marking(in); got != want {
			t.Errorf("%s\nbecomes %s\nwant %s", in, got, want)
		}
	}
}

// A configuration that Suricata does not take ends the function, with the reason.
func testBadRules(t *testing.T, root string) {
	r, file := rig.New(t, true), filepath.Join(t.TempDir(), "config.json")
	write(t, file, `{"rules": "alert nonsense any any -> any any (sid:1;)"}`)
	p := r.StartImage(root, filepath.Dir(file), "/usr/bin/ids", "-tap")
	await(t, p, "ids ends", 1)
	if err := p.End(); err == nil || !strings.Contains(p.Output(), `protocol \"nonsense\"`) {
		t.Errorf("%v\n%s", err, p.Output())
	}
}

func TestConfig(t *testing.T) {
	for text, want := range map[string]string{
		``: "", `{}`: "", `{"depth": "16KB", "overload": "pass", "home_nets": ["10.0.0.0/8", "fd00::/8", "192.0.2.1"], "rule_files": ["stream-events.rules"]}`: "",
		`{"depth": "1KB"}`:                    "want 16KB to 16MB",
		`{"depth": "17MB"}`:                   "want 16KB to 16MB",
		`{"depth": "99999999999999999999MB"}`: "want it as",
		`{"depth": 7}`:                        "want a text",
		`{"overload": "maybe"}`:               "want drop or pass",
		`{"rules": "alert tcp any any -> any any (content:\"lua:\"; sid:1;)"}`:    "",
		`{"rules": "alert tcp any any -> any any (sid:1; lua : /tmp/x.lua;)"}`:    "the keyword lua",
		`{"rules": "alert tcp any any -> any any (sid:1; \\\n lua:/tmp/x.lua;)"}`: "the keyword lua",
		`{"home_nets": ["any\"\nx: y"]}`:                                          "want a network",
		`{"home_nets": ["10.0.0.0/99"]}`:                                          "want a network",
		`{"rule_files": ["../../shadow.rules"]}`:                                  "want the name of a file",
		`{"rule_files": ["x.rules\n  - /etc/passwd"]}`:                            "want the name of a file",
		`{"nonsense": 1}`: "unknown field",
		`{} {}`:           "more than one",
		`{"rules": "` + strings.Repeat("x", 1<<19) + `"}`: "want at most",
	} {
		if _, err := parseConfig([]byte(text)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
}

// The first alert of a rule is an event at once, others follow as one; many rules share one event. The log has a bounded rate.
func TestAlertsArePacked(t *testing.T) {
	var log lockedText
	a := newAlerts(logTo(&log))
	now := time.Now()
	alert := func(sid int, action string) { a.count(eveOf(sid, action), now) }
	alert(1, "blocked")
	got := a.due(now)
	if len(got) != 1 || got[0].reason != "IntrusionBlocked" || got[0].severity != "error" || got[0].message != `sid 1 "rule 1", severity 1: TCP 10.0.0.1:5 -> [fd00::2]:80` {
		t.Errorf("the first: %+v", got)
	}
	for range 500 {
		alert(1, "blocked")
	}
	if got := a.due(now.Add(time.Second)); len(got) != 0 {
		t.Errorf("a second later: %+v", got)
	}
	if got := a.due(now.Add(packEvery)); len(got) != 1 || !strings.HasSuffix(got[0].message, ", and 499 times before") {
		t.Errorf("later: %+v", got)
	}
	if n := strings.Count(log.String(), "\n"); n != linesEach {
		t.Errorf("%d lines of log within a second, want %d", n, linesEach)
	}
	for sid := range 5000 {
		alert(sid+10, "allowed")
	}
	now = now.Add(2 * packEvery)
	got = a.due(now)
	if len(got) != eventsAtIt+1 || !strings.HasPrefix(got[eventsAtIt].message, "4990 more alerts") {
		t.Errorf("of 5000 rules: %+v", got)
	}
	if len(a.tallies) > maxTallies {
		t.Errorf("%d rules are remembered", len(a.tallies))
	}
	a.due(now.Add(10 * packEvery))
	if len(a.tallies) != 0 {
		t.Errorf("%d rules are remembered after a quiet while", len(a.tallies))
	}
	a.take([]byte(`{"event_type":"stats","stats":{"ips":{"drop_reason":{"applayer_error":3}}}}`))
	if got := a.due(now.Add(15 * packEvery)); len(got) != 1 || got[0].reason != "ConnectionsUnread" || !strings.Contains(got[0].message, " 3 ") {
		t.Errorf("connections that could not be read: %+v", got)
	}
	// What is no line of Suricata's changes nothing.
	for _, line := range []string{"", "{", "null", `{"event_type": 7}`, `{"event_type": "alert", "alert": {"signature_id": "x"}}`, "\xff\xfe"} {
		a.take([]byte(line))
	}
	if got := a.due(now.Add(20 * packEvery)); len(got) != 0 {
		t.Errorf("events of lines that are none: %+v", got)
	}
	readEve(strings.NewReader(strings.Repeat("x", 3*maxEve)+"\n"+`{"event_type":"stats","stats":{"capture":{"kernel_drops":7}}}`+"\n"), a.take)
	if got := a.due(now.Add(30 * packEvery)); len(got) != 1 || got[0].reason != "PacketsLost" {
		t.Errorf("behind a line that is too long: %+v", got)
	}
}

type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func logTo(l *lockedText) *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func eveOf(sid int, action string) eve {
	return eve{Type: "alert", Source: "10.0.0.1", SPort: 5, Target: "fd00:0000:0000:0000:0000:0000:0000:0002", DPort: 80, Proto: "TCP",
		Alert: alert{Action: action, SID: int64(sid), GID: 1, Signature: fmt.Sprint("rule ", sid), Severity: 1}}
}
