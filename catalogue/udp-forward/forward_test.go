package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/netns"
)

func TestMain(m *testing.M) { rig.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const both = `{"addresses": ["10.77.0.9/24", "2001:db8:77::9/64"], "relays": [{"port": 7000, "to": "10.77.0.2:7001"}, {"port": 7000, "to": "[2001:db8:77::2]:7001"}, {"port": 7002, "to": "10.77.0.2:7002"}]}`

// start runs the function between two stations, which have IPv6, too, and waits until it forwards.
func start(t testing.TB, config string, args ...string) (*rig.Rig, *rig.Process) {
	t.Helper()
	r := rig.New(t, false)
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	must(t, os.WriteFile(file, []byte(config), 0o644))
	for s, all := range map[*rig.Station][]string{r.Client: {"2001:db8:77::1/64", "fe80::1/64"}, r.Server: {"2001:db8:77::2/64", "fe80::2/64"}} {
		for _, link := range []string{"lo", s.Link.Name} {
			r.Do(s.Netns, func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/disable_ipv6", []byte("0"), 0) })
		}
		for _, a := range all {
			rig.Command(t, s, "ip", "-6", "addr", "add", a, "dev", s.Link.Name, "nodad")
		}
	}
	p := r.Start(rig.Program(t), append([]string{"-config", file, "-probe", rig.WriteProbe(t, dir), "-events", filepath.Join(dir, "events.sock")}, args...)...)
	p.Await("relays in force")
	rig.Eventually(t, "probes pass", func() bool {
		r.Client.Send(rig.Probe(0))
		return r.Server.Receive(20*time.Millisecond) != nil
	})
	return r, p
}

func listen(t testing.TB, s *rig.Station, addr string) net.PacketConn {
	t.Helper()
	var l net.PacketConn
	must(t, netns.Do(s.Netns, func() (err error) { l, err = net.ListenPacket("udp", addr); return err }))
	t.Cleanup(func() { l.Close() })
	return l
}

// Datagrams of real clients come as new ones, from the function's address, by both families; the function answers pings, and what is not for it passes.
func TestDatagramsAreSentOn(t *testing.T) {
	socat, err := exec.LookPath("socat")
	must(t, err)
	t.Run("by the function", func(t *testing.T) { testDatagramsAreSentOn(t, []int{0, 28, 1, 1000, 1452}) })
	t.Run("by socat", func(t *testing.T) { testDatagramsAreSentOn(t, []int{28, 1, 1000, 1452}, "-socat", socat) }) // it leaves out those without data
}

func testDatagramsAreSentOn(t *testing.T, sizes []int, args ...string) {
	r, p := start(t, both, args...)
	for _, tt := range []struct{ at, to, from string }{{"10.77.0.9:7000", "10.77.0.2:7001", "10.77.0.9:7000"}, {"[2001:db8:77::9]:7000", "[2001:db8:77::2]:7001", "[2001:db8:77::9]:7000"}} {
		l := listen(t, r.Server, tt.to)
		c, err := r.Client.Dial(t.Context(), "udp", tt.at)
		must(t, err)
		defer c.Close()
		for _, size := range sizes {
			want, got := bytes.Repeat([]byte{byte(size)}, size), make([]byte, 65536)
			rig.Eventually(t, fmt.Sprintf("%d bytes to %s", size, tt.at), func() bool {
				_, err := c.Write(want)
				must(t, err)
				must(t, l.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
				n, from, err := l.ReadFrom(got)
				return err == nil && bytes.Equal(got[:n], want) && from.String() == tt.from
			})
		}
	}
	rig.Command(t, r.Client, "ping", "-q", "-c", "2", "-i", "0.05", "-W", "2", "10.77.0.9")
	rig.Command(t, r.Server, "ping", "-q", "-c", "2", "-i", "0.05", "-W", "2", "2001:db8:77::9")
	rig.Command(t, r.Client, "ping", "-q", "-c", "2", "-i", "0.05", "-W", "2", "10.77.0.2")
	r.PassUnchanged(100, 60, []byte{0x12, 0x34}, []byte{0x81, 0, 0, 42, 8, 0, 0x45}, []byte{0x88, 0xa8, 0, 1}, []byte{8, 0, 0x45})
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
	if !strings.Contains(p.Output(), "forwarded=") {
		t.Error("no counters at the end")
	}
}

// bySocat starts the function with socat, and gives a target that listens and a client of its first relay.
func bySocat(t *testing.T) (r *rig.Rig, target net.PacketConn, client net.Conn) {
	t.Helper()
	socat, err := exec.LookPath("socat")
	must(t, err)
	r, _ = start(t, both, "-socat", socat)
	target = listen(t, r.Server, "10.77.0.2:7001")
	client, err = r.Client.Dial(t.Context(), "udp", "10.77.0.9:7000")
	must(t, err)
	t.Cleanup(func() { client.Close() })
	return r, target, client
}

// Datagrams that a sender lets the hardware cut come to socat as they will be on the wire.
func TestSocatGetsSingleDatagrams(t *testing.T) {
	_, l, c := bySocat(t)
	raw, err := c.(*net.UDPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, 400) }))
	must(t, err)
	got := make([]byte, 2000)
	rig.Eventually(t, "datagrams of 400 bytes, and of the rest", func() bool {
		_, err := c.Write(make([]byte, 900))
		must(t, err)
		for _, size := range []int{400, 400, 100} {
			must(t, l.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
			if n, _, err := l.ReadFrom(got); err != nil {
				return false
			} else if n != size {
				t.Fatalf("a datagram of %d bytes, want %d", n, size)
			}
		}
		return true
	})
}

// socat gets what the loop gives it, and nothing by a port, whoever knows its inner addresses and the port's MAC address.
func TestNothingReachesSocatByAPort(t *testing.T) {
	r, l, c := bySocat(t)
	for s, port := range map[*rig.Station]string{r.Client: "in", r.Server: "out"} {
		header := append([]byte{2, 9, 9, 9, 9, 2}, r.MAC(port)...) // MakeUDP makes an answer
		for _, from := range []netip.Addr{netip.AddrFrom4([4]byte{10, 77, 0, 1}), clientAddress, targetAddress(0)} {
			for relay := range uint16(3) {
				p := nf.Packet{Type: nf.EtherIPv4, Network: 14, Src: stackAddress, Dst: from, SrcPort: receiveFrom + relay, DstPort: receiveFrom}
				s.Send(p.MakeUDP(append(header, 8, 0), []byte("by "+port)).Data)
			}
		}
	}
	rig.Eventually(t, "a datagram that is behind them arrives, and none of them", func() bool {
		_, err := c.Write([]byte("by the loop"))
		must(t, err)
		got := make([]byte, 100)
		must(t, l.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		n, _, err := l.ReadFrom(got)
		if err == nil && string(got[:n]) != "by the loop" {
			t.Fatalf("%q was sent on", got[:n])
		}
		return err == nil
	})
}

// When socat ends, so does the function: nothing would be sent on.
func TestTheFunctionEndsWithSocat(t *testing.T) {
	socat, err := exec.LookPath("socat")
	must(t, err)
	r, p := start(t, both, "-socat", socat)
	out := rig.Command(t, r.Client, "pgrep", "-P", fmt.Sprint(p.PID()), "socat")
	pids := strings.Fields(out)
	if len(pids) != 3 {
		t.Fatalf("processes of socat: %q, want three", pids)
	}
	pid, err := strconv.Atoi(pids[1])
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	if err := p.End(); err == nil || !strings.Contains(p.Output(), "socat of relay 2 has ended") {
		t.Errorf("%v: %s", err, p.Output())
	}
}

// datagram by IPv4 or IPv6 to the function.
func datagram(v6 bool, port uint16, data []byte) []byte {
	src, dst := netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.9")
	kind := uint16(nf.EtherIPv4)
	if v6 {
		src, dst, kind = netip.MustParseAddr("2001:db8:77::1"), netip.MustParseAddr("2001:db8:77::9"), nf.EtherIPv6
	}
	header := []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, byte(kind >> 8), byte(kind)}
	p := nf.Packet{Type: kind, Network: 14, Src: dst, Dst: src, SrcPort: port, DstPort: 4000} // MakeUDP makes an answer
	return p.MakeUDP(append(header[6:12:12], append(header[:6:6], header[12:]...)...), data).Data
}

// A million frames that were datagrams until somebody changed bytes: nothing crashes, what leaves by the function's word is a right datagram to a configured
// place, and nothing for the function's own addresses passes.
func TestAMillionFrames(t *testing.T) {
	frames := 1_000_000
	if testing.Short() {
		frames = 100_000
	}
	cfg, err := parseConfig([]byte(both))
	must(t, err)
	l := newForwarder(cfg, [6]byte{2, 0, 0, 0, 0, 8})
	for _, to := range l.relays {
		to.mac.Store(&[6]byte{2, 0, 0, 0, 0, 2})
	}
	var given []byte
	l.send = func(d nf.Dir, f nf.Frame) {
		p, q := nf.Decode(f.Data), nf.Decode(given)
		to := l.relays[netip.AddrPortFrom(q.Dst, q.DstPort)]
		if d != nf.Up || to == nil || p.Bad != "" || !p.Intact(f.Data) || netip.AddrPortFrom(p.Dst, p.DstPort) != to.to || netip.AddrPortFrom(p.Src, p.SrcPort) != to.from || !bytes.Equal(p.Data(f.Data), q.Data(given)) {
			t.Fatalf("% x\nbecame\n% x", given, f.Data)
		}
	}
	var seeds [][]byte
	for _, v6 := range []bool{false, true} {
		for _, port := range []uint16{7000, 7002, 9} {
			seeds = append(seeds, datagram(v6, port, []byte("some data of a datagram")))
		}
	}
	random := rand.New(rand.NewPCG(3, 4))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range frames {
		f := bytes.Clone(seeds[random.IntN(len(seeds))])
		for range random.IntN(6) {
			f[random.IntN(len(f))] = byte(random.Uint32())
		}
		f = f[:14+random.IntN(len(f)-13)]
		if random.IntN(4) > 0 {
			f = f[:cap(f)][:max(len(f), 60)]
		}
		if p := nf.Decode(f); p.Bad == "" && p.Payload > 0 && random.IntN(2) == 0 {
			p.Complete(f)
		}
		given = f
		for _, d := range []nf.Dir{nf.Up, nf.Down} {
			if p := nf.Decode(f); l.handle(d, nf.NewFrame(f)) == nf.Pass && l.addresses[p.Dst] {
				t.Fatalf("%s: passed: % x", d, f)
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("%d frames: %+v; %d KB more memory", frames, l.count, (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>10)
	if l.count.forwarded == 0 || l.count.malformed == 0 || after.HeapAlloc > before.HeapAlloc+4<<20 {
		t.Errorf("%+v, %d bytes more", l.count, after.HeapAlloc-before.HeapAlloc)
	}
}

func TestParseConfig(t *testing.T) {
	with := func(relays string) string { return `{"addresses": ["10.0.0.9/24"], "relays": [` + relays + `]}` }
	for text, want := range map[string]string{
		``: "want at least one", `{}`: "want at least one", with(``): "relays: 0: want 1 to 64", `{"addresses": ["10.0.0.9"], "relays": []}`: "no '/'", `{"addresses": ["224.0.0.9/24"], "relays": [{}]}`: "of a station",
		`{"addresses": ["10.0.0.9/24", "10.0.1.9/24"], "relays": [{}]}`: "at most one", `{"addresses": ["10.0.0.9/24"], "gateways": ["10.0.1.1"], "relays": [{}]}`: "in the network", with(`{"to": "10.0.0.2:7"}`): "port: want 1",
		with(`{"port": 7}`): "want a station's address", with(`{"port": 7, "to": "10.0.0.2:0"}`): "want a station's address", with(`{"port": 7, "to": "[2001:db8::1]:7"}`): "none of this family", with(`{"port": 7, "to": "10.0.0.9:7"}`): "it is the function's own",
		with(`{"port": 7, "to": "10.0.0.2:7"}, {"port": 7, "to": "10.0.0.3:7"}`): "given twice", with(`{"x": 1}`): "unknown field",
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q", text, err, want)
		}
	}
}

// BenchmarkForward sends datagrams through the function, one at a time, to a station behind it.
func BenchmarkForward(b *testing.B) {
	r, _ := start(b, both)
	l := listen(b, r.Server, "10.77.0.2:7001")
	c, err := r.Client.Dial(b.Context(), "udp", "10.77.0.9:7000")
	must(b, err)
	defer c.Close()
	data, got := make([]byte, 28), make([]byte, 64)
	come := func() bool {
		_, _ = c.Write(data)
		_ = l.SetReadDeadline(time.Now().Add(time.Second))
		_, _, err := l.ReadFrom(got)
		return err == nil
	}
	rig.Eventually(b, "a datagram", come)
	lost := 0
	for b.Loop() {
		if !come() {
			lost++
		}
	}
	b.ReportMetric(float64(lost), "lost")
}
