package placement_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/placement"
)

// owners of policies "NAME: FROM TO CHAIN ..." where endpoints and functions are called after their hosts: a1 and fa1 are on host a, s is a
// station of the fabric, x1 and fx1 are on no host.
func owners(alone bool, policies ...string) []string {
	p := placement.Places{Alone: alone, Endpoints: map[string]string{"s": ""}, Functions: map[string]string{}, Chains: map[string]api.ChainSpec{}}
	for _, host := range []string{"a", "b"} {
		for n := range 3 {
			p.Endpoints[fmt.Sprint(host, n)] = host
			p.Functions[fmt.Sprint("f", host, n)] = host
		}
	}
	for _, c := range []string{"fa0", "fa1", "fb0", "fa0-fb0", "fx1"} {
		p.Chains[c] = api.ChainSpec{Path: strings.ReplaceAll(c, "-", " | ")}
	}
	all := map[string]api.PolicySpec{}
	for _, text := range policies {
		f := strings.Fields(text)
		s := api.PolicySpec{From: f[1], To: f[2], Chain: f[3]}
		if slices.Contains(f, "oneway") {
			s.Symmetric = new(bool)
		}
		all[strings.TrimSuffix(f[0], ":")] = s
	}
	var out []string
	for name, o := range placement.Owners(p, all) {
		host := o.Host
		if host == "" {
			host = "router"
		}
		out = append(out, fmt.Sprintf("%s %s: %s", name, host, o.Reason))
	}
	slices.Sort(out)
	return out
}

func TestOwners(t *testing.T) {
	for name, c := range map[string]struct {
		alone    bool
		policies []string
		want     []string
	}{
		"the only host has what is there": {true, []string{"p: any any fa0", "q: a0 any fa0", "r: s any fa0", "s: any any fx1"}, []string{
			"p a: the only host", "q a: the only host", "r router: endpoint s is on no host", "s router: function fx1 is on no host"}},
		"all on one host": {false, []string{"p: a0 a1 fa0", "q: a0 any fa1", "r: 10.0.0.0/8 b1 fb0"}, []string{"p a: all of it is there", "q a: all of it is there", "r b: all of it is there"}},
		"what makes it the router's": {false, []string{"p: a0 b1 fa0", "q: any any fb0", "r: s a2 fa1", "s: a2 any fa0-fb0", "t: a2 any fx1", "u: a2 any none", "v: x1 any fa1"}, []string{
			"p router: endpoint b1 is on b, its chain on a",
			"q router: it names no endpoint, so its frames may come from any host",
			"r router: endpoint s is on no host",
			"s router: function fa0 is on a, function fb0 on b",
			"t router: function fx1 is on no host",
			"u router: there is no chain none",
			"v router: endpoint x1 is on no host",
		}},
		"a chain of the router's": {false, []string{"p: a0 b1 fa0", "q: a2 any fa0", "r: a1 any fa1 oneway"}, []string{
			"p router: endpoint b1 is on b, its chain on a",
			"q router: policy p, which the router steers, has the same chain",
			"r a: all of it is there",
		}},
		"a place of the router's, one after the other": {false, []string{"p: a0 b1 fb0 oneway", "q: a0 10.0.0.0/8 fa0 oneway", "r: any a1 fa0 oneway", "s: any a1 fa1 oneway", "t: any a2 fa1"}, []string{
			"p router: endpoint a0 is on a, its chain on b",
			"q router: policy p, which the router steers, takes frames from endpoint a0, too",
			"r router: policy q, which the router steers, has the same chain",
			"s router: policy r, which the router steers, takes frames to endpoint a1, too",
			"t router: policy s, which the router steers, has the same chain",
		}},
		"every endpoint's frames are the router's": {false, []string{"p: any 10.0.0.0/8 fb0", "q: a0 10.0.0.0/8 fa0 oneway", "r: 10.0.0.0/8 a1 fa1 oneway"}, []string{
			"p router: it names no endpoint, so its frames may come from any host",
			"q router: policy p, which the router steers, takes frames from every endpoint",
			"r a: all of it is there",
		}},
	} {
		if d := cmp.Diff(c.want, owners(c.alone, c.policies...)); d != "" {
			t.Errorf("%s: -want +got\n%s", name, d)
		}
	}
}

// Each decision is made once: ten thousand policies take no more than a moment.
func BenchmarkOwners(b *testing.B) {
	p := placement.Places{Endpoints: map[string]string{}, Functions: map[string]string{}, Chains: map[string]api.ChainSpec{}}
	policies := map[string]api.PolicySpec{}
	for i := range 10_000 {
		e, f, host := fmt.Sprint("e", i), fmt.Sprint("f", i), fmt.Sprint("h", i%100)
		p.Endpoints[e], p.Functions[f], p.Chains[f] = host, host, api.ChainSpec{Path: f}
		policies[fmt.Sprint("p", i)] = api.PolicySpec{From: e, To: fmt.Sprint("e", i+1), Chain: f}
	}
	for b.Loop() {
		placement.Owners(p, policies)
	}
}
