// Package escape runs a hostile function and looks whether anything outside of it notices: what it tries is in hostile/, what the host has to say of
// it is here.
package escape

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
)

// carolAddr and daveAddr are stations that are not on the hostile function's chain.
const (
	carolAddr = "10.9.0.3"
	daveAddr  = "10.9.0.4"
)

// runtimes are the runtime drivers by which functions can run, each with the arguments of `weir up` that choose it. A driver to come is one more line: it
// has to bear all that this package tries.
var runtimes = []struct {
	name  string
	args  []string
	reach reach
}{
	{"native", []string{"--runtime", "native"}, itsFrames},
	{"runc", []string{"--runtime", "runc"}, itsAppetite},
	{"lxc", []string{"--runtime", "lxc"}, itsWays},
	{"nspawn", []string{"--runtime", "nspawn"}, itsWays},
}

// reach is what of this package a runtime is tried with: the ways out of a container are each runtime's own; limits are set by package kernel for all, and
// frames are the switch's.
type reach int

const (
	itsWays reach = iota
	itsAppetite
	itsFrames
)

// onEach runs a test on every runtime driver that is tried with it.
func onEach(t *testing.T, what reach, f func(t *testing.T, runtime []string)) {
	for _, rt := range runtimes {
		if rt.reach >= what {
			t.Run(rt.name, func(t *testing.T) { f(t, rt.args) })
		}
	}
}

// build makes the hostile image, with the labels of its recipe or with others, beside the catalogue's.
func build(ctx context.Context, t *testing.T, r *rig.Rig, capabilities string) {
	t.Helper()
	own := filepath.Join(t.TempDir(), "images")
	if err := os.CopyFS(own, os.DirFS(r.Images)); err != nil {
		t.Fatal(err)
	}
	recipe, err := image.LoadRecipe("hostile")
	if err != nil {
		t.Fatal(err)
	}
	recipe.Labels["weir.capabilities"] = capabilities
	if capabilities == "" {
		delete(recipe.Labels, "weir.capabilities")
	}
	if _, err := recipe.Build(ctx, own); err != nil {
		t.Fatal(err)
	}
	r.Images = own
}

// world is a Weir with a hostile function on the chain from alice to bob, a firewall beside it, and two stations that have nothing to do with it.
func world(t *testing.T, runtime []string, sw, capabilities, allow string, prepare ...func(r *rig.Rig)) (*rig.Rig, context.Context) {
	t.Helper()
	r, ctx := rig.Bare(t, rig.Options{Args: append([]string{"--switch", sw}, runtime...)})
	build(ctx, t, r, capabilities)
	for _, p := range prepare {
		p(r)
	}
	for _, s := range []string{carol(r), dave(r)} {
		if err := r.Namespace(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	r.MustApply(ctx, t, r.Endpoints()+
		"  carol: {netns: "+carol(r)+", interface: eth0, address: "+carolAddr+"/24}\n"+
		"  dave: {netns: "+dave(r)+", interface: eth0, address: "+daveAddr+"/24}\n"+`
functions:
  evil: {image: hostile, on_fail: drop`+allow+`}
  good: {image: firewall, config: {allow: [icmp]}, on_fail: drop, allow: [CAP_NET_ADMIN]}
chains:
  bad: evil
  fine: good
policies:
  p: {from: alice, to: bob, match: [tcp], chain: bad}
  q: {from: carol, to: dave, match: [icmp], chain: fine}
`)
	return r, ctx
}

func carol(r *rig.Rig) string { return r.Name + "-carol" }
func dave(r *rig.Rig) string  { return r.Name + "-dave" }

// unharmed fails the test if the neighbours' traffic, the daemon or the host suffer.
func unharmed(ctx context.Context, t *testing.T, r *rig.Rig, after string) {
	t.Helper()
	if out, err := r.Run(ctx, carol(r), "ping", "-q", "-c", "20", "-i", "0.02", "-W", "2", daveAddr); err != nil {
		t.Errorf("after %s: carol and dave: %v\n%s", after, err, out)
	}
	quick, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := r.Weir(quick, "status"); err != nil {
		t.Errorf("after %s: weir status: %v", after, err)
	}
}

// host is what a function may not change.
type host struct {
	links, hostname, mounts string
}

func look(ctx context.Context, t *testing.T, r *rig.Rig) host {
	t.Helper()
	links, err := r.Run(ctx, "", "ip", "-o", "link")
	if err != nil {
		t.Fatal(err)
	}
	// Flags and counters of links may change; which there are, their MTU and their bridge may not.
	var names []string
	for line := range strings.Lines(links) {
		if strings.Contains(line, "alias weir:"+r.Name+":function/evil/") {
			continue // it may be started anew after what it did to itself
		}
		m := regexp.MustCompile(`^\d+: ([^:]+):.* mtu (\d+).*?(master \S+)?`).FindStringSubmatch(line)
		if m != nil {
			names = append(names, strings.Join(m[1:], " "))
		}
	}
	slices.Sort(names)
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var own []string
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/run/weir/"+r.Name+"/") && !strings.Contains(line, "/sandboxes/evil.") {
			own = append(own, line)
		}
	}
	return host{links: strings.Join(names, "\n"), hostname: hostname, mounts: strings.Join(own, "")}
}

// tried is a line of the hostile function's log.
var tried = regexp.MustCompile(`(?m)ESCAPE (\S+) (refused|harmless|ESCAPED)(.*)$`)

// What may go through since it touches nothing but the function's own, with the capabilities that an operator may give.
var mayPass = map[string][]string{
	"":           {"device-modes", "namespace-parent", "personality", "ptrace"},
	"net":        {"device-modes", "namespace-parent", "personality", "ptrace", "veth-into-host"},
	"everything": {"*"}, // whatever it does stays in its namespaces: nothing may be ESCAPED
}

// others are what an operator may give besides (image/contract.go).
var others = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_IPC_LOCK", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_SETFCAP",
	"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
}

func TestNothingGetsOut(t *testing.T) { onEach(t, itsWays, nothingGetsOut) }

func nothingGetsOut(t *testing.T, runtime []string) {
	for _, c := range []struct {
		name, capabilities, allow, may string
		unshared                       bool
	}{
		{name: "without a capability"},
		{name: "without a capability and a user namespace", unshared: true},
		{name: "with what an image may ask for", capabilities: "CAP_NET_ADMIN,CAP_NET_RAW", may: "net"},
		{name: "with the operator's word", capabilities: "CAP_NET_ADMIN,CAP_NET_RAW," + strings.Join(others, ","),
			allow: ", allow: [" + strings.Join(others, ", ") + "]", may: "everything"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(t)
			r, ctx := world(t, runtime, "ebpf", c.capabilities, c.allow, func(r *rig.Rig) {
				if c.unshared {
					d.moveIn(t, r)
					d.cover(t)
				}
			})
			before := look(ctx, t, r)
			var text string
			rig.Eventually(ctx, t, "the hostile function has tried all", func() (bool, string) {
				var err error
				text, err = r.Weir(ctx, "function", "logs", "evil")
				return err == nil && strings.Contains(text, "ESCAPE done"), fmt.Sprint(text, err)
			})
			found := tried.FindAllStringSubmatch(text, -1)
			if len(found) < 60 {
				t.Errorf("%d attempts, want at least 60:\n%s", len(found), text)
			}
			var table strings.Builder
			w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
			for _, m := range found {
				fmt.Fprintf(w, "%s\t%s\t%s\n", m[1], m[2], strings.TrimSpace(m[3]))
				switch {
				case c.unshared && m[1] == "host-ids": // that it is root of the host is what is missing here
				case m[2] == "ESCAPED":
					t.Errorf("%s: escaped:%s", m[1], m[3])
				case m[2] == "harmless" && !slices.Contains(mayPass[c.may], m[1]) && !slices.Contains(mayPass[c.may], "*"):
					t.Errorf("%s: went through:%s", m[1], m[3])
				}
			}
			_ = w.Flush()
			t.Logf("%d attempts\n%s", len(found), table.String())
			rig.Eventually(ctx, t, "the host is as before", func() (bool, string) { // a link of Weir's has no mark for a moment
				after := look(ctx, t, r)
				return after == before, fmt.Sprintf("%+v\nwas\n%+v", after, before)
			})
			unharmed(ctx, t, r, "the attempts")
		})
	}
}

// What takes all that it can get is bounded, and the neighbours do not notice.
func TestAppetiteIsBounded(t *testing.T) { onEach(t, itsAppetite, appetiteIsBounded) }

func appetiteIsBounded(t *testing.T, runtime []string) {
	r, ctx := world(t, runtime, "ebpf", "CAP_NET_ADMIN,CAP_NET_RAW", "")
	restored := func(what string) {
		t.Helper()
		rig.Eventually(ctx, t, "the function works again after "+what, func() (bool, string) {
			var f api.Function
			err := r.Get(ctx, &f, "function", "evil")
			return err == nil && f.Status.State == api.FunctionStarted, fmt.Sprint(f.Status, err)
		})
	}
	usage := func() (memory, disk int64) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.PID()))
		if err != nil {
			t.Fatalf("the daemon is gone: %v", err)
		}
		m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(b)
		kb, _ := strconv.ParseInt(string(m[1]), 10, 64)
		_ = filepath.WalkDir(r.Root, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				if info, err := d.Info(); err == nil {
					if st, ok := info.Sys().(*syscall.Stat_t); ok {
						disk += st.Blocks * 512
					}
				}
			}
			return nil
		})
		return kb << 10, disk
	}
	descriptors := func() int {
		all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.PID()))
		return len(all)
	}
	free := func() int64 {
		b, _ := os.ReadFile("/proc/meminfo")
		m := regexp.MustCompile(`MemAvailable:\s+(\d+) kB`).FindSubmatch(b)
		kb, _ := strconv.ParseInt(string(m[1]), 10, 64)
		return kb << 10
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "abuse\tit says\tdaemon grew MiB\tdisk grew MiB\tmachine lost MiB\tdescriptors")
	for _, name := range []string{"fork-bomb", "memory", "descriptors", "log", "disk", "inodes", "events", "connections", "cpu", "links"} {
		memory, disk := usage()
		available := free()
		type ending struct {
			out string
			err error
		}
		done := make(chan ending, 1)
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		go func() {
			out, err := r.Weir(limited, "function", "exec", "evil", "--", "/usr/bin/hostile", "abuse", name)
			done <- ending{out, err}
		}()
		var most struct {
			memory, disk, lost int64
			fds                int
		}
		var e ending
		for over := false; !over; {
			select {
			case e = <-done:
				over = true
			case <-time.After(200 * time.Millisecond):
			}
			m, d := usage()
			most.memory, most.disk, most.lost, most.fds = max(most.memory, m-memory), max(most.disk, d-disk), max(most.lost, available-free()), max(most.fds, descriptors())
			if !over {
				unharmed(ctx, t, r, name)
			}
		}
		cancel()
		said := strings.TrimSpace(e.out)
		if e.err != nil {
			said += " " + strings.Join(strings.Fields(e.err.Error()), " ")
		}
		fmt.Fprintf(w, "%s\t%.100s\t%d\t%d\t%d\t%d\n", name, said, most.memory>>20, most.disk>>20, most.lost>>20, most.fds)
		if most.memory > 200<<20 {
			t.Errorf("%s: the daemon grew by %d MiB", name, most.memory>>20)
		}
		if most.disk > 128<<20 {
			t.Errorf("%s: the state directory grew by %d MiB", name, most.disk>>20)
		}
		if most.lost > 2<<30 {
			t.Errorf("%s: the machine lost %d MiB of memory", name, most.lost>>20)
		}
		if most.fds > 1000 {
			t.Errorf("%s: the daemon has %d descriptors", name, most.fds)
		}
		restored(name)
		unharmed(ctx, t, r, name)
	}
	_ = w.Flush()
	t.Logf("\n%s", table.String())
}

// What a function forges reaches nobody who is not on its chain, and moves no station.
func TestForgedFramesHarmNoNeighbour(t *testing.T) { onEach(t, itsFrames, forgedFramesHarmNoNeighbour) }

func forgedFramesHarmNoNeighbour(t *testing.T, runtime []string) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := world(t, runtime, sw, "CAP_NET_ADMIN,CAP_NET_RAW", "")
			mac, err := r.Run(ctx, carol(r), "cat", "/sys/class/net/eth0/address")
			if err != nil {
				t.Fatal(err)
			}
			unharmed(ctx, t, r, "nothing")
			neighbours, err := r.Run(ctx, dave(r), "ip", "neigh", "show", carolAddr)
			if err != nil {
				t.Fatal(err)
			}
			out, err := r.Weir(ctx, "function", "exec", "-e", "CAROL_MAC="+strings.TrimSpace(mac), "-e", "CAROL_IP="+carolAddr, "evil", "--", "/usr/bin/hostile", "abuse", "forge")
			m := regexp.MustCompile(`^(\d+) frames sent`).FindStringSubmatch(out)
			if err != nil || m == nil || len(m[1]) < 4 {
				t.Fatalf("%q, %v: want more than 1,000 frames sent", out, err)
			}
			after, err := r.Run(ctx, dave(r), "ip", "neigh", "show", carolAddr)
			if err != nil || lladdr(after) != lladdr(neighbours) {
				t.Errorf("dave's neighbour: %s, was %s (%v)", after, neighbours, err)
			}
			unharmed(ctx, t, r, "the forged frames")
		})
	}
}

func lladdr(neighbour string) string {
	m := regexp.MustCompile(`lladdr (\S+)`).FindStringSubmatch(neighbour)
	if m == nil {
		return ""
	}
	return m[1]
}
