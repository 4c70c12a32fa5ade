package model

import (
	"fmt"
	"maps"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/steering"
)

// tagged are an output's rules that act on a tag, and what each tag means at each place.
func tagged(out fabric.Output) (rules []fabric.Lingering, meanings map[string]string) {
	meanings = map[string]string{}
	for id, entries := range out.Entries {
		for _, e := range entries {
			if e.Match.Tag != 0 {
				rules = append(rules, fabric.Lingering{At: fabric.At{Switch: id, Port: fabric.Port{Number: e.Match.InPort}}, Tag: e.Match.Tag, Cookie: e.Cookie})
				meanings[fmt.Sprintf("%s:%d tag %d", id, e.Match.InPort, e.Match.Tag)] = fmt.Sprintf("%012x", e.Cookie)
			}
		}
	}
	for id, list := range out.Hosts {
		for _, r := range list {
			if r.Match.Tag != 0 {
				cookie, _ := strconv.ParseUint(r.Cookie, 16, 64)
				rules = append(rules, fabric.Lingering{At: fabric.At{Switch: id, Port: fabric.Port{Name: r.Match.InPort}}, Tag: r.Match.Tag, Cookie: cookie})
				meanings[fmt.Sprintf("%s:%s tag %d", id, r.Match.InPort, r.Match.Tag)] = r.Cookie[:8]
			}
		}
	}
	return rules, meanings
}

// While frames of one output may be on their way, no tag means something else at a place where they may come by: not after a changed
// policy, nor in another topology, nor after a restart.
func TestTagsKeepTheirMeaning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawNetwork(t)
		for i := range len(b.in.Chains) {
			b.drawPolicy(t, i)
		}
		all := b.in.Policies
		in := b.in
		in.Policies = map[string]api.PolicySpec{}
		c := steering.New(in)
		rules, before := tagged(c.Output())
		for range 10 {
			in.Policies = maps.Clone(in.Policies)
			name := fmt.Sprint("p", rapid.IntRange(0, len(all)-1).Draw(t, "policy"))
			if _, there := in.Policies[name]; there {
				delete(in.Policies, name)
			} else {
				in.Policies[name] = all[name]
			}
			in.Lingering = nil
			var out fabric.Output
			switch rapid.IntRange(0, 3).Draw(t, "how") {
			case 0: // restarted: it reads what is in force
				in.Lingering = rules
				c = steering.New(Routed(in))
				out = c.Output()
			case 1: // another world
				in.Stations = append(in.Stations[:len(in.Stations):len(in.Stations)], fabric.Station{MAC: flow.MAC{2, 7, 7, 7, 7, byte(len(in.Stations))}})
				out = c.Update(Routed(in))
			default:
				out = c.Update(Routed(in))
			}
			now, means := tagged(out)
			for at, m := range means {
				if was, there := before[at]; there && was != m {
					t.Fatalf("%s meant %q, now %q\n%s", at, was, m, describe(in, out))
				}
			}
			rules, before = now, means
		}
	})
}
