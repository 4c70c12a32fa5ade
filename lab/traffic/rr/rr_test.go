package rr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/netns"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "rr: these tests make network namespaces: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

var (
	server4 = netip.MustParseAddr("10.7.0.2")
	server6 = netip.MustParseAddr("fd00:7::2")
)

// spaces are two namespaces joined by a link. Their congestion control is reno, which is nobody's default.
func spaces(t *testing.T) (from, to string) {
	t.Helper()
	dir := t.TempDir()
	from, to = filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, p := range []string{from, to} {
		if err := netns.Create(p, netns.Options{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := netns.Delete(p); err != nil {
				t.Error(err)
			}
		})
		err := netns.Do(p, func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0) })
		if err != nil {
			t.Fatal(err)
		}
	}
	o := netns.VethOptions{HostName: "b0", PeerName: "a0", Alias: "weir:test:a0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.7.0.1/24")}}
	if _, err := netns.Veth(to, from, o); err != nil {
		t.Fatal(err)
	}
	for space, addresses := range map[string][]string{from: {"fd00:7::1/64"}, to: {"10.7.0.2/24", "fd00:7::2/64"}} {
		err := netns.Do(space, func() error {
			name := map[string]string{from: "a0", to: "b0"}[space]
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("0"), 0); err != nil {
				return err
			}
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			for _, text := range addresses {
				a, err := netlink.ParseAddr(text)
				if err != nil {
					return err
				}
				if a.IP.To4() == nil {
					a.Flags = unix.IFA_F_NODAD
				}
				if err := netlink.AddrAdd(link, a); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return from, to
}

// sockets that this process has open.
func sockets(t testing.TB) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

func TestRequestsAreAnswered(t *testing.T) {
	from, to := spaces(t)
	open := sockets(t)
	for name, o := range map[string]Options{
		"one byte, one connection":     {Address: server4},
		"several connections":          {Address: server4, Connections: 5, Request: 200, Response: 200},
		"more than a segment, by IPv6": {Address: server6, Connections: 2, Request: 7, Response: 70_000},
	} {
		o.From, o.To, o.Duration = from, to, 100*time.Millisecond
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := r.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		n := max(o.Connections, 1)
		if r.Connections != n || len(r.PerConnection) != n || r.Requests < uint64(2*n) || r.Requests < r.Transactions+uint64(n) {
			t.Errorf("%s: %d connections, %d requests, %d transactions: want the first of each connection besides", name, len(r.PerConnection), r.Requests, r.Transactions)
		}
		sum := 0.0
		for _, v := range r.PerConnection {
			sum += v
		}
		if sum != float64(r.Transactions) || r.Least > r.Most || r.PerSec != float64(r.Transactions)/r.Seconds {
			t.Errorf("%s: %v of %d transactions; %+v", name, r.PerConnection, r.Transactions, r)
		}
		if r.Congestion != "reno" {
			t.Errorf("%s: congestion control %q: want that of the namespaces", name, r.Congestion)
		}
		if l := r.Latency; l.Count > 0 && (l.Min <= 0 || l.Min > l.Mean() || l.Mean() > l.Max) {
			t.Errorf("%s: latency from %s by %s to %s", name, l.Min, l.Mean(), l.Max)
		}
	}
	if now := sockets(t); now != open {
		t.Errorf("%d sockets are open, %d before", now, open)
	}
}

func TestWhatDoesNotBalanceIsSaid(t *testing.T) {
	good := Result{Requests: 5, Served: 5, Responses: 5, Answers: 5, Transactions: 3, Latency: traffic.Latency{Count: 3}}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*Result){
		"a request lost": func(r *Result) { r.Served-- }, "an answer lost": func(r *Result) { r.Answers-- }, "an answer too many": func(r *Result) { r.Answers++ },
		"another's answer": func(r *Result) { r.Wrong++ }, "a latency lost": func(r *Result) { r.Latency.Count-- },
	} {
		r := good
		spoil(&r)
		if r.Check() == nil {
			t.Errorf("%s: it balances", name)
		}
	}
	f := FlowResult{Flows: []Flow{{Bytes: 100, Done: 1}, {Bytes: 50, Done: 1}}, Sent: 150, Received: 150}
	if err := f.Check(); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*FlowResult){
		"bytes lost": func(r *FlowResult) { r.Received-- }, "bytes not sent": func(r *FlowResult) { r.Sent-- },
		"a flow that never ended": func(r *FlowResult) { r.Flows = []Flow{{Bytes: 150}} },
	} {
		r := f
		spoil(&r)
		if r.Check() == nil {
			t.Errorf("%s: it balances", name)
		}
	}
}

func TestFlowsAreCompleted(t *testing.T) {
	from, to := spaces(t)
	open := sockets(t)
	o := FlowOptions{From: from, To: to, Address: server4, Seed: 3, Mix: Mix{Clients: 8, Rounds: 4, Mouse: 20_001, Elephant: 300_000, Elephants: 0.25}}
	r, err := RunFlows(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(); err != nil {
		t.Error(err)
	}
	if want := int64(4 * (6*20_001 + 2*300_000)); r.Received != want || r.Congestion != "reno" || r.Busy <= 0 {
		t.Errorf("%d bytes, congestion control %s, busy for %s: want %d, reno", r.Received, r.Congestion, r.Busy, want)
	}
	plan := o.Mix.Plan(o.Seed)
	slowest := map[int]time.Duration{}
	for i, f := range r.Flows {
		slowest[f.Round] = max(slowest[f.Round], f.Begun+f.Done)
		if f.Begun < 0 || f.Done <= 0 {
			t.Errorf("flow %+v", f)
		}
		f.Begun, f.Done = 0, 0
		if diff := cmp.Diff(plan[i], f); diff != "" {
			t.Errorf("not as planned:\n%s", diff)
		}
	}
	sum := time.Duration(0)
	for _, d := range slowest {
		sum += d
	}
	if sum != r.Busy {
		t.Errorf("the rounds' last flows were complete after %s, busy for %s", sum, r.Busy)
	}
	if now := sockets(t); now != open {
		t.Errorf("%d sockets are open, %d before", now, open)
	}
}

// Each client's flows go from its own end to its own end.
func TestFlowsOfPairs(t *testing.T) {
	open := sockets(t)
	o := FlowOptions{Seed: 3, Mix: Mix{Clients: 3, Rounds: 2, Mouse: 20_001, Elephant: 300_000, Elephants: 0.3}}
	for range o.Mix.Clients {
		from, to := spaces(t)
		o.Pairs = append(o.Pairs, Ends{From: from, To: to, Address: server4, FromCPUs: []int{0}, ToCPUs: []int{0}})
	}
	r, err := RunFlows(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(); err != nil || len(r.Flows) != 6 || r.Congestion != "reno" {
		t.Errorf("%d flows, congestion control %s: %v", len(r.Flows), r.Congestion, err)
	}
	o.Pairs = o.Pairs[:2]
	if _, err := RunFlows(t.Context(), o); err == nil || !strings.Contains(err.Error(), "want one a client") {
		t.Errorf("3 clients, 2 pairs: %v", err)
	}
	if now := sockets(t); now != open {
		t.Errorf("%d sockets are open, %d before", now, open)
	}
}

// A run ends soon after its context, whatever its threads wait for, and nothing stays open.
func TestACancelledRunEnds(t *testing.T) {
	from, to := spaces(t)
	open := sockets(t)
	enough := errors.New("enough")
	for name, run := range map[string]func(context.Context) error{
		"requests": func(ctx context.Context) error {
			_, err := Run(ctx, Options{From: from, To: to, Address: server4, Connections: 3, Duration: MaxDuration})
			return err
		},
		"flows": func(ctx context.Context) error {
			_, err := RunFlows(ctx, FlowOptions{From: from, To: to, Address: server4, Mix: Mix{Clients: 3, Rounds: 1, Mouse: MaxFlow, Elephant: MaxFlow}})
			return err
		},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			for sockets(t) < open+6 && ctx.Err() == nil { // both ends of three connections
				time.Sleep(time.Millisecond)
			}
			cancel(enough)
		}()
		if err := run(ctx); !errors.Is(err, enough) {
			t.Errorf("%s: %v", name, err)
		}
		cancel(nil)
		if now := sockets(t); now != open {
			t.Errorf("%s: %d sockets are open, %d before", name, now, open)
		}
	}
}

func TestNobodyThereIsAnError(t *testing.T) {
	from, to := spaces(t)
	open := sockets(t)
	elsewhere := netip.MustParseAddr("10.8.0.2")
	_, err := Run(t.Context(), Options{From: from, To: to, Address: elsewhere, Duration: time.Second})
	if !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("an address that the server does not have: %v", err)
	}
	if _, err = Run(t.Context(), Options{From: from + "x", To: to, Address: server4, Duration: time.Second}); !errors.Is(err, netns.ErrNotFound) {
		t.Errorf("no namespace: %v", err)
	}
	err = netns.Do(from, func() error {
		link, err := netlink.LinkByName("a0")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(link)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Run(t.Context(), Options{From: from, To: to, Address: server4, Duration: time.Second}); !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("no way there: %v", err)
	}
	_, err = RunFlows(t.Context(), FlowOptions{From: from, To: to, Address: server4, Mix: Mix{Clients: 4, Rounds: 1, Mouse: 100, Elephant: 100}})
	if !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("flows, no way there: %v", err)
	}
	if now := sockets(t); now != open {
		t.Errorf("%d sockets are open, %d before", now, open)
	}
}

func TestWhatCannotBeRunIsRefused(t *testing.T) {
	for want, o := range map[string]Options{
		"want the server's address": {Duration: time.Second},
		"300 connections: want 1":   {Address: server4, Connections: 300, Duration: time.Second},
		"bytes: want 1 to":          {Address: server4, Request: 2 << 20, Duration: time.Second},
		"duration 0s":               {Address: server4},
	} {
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	good := Mix{Clients: 2, Rounds: 1, Mouse: 100, Elephant: 1000, Elephants: 0.5}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for want, spoil := range map[string]func(*Mix){
		"0 clients": func(m *Mix) { m.Clients = 0 }, "0 rounds": func(m *Mix) { m.Rounds = 0 }, "at most 100000 flows": func(m *Mix) { m.Rounds = 60_000 },
		"a flow of 3 bytes": func(m *Mix) { m.Mouse = 3 }, "a share of 2": func(m *Mix) { m.Elephants = 2 },
		"bytes in all": func(m *Mix) { m.Elephant, m.Rounds = MaxFlow, 40_000 },
	} {
		m := good
		spoil(&m)
		if err := m.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// Every round has the same number of elephants, whoever sends them; the same seed gives the same plan.
func TestPlansAreRepeatable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := Mix{
			Clients: rapid.IntRange(1, 40).Draw(t, "clients"), Rounds: rapid.IntRange(1, 6).Draw(t, "rounds"), Mouse: 100, Elephant: 1000,
			Elephants: float64(rapid.IntRange(0, 100).Draw(t, "percent")) / 100,
		}
		seed := rapid.Uint64().Draw(t, "seed")
		plan := m.Plan(seed)
		if diff := cmp.Diff(plan, m.Plan(seed)); diff != "" {
			t.Fatalf("the same seed, another plan:\n%s", diff)
		}
		if len(plan) != m.Clients*m.Rounds {
			t.Fatalf("%d flows of %d clients in %d rounds", len(plan), m.Clients, m.Rounds)
		}
		for round := range m.Rounds {
			elephants, total := 0, int64(0)
			for i, f := range plan[round*m.Clients : (round+1)*m.Clients] {
				if f.Round != round || f.Client != i || f.Elephant != (f.Bytes == m.Elephant) {
					t.Fatalf("flow %d of round %d: %+v", i, round, f)
				}
				if f.Elephant {
					elephants++
				}
				total += f.Bytes
			}
			if elephants != m.elephants() || float64(total) != m.bytes() {
				t.Fatalf("%d elephants, %d bytes: want %d, %v", elephants, total, m.elephants(), m.bytes())
			}
		}
	})
	m := Mix{Clients: 30, Rounds: 3, Mouse: 100, Elephant: 1000, Elephants: 0.2}
	if cmp.Equal(m.Plan(1), m.Plan(2)) {
		t.Error("another seed, the same elephants")
	}
}
