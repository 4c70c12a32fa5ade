// Command bench measures Weir beside its peers in the same run and prints a table and JSON. Machines are noisy: every figure
// alternates with its peer's and is the median of several rounds; ratios, not absolute values, are what to compare.
package main

import (
	"context"
	"encoding/json"
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
	"weir.dev/weir/lab/stats"
)

// Result is one line of the table. Weir and Peer are medians. Ratio, better above 1: where both took turns the median of the ratios of
// neighbouring runs, since the machine itself may change its speed meanwhile; else the ratio of the medians.
type Result struct {
	Name      string    `json:"name"`
	Unit      string    `json:"unit"`
	Weir      float64   `json:"weir"`
	Peer      float64   `json:"peer,omitempty"`
	Of        string    `json:"peer_is,omitempty"`
	Ratio     float64   `json:"ratio,omitempty"`
	Quartiles []float64 `json:"ratio_quartiles,omitempty"` // of the neighbours' ratios: the lower and the upper one
	Target    string    `json:"target,omitempty"`
	Met       *bool     `json:"met,omitempty"`
	Runs      []float64 `json:"weir_runs,omitempty"`
	Peers     []float64 `json:"peer_runs,omitempty"`
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
	ctx      context.Context
	only     string
	former   string // a clone of another version
	realtime bool
}

func main() {
	out := flag.String("o", "", "write JSON to this file")
	rounds := flag.Int("rounds", 3, "measurements of each figure and its peer, alternating; of TCP and ping three times as many")
	seconds := flag.Int("seconds", 1, "length of one throughput measurement")
	only := flag.String("only", "", "only these parts, comma-separated: chain, packets, rules, boot, api, fabric; before: only by name")
	former := flag.String("before", "", "for -only before: a clone of another version, in which make build ran, to measure beside this one")
	realtime := flag.Bool("realtime", false, "TCP streams at real-time priority, for a machine that others use, too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if flag.Arg(0) == sinkArg {
		if err := runSink(ctx, flag.Args()[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "sink:", err)
			os.Exit(1)
		}
		return
	}
	var u unix.Utsname
	_ = unix.Uname(&u)
	b := &bench{ctx: ctx, only: *only, former: *former, realtime: *realtime, Report: Report{
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
	}{{"chain", b.chains}, {"packets", b.packets}, {"rules", b.rules}, {"boot", b.boot}, {"api", b.api}, {"fabric", b.fabric}, {"before", b.before}} {
		if (b.only != "" || p.name == "before") && !slices.Contains(strings.Split(b.only, ","), p.name) {
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
	return stats.Median(v)
}

// add records a figure; bigger says whether a bigger one is better. target is the least ratio to the peer, 0 none.
func (b *bench) add(name, unit string, weir, peer []float64, of string, bigger bool, target float64) {
	r := Result{Name: name, Unit: unit, Weir: median(weir), Peer: median(peer), Of: of, Runs: weir, Peers: peer}
	r.Ratio, r.Quartiles = ratio(weir, peer, bigger)
	if target > 0 {
		met := r.Ratio >= target
		r.Target, r.Met = fmt.Sprintf("ratio >= %.3g", target), &met
	}
	b.Results = append(b.Results, r)
}

// ratio of two series, above 1 when the first is the better one; 0 when one is missing. Equally long ones are neighbours run by run.
func ratio(ours, theirs []float64, bigger bool) (float64, []float64) {
	if !bigger {
		ours, theirs = theirs, ours
	}
	if len(ours) != len(theirs) {
		if median(ours) <= 0 || median(theirs) <= 0 {
			return 0, nil
		}
		return median(ours) / median(theirs), nil
	}
	var all []float64
	for i, v := range ours {
		if v > 0 && theirs[i] > 0 {
			all = append(all, v/theirs[i])
		}
	}
	if len(all) < 3 {
		return median(all), nil
	}
	return median(all), []float64{stats.Quantile(all, 0.25), stats.Quantile(all, 0.75)}
}

// limit records a figure with a bound of its own.
func (b *bench) limit(name, unit string, v []float64, most float64) {
	r := Result{Name: name, Unit: unit, Weir: median(v), Runs: v, Target: fmt.Sprintf("<= %g %s", most, unit)}
	met := r.Weir <= most
	r.Met = &met
	b.Results = append(b.Results, r)
}

func (b *bench) print() {
	fmt.Printf("\n%-44s %-8s %10s %10s %7s %-13s  %-16s %s\n", "figure", "unit", "weir", "peer", "ratio", "quartiles", "target", "peer is")
	for _, r := range b.Results {
		peer, ratio, spread, met := "-", "-", "", ""
		if r.Peer > 0 {
			peer, ratio = fmt.Sprintf("%.4g", r.Peer), fmt.Sprintf("%.2f", r.Ratio)
		}
		if len(r.Quartiles) == 2 {
			spread = fmt.Sprintf("%.2f-%.2f", r.Quartiles[0], r.Quartiles[1])
		}
		if r.Met != nil {
			met = map[bool]string{true: "ok  ", false: "MISS"}[*r.Met]
		}
		fmt.Printf("%-44s %-8s %10.4g %10s %7s %-13s  %-4s %-16s %s\n", r.Name, r.Unit, r.Weir, peer, ratio, spread, met, r.Target, r.Of)
	}
	for _, n := range b.Notes {
		fmt.Println("note:", n)
	}
}

// withWeir runs f with a Weir between stations alice (10.9.0.1) and bob (10.9.0.2).
func (b *bench) withWeir(f func(w *weir) error) error {
	return b.withRig(func(*rig.Rig) {}, f)
}

func (b *bench) withRig(set func(*rig.Rig), f func(w *weir) error) (err error) {
	r, err := rig.New(rig.Options{})
	if err != nil {
		return err
	}
	set(r)
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

// wires puts a chain of n wires between the stations for everything they exchange.
func (w *weir) wires(n int) (time.Duration, error) {
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
