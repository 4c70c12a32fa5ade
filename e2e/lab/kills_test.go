package lab

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/lab/study"
)

// killedStudies are the ones of the other four papers, which make most on a host: engines, machines, switches that poll, hugepages, groups.
var killedStudies = []string{"forwarders", "vswitches", "density", "hosts"}

// killsWanted is how often runs are ended, KILLS, and how long one may go on before that: long enough for trials of each study. Without KILLS each study is ended
// once, mostly while it sets up.
func killsWanted(t *testing.T) (n int, alive time.Duration) {
	t.Helper()
	text := os.Getenv("KILLS")
	if text == "" {
		return len(killedStudies), 12 * time.Second
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1000 {
		t.Fatalf("KILLS=%s: want a number from 1 to 1000", text)
	}
	return n, time.Minute
}

// endedAfter goes on with a run, or begins it, and ends it a while after its benches are there. It gives their names.
func endedAfter(t *testing.T, ctx context.Context, while time.Duration, how os.Signal, dir string, args ...string) (names []string) {
	t.Helper()
	run := weir(t, ctx, args...)
	var out bytes.Buffer
	run.Stdout, run.Stderr = &out, &out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			_ = run.Process.Kill()
			_ = run.Wait() // its words are whole then
			t.Logf("%v says:\n%s", args, out.String())
		}
	}()
	names = benches(t, ctx, run.Process.Pid)
	time.Sleep(while) // the moment is random, not waited for
	if hasEnded(run.Process.Pid) {
		t.Fatalf("%v ended by itself: %v\n%s", args, run.Wait(), out.String())
	}
	if err := run.Process.Signal(how); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	_ = run.Wait() // killed
	left := traces(t, names)
	t.Logf("%s: %s %s after its benches: ended in %s, %d trials made, %d traces", filepath.Base(dir), how, while.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond),
		made(t, dir)-1, len(left))
	if how == os.Interrupt && len(left)+len(processes(names)) > 0 {
		t.Errorf("Ctrl-C leaves behind:\n%s\n%v\n%s", strings.Join(left, "\n"), processes(names), out.String())
	}
	if code := run.ProcessState.ExitCode(); how == os.Interrupt && code != 130 {
		t.Errorf("Ctrl-C: exit code %d: want 130\n%s", code, out.String())
	}
	return names
}

// TestStudiesSurviveKills: the quick runs of four studies, each ended and gone on with in turns, KILLS times in all, at random moments, by kill -9 or Ctrl-C. Ctrl-C
// leaves nothing; what kill -9 leaves is removed by the next resume; the trials made are the beginning of the schedule, and the host is as it was.
func TestStudiesSurviveKills(t *testing.T) {
	n, alive := killsWanted(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute+time.Duration(n)*(alive+time.Minute))
	defer cancel()
	t.Setenv("WEIR_KVM_KERNEL", rig.MachineKernel(t))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r, links, before := rand.New(rand.NewPCG(seed, 0)), hostLinks(t), unclaimed(t)
	root, all := t.TempDir(), []string{}
	for i := range n {
		name := killedStudies[i%len(killedStudies)]
		dir := filepath.Join(root, name)
		args := []string{"resume", dir}
		if i < len(killedStudies) {
			args = []string{"run", name, "--quick", "--seed", "7", "--dir", dir}
		}
		how := os.Kill
		if r.IntN(2) == 0 {
			how = os.Interrupt
		}
		all = append(all, endedAfter(t, ctx, time.Duration(r.Int64N(int64(alive))), how, dir, args...)...)
	}
	for _, name := range killedStudies[:min(n, len(killedStudies))] { // each goes on, and ends in order
		dir := filepath.Join(root, name)
		all = append(all, endedAfter(t, ctx, time.Second, os.Interrupt, dir, "resume", dir)...)
		j, err := study.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		checkSchedule(t, j)
	}
	slices.Sort(all)
	gone(t, slices.Compact(all))
	if left := processes(all); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if now := unclaimed(t); now > before {
		t.Errorf("%d hugepages that nobody has on record: %d before", now, before)
	}
	if diff := cmp.Diff(links, hostLinks(t)); diff != "" {
		t.Errorf("links of the host:\n%s", diff)
	}
}

// checkSchedule: every trial is the schedule's, none is made twice, and none failed.
func checkSchedule(t *testing.T, j *study.Journal) {
	t.Helper()
	left := map[string]bool{}
	for _, trial := range j.Header.Study.Schedule(study.Quick, 7) {
		left[trial.Key()] = true
	}
	for _, x := range j.Records {
		if !left[x.Trial.Key()] {
			t.Errorf("%s: %s: not of the schedule, or twice", j.Header.Study.Name, x.Trial.Key())
		}
		delete(left, x.Trial.Key())
		if strings.HasPrefix(x.Void, "failed") {
			t.Errorf("%s: %s: %s", j.Header.Study.Name, x.Trial.Key(), x.Void)
		}
	}
}
