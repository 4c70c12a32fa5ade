package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
	"weir.dev/weir/testbed"
)

// elsewhere is a study on the hosts of a Weir that runs, beside platforms that the lab makes.
const elsewhere = `name: elsewhere
title: Chains on hosts that are there
parts:
  - name: across
    question: What does it cost to cross hosts?
    experiment: ping
    metrics: [{name: rtt, unit: us, better: lower}]
    factors:
      - {name: placement, levels: [one, spread, h3+h1, h9]}
    settings: {platform: hosts, wires: "3"}
    compare: placement
    baseline: one
    quick: {blocks: 1}
    full: {blocks: 6}
  - name: requests
    question: How many requests are answered?
    experiment: rr
    metrics: [{name: rate, unit: transactions/s, better: higher}]
    factors:
      - {name: platform, levels: [hosts, bridges]}
    settings: {wires: "2", placement: spread, stations: h1+h2, congestion: reno}
    compare: platform
    baseline: bridges
    quick: {blocks: 1, duration: 200ms}
    full: {blocks: 6, duration: 1s}
  - name: flows
    question: How long do flows take?
    experiment: fct
    metrics: [{name: fct, unit: ms, better: lower}]
    factors:
      - {name: platform, levels: [hosts, veth]}
    settings: {wires: "0", flows: "4", mouse: "20000", elephant: "200000", congestion: reno}
    compare: platform
    baseline: veth
    quick: {blocks: 1}
    full: {blocks: 6}
  - name: streams
    question: How fast is a stream?
    experiment: tcp
    metrics: [{name: rate, unit: Gb/s, better: higher}]
    factors:
      - {name: platform, levels: [hosts, bridges]}
    settings: {wires: "2", placement: spread}
    compare: platform
    baseline: bridges
    quick: {blocks: 1, duration: 1s}
    full: {blocks: 6, duration: 1s}
  - name: packets
    question: What does a packet cost?
    experiment: pps
    metrics: [{name: cost, unit: ns, better: lower}]
    factors:
      - {name: platform, levels: [hosts, bridges]}
    compare: platform
    baseline: bridges
    quick: {blocks: 1, duration: 50ms}
    full: {blocks: 6, duration: 1s}
  - name: datagrams
    question: How many datagrams pass three processors on one host, and in turns on two?
    experiment: processors
    metrics: [{name: received, unit: pps, better: higher}, {name: mean, unit: us, better: lower}]
    factors:
      - {name: hosts, levels: ["1", "2"]}
    settings: {network: weir, tool: udp-forward, runtime: oci, processors: "3", link: none, offered: "2000", payload: "100"}
    compare: hosts
    baseline: "1"
    quick: {blocks: 1, duration: 500ms}
    full: {blocks: 6, duration: 1s}
`

// hostsBed is three hosts joined by VXLAN, with somebody's chain across them. It goes with the test.
func hostsBed(t *testing.T, ctx context.Context) (name string, c *api.Client) {
	t.Helper()
	var id [3]byte
	_, _ = rand.Read(id[:]) // never fails
	name = "t" + hex.EncodeToString(id[:])
	run := func(stdin string, args ...string) {
		t.Helper()
		cmd := weir(t, ctx)
		cmd.Args, cmd.Stdin = append(cmd.Args[:1], args...), strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	example := func(file string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", "examples", file))
		if err != nil {
			t.Fatal(err)
		}
		return strings.NewReplacer("\nname: vxlan\n", "\nname: "+name+"\n", "/run/weir-testbed/vxlan/", "/run/weir-testbed/"+name+"/").Replace(string(text))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := weir(t, ctx)
		cmd.Args = append(cmd.Args[:1], "testbed", "down", name)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("testbed down: %v\n%s", err, out)
		}
	})
	run("", "testbed", "up", write(t, filepath.Join(t.TempDir(), "bed.yaml"), example("vxlan.yaml")))
	run(example("vxlan-policy.yaml"), "apply", "--name", name, "-f", "-")
	c, err := api.Dial(api.Options{Socket: filepath.Join("/run/weir", name, "api.sock")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return name, c
}

// objects of a manager: what each is, and its spec, by name.
func objects(t *testing.T, ctx context.Context, c *api.Client) map[string]string {
	t.Helper()
	out := map[string]string{}
	add := func(kind string, m api.Meta, spec any) {
		text, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		out[kind+" "+m.Name] = fmt.Sprintf("%s generation %d deleting %v: %s", m.UID, m.Generation, m.Deleting, text)
	}
	endpoints, err1 := c.Endpoints().List(ctx, api.ListOptions{})
	functions, err2 := c.Functions().List(ctx, api.ListOptions{})
	chains, err3 := c.Chains().List(ctx, api.ListOptions{})
	policies, err4 := c.Policies().List(ctx, api.ListOptions{})
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range endpoints.Items {
		add("endpoint", x.Meta, x.Spec)
	}
	for _, x := range functions.Items {
		add("function", x.Meta, x.Spec)
	}
	for _, x := range chains.Items {
		add("chain", x.Meta, x.Spec)
	}
	for _, x := range policies.Items {
		add("policy", x.Meta, x.Spec)
	}
	return out
}

// TestChainsOnTheHostsOfAWeirThatRuns: chains on one host and across three, beside what the lab makes itself; kill -9 in the middle, and the next
// run takes away what was left. Nothing of others is touched, and nothing stays.
func TestChainsOnTheHostsOfAWeirThatRuns(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	name, c := hostsBed(t, ctx)
	before := objects(t, ctx, c)
	if len(before) != 7 {
		t.Fatalf("objects: %v: want those of vxlan-policy.yaml", before)
	}
	links := hostLinks(t)
	file, dir := write(t, filepath.Join(t.TempDir(), "elsewhere.yaml"), elsewhere), filepath.Join(t.TempDir(), "run")

	run := weir(t, ctx, "run", file, "--name", name, "--seed", "5", "--dir", dir)
	var out bytes.Buffer
	run.Stdout, run.Stderr = &out, &out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	first := until(t, ctx, run, dir, 3)
	if err := run.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = run.Wait() // killed
	left := 0
	for object := range objects(t, ctx, c) {
		if strings.Contains(object, " "+first[0]+"-") || strings.Contains(object, " "+first[1]+"-") {
			left++
		}
	}
	if found, err := experiment.Leftovers(); left == 0 || err != nil || !slices.Contains(found, first[0]) || !slices.Contains(found, first[1]) {
		t.Errorf("%d objects of %s at the manager, leftovers %v, %v: the test does not test\n%s", left, first, found, err, out.String())
	}

	second, _, problems := resumed(t, ctx, dir, 4, "--name", name)
	gone(t, first)
	gone(t, second)
	if diff := cmp.Diff(before, objects(t, ctx, c)); diff != "" {
		t.Errorf("objects at the manager:\n%s", diff)
	}
	if diff := cmp.Diff(links, hostLinks(t)); diff != "" {
		t.Errorf("links of the host:\n%s", diff)
	}
	checkElsewhere(t, dir, problems)

	lose(t, ctx, c, name)
	ended(t, weir(t, ctx, "run", file, "--name", name, "--only", "part=across,placement=h3+h1", "--dir", filepath.Join(t.TempDir(), "lost")), 0,
		"skipped across h3+h1: host h3 is lost")
	if diff := cmp.Diff(before, objects(t, ctx, c)); diff != "" {
		t.Errorf("objects at the manager:\n%s", diff)
	}
}

// checkElsewhere wants every trial measured that can be, and what the figures depend on beside it.
func checkElsewhere(t *testing.T, dir, log string) {
	t.Helper()
	j, err := study.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(j.Left()) > 0 {
		t.Errorf("%d trials are left:\n%s", len(j.Left()), log)
	}
	want := map[string]string{ // stations, hosts, underlay; or the reason
		"across one": "h1, h1, none", "across spread": "h1, h1+h2+h3, vxlan", "across h3+h1": "h1, h3+h1, vxlan",
		"across h9":      "there is no host h9 at /run/weir/",
		"requests hosts": "h1+h2, h1+h2, vxlan", "requests bridges": ", , ", "flows hosts": "h1, , none", "flows veth": ", , ",
		"streams hosts": "h1, h1+h2, vxlan", "streams bridges": ", , ",
		"packets hosts": "platform hosts: nothing can be put in there but through sockets", "packets bridges": ", , ",
		"datagrams 1": "h1, h1, none", "datagrams 2": "h1, h1+h2, vxlan",
	}
	for _, x := range j.Records {
		key := x.Trial.Part + " " + x.Trial.Variant[0]
		got := x.Skipped
		if got == "" {
			got = fmt.Sprintf("%s, %s, %s", x.Conditions["stations"], x.Conditions["hosts"], x.Conditions["underlay"])
		}
		if !strings.HasPrefix(got, want[key]) || strings.HasPrefix(x.Void, "failed") {
			t.Errorf("%s: %q, void %q: want %q", x.Trial.Key(), got, x.Void, want[key])
		}
		if x.Skipped+x.Void == "" && x.Values[map[string]string{"across": "rtt", "requests": "rate", "flows": "fct", "streams": "rate", "packets": "rate", "datagrams": "mean"}[x.Trial.Part]] <= 0 {
			t.Errorf("%s: %v", x.Trial.Key(), x.Values)
		}
		if x.Trial.Part == "datagrams" && x.Skipped+x.Void == "" && x.Values["received"] < 1900 { // of 2,000 a second
			t.Errorf("%s: %v", x.Trial.Key(), x.Values)
		}
		if x.Skipped == "" && (x.Conditions["weir"] == "") != (x.Conditions["stations"] == "") {
			t.Errorf("%s: %v: no version of Weir", x.Trial.Key(), x.Conditions)
		}
	}
}

// lose the third host.
func lose(t *testing.T, ctx context.Context, c *api.Client, bed string) {
	t.Helper()
	s, err := testbed.List(bed)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range s.Nodes {
		if n.Name == "h3" && len(n.PIDs) > 0 {
			if err := syscall.Kill(n.PIDs[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	for {
		h, err := c.Hosts().Get(ctx, "h3")
		if err != nil {
			t.Fatal(err)
		}
		if h.Status.State == "lost" {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestMistakesAboutHostsAreExplained(t *testing.T) {
	bad := func(old, new string) string {
		return write(t, filepath.Join(t.TempDir(), "bad.yaml"), strings.Replace(elsewhere, old, new, 1))
	}
	good := bad("", "")
	for _, x := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"run", bad("h3+h1", "h3+")}, 3, `level "h3+": want one, spread, or hosts' names joined with +`},
		{[]string{"run", bad("h1+h2", "h1+h2+h3")}, 3, `3 hosts: want here, a host's name, or two joined with +`},
		{[]string{"run", bad("stations:", "station:")}, 3, `has no factor "station"`},
		{[]string{"run", good, "--socket", "/run/nowhere.sock", "--url", "http://127.0.0.1:1"}, 2, "--socket and --url exclude each other"},
		{[]string{"run", good, "--only", "part=across", "--dir", filepath.Join(t.TempDir(), "a"), "--socket", "/run/nowhere.sock"}, 1,
			"all 5 trials were skipped: weir is not reachable at /run/nowhere.sock"},
		{[]string{"run", good, "--only", "part=across", "--dir", filepath.Join(t.TempDir(), "b"), "--url", "http://127.0.0.1:1", "--token-file", "/none"}, 1,
			"read token for http://127.0.0.1:1: open /none"},
		{[]string{"doctor", "--socket", "/run/nowhere.sock"}, 0, "platform hosts: weir is not reachable at /run/nowhere.sock"},
	} {
		ended(t, weir(t, t.Context(), x.args...), x.code, x.want)
	}
}
