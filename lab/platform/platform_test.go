package platform

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/container/rkt"
	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/netns"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "platform: these tests make network namespaces and containers: run them as root")
		os.Exit(1)
	}
	if found, _ := filepath.Glob("../../build/vm/kern/boot/vmlinuz-*-cloud-amd64"); len(found) > 0 && os.Getenv("WEIR_KVM_KERNEL") == "" { // make peers
		os.Setenv("WEIR_KVM_KERNEL", found[0])
	}
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// atOnce is how many tests run at the same time, if nobody says otherwise (-parallel): those that do wait for the kernel and for programs that come up
// more than they work.
const atOnce = "3"

func testOptions(t *testing.T) Options {
	t.Helper()
	images, err := filepath.Abs("../../bin/images")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(images), "weir")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: build it with `make build`", err)
	}
	return Options{Name: claimed(t), Images: []string{images}, Program: program, Former: "../.."}
}

// claimed is a name of the test's own, by which the lab removes what the test leaves if it is killed.
func claimed(t *testing.T) string {
	t.Helper()
	for {
		name := fmt.Sprintf("tst-%04x", time.Now().UnixNano()&0xffff)
		end, err := Guard(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, ok, err := Take(name)
		end()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			continue
		}
		t.Cleanup(func() {
			done := c.LetGo
			for _, home := range Homes() {
				if left, err := filepath.Glob(filepath.Join(home, name+"-*")); err != nil || len(left) > 0 { // for the lab's next run
					done = c.Leave
				}
			}
			if err := done(); err != nil {
				t.Error(err)
			}
		})
		return name
	}
}

// A peer must really carry traffic, through as many wires as it says, or a ratio to it means nothing. Of all peers the same settings are read, or the peer
// says why it has nothing that could have them. It leaves nothing behind.
func TestPlatformsCarry(t *testing.T) {
	var mu sync.Mutex
	read := map[string]map[string]string{} // settings of paths
	absent := map[string]func(setting string) string{}
	t.Cleanup(func() {
		all := map[string]bool{}
		for _, settings := range read {
			for name := range settings {
				all[name] = true
			}
		}
		if len(all) < 20 || !all[settingShown+"iptables"] || !all[SettingMTU+ofPorts] {
			t.Errorf("%d settings are read: %v", len(all), all)
		}
		for path, settings := range read {
			for name := range all {
				if _, known := settings[name]; known == (absent[path](name) != "") {
					t.Errorf("%s: %s is %q, absent: %q", path, name, settings[name], absent[path](name))
				}
			}
		}
	})
	for _, k := range Kinds() {
		if !stands(k.Point) {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			if k.Polls == nil && k.Point.Runtime != virtual { // those take whole processors, and run alone; the rest waits more than it works
				t.Parallel()
			}
			o := testOptions(t)
			if strings.HasPrefix(k.Point.Network, byPolling) && len(processors()) < k.Polls(Layout{}) {
				t.Skipf("machine lacks processors: want %d: %s", k.Polls(Layout{}), k.Check(o))
			}
			if k.Point.Network == byKernel && checkKernel() != "" {
				t.Skip(checkKernel())
			}
			elsewhere := k.Name == PlatformHosts || k.Open == nil // it needs a Weir that runs, or the lab has no driver for it
			if why := k.Check(o); why != "" {
				switch {
				case k.Point.Runtime == rkt.Name:
					t.Skip("machine lacks rkt: " + why)
				case !elsewhere:
					t.Fatalf("not on this machine: %s", why)
				}
				return
			}
			if elsewhere {
				t.Fatal("it can be had here, it is said")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
			defer cancel()
			p, err := k.Open(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				for _, pattern := range []string{Run + "/" + o.Name + "-*", Run + "/" + daemonNames(o) + "*", State + "/" + daemonNames(o) + "*", "/var/lib/weir/" + o.Name + "-*", "/sys/fs/cgroup/*/*" + o.Name + "*", "/sys/fs/cgroup/*/weir/" + o.Name + "*"} {
					if left, _ := filepath.Glob(pattern); len(left) > 0 {
						t.Errorf("left behind: %v", left)
					}
				}
			})
			lengths := []int{0}
			if k.Most > 0 {
				lengths = []int{3, 1, 2, 0}
			}
			for _, n := range lengths {
				path, err := p.Path(ctx, Layout{Chain: n})
				if err != nil {
					t.Fatalf("%d wires: %v", n, err)
				}
				if turns := k.Polls != nil || k.Process; turns { // processes that take turns on a busy machine: ping does not wait for what is late
					err = path.Try(ctx)
				} else if r, perr := tools.RunPing(ctx, path.From, tools.PingOptions{To: path.Address, Count: 5, Interval: 5 * time.Millisecond}); perr != nil || r.Received != 5 {
					err = fmt.Errorf("%d of 5 echoes: %v", r.Received, perr)
				}
				if err != nil {
					t.Errorf("%d wires: %v", n, err)
				}
				settings, err := path.Conditions()
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				name := fmt.Sprintf("%s, %d wires", k.Name, n)
				read[name], absent[name] = settings, func(setting string) string { return k.Absent(Layout{Chain: n}, setting) }
				mu.Unlock()
			}
		})
	}
}

// full: FULL is set (FULL=1 make test). Then each network is tried with each function in each runtime.
var full = os.Getenv("FULL") != ""

// stands tells which points are tried: the product is large. A network, and a function with a program, is tried without containers with all others, and a
// program in those runtimes that differ in what they allow it. In containers and machines all pairs are tried, of runtime and network and of runtime and
// function, and not each network with each function again (see full): a platform is put together of parts that know nothing of each other (openMade).
func stands(p Point) bool {
	network := p.Network == byBest || p.Network == byKernel || strings.HasPrefix(p.Network, byPolling)
	program := p.Function == byPcap || p.Function == byTestpmd
	switch {
	case p.Function == five || p.Runtime == PlatformHost || p.Runtime == daemonRuntime && p.Function != wireFunction: // see TestFunctionsAndToolsCarry
		return false
	case p.Runtime == bare:
		return true
	case !network && !program:
		return full || !slices.Contains(turning, p.Network) || inTurn(p)
	case p.Function == byPcap && p.Network == "ebpf", p.Function == byTestpmd && p.Network == byPolling+"1":
		return p.Runtime == "oci" || p.Runtime == "native" || p.Runtime == byDocker
	}
	// A machine behind a switch that polls is in TestMachinesShareMemoryWithASwitch with DPDK in it.
	return p.Runtime == virtual && (p.Network == byBest && p.Function == byPcap || full && p.Network == byPolling+"1" && p.Function == byBridges)
}

// turning are the networks that containers and machines have with all functions without a program of their own, in turns.
var turning = []string{"ebpf", "ovs", byBridges, byFlows, byLookup}

// inTurn tells whether it is the turn of a point's function, in its runtime and network. Points with a short name are tried anyway.
func inTurn(p Point) bool {
	if slices.Contains(ShortNames(), nameOf(p)) {
		return true
	}
	functions := []string{wireFunction, byBridges, byPacket}
	if p.Runtime == virtual { // a machine has no wire
		functions = functions[1:]
	}
	n, r := slices.Index(turning, p.Network), slices.Index(Runtimes(), p.Runtime)
	return functions[(n+r)%len(functions)] == p.Function
}

func nameOf(p Point) string {
	k, _ := Find(p.String())
	return k.Name
}

// In turns each runtime meets each network and each function.
func TestPointsInTurnCoverAllPairs(t *testing.T) {
	tried, pairs := 0, map[[2]string]bool{}
	for _, k := range Kinds() {
		p := k.Point
		if _, made := (makers{runtimes(), networks(), functions()}).kind(p); made != nil || p.Runtime == bare || !slices.Contains(turning, p.Network) || !slices.Contains([]string{wireFunction, byBridges, byPacket}, p.Function) {
			continue
		}
		pairs[[2]string{p.Runtime, p.Network}] = pairs[[2]string{p.Runtime, p.Network}] || inTurn(p)
		pairs[[2]string{p.Runtime, p.Function}] = pairs[[2]string{p.Runtime, p.Function}] || inTurn(p)
		if inTurn(p) {
			tried++
		}
	}
	for pair, covered := range pairs {
		if !covered {
			t.Errorf("%v: no point with both is tried", pair)
		}
	}
	t.Logf("%d points for %d pairs", tried, len(pairs))
	if len(pairs) < 40 {
		t.Errorf("%d pairs of runtimes with networks and functions", len(pairs))
	}
}

// What this machine cannot run says why: more threads that poll than it has processors.
func TestWhatCannotPollSaysWhy(t *testing.T) {
	o := testOptions(t)
	for threads := len(processors()) + 1; threads <= mostPolling; threads++ {
		k, _ := Find(fmt.Sprint("bare+", byPolling, threads, "+testpmd"))
		if why := k.Check(o); !strings.Contains(why, fmt.Sprintf("%d polling threads need %d CPUs", threads, threads)) {
			t.Error(why)
		}
	}
}

// A function whose program ends is told with its last words, at once.
func TestProgramsThatEndAreTold(t *testing.T) {
	for _, runtime := range []string{bare, "oci"} {
		k, _ := Find(runtime + "+bridge+pcap")
		p, err := k.Open(t.Context(), testOptions(t))
		if err != nil {
			t.Fatal(err)
		}
		m := p.(*made)
		pcap := *m.fn.program
		pcap.arguments = func(ports) []string { return []string{"in", "elsewhere"} }
		m.fn.program = &pcap
		begin := time.Now()
		if _, err := p.Path(t.Context(), Layout{Chain: 1}); err == nil || !strings.Contains(err.Error(), "pcap-bridge: elsewhere: activate") || time.Since(begin) > 25*time.Second {
			t.Errorf("%s: %v after %s", runtime, err, time.Since(begin))
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A platform is named by a short name or by its parts, and its parts can be exchanged; what nobody can make is refused with what there is.
func TestPlatformsAreChosen(t *testing.T) {
	ebpf, _ := Find("ebpf")
	for _, c := range []struct {
		with       Point
		name, want string // of the kind, or in the error
	}{
		{Point{}, "ebpf", ""},
		{Point{Network: "ovs"}, "ovs", ""},
		{Point{Runtime: "bare"}, "bare+ebpf+wire", ""},
		{Point{Runtime: "bare", Network: "bridge", Function: "bridge"}, "bridges", ""},
		{Point{Runtime: "docker"}, "docker+ebpf+wire", ""},
		{Point{Runtime: "kvm", Function: "bridge"}, "kvm+ebpf+bridge", ""},
		{Point{Runtime: "kvm", Network: "bridge", Function: "bridge"}, "vm-virtio", ""},
		{Point{Runtime: "kvm"}, "", "nobody can make a platform of runtime kvm, network ebpf and function wire: near it there are ebpf"},
		{Point{Function: "redirect"}, "", "function redirect"},
		{Point{Network: "brigde"}, "", `did you mean "bridge"`},
	} {
		k, err := ebpf.With(c.with)
		switch {
		case c.want == "" && (err != nil || k.Name != c.name):
			t.Errorf("ebpf with %+v: %s, %v: want %s", c.with, k.Name, err, c.name)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("ebpf with %+v: %v: want %q", c.with, err, c.want)
		}
	}
	seen := map[Point]bool{}
	for _, k := range Kinds() {
		if one, ok := Find(k.Point.String()); !ok || one.Name != k.Name || seen[k.Point] || k.About == "" {
			t.Errorf("%+v is found as %+v", k, one)
		}
		seen[k.Point] = true
	}
}

// A path leads through the functions that it says, whatever was in force before: each has seen frames.
func TestPathsLeadThroughTheirFunctions(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"bridges", "ovs-chain", "least"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, _ := Find(name)
			p, err := k.Open(t.Context(), testOptions(t))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}()
			for _, n := range []int{2, 4, 0, 3, 1} {
				path, err := p.Path(t.Context(), Layout{Chain: n})
				if err != nil {
					t.Fatalf("%d functions: %v", n, err)
				}
				before := received(t, path)
				if len(before) != n {
					t.Fatalf("%d functions: %v", n, before)
				}
				if err := path.Try(t.Context()); err != nil {
					t.Fatal(err)
				}
				for space, frames := range received(t, path) {
					if frames < before[space]+3 {
						t.Errorf("%d functions: %s saw %d frames of 3 echoes", n, space, frames-before[space])
					}
				}
			}
		})
	}
}

// received frames of the functions of a path, at their links in.
func received(t *testing.T, p Path) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, path := range filepath.SplitList(p.Middle)[1:] {
		space, err := netns.At(path)
		if err != nil {
			t.Fatal(err)
		}
		if out[path], err = space.Received("in"); err != nil {
			t.Fatal(err)
		}
		space.Close()
	}
	return out
}

// What is kept of containers whose engine is gone is removed without it.
func TestWhatADeadEngineLeftIsRemoved(t *testing.T) {
	o := testOptions(t)
	i, err := newInstance(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(i.Run, byDocker, "bundles", "w000"), filepath.Join(i.Root, byDocker)} { // the engine itself is gone
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := Remove(t.Context(), o.Name); err != nil || exists(i.Run) || exists(i.Root) {
		t.Errorf("%v: left %t, %t", err, exists(i.Run), exists(i.Root))
	}
}

// What a killed run has left of a runtime is removed by the next one: an engine of its own, and machines.
func TestRuntimesOfACrashAreRemoved(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"native", byDocker, virtual} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := testOptions(t)
			k, _ := Find(name + "+bridge+bridge")
			if name == virtual {
				k, _ = Find("vm-virtio")
			}
			p, err := k.Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Path(t.Context(), Layout{Chain: 2}); err != nil {
				t.Fatal(errors.Join(err, p.Close()))
			}
			if err := Remove(t.Context(), o.Name); err != nil { // as the next run does: p is not asked
				t.Fatal(errors.Join(err, p.Close()))
			}
			for _, pattern := range []string{Run + "/" + o.Name + "-*", "/var/lib/weir/" + o.Name + "-*", "/sys/fs/cgroup/*/*" + o.Name + "*", "/sys/fs/cgroup/*/weir/" + o.Name + "*"} {
				if left, _ := filepath.Glob(pattern); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			}
			commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, path := range commands {
				if text, _ := os.ReadFile(path); strings.Contains(string(text), o.Name) {
					t.Errorf("a process goes on: %q", text)
				}
			}
		})
	}
}

func TestAnImageThatIsNotThereIsNamed(t *testing.T) {
	if got := checkImage(Options{Images: []string{t.TempDir()}}, "wire", "make build"); !strings.HasPrefix(got, "image wire: image not found: ") {
		t.Errorf("it says %q", got)
	}
}
