package steering

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/graph"
)

// rules of one policy, in all places.
func rules(in fabric.Input, t *testing.T) []string {
	t.Helper()
	out := Compile(in)
	for name, err := range out.Errors {
		t.Fatalf("policy %s: %v", name, err)
	}
	return text(in, out)
}

func oneWay(p api.PolicySpec) map[string]api.PolicySpec {
	no := false
	p.Symmetric = &no
	return map[string]api.PolicySpec{"p": p}
}

func TestBothWaysOfTwoEndpoints(t *testing.T) {
	in := fig2()
	in.Policies = map[string]api.PolicySpec{"p": {From: "vm1", To: "vm2", Match: []string{"tcp/80"}, Chain: "through"}}
	want := []string{
		"nfv1: in function/nf/in src 10.0.0.2 dst 10.0.0.1 tp_src 80 -> output uplink/eth0",
		"nfv1: in function/nf/out src 10.0.0.1 dst 10.0.0.2 tp_dst 80 -> output uplink/eth0",
		"nfv1: in uplink/eth0 src 10.0.0.1 dst 10.0.0.2 tp_dst 80 -> output function/nf/in",
		"nfv1: in uplink/eth0 src 10.0.0.2 dst 10.0.0.1 tp_src 80 -> output function/nf/out",
		"s1: in 2 src 10.0.0.1 dst 10.0.0.2 tp_dst 80 -> 1",
		"s2: in 1 src 10.0.0.1 dst 10.0.0.2 tp_dst 80 -> 3",
		"s2: in 2 src 10.0.0.2 dst 10.0.0.1 tp_src 80 -> 3",
	}
	if diff := cmp.Diff(want, rules(in, t)); diff != "" {
		t.Fatal(diff)
	}
}

func TestMatchByMAC(t *testing.T) {
	in := fig2()
	in.Policies = oneWay(api.PolicySpec{From: "vm1", Chain: "through", MatchBy: api.MatchByMAC})
	want := []string{
		"nfv1: in function/nf/out mac 02:00:00:00:00:01 -> output uplink/eth0",
		"nfv1: in uplink/eth0 mac 02:00:00:00:00:01 -> output function/nf/in",
		"s1: in 2 mac 02:00:00:00:00:01 -> 1",
		"s2: in 1 mac 02:00:00:00:00:01 -> 3",
	}
	if diff := cmp.Diff(want, rules(in, t)); diff != "" {
		t.Fatal(diff)
	}
}

// A chain of nine functions on one host costs the fabric what one costs: two rules of the host to and from it, and the same entries.
func TestLengthOfChainOnOneHostIsFree(t *testing.T) {
	in := fig2()
	in.Policies = oneWay(api.PolicySpec{From: "vm1", Match: []string{"ip"}, Chain: "through"})
	short := rules(in, t)
	var path []string
	for i := range 9 {
		name := fmt.Sprint("n", i)
		in.Functions[name] = fabric.Function{Host: "host:nfv1", Ready: true}
		path = append(path, name)
	}
	in.Chains = map[string]api.ChainSpec{"through": {Path: strings.Join(path, " | ")}}
	long := rules(in, t)
	if len(long) != len(short)+8 { // from function to function inside the host
		t.Fatalf("%d rules, want 8 more than the %d of one function", len(long), len(short))
	}
	in.Functions["nf"] = fabric.Function{Host: "host:nfv1", Ready: true}
	fabric := func(all []string) []string {
		return slices.DeleteFunc(all, func(r string) bool { return strings.HasPrefix(r, "nfv1") && strings.Count(r, "function/") == 2 })
	}
	rename := func(all []string) (out []string) {
		for _, r := range all {
			out = append(out, strings.NewReplacer("function/n0/", "function/nf/", "function/n8/", "function/nf/").Replace(r))
		}
		return out
	}
	if diff := cmp.Diff(short, rename(fabric(long))); diff != "" {
		t.Fatal(diff)
	}
}

func TestSourcesOfOnePrefixShareEntries(t *testing.T) {
	in := fig2()
	for i := range byte(20) {
		s := in.Switches[of(1)]
		s.Ports = append(s.Ports, fabric.Port{Number: flow.Port(10 + i)})
		in.Switches[of(1)] = s
		in.Endpoints[fmt.Sprint("x", i)] = fabric.Endpoint{At: at(of(1), flow.Port(10+i)), MACs: []flow.MAC{mac(50 + i)}, Prefixes: []netip.Prefix{addr(50 + i)}}
	}
	in.Policies = oneWay(api.PolicySpec{From: "10.0.0.0/24", Match: []string{"ip"}, Chain: "through"})
	out := Compile(in)
	transit := 0
	for _, e := range out.Entries[of(2)] {
		if e.Policy == "p" && e.Match.InPort == 1 {
			transit++
		}
	}
	if transit != 1 {
		t.Fatalf("22 stations take %d entries at s2, want 1:\n%s", transit, strings.Join(text(in, out), "\n"))
	}
}

// Ring of two: VM1's frames go over s1-s2 to h2, back to h1 at s1, then on to VM2 at s2: the link s1-s2 is crossed twice in one direction.
func crossedTwice() fabric.Input {
	in := fig2()
	s1 := in.Switches[of(1)]
	s1.Ports = append(s1.Ports, numbers(3)...)
	in.Switches[of(1)] = s1
	in.Switches["host:h1"] = fabric.Switch{Name: "h1", Host: true, Ports: []fabric.Port{{Name: "uplink/eth0"}}}
	in.Links = append(in.Links, fabric.Link{A: at(of(1), 3), B: named("host:h1", "uplink/eth0")})
	in.Functions["a"], in.Functions["b"] = fabric.Function{Host: "host:nfv1", Ready: true}, fabric.Function{Host: "host:h1", Ready: true}
	in.Chains = map[string]api.ChainSpec{"through": {Path: "a | b"}}
	in.Policies = oneWay(api.PolicySpec{From: "vm1", Match: []string{"ip"}, Chain: "through"})
	return in
}

func TestTagWhereALinkIsCrossedTwice(t *testing.T) {
	in := crossedTwice()
	out := Compile(in)
	want := []string{
		"h1: in function/b/out src 10.0.0.1 -> output uplink/eth0",
		"h1: in uplink/eth0 src 10.0.0.1 -> output function/b/in",
		"nfv1: in function/a/out src 10.0.0.1 -> output uplink/eth0",
		"nfv1: in uplink/eth0 tag 3585 -> pop output function/a/in",
		"s1: in 1 src 10.0.0.1 -> 3",
		"s1: in 2 src 10.0.0.1 -> push 3585 1",
		"s2: in 1 tag 3585 -> 3",
		"s2: in 3 src 10.0.0.1 -> 1",
	}
	if diff := cmp.Diff(want, text(in, out)); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff([]uint16{flow.TagFirst}, out.Paths.Of("p").Tags); diff != "" {
		t.Fatal(diff)
	}
}

func TestPolicyThatDoesNotFitIsRefused(t *testing.T) {
	in := fig2()
	s := in.Switches[of(2)]
	s.Tables = []uint32{12, 100}
	in.Switches[of(2)] = s
	in.Reserve = 4
	in.Policies = oneWay(api.PolicySpec{From: "vm1", Match: []string{"tcp/1-6"}, Chain: "through"})
	out := Compile(in)
	err := out.Errors["p"]
	if !errors.Is(err, fabric.ErrFull) || !strings.Contains(err.Error(), "switch s2: table 0 holds 12 entries, 4 of them are left to others") {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"s1: in 2 src 10.0.0.1 tp_dst 1-6 ->"}, text(in, out)); diff != "" {
		t.Fatal("its frames are to be dropped, and nothing else is to be left over: ", diff)
	}
	in.Reserve = 0
	if err := Compile(in).Errors["p"]; err != nil {
		t.Fatal(err)
	}
}

// A table that is too small for all stations is told of before anything is refused, and there is room for policies.
func TestStationsThatDoNotFitAreLeftOut(t *testing.T) {
	in := fig2()
	for i := range 60 {
		in.Stations = append(in.Stations, fabric.Station{MAC: mac(byte(100 + i)), At: at(of(1), 2)})
	}
	in.Stations = append(in.Stations, fabric.Station{MAC: mac(2), At: at(of(2), 2), Endpoint: "vm2"})
	small := func(sizes ...uint32) fabric.Output {
		s := in.Switches[of(2)]
		s.Tables = sizes
		in.Switches[of(2)] = s
		return Compile(in)
	}
	if out := small(0, 63); len(out.Short) > 0 {
		t.Fatal("all fits, but: ", out.Short)
	}
	out := small(100, 43)
	if err := out.Errors["p"]; err != nil {
		t.Fatal("steering is given up: ", err)
	}
	want := map[fabric.SwitchID][]fabric.Short{of(2): {{Table: 1, Size: 43, Needs: 63, Stations: 62, LeftOut: 30}}}
	if diff := cmp.Diff(want, out.Short); diff != "" {
		t.Fatal(diff)
	}
	const text = "table 1 holds 43 entries; default forwarding needs 63, 62 of them for stations: frames to 30 stations are flooded, " +
		"and a quarter of the table is kept for policies; use a switch with a larger table, or fewer stations"
	if got := out.Short[of(2)][0].String(); got != text {
		t.Error(got)
	}
	stations := func(out fabric.Output, s fabric.SwitchID) (all []flow.MAC) {
		for _, e := range out.Entries[s] {
			if e.Priority == fabric.StationPriority {
				all = append(all, e.Match.DstMAC)
			}
		}
		return all
	}
	if all := stations(out, of(2)); len(all) != 32 || !slices.Contains(all, mac(2)) {
		t.Errorf("s2 has the entries of %d stations, want 32 and that of the endpoint among them", len(all))
	}
	if all := stations(out, of(1)); len(all) != 62 {
		t.Errorf("s1 has the entries of %d stations, want all 62", len(all))
	}
	slices.Reverse(in.Stations)
	again := small(100, 43)
	if diff := cmp.Diff(stations(out, of(2)), stations(again, of(2))); diff != "" {
		t.Errorf("others are left out when stations come in another order: %s", diff)
	}
	if out := small(4, 1000); len(out.Short[of(2)]) != 1 || !strings.Contains(out.Short[of(2)][0].String(), "table 0 holds 4 entries; default forwarding needs 6: it is not whole") {
		t.Error(out.Short)
	}
	in.Reserve = 10
	if out := small(100, 60); !strings.Contains(fmt.Sprint(out.Short[of(2)]), "table 1 holds 60 entries, 10 of them are left to others; default forwarding needs 63") {
		t.Error(out.Short)
	}
}

func TestNoPath(t *testing.T) {
	in := fig2()
	in.Links = in.Links[1:]
	out := Compile(in)
	if err := out.Errors["p"]; !errors.Is(err, fabric.ErrNoPath) || !strings.Contains(err.Error(), "no path from s1 to nfv1") && !strings.Contains(err.Error(), "no path from nfv1 to s1") {
		t.Fatal(err)
	}
	drops := func() bool { return slices.Contains(text(in, Compile(in)), "s1: in 2 src 10.0.0.1 ->") }
	if !drops() {
		t.Fatal("a policy that is not in force yet lets frames past its chain: ", text(in, out))
	}
	for name, f := range in.Functions {
		f.OnFail = api.OnFailBypass
		in.Functions[name] = f
	}
	if drops() {
		t.Fatal("all its functions say bypass, and it never was in force: ", text(in, Compile(in)))
	}
	in.InForce = map[string]bool{"p": true}
	if !drops() {
		t.Fatal("a policy that was in force lets frames past its chain: ", text(in, Compile(in)))
	}
}

// Copies always carry a tag; when none is left their policies are refused.
func TestTagsRunOut(t *testing.T) {
	in := fig2()
	in.Policies = map[string]api.PolicySpec{}
	in.Functions, in.Chains = map[string]fabric.Function{}, map[string]api.ChainSpec{}
	for i := range 600 {
		f, c := fmt.Sprint("f", i), fmt.Sprint("c", i)
		in.Functions[f] = fabric.Function{Host: "host:nfv1", Ready: true, Rewrites: true}
		in.Chains[c] = api.ChainSpec{Path: f}
		in.Policies[fmt.Sprintf("p%03d", i)] = api.PolicySpec{From: "vm1", Match: []string{fmt.Sprintf("tcp/%d", i+1)}, Mode: api.ModeReplica, Chain: c}
	}
	out := Compile(in)
	refused := 0
	for _, err := range out.Errors {
		if !errors.Is(err, fabric.ErrTags) {
			t.Fatal(err)
		}
		refused++
	}
	if refused == 0 || refused == 600 {
		t.Fatalf("%d of 600 policies are refused for want of tags", refused)
	}
}

func TestCompileIsDeterministic(t *testing.T) {
	in := leafSpine(2, 4, 12, 60)
	a, b := Compile(in), Compile(in)
	if diff := cmp.Diff(a.Entries, b.Entries, cmp.Comparer(func(x, y netip.Prefix) bool { return x == y })); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff(a.Hosts, b.Hosts); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff(maps.Collect(a.Paths.All()), maps.Collect(b.Paths.All())); diff != "" {
		t.Fatal(diff)
	}
}

// The way back of Table I is its ports swapped; what is for VM1 is caught at the first of its switches that it meets.
func TestTableIBack(t *testing.T) {
	in := fig2()
	want := []string{
		"nfv1: in function/nf/in dst 10.0.0.1 -> output uplink/eth0",
		"nfv1: in function/nf/out src 10.0.0.1 -> output uplink/eth0",
		"nfv1: in uplink/eth0 dst 10.0.0.1 -> output function/nf/out",
		"nfv1: in uplink/eth0 src 10.0.0.1 -> output function/nf/in",
		"s1: in 0 dst 10.0.0.1 -> 1",
		"s1: in 1 dst 10.0.0.1 -> 2",
		"s1: in 2 src 10.0.0.1 -> 1",
		"s2: in 0 dst 10.0.0.1 -> 3",
		"s2: in 1 src 10.0.0.1 -> 3",
		"s2: in 3 dst 10.0.0.1 -> 1",
	}
	if diff := cmp.Diff(want, rules(in, t)); diff != "" {
		t.Fatal(diff)
	}
	// A second policy of the same host makes frames from one station to the other ambiguous behind it.
	in.Policies["q"] = api.PolicySpec{From: "vm2", Match: []string{"ip"}, Chain: "second", Priority: 50}
	in.Functions["nf2"] = fabric.Function{Host: "host:nfv1", Ready: true}
	in.Chains["second"] = api.ChainSpec{Path: "nf2"}
	if out := Compile(in); len(out.Paths.Of("p").Tags) == 0 || len(out.Paths.Of("q").Tags) == 0 {
		t.Fatal("no tag where one is needed: ", text(in, out))
	}
}

// A link that is lost changes only the ways that led over it.
func TestLostLinkChangesOnlyItsWays(t *testing.T) {
	in := leafSpine(4, 4, 16, 80)
	before := Compile(in)
	lost := in.Links[0] // between the first spine and the first leaf
	in.Links = in.Links[1:]
	after := Compile(in)
	if len(after.Errors) > 0 {
		t.Fatal(after.Errors)
	}
	over := func(p *fabric.Path) bool {
		end := func(at fabric.At) string { return in.Switches[at.Switch].Name + ":" + graph.Decimal(at.Port.Number) }
		all := slices.Concat(p.Forward, p.Reverse)
		return slices.Contains(all, end(lost.A)) || slices.Contains(all, end(lost.B))
	}
	changed := 0
	for name, p := range before.Paths.All() {
		q := after.Paths.Of(name)
		if over(q) {
			t.Fatalf("policy %s still goes over the lost link: %v", name, q)
		}
		if over(p) {
			changed++
			continue
		}
		if diff := cmp.Diff([][]string{p.Forward, p.Reverse}, [][]string{q.Forward, q.Reverse}); diff != "" {
			t.Fatalf("policy %s did not go over the lost link:\n%s", name, diff)
		}
	}
	if changed == 0 {
		t.Fatal("no policy went over the link: the case is empty")
	}
}
