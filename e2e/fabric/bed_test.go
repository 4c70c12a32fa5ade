// Package fabric drives the real binary on emulated networks: OpenFlow switches, several hosts, a manager that steers across them.
package fabric

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
	"weir.dev/weir/testbed"
)

const top = "../.." // of the repository

// bed is a testbed that goes with the test.
type bed struct {
	t      *testing.T
	ctx    context.Context
	name   string
	file   string // what it was made from
	bin    string
	client *api.Client // of its manager; for what is polled, and what the command line would round
}

const (
	patience = time.Minute      // with what has to come about; a busy machine needs it
	lifetime = 10 * time.Minute // of a bed
)

// program is the binary under test.
func program(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("root is needed (network namespaces, Open vSwitch, containers): sudo make test")
	}
	bin := os.Getenv("WEIR_BIN")
	if bin == "" {
		bin = filepath.Join(top, "bin", "weir")
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: build it with `make build`", err)
	}
	return bin
}

// newBed builds what an example describes, under a name of its own; edit may change the file's text.
func newBed(t *testing.T, example string, edit func(string) string) *bed {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), lifetime)
	t.Cleanup(cancel)
	b := unbuilt(t, ctx, example, edit)
	begin := time.Now()
	b.must("testbed", "up", b.file)
	t.Logf("%s is up after %s", example, time.Since(begin).Round(10*time.Millisecond))
	var err error
	if b.client, err = api.Dial(api.Options{Socket: b.node("manager").Socket}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.client.Close)
	return b
}

// unbuilt is a bed of which there is only the file. What is made of it later goes with the test.
func unbuilt(t *testing.T, ctx context.Context, example string, edit func(string) string) *bed {
	t.Helper()
	var id [3]byte
	_, _ = rand.Read(id[:]) // never fails
	b := &bed{t: t, ctx: ctx, name: "t" + hex.EncodeToString(id[:]), bin: program(t), file: filepath.Join(t.TempDir(), example)}
	text := b.example(example)
	if edit != nil {
		text = edit(text)
	}
	if err := os.WriteFile(b.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.down)
	return b
}

// example is a file of examples/, with this testbed's paths.
func (b *bed) example(name string) string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(top, "examples", name))
	if err != nil {
		b.t.Fatal(err)
	}
	own := strings.TrimSuffix(strings.TrimSuffix(name, ".yaml"), "-policy")
	return strings.ReplaceAll(string(text), "/run/weir-testbed/"+own+"/", "/run/weir-testbed/"+b.name+"/")
}

// down takes everything away, tells what is left, and shows the logs of a test that failed.
func (b *bed) down() {
	if b.t.Failed() {
		b.logs()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b.ctx = ctx
	if out, err := b.weir("testbed", "down", b.name); err != nil {
		b.t.Errorf("down: %v %s", err, out)
	}
	for _, pattern := range []string{"/run/weir-testbed/" + b.name + "*", "/var/lib/weir-testbed/" + b.name + "*", "/run/weir/" + b.name + "*"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			b.t.Errorf("left behind: %v", left)
		}
	}
}

func (b *bed) logs() {
	found, _ := filepath.Glob("/run/weir-testbed/" + b.name + "/log/*.log")
	for _, path := range found {
		text, _ := os.ReadFile(path)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		b.t.Logf("%s:\n%s", filepath.Base(path), strings.Join(lines[max(0, len(lines)-25):], "\n"))
	}
	out, _ := b.weir("events", "--limit", "40")
	b.t.Logf("events:\n%s", out)
	out, _ = b.weir("get", "all")
	b.t.Logf("objects:\n%s", out)
}

// weir runs a command of the binary against the testbed's manager.
func (b *bed) weir(args ...string) (string, error) { return b.weirInput("", args...) }

func (b *bed) weirInput(stdin string, args ...string) (string, error) {
	c := exec.CommandContext(b.ctx, b.bin, args...)
	c.Env = append(os.Environ(), "WEIR_NAME="+b.name, "WEIR_YES=true", "NO_COLOR=1")
	if stdin != "" {
		c.Stdin = strings.NewReader(stdin)
	}
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("weir %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()+out.String()))
	}
	return out.String(), nil
}

func (b *bed) must(args ...string) string {
	b.t.Helper()
	out, err := b.weir(args...)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// apply applies a document and waits until it is in force.
func (b *bed) apply(document string, args ...string) {
	b.t.Helper()
	if _, err := b.weirInput(document, append([]string{"apply", "-f", "-"}, args...)...); err != nil {
		b.t.Fatalf("%v\n%s", err, document)
	}
}

// get decodes what `weir get ... -o json` prints; see rig.Look.
func (b *bed) get(into any, args ...string) {
	b.t.Helper()
	if rig.Look(b.ctx, filepath.Join("/run/weir", b.name, "api.sock"), into, args...) {
		return
	}
	out := b.must(append(append([]string{"get"}, args...), "-o", "json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		b.t.Fatalf("get %v: %v\n%s", args, err, out)
	}
}

// list of `weir get KINDS -o json`.
type list[T any] struct {
	Items []T `json:"items"`
}

func (b *bed) policy(name string) api.Policy {
	b.t.Helper()
	var p api.Policy
	b.get(&p, "policy", name)
	return p
}

func (b *bed) events() []api.Event {
	b.t.Helper()
	var l list[api.Event]
	out := b.must("events", "--limit", "0", "-o", "json")
	if err := json.Unmarshal([]byte(out), &l); err != nil {
		b.t.Fatal(err)
	}
	return l.Items
}

func (b *bed) status() testbed.Status {
	b.t.Helper()
	s, err := testbed.List(b.name)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *bed) node(name string) testbed.NodeStatus {
	b.t.Helper()
	for _, n := range b.status().Nodes {
		if n.Name == name {
			return n
		}
	}
	b.t.Fatalf("no node %s", name)
	return testbed.NodeStatus{}
}

// netns is the path of a node's namespace; "ovs" has all switches.
func (b *bed) netns(node string) string { return "/run/weir-testbed/" + b.name + "/netns/" + node }

// function is the path of a function's namespace at an agent.
func (b *bed) function(agent, name string) string {
	b.t.Helper()
	return filepath.Join("/run/weir", b.node(agent).Instance, "netns", name)
}

// exec runs a command at a node.
func (b *bed) exec(node string, argv ...string) (string, error) {
	c := exec.CommandContext(b.ctx, "nsenter", append([]string{"--net=" + b.netns(node), "--"}, argv...)...)
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s at %s: %w: %s", strings.Join(argv, " "), node, err, out)
	}
	return string(out), err
}

func (b *bed) pings(from, to string) bool {
	_, err := b.exec(from, "ping", "-q", "-n", "-c", "1", "-W", "1", to)
	return err == nil
}

// reach waits until a station answers another.
func (b *bed) reach(from, to string) {
	b.t.Helper()
	b.await(from+" reaches "+to, func() (bool, string) { return b.pings(from, to), "no answer" })
}

// kill ends a node's processes the hard way; of a switch's, ovs-vswitchd alone.
func (b *bed) kill(node string) {
	b.t.Helper()
	n := b.node(node)
	pids := n.PIDs
	if n.Kind == "switch" {
		pids = pids[:1]
	}
	if len(pids) == 0 {
		b.t.Fatalf("%s does not run", node)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			b.t.Fatal(err)
		}
	}
}

// again starts what was killed.
func (b *bed) again() {
	b.t.Helper()
	b.must("testbed", "up", b.file)
}

// await polls until ok or patience is at its end.
func (b *bed) await(what string, ok func() (bool, string)) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		good, detail := ok()
		if good {
			return
		}
		if time.Now().After(deadline) || b.ctx.Err() != nil {
			b.t.Fatalf("%s: not after %s: %s", what, patience, detail)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// management is where ovs-ofctl finds a switch.
func (b *bed) management(name string) string {
	return "unix:/run/weir-testbed/" + b.name + "/ovs/" + name + ".mgmt"
}

// attempts of a measurement.
const attempts = 5

// exact measures again what was disturbed: where something else on this machine had made the kernel's receive queues overrun, which all
// namespaces share, a loss says nothing. Where not, it counts.
func (b *bed) exact(measure func() rig.Outcome) rig.Outcome {
	b.t.Helper()
	for i := 1; ; i++ {
		before, err := netns.Overruns()
		if err != nil {
			b.t.Fatal(err)
		}
		o := measure()
		after, err := netns.Overruns()
		if err != nil {
			b.t.Fatal(err)
		}
		if o.Lost == 0 || after == before || i == attempts {
			return o
		}
		b.t.Logf("void: %d lost while the processors' receive queues overran by %d; again", o.Lost, after-before)
	}
}

// flows are a switch's entries as ovs-ofctl prints them, without counters and times: "table=0, priority=100,ip,in_port=2 actions=output:1".
func (b *bed) flows(name string) []string {
	b.t.Helper()
	out, err := b.exec("ovs", "ovs-ofctl", "-O", "OpenFlow13", "--no-names", "--no-stats", "dump-flows", b.management(name))
	if err != nil {
		b.t.Fatal(err)
	}
	var flows []string
	for _, l := range strings.Split(out, "\n") {
		if l = strings.TrimSpace(l); strings.Contains(l, "actions=") {
			flows = append(flows, l)
		}
	}
	return flows
}
