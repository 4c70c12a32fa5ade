package settle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"weir.dev/weir/agent/socket"
	"weir.dev/weir/datapath"
)

func TestParse(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, tt := range []struct {
		line string
		want datapath.Settlement
		err  string
	}{
		{"pass tcp 10.9.0.1:4000 10.9.0.2:80", datapath.Settlement{Verdict: datapath.Pass,
			Flow: datapath.Flow{Protocol: unix.IPPROTO_TCP, Src: at("10.9.0.1:4000"), Dst: at("10.9.0.2:80"), VLAN: datapath.NoVLAN}}, ""},
		{" drop  udp\t[fd57::1]:53 [fd57::2]:5353 oneway vlan 7\r\n", datapath.Settlement{Verdict: datapath.Discard, OneWay: true,
			Flow: datapath.Flow{Protocol: unix.IPPROTO_UDP, Src: at("[fd57::1]:53"), Dst: at("[fd57::2]:5353"), VLAN: 7}}, ""},
		{"judge icmp 10.9.0.1 10.9.0.2 id 9 vlan 0", datapath.Settlement{Verdict: datapath.Judge,
			Flow: datapath.Flow{Protocol: unix.IPPROTO_ICMP, Src: at("10.9.0.1:9"), Dst: at("10.9.0.2:9")}}, ""},
		{"pass udp 10.9.0.1:4000 10.9.0.2:80 oneway at in", datapath.Settlement{Verdict: datapath.Pass, OneWay: true, At: "in",
			Flow: datapath.Flow{Protocol: unix.IPPROTO_UDP, Src: at("10.9.0.1:4000"), Dst: at("10.9.0.2:80"), VLAN: datapath.NoVLAN}}, ""},
		{"pass tcp 10.9.0.1:4000 10.9.0.2:80 oneway at in rewrite src 10.9.0.100:50001", datapath.Settlement{Verdict: datapath.Pass, OneWay: true, At: "in",
			Rewrite: &datapath.Rewrite{To: at("10.9.0.100:50001")},
			Flow:    datapath.Flow{Protocol: unix.IPPROTO_TCP, Src: at("10.9.0.1:4000"), Dst: at("10.9.0.2:80"), VLAN: datapath.NoVLAN}}, ""},
		{"pass udp [fd57::2]:80 [fd57::3]:4 rewrite dst [fd57::1]:4000 mac 02:00:00:00:00:09 oneway vlan 7", datapath.Settlement{Verdict: datapath.Pass, OneWay: true,
			Rewrite: &datapath.Rewrite{Target: true, To: at("[fd57::1]:4000"), MAC: [6]byte{2, 0, 0, 0, 0, 9}},
			Flow:    datapath.Flow{Protocol: unix.IPPROTO_UDP, Src: at("[fd57::2]:80"), Dst: at("[fd57::3]:4"), VLAN: 7}}, ""},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 rewrite src 10.9.0.3:3", datapath.Settlement{}, "one direction"},
		{"drop tcp 10.9.0.1:1 10.9.0.2:2 oneway rewrite src 10.9.0.3:3", datapath.Settlement{}, "belongs to pass"},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 oneway rewrite src [fd57::1]:3", datapath.Settlement{}, "the flow's family"},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 oneway rewrite up 10.9.0.3:3", datapath.Settlement{}, "want src or dst"},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 oneway rewrite src 10.9.0.3", datapath.Settlement{}, `"10.9.0.3"`},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 oneway rewrite src", datapath.Settlement{}, `"rewrite"`},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 oneway mac 02:00:00:00:00:09", datapath.Settlement{}, `"mac"`},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 oneway rewrite src 10.9.0.3:3 mac 01:00:00:00:00:09", datapath.Settlement{}, "one station"},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 oneway rewrite src 10.9.0.3:3 mac 02:00:00:00:00:09:02:02", datapath.Settlement{}, "one station"},
		{"pass icmp 10.9.0.1 10.9.0.2 id 9 oneway rewrite src 10.9.0.3:9", datapath.Settlement{}, "tcp or udp"},
		{"pass icmp fd57::1 fd57::2 id 9", datapath.Settlement{Verdict: datapath.Pass,
			Flow: datapath.Flow{Protocol: unix.IPPROTO_ICMPV6, Src: at("[fd57::1]:9"), Dst: at("[fd57::2]:9"), VLAN: datapath.NoVLAN}}, ""},
		{"", datapath.Settlement{}, "want pass, drop or judge"},
		{"reset all", datapath.Settlement{}, "want pass, drop or judge"},
		{"allow tcp 10.9.0.1:1 10.9.0.2:2", datapath.Settlement{}, `"allow"`},
		{"pass sctp 10.9.0.1:1 10.9.0.2:2", datapath.Settlement{}, `"sctp"`},
		{"pass tcp 10.9.0.1 10.9.0.2:2", datapath.Settlement{}, `"10.9.0.1" is no address with a port`},
		{"pass tcp host:1 10.9.0.2:2", datapath.Settlement{}, `"host:1"`},
		{"pass tcp 10.9.0.1:1 10.9.0.2:65536", datapath.Settlement{}, `"10.9.0.2:65536"`},
		{"pass tcp 10.9.0.1:1 [fd57::2]:2", datapath.Settlement{}, "one family"},
		{"pass tcp [fe80::1%eth0]:1 [fd57::2]:2", datapath.Settlement{}, "two addresses"},
		{"pass tcp [::ffff:10.9.0.1]:1 [::ffff:10.9.0.2]:2", datapath.Settlement{}, "two addresses"},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 vlan 4096", datapath.Settlement{}, `"4096"`},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 vlan", datapath.Settlement{}, `"vlan"`},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 twoway", datapath.Settlement{}, `"twoway"`},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 at tap", datapath.Settlement{}, `"tap"`},
		{"pass tcp 10.9.0.1:1 10.9.0.2:2 at", datapath.Settlement{}, `"at"`},
		{"pass icmp 10.9.0.1 10.9.0.2", datapath.Settlement{}, "id N"},
		{"pass icmp 10.9.0.1 10.9.0.2 id 65536", datapath.Settlement{}, `"65536"`},
	} {
		got, reset, err := Parse(tt.line)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: %v; want %s", tt.line, err, tt.err)
			}
			continue
		}
		if d := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.AddrPort{})); d != "" || err != nil || reset {
			t.Errorf("%q: %v, reset %t: %s", tt.line, err, reset, d)
		}
	}
	if _, reset, err := Parse("reset\n"); !reset || err != nil {
		t.Errorf("reset: %t, %v", reset, err)
	}
}

// What is accepted is sound, whatever a function sends.
func FuzzParse(f *testing.F) {
	f.Add("pass tcp 10.9.0.1:4000 10.9.0.2:80 vlan 7 oneway")
	f.Add("judge icmp fd57::1 fd57::2 id 9")
	f.Add("pass udp 10.9.0.1:4000 10.9.0.2:80 oneway at in rewrite dst 10.9.0.3:80 mac 02:00:00:00:00:09")
	f.Add("pass tcp [fd57::1]:4000 [fd57::2]:80 oneway rewrite src [fd57::3]:1")
	f.Fuzz(func(t *testing.T, line string) {
		s, reset, err := Parse(line)
		if err == nil && !reset && s.Flow.Check() != nil {
			t.Errorf("%q: %v", line, s.Flow.Check())
		}
		if r := s.Rewrite; err == nil && r != nil && (reset || s.Verdict != datapath.Pass || !s.OneWay || s.Flow.Protocol != unix.IPPROTO_TCP && s.Flow.Protocol != unix.IPPROTO_UDP ||
			r.To.Addr().Unmap().BitLen() != s.Flow.Src.Addr().BitLen() || r.To.Addr().Zone() != "" || r.MAC[0]&1 != 0) {
			t.Errorf("%q: %+v of %+v", line, r, s)
		}
	})
}

// table is a switch in memory.
type table struct {
	mu     sync.Mutex
	said   []string
	resets int
	err    error
}

func (s *table) SettleFlow(_ context.Context, function string, v datapath.Settlement) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, fmt.Sprint(function, " ", v.Verdict, " ", v.Flow.Src))
	return 2, s.err
}

func (s *table) UnsettleFlows(context.Context, string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resets++
	return s.err
}

func (s *table) SettledFlows(context.Context, string, datapath.SettledQuery) (datapath.SettledFlows, error) {
	return datapath.SettledFlows{}, nil
}

func (s *table) answers(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func serve(t *testing.T, to datapath.Settler, instance func(socket.Space) (string, bool)) (*Server, string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "settle.sock")
	s, err := Serve(filepath.Join(dir, "fresh"), path, to, instance)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, path
}

func dial(t *testing.T, path string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

func say(t *testing.T, c net.Conn, r *bufio.Reader, line string) string {
	t.Helper()
	if _, err := c.Write([]byte(line + "\n")); err != nil {
		t.Fatal(err)
	}
	answer, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return strings.TrimSpace(answer)
}

const line = "pass udp 10.9.0.1:4000 10.9.0.2:7"

func TestLinesAreCarriedOutAndAnswered(t *testing.T) {
	to := &table{}
	_, path := serve(t, to, func(s socket.Space) (string, bool) {
		own, err := socket.SpaceAt("/proc/self/ns/net")
		return "fw~", err == nil && s == own
	})
	c, r := dial(t, path)
	for line, want := range map[string]string{line: "ok 2", "reset": "ok 0", "pass it": "error: want pass", "\x00\xff\xfe": "error: want pass"} {
		if got := say(t, c, r, line); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	to.answers(datapath.ErrEarly)
	if got := say(t, c, r, line); got != "early" {
		t.Error(got)
	}
	to.answers(datapath.ErrNotGiven)
	if got := say(t, c, r, line); got != "not-given" {
		t.Error(got)
	}
	to.answers(errors.New("broken"))
	if got := say(t, c, r, line); got != "error: broken" {
		t.Error(got)
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if d := cmp.Diff([]string{"fw~ 1 10.9.0.1:4000", "fw~ 1 10.9.0.1:4000", "fw~ 1 10.9.0.1:4000", "fw~ 1 10.9.0.1:4000"}, to.said); d != "" || to.resets != 1 {
		t.Error(to.resets, d)
	}
}

// What ends without a newline is a line, too: printf.
func TestTheLastLineNeedsNoEnd(t *testing.T) {
	_, path := serve(t, &table{}, func(socket.Space) (string, bool) { return "fw", true })
	c, r := dial(t, path)
	if _, err := c.Write([]byte(line)); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if answer, err := r.ReadString('\n'); answer != "ok 2\n" {
		t.Error(answer, err)
	}
}

// A process that is not in the network namespace of an instance has no say, and neither has the instance that has been replaced.
func TestOnlyTheInstanceSpeaks(t *testing.T) {
	to := &table{}
	var mu sync.Mutex
	now := socket.Space{}
	_, path := serve(t, to, func(s socket.Space) (string, bool) {
		mu.Lock()
		defer mu.Unlock()
		return "fw", s == now
	})
	c, r := dial(t, path)
	if got := say(t, c, r, line); !strings.Contains(got, "not in the network namespace") {
		t.Error(got)
	}
	own, err := socket.SpaceAt("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	now = own
	mu.Unlock()
	if got := say(t, c, r, line); got != "ok 2" {
		t.Error(got)
	}
	mu.Lock()
	now = socket.Space{}
	mu.Unlock()
	if got := say(t, c, r, "reset"); !strings.Contains(got, "not in the network namespace") {
		t.Error(got)
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if len(to.said) != 1 || to.resets != 0 {
		t.Error(to.said, to.resets)
	}
}

// Long lines, many lines that nobody waits for, and many connections take a bounded part of the agent, and others are served afterwards.
func TestWhatAFunctionSaysIsBounded(t *testing.T) {
	to := &table{}
	s, path := serve(t, to, func(socket.Space) (string, bool) { return "fw", true })
	c, r := dial(t, path)
	if got := say(t, c, r, strings.Repeat("x", maxLine)); !strings.Contains(got, "longer than") {
		t.Error(got)
	}
	if _, err := r.ReadString('\n'); err == nil {
		t.Error("a connection goes on after a line that is too long")
	}
	// One that writes without an end and reads nothing loses its connection.
	deaf, _ := dial(t, path)
	flood := []byte(strings.Repeat("x\n", 1000)) // the answers are long
	for lines := 0; ; lines += 1000 {
		if _, err := deaf.Write(flood); err != nil {
			break
		}
		if lines > 1e6 {
			t.Fatal("a million lines were taken, although nobody reads the answers")
		}
	}
	// What comes too fast waits.
	c, r = dial(t, path)
	const more = 1000
	begun := time.Now()
	go func() { _, _ = c.Write([]byte(strings.Repeat(line+"\n", burst+more))) }()
	for range burst + more {
		if answer, err := r.ReadString('\n'); answer != "ok 2\n" {
			t.Fatal(answer, err)
		}
	}
	if took := time.Since(begun); took < more*perLine {
		t.Errorf("%d lines were carried out in %s", burst+more, took)
	}
	before := descriptors(t)
	const many = 200
	var all []net.Conn
	for range many {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); <-tick.C {
		if took := descriptors(t) - before - many; took > conns+1 {
			t.Fatalf("%d connections took %d descriptors of the agent", many, took)
		}
	}
	for _, c := range all {
		c.Close()
	}
	c, r = dial(t, path)
	if got := say(t, c, r, line); got != "ok 2" {
		t.Error(got)
	}
	s.Close()
	if _, err := r.ReadString('\n'); err == nil {
		t.Error("a connection goes on after the end")
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left")
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
