package model

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/oracle"
	"weir.dev/weir/router/fabric/steering"
)

// catches tells entries and rules that find frames from those that lead them on, as the router does.
func catches(r *api.HostRule) bool {
	return r.Stage == flow.Egress.String() || r.Match.InPort == "" || strings.HasPrefix(r.Match.InPort, "endpoint/")
}

// entryID and ruleID are what one thing replaces another by.
func entryID(id fabric.SwitchID, e *fabric.Entry) string {
	return fmt.Sprintf("%s %v", id, entryKey{e.Table, e.Priority, e.Match, e.Tagged})
}

// part is an entry or a rule that differs between two outputs.
type part struct {
	unit string // what changes at once: at a switch what catches a policy's frames, at a host likewise and what leads them elsewhere
	hop  int
	gone bool
}

// half is what is in force somewhere between two outputs: done tells of each part whether its change has been made.
func half(old, now fabric.Output, done func(part) bool) fabric.Output {
	out := now
	out.Entries, out.Hosts = map[fabric.SwitchID][]*fabric.Entry{}, map[fabric.SwitchID][]*api.HostRule{}
	for id := range now.Entries {
		was, is := map[string]*fabric.Entry{}, map[string]*fabric.Entry{}
		for _, e := range old.Entries[id] {
			was[entryID(id, e)] = e
		}
		for _, e := range now.Entries[id] {
			is[entryID(id, e)] = e
		}
		for _, k := range union(was, is) {
			w, had := was[k]
			n, has := is[k]
			e := n
			if !has {
				e = w
			}
			p := part{k, int(e.Hop), !has}
			switch {
			case e.Hop <= fabric.Catching:
				p.unit = fmt.Sprint(id, " ", e.Policy, " ", e.Hop)
			case !has && !(e.Hop <= fabric.FirstLeg && e.Match.Tag == 0 && !inForce(now, e.Policy)):
				p.hop = behind
			}
			ok := done(p) || e.Policy == "" && has
			if ok && has {
				out.Entries[id] = append(out.Entries[id], n)
			} else if !ok && had {
				out.Entries[id] = append(out.Entries[id], w)
			}
		}
	}
	for id := range now.Hosts {
		was, is := map[string]*api.HostRule{}, map[string]*api.HostRule{}
		for _, r := range old.Hosts[id] {
			was[r.Cookie] = r
		}
		for _, r := range now.Hosts[id] {
			is[r.Cookie] = r
		}
		for _, k := range union(was, is) {
			w, had := was[k]
			n, has := is[k]
			r := n
			if !has {
				r = w
			}
			p := part{fmt.Sprint(id, r.Policy, catches(r)), behind, !has}
			switch {
			case catches(r):
				p.hop = 0
			case had && has, !had && replaces(n, old.Hosts[id]), !has && replaces(w, now.Hosts[id]):
				p.hop, p.gone, p.unit = turning, false, string(id)
			case had && takesOver(w, now.Hosts[id]):
				p.hop, p.unit = over, string(id)+k
			case has && takesOver(n, old.Hosts[id]):
				p.hop, p.unit = turning, string(id)+k
			}
			ok := done(p)
			if ok && has {
				out.Hosts[id] = append(out.Hosts[id], n)
			} else if !ok && had {
				out.Hosts[id] = append(out.Hosts[id], w)
			}
		}
	}
	return out
}

func inForce(out fabric.Output, policy string) bool { return out.Paths.Of(policy) != nil }

// replaces tells whether a rule leads what comes out of a function elsewhere than any of the others there, those before or after it.
func replaces(r *api.HostRule, others []*api.HostRule) bool {
	there := false
	for _, o := range others {
		if o.Match.InPort == r.Match.InPort && (o.Policy == r.Policy || o.Policy == "" || r.Policy == "") {
			if there = true; reflect.DeepEqual(o.Action, r.Action) {
				return false
			}
		}
	}
	return there && strings.HasPrefix(r.Match.InPort, "function/")
}

// takesOver tells whether a rule at a function's port comes before one of another policy and leads elsewhere.
func takesOver(r *api.HostRule, others []*api.HostRule) bool {
	return strings.HasPrefix(r.Match.InPort, "function/") && r.Policy != "" && slices.ContainsFunc(others, func(o *api.HostRule) bool {
		return o.Match.InPort == r.Match.InPort && o.Policy != "" && o.Policy != r.Policy && o.Priority < r.Priority && !reflect.DeepEqual(o.Action, r.Action)
	})
}

// over is the hop of a rule that goes and had taken other policies' frames over: after all that had caught frames, before all else.
const over = fabric.FirstLeg + 1

// behind is the hop of what is met behind all that may take frames over.
const behind = 1000

// turning is the hop of a host's rule that leads elsewhere than before.
const turning = -1

func union[T any](a, b map[string]T) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

// moment draws a state between two outputs that the router's order allows.
func moment(t *rapid.T, old, now fabric.Output) fabric.Output {
	seed := rapid.Uint64().Draw(t, "order")
	switch rapid.IntRange(0, 3).Draw(t, "phase") {
	case 0: // what catches nothing comes, from the far end on
		at := rapid.IntRange(1, 100).Draw(t, "hop")
		return half(old, now, func(p part) bool { return !p.gone && (p.hop > at || p.hop == at && mixed(p.unit, seed)) })
	case 1: // what leads elsewhere
		return half(old, now, func(p part) bool { return !p.gone && (p.hop > 0 || p.hop == turning && mixed(p.unit, seed)) })
	case 2: // what catches
		return half(old, now, func(p part) bool { return !p.gone && (p.hop != 0 || mixed(p.unit, seed)) })
	}
	at := rapid.IntRange(0, fabric.FirstLeg+1).Draw(t, "gone") // what had caught, then what could take frames over, from the near end on
	return half(old, now, func(p part) bool { return !p.gone || p.hop < at || p.hop == at && mixed(p.unit, seed) })
}

func mixed(id string, seed uint64) bool {
	for _, c := range []byte(id) {
		seed = (seed ^ uint64(c)) * 0x100000001b3
	}
	return seed>>40&1 == 1
}

// change draws another input.
func change(t *rapid.T, b *builder, in fabric.Input) (fabric.Input, string) {
	names := slices.Sorted(maps.Keys(in.Policies))
	kind := rapid.SampledFrom([]string{"add", "delete", "rechain", "modify", "move", "edit"}).Draw(t, "kind")
	next := in
	next.Policies, next.Functions, next.Chains = maps.Clone(in.Policies), maps.Clone(in.Functions), maps.Clone(in.Chains)
	var free []int
	for i := range len(in.Chains) {
		if _, taken := in.Policies[fmt.Sprint("p", i)]; !taken {
			free = append(free, i)
		}
	}
	switch {
	case len(names) == 0:
		kind = "add"
	case len(free) == 0 && kind == "add":
		kind = "modify"
	}
	switch kind {
	case "add":
		b.drawPolicy(t, rapid.SampledFrom(free).Draw(t, "new"))
		maps.Copy(next.Policies, b.in.Policies)
		b.in.Policies = map[string]api.PolicySpec{}
	case "delete":
		delete(next.Policies, rapid.SampledFrom(names).Draw(t, "policy"))
	case "rechain":
		name := rapid.SampledFrom(names).Draw(t, "policy")
		p := next.Policies[name]
		p.Chain = fmt.Sprint("c", rapid.IntRange(0, len(in.Chains)-1).Draw(t, "chain"))
		next.Policies[name] = p
	case "modify":
		name := rapid.SampledFrom(names).Draw(t, "policy")
		p := next.Policies[name]
		if p.Priority = 10*rapid.IntRange(1, 9).Draw(t, "priority") + int(name[1]-'0'); p.ModeOrDefault() != api.ModeExhaustive {
			p.Match = []string{rapid.SampledFrom([]string{"ip", "tcp", "udp", "tcp/80", "tcp/70-90"}).Draw(t, "match")}
		}
		next.Policies[name] = p
	case "move":
		name := rapid.SampledFrom(slices.Sorted(maps.Keys(in.Functions))).Draw(t, "function")
		var hosts []fabric.SwitchID
		for id, s := range in.Switches {
			if s.Host {
				hosts = append(hosts, id)
			}
		}
		slices.Sort(hosts)
		f := next.Functions[name]
		f.Host = rapid.SampledFrom(hosts).Draw(t, "host")
		next.Functions[name] = f
	case "edit":
		name := rapid.SampledFrom(slices.Sorted(maps.Keys(in.Chains))).Draw(t, "chain")
		hops := strings.Split(in.Chains[name].Path, " | ")
		hops = rapid.Permutation(hops).Draw(t, "path")
		hops = hops[:rapid.IntRange(1, len(hops)).Draw(t, "length")]
		next.Chains[name] = api.ChainSpec{Path: strings.Join(hops, " | ")}
	}
	next.Before, next.Edited = in.Policies, nil
	for _, name := range union(in.Policies, next.Policies) {
		p, was := in.Policies[name]
		if q, is := next.Policies[name]; was != is || !reflect.DeepEqual(p, q) {
			next.Edited = append(next.Edited, name)
		}
	}
	return next, kind
}

// network under change: what is in force, and of which inputs that may be.
type changing struct {
	t      *rapid.T
	b      *builder
	n      *Network
	c      *steering.Compiler
	in     fabric.Input   // what has come into force last
	past   []fabric.Input // what may be in force, too
	fenced bool           // frames may be dropped until functions have changed places
	at     fabric.Output
	have   fabric.Output            // what was computed last
	has    map[fabric.At]bool       // where functions are
	seen   func(what string, n int) // counts frames
}

// place puts functions where they are to be, beside where they are.
func (c *changing) place(in fabric.Input) {
	for name, f := range in.Functions {
		at := fabric.At{Switch: f.Host, Port: fabric.Port{Name: name}}
		if c.has[at] {
			continue
		}
		c.has[at] = true
		if err := c.n.AddFunction(f.Host, name, f.Tap, nil); err != nil {
			c.t.Fatal(err)
		}
	}
}

// others are the forms that policies had in the past.
func (c *changing) others(in fabric.Input, all map[string][]fabric.Variant) map[string][]fabric.Variant {
	for _, p := range c.past {
		for name, v := range fabric.Between(in, p, false) {
			if all == nil {
				all = map[string][]fabric.Variant{}
			}
			all[name] = append(all[name], v...)
		}
	}
	return all
}

// to changes the rules, and looks at some states on the way there; where it stops is drawn, if it may stop.
func (c *changing) to(what string, in fabric.Input, now fabric.Output, copies, stop bool) (settled bool) {
	was := c.at
	c.fenced = c.fenced || len(now.Errors) > 0
	for range 3 {
		c.at = moment(c.t, was, now)
		if err := c.n.Install(in, c.at); err != nil {
			c.t.Fatal(what, err, describe(in, c.at))
		}
		for range 3 {
			from, frame := c.b.drawFrame(c.t)
			if frame[0]&1 == 1 { // floods follow their trees, whatever policies do
				continue
			}
			c.seen(what, 1)
			inputs := blends(append([]fabric.Input{c.in, in}, c.past...))
			if copies {
				inputs = append(inputs, reranked(inputs)...)
			}
			c.check(what, from, frame, inputs, copies)
		}
	}
	if stop && rapid.Bool().Draw(c.t, "in a hurry") {
		return false
	}
	c.at = now
	return true
}

func (c *changing) check(what, from string, frame []byte, inputs []fabric.Input, copies bool) {
	all := ""
	for _, in := range inputs {
		diff, trail := strays(c.n, in, from, frame, copies)
		if diff == "" || strings.Contains(diff, "is copied to") { // two copying policies of one rank while ranks change: either copy is right
			return
		}
		if all == "" {
			all = strings.Join(trail[:min(30, len(trail))], "\n")
		}
		all += "\n" + diff + describe(in, fabric.Output{})
	}
	r, err := c.n.Send(from, frame)
	if c.fenced && err == nil && len(r.Deliveries) == 0 {
		return // see fenced
	}
	if errors.Is(err, ErrTie) { // of two forms of a policy, that both have its priority: whichever a switch takes, it is to be right
		defer func() { c.n.Tie = nil }()
		for _, c.n.Tie = range []func(a, b *fabric.Entry) *fabric.Entry{
			func(a, _ *fabric.Entry) *fabric.Entry { return a }, func(_, b *fabric.Entry) *fabric.Entry { return b },
		} {
			c.check(what, from, frame, inputs, copies)
		}
		return
	}
	k, _ := flow.Decode(frame)
	c.t.Fatalf("%s: %v from %s follows neither way\n%s\nin force:\n%s", what, k, from, all, describe(fabric.Input{}, c.at))
}

// blends are the inputs that have each policy, chain and function as one of some inputs has it: a frame that two policies take, one after
// the other, may meet the one as it was and the other as it will be.
func blends(inputs []fabric.Input) []fabric.Input {
	out := inputs[:1:1]
	for _, in := range inputs[1:] {
		for _, have := range out {
			for _, name := range union(have.Policies, in.Policies) {
				p, there := in.Policies[name]
				if q, was := have.Policies[name]; was != there || !reflect.DeepEqual(p, q) {
					next := have
					next.Policies = maps.Clone(have.Policies)
					if next.Policies[name] = p; !there {
						delete(next.Policies, name)
					}
					out = append(out, next)
				}
			}
			for name, x := range in.Chains {
				if x != have.Chains[name] {
					next := have
					next.Chains = maps.Clone(have.Chains)
					next.Chains[name] = x
					out = append(out, next)
				}
			}
			for _, name := range slices.Sorted(maps.Keys(have.Policies)) { // of policies that share a chain one may come first
				p := have.Policies[name]
				if x, there := in.Chains[p.Chain]; there && x != have.Chains[p.Chain] {
					next := have
					next.Policies, next.Chains = maps.Clone(have.Policies), maps.Clone(have.Chains)
					p.Chain += "-" + name
					next.Policies[name], next.Chains[p.Chain] = p, x
					out = append(out, next)
				}
			}
			for name, f := range in.Functions {
				if f != have.Functions[name] {
					next := have
					next.Functions = maps.Clone(have.Functions)
					next.Functions[name] = f
					out = append(out, next)
				}
			}
		}
	}
	return out
}

// reranked are the inputs without one of several policies that copy: while ranks change, the copy of a frame that two take may be the less
// important one's.
func reranked(inputs []fabric.Input) (out []fabric.Input) {
	for _, in := range inputs {
		var copying []string
		for name, p := range in.Policies {
			if p.ModeOrDefault() == api.ModeReplica {
				copying = append(copying, name)
			}
		}
		for _, name := range copying {
			if len(copying) > 1 {
				next := in
				next.Policies = maps.Clone(in.Policies)
				delete(next.Policies, name)
				out = append(out, next)
			}
		}
	}
	return out
}

// change makes one, as the router does.
func (c *changing) change(next fabric.Input, kind string, stop bool) {
	copies := kind != "edit" && len(c.past) == 0
	c.place(next)
	old := c.in
	old.Changing = c.others(old, fabric.Between(old, next, true))
	old.Lingering, _ = tagged(c.at)
	now := c.c.Update(old)
	if now.Clash || !reflect.DeepEqual(now.Entries, c.have.Entries) || !reflect.DeepEqual(now.Hosts, c.have.Hosts) {
		c.to(kind+" is prepared", old, now, copies, false)
		c.have, c.past = now, nil
	}
	c.past = append(c.past, c.in)
	in := next
	in.Changing = c.others(in, nil)
	in.Lingering, _ = tagged(c.at)
	now = c.c.Update(in)
	if len(now.Errors) > 0 {
		c.t.Fatal(now.Errors)
	}
	settled := c.to(kind, in, now, copies, stop)
	c.have, c.in = now, next
	if !settled {
		return
	}
	c.past, c.fenced = nil, false
	in = next
	in.Lingering, _ = tagged(c.at)
	now = c.c.Update(in)
	c.to(kind+" is tidied up", in, now, copies, false)
	c.have = now
}

// ready tells whether all policies of an input are served, and by this package.
func ready(in fabric.Input) bool {
	if copiesAndSteers(in) {
		return false
	}
	out := steering.Compile(in)
	return len(out.Errors) == 0 && len(Routed(in).Policies) == len(in.Policies)
}

// While policies come, go, change what they match or their chain, and while chains are edited and functions move, each frame meets
// wholly what had been in force or what will be, whatever of the change has been made; also when the next one comes before that. But when
// functions of a chain change places, its frames are dropped in between.
func TestEachFrameFollowsOneWay(t *testing.T) {
	count := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		b := drawNetwork(t)
		for i := range len(b.in.Chains) {
			b.drawPolicy(t, i)
		}
		in, _ := unserved(t, b.in)
		b.in.Policies = map[string]api.PolicySpec{}
		for _, name := range slices.Sorted(maps.Keys(in.Policies)) {
			if rapid.IntRange(0, 3).Draw(t, "later") == 0 {
				delete(in.Policies, name)
			}
		}
		if !ready(in) {
			return
		}
		in.InForce = map[string]bool{}
		for i := range len(in.Chains) {
			in.InForce[fmt.Sprint("p", i)] = true
		}
		c := &changing{t: t, b: b, n: up(t, in, nil), c: steering.New(in), in: in, has: map[fabric.At]bool{}}
		c.seen = func(what string, n int) { count[what] += n }
		for name, f := range in.Functions {
			c.has[fabric.At{Switch: f.Host, Port: fabric.Port{Name: name}}] = true
		}
		c.at = c.c.Output()
		c.have = c.at
		for round := range 2 {
			next, kind := change(t, b, c.in)
			again := slices.ContainsFunc(c.past, func(in fabric.Input) bool { // another policy under the name of one that is still going
				return slices.ContainsFunc(union(in.Policies, next.Policies), func(name string) bool {
					_, was := in.Policies[name]
					_, is := c.in.Policies[name]
					_, will := next.Policies[name]
					return was && !is && will
				})
			})
			if !again && ready(next) && !copiesAndSteers(append([]fabric.Input{c.in, next}, c.past...)...) {
				c.change(next, kind, round == 0)
			}
		}
	})
	for _, what := range slices.Sorted(maps.Keys(count)) {
		t.Logf("%s: %d frames", what, count[what])
	}
}

// copiesAndSteers tells of a chain that is used both ways, which is refused. One that ends to be used one way and begins to be used the other
// before that has come into force may drop frames for a moment.
func copiesAndSteers(inputs ...fabric.Input) bool {
	kinds := map[string]bool{}
	for _, in := range inputs {
		for _, p := range in.Policies {
			replica := p.ModeOrDefault() == api.ModeReplica
			if was, known := kinds[p.Chain]; known && was != replica {
				return true
			}
			kinds[p.Chain] = replica
		}
	}
	return false
}

// strays compares what becomes of a frame with what policies say. Copies are left out on request: those of a frame that was under way when
// its chain was edited are those of either path.
func strays(n *Network, in fabric.Input, from string, frame []byte, copies bool) (diff string, trail []string) {
	want := oracle.Predict(in, from, frame, nil)
	r, err := n.Send(from, frame)
	if err != nil {
		return err.Error(), r.Trail
	}
	got := seen(in, r, false)
	want.Policies = nil
	if !copies {
		want.Copies, got.Copies = nil, nil
	}
	return cmp.Diff(want, got, cmpopts.EquateEmpty()), r.Trail
}
