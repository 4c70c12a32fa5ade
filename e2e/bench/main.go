// Command bench measures Weir beside its peers in the same run and prints a table and JSON. Machines are noisy: every figure
// alternates with its peer's and is the median of several rounds; ratios, not absolute values, are what to compare.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/e2e/rig"
)

// Result is one line of the table.
type Result struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Weir   float64   `json:"weir"`
	Peer   float64   `json:"peer,omitempty"`
	Of     string    `json:"peer_is,omitempty"`
	Ratio  float64   `json:"ratio,omitempty"` // better is above 1
	Target string    `json:"target,omitempty"`
	Met    *bool     `json:"met,omitempty"`
	Runs   []float64 `json:"weir_runs,omitempty"`
	Peers  []float64 `json:"peer_runs,omitempty"`
}

// Report is the whole run.
type Report struct {
	Time    time.Time `json:"time"`
	Kernel  string    `json:"kernel"`
	Cores   int       `json:"cores"`
	Rounds  int       `json:"rounds"`
	Seconds int       `json:"seconds"`
	Results []Result  `json:"results"`
	Notes   []string  `json:"notes,omitempty"`
}

type bench struct {
	Report
	ctx  context.Context
	only string
}

func main() {
	out := flag.String("o", "", "write JSON to this file")
	rounds := flag.Int("rounds", 3, "measurements of each figure and its peer, alternating")
	seconds := flag.Int("seconds", 2, "length of one throughput measurement")
	only := flag.String("only", "", "only these parts, comma-separated: chain, packets, rules, boot, api")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var u unix.Utsname
	_ = unix.Uname(&u)
	b := &bench{ctx: ctx, only: *only, Report: Report{
		Time: time.Now().UTC(), Kernel: unix.ByteSliceToString(u.Release[:]), Cores: runtime.NumCPU(), Rounds: *rounds, Seconds: *seconds,
	}}
	err := b.run()
	b.print()
	if *out != "" {
		j, _ := json.MarshalIndent(b.Report, "", "  ") // plain data
		if werr := os.WriteFile(*out, append(j, '\n'), 0o644); err == nil {
			err = werr
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: failed:", err)
		os.Exit(1)
	}
}

func (b *bench) run() error {
	for _, p := range []struct {
		name string
		run  func() error
	}{{"chain", b.chains}, {"packets", b.packets}, {"rules", b.rules}, {"boot", b.boot}, {"api", b.api}} {
		if b.only != "" && !slices.Contains(strings.Split(b.only, ","), p.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s\n", p.name)
		if err := p.run(); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// add records a figure; bigger says whether a bigger one is better. target is the least ratio to the peer, 0 none.
func (b *bench) add(name, unit string, weir, peer []float64, of string, bigger bool, target float64) {
	r := Result{Name: name, Unit: unit, Weir: median(weir), Peer: median(peer), Of: of, Runs: weir, Peers: peer}
	if r.Weir > 0 && r.Peer > 0 {
		r.Ratio = r.Weir / r.Peer
		if !bigger {
			r.Ratio = r.Peer / r.Weir
		}
	}
	if target > 0 {
		met := r.Ratio >= target
		r.Target, r.Met = fmt.Sprintf("ratio >= %.3g", target), &met
	}
	b.Results = append(b.Results, r)
}

// limit records a figure with a bound of its own.
func (b *bench) limit(name, unit string, v []float64, most float64) {
	r := Result{Name: name, Unit: unit, Weir: median(v), Runs: v, Target: fmt.Sprintf("<= %g %s", most, unit)}
	met := r.Weir <= most
	r.Met = &met
	b.Results = append(b.Results, r)
}

func (b *bench) print() {
	fmt.Printf("\n%-34s %-8s %10s %10s %7s  %-16s %s\n", "figure", "unit", "weir", "peer", "ratio", "target", "peer is")
	for _, r := range b.Results {
		peer, ratio, met := "-", "-", ""
		if r.Peer > 0 {
			peer, ratio = fmt.Sprintf("%.4g", r.Peer), fmt.Sprintf("%.2f", r.Ratio)
		}
		if r.Met != nil {
			met = map[bool]string{true: "ok  ", false: "MISS"}[*r.Met]
		}
		fmt.Printf("%-34s %-8s %10.4g %10s %7s  %-4s %-16s %s\n", r.Name, r.Unit, r.Weir, peer, ratio, met, r.Target, r.Of)
	}
	for _, n := range b.Notes {
		fmt.Println("note:", n)
	}
}

// withWeir runs f with a Weir between stations alice (10.9.0.1) and bob (10.9.0.2).
func (b *bench) withWeir(f func(w *weir) error) (err error) {
	r, err := rig.New(rig.Options{})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := r.Close(); err == nil {
			err = cerr
		}
	}()
	w := &weir{Rig: r, ctx: b.ctx}
	for _, s := range []string{w.alice(), w.bob()} {
		if err := r.Namespace(s); err != nil {
			return err
		}
	}
	if err := r.Up(b.ctx); err != nil {
		return err
	}
	if _, err = r.Apply(b.ctx, w.endpoints()); err != nil {
		return err
	}
	return f(w)
}

type weir struct {
	*rig.Rig
	ctx context.Context
}

func (w *weir) alice() string { return w.Name + "-alice" }
func (w *weir) bob() string   { return w.Name + "-bob" }

func (w *weir) endpoints() string {
	return fmt.Sprintf("endpoints:\n  alice: {netns: %s, interface: eth0, address: 10.9.0.1/24}\n  bob: {netns: %s, interface: eth0, address: 10.9.0.2/24}\n", w.alice(), w.bob())
}

// wires puts a chain of n wires between the stations for everything they exchange, or none.
func (w *weir) wires(n int) (time.Duration, error) {
	if n == 0 {
		_, err := w.Weir(w.ctx, "delete", "policy", "all")
		return 0, err
	}
	var doc strings.Builder
	doc.WriteString("functions:\n")
	var path []string
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&doc, "  w%d: {image: wire}\n", i)
		path = append(path, fmt.Sprintf("w%d", i))
	}
	fmt.Fprintf(&doc, "chains:\n  wires: %s\npolicies:\n  all: {from: alice, to: bob, match: [tcp, udp, icmp], chain: wires}\n", strings.Join(path, " | "))
	begin := time.Now()
	_, err := w.Apply(w.ctx, doc.String())
	return time.Since(begin), err
}

// awake keeps the processors out of deep sleep while f runs, where the machine lets one ask for that: else ping measures how long
// they take to wake up, the same for everybody.
func awake(f func() error) error {
	q, err := os.OpenFile("/dev/cpu_dma_latency", os.O_WRONLY, 0)
	if err != nil {
		return f()
	}
	defer q.Close()
	if _, err := q.Write(make([]byte, 4)); err != nil { // 0 us, until the file is closed
		return err
	}
	return f()
}

// pings are the ways to ask for a round trip. Without -U ping takes the kernel's time stamp, from where the reply was queued
// last: of a chain without queues it leaves the way back out.
var pings = []struct {
	name, interval string
	count          int
	more           []string
}{
	{"ping", "0.002", 400, nil},
	{"ping -U", "0.002", 400, []string{"-U"}},
	{"ping back to back", "0", 2000, nil},
	{"ping back to back -U", "0", 2000, []string{"-U"}},
}

// chains: one TCP stream and ping through 0..100 wires, beside Linux bridges all the way.
func (b *bench) chains() error {
	return b.withWeir(func(w *weir) error {
		var plain []float64
		for _, n := range []int{0, 1, 9, 50, 100} {
			if n > 0 {
				if _, err := w.wires(n); err != nil {
					return err
				}
				if err := w.settle(b); err != nil {
					return err
				}
			}
			p, err := newBridges(b.ctx, w.Rig, n)
			if err != nil {
				return err
			}
			ours := &path{from: w.alice(), to: w.bob(), addr: "10.9.0.2", rtt: map[string][]float64{}}
			theirs := &path{from: p.src(), to: p.dst(), addr: "10.8.0.2", rtt: map[string][]float64{}}
			for range b.Rounds {
				for _, side := range []*path{ours, theirs} {
					if err := side.measure(b, w.Rig); err != nil {
						return errors.Join(fmt.Errorf("%d wires, from %s: %w", n, side.from, err), p.close())
					}
				}
			}
			if err := p.close(); err != nil {
				return err
			}
			if n == 0 {
				plain = ours.gbps
			}
			b.add(fmt.Sprintf("tcp, %d wires", n), "Gb/s", ours.gbps, theirs.gbps, "Linux bridges", true, map[int]float64{9: 1.7, 100: 5}[n])
			for _, kind := range pings {
				target := 0.0
				if n == 100 && kind.name == "ping" {
					target = 12
				}
				b.add(fmt.Sprintf("%s, %d wires", kind.name, n), "us", ours.rtt[kind.name], theirs.rtt[kind.name], "Linux bridges", false, target)
			}
			if n == 9 {
				b.add("tcp, 9 wires against none", "Gb/s", ours.gbps, plain, "Weir without a chain", true, 0.9)
			}
		}
		return nil
	})
}

// path is one way between two stations and what was measured on it.
type path struct {
	from, to, addr string
	gbps           []float64
	rtt            map[string][]float64 // us
}

func (p *path) measure(b *bench, r *rig.Rig) error {
	if _, err := r.Ping(b.ctx, p.from, p.addr, 20, "0.01"); err != nil { // learn
		return err
	}
	err := awake(func() error {
		for _, kind := range pings {
			rtt, err := r.Ping(b.ctx, p.from, p.addr, kind.count, kind.interval, kind.more...)
			if err != nil {
				return err
			}
			p.rtt[kind.name] = append(p.rtt[kind.name], float64(rtt.Nanoseconds())/1e3)
		}
		return nil
	})
	if err != nil {
		return err
	}
	bits, err := r.Iperf(b.ctx, p.from, p.to, p.addr, 5201, b.Seconds)
	p.gbps = append(p.gbps, bits/1e9)
	return err
}
