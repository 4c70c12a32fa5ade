package tools

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/netns"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "tools: these tests make network namespaces: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// The files of testdata are outputs of the programs of Debian 12.
func golden(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func check[T any](t *testing.T, name string, parse func(string) (T, error), want T) {
	t.Helper()
	got, err := parse(golden(t, name))
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestRealOutputsAreRead(t *testing.T) {
	us := func(v float64) time.Duration { return time.Duration(v * float64(time.Microsecond)) }
	check(t, "ping.txt", ParsePing, Ping{Sent: 5, Received: 5, RTT: []time.Duration{us(265), us(57), us(63), us(41), us(46)}})
	check(t, "ping-q.txt", ParsePing, Ping{Sent: 5, Received: 5})
	check(t, "ping-lost.txt", ParsePing, Ping{Sent: 2})
	check(t, "iperf3-tcp.json", ParseIPerf3, Stream{
		BitsPerSec: 10002333107.523464, Bytes: 1251344384, Seconds: 1.000842, Retransmits: 1502, Congestion: "bbr",
		SenderCPU: 36.8424516036404, ReceiverCPU: 34.26104107092543,
	})
	check(t, "iperf3-udp.json", ParseIPerf3, Stream{
		BitsPerSec: 49970309.587466575, Bytes: 6249568, Seconds: 1.000525, Datagrams: 4316, SenderCPU: 6.644684811350146, ReceiverCPU: 3.024666494087498,
	})
	check(t, "iperf2-tcp.csv", ParseIPerf2, Stream{BitsPerSec: 9178217131, Bytes: 1151729724, Seconds: 1})
	check(t, "nuttcp-tcp.txt", ParseNuttcp, Stream{BitsPerSec: 8620013000, Bytes: 1091150387, Seconds: 1.01, SenderCPU: 24, ReceiverCPU: 34})
	check(t, "nuttcp-udp.txt", ParseNuttcp, Stream{BitsPerSec: 49554100, Bytes: 6196245, Seconds: 1, Lost: 51, Datagrams: 6102, SenderCPU: 69, ReceiverCPU: 2})
	check(t, "sockperf-tp.txt", ParseSockperfRate, MessageRate{PerSec: 68080, MBytes: 90.897})
	check(t, "sockperf-pp.txt", ParseSockperfLatency, Latency{
		Mean: us(12.706), Min: us(7.125), Max: us(7680.743), Samples: 21622,
		Percentiles: map[float64]time.Duration{
			25: us(8.562), 50: us(8.898), 75: us(9.343), 90: us(10.280), 99: us(46.288), 99.9: us(600.629), 99.99: us(3091.757), 99.999: us(7680.743),
		},
	})
}

func TestNoResultIsAnError(t *testing.T) {
	_, err := ParseIPerf3(golden(t, "iperf3-refused.json"))
	if err == nil || !strings.Contains(err.Error(), "Connection refused") {
		t.Errorf("iperf3 that could not connect: %v", err)
	}
	for name, parse := range map[string]func(string) error{
		"ping":          func(s string) error { _, err := ParsePing(s); return err },
		"iperf3":        func(s string) error { _, err := ParseIPerf3(s); return err },
		"iperf":         func(s string) error { _, err := ParseIPerf2(s); return err },
		"nuttcp":        func(s string) error { _, err := ParseNuttcp(s); return err },
		"sockperf pp":   func(s string) error { _, err := ParseSockperfLatency(s); return err },
		"sockperf tp":   func(s string) error { _, err := ParseSockperfRate(s); return err },
		"iperf3 no end": func(string) error { _, err := ParseIPerf3(`{"end":{}}`); return err },
	} {
		for _, out := range []string{"", "\n", "garbage", "a=b", "{}", "1,2,3"} {
			if parse(out) == nil {
				t.Errorf("%s: %q is taken as a result", name, out)
			}
		}
	}
}

// pair is two namespaces joined by a link, 10.7.0.1 and 10.7.0.2.
func pair(t *testing.T) (a, b string) {
	t.Helper()
	a, b = filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	for _, space := range []string{a, b} {
		if err := netns.Create(space, netns.Options{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := netns.Delete(space); err != nil {
				t.Error(err)
			}
		})
	}
	o := netns.VethOptions{HostName: "b0", PeerName: "a0", Alias: "weir:test:a0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.7.0.1/24")}}
	if _, err := netns.Veth(b, a, o); err != nil {
		t.Fatal(err)
	}
	if raw, err := client(t.Context(), b, "ip", "addr", "add", "10.7.0.2/24", "dev", "b0"); err != nil {
		t.Fatal(err, raw.Output)
	}
	return a, b
}

func TestProgramsRun(t *testing.T) {
	if err := Installed("ping", "iperf3", "iperf", "sockperf", "nuttcp"); err != nil {
		t.Fatal(err)
	}
	a, b := pair(t)
	to := netip.MustParseAddr("10.7.0.2")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := RunPing(ctx, a, PingOptions{To: to, Count: 20})
	if err != nil || p.Sent != 20 || len(p.RTT) != p.Received || p.Received < 15 || p.Raw.Version == "" {
		t.Errorf("ping: %+v, %v", p, err)
	}
	lost, err := RunPing(ctx, a, PingOptions{To: netip.MustParseAddr("10.7.0.9"), Count: 1, Interval: 10 * time.Millisecond})
	if err != nil || lost.Sent != 1 || lost.Received != 0 {
		t.Errorf("ping to nobody is a result: %+v, %v", lost, err)
	}
	cut, err := RunPing(ctx, a, PingOptions{To: to, Count: 1000, Interval: 100 * time.Millisecond, Deadline: time.Second})
	if err != nil || cut.Received == 0 || cut.Sent >= 1000 {
		t.Errorf("ping with a deadline: %+v, %v", cut, err)
	}
	o := StreamOptions{From: a, To: b, Address: to, Duration: time.Second}
	streams := map[string]func(context.Context, StreamOptions) (Stream, error){"iperf3": RunIPerf3, "iperf": RunIPerf2, "nuttcp": RunNuttcp}
	for name, run := range streams {
		s, err := run(ctx, o)
		if err != nil || s.BitsPerSec < 1e6 || s.Seconds < 0.9 || len(s.Raw.Argv) == 0 || s.Raw.Output == "" {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	o.Rate = 20e6
	for name, run := range map[string]func(context.Context, StreamOptions) (Stream, error){"iperf3": RunIPerf3, "nuttcp": RunNuttcp} {
		s, err := run(ctx, o)
		if err != nil || s.Datagrams == 0 || math.Abs(s.BitsPerSec-20e6) > 15e6 {
			t.Errorf("%s with UDP: %+v, %v", name, s, err)
		}
	}
	l, err := RunSockperfLatency(ctx, SockperfOptions{From: a, To: b, Address: to, Duration: time.Second, Message: 200, TCP: true})
	if err != nil || l.Samples == 0 || l.Min <= 0 || l.Min > l.Mean || l.Mean > l.Max {
		t.Errorf("sockperf: %+v, %v", l, err)
	}
	r, err := RunSockperfRate(ctx, SockperfOptions{From: a, To: b, Address: to, Duration: time.Second, Message: 1000})
	if err != nil || r.PerSec <= 0 {
		t.Errorf("sockperf: %+v, %v", r, err)
	}
}

func TestFailuresAreTold(t *testing.T) {
	a, b := pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := client(ctx, a, "no-such-program"); !errors.Is(err, ErrMissing) {
		t.Errorf("a program that is not there: %v", err)
	}
	if _, err := server(ctx, b, "tcp", 5201, "iperf3", "--no-such-flag"); err == nil || !strings.Contains(err.Error(), "ended before it listened") {
		t.Errorf("a server that does not start: %v", err)
	}
	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	begun := time.Now()
	if _, err := RunPing(short, a, PingOptions{To: netip.MustParseAddr("10.7.0.2"), Count: 1000, Interval: 100 * time.Millisecond}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a run that is cut short: %v", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %s to stop", took)
	}
}
