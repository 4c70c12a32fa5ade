package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.dev/weir/api/file"
	"weir.dev/weir/lab"
	"weir.dev/weir/lab/study"
)

// ended runs a command to its end and wants an exit code and a text.
func ended(t *testing.T, cmd *exec.Cmd, code int, want string) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	var bad *exec.ExitError
	if err != nil && !errors.As(err, &bad) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(string(out), want) {
		t.Errorf("%v: exit code %d: want %d, and %q in:\n%s", cmd.Args[1:], got, code, want, out)
	}
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// beginnings of a run: a journal with the first trials of the study tiny.
func beginnings(t *testing.T, trials int) string {
	t.Helper()
	s, err := lab.Load(file.Stdin, strings.NewReader(tiny))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "run")
	j, err := study.Create(dir, study.Header{Study: s, Mode: study.Quick, Seed: 3, Started: time.Now().UTC()})
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range j.Left()[:trials] {
		if err := j.Add(study.Record{Trial: tr, Begun: time.Now().UTC(), Values: map[string]float64{"rtt": 30}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// changed gives a run's journal another text.
func changed(t *testing.T, dir string, change func(string) string) string {
	t.Helper()
	path := filepath.Join(dir, "results.jsonl")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	next := change(string(text))
	if next == string(text) {
		t.Fatal("nothing changed")
	}
	write(t, path, next)
	return dir
}

func TestMistakesAreExplained(t *testing.T) {
	dir, links := t.TempDir(), hostLinks(t)
	good := studyFile(t)
	bad := func(old, new string) string {
		text := strings.Replace(tiny, old, new, 1)
		if text == tiny {
			t.Fatalf("%s: nothing changed", old)
		}
		return write(t, filepath.Join(t.TempDir(), "bad.yaml"), text)
	}
	replace := func(old, new string) func(string) string {
		return func(text string) string { return strings.Replace(text, old, new, 1) }
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"run", "wirse"}, 4, "did you mean"},
		{[]string{"run", filepath.Join(dir, "none.yaml")}, 3, "no such file"},
		{[]string{"run", bad("baseline: runc", "baseline: rnuc")}, 3, "rnuc"},
		{[]string{"run", bad("{name: wires,", "{name: colour,")}, 3, `has no factor "colour"`},
		{[]string{"run", bad("levels: [ebpf, ovs", "levels: [ebfp, ovs")}, 3, `did you mean "ebpf"`},
		{[]string{"run", bad("baseline: bridges", "settings: {platform: veth}\n    baseline: bridges")}, 3, "is both a setting"},
		{[]string{"run", bad("title: A few", "titel: A few")}, 3, `titel`},
		{[]string{"run", write(t, filepath.Join(t.TempDir(), "no.yaml"), "\x00\x01")}, 3, "no.yaml"},
		{[]string{"run", t.TempDir()}, 3, "is not a regular file"},
		{[]string{"run", good, "--only", "colour=red"}, 2, "want one of functions, part"},
		{[]string{"run", good, "--only", "platform=ebfp"}, 2, "want one of ebpf"},
		{[]string{"run", good, "--quick", "--full"}, 2, "exclude each other"},
		{[]string{"run", good, "--seed", "x"}, 2, "seed"},
		{[]string{"run", good, "--seed", "-1"}, 2, "seed"},
		{[]string{"run", good, "--seed", "18446744073709551616"}, 2, "seed"},
		{[]string{"run"}, 2, "wants a study"},
		{[]string{"run", good, "--dir", beginnings(t, 1)}, 5, "resume them, or choose another directory"},
		{[]string{"resume", dir}, 4, "results.jsonl"},
		{[]string{"report", dir}, 4, "results.jsonl"},
		{[]string{"report", filepath.Join(dir, "none")}, 4, "is no directory of results, which weir lab run writes"},
		{[]string{"resume", changed(t, beginnings(t, 3), replace(`"seed":3`, `"seed":4`))}, 5, "study, mode or seed were changed since the run began"},
		{[]string{"report", changed(t, beginnings(t, 3), replace(`"levels":["1","3"]`, `"levels":["1","9"]`))}, 5, "study, mode or seed were changed"},
		{[]string{"resume", changed(t, beginnings(t, 3), replace(`{"trial"`, `{"tri`))}, 5, "line 2"},
		{[]string{"report", changed(t, beginnings(t, 3), replace(`{"trial"`, `{"tri`))}, 5, "line 2"},
		{[]string{"report", changed(t, beginnings(t, 3), replace(`"trial":{"part":"idle"`, `"trial":{"part":"other"`))}, 5, "is not in the schedule of study tiny"},
		{[]string{"compare", dir, dir}, 4, "results.jsonl"},
	} {
		cmd := weir(t, t.Context(), c.args...)
		cmd.Dir = dir
		ended(t, cmd, c.code, c.want)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("a refused run made files: %v %v", entries, err)
	}
	if diff := cmp.Diff(links, hostLinks(t)); diff != "" {
		t.Errorf("links of the host:\n%s", diff)
	}
	// What a crash cut off is no mistake: the report tells of what is whole.
	torn := changed(t, beginnings(t, 3), func(text string) string { return text[:len(text)-20] })
	ended(t, weir(t, t.Context(), "report", torn), 0, "2 measured")
}

// program finds a program, for a PATH that has it and few others.
func program(t *testing.T, dir, name string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// TestMissingToolIsNamed: what needs it is skipped and says how to get it; a run that can measure nothing at all fails.
func TestMissingToolIsNamed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	path, links := t.TempDir(), hostLinks(t)
	program(t, path, "ping")
	const want = "iperf3: not installed (apt-get install iperf3)"
	some := filepath.Join(t.TempDir(), "some")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--only", "part=stream,platform=bridges", "--dir", filepath.Join(t.TempDir(), "none")}, 1, "nothing could be measured: all 2 trials were skipped: " + want},
		{[]string{"--only", "part=idle,part=stream,platform=bridges", "--dir", some}, 0, "skipped: " + want},
	} {
		cmd := weir(t, ctx, append([]string{"run", studyFile(t)}, c.args...)...)
		cmd.Env = append(os.Environ(), "PATH="+path)
		ended(t, cmd, c.code, c.want)
	}
	r, err := lab.Report(some)
	if err != nil || r.Skipped != 2 || r.Measured+r.Void != 6 {
		t.Errorf("%d skipped, %d measured, %d void: want 2 and 6; %v", r.Skipped, r.Measured, r.Void, err)
	}
	if diff := cmp.Diff(links, hostLinks(t)); diff != "" {
		t.Errorf("links of the host:\n%s", diff)
	}
}

// TestWithoutRoot: nothing is begun, and what only looks works.
func TestWithoutRoot(t *testing.T) {
	dir := t.TempDir()
	for path, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, dir: 0o777} { // anybody could write there
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(t.TempDir(), "weir")
	copyFile(t, weir(t, t.Context()).Path, bin)
	nobody := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), bin, append([]string{"lab"}, args...)...)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return cmd
	}
	ended(t, nobody("run", "wires", "--dir", "results"), 7, "use sudo")
	ended(t, nobody("doctor"), 0, "measuring needs it")
	ended(t, nobody("list"), 0, "wires")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("a run without root made files: %v %v", entries, err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestFullDiskEndsTheRun: what was written is whole, nothing is left on the host, and with more room the run goes on to its end.
func TestFullDiskEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=8k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(disk, "run")
	run := weir(t, ctx, "run", studyFile(t), "--only", "part=idle,platform=veth", "--dir", dir)
	var problems bytes.Buffer
	run.Stderr = &problems
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	names := until(t, ctx, run, dir, 1)
	if _ = run.Wait(); run.ProcessState.ExitCode() != 10 || !strings.Contains(problems.String(), "no space left on device") || !strings.Contains(problems.String(), "weir lab resume "+dir) {
		t.Errorf("exit code %d\n%s", run.ProcessState.ExitCode(), problems.String())
	}
	gone(t, names)
	before, err := study.Read(dir)
	if err != nil || len(before.Records) == 0 || len(before.Left()) == 0 {
		t.Fatalf("what a full disk leaves: %v", err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	resume := weir(t, ctx, "resume", dir, "-o", "json")
	out, err := resume.Output()
	var r lab.Results
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil || r.Left != 0 || r.Planned != len(before.Records)+len(before.Left()) {
		t.Errorf("%d of %d are left with more room: %v", r.Left, r.Planned, err)
	}
}

const long = `name: long
title: A chain that takes a while to set up
parts:
  - name: idle
    question: Is everybody there?
    experiment: ping
    metrics: [{name: rtt, unit: us, better: lower}]
    factors: [{name: platform, levels: [ebpf]}]
    settings: {wires: "60"}
    compare: platform
    baseline: ebpf
    quick: {blocks: 1}
    full: {blocks: 6}
`

// TestInterruptedSetUp: a run that is interrupted or killed while it sets a chain up. The first removes everything itself, the second leaves it to
// the next run.
func TestInterruptedSetUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	path := write(t, filepath.Join(t.TempDir(), "long.yaml"), long)
	for _, c := range []struct {
		signal syscall.Signal
		code   int
	}{{syscall.SIGINT, 130}, {syscall.SIGKILL, -1}} {
		dir := filepath.Join(t.TempDir(), "run")
		run := weir(t, ctx, "run", path, "--dir", dir)
		var problems bytes.Buffer
		run.Stderr = &problems
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		names := building(t, ctx, run)
		if err := run.Process.Signal(c.signal); err != nil {
			t.Fatal(err)
		}
		if _ = run.Wait(); run.ProcessState.ExitCode() != c.code {
			t.Errorf("%s: exit code %d: want %d\n%s", c.signal, run.ProcessState.ExitCode(), c.code, problems.String())
		}
		j, err := study.Read(dir)
		if err != nil || len(j.Records) != 0 {
			t.Errorf("%s: %d trials were made, it was to set up: %v", c.signal, len(j.Records), err)
		}
		if c.signal == syscall.SIGKILL {
			if len(traces(t, names)) == 0 {
				t.Error("a killed run leaves nothing: the test does not test")
			}
			ended(t, weir(t, ctx, "run", studyFile(t), "--only", "part=stream,platform=bridges,wires=2", "--dir", filepath.Join(t.TempDir(), "next")), 0, "bridges")
		}
		gone(t, names)
	}
}

// building waits until the run has made some functions, and gives the names of its benches.
func building(t *testing.T, ctx context.Context, run *exec.Cmd) []string {
	t.Helper()
	for {
		names := benchesOf(run.Process.Pid)
		for _, name := range names {
			if made, err := filepath.Glob("/run/weir/" + name + "-?/netns/w00[3-9]"); err == nil && len(made) > 0 {
				return names
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no function is made: %v", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestAThingIsSetBesideItself: two runs of levels that are the same under two names, by one command. What they found is chance; that all of it was
// asked, counted and written down is not.
func TestAThingIsSetBesideItself(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dir := filepath.Join(t.TempDir(), "aa")
	const text = `name: same
title: A link beside itself
parts:
  - name: idle
    question: Is it the same?
    experiment: ping
    metrics: [{name: rtt, unit: us, better: lower}]
    factors: [{name: label, levels: [one, two]}]
    settings: {platform: veth, wires: "0"}
    compare: label
    baseline: one
    quick: {blocks: 6}
    full: {blocks: 6}
`
	run := weir(t, ctx, "run", write(t, filepath.Join(t.TempDir(), "same.yaml"), text), "--repeat", "2", "--seed", "7", "--dir", dir, "-o", "json")
	var problems bytes.Buffer
	run.Stderr = &problems
	out, err := run.Output()
	var r lab.Repeats
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil || len(r.Runs) != 2 || len(r.Comparisons) != 2 {
		t.Fatalf("%d runs, %d comparisons: %v\n%s", len(r.Runs), len(r.Comparisons), err, problems.String())
	}
	for i, run := range r.Runs {
		if run.Seed != uint64(7+i) || run.Measured+run.Void != 18 || run.Skipped != 0 || run.Verdict == "" {
			t.Errorf("run %d: %+v", i, run)
		}
		if j, err := study.Read(filepath.Join(dir, run.Dir)); err != nil || len(j.Left()) != 0 {
			t.Errorf("run %d: %v", i, err)
		}
	}
	for _, c := range r.Comparisons {
		if c.Same+c.Different+c.TooFew != 2 {
			t.Errorf("a comparison of 2 runs: %+v", c)
		}
	}
	ended(t, weir(t, ctx, "report", dir), 0, "A/A: ")
	first, second := filepath.Join(dir, r.Runs[0].Dir), filepath.Join(dir, r.Runs[1].Dir)
	ended(t, weir(t, ctx, "report", first, second), 0, "A link beside itself (quick): 2 runs")
	ended(t, weir(t, ctx, "report", first, first), 5, "are the same run")
	ended(t, weir(t, ctx, "report", first, second, "--format", "html"), 2, "--format and --out are for one run")
	ended(t, weir(t, ctx, "resume", dir), 0, r.Headline())
}
