package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/netns"
	"weir.dev/weir/ovsdb/ovsproc"
)

// ovs is a private Open vSwitch in a namespace of its own, with bridges joined by veth pairs.
type ovs struct {
	t     testing.TB
	proc  *ovsproc.Process
	netns string
}

func newOVS(t testing.TB) *ovs {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	if err := ovsproc.Installed(); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "weir-control-")
	if err != nil {
		t.Fatal(err)
	}
	o := ovsproc.Options{Dir: filepath.Join(dir, "ovs"), Netns: filepath.Join(dir, "ns")}
	if err := netns.Create(o.Netns, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ovsproc.At(o).Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		if err := netns.Delete(o.Netns); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	p, err := ovsproc.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return &ovs{t: t, proc: p, netns: o.Netns}
}

// listen is where switches in the namespace find the router.
func (o *ovs) listen(address string) (l net.Listener, err error) {
	err = netns.Do(o.netns, func() error {
		l, err = net.Listen("tcp", address)
		return err
	})
	return l, err
}

func (o *ovs) ip(lines ...string) {
	o.t.Helper()
	cmd := exec.Command("nsenter", "--net="+o.netns, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		o.t.Fatalf("ip: %v: %s", err, out)
	}
}

func (o *ovs) vsctl(args ...string) string {
	o.t.Helper()
	out, err := exec.Command("ovs-vsctl", append([]string{"--timeout=20", "--db=" + o.proc.DB()}, args...)...).CombinedOutput()
	if err != nil {
		o.t.Fatalf("ovs-vsctl %v: %v: %s", args, err, out)
	}
	return string(out)
}

// bridges makes bridges s1 to sN with those datapath ids.
func (o *ovs) bridges(n int, more ...string) {
	var args []string
	for i := 1; i <= n; i++ {
		b := fmt.Sprint("s", i)
		args = append(args, "--", "add-br", b, "--", "set", "bridge", b, "datapath_type=netdev", "fail_mode=secure",
			fmt.Sprintf("other-config:datapath-id=%016x", i), "other-config:dp-desc="+b, "other-config:disable-in-band=true")
		args = append(args, more...)
	}
	o.vsctl(args[1:]...)
}

// join makes a veth pair, and its ends ports of bridges: "s1:1" is port 1 of s1, "st1" an interface for the test.
func (o *ovs) join(pairs ...[2]string) {
	var ip, args []string
	for _, p := range pairs {
		names := [2]string{}
		for i, end := range p {
			names[i] = strings.ReplaceAll(end, ":", "-")
			if b, n, ok := strings.Cut(end, ":"); ok {
				args = append(args, "--", "add-port", b, names[i], "--", "set", "interface", names[i], "ofport_request="+n)
			}
		}
		ip = append(ip, fmt.Sprintf("link add %s type veth peer name %s", names[0], names[1]), "link set "+names[0]+" up", "link set "+names[1]+" up")
	}
	o.ip(ip...)
	o.vsctl(args[1:]...)
	if err := o.proc.Widen(16 << 20); err != nil { // else frames are lost while the switch waits for a processor
		o.t.Fatal(err)
	}
}

// controller tells all bridges where the router is.
func (o *ovs) controller(n int, address string, more ...string) {
	var args []string
	for i := 1; i <= n; i++ {
		b := fmt.Sprint("s", i)
		args = append(args, "--", "set-controller", b, "tcp:"+address, "--", "set", "controller", b, "max_backoff=1000", "--", "set", "bridge", b, "protocols=OpenFlow13")
		args = append(args, more...)
	}
	o.vsctl(args[1:]...)
}

// station is a packet socket at an interface of the namespace.
type station struct {
	fd   int
	mac  [6]byte
	mu   sync.Mutex
	seen map[uint64]int // numbered frames that arrived
	done chan struct{}
}

func (o *ovs) station(name string, mac [6]byte) *station {
	o.t.Helper()
	return o.stationThat(name, mac, func(*station, []byte) {})
}

// stationThat does something with each test frame that it gets.
func (o *ovs) stationThat(name string, mac [6]byte, do func(s *station, frame []byte)) *station {
	o.t.Helper()
	s := &station{mac: mac, seen: map[uint64]int{}, done: make(chan struct{})}
	err := netns.Do(o.netns, func() error {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		proto := uint16(unix.ETH_P_ALL)>>8 | uint16(unix.ETH_P_ALL)<<8
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto)); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		tv := unix.Timeval{Usec: 100_000}
		if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		return unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: i.Index})
	})
	if err != nil {
		o.t.Fatal(err)
	}
	var stop atomic.Bool
	go func() {
		defer close(s.done)
		b := make([]byte, 2048)
		for !stop.Load() {
			n, from, err := unix.Recvfrom(s.fd, b, 0)
			ll, _ := from.(*unix.SockaddrLinklayer)
			if err != nil || n < 60 || ll == nil || ll.Pkttype == unix.PACKET_OUTGOING || binary.BigEndian.Uint16(b[12:]) != testEtherType {
				continue
			}
			s.mu.Lock()
			s.seen[binary.BigEndian.Uint64(b[14:])]++
			s.mu.Unlock()
			do(s, b[:n])
		}
	}()
	o.t.Cleanup(func() {
		stop.Store(true)
		<-s.done
		unix.Close(s.fd)
	})
	return s
}

const testEtherType = 0x88b5 // IEEE 802: local experiments

// say sends an ARP request, so that the station is known.
func (s *station) say(ip [4]byte) { _, _ = unix.Write(s.fd, arp(s.mac, ip)) }

// to sends a numbered frame.
func (s *station) to(mac [6]byte, number uint64) error {
	b := append(append(append([]byte{}, mac[:]...), s.mac[:]...), testEtherType>>8, testEtherType&0xff)
	b = binary.BigEndian.AppendUint64(b, number)
	_, err := unix.Write(s.fd, append(b, make([]byte, 60-len(b))...))
	return err
}

func (s *station) count(number uint64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[number]
}

// stream sends numbered frames, 1,000 a second, until stop is called, which tells how many.
func (s *station) stream(t testing.TB, mac [6]byte) (stop func() uint64) {
	ctx, cancel := context.WithCancel(context.Background())
	sent := make(chan uint64, 1)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		n := uint64(0)
		for {
			select {
			case <-ctx.Done():
				sent <- n
				return
			case <-tick.C:
				if err := s.to(mac, n); err != nil && !errors.Is(err, unix.ENOBUFS) { // then it is lost, as the next station will tell
					t.Error(err)
				}
				n++
			}
		}
	}()
	return func() uint64 { cancel(); return <-sent }
}

// forget what has arrived.
func (s *station) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = map[uint64]int{}
}

// settle waits until all frames of a stream have arrived, or none comes any more.
func (s *station) settle(sent uint64) {
	for end, last := time.Now().Add(patience), 0; last < int(sent) && time.Now().Before(end); { // a frame after which none comes may be lost
		if now := s.arrived(sent); now > last {
			last, end = now, time.Now().Add(2*time.Second)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// gaps counts lost and doubled frames of a stream, and finds the longest run of lost ones.
func (s *station) gaps(sent uint64) (lost, doubled, longest int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	run := 0
	for n := range sent {
		switch c := s.seen[n]; {
		case c == 0:
			lost++
			run++
			longest = max(longest, run)
		default:
			run = 0
			doubled += c - 1
		}
	}
	return lost, doubled, longest
}

func (o *ovs) rig(o2 Options) *rig {
	return newRigAt(o.t, o2, "127.0.0.1:0", o.listen)
}

// flows are a bridge's entries as ovs-ofctl shows them, with their age.
func (o *ovs) flows(bridge string) string {
	o.t.Helper()
	out, err := exec.Command("ovs-ofctl", "-O", "OpenFlow13", "dump-flows", o.proc.Mgmt(bridge)).CombinedOutput()
	if err != nil {
		o.t.Fatalf("ovs-ofctl: %v: %s", err, out)
	}
	return string(out)
}

func (o *ovs) ready(r *rig, from, to *station) {
	o.t.Helper()
	probe := uint64(1 << 40)
	eventually(o.t, "a frame from one station to the other", func() string {
		from.say([4]byte{10, 0, 0, 1})
		to.say([4]byte{10, 0, 0, 2})
		probe++
		_ = from.to(to.mac, probe)
		_ = to.to(from.mac, probe)
		if to.count(probe-5) != 1 || from.count(probe-5) != 1 {
			return "not delivered"
		}
		return ""
	})
	_ = r
}

// quiet waits until all entries are in force and stay so.
func (r *rig) quiet(switches, links int) {
	r.t.Helper()
	progress := make(chan Progress, 64)
	r.c.Watch(progress)
	calm := 0
	eventually(r.t, "all in force", func() string {
		for {
			select {
			case p := <-progress:
				if p.Pending == 0 && p.Switches == switches && p.Links == links {
					calm++
				} else {
					calm = 0
				}
				if calm >= 3 {
					return ""
				}
			default:
				return "not yet"
			}
		}
	})
}

func TestOVSRingHealsACutUnderTraffic(t *testing.T) {
	t.Parallel()
	o := newOVS(t)
	o.bridges(4)
	o.join([2]string{"s1:1", "s2:2"}, [2]string{"s2:1", "s3:2"}, [2]string{"s3:1", "s4:2"}, [2]string{"s4:1", "s1:2"},
		[2]string{"s1:3", "st1"}, [2]string{"s2:3", "st2"})
	a, b := o.station("st1", mac(1)), o.station("st2", mac(2))
	r := o.rig(Options{})
	began := time.Now()
	o.controller(4, r.address)
	r.waitLinks(4)
	t.Logf("4 switches and 4 links known after %v", time.Since(began))
	o.ready(r, a, b)
	for _, c := range []struct {
		what    string
		do      func()
		bounded bool
	}{
		{"link cut", func() { o.ip("link set s1-1 down") }, true},
		{"link back", func() { o.ip("link set s1-1 up") }, true},
	} {
		r.quiet(4, map[string]int{"link cut": 4, "link back": 3}[c.what])
		b.forget()
		stop := a.stream(t, b.mac)
		eventually(t, "stream", func() string {
			if b.count(100) == 0 {
				return "not flowing"
			}
			return ""
		})
		c.do()
		want := map[string]int{"link cut": 3, "link back": 4}[c.what]
		r.waitLinks(want)
		r.quiet(4, want)
		sent := stop()
		eventually(t, "last frame", func() string {
			if b.count(sent-1) == 0 {
				return "not arrived"
			}
			return ""
		})
		lost, doubled, longest := b.gaps(sent)
		t.Logf("%s: %d of %d frames lost (1 a ms), longest gap %d ms, %d doubled", c.what, lost, sent, longest, doubled)
		if longest > 1000 {
			t.Errorf("%s: %d ms without a frame", c.what, longest)
		}
		if doubled > 0 {
			t.Errorf("%s: %d frames doubled", c.what, doubled)
		}
	}
}

func TestOVSKeepsForwardingWhileTheRouterRestarts(t *testing.T) {
	o := newOVS(t)
	o.bridges(2)
	o.join([2]string{"s1:1", "s2:1"}, [2]string{"s1:2", "st1"}, [2]string{"s2:2", "st2"})
	a, b := o.station("st1", mac(1)), o.station("st2", mac(2))
	r := o.rig(Options{})
	o.controller(2, r.address)
	r.waitLinks(1)
	o.ready(r, a, b)
	r.quiet(2, 1)
	before := strip(o.flows("s1"))
	found := fmt.Sprintf("has %d entries", len(before))
	exactly(t, r, func() string {
		b.forget()
		stop := a.stream(t, b.mac)
		eventually(t, "stream", func() string {
			if b.count(100) == 0 {
				return "not flowing"
			}
			return ""
		})
		former := r.events("SwitchConnected", found)
		r.stop()
		r.start()
		eventually(t, "the switches", func() string {
			if r.events("SwitchConnected", found) == former {
				return "none has connected"
			}
			return ""
		})
		r.quiet(2, 1)
		end := time.Now().Add(2 * time.Second) // some more rounds of link discovery
		eventually(t, "time", func() string {
			if time.Now().Before(end) {
				return "too early"
			}
			return ""
		})
		sent := stop()
		b.settle(sent)
		lost, doubled, _ := b.gaps(sent)
		said := fmt.Sprintf("%d of %d frames lost, %d doubled", lost, sent, doubled)
		t.Log(said)
		if lost+doubled == 0 {
			return ""
		}
		return said + "; lost were " + runs(sent, func(n uint64) bool { return b.count(n) == 0 })
	})
	after := strip(o.flows("s1"))
	if !slices.Equal(before, after) {
		t.Errorf("entries before\n%s\nafter\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	for line := range strings.Lines(o.flows("s1")) {
		if i := strings.Index(line, "duration="); i >= 0 {
			var age float64
			if _, err := fmt.Sscanf(line[i:], "duration=%fs", &age); err != nil || age < 2 {
				t.Errorf("made anew: %s", line)
			}
		}
	}
}

// strip leaves cookie, table, priority, match and actions.
func strip(flows string) []string {
	var out []string
	for line := range strings.Lines(flows) {
		var kept []string
		for _, f := range strings.Fields(line) {
			if !strings.HasPrefix(f, "duration=") && !strings.HasPrefix(f, "n_packets=") && !strings.HasPrefix(f, "n_bytes=") {
				kept = append(kept, f)
			}
		}
		if strings.Contains(line, "cookie=") {
			out = append(out, strings.Join(kept, " "))
		}
	}
	slices.Sort(out)
	return out
}

func TestOVSLeafSpineIsFoundWithoutLoops(t *testing.T) {
	t.Parallel()
	o := newOVS(t)
	o.bridges(6) // s1, s2 spines; s3 to s6 leaves
	var pairs [][2]string
	for leaf := 3; leaf <= 6; leaf++ {
		for spine := 1; spine <= 2; spine++ {
			pairs = append(pairs, [2]string{fmt.Sprintf("s%d:%d", leaf, spine), fmt.Sprintf("s%d:%d", spine, leaf)})
		}
		pairs = append(pairs, [2]string{fmt.Sprintf("s%d:9", leaf), fmt.Sprint("st", leaf)})
	}
	o.join(pairs...)
	var st []*station
	for leaf := 3; leaf <= 6; leaf++ {
		st = append(st, o.station(fmt.Sprint("st", leaf), mac(byte(leaf))))
	}
	r := o.rig(Options{})
	began := time.Now()
	o.controller(6, r.address)
	r.waitLinks(8)
	t.Logf("6 switches and 8 links known after %v", time.Since(began))
	for _, x := range st[1:] {
		o.ready(r, st[0], x)
	}
	r.quiet(6, 8)
	everyone := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	once := func(when string, first uint64, rounds int) {
		t.Helper()
		for round := range rounds {
			for i, from := range st {
				number := first + uint64(round*len(st)+i)
				if err := from.to(everyone, number); err != nil {
					t.Fatal(err)
				}
				for k, to := range st {
					eventually(t, when, func() string {
						if k != i && to.count(number) == 0 {
							return fmt.Sprintf("a broadcast of station %d is not at station %d", i, k)
						}
						return ""
					})
				}
			}
		}
		for k, to := range st {
			for n := range rounds * len(st) {
				want := 1
				if n%len(st) == k {
					want = 0
				}
				if got := to.count(first + uint64(n)); got != want {
					t.Errorf("%s: station %d has a broadcast of station %d %d times, want %d", when, k, n%len(st), got, want)
				}
			}
		}
	}
	before := [2]int{o.flooded("s1"), o.flooded("s2")}
	const rounds = 10
	once("at first", 1<<32, rounds)
	eventually(t, "floods over both spines", func() string { // their counters come late
		if a, b := o.flooded("s1")-before[0], o.flooded("s2")-before[1]; a < 2*rounds || b < 2*rounds {
			return fmt.Sprintf("s1 has flooded %d frames and s2 %d, want %d: those of two stations each", a, b, 2*rounds)
		}
		return ""
	})
	for i, cut := range []string{"s1-3", "s2-4"} { // of the one tree, then of the other
		stop := make(chan struct{})
		var sending sync.WaitGroup
		first := uint64(2+i) << 32
		var sent [2]uint64
		for k := range sent { // an odd and an even sender
			sending.Go(func() {
				tick := time.NewTicker(5 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-stop:
						return
					case <-tick.C:
						if err := st[k].to(everyone, first+uint64(k)<<24+sent[k]); err != nil && !errors.Is(err, unix.ENOBUFS) {
							t.Error(err)
						}
						sent[k]++
					}
				}
			})
		}
		eventually(t, "broadcasts", func() string {
			if st[3].count(first+20) == 0 || st[3].count(first+1<<24+20) == 0 {
				return "not flowing"
			}
			return ""
		})
		o.ip("link set " + cut + " down")
		r.waitLinks(7 - i)
		r.quiet(6, 7-i)
		close(stop)
		sending.Wait()
		once("after the cut of "+cut, first+1<<30, 3)
		for k := range sent {
			for n := range sent[k] {
				for i, to := range st {
					if got := to.count(first + uint64(k)<<24 + n); got > 1 || i == k && got > 0 {
						t.Errorf("cut of %s: broadcast %d of station %d came to station %d %d times", cut, n, k, i, got)
					}
				}
			}
		}
		t.Logf("cut of %s: %d and %d broadcasts, none doubled", cut, sent[0], sent[1])
	}
}

// flooded is how many frames a bridge has flooded by what is the same for all ports.
func (o *ovs) flooded(bridge string) (packets int) {
	for line := range strings.Lines(o.flows(bridge)) {
		if strings.Contains(line, "table=1,") && (strings.Contains(line, "priority=0 ") || strings.Contains(line, "priority=1,")) {
			n := 0
			if _, err := fmt.Sscanf(line[strings.Index(line, "n_packets="):], "n_packets=%d", &n); err != nil {
				o.t.Fatalf("%v: %s", err, line)
			}
			packets += n
		}
	}
	return packets
}

func TestOVSThatSpeaksOnly10IsTold(t *testing.T) {
	t.Parallel()
	o := newOVS(t)
	o.bridges(1)
	r := o.rig(Options{})
	o.vsctl("set-controller", "s1", "tcp:"+r.address, "--", "set", "bridge", "s1", "protocols=OpenFlow10")
	r.waitEvent("SwitchRefused", "does not speak OpenFlow 1.3")
	if n := len(r.switches()); n != 0 {
		t.Errorf("%d switches", n)
	}
	o.vsctl("set", "bridge", "s1", "protocols=OpenFlow10,OpenFlow13")
	eventually(t, "the switch", func() string {
		if r.switches()["s1"].Status.State != "connected" {
			return "not connected"
		}
		return ""
	})
}

func TestGarbageConcernsItsConnectionOnly(t *testing.T) {
	t.Parallel()
	o := newOVS(t)
	o.bridges(1)
	r := o.rig(Options{})
	o.controller(1, r.address)
	eventually(t, "the switch", func() string {
		if r.switches()["s1"].Status.State != "connected" {
			return "not connected"
		}
		return ""
	})
	for _, garbage := range [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: weir\r\n\r\n"), bytes.Repeat([]byte{0xff}, 4096), {4, 0, 0, 3, 0, 0, 0, 0}, {0x16, 3, 1, 2, 0, 1},
		{4, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 0x10, 4, 6, 0xff, 0xff, 0, 0, 0, 2},
	} {
		var c net.Conn
		err := netns.Do(o.netns, func() (err error) { c, err = net.Dial("tcp", r.address); return err })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(garbage); err != nil {
			t.Fatal(err)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(patience))
		b := make([]byte, 4096)
		for {
			if _, err := c.Read(b); err != nil {
				if os.IsTimeout(err) {
					t.Errorf("%q: the connection is still open", garbage[:min(8, len(garbage))])
				}
				break
			}
		}
		c.Close()
	}
	r.waitEvent("SwitchRefused", "no switch")
	if s := r.switches()["s1"].Status; s.State != "connected" {
		t.Errorf("s1: %+v", s)
	}
	if _, err := r.c.SwitchRules(t.Context(), "s1"); err != nil {
		t.Error(err)
	}
}

// TestOVSWithASmallTable: the bridge says how large its table is. Stations beyond that are left out rather than refused, and reached.
func TestOVSWithASmallTable(t *testing.T) {
	t.Parallel()
	o := newOVS(t)
	o.bridges(2)
	o.join([2]string{"s1:1", "s2:1"}, [2]string{"s1:2", "st1"}, [2]string{"s2:2", "st2"})
	o.vsctl("--", "--id=@t", "create", "flow_table", "flow_limit=20", "--", "set", "bridge", "s2", "flow_tables:1=@t")
	a, b := o.station("st1", mac(1)), o.station("st2", mac(2))
	r := o.rig(Options{})
	o.controller(2, r.address)
	r.waitLinks(1)
	o.ready(r, a, b)
	const stations = 14 // 20 without another one and a quarter
	eventually(t, "the entries of stations", func() string {
		at := o.flows("s1")
		for i := range byte(30) { // what a busy machine loses is said again
			if m := mac(100 + i); !strings.Contains(at, "dl_dst="+m.String()+" ") {
				_, _ = unix.Write(a.fd, arp(m, [4]byte{10, 0, 0, 100 + i}))
			}
		}
		if n := strings.Count(at, "priority=900,"); n != 32 {
			return fmt.Sprintf("%d at s1, want 32", n)
		}
		if n := strings.Count(o.flows("s2"), "priority=900,"); n != stations {
			return fmt.Sprintf("%d, want %d", n, stations)
		}
		return ""
	})
	r.waitEvent("TableTooSmall", "switch s2: table 1 holds 20 entries; default forwarding needs")
	for i := range 30 { // each has an entry, or is flooded to
		n := uint64(1000 + i)
		eventually(t, "a frame to a station", func() string {
			if err := b.to(mac(byte(100+i)), n); err != nil {
				return err.Error()
			}
			if a.count(n) == 0 {
				return "not delivered"
			}
			return ""
		})
	}
	counters, err := r.c.SwitchCounters(t.Context(), "s1")
	if err != nil || len(counters.Ports) != 2 || counters.Ports[0].Number != 1 || counters.Ports[1].Number != 2 {
		t.Fatalf("counters %+v, %v: want those of ports 1 and 2", counters, err)
	}
	if link, station := counters.Ports[0], counters.Ports[1]; link.Rx.Packets < 30 || link.Rx.Bytes == 0 || station.Tx.Packets < 30 { // a frame to each station
		t.Errorf("counters %+v", counters.Ports)
	}
	l, err := r.client.Events().List(t.Context(), api.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range l.Items {
		if e.Reason == "TableFull" || e.Reason == "EntryRefused" {
			t.Errorf("the switch had to refuse something: %s", e.Message)
		}
	}
	eventually(t, "the switch's status", func() string {
		if st := r.switches()["s2"].Status; !strings.Contains(st.Message, "table 1 holds 20 entries") {
			return st.Message
		}
		return ""
	})
}
