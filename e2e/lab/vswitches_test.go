package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/lab/study"
)

// vswitches is a study of functions behind virtual switches: one that polls, with hugepages, sockets and a function that polls, and one in user space.
const vswitches = `name: polling
title: A few trials behind virtual switches
parts:
  - name: rates
    question: How many frames a second arrive?
    experiment: pps
    metrics: [{name: rate, unit: Mpps, better: higher}, {name: throughput, unit: Gb/s, better: higher}, {name: cpu, unit: us, better: lower}]
    settings: {mode: loss, wires: "2"}
    factors:
      - {name: platform, levels: [docker+ovs-here+pcap, docker+ovs-dpdk-1+testpmd, bare+ovs-dpdk-1+pcap]}
    compare: platform
    baseline: docker+ovs-here+pcap
    quick: {blocks: 1, duration: 100ms}
    full: {blocks: 6, duration: 100ms}
  - name: delay
    question: How long is the round trip?
    experiment: ping
    metrics: [{name: mean, unit: us, better: lower}]
    settings: {wires: "1"}
    factors:
      - {name: platform, levels: [docker+ovs-here+pcap, docker+ovs-dpdk-1+testpmd]}
    compare: platform
    baseline: docker+ovs-here+pcap
    quick: {blocks: 1}
    full: {blocks: 6}
`

// unclaimed are hugepages that no platform has on record, without those of processes that end: other tests may have theirs meanwhile.
func unclaimed(t *testing.T) int {
	t.Helper()
	const dir = "/sys/kernel/mm/hugepages/hugepages-2048kB"
	read := func(name string) (n int) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	n := read("nr_hugepages") - read("surplus_hugepages")
	records, err := filepath.Glob("/run/weir/*/hugepages")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range records {
		var record struct{ Taken int }
		if text, err := os.ReadFile(path); err == nil && json.Unmarshal(text, &record) == nil { // it may have ended
			n -= record.Taken
		}
	}
	return n
}

// benches of a run, as soon as it has both.
func benches(t *testing.T, ctx context.Context, pid int) []string {
	t.Helper()
	for {
		if names := benchesOf(pid); len(names) == 2 {
			return names
		}
		if hasEnded(pid) {
			t.Fatal("the run ended before it had benches")
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the run has no benches: %v", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// killedSwitches starts the lab's command, and kills it a random while after n trials; 0: after its benches are there, so mostly while it sets up. It gives
// the names of its benches.
func killedSwitches(t *testing.T, ctx context.Context, dir string, n int, most time.Duration, args ...string) (names []string) {
	t.Helper()
	run := weir(t, ctx, args...)
	var out bytes.Buffer
	run.Stdout, run.Stderr = &out, &out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	names = benches(t, ctx, run.Process.Pid)
	if n > 0 {
		until(t, ctx, run, dir, n)
	}
	while := rand.N(most)
	time.Sleep(while) // the moment is random, not waited for
	if err := run.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = run.Wait() // killed
	t.Logf("killed %s after its benches and %d trials: %d traces and processes", while, n, len(traces(t, names))+len(processes(names)))
	if n > 0 && len(traces(t, names)) == 0 {
		t.Errorf("a killed run leaves nothing: the test does not test\n%s", out.String())
	}
	return names
}

// TestKilledSwitchesGoOn: kill -9 at random moments while virtual switches and what is behind them are made or measured; the last resume makes the rest,
// removes all that was left, and gives back the hugepages.
func TestKilledSwitchesGoOn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	links, before := hostLinks(t), unclaimed(t)
	file, dir := write(t, filepath.Join(t.TempDir(), "polling.yaml"), vswitches), filepath.Join(t.TempDir(), "run")
	all := killedSwitches(t, ctx, dir, 0, 4*time.Second, "run", file, "--seed", "5", "--dir", dir)
	all = append(all, killedSwitches(t, ctx, dir, 0, 4*time.Second, "resume", dir)...)
	all = append(all, killedSwitches(t, ctx, dir, 2, time.Second, "resume", dir)...)
	last, _, said := resumed(t, ctx, dir, 6)
	all = append(all, last...)
	gone(t, all)
	if left := processes(all); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	for begin := time.Now(); unclaimed(t) > before; time.Sleep(20 * time.Millisecond) { // another test may be about to take some
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d hugepages that nobody has on record: %d before", unclaimed(t), before)
		}
	}
	if diff := cmp.Diff(links, hostLinks(t)); diff != "" {
		t.Errorf("links of the host:\n%s", diff)
	}
	j, err := study.Read(dir)
	if err != nil || len(j.Left()) > 0 {
		t.Fatalf("%v: trials are left\n%s", err, said)
	}
	for _, x := range j.Records {
		if x.Skipped != "" || strings.HasPrefix(x.Void, "failed") {
			t.Errorf("%s: skipped %q, void %q", x.Trial.Key(), x.Skipped, x.Void)
		}
	}
}
