package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"pgregory.net/rapid"
)

func names(rules []rule) []string {
	var out []string
	for _, r := range rules {
		if len(out) == 0 || out[len(out)-1] != r.name {
			out = append(out, r.name)
		}
	}
	return out
}

func services(t *testing.T, texts ...string) []entry {
	t.Helper()
	var out []entry
	for _, x := range texts {
		s, err := parseService(x)
		must(t, err)
		out = append(out, entry{service: s})
	}
	return out
}

func TestPlanOrder(t *testing.T) {
	always, tags := []string{"probe", "arp", "neighbour discovery", "icmp errors", "icmpv6 errors"}, "deny what hides behind priority tags"
	for name, tt := range map[string]struct {
		cfg      config
		stateful bool
		want     []string
	}{
		"replies by ports":       {config{Default: "drop", Allow: services(t, "tcp/80")}, false, append(always, "allow tcp/80", "allow tcp/80 fragments", "allow tcp/80 replies", "default drop")},
		"replies by connections": {config{Default: "drop", Allow: services(t, "tcp/80")}, true, append(always, "replies", "allow tcp/80", "allow tcp/80 fragments", "default drop")},
		"deny comes first":       {config{Default: "accept", Deny: services(t, "icmp"), Allow: services(t, "all")}, true, append([]string{"probe", tags}, append(always[1:], "deny icmp", "allow all", "default accept")...)},
		"arp denied by name":     {config{Default: "drop", Deny: services(t, "arp")}, true, append([]string{"probe", tags, "deny arp"}, append(always[1:], "replies", "default drop")...)},
	} {
		t.Run(name, func(t *testing.T) {
			tt.cfg.probe = make([]byte, 12)
			if diff := cmp.Diff(tt.want, names(plan(tt.cfg, "in", "out", tt.stateful).rules)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Whatever the configuration: the probe passes first, the default comes last and alone decides everything, nothing denies after an
// allow but the default.
func TestPlanShape(t *testing.T) {
	item := rapid.Custom(func(t *rapid.T) entry {
		s := service{proto: rapid.SampledFrom(protocols).Draw(t, "proto")}
		if s.hasPorts() && rapid.Bool().Draw(t, "ports") {
			s.first = rapid.Uint16Range(1, 65535).Draw(t, "first")
			s.last = rapid.Uint16Range(s.first, 65535).Draw(t, "last")
		}
		e := entry{service: s}
		for _, a := range []*addresses{&e.sources, &e.targets} {
			if rapid.Bool().Draw(t, "some addresses") {
				list, _ := parseAddresses(rapid.SliceOf(rapid.SampledFrom([]string{"10.0.0.0/8", "10.1.1.1", "fd00::/8", "fd00::1-fd00::9"})).Draw(t, "addresses"))
				*a = append(addresses{}, list...)
			}
		}
		return e
	})
	rapid.Check(t, func(t *rapid.T) {
		cfg := config{
			Default: rapid.SampledFrom([]string{"drop", "accept"}).Draw(t, "default"),
			probe:   make([]byte, 12),
			Allow:   rapid.SliceOfN(item, 0, 5).Draw(t, "allow"), Deny: rapid.SliceOfN(item, 0, 5).Draw(t, "deny"),
		}
		rules := plan(cfg, "in", "out", rapid.Bool().Draw(t, "stateful")).rules
		last := rules[len(rules)-1]
		if rules[0].name != "probe" || rules[0].denies {
			t.Fatalf("first rule %q", rules[0].name)
		}
		if len(last.match) != 0 || last.denies != (cfg.Default == "drop") || last.name != "default "+cfg.Default {
			t.Fatalf("last rule %+v", last)
		}
		allowed := false
		for _, r := range rules[:len(rules)-1] {
			allowed = allowed || len(r.name) > 5 && r.name[:5] == "allow"
			if allowed && r.denies {
				t.Fatalf("%q denies after an allow", r.name)
			}
			lookups := 0
			for _, x := range r.match {
				if _, ok := x.(*expr.Lookup); ok {
					lookups++
				}
			}
			if lookups != len(r.sets) {
				t.Fatalf("%q: %d lookups in %d sets", r.name, lookups, len(r.sets))
			}
		}
	})
}
