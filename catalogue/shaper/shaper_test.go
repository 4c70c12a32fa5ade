package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

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

func write(t *testing.T, file, text string) {
	t.Helper()
	must(t, os.WriteFile(file+".new", []byte(text), 0o644))
	must(t, os.Rename(file+".new", file))
}

// start runs a shaper and waits until it forwards.
func start(t *testing.T, config string) (*rig.Rig, *rig.Process, string) {
	t.Helper()
	r := rig.New(t, false)
	file := filepath.Join(t.TempDir(), "config.json")
	write(t, file, config)
	p := r.Start(rig.Program(t), "-config", file, "-probe", rig.WriteProbe(t, filepath.Dir(file)), "-events", filepath.Join(filepath.Dir(file), "events.sock"))
	p.Await("limits in force")
	rig.Eventually(t, "the bridge forwards", func() bool {
		r.Client.Send(rig.Probe(0))
		return r.Server.Receive(20*time.Millisecond) != nil
	})
	return r, p, file
}

const (
	payload = 1200
	frame   = payload + 42 // of UDP by IPv4
)

// flood sends datagrams as fast as the station can, from an address to another, until it is stopped.
func flood(t *testing.T, from *rig.Station, source, target string) (stop func()) {
	t.Helper()
	var c net.Conn
	must(t, netns.Do(from.Netns, func() (err error) {
		c, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(source)}}).Dial("udp4", target)
		return err
	}))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, payload)
		for ctx.Err() == nil {
			if _, err := c.Write(b); err != nil && !errors.Is(err, syscall.ENOBUFS) && !errors.Is(err, syscall.ECONNREFUSED) {
				return
			}
		}
	})
	return func() { cancel(); wg.Wait(); c.Close() }
}

// sink counts the datagrams that come to an address, by source.
type sink struct{ first, second atomic.Uint64 }

func listen(t *testing.T, at *rig.Station, addr, second string) *sink {
	t.Helper()
	var l net.PacketConn
	must(t, netns.Do(at.Netns, func() (err error) { l, err = net.ListenPacket("udp4", addr); return err }))
	s := &sink{}
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, payload)
		for {
			_, from, err := l.ReadFrom(b)
			if err != nil {
				return
			}
			if from.(*net.UDPAddr).IP.String() == second {
				s.second.Add(1)
			} else {
				s.first.Add(1)
			}
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return s
}

// rates that come in a while, in bits of frames a second.
func (s *sink) rates(d time.Duration) (first, second float64) {
	a, b, begin := s.first.Load(), s.second.Load(), time.Now()
	time.Sleep(d)
	c, e, took := s.first.Load(), s.second.Load(), time.Since(begin).Seconds()
	return float64(c-a) * frame * 8 / took, float64(e-b) * frame * 8 / took
}

// near tells whether one of a few measurements is within 5 % of a rate, and none beyond it: others may have the processors for a while.
func near(t *testing.T, s *sink, want float64) {
	t.Helper()
	time.Sleep(200 * time.Millisecond) // the burst
	var seen []float64
	for range 8 {
		got, _ := s.rates(time.Second)
		seen = append(seen, got)
		if got > want*1.05 {
			t.Errorf("%.3g bit/s: want %.3g and not more", got, want)
		}
		if got > want*0.95 {
			return
		}
	}
	t.Errorf("%.3g bit/s: want %.3g", seen, want)
}

// Each direction has its rate; another configuration has another, at once; a bad one changes nothing.
func TestRates(t *testing.T) {
	r, p, file := start(t, `{"up": {"rate": "8Mbit"}, "down": {"rate": "30Mbit", "burst": "64KB"}}`)
	up, down := listen(t, r.Server, "10.77.0.2:9", ""), listen(t, r.Client, "10.77.0.1:9", "")
	stopUp, stopDown := flood(t, r.Client, "10.77.0.1", "10.77.0.2:9"), flood(t, r.Server, "10.77.0.2", "10.77.0.1:9")
	defer stopUp()
	defer stopDown()
	near(t, up, 8e6)
	near(t, down, 30e6)
	// A queue that is full does not look like a dead function.
	rig.Eventually(t, "probes pass beside a full queue", func() bool {
		r.Client.Send(rig.Probe(9))
		for begin := time.Now(); time.Since(begin) < time.Second; {
			if f := r.Server.Receive(100 * time.Millisecond); f != nil && f[12] == 0x88 && f[14] == 9 {
				return true
			}
		}
		return false
	})
	write(t, file, `{"up": {"rate": "20Mbit"}}`)
	p.Signal(syscall.SIGHUP)
	rig.Eventually(t, "the new limits are in force", func() bool { return strings.Count(p.Output(), "limits in force") == 2 })
	near(t, up, 20e6)
	write(t, file, `{"up": {"rate": "fast"}}`)
	p.Signal(syscall.SIGHUP)
	p.Await("configuration refused")
	near(t, up, 20e6)
	p.Signal(syscall.SIGUSR1)
	p.Await("direction=up bytes=")
}

// Where limits cannot be set nothing passes, until they can.
func TestNothingPassesWithoutLimits(t *testing.T) {
	r, p, file := start(t, `{"up": {"rate": "8Mbit"}}`)
	s := listen(t, r.Server, "10.77.0.2:9", "")
	defer flood(t, r.Client, "10.77.0.1", "10.77.0.2:9")()
	near(t, s, 8e6)
	foreign := func(args ...string) { // another's queue is in the place of ours
		t.Helper()
		rig.Command(t, &rig.Station{Netns: r.Netns}, append([]string{"tc", "qdisc"}, args...)...)
	}
	foreign("replace", "dev", "out", "root", "handle", "5:", "pfifo")
	write(t, file, `{"up": {"rate": "20Mbit"}, "classes": [{"name": "ping", "share": "10%", "match": ["icmp"]}]}`)
	p.Signal(syscall.SIGHUP)
	p.Await("nothing passes until limits can be set")
	time.Sleep(100 * time.Millisecond) // what is under way
	if got, _ := s.rates(500 * time.Millisecond); got > 0 {
		t.Errorf("%.3g bit/s pass without a limit", got)
	}
	foreign("del", "dev", "out", "root")
	p.Signal(syscall.SIGHUP)
	rig.Eventually(t, "the new limits are in force", func() bool { return strings.Count(p.Output(), "limits in force") == 2 })
	near(t, s, 20e6)
}

// A client that floods does not take the rate of another, unless it may.
func TestClientsShareARate(t *testing.T) {
	for name, config := range map[string]string{
		"fair": "", "fair in a class": `, "classes": [{"name": "all", "share": "10%", "match": ["udp/9"]}]`, "unfair": `, "fair": false`,
	} {
		t.Run(name, func(t *testing.T) {
			fair := name != "unfair"
			r, _, _ := start(t, `{"up": {"rate": "10Mbit"}`+config+"}")
			r.Do(r.Client.Netns, func() error {
				l, err := netlink.LinkByIndex(r.Client.Link.Index)
				if err != nil {
					return err
				}
				return netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 77, 0, 9), Mask: net.CIDRMask(24, 32)}})
			})
			s := listen(t, r.Server, "10.77.0.2:9", "10.77.0.9")
			defer flood(t, r.Client, "10.77.0.1", "10.77.0.2:9")()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var modest net.Conn
			r.Do(r.Client.Netns, func() (err error) {
				modest, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(10, 77, 0, 9)}}).Dial("udp4", "10.77.0.2:9")
				return err
			})
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() { // 3 Mbit/s
				defer modest.Close()
				b := make([]byte, payload)
				for tick := time.NewTicker(10 * time.Millisecond); ctx.Err() == nil; <-tick.C {
					for range 3 {
						_, _ = modest.Write(b)
					}
				}
			})
			defer cancel()
			time.Sleep(300 * time.Millisecond)
			best := 0.0
			for i := 0; i < 5 && (!fair || i < 2 || best < 2.5e6); i++ {
				all, its := s.rates(time.Second)
				best = max(best, its)
				if all+its > 10.5e6 {
					t.Errorf("%.3g bit/s of 10 Mbit/s", all+its)
				}
			}
			if fair && best < 2.5e6 || !fair && best > 2e6 {
				t.Errorf("the modest client got %.3g of 3 Mbit/s", best)
			}
		})
	}
}

// Frames of all kinds pass unchanged, within a limit and without one, and nothing crashes on nonsense.
func TestFramesPassUnchanged(t *testing.T) {
	limits := `{"up": {"rate": "1Gbit"}, "down": {"rate": "1Gbit"}`
	for _, config := range []string{"", limits + "}", limits + `, "classes": [{"name": "a", "share": "10%", "match": ["udp/1-65534", "sctp", {"dscp": 3}]}]}`} {
		r, p, _ := start(t, config)
		r.PassUnchanged(300, 60, []byte{8, 0, 0x45}, []byte{0x86, 0xdd, 0x60}, []byte{0x81, 0, 0, 42, 8, 0, 0x45}, []byte{8, 6}, []byte{0x88, 0xa8, 0, 1}, []byte{0x12, 0x34})
		p.Signal(syscall.SIGTERM)
		must(t, p.End())
	}
}

// Frames that no honest station sends, up to jumbo frames, pass the limits' queues as they came, and so do the probes behind them.
func TestHostileFrames(t *testing.T) {
	r, p, _ := start(t, `{"up": {"rate": "20Gbit"}, "down": {"rate": "20Gbit"}}`)
	rig.Hostile{Frames: 1_000_000, MTU: 9000, MemoryKB: 24 << 10, Pass: 0.8}.Send(r, p.PID())
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
}

func TestParseConfig(t *testing.T) {
	for text, want := range map[string]string{
		`{"up": 5}`: "cannot unmarshal", `{"up": {"rate": "5"}}`: `want it as "10Mbit"`, `{"up": {"rate": "1kbit"}}`: "want 64kbit to 20Gbit", `{"up": {"rate": "100Gbit"}}`: "want 64kbit to 20Gbit",
		`{"up": {"rate": "1Mbit", "burst": "1KB"}}`: "want 2KB to 64MB", `{"up": {"burst": "5KB"}}`: "a burst without a rate", `{"up": {"rate": "0bit"}}`: "more than 0",
		`{"queue": "5s"}`: "want 1ms to 2s", `{"queue": 5}`: `"5s"`, `{"queue": "x"}`: "duration", `{"fast": true}`: "unknown field", `{} {}`: "more than one", `{`: "unexpected",
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q", text, err, want)
		}
	}
	cfg, err := parseConfig([]byte(`{"up": {"rate": "1.5Mbit"}, "down": {"rate": "2Gbit", "burst": "1MB"}, "queue": "20ms"}`))
	must(t, err)
	if cfg.Up.Rate != 1.5e6 || cfg.Up.burst() != leastBurst || cfg.Down.burst() != 1e6 || !cfg.fair() || cfg.Up.waits(time.Duration(cfg.Queue)) != 2*maxFrame || cfg.Down.waits(time.Duration(cfg.Queue)) != 5e6 {
		t.Errorf("%+v", cfg)
	}
}

// Frames of no client and those of clients have one limit together.
func TestAllKindsOfFramesShareALimit(t *testing.T) {
	r, _, _ := start(t, `{"up": {"rate": "10Mbit"}}`)
	var k *kernel
	r.Do(r.Netns, func() (err error) { k, err = newKernel("in", "out"); return err })
	defer k.h.Close()
	of := func(behind ...byte) []byte {
		return append(append([]byte{2, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 2}, behind...), make([]byte, payload)...)
	}
	client, other := of(8, 0, 0x45, 0, 4, 196, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 0, 10, 2, 0, 1), of(0x12, 0x34)
	send := func(d time.Duration) (bits float64) {
		first, _ := k.sent(k.out)
		begin := time.Now()
		for time.Since(begin) < d { // 20 Mbit/s of each, if the timer is good
			for range 2 {
				client[29]++ // of the source's address
				r.Client.Send(client)
				r.Client.Send(other)
			}
			time.Sleep(time.Millisecond)
		}
		last, _ := k.sent(k.out)
		return float64(last.bytes-first.bytes) * 8 / time.Since(begin).Seconds()
	}
	send(300 * time.Millisecond) // the burst
	if got := send(2 * time.Second); got > 10.5e6 || got < 9e6 {
		t.Errorf("%.3g bit/s of 10 Mbit/s", got)
	}
}

// After a pause as much passes at once as the burst says, and then what the rate says.
func TestABurstPassesAtOnce(t *testing.T) {
	const rate, size = 1e6, 1000
	for _, burst := range []int{4_000, 64_000} {
		r, _, _ := start(t, fmt.Sprintf(`{"up": {"rate": "1Mbit", "burst": "%dKB"}, "queue": "1s"}`, burst/1000))
		var k *kernel
		r.Do(r.Netns, func() (err error) { k, err = newKernel("in", "out"); return err })
		defer k.h.Close()
		var c net.Conn
		r.Do(r.Client.Netns, func() (err error) { c, err = net.Dial("udp4", "10.77.0.2:9"); return err })
		defer c.Close()
		_, err := c.Write([]byte("the first one asks for the server's MAC address"))
		must(t, err)
		var seen []string
		for range 4 { // others may have the processors for a while
			time.Sleep(1500 * time.Millisecond) // the pause
			first, _ := k.sent(k.out)
			begin := time.Now()
			for range 100 {
				_, _ = c.Write(make([]byte, size-42)) // nobody listens there
			}
			time.Sleep(20 * time.Millisecond)
			last, _ := k.sent(k.out)
			took := time.Since(begin)
			got, most := int(last.bytes-first.bytes), burst+2*size+int(took.Seconds()*rate/8)
			if got > most {
				t.Errorf("burst %d: %d bytes in %s: want at most %d", burst, got, took, most)
			}
			if got >= burst-2*size && took < 100*time.Millisecond {
				seen = nil
				break
			}
			seen = append(seen, fmt.Sprintf("%d bytes in %s", got, took))
		}
		if len(seen) > 0 {
			t.Errorf("burst %d: %q: want %d at once", burst, seen, burst)
		}
	}
}
