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
	"sync"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
)

// carolAddr and daveAddr are stations that are not on the hostile function's chain.
const (
	carolAddr = "10.9.0.3"
	daveAddr  = "10.9.0.4"
)

// shelf keeps the images of all worlds, in a directory for each set of capabilities that the hostile one asks for.
var shelf struct {
	sync.Mutex
	dir  string
	made map[string]string // directories by capabilities
}

func TestMain(m *testing.M) {
	var err error
	if shelf.dir, err = os.MkdirTemp("", "weir-escape-"); err != nil {
		fmt.Fprintln(os.Stderr, "escape:", err)
		os.Exit(1)
	}
	shelf.made = map[string]string{}
	code := m.Run()
	if err := os.RemoveAll(shelf.dir); err != nil {
		fmt.Fprintln(os.Stderr, "escape:", err)
		code = 1
	}
	os.Exit(code)
}

// build gives a rig the hostile image, with the labels of its recipe or with others, beside the catalogue's. Weir only reads them, so worlds share them.
func build(ctx context.Context, t *testing.T, r *rig.Rig, capabilities string) {
	t.Helper()
	shelf.Lock()
	defer shelf.Unlock()
	if own, ok := shelf.made[capabilities]; ok {
		r.Images = own
		return
	}
	own := filepath.Join(shelf.dir, strconv.Itoa(len(shelf.made)))
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
	shelf.made[capabilities] = own
	r.Images = own
}

// options of a world.
type options struct {
	grant
	sw     string                                      // default ebpf
	change func(ctx context.Context, r *rig.Rig) error // before the daemon starts
}

// world is a Weir with a hostile function on the chain from alice to bob, a firewall beside it, and two stations that have nothing to do with it. Beside a
// bare function there is one in a container.
func world(t *testing.T, rt runtime, o options) (*rig.Rig, context.Context) {
	t.Helper()
	args, env := rt.args(t)
	if o.sw == "" {
		o.sw = "ebpf"
	}
	r, ctx := rig.Bare(t, rig.Options{Args: append([]string{"--switch", o.sw}, args...)})
	r.Extra = env
	build(ctx, t, r, o.capabilities)
	if o.change != nil {
		if err := o.change(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []string{carol(r), dave(r)} {
		if err := r.Namespace(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	evil, near := "image: hostile, on_fail: drop", ""
	if o.allow != "" {
		evil += ", allow: [" + o.allow + "]"
	}
	if rt.name == "bare" {
		near = "\n  near: {image: wire, runtime: native, on_fail: drop}"
	}
	r.MustApply(ctx, t, r.Endpoints()+
		"  carol: {netns: "+carol(r)+", interface: eth0, address: "+carolAddr+"/24}\n"+
		"  dave: {netns: "+dave(r)+", interface: eth0, address: "+daveAddr+"/24}\n"+`
functions:
  evil: {`+evil+`}
  good: {image: firewall, config: {allow: [icmp]}, on_fail: drop, allow: [CAP_NET_ADMIN]}`+near+`
chains:
  bad: evil
  fine: good
policies:
  p: {from: alice, to: bob, match: [tcp], chain: bad}
  q: {from: carol, to: dave, match: [icmp], chain: fine}
`, "--timeout", "3m")
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
	links, addresses, hostname, mounts string
}

var (
	linkLine    = regexp.MustCompile(`^\d+: ([^:]+):.* mtu (\d+).*?(master \S+)?`)
	addressLine = regexp.MustCompile(`^\d+: (\S+) +(inet6? \S+)`)
)

// matches are the groups of an expression in each line of a text that it is in, in order.
func matches(text string, e *regexp.Regexp) string {
	var out []string
	for line := range strings.Lines(text) {
		if m := e.FindStringSubmatch(line); m != nil {
			out = append(out, strings.Join(m[1:], " "))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func look(ctx context.Context, t *testing.T, r *rig.Rig) host {
	t.Helper()
	links, err := r.Run(ctx, "", "ip", "-o", "link")
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := r.Run(ctx, "", "ip", "-o", "addr")
	if err != nil {
		t.Fatal(err)
	}
	// Flags and counters of links may change; which there are, their MTU and their bridge may not. The function may be started anew after what it did to itself.
	var kept string
	for line := range strings.Lines(links) {
		if !strings.Contains(line, "alias weir:"+r.Name+":function/evil/") {
			kept += line
		}
	}
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var own string
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/run/weir/"+r.Name+"/") && !strings.Contains(line, "/sandboxes/evil.") {
			own += line
		}
	}
	return host{links: matches(kept, linkLine), addresses: matches(addresses, addressLine), hostname: hostname, mounts: own}
}

// asBefore waits until the host is as it was: a link of Weir's has no mark for a moment.
func asBefore(ctx context.Context, t *testing.T, r *rig.Rig, before host) {
	t.Helper()
	rig.Eventually(ctx, t, "the host is as before", func() (bool, string) {
		after := look(ctx, t, r)
		return after == before, fmt.Sprintf("%+v\nwas\n%+v", after, before)
	})
}
