package tools

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// pairsOf n pairs, each in two namespaces of its own.
func pairsOf(t *testing.T, n int) (out []Pair) {
	t.Helper()
	for range n {
		a, b := pair(t)
		out = append(out, Pair{Client: End{Space: a}, Server: End{Space: b, CPUs: "0-1"}, Address: netip.MustParseAddr("10.7.0.2")})
	}
	return out
}

// All programs carry at once, and what the receivers' sockets got counts.
func TestPairsStreamAtOnce(t *testing.T) {
	list := pairsOf(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	next := 21000 // sockperf takes no port that was in use a moment ago
	for name, o := range map[string]PairOptions{
		"iperf": {Program: "iperf", Congestion: "reno"}, "several streams": {Program: "iperf", Flows: 2}, "iperf3": {Program: "iperf3", Message: 1000},
		"sockperf": {Program: "sockperf", Message: 14}, "datagrams": {Program: "iperf", UDP: true, Rate: 10, Message: 500},
	} {
		o.Pairs, o.Duration = list, 500*time.Millisecond
		next++
		o.Port = next
		marks := 0
		o.Mark = func() error { marks++; return nil }
		r, err := RunPairs(ctx, o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if marks != 2 || len(r.Pairs) != 3 || r.Ready <= 0 || r.Version == "" || len(r.Argv) == 0 {
			t.Errorf("%s: %d marks, %+v", name, marks, r)
		}
		for i, c := range r.Pairs {
			if c.Bytes == 0 || c.BitsPerSec() <= 0 || c.Window < o.Duration || o.UDP && (c.Sent == 0 || c.Bytes != 500*c.Received) {
				t.Errorf("%s: pair %d: %+v", name, i, c)
			}
		}
	}
}

func TestPairsSayWhatFailed(t *testing.T) {
	list := pairsOf(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	spoil := func(f func(*PairOptions)) error {
		o := PairOptions{Pairs: list, Program: "iperf", Duration: 10 * time.Second}
		f(&o)
		_, err := RunPairs(ctx, o)
		return err
	}
	for name, c := range map[string]struct {
		f    func(*PairOptions)
		want string
	}{
		"nobody":             {func(o *PairOptions) { o.Pairs = nil }, "want 1 to"},
		"an unknown program": {func(o *PairOptions) { o.Program = "ttcp" }, "want iperf"},
		"no such control":    {func(o *PairOptions) { o.Program, o.Congestion = "iperf3", "none-such" }, "ended too early"},
		"a cgroup that is no": {func(o *PairOptions) {
			o.Pairs = []Pair{{Server: End{Space: list[0].Server.Space, Groups: []string{"/nowhere/tasks"}}, Client: list[0].Client, Address: list[0].Address}}
		}, "nowhere"},
	} {
		if err := spoil(c.f); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v: want %q", name, err, c.want)
		}
	}
	short, stop := context.WithTimeout(ctx, 500*time.Millisecond)
	defer stop()
	begun := time.Now()
	_, err := RunPairs(short, PairOptions{Pairs: list, Program: "iperf", Duration: time.Minute})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > 10*time.Second {
		t.Errorf("cut short: %v after %s", err, time.Since(begun))
	}
}

func TestDatagramsAreRead(t *testing.T) {
	const text = "Ip: Forwarding DefaultTTL\nIp: 1 64\nUdp: InDatagrams NoPorts OutDatagrams\nUdp: 7 1 9\nUdpLite: InDatagrams\nUdpLite: 3\n"
	for name, want := range map[string]uint64{"InDatagrams": 7, "OutDatagrams": 9} {
		if got, err := parseDatagrams(text, name); err != nil || got != want {
			t.Errorf("%s: %d, %v: want %d", name, got, err, want)
		}
	}
	for _, bad := range []string{"", "Udp: InDatagrams\n", "Udp: InDatagrams\nUdp: many\n", "Udp: NoPorts\nUdp: 1\n", "Udp: NoPorts InDatagrams\nUdp: 1\n"} {
		if got, err := parseDatagrams(bad, "InDatagrams"); err == nil {
			t.Errorf("%q: %d", bad, got)
		}
	}
}
