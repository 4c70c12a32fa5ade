package guest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/rkt"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic/tools"
)

// runName is one that no run of the lab has: they are hexadecimal.
const runName = "lab-gtst"

func options(t *testing.T) platform.Options {
	t.Helper()
	program, err := filepath.Abs(cmp.Or(os.Getenv("WEIR_BIN"), "../../bin/weir"))
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Fatalf("%v: build it with `make build`", err)
	}
	return platform.Options{Name: runName, Program: program, Images: []string{filepath.Join(filepath.Dir(program), "images")}}
}

func openSite(t *testing.T) *Site {
	t.Helper()
	o := options(t)
	clear(t, o)
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		empty(t)
	})
	return s
}

// clear takes away what an earlier test left that was killed.
func clear(t *testing.T, o platform.Options) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := errors.Join(Remove(ctx, o.Name), platform.Remove(ctx, o.Name)); err != nil {
		t.Fatal(err)
	}
}

// empty: nothing of the run is left.
func empty(t *testing.T) {
	t.Helper()
	for _, pattern := range []string{"/run/weir/" + runName + "*", "/var/lib/weir/" + runName + "*", "/sys/fs/cgroup/*/weir/" + runName + "*", "/sys/fs/cgroup/*/weir-" + runName + "*"} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

// usable guests of a kind, or a skip that names what the machine lacks.
func usable(t *testing.T, s *Site, spec Spec) *Guest {
	t.Helper()
	if why := Check(spec.Kind, s.o); why != "" {
		switch spec.Kind {
		case rkt.Name:
			t.Skip("machine lacks rkt: " + why)
		case VM:
			t.Skip("machine lacks KVM: " + why)
		}
		t.Fatalf("%s: %s", spec.Kind, why)
	}
	g, err := s.Guest(t.Context(), spec)
	switch {
	case spec.Kind == VM && errors.Is(err, ErrOther):
		t.Skipf("machine lacks KVM: %v", err)
	case spec.Kind == Emulated && errors.Is(err, ErrOther):
		t.Skipf("machine lacks emulated machines: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	return g
}

// The same programs run on every kind of host, each within its limits, and reach a peer over a line of the rate that was asked for.
func TestGuestsRunPrograms(t *testing.T) {
	s := openSite(t)
	path, err := s.Corpus(1)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := platform.LineAddresses()
	for _, kind := range Kinds() {
		t.Run(kind, func(t *testing.T) {
			begin := time.Now()
			g := usable(t, s, Spec{Kind: kind, CPUs: 1, Memory: 256, Mbits: 100})
			t.Logf("there in %s", time.Since(begin))
			if err := g.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			out, err := g.Run(t.Context(), Probe, "run", Program("xz"), "-0", "--keep", "--stdout", path)
			if ns, perr := strconv.Atoi(strings.TrimSpace(out)); err != nil || perr != nil || ns <= 0 {
				t.Errorf("xz: %q, %v", out, err)
			}
			out, err = g.Run(t.Context(), Probe, "memory", "65536", "1")
			if n := strings.Count(out, "\n") + 1; err != nil || !strings.HasPrefix(out, "read ") || n < 4 {
				t.Errorf("memory: %q, %v", out, err)
			}
			if _, err = g.Run(t.Context(), Probe, "run", Program("busybox"), "false"); err == nil {
				t.Error("a program that fails is no error")
			}
			if r, err := tools.RunPing(t.Context(), g.Line().Peer, tools.PingOptions{To: own.Addr(), Count: 3}); err != nil || r.Received == 0 {
				t.Errorf("its peer cannot reach it: %+v, %v", r, err)
			}
			there, back, err := g.Line().Carried()
			if err != nil || there == 0 || back == 0 {
				t.Errorf("the line has carried %d and %d bits: %v", there, back, err)
			}
			c := g.Conditions()
			if c["services"] == "" || c["network"] == "" || g.Emulated() != (kind == Emulated) {
				t.Errorf("%v", c)
			}
		})
	}
}

// A guest that is to write gets a directory of the disk; a machine has none and says so.
func TestGuestsWrite(t *testing.T) {
	s := openSite(t)
	for _, kind := range []string{BareMetal, "native", DockerRun, Emulated} {
		t.Run(kind, func(t *testing.T) {
			if why := NoDisk(kind); why != "" {
				if _, err := s.Start(t.Context(), Spec{Kind: kind, Memory: 256, Data: 1}); !errors.Is(err, ErrOther) {
					t.Errorf("%v: want %s", err, why)
				}
				return
			}
			g := usable(t, s, Spec{Kind: kind, Memory: 256, Data: 1})
			if _, err := g.Run(t.Context(), Program("dd"), "status=none", "if=/dev/zero", "of="+Data+"/file", "bs=1k", "count=8"); err != nil {
				t.Fatal(err)
			}
			if st, err := os.Stat(filepath.Join(g.data(), "file")); err != nil || st.Size() != 8<<10 {
				t.Errorf("%v, %v", st, err)
			}
		})
	}
	if _, err := s.Start(t.Context(), Spec{Kind: BareMetal, Data: 1 << 40}); !errors.Is(err, ErrOther) || !strings.Contains(err.Error(), "disk too small") {
		t.Errorf("a file larger than any disk: %v", err)
	}
}

// The services of a compute host run while a guest beside them is measured, and at no other time.
func TestServicesStandStill(t *testing.T) {
	s := openSite(t)
	g := usable(t, s, Spec{Kind: Compute})
	state := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.daemon.PID()))
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(text), ") ")
		return after[:1]
	}
	if state() != "T" {
		t.Errorf("services are %s while nothing is measured", state())
	}
	for _, kind := range []string{BareMetal, g.Kind, "native"} {
		end, err := s.Begin(kind)
		if stands := state() == "T"; err != nil || stands != (kind == BareMetal) {
			t.Errorf("%s: services are %s, %v", kind, state(), err)
		}
		if err := end(); err != nil || state() != "T" {
			t.Errorf("%s: services are %s behind it, %v", kind, state(), err)
		}
	}
}

// An engine that dies takes its guests along; the next one is made on another.
func TestAnEngineThatDies(t *testing.T) {
	s := openSite(t)
	usable(t, s, Spec{Kind: DockerRun})
	if err := s.engine.Kill(); err != nil {
		t.Fatal(err)
	}
	g := usable(t, s, Spec{Kind: DockerRun})
	if _, err := g.Run(t.Context(), Probe, "run", Program("busybox"), "true"); err != nil {
		t.Error(err)
	}
}

// A machine that cannot boot is an error that says why, and leaves nothing.
func TestAMachineThatDoesNotBoot(t *testing.T) {
	s := openSite(t)
	if why := Check(Emulated, s.o); why != "" {
		t.Fatal(why)
	}
	kernel := filepath.Join(t.TempDir(), "vmlinuz-1")
	if err := os.WriteFile(kernel, []byte("no kernel"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEIR_KVM_KERNEL", kernel)
	_, err := s.Start(t.Context(), Spec{Kind: Emulated, Mbits: 100})
	if err == nil || errors.Is(err, ErrOther) || !strings.Contains(err.Error(), kernel) {
		t.Errorf("%v: want an error that names %s", err, kernel)
	}
}

// leaves is set where this program is to make guests, say so, and wait to be killed.
const leaves = "WEIR_TEST_LEAVE_GUESTS"

func leave() {
	ctx := context.Background()
	s, err := Open(ctx, platform.Options{Name: runName, Program: os.Getenv(leaves), Images: []string{filepath.Join(filepath.Dir(os.Getenv(leaves)), "images")}})
	for _, kind := range []string{BareMetal, Compute, "native", DockerRun, Emulated} {
		if err == nil && Check(kind, s.o) == "" {
			if _, err = s.Guest(ctx, Spec{Kind: kind, Memory: 256, Mbits: 100}); errors.Is(err, ErrOther) {
				err = nil
			}
		}
	}
	if err == nil {
		_, err = s.Begin(BareMetal)
	}
	fmt.Println("left", err)
	_ = os.Stdout.Sync()
	time.Sleep(time.Hour)
}

// What a run that was killed has left is found and removed.
func TestKilledRunsAreRemoved(t *testing.T) {
	o := options(t)
	clear(t, o)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), leaves+"="+o.Program)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(out).ReadString('\n')
	if serr := cmd.Process.Signal(unix.SIGKILL); serr != nil {
		t.Error(serr)
	}
	_ = cmd.Wait() // it was killed
	if err != nil || said != "left <nil>\n" {
		t.Errorf("%q, %v", said, err)
	}
	clear(t, o)
	empty(t)
}
