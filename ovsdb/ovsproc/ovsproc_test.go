package ovsproc

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

func rig(t *testing.T) Options {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	if err := Installed(); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "ovsproc-")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: filepath.Join(dir, "ovs"), Netns: filepath.Join(dir, "ns")}
	if err := netns.Create(o.Netns, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := At(o).Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(o.Dir); !os.IsNotExist(err) {
			entries, _ := os.ReadDir(o.Dir)
			t.Errorf("left over in %s: %v", o.Dir, entries)
		}
		if err := netns.Delete(o.Netns); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	return o
}

func start(t *testing.T, o Options) *Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	p, err := Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := p.Running(); !a || !b {
		t.Fatalf("after the start: ovsdb-server %t, ovs-vswitchd %t", a, b)
	}
	return p
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); ; {
		state, err := os.ReadFile("/proc/" + itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d does not end", pid)
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

func TestStartIsIdempotentAndSurvivesKills(t *testing.T) {
	o := rig(t)
	p := start(t, o)
	db, vs := p.ServerPID(), p.SwitchPID()
	start(t, o)
	if p.ServerPID() != db || p.SwitchPID() != vs {
		t.Error("a second start replaced running processes")
	}
	want, err := os.Stat(o.Netns)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{db, vs} {
		got, err := os.Stat("/proc/" + itoa(pid) + "/ns/net")
		if err != nil || !os.SameFile(want, got) {
			t.Errorf("process %d is not in the namespace: %v", pid, err)
		}
		parent, err := os.ReadFile("/proc/" + itoa(pid) + "/stat")
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(parent[strings.LastIndexByte(string(parent), ')')+1:]))
		if fields[1] == itoa(os.Getpid()) {
			t.Errorf("process %d is a child of ours", pid)
		}
	}
	kill(t, vs)
	if a, b := p.Running(); !a || b {
		t.Errorf("after ovs-vswitchd was killed: %t, %t", a, b)
	}
	start(t, o)
	kill(t, p.ServerPID())
	kill(t, p.SwitchPID())
	start(t, o)
	for range 2 {
		if err := p.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := p.Running(); a || b {
		t.Errorf("after Stop: %t, %t", a, b)
	}
	start(t, o)
}

func TestStalePidFileOfAnotherProcess(t *testing.T) {
	o := rig(t)
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.Dir, "ovs-vswitchd.pid"), []byte(itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if At(o).SwitchPID() != 0 {
		t.Fatal("another process passes for ovs-vswitchd")
	}
	if err := At(o).Stop(context.Background()); err != nil { // would end this test
		t.Fatal(err)
	}
	start(t, o)
}

// A log that is large is turned over, also while its process is away; one that somebody removed is begun anew.
func TestLogsAreTurnedOver(t *testing.T) {
	o := rig(t)
	p := start(t, o)
	path := func(program, end string) string { return filepath.Join(o.Dir, program+".log"+end) }
	// begun awaits a log's first line, which its process writes in its own time.
	begun := func(path string) string {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; {
			b, err := os.ReadFile(path)
			if err == nil && strings.Contains(string(b), "opened log file") {
				return string(b)
			}
			if time.Now().After(end) {
				t.Fatalf("%s holds %q, %v", path, b, err)
			}
			unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
		}
	}
	turn := func(limit int64) {
		t.Helper()
		if err := p.turnLogs(t.Context(), limit); err != nil {
			t.Fatal(err)
		}
	}
	programs := []string{server, switchd}
	turn(1 << 20)
	for _, program := range programs {
		if _, err := os.Stat(path(program, ".1")); !os.IsNotExist(err) {
			t.Errorf("%s: a small log was turned over: %v", program, err)
		}
	}
	for range 2 {
		was := map[string]string{}
		for _, program := range programs {
			was[program] = begun(path(program, ""))
		}
		turn(10)
		for _, program := range programs {
			if old, err := os.ReadFile(path(program, ".1")); err != nil || !strings.HasPrefix(string(old), was[program]) {
				t.Errorf("%s: the old log holds %q, want %q: %v", program, old, was[program], err)
			}
			if got := begun(path(program, "")); strings.Contains(got, was[program]) {
				t.Errorf("%s: the new log holds %q", program, got)
			}
		}
	}
	for _, program := range programs {
		if err := os.Remove(path(program, "")); err != nil {
			t.Fatal(err)
		}
	}
	turn(1 << 20)
	for _, program := range programs {
		begun(path(program, ""))
	}
	kill(t, p.SwitchPID())
	turn(10)
	if _, err := os.Stat(path(switchd, "")); !os.IsNotExist(err) {
		t.Errorf("the log of a dead process is still there: %v", err)
	}
	start(t, o)
	begun(path(switchd, ""))
}

func TestRefusals(t *testing.T) {
	for name, o := range map[string]Options{
		"relative":     {Dir: "some/where"},
		"too long":     {Dir: "/tmp/" + strings.Repeat("x", 100)},
		"no namespace": {Dir: filepath.Join(t.TempDir(), "o"), Netns: "/nowhere/ns"},
	} {
		if _, err := Start(context.Background(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
