package lab

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/lab/study"
)

// crowd is a study of many containers: pairs on each kind of network, flows of another runtime, and processors of several.
const crowd = `name: crowd
title: A few trials with many containers
parts:
  - name: streams
    question: What do pairs carry?
    experiment: tcp-pairs
    metrics: [{name: rate, unit: Gb/s, better: higher}, {name: fairness, unit: index, better: higher}, {name: cpu, unit: CPU s per GB, better: lower}]
    settings: {runtime: native, tool: iperf, pairs: "2"}
    factors:
      - {name: network, levels: [bridge, macvlan, ovs-netdev, ebpf]}
    compare: network
    baseline: bridge
    quick: {blocks: 1, duration: 100ms}
    full: {blocks: 6, duration: 1s}
  - name: flows
    question: How long do flows take?
    experiment: fct-pairs
    metrics: [{name: fct, unit: ms, better: lower}, {name: mice, unit: ms, better: lower}, {name: elephants, unit: ms, better: lower}]
    settings: {runtime: oci, pairs: "2", elephants: "50", transfers: "4", mouse: "20000", elephant: "200000"}
    factors:
      - {name: network, levels: [bridge, ebpf]}
    compare: network
    baseline: bridge
    quick: {blocks: 1}
    full: {blocks: 6}
  - name: processors
    question: How many datagrams pass?
    experiment: processors
    metrics: [{name: received, unit: pps, better: higher}, {name: mean, unit: us, better: lower}, {name: max, unit: us, better: lower}]
    settings: {network: nat, processors: "3", payload: "28", hosts: "1", tool: socat}
    factors:
      - {name: runtime, levels: [bare, docker, lxc]}
    compare: runtime
    baseline: bare
    quick: {blocks: 1, duration: 100ms}
    full: {blocks: 6, duration: 1s}
  - name: networks
    question: How many datagrams pass networks that a runtime's tool makes?
    experiment: processors
    metrics: [{name: rate, unit: pps, better: higher}, {name: mean, unit: us, better: lower}, {name: max, unit: us, better: lower}]
    settings: {processors: "2", payload: "28", hosts: "1", mode: search}
    factors:
      - {name: runtime, levels: [docker, nspawn]}
      - {name: network, levels: [own-nat, own-macvlan]}
    compare: runtime
    baseline: docker
    quick: {blocks: 1, duration: 100ms}
    full: {blocks: 6, duration: 1s}
`

// stopped goes on with a run, and ends it by Ctrl-C a random while after n trials: it ends in order, and nothing of it stays.
func stopped(t *testing.T, ctx context.Context, dir string, n int) (names []string) {
	t.Helper()
	run := weir(t, ctx, "resume", dir)
	var out bytes.Buffer
	run.Stdout, run.Stderr = &out, &out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	names = until(t, ctx, run, dir, n)
	time.Sleep(rand.N(500 * time.Millisecond)) // the moment is random, not waited for
	if err := run.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = run.Wait() // its code says that trials are left, or not if it was at the end
	if gone(t, names); t.Failed() {
		t.Log(out.String())
	}
	return names
}

// TestKilledCrowdGoesOn: kill -9 at random moments while pairs and processors send, and Ctrl-C; the last resume makes every trial that is left, removes what was
// left, and leaves the host as it was.
func TestKilledCrowdGoesOn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	links := hostLinks(t)
	file, dir := write(t, filepath.Join(t.TempDir(), "crowd.yaml"), crowd), filepath.Join(t.TempDir(), "run")
	all := killedGuests(t, ctx, dir, 2, "run", file, "--seed", "3", "--dir", dir)
	all = append(all, stopped(t, ctx, dir, 5)...)
	all = append(all, killedGuests(t, ctx, dir, 8, "resume", dir)...)
	all = append(all, killedGuests(t, ctx, dir, 11, "resume", dir)...)
	last, _, problems := resumed(t, ctx, dir, 13)
	all = append(all, last...)
	gone(t, all)
	if left := processes(all); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if diff := cmp.Diff(links, hostLinks(t)); diff != "" {
		t.Errorf("links of the host:\n%s", diff)
	}
	checkContainers(t, dir, problems)
}

// checkContainers: every trial of every part is made.
func checkContainers(t *testing.T, dir, problems string) {
	t.Helper()
	j, err := study.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]int{} // trials with a value, by part
	var trials []study.Trial
	for _, r := range j.Records {
		trials = append(trials, r.Trial)
		p := j.Header.Study.Parts[slices.IndexFunc(j.Header.Study.Parts, func(p study.Part) bool { return p.Name == r.Trial.Part })]
		switch {
		case r.Skipped != "":
			t.Errorf("%s: skipped: %s", r.Trial.Key(), r.Skipped)
			continue
		case strings.HasPrefix(r.Void, "failed") || strings.Contains(r.Void, "want all the same"): // nor do the books balance
			t.Errorf("%s: %s", r.Trial.Key(), r.Void)
			continue
		}
		got := r.Values[p.Metrics[0].Name] > 0 // on a busy machine nobody may send anything in so short a window
		for _, m := range p.Metrics {
			v, ok := r.Values[m.Name]
			few := slices.Contains([]string{"p50", "p99", "retransmits-fast", "mice-p99"}, m.Name) || m.Name == "elephants" && slices.Contains(r.Trial.Variant, "0") ||
				p.Name == "networks" && m.Name != "rate" // delays are those of half the rate, in a window of its own
			if got && !ok && !few || v < 0 {
				t.Errorf("%s: %s is %v, %t of %v", r.Trial.Key(), m.Name, v, ok, r.Values)
			}
		}
		if r.Conditions["ends"] == "" || r.Conditions["MTU"] != "1500" || len(r.Raw) == 0 {
			t.Errorf("%s: %v under %v, raw of %d bytes", r.Trial.Key(), r.Values, r.Conditions, len(r.Raw))
		}
		if got {
			made[p.Name]++
		}
	}
	if diff := cmp.Diff(j.Header.Study.Schedule(study.Quick, 3), trials); diff != "" {
		t.Errorf("not the schedule, each trial once:\n%s\n%s", diff, problems)
	}
	for _, p := range j.Header.Study.Parts {
		if made[p.Name] == 0 {
			t.Errorf("part %s: nothing was measured", p.Name)
		}
	}
}
