package lab

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/lab/study"
)

// guests is a study of host kinds: services, an engine, containers with lines and files, and a machine, all at once.
const guests = `name: guests
title: A few trials in guests
parts:
  - name: cpu
    question: How long does compression take?
    experiment: compress
    metrics: [{name: time, unit: s, better: lower}]
    factors:
      - {name: host, levels: [bare-metal, compute, docker-run, native]}
    settings: {corpus: "1", memory: "256"}
    compare: host
    baseline: bare-metal
    quick: {blocks: 1}
    full: {blocks: 6}
  - name: latency
    question: How long does a request take?
    experiment: exchange
    metrics: [{name: latency, unit: us, better: lower}]
    factors:
      - {name: host, levels: [bare-metal, compute, docker-run, oci, vm-emulated]}
    compare: host
    baseline: bare-metal
    quick: {blocks: 1, duration: 100ms}
    full: {blocks: 6, duration: 1s}
  - name: disk
    question: How fast is a file?
    experiment: disk
    metrics: [{name: dd-write, unit: MB/s, better: higher}]
    factors:
      - {name: host, levels: [bare-metal, docker-run, native]}
    settings: {memory: "128"}
    compare: host
    baseline: bare-metal
    quick: {blocks: 1, duration: 1s}
    full: {blocks: 6, duration: 1s}
`

// processes of a run that its name is not in the command line of: by their cgroup, program and root directory.
func processes(names []string) (found []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well formed
	for _, dir := range dirs {
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup")) // it may have ended
		program, _ := os.Readlink(filepath.Join(dir, "exe"))
		root, _ := os.Readlink(filepath.Join(dir, "root"))
		for _, name := range names {
			if strings.Contains(string(group)+program+root, name) {
				found = append(found, dir+" "+program)
			}
		}
	}
	return found
}

// killedGuests starts the lab's command, kills it a random while after n trials, and gives the names of its benches.
func killedGuests(t *testing.T, ctx context.Context, dir string, n int, args ...string) (names []string) {
	t.Helper()
	run := weir(t, ctx, args...)
	var out bytes.Buffer
	run.Stdout, run.Stderr = &out, &out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	names = until(t, ctx, run, dir, n)
	while := rand.N(time.Second)
	time.Sleep(while) // the moment is random, not waited for
	if err := run.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = run.Wait() // killed
	t.Logf("killed %s after %d trials", while, n)
	if len(traces(t, names))+len(processes(names)) == 0 {
		t.Errorf("a killed run leaves nothing: the test does not test\n%s", out.String())
	}
	return names
}

// made counts the trials that a run has made: more than were waited for, since it is killed a while later.
func made(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "results.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

// TestKilledGuestsGoOn: kill -9 while guests of all kinds are there, and again when the run has gone on; the last resume makes the rest, removes all
// that was left, and leaves nothing.
func TestKilledGuestsGoOn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	t.Setenv("WEIR_KVM_KERNEL", rig.MachineKernel(t))
	links := hostLinks(t)
	file, dir := write(t, filepath.Join(t.TempDir(), "guests.yaml"), guests), filepath.Join(t.TempDir(), "run")
	all := killedGuests(t, ctx, dir, 1, "run", file, "--seed", "4", "--dir", dir)
	all = append(all, killedGuests(t, ctx, dir, made(t, dir)+1, "resume", dir)...)
	last, _, said := resumed(t, ctx, dir, made(t, dir))
	all = append(all, last...)
	gone(t, all)
	if left := processes(all); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if diff := cmp.Diff(links, hostLinks(t)); diff != "" {
		t.Errorf("links of the host:\n%s", diff)
	}
	j, err := study.Read(dir)
	if err != nil || len(j.Left()) > 0 {
		t.Fatalf("%v: trials are left\n%s", err, said)
	}
	for _, x := range j.Records {
		if x.Skipped != "" && !strings.Contains(x.Skipped, "machines boot with /dev/kvm, which is the level vm") || strings.HasPrefix(x.Void, "failed") {
			t.Errorf("%s: skipped %q, void %q", x.Trial.Key(), x.Skipped, x.Void)
		}
	}
}
