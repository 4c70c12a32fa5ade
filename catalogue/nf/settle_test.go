package nf

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func ether(tag string, rest ...byte) []byte {
	return append([]byte("\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01"+tag), rest...)
}

const (
	v4 = "\x08\x00\x45\x00\x00\x28\x00\x00\x40\x00\x40\x06\x00\x00\x0a\x09\x00\x01\x0a\x09\x00\x02" // to 40 bytes, TCP
	v6 = "\x86\xdd\x60\x00\x00\x00\x00\x08\x3a\x40" + "\xfd\x57\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
		"\xfd\x57\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02" // to 8 bytes of ICMPv6
)

func tcpFrame(tag string, flags byte) []byte {
	return append(ether(tag+v4), 0x0f, 0xa0, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0)
}

func TestFlowsOfFramesAreNamed(t *testing.T) {
	udp := []byte(strings.Replace(string(ether(v4))+"\x0f\xa0\x00\x35\x00\x14\x00\x00"+strings.Repeat("x", 12), "\x40\x06", "\x40\x11", 1))
	ping := append(ether(v6), 128, 0, 0, 0, 0, 9, 0, 1)
	pong := append(ether(v6), 129, 0, 0, 0, 0, 9, 0, 1)
	fragment := []byte(strings.Replace(string(tcpFrame("", ACK)), "\x40\x00\x40\x06", "\x20\x00\x40\x06", 1))
	for what, tt := range map[string]struct {
		frame []byte
		want  string
	}{
		"TCP":         {tcpFrame("", ACK), "pass tcp 10.9.0.1:4000 10.9.0.2:80"},
		"a VLAN":      {tcpFrame("\x81\x00\x60\x07", ACK), "pass tcp 10.9.0.1:4000 10.9.0.2:80 vlan 7"},
		"a priority":  {tcpFrame("\x81\x00\x60\x00", ACK), "pass tcp 10.9.0.1:4000 10.9.0.2:80"},
		"UDP":         {udp, "pass udp 10.9.0.1:4000 10.9.0.2:53"},
		"a request":   {ping, "pass icmp fd57::1 fd57::2 id 9"},
		"a reply":     {pong, "pass icmp fd57::2 fd57::1 id 9"},
		"an error":    {append(ether(v6), 1, 0, 0, 0, 0, 9, 0, 1), ""},
		"a fragment":  {fragment, ""},
		"802.1ad":     {tcpFrame("\x88\xa8\x00\x07", ACK), ""},
		"two tags":    {tcpFrame("\x81\x00\x00\x07\x81\x00\x00\x08", ACK), ""},
		"no IP":       {ether("\x12\x34", 1, 2, 3), ""},
		"cut short":   {tcpFrame("", ACK)[:40], ""},
		"no Ethernet": {[]byte("x"), ""},
	} {
		f, ok := flowOf(tt.frame)
		if got := f.line("pass"); ok != (tt.want != "") || ok && got != tt.want {
			t.Errorf("%s: %t, %q; want %q", what, ok, got, tt.want)
		}
	}
}

// platform is a socket that answers, and keeps the lines.
type platform struct {
	t     *testing.T
	l     net.Listener
	lines chan string
}

func newPlatform(t *testing.T, path string, answer func(line string) string) *platform {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	p := &platform{t: t, l: l, lines: make(chan string, 1000)}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for r := bufio.NewScanner(c); r.Scan(); {
					p.lines <- r.Text()
					a := answer(r.Text())
					if a == "" {
						return
					}
					fmt.Fprintln(c, a)
				}
			}()
		}
	}()
	return p
}

func (p *platform) want(lines ...string) {
	p.t.Helper()
	for _, want := range lines {
		select {
		case got := <-p.lines:
			if got != want {
				p.t.Errorf("heard %q, want %q", got, want)
			}
		case <-time.After(20 * time.Second):
			p.t.Fatalf("%q was not said", want)
		}
	}
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !done(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

func TestSettlerSpeaks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settle.sock")
	p := newPlatform(t, path, func(line string) string {
		return map[string]string{"drop": "early", "judge": "not-given"}[strings.Fields(line)[0]] + map[bool]string{true: "ok 2"}[strings.HasPrefix(line, "pass") || line == "reset"]
	})
	s := NewSettler(path, slog.New(slog.DiscardHandler))
	defer s.Close()
	frame := tcpFrame("", ACK)
	for range 5 {
		s.Pass(frame)
	}
	for _, flags := range []byte{SYN, SYN | ACK, FIN | ACK, RST} {
		s.Pass(tcpFrame("", flags))
	}
	s.PassOneWay(frame)
	s.PassAt(Up, frame)
	s.PassAt(Up, append(ether(v6), 128, 0, 0, 0, 0, 9, 0, 1)) // ICMP echo: a reply has no name of its own
	s.PassAt(Up, tcpFrame("", SYN))
	flow := Flow{TCP, netip.MustParseAddrPort("10.9.0.1:4000"), netip.MustParseAddrPort("10.9.0.2:80"), NoVLAN}
	s.PassFlowAt(Up, flow, time.Now()) // the same
	s.PassFlowAt(Down, flow, time.Now())
	s.PassFlowOneWay(flow.Reverse(), time.Now())
	s.JudgeFlowAt(Up, flow)
	s.Drop(frame)
	s.Judge(tcpFrame("", SYN)) // a new connection
	s.Pass(frame)              // after Judge it is said at once
	p.want("pass tcp 10.9.0.1:4000 10.9.0.2:80", "pass tcp 10.9.0.1:4000 10.9.0.2:80 oneway", "pass tcp 10.9.0.1:4000 10.9.0.2:80 oneway at in",
		"pass tcp 10.9.0.1:4000 10.9.0.2:80 oneway at out", "pass tcp 10.9.0.2:80 10.9.0.1:4000 oneway", "judge tcp 10.9.0.1:4000 10.9.0.2:80 oneway at in", "drop tcp 10.9.0.1:4000 10.9.0.2:80",
		"judge tcp 10.9.0.1:4000 10.9.0.2:80", "pass tcp 10.9.0.1:4000 10.9.0.2:80")
	s.Reset()
	p.want("reset")
	want := SettlerCounters{Settled: 6, Early: 1, NotGiven: 2}
	until(t, fmt.Sprintf("counters are not %+v", want), func() bool { return s.Counters() == want })
	// What is still refused is said again some time later.
	end := time.Now().Add(20 * time.Second)
	for len(p.lines) == 0 && time.Now().Before(end) {
		s.Drop(frame)
	}
	p.want("drop tcp 10.9.0.1:4000 10.9.0.2:80")
}

// What waits for a slow platform is not said when it may be about a former connection of the same ports; a reset and what takes back is.
func TestLateVerdictsAreNotSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settle.sock")
	var heard atomic.Int64
	newPlatform(t, path, func(string) string {
		heard.Add(1)
		time.Sleep(20 * time.Millisecond)
		return "ok 1"
	})
	s := NewSettler(path, slog.New(slog.DiscardHandler))
	defer s.Close()
	frame := tcpFrame("", ACK)
	until(t, "nothing is heard", func() bool { s.Pass(frame); return s.Counters().Settled > 0 })
	const many = 200
	before := s.Counters()
	for i := range many {
		frame[34], frame[35] = byte(i>>8)+1, byte(i)
		s.Pass(frame)
	}
	s.Judge(frame)
	until(t, "not all is said or lost", func() bool {
		c := s.Counters()
		return c.Settled+c.Lost >= before.Settled+before.Lost+many+1
	})
	if c := s.Counters(); c.Settled-before.Settled > 3*unanswered { // those that are written at once, and those that follow within 0.1 s
		t.Errorf("%d of %d are said to a platform that takes 50 a second, %d lost", c.Settled-before.Settled, many, c.Lost)
	}
	s.PassFlow(TCP, netip.MustParseAddrPort("10.9.0.1:1"), netip.MustParseAddrPort("10.9.0.2:2"), NoVLAN, time.Now().Add(-time.Second))
	n, lost := heard.Load(), s.Counters().Lost
	until(t, "an old packet's verdict is not given up", func() bool { return s.Counters().Lost > lost })
	s.Reset()
	until(t, "the reset is not heard", func() bool { return heard.Load() > n })
}

// A verdict about a frame that has waited for the function is as old as the frame: a new connection of the same ports may have begun since.
func TestAFrameThatHasWaitedIsNotSettled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settle.sock")
	p := newPlatform(t, path, func(string) string { return "ok 1" })
	s := NewSettler(path, slog.New(slog.DiscardHandler))
	defer s.Close()
	var ago atomic.Int64
	s.came = func() time.Time { return time.Now().Add(-time.Duration(ago.Load())) }
	frame := tcpFrame("", ACK)
	for i, age := range []time.Duration{2 * saidWithin, -2 * saidWithin} { // and a clock that was set back
		ago.Store(int64(age))
		s.PassAt(Up, frame)
		lost := uint64(i + 1)
		until(t, "it is not given up", func() bool { return s.Counters().Lost == lost })
		frame[35]++ // another flow: that one was just spoken of
	}
	ago.Store(0)
	until(t, "a fresh one is not heard", func() bool {
		s.PassAt(Up, tcpFrame("", ACK))
		return s.Counters().Settled == 1
	})
	if n := len(p.lines); n != 1 {
		t.Errorf("%d lines were said, want 1", n)
	}
}

// A reset that was not heard is said until it is: over a platform's end, and although there was none when it was said. Verdicts of before are not.
// A flow is spoken of ten times a second at most, by the times at which its frames came; also of the time before when the clock is set back.
func TestAFlowIsSaidAgainByItsFramesTimes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settle.sock")
	p := newPlatform(t, path, func(string) string { return "ok 1" })
	s := NewSettler(path, slog.New(slog.DiscardHandler))
	defer s.Close()
	at := time.Now()
	s.came = func() time.Time { return at }
	settled := uint64(0)
	for i, step := range []struct {
		later time.Duration
		said  bool
	}{{0, true}, {0, false}, {sayAgain / 2, false}, {sayAgain / 2, true}, {-sayAgain, true}, {0, false}} {
		at = at.Add(step.later).Round(0) // the kernel's times have no monotonic clock
		s.PassAt(Up, tcpFrame("", ACK))
		if step.said {
			settled++
			until(t, fmt.Sprintf("frame %d is not spoken of", i), func() bool { c := s.Counters(); return c.Settled+c.Lost == settled })
		}
	}
	s.Drop(tcpFrame("", ACK)) // another verdict is another word, behind all others
	until(t, "the last word is not said", func() bool { c := s.Counters(); return c.Settled+c.Lost == settled+1 })
	if n := len(p.lines); n > int(settled)+1 || n == 0 {
		t.Errorf("%d lines were said, want %d at most", n, settled+1)
	}
}

func TestAResetIsHeard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settle.sock")
	s := NewSettler(path, slog.New(slog.DiscardHandler))
	defer s.Close()
	s.Pass(tcpFrame("", ACK))
	s.Reset()
	deaf := newPlatform(t, path, func(string) string { return "" })
	deaf.want("reset")
	deaf.l.Close() // and with it the socket's name
	p := newPlatform(t, path, func(string) string { return "ok 0" })
	p.want("reset")
	s.Pass(tcpFrame("", ACK))
	p.want("pass tcp 10.9.0.1:4000 10.9.0.2:80")
}

// What takes a verdict back is not lost with a platform that ends, nor while there is none: a reset makes up for it.
func TestWhatIsTakenBackIsHeard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settle.sock")
	s := NewSettler(path, slog.New(slog.DiscardHandler))
	defer s.Close()
	deaf := newPlatform(t, path, func(string) string { return "" })
	s.Judge(tcpFrame("", ACK))
	until(t, "nothing is said", func() bool { return len(deaf.lines) > 0 })
	deaf.l.Close()
	p := newPlatform(t, path, func(line string) string { return map[bool]string{true: "ok 0"}[line == "reset"] })
	p.want("reset")
	s.Judge(tcpFrame("", ACK))
	p.want("judge tcp 10.9.0.1:4000 10.9.0.2:80", "reset") // its answer was not heard
}

// A flood of flows, with nobody to hear of them, blocks nobody and keeps little.
func TestSettlerIsBounded(t *testing.T) {
	s := NewSettler(filepath.Join(t.TempDir(), "nobody"), slog.New(slog.DiscardHandler))
	defer s.Close()
	frame := tcpFrame("", ACK)
	const many = 100000
	for i := range many {
		frame[34], frame[35], frame[30] = byte(i>>8), byte(i), byte(i>>16)
		s.Pass(frame)
	}
	if lost := s.Counters().Lost; lost < many-unsaid-recents {
		t.Errorf("%d of %d flows are kept", many-lost, many)
	}
}

// BenchmarkSettle is what a function pays for each frame of a flow that it has settled already.
func BenchmarkSettle(b *testing.B) {
	s := NewSettler(filepath.Join(b.TempDir(), "none"), slog.New(slog.DiscardHandler))
	defer s.Close()
	came, to := time.Now(), netip.MustParseAddrPort("10.9.0.100:4000")
	s.came = func() time.Time { return came } // as the loop over frames says it
	frame := tcpFrame("", ACK)
	for name, say := range map[string]func(){
		"pass":    func() { s.PassAt(Up, frame) },
		"rewrite": func() { s.RewriteAt(Up, frame, Rewrite{End: Source, To: to}) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				say()
			}
		})
	}
}

// A flow that is to be rewritten to nothing is not settled: it would pass as it is.
func TestARewriteToNothingSettlesNothing(t *testing.T) {
	s := NewSettler(filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler))
	defer s.Close()
	said := func() (n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, r := range s.recent {
			if r != (recent{}) {
				n++
			}
		}
		return n
	}
	s.RewriteAt(Up, tcpFrame("", ACK), Rewrite{End: Source})
	if n := said(); n != 0 {
		t.Errorf("%d flows are settled", n)
	}
	s.RewriteAt(Up, tcpFrame("", ACK), Rewrite{End: Source, To: netip.MustParseAddrPort("10.9.0.100:4000")})
	if n := said(); n != 1 {
		t.Errorf("%d flows are settled, want 1", n)
	}
}
