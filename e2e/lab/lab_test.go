package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
	"weir.dev/weir/netns"
)

// inside says that these tests run in a network namespace of their own.
const inside = "WEIR_TEST_INSIDE"

// TestMain begins again in a network namespace of its own: what the lab leaves in the host's is told from what others do there.
func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "lab: these tests make network namespaces and containers: run them as root")
		os.Exit(1)
	}
	if os.Getenv(inside) == "" {
		fmt.Fprintln(os.Stderr, "lab:", begin())
		os.Exit(1)
	}
	os.Setenv("WEIR_QUIET_WAIT", "0s") // how well it measures is not asked here, and on a busy machine runs would mostly wait
	os.Exit(m.Run())
}

// begin replaces this process; it returns only if it could not.
func begin() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return err
	}
	argv := append([]string{"unshare", "--net", "sh", "-c", `ip link set lo up && exec "$0" "$@"`, self}, os.Args[1:]...)
	return syscall.Exec(unshare, argv, append(os.Environ(), inside+"=1"))
}

const tiny = `name: tiny
title: A few trials of everything
parts:
  - name: idle
    question: Is everybody there?
    experiment: ping
    metrics: [{name: rtt, unit: us, better: lower}]
    factors:
      - {name: platform, levels: [ebpf, ovs, bridges, ovs-chain, veth, docker, clickos]}
    compare: platform
    baseline: bridges
    quick: {blocks: 3}
    full: {blocks: 200}
  - name: packets
    question: What does a packet cost?
    experiment: pps
    metrics: [{name: cost, unit: ns, better: lower}]
    factors:
      - {name: platform, levels: [ebpf, bridges]}
      - {name: wires, levels: ["1", "3"]}
      - {name: size, levels: ["64", "1514"]}
    compare: platform
    baseline: bridges
    quick: {blocks: 1, duration: 200ms}
    full: {blocks: 6, duration: 1s}
  - name: stream
    question: How fast is a stream?
    experiment: tcp
    metrics: [{name: rate, unit: Gb/s, better: higher}]
    factors:
      - {name: platform, levels: [ebpf, bridges]}
      - {name: wires, levels: ["2"]}
    compare: platform
    baseline: bridges
    quick: {blocks: 1, duration: 1s}
    full: {blocks: 6, duration: 1s}
  - name: requests
    question: How many requests are answered?
    experiment: rr
    metrics: [{name: rate, unit: transactions/s, better: higher}, {name: p50, unit: us, better: lower}]
    factors:
      - {name: platform, levels: [ebpf, bridges]}
    settings: {wires: "2", connections: "3", request: "100", response: "2000", congestion: reno}
    compare: platform
    baseline: bridges
    quick: {blocks: 1, duration: 200ms}
    full: {blocks: 6, duration: 1s}
  - name: flows
    question: How long do flows take?
    experiment: fct
    metrics: [{name: fct, unit: ms, better: lower}, {name: elephants, unit: ms, better: lower}]
    factors:
      - {name: platform, levels: [ebpf, bridges]}
    settings: {wires: "2", flows: "6", rounds: "2", mouse: "20000", elephant: "300000", offload: "off"}
    compare: platform
    baseline: bridges
    quick: {blocks: 1}
    full: {blocks: 6}
  - name: boot
    question: How long do functions take?
    experiment: boot
    metrics: [{name: run, unit: s, better: lower}]
    factors:
      - {name: runtime, levels: [oci, runc, docker-run, lxc]}
      - {name: functions, levels: ["2"]}
    compare: runtime
    baseline: runc
    quick: {blocks: 1}
    full: {blocks: 6}
`

// weir is a command of the binary.
func weir(t testing.TB, ctx context.Context, args ...string) *exec.Cmd {
	t.Helper()
	bin := os.Getenv("WEIR_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin", "weir")
	}
	bin, err := filepath.Abs(bin)
	if err == nil {
		_, err = os.Stat(bin)
	}
	if err != nil {
		t.Fatalf("%v: build it with `make build`", err)
	}
	cmd := exec.CommandContext(ctx, bin, append([]string{"lab"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func studyFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.yaml")
	if err := os.WriteFile(path, []byte(tiny), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// hostLinks of the namespace that the tests run in: the lab makes none there.
func hostLinks(t testing.TB) []string {
	t.Helper()
	links, err := netns.Links("")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	return names
}

// traces of a run on the host, by the names of its benches: directories, mounts, BPF pins, links, cgroups, processes.
func traces(t testing.TB, names []string) (found []string) {
	t.Helper()
	for _, name := range names {
		found = append(found, tracesOf(t, name)...)
	}
	return found
}

func tracesOf(t testing.TB, name string) (found []string) {
	t.Helper()
	for _, dir := range []string{"/run/weir", "/var/lib/weir", "/run/netns", "/sys/fs/bpf", "/sys/fs/bpf/weir"} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.Contains(e.Name(), name) {
				found = append(found, filepath.Join(dir, e.Name()))
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, name) {
			found = append(found, "mount: "+strings.TrimSpace(line))
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*" + name + "*", "/sys/fs/cgroup/*/*" + name + "*", "/sys/fs/cgroup/*/weir/" + name + "*", "/sys/fs/cgroup/weir/" + name + "*"} {
		groups, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, groups...)
	}
	links, err := netns.Links("")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.Contains(l.Alias, name) {
			found = append(found, "link: "+l.Name+" "+l.Alias)
		}
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(name)) {
			found = append(found, "process: "+string(bytes.ReplaceAll(text, []byte{0}, []byte{' '})))
		}
	}
	return found
}

var benchDir = regexp.MustCompile(`^/run/weir/(lab-[0-9a-f]{4})$`)

// benchesOf finds the names of a run's benches by the directories that its process keeps locked.
func benchesOf(pid int) (names []string) {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // it may have ended
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			if m := benchDir.FindStringSubmatch(to); m != nil {
				names = append(names, m[1])
			}
		}
	}
	return names
}

// until the run has made n trials. It returns the names of its benches: of all variants, and of the duplicate.
func until(t testing.TB, ctx context.Context, cmd *exec.Cmd, dir string, n int) (names []string) {
	t.Helper()
	for {
		if found := benchesOf(cmd.Process.Pid); len(found) > 0 {
			names = found
		}
		over := hasEnded(cmd.Process.Pid) // asked before its results are read
		text, err := os.ReadFile(filepath.Join(dir, "results.jsonl"))
		if err == nil && bytes.Count(text, []byte("\n")) > n {
			if len(names) != 2 {
				t.Fatalf("the run has benches %v: want two", names)
			}
			return names
		}
		if over {
			err := cmd.Wait()
			t.Fatalf("the run ended before it had made %d trials: %v\n%s", n, err, cmd.Stderr)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d trials are not made: %v\n%s", n, ctx.Err(), stacks(cmd))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// hasEnded tells whether a child of this process has ended and is not waited for yet.
func hasEnded(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, ok := bytes.Cut(text, []byte(") "))
	return err != nil || ok && bytes.HasPrefix(state, []byte("Z"))
}

// stacks ends a run that hangs, so that it says where, and gives all that it said.
func stacks(cmd *exec.Cmd) any {
	_ = cmd.Process.Signal(syscall.SIGQUIT) // it may have ended
	_ = cmd.Wait()                          // it was stopped
	return cmd.Stderr
}

// resumed goes on with a run to its end; it gives the names of its benches, its results, and what it said.
func resumed(t testing.TB, ctx context.Context, dir string, n int, more ...string) (names []string, results []byte, problems string) {
	t.Helper()
	var out, said bytes.Buffer
	c := weir(t, ctx, append([]string{"resume", dir, "-o", "json"}, more...)...)
	c.Stdout, c.Stderr = &out, &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	names = until(t, ctx, c, dir, n)
	if err := c.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	return names, out.Bytes(), said.String()
}

func gone(t testing.TB, names []string) {
	t.Helper()
	if left := traces(t, names); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// TestKilledRunGoesOn: kill -9 while every platform is up; resume removes what was left, makes the rest of the same schedule, and leaves
// the host as it was.
func TestKilledRunGoesOn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	links := hostLinks(t)
	dir := filepath.Join(t.TempDir(), "run")
	run := weir(t, ctx, "run", studyFile(t), "--seed", "3", "--dir", dir)
	var out bytes.Buffer
	run.Stdout, run.Stderr = &out, &out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	first := until(t, ctx, run, dir, 9) // the first block has one of each platform
	if err := run.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = run.Wait() // killed
	if len(traces(t, first)) == 0 {
		t.Error("a killed run leaves nothing: the test does not test")
	}
	left, err := experiment.Leftovers()
	if err != nil || !slices.Contains(left, first[0]) || !slices.Contains(left, first[1]) {
		t.Errorf("leftovers: %v, %v: want %s among them", left, err, first)
	}

	second, results, problems := resumed(t, ctx, dir, 12)
	gone(t, first)
	gone(t, second)
	if diff := cmp.Diff(links, hostLinks(t)); diff != "" {
		t.Errorf("links of the host:\n%s", diff)
	}
	var r lab.Results
	if err := json.Unmarshal(results, &r); err != nil {
		t.Fatal(err)
	}
	check(t, dir, r, problems)
}

// conditions under which the trials of a part are to be made, whatever this machine's own are. They were read back when it was measured.
func conditions(part string) map[string]string {
	switch part {
	case "idle":
		return map[string]string{"qdisc": "noqueue", "representation": "socket"}
	case "stream":
		return map[string]string{"congestion control": "cubic", "flows": "1", "message": "131072 B", "GSO": "on"}
	case "requests":
		return map[string]string{"congestion control": "reno", "flows": "3", "message": "100 B there, 2000 B back"}
	case "flows":
		return map[string]string{"congestion control": "cubic", "flows": "6", "GSO": "off", "TSO": "off", "GRO": "off"}
	}
	return nil
}

func check(t *testing.T, dir string, r lab.Results, log string) {
	t.Helper()
	j, err := study.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var made []study.Trial
	for _, x := range j.Records {
		made = append(made, x.Trial)
		if strings.HasPrefix(x.Void, "failed") || strings.Contains(x.Void, "want all the same") { // nor do the books balance
			t.Errorf("%s: %s", x.Trial.Key(), x.Void)
		}
		for name, want := range conditions(x.Trial.Part) {
			if x.Skipped == "" && x.Conditions[name] != want {
				t.Errorf("%s: %s %q: want %q", x.Trial.Key(), name, x.Conditions[name], want)
			}
		}
		switch {
		case x.Skipped != "":
			if x.Trial.Variant[0] != "clickos" { // nobody can have it
				t.Errorf("%s: skipped: %s", x.Trial.Key(), x.Skipped)
			}
		case x.Values[r.Parts[0].Part.Metrics[0].Name] <= 0 && x.Trial.Part == "idle":
			t.Errorf("%s: %v", x.Trial.Key(), x.Values)
		case x.Covariates["lab_rss_mb"] <= 0:
			t.Errorf("%s: no covariates: %v", x.Trial.Key(), x.Covariates)
		}
	}
	if diff := cmp.Diff(j.Header.Study.Schedule(study.Quick, 3), made); diff != "" {
		t.Errorf("not the schedule, each trial once:\n%s\n%s", diff, log)
	}
	if r.Left != 0 || len(r.Parts) != 6 || len(r.Timeline) != r.Measured+r.Void || r.Overhead.RSS <= 0 || len(r.Limits) == 0 || r.Environment["kernel"] == "" {
		t.Errorf("%d left, %d parts, %d points of %d+%d, overhead %+v, limits %v, environment %v", r.Left, len(r.Parts), len(r.Timeline), r.Measured, r.Void, r.Overhead, r.Limits, r.Environment)
	}
	if s := r.Parts[0].Skips; len(s) != 1 || s[0].Variant[0] != "clickos" || s[0].Reason == "" {
		t.Errorf("skips: %+v", s)
	}
}

// TestInterruptedRunLeavesAResult: Ctrl-C ends with 130, a terminal that is closed (which the kernel and the shell say) with 129; both with a valid
// partial result, and nothing on the host.
func TestInterruptedRunLeavesAResult(t *testing.T) {
	t.Run("Ctrl-C", func(t *testing.T) { interrupted(t, 130, syscall.SIGINT) })
	t.Run("terminal closed", func(t *testing.T) { interrupted(t, 129, syscall.SIGHUP, syscall.SIGHUP) })
}

func interrupted(t *testing.T, code int, signals ...syscall.Signal) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dir := filepath.Join(t.TempDir(), "run")
	run := weir(t, ctx, "run", studyFile(t), "--full", "--dir", dir, "--only", "part=idle,platform=ebpf,platform=veth")
	var problems bytes.Buffer
	run.Stderr = &problems
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGINT, syscall.SIGHUP) // what runs the tests may ignore them (nohup): a child would, too
	defer signal.Stop(heard)
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	names := until(t, ctx, run, dir, 4)
	// One that begins where /run is another, and so sees half of what this one has, takes nothing of it away.
	other := weir(t, ctx, "run", studyFile(t), "--dir", dir)
	other.Args = append([]string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs none /run && exec "$0" "$@"`, other.Path}, other.Args[1:]...)
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Fatal(err)
	}
	other.Path = unshare
	ended(t, other, 5, "has results already")
	until(t, ctx, run, dir, 10)
	for _, s := range signals {
		if err := run.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	if _ = run.Wait(); run.ProcessState.ExitCode() != code || strings.Contains(problems.String(), "failed") {
		t.Errorf("exit code %d: want %d, and no trial that failed:\n%s", run.ProcessState.ExitCode(), code, problems.String())
	}
	if !strings.Contains(problems.String(), "weir lab resume "+dir) {
		t.Errorf("it does not say how to go on:\n%s", problems.String())
	}
	gone(t, names)
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r lab.Results
	if err := json.Unmarshal(text, &r); err != nil || r.Left == 0 || r.Measured+r.Void < 4 || r.Left+r.Measured+r.Void+r.Skipped != r.Planned {
		t.Errorf("%v: %d planned, %d measured, %d void, %d left", err, r.Planned, r.Measured, r.Void, r.Left)
	}
}
