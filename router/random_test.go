package router

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"weir.dev/weir/api"
)

// Whatever a document holds, it is looked at and compiled without a panic, and what has a problem by itself has it in the answer. Names with dots count: a
// problem's path does not tell where they end.
func TestDocumentsOfAnyKindAreRead(t *testing.T) {
	names := rapid.SampledFrom([]string{"a", "b", "c", "a.b", "a.b.c", ".", "", "any", "__main__", "A", "x y", "é", "\x00", "policies.a", "a[0]"})
	ends := rapid.OneOf(names, rapid.SampledFrom([]string{"10.9.0.0/24", "10.9.0.1", "fd57::/64", "::ffff:10.0.0.1", "02:00:00:00:00:01", "0.0.0.0/0", "mac:x", "\ufffd"}), rapid.String())
	terms := rapid.OneOf(rapid.SampledFrom([]string{"", "all", "ip", "arp", "icmp", "tcp", "tcp/80", "tcp/80-90", "udp/0", "sctp/65536", "tcp/90-80", "tcp/"}), rapid.String())
	paths := rapid.OneOf(rapid.SampledFrom([]string{"", "a", "a | b", "tap:a", "a|a", "|", "tap:", "a | tap:b | c", "b", "c | tap:a"}), rapid.String())
	number := rapid.OneOf(rapid.IntRange(-2, 1002), rapid.SampledFrom([]int{math.MinInt, math.MaxInt, 65535, 65536}))
	policy := rapid.Custom(func(t *rapid.T) api.PolicySpec {
		p := api.PolicySpec{From: ends.Draw(t, "from"), To: ends.Draw(t, "to"), Chain: names.Draw(t, "chain"), Priority: number.Draw(t, "priority"),
			Match:   rapid.SliceOfN(terms, 0, 4).Draw(t, "match"),
			Mode:    rapid.SampledFrom([]api.Mode{"", api.ModeSelective, api.ModeReplica, api.ModeExhaustive, "x"}).Draw(t, "mode"),
			MatchBy: rapid.SampledFrom([]api.MatchBy{"", api.MatchByIP, api.MatchByMAC, "x"}).Draw(t, "match_by"),
		}
		if way := rapid.IntRange(0, 2).Draw(t, "symmetric"); way > 0 {
			symmetric := way == 1
			p.Symmetric = &symmetric
		}
		return p
	})
	endpoint := rapid.Custom(func(t *rapid.T) api.EndpointSpec {
		return api.EndpointSpec{Netns: names.Draw(t, "netns"), Interface: names.Draw(t, "interface"), Host: names.Draw(t, "host"), MAC: ends.Draw(t, "mac"),
			Address: ends.Draw(t, "address"), Addresses: rapid.SliceOfN(ends, 0, 2).Draw(t, "addresses"), MTU: number.Draw(t, "mtu"),
			Switch: names.Draw(t, "switch"), SwitchPort: names.Draw(t, "port")}
	})
	document := rapid.Custom(func(t *rapid.T) api.Document {
		return api.Document{
			Endpoints: rapid.MapOfN(names, endpoint, 0, 4).Draw(t, "endpoints"),
			Functions: rapid.MapOfN(names, rapid.Just(api.FunctionSpec{Image: "wire"}), 0, 4).Draw(t, "functions"),
			Chains:    rapid.MapOfN(names, rapid.Map(paths, func(p string) api.ChainSpec { return api.ChainSpec{Path: p} }), 0, 4).Draw(t, "chains"),
			Policies:  rapid.MapOfN(names, policy, 0, 6).Draw(t, "policies"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		d := document.Draw(t, "document")
		changed := d
		if rapid.Bool().Draw(t, "some") {
			changed = document.Draw(t, "changed")
		}
		if alone, all := d.Validate(), ValidateChange(d, changed); len(all) < len(alone) {
			t.Fatalf("%d problems of objects by themselves, %d in all", len(alone), len(all))
		}
		in, compile := Rehearse(d)
		for name := range in.Policies {
			if api.CheckName(name) != nil || len(d.Policies[name].Validate()) > 0 {
				t.Fatalf("policy %q has a problem and is compiled", name)
			}
		}
		compile(in.Policies)
	})
}
