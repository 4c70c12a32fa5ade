package testbed

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api/file"
)

// builder is the variable that makes the test binary build the testbed of standard input and end.
const builder = "WEIR_TEST_BUILD"

func TestMain(m *testing.M) {
	if os.Getenv(builder) != "" {
		f, err := Load(file.Stdin, os.Stdin)
		if err == nil {
			_, err = Up(context.Background(), f, Options{Progress: func(format string, a ...any) { fmt.Printf(format+"\n", a...) }})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "testbed: these tests make network namespaces and run Open vSwitch: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// square is two switches and three stations, without anything of Weir's.
const square = `name: NAME
switches: {s1: {}, s2: {table_size: 3}}
hosts: {a: {address: 10.0.0.1/24}, b: {address: 10.0.0.2/24}, c: {address: 10.0.0.3/24}}
links:
  - {a: s1:1, b: s2:7}
  - {a: s1:2, b: a}
  - {a: b, b: s2:2}
  - {a: s2:65279, b: c}
`

func named(t *testing.T, text string) (File, string) {
	t.Helper()
	var id [3]byte
	_, _ = rand.Read(id[:]) // never fails
	name := "t" + hex.EncodeToString(id[:])
	f, err := Load(file.Stdin, strings.NewReader(strings.ReplaceAll(text, "NAME", name)))
	if err != nil {
		t.Fatal(err)
	}
	return f, name
}

// up builds a testbed that goes with the test and leaves nothing behind.
func up(t *testing.T, text string) (context.Context, plan) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	f, name := named(t, text)
	t.Cleanup(func() { goesWithoutTrace(t, name) })
	changed, err := Up(ctx, f, Options{})
	if err != nil || !changed {
		t.Fatalf("up: %t, %v", changed, err)
	}
	return ctx, newPlan(f.Spec)
}

func goesWithoutTrace(t *testing.T, name string) {
	t.Helper()
	if _, err := Down(context.Background(), name, Options{}); err != nil {
		t.Error(err)
	}
	left(t, name)
}

// left reports what bears a testbed's name.
func left(t *testing.T, name string) {
	t.Helper()
	for _, pattern := range []string{runBase + "/" + name + "*", stateBase + "/" + name + "*"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			t.Errorf("left behind: %v", found)
		}
	}
	if mounts, _ := os.ReadFile("/proc/self/mounts"); bytes.Contains(mounts, []byte("/"+name+"/")) {
		t.Errorf("mounts left behind: %s", mounts)
	}
	found, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range found {
		env, _ := os.ReadFile(path)
		if bytes.Contains(env, []byte(markTestbed+"="+name+"\x00")) {
			command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			t.Errorf("left behind: %s %q", path, command)
		}
	}
}

// in runs a command at a node.
func in(ctx context.Context, t *testing.T, p plan, node string, argv ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	code, err := Exec(ctx, p.Name, node, argv, Streams{Out: &out, Err: &out})
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), code
}

// flows gives a switch static ones.
func flows(ctx context.Context, t *testing.T, p plan, name string, list ...string) {
	t.Helper()
	for _, f := range list {
		if out, code := in(ctx, t, p, name, "ovs-ofctl", "-O", "OpenFlow13", "add-flow", name, f); code != 0 {
			t.Fatalf("add-flow %s %s: %s", name, f, out)
		}
	}
}

func pings(ctx context.Context, t *testing.T, p plan, from, to string) bool {
	t.Helper()
	_, code := in(ctx, t, p, from, "ping", "-q", "-n", "-c", "1", "-W", "1", to)
	return code == 0
}

// reaches waits until a ping comes back: the first one after a change may be lost, and asks for an address again only after a second.
func reaches(ctx context.Context, t *testing.T, p plan, from, to string) {
	t.Helper()
	if err := await(ctx, 20*time.Second, "ping from "+from+" to "+to, func() (bool, error) { return pings(ctx, t, p, from, to), nil }); err != nil {
		t.Error(err)
	}
}

func TestSwitchesForwardAsTheFileSays(t *testing.T) {
	ctx, p := up(t, square)
	if pings(ctx, t, p, "a", "10.0.0.2") {
		t.Error("a frame passes switches without rules")
	}
	for _, s := range []string{"s1", "s2"} {
		out, _ := in(ctx, t, p, s, "ovs-ofctl", "-O", "OpenFlow13", "dump-desc", s)
		if !strings.Contains(out, "DP Description: "+s+"\n") {
			t.Errorf("%s does not say its name: %s", s, out)
		}
	}
	flows(ctx, t, p, "s1", "in_port=2,actions=output:1", "in_port=1,actions=output:2")
	flows(ctx, t, p, "s2", "in_port=7,actions=output:2", "in_port=2,actions=output:7")
	reaches(ctx, t, p, "a", "10.0.0.2")
	if pings(ctx, t, p, "a", "10.0.0.3") {
		t.Error("a reaches c, to which no rule leads")
	}
	flows(ctx, t, p, "s2", "in_port=65279,actions=output:7")
	if out, code := in(ctx, t, p, "s2", "ovs-ofctl", "-O", "OpenFlow13", "add-flow", "s2", "in_port=9,actions=drop"); code == 0 || !strings.Contains(out, "TABLE_FULL") {
		t.Errorf("a fourth rule in a table of 3: %s", out)
	}

	t.Run("TCP's checksums are right behind a switch in user space", func(t *testing.T) {
		server := exec.CommandContext(ctx, "nsenter", "--net="+p.netns("b"), "iperf3", "-s", "-1")
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
		var out string
		err := await(ctx, 10*time.Second, "iperf3", func() (bool, error) {
			var code int
			if out, code = in(ctx, t, p, "a", "iperf3", "-c", "10.0.0.2", "-n", "200K", "--connect-timeout", "1000"); code != 0 {
				return false, errors.New(out)
			}
			return true, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("a cable is pulled out and put in again", func(t *testing.T) {
		if err := Cut(p.Name, "s2:7"); err != nil {
			t.Fatal(err)
		}
		if pings(ctx, t, p, "a", "10.0.0.2") {
			t.Error("a frame passes a cable that is cut")
		}
		for _, s := range []string{"s1", "s2"} {
			out, _ := in(ctx, t, p, s, "ovs-ofctl", "-O", "OpenFlow13", "show", s)
			if !strings.Contains(out, "LINK_DOWN") {
				t.Errorf("%s does not see it: %s", s, out)
			}
		}
		s, err := List(p.Name)
		if err != nil || s.Links[0].State != "down" || s.Links[1].State != "up" {
			t.Errorf("list: %+v, %v", s.Links, err)
		}
		if err := Heal(p.Name, "s1:1"); err != nil { // its other end
			t.Fatal(err)
		}
		reaches(ctx, t, p, "a", "10.0.0.2")
	})
	t.Run("what cannot be named is not found", func(t *testing.T) {
		for _, err := range []error{Cut(p.Name, "s1:9"), Cut(p.Name, "b:mgmt"), Cut("nobody", "s1:1"), Impair(p.Name, "d", Impairment{})} {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("got %v", err)
			}
		}
		if _, err := Exec(ctx, p.Name, "d", []string{"true"}, Streams{}); !errors.Is(err, ErrNotFound) {
			t.Errorf("exec: %v", err)
		}
	})
}

func TestUpAgainStartsOnlyWhatDied(t *testing.T) {
	ctx, p := up(t, square)
	f := File{Spec: p.Spec}
	pids := func() map[string][]int {
		list, err := p.processes()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string][]int{}
		for _, x := range list {
			out[x.node] = append(out[x.node], x.pid)
		}
		return out
	}
	before := pids()
	if changed, err := Up(ctx, f, Options{}); changed || err != nil {
		t.Errorf("a second up: %t, %v", changed, err)
	}
	if d := cmp.Diff(before, pids()); d != "" {
		t.Error(d)
	}
	other := p.Spec
	other.Links = slices.Clone(other.Links)
	other.Links[0].Rate = "1M"
	if _, err := Up(ctx, File{Spec: other}, Options{}); !errors.Is(err, ErrConflict) {
		t.Errorf("up with another file: %v", err)
	}
	for _, pid := range before[ovsVswitchd] {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if err := await(ctx, 5*time.Second, "list", func() (bool, error) { s, err := List(p.Name); return s.State == "degraded", err }); err != nil {
		t.Error(err)
	}
	if changed, err := Up(ctx, f, Options{}); !changed || err != nil {
		t.Errorf("up after a death: %t, %v", changed, err)
	}
	after := pids()
	if d := cmp.Diff(before[ovsdbServer], after[ovsdbServer]); d != "" || slices.Equal(before[ovsVswitchd], after[ovsVswitchd]) {
		t.Errorf("before %v, after %v", before, after)
	}
	flows(ctx, t, p, "s1", "in_port=2,actions=output:1", "in_port=1,actions=output:2")
	flows(ctx, t, p, "s2", "in_port=7,actions=output:2", "in_port=2,actions=output:7")
	reaches(ctx, t, p, "a", "10.0.0.2")
}

func TestImpairments(t *testing.T) {
	ctx, p := up(t, square)
	flows(ctx, t, p, "s1", "in_port=2,actions=output:1", "in_port=1,actions=output:2")
	flows(ctx, t, p, "s2", "in_port=7,actions=output:2", "in_port=2,actions=output:7")
	reaches(ctx, t, p, "a", "10.0.0.2")
	if err := Impair(p.Name, "s1:1", Impairment{Rate: "100k"}); err != nil {
		t.Fatal(err)
	}
	if out, code := in(ctx, t, p, "a", "ping", "-q", "-n", "-c", "4", "-i", "0.01", "-s", "1400", "-W", "3", "10.0.0.2"); code != 0 {
		t.Error(out) // 6 kB are a burst that passes at once
	}
	qdiscs, _ := in(ctx, t, p, "s1", "tc", "qdisc")
	if strings.Count(qdiscs, "tbf") != 2 || strings.Count(qdiscs, "rate 100Kbit") != 2 {
		t.Errorf("both ends of the cable want a rate:\n%s", qdiscs)
	}
	t.Run("delay and loss", func(t *testing.T) {
		err := Impair(p.Name, "s1:1", Impairment{Delay: "20ms", Loss: "1%"})
		said, code := in(ctx, t, p, "s1", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
		if code != 0 && strings.Contains(said, "Specified qdisc kind is unknown") { // so says the kernel to others, too
			if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "this kernel has no netem queue (CONFIG_NET_SCH_NETEM)") {
				t.Errorf("got %v", err)
			}
			t.Skip("kernel lacks the netem queue (CONFIG_NET_SCH_NETEM)")
		}
		if err != nil {
			t.Fatal(err)
		}
		if out, _ := in(ctx, t, p, "s1", "tc", "qdisc"); strings.Count(out, "netem") != 2 || strings.Contains(out, "tbf") {
			t.Errorf("queues: %s", out)
		}
	})
	if err := Impair(p.Name, "s1:1", Impairment{}); err != nil {
		t.Fatal(err)
	}
	if out, _ := in(ctx, t, p, "s1", "tc", "qdisc"); strings.Contains(out, "netem") || strings.Contains(out, "tbf") {
		t.Errorf("queues are left: %s", out)
	}
	if err := Impair(p.Name, "s1:1", Impairment{Rate: "fast"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestUpThatFailsLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f, name := named(t, strings.Replace(square, "name: NAME", "name: NAME\nmanager: {}", 1))
	defer goesWithoutTrace(t, name)
	_, err := Up(ctx, f, Options{Program: "/bin/false"})
	if err == nil || !strings.Contains(err.Error(), "start manager: it ended") {
		t.Errorf("got %v", err)
	}
	left(t, name)
}

// Wherever the building process is killed, down removes all of it, and up begins anew.
func TestKilledAtAnyMoment(t *testing.T) {
	for _, after := range []time.Duration{0, 10 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			_, name := named(t, square)
			defer goesWithoutTrace(t, name)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			c := exec.Command(self)
			c.Env = append(os.Environ(), builder+"=1")
			c.Stdin = strings.NewReader(strings.ReplaceAll(square, "NAME", name))
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(after, func() { _ = c.Process.Kill() })
			_ = c.Wait() // killed, or done before that
			if after == 60*time.Millisecond {
				f, err := Load(file.Stdin, strings.NewReader(strings.ReplaceAll(square, "NAME", name)))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := Up(context.Background(), f, Options{}); err != nil {
					t.Error(err)
				}
				if s, err := List(name); err != nil || s.State != "up" {
					t.Errorf("list: %s, %v", s.State, err)
				}
			}
		})
	}
}

func TestFindWantsANameOnlyWhereItMust(t *testing.T) {
	if _, err := Find("nobody"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if _, err := List("nobody"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if found, err := Down(context.Background(), "nobody", Options{}); found || err != nil {
		t.Errorf("down of none: %t, %v", found, err)
	}
}

// A name that is none, such as an unset variable of a script, must not become the directory of all testbeds.
func TestDownOfNoName(t *testing.T) {
	_, other := named(t, square)
	p := newPlan(Spec{Name: other})
	for _, dir := range []string{p.Run, p.State} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	defer goesWithoutTrace(t, other)
	for _, name := range []string{"", ".", "..", "../" + other, other + "/", "UPPER"} {
		if found, err := Down(context.Background(), name, Options{}); found || !errors.Is(err, ErrInvalid) {
			t.Errorf("down of %q: %t, %v", name, found, err)
		}
		if _, err := List(name); !errors.Is(err, ErrInvalid) {
			t.Errorf("list of %q: %v", name, err)
		}
	}
	for _, dir := range []string{p.Run, p.State} {
		if !fileExists(dir) {
			t.Errorf("%s of another testbed is gone", dir)
		}
	}
}
