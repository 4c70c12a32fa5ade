package rollout

import (
	cmps "cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router/fabric"
)

const testDrain = 500 * time.Millisecond

// hopEntry is an entry of a policy: hop h at in_port p, leading out of port out.
func hopEntry(policy string, hop uint8, in, out flow.Port) fabric.Entry {
	return fabric.Entry{
		Cookie: uint64(hop) + 16*uint64(in), Priority: 30000, Match: flow.Match{InPort: in}, Outs: []fabric.Out{{Port: out}}, Policy: policy, Hop: hop,
	}
}

func floodEntry(in flow.Port, outs ...flow.Port) fabric.Entry {
	e := fabric.Entry{Cookie: 1<<40 | uint64(in), Table: 1, Priority: 1, Match: flow.Match{InPort: in}}
	for _, o := range outs {
		e.Outs = append(e.Outs, fabric.Out{Port: o})
	}
	return e
}

// tb is what helpers need of a test, rapid's included.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// world is a fleet under test, with switches that do what they are told.
type world struct {
	t   tb
	f   Fleet
	now time.Time
}

func newWorld(t tb, switches ...fabric.SwitchID) *world {
	w := &world{t: t, now: time.Unix(1000, 0), f: Fleet{
		Nodes: map[fabric.SwitchID]*Node{}, Peers: map[string]*Peer{}, Drain: testDrain,
	}}
	for _, id := range switches {
		w.f.Nodes[id] = NewNode()
		w.f.Nodes[id].Reachable = true
	}
	return w
}

func (w *world) host(name string) *Peer {
	p := NewPeer(name)
	p.Present = true
	w.f.Peers[name] = p
	return p
}

// want sets the whole target.
func (w *world) want(entries map[fabric.SwitchID][]fabric.Entry, hosts map[string][]api.HostRule) {
	w.t.Helper()
	have, now := map[fabric.SwitchID][]*fabric.Entry{}, map[fabric.SwitchID][]*fabric.Entry{}
	for id, n := range w.f.Nodes {
		have[id] = n.Source
		slices.SortFunc(entries[id], func(a, b fabric.Entry) int {
			return cmps.Or(cmps.Compare(a.Table, b.Table), cmps.Compare(b.Priority, a.Priority), cmps.Compare(a.Cookie, b.Cookie))
		})
	}
	for id, list := range entries {
		for i := range list {
			now[id] = append(now[id], &list[i])
		}
	}
	t := Translate(fabric.Output{Entries: now}, have, nil, false)
	for _, err := range t.Errors {
		w.t.Fatal(err)
	}
	paths := map[string]*fabric.Path{}
	for id, d := range t.Deltas {
		w.f.Nodes[id].Want(d)
	}
	for _, n := range w.f.Nodes {
		for _, r := range n.Target {
			if r.Policy != "" {
				paths[r.Policy] = &fabric.Path{}
			}
		}
	}
	for name, p := range w.f.Peers {
		p.Target, p.Settled = map[string]api.HostRule{}, false
		for _, r := range hosts[name] {
			p.Target[r.Cookie] = r
			if r.Policy != "" {
				if paths[r.Policy] == nil {
					paths[r.Policy] = &fabric.Path{}
				}
				paths[r.Policy].Switches = append(paths[r.Policy].Switches, fabric.HostID(name))
			}
		}
	}
	w.f.Paths = fabric.NewPaths(paths)
}

// do has a switch carry out a batch.
func (w *world) do(id fabric.SwitchID, b Batch) {
	n := w.f.Nodes[id]
	for _, h := range b.Remove {
		n.Removed(h.Key)
	}
	for _, r := range b.Add {
		n.Confirm(r, Cookie(0, r.Identity))
	}
}

// install has a host carry out its assignment.
func (w *world) install(name string, spec api.AssignmentSpec) {
	p := w.f.Peers[name]
	p.Written, p.Wrote, p.Settled = spec, true, false
	p.Acked = map[string]api.HostRule{}
	for _, r := range spec.Rules {
		p.Acked[r.Cookie] = r
	}
}

func (w *world) plan() Steps { return Plan(&w.f, w.now) }

// all carries out everything until nothing is left, and tells in which order, one line a step.
func (w *world) all() []string {
	w.t.Helper()
	var log []string
	for range 100 {
		s := w.plan()
		if len(s.Batches)+len(s.Specs) == 0 {
			if s.Again.IsZero() {
				return log
			}
			log = append(log, fmt.Sprintf("wait %v", s.Again.Sub(w.now)))
			w.now = s.Again
			continue
		}
		for _, id := range slices.Sorted(maps.Keys(s.Batches)) {
			b := s.Batches[id]
			for _, r := range b.Add {
				log = append(log, fmt.Sprintf("%s add %s hop %d: %s -> %s", id, r.Policy, r.Hop, r.Match, r.Content))
			}
			for _, h := range b.Remove {
				log = append(log, fmt.Sprintf("%s remove %s hop %d: %s", id, h.Policy, h.Hop, h.Match))
			}
			w.do(id, b)
		}
		for _, name := range slices.Sorted(maps.Keys(s.Specs)) {
			log = append(log, fmt.Sprintf("%s: %d rules", name, len(s.Specs[name].Rules)))
			w.install(name, s.Specs[name])
		}
	}
	w.t.Fatalf("no end:\n%v", log)
	return nil
}

func TestANewPolicyBeginsAtTheFarEnd(t *testing.T) {
	w := newWorld(t, "s1", "s2")
	w.host("h")
	w.want(map[fabric.SwitchID][]fabric.Entry{
		"s1": {hopEntry("p", 0, 2, 1)},
		"s2": {hopEntry("p", 40, 1, 3)},
	}, map[string][]api.HostRule{"h": {{Cookie: "1", Stage: "ingress", Match: api.HostMatch{InPort: "uplink/eth0"}, Policy: "p"}}})
	if d := cmp.Diff([]string{
		"h: 1 rules",
		"s2 add p hop 40: in_port=1 -> output:3",
		"s1 add p hop 0: in_port=2 -> output:1",
	}, w.all()); d != "" {
		t.Error(d)
	}
}

func TestAnotherWayIsMadeBeforeTheOldOneIsRemoved(t *testing.T) {
	w := newWorld(t, "s1", "s2", "s3")
	w.want(map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("p", 0, 2, 1)}, "s2": {hopEntry("p", 1, 1, 3)}}, nil)
	w.all()
	w.want(map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("p", 0, 2, 5)}, "s3": {hopEntry("p", 1, 1, 3)}}, nil)
	if d := cmp.Diff([]string{
		"s3 add p hop 1: in_port=1 -> output:3",
		"s1 add p hop 0: in_port=2 -> output:5",
		"wait 500ms",
		"s2 remove p hop 1: in_port=1",
	}, w.all()); d != "" {
		t.Error(d)
	}
}

func TestADeletedPolicyStopsCatchingFirst(t *testing.T) {
	w := newWorld(t, "s1", "s2")
	h := w.host("h")
	rule := api.HostRule{Cookie: "1", Stage: "ingress", Match: api.HostMatch{InPort: "uplink/eth0"}, Policy: "p"}
	w.want(map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("p", 0, 2, 1)}, "s2": {hopEntry("p", 40, 1, 3)}}, map[string][]api.HostRule{"h": {rule}})
	w.all()
	w.want(nil, nil)
	if d := cmp.Diff([]string{
		"s1 remove p hop 0: in_port=2",
		"wait 500ms",
		"s2 remove p hop 40: in_port=1",
		"h: 0 rules",
	}, w.all()); d != "" {
		t.Error(d)
	}
	if len(h.Written.Rules) != 0 {
		t.Errorf("the host still has %v", h.Written.Rules)
	}
}

func TestWhatWaitsForADeadSwitchWaitsAlone(t *testing.T) {
	w := newWorld(t, "s1", "s2", "dead")
	w.f.Nodes["dead"].Reachable = false
	w.want(map[fabric.SwitchID][]fabric.Entry{
		"s1":   {hopEntry("p", 0, 2, 1), hopEntry("q", 0, 3, 1)},
		"s2":   {hopEntry("q", 1, 1, 3)},
		"dead": {hopEntry("p", 1, 1, 3)},
	}, nil)
	if d := cmp.Diff([]string{
		"s2 add q hop 1: in_port=1 -> output:3",
		"s1 add q hop 0: in_port=3 -> output:1",
	}, w.all()); d != "" {
		t.Error(d)
	}
	if p := w.plan().Progress["p"]; p == nil || p.WaitsFor != "dead" {
		t.Errorf("p: %+v", p)
	}
	w.f.Nodes["dead"].Reachable = true
	if d := cmp.Diff([]string{
		"dead add p hop 1: in_port=1 -> output:3",
		"s1 add p hop 0: in_port=2 -> output:1",
	}, w.all()); d != "" {
		t.Error(d)
	}
}

func TestARefusedEntryHoldsUpItsPolicyOnly(t *testing.T) {
	w := newWorld(t, "s1", "s2")
	w.want(map[fabric.SwitchID][]fabric.Entry{
		"s1": {hopEntry("p", 0, 2, 1), hopEntry("q", 0, 3, 1)},
		"s2": {hopEntry("p", 1, 1, 3)},
	}, nil)
	for k, r := range w.f.Nodes["s2"].Target {
		w.f.Nodes["s2"].Refused[k] = refusal{Content: r.Content, Until: w.now.Add(time.Second), Err: fmt.Errorf("bad port")}
	}
	s := w.plan()
	if got := len(s.Batches["s1"].Add); got != 1 || s.Batches["s1"].Add[0].Policy != "q" || len(s.Batches["s2"].Add) != 0 {
		t.Errorf("steps: %+v", s.Batches)
	}
	if s.Progress["p"].Refused == nil || !s.Again.Equal(w.now.Add(time.Second)) {
		t.Errorf("p: %+v, again %v", s.Progress["p"], s.Again)
	}
}

func TestFoundEntriesThatAreRightAreLeftAlone(t *testing.T) {
	w := newWorld(t, "s1")
	w.want(map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("p", 0, 2, 1), floodEntry(1, 2, 3)}}, nil)
	n := w.f.Nodes["s1"]
	for k, r := range n.Target {
		n.Held[k] = &Held{Rule: &Rule{Key: k, Identity: r.Identity, Content: r.Content, Match: r.Match, Do: r.Do}, cookie: Cookie(7, r.Identity)}
	}
	stale := &Rule{Key: Key{0, 5, "stale"}, Identity: 9}
	n.Held[stale.Key] = &Held{Rule: stale, cookie: Cookie(7, 9)}
	n.compare()
	if d := cmp.Diff([]string{"wait 500ms", "s1 remove  hop 0: "}, w.all()); d != "" {
		t.Error(d)
	}
}

func TestALocalPolicyStaysWithItsHostUntilTheRouterIsReady(t *testing.T) {
	w := newWorld(t, "s1", "s2")
	h := w.host("h")
	w.want(map[fabric.SwitchID][]fabric.Entry{"s2": {hopEntry("p", 1, 1, 3)}, "s1": {hopEntry("p", 0, 2, 1)}}, nil)
	w.f.Follow(&fabric.Input{}, map[string]Version{"new": {decision: 4}, "p": {decision: 5, former: "h"}, "other": {decision: 6}})
	s := w.plan()
	if d := cmp.Diff(api.AssignmentSpec{Known: 6, Taken: 4}, s.Specs["h"]); d != "" {
		t.Errorf("at first: %s", d)
	}
	target := w.f.Nodes["s2"].Target
	w.f.Nodes["s2"].Want(Delta{Whole: true})
	if s = w.plan(); s.Specs["h"].Taken != 6 {
		t.Errorf("ready: %+v", s.Specs["h"])
	}
	w.f.Nodes["s2"].Want(Delta{Whole: true, Add: slices.Collect(maps.Values(target))})
	if s = w.plan(); s.Specs["h"].Taken != 4 {
		t.Errorf("changed before that was written: %+v", s.Specs["h"])
	}
	w.all()
	if d := cmp.Diff(api.AssignmentSpec{Known: 6, Taken: 6}, h.Written); d != "" {
		t.Errorf("at last: %s", d)
	}
	if !h.Settled {
		t.Error("there is more to do")
	}
}

// Where a new policy's frames are caught at hosts, they are dropped until its way is ready.
func TestANewPolicyIsClosedAtHostsUntilItsWayIsReady(t *testing.T) {
	w := newWorld(t, "s1")
	h := w.host("h")
	w.f.Fresh = func(policy, host string) bool { return policy == "p" && host == "h" }
	rule := func(cookie, policy string) api.HostRule {
		return api.HostRule{Cookie: cookie, Stage: "ingress", Match: api.HostMatch{InPort: "endpoint/a"}, Action: api.HostAction{Op: "output", Port: "uplink/eth1"}, Policy: policy}
	}
	w.want(map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("p", 1, 1, 3), hopEntry("q", 2, 2, 3)}}, map[string][]api.HostRule{"h": {rule("1", "p"), rule("2", "q")}})
	s := w.plan()
	if got := s.Specs["h"].Rules; len(got) != 1 || got[0].Cookie != "1" || got[0].Action.Op != "drop" {
		t.Errorf("at first: %v", got)
	}
	if p := s.Progress["p"]; p.Open != 1 || p.Catching != 1 {
		t.Errorf("at first: %+v", p)
	}
	w.install("h", s.Specs["h"])
	if p := w.plan().Progress["p"]; p.Open != 0 || p.Catching != 1 {
		t.Errorf("closed: %+v", p)
	}
	w.all()
	if d := cmp.Diff([]api.HostRule{rule("1", "p"), rule("2", "q")}, h.Written.Rules); d != "" {
		t.Errorf("at last: %s", d)
	}
}

// Only hosts follow a decision that would steer or close the policy by themselves, and each is told once.
func TestHostsFollowDecisionsThatConcernThem(t *testing.T) {
	at := func(host string) fabric.Endpoint { return fabric.Endpoint{At: fabric.At{Switch: fabric.HostID(host)}} }
	in := fabric.Input{
		Endpoints: map[string]fabric.Endpoint{"a": at("h1"), "b": at("h1"), "c": at("h2"), "s": {At: fabric.At{Switch: "s1"}}, "x": {}},
		Policies: map[string]api.PolicySpec{
			"here": {From: "a", To: "b"}, "one": {From: "any", To: "c"}, "two": {From: "a", To: "c"}, "station": {From: "s", To: "a"}, "nowhere": {From: "x", To: "any"},
			"any": {From: "10.0.0.0/8", To: "any"}, "taken": {From: "a", To: "c"},
		},
	}
	for _, x := range []struct {
		policy   string
		v        Version
		h1, h2   int64
		coming   int // at h2
		anything bool
	}{
		{"here", Version{decision: 5}, 5, 0, 0, true},
		{"one", Version{decision: 5}, 0, 5, 0, true},
		{"two", Version{decision: 5}, 0, 0, 0, false},
		{"station", Version{decision: 5}, 0, 0, 0, false},
		{"nowhere", Version{decision: 5}, 0, 0, 0, false},
		{"any", Version{decision: 5}, 5, 5, 0, true},
		{"taken", Version{decision: 5, former: "h2"}, 0, 5, 1, true},
		{"given", Version{decision: 5, host: "h2", former: ""}, 0, 5, 0, true},
		{"taken", Version{decision: 2, former: "h2"}, 0, 2, 0, true},
	} {
		w := newWorld(t)
		h1, h2 := w.host("h1"), w.host("h2")
		h2.Written.Taken = 3
		for range 2 {
			h1.Settled, h2.Settled = true, true
			w.f.Follow(&in, map[string]Version{x.policy: x.v})
			if h1.known != x.h1 || h2.known != x.h2 || len(h2.coming) != x.coming || h1.Settled && h2.Settled == x.anything {
				t.Errorf("%s: h1 follows %d, h2 %d, %d are coming, settled %t %t", x.policy, h1.known, h2.known, len(h2.coming), h1.Settled, h2.Settled)
			}
			x.anything = false
		}
	}
	w := newWorld(t) // a host that comes later, and an endpoint that moves
	w.host("h1")
	versions := map[string]Version{"any": {decision: 4}, "two": {decision: 5}}
	w.f.Follow(&in, versions)
	h2 := w.host("h2")
	w.f.Follow(&in, versions)
	if h2.known != 4 {
		t.Errorf("a host that comes later follows %d", h2.known)
	}
	in.Endpoints = map[string]fabric.Endpoint{"a": at("h2"), "c": at("h2")}
	w.f.Follow(&in, versions)
	if h2.known != 5 {
		t.Errorf("the host to which an endpoint has moved follows %d", h2.known)
	}
	h3 := w.host("h3")
	in.Endpoints = map[string]fabric.Endpoint{"a": at("h2"), "c": at("h2"), "d": at("h3")}
	w.f.Follow(&in, versions)
	in.Policies["two"] = api.PolicySpec{From: "d", To: "any"}
	if w.f.Follow(&in, map[string]Version{"any": {decision: 4}, "two": {decision: 5, Generation: 2}}); h3.known != 5 {
		t.Errorf("the host of whose endpoint an edited policy speaks now follows %d", h3.known)
	}
}

// TestEmptySwitchesSteerBeforeTheyForward: switches lose all their entries, any of them. None forwards as long as it lacks one that steers, in
// whatever order they and a host act.
func TestEmptySwitchesSteerBeforeTheyForward(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []fabric.SwitchID{"s1", "s2", "s3"}
		w := newWorld(t, ids...)
		h := w.host("h1")
		entries := map[fabric.SwitchID][]fabric.Entry{
			"s1": {hopEntry("p", 0, 2, 1), hopEntry("q", 5, 7, 3), floodEntry(0, 1, 2)},
			"s2": {hopEntry("p", 1, 1, 3), hopEntry("q", 0, 9, 1), floodEntry(0, 1, 3)},
			"s3": {hopEntry("p", 2, 1, 4), floodEntry(0, 1, 4)},
		}
		w.want(entries, map[string][]api.HostRule{"h1": {{Cookie: "a", Policy: "p", Match: api.HostMatch{InPort: "uplink/eth1"}}}})
		w.all()
		empty := map[fabric.SwitchID]bool{}
		for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom(ids), 1, 3, rapid.ID[fabric.SwitchID]).Draw(t, "empty") {
			empty[id] = true
			w.f.Nodes[id].found(map[Key]*Held{})
			w.f.Nodes[id].emptied = w.now
		}
		if rapid.Bool().Draw(t, "the host as well") {
			h.Acked, h.Settled = map[string]api.HostRule{}, false
		}
		for range 40 {
			s := w.plan()
			var names []string
			for id := range s.Batches {
				names = append(names, string(id))
			}
			for name := range s.Specs {
				names = append(names, name)
			}
			if len(names) == 0 {
				if !h.Settled { // the host takes its rules at last
					w.install("h1", h.Written)
					continue
				}
				break
			}
			slices.Sort(names)
			if next := rapid.SampledFrom(names).Draw(t, "next"); next == "h1" {
				w.install(next, s.Specs[next])
			} else {
				w.do(fabric.SwitchID(next), s.Batches[fabric.SwitchID(next)])
			}
			for id := range empty {
				n := w.f.Nodes[id]
				forwards, lacks := false, 0
				for k, r := range n.Target {
					switch {
					case r.Policy == "":
						forwards = forwards || n.Held[k] != nil
					case n.Held[k] == nil:
						lacks++
					}
				}
				if forwards && lacks > 0 {
					t.Fatalf("%s forwards, and lacks %d entries that steer", id, lacks)
				}
			}
		}
		for id, n := range w.f.Nodes {
			if len(n.Held) != len(n.Target) {
				t.Fatalf("%s has %d entries, want %d", id, len(n.Held), len(n.Target))
			}
		}
	})
}

// A policy that does not come into force does not keep an empty switch from forwarding for ever.
func TestEmptySwitchWaitsForPoliciesOnlySoLong(t *testing.T) {
	w := newWorld(t, "s1", "s2")
	w.want(map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("p", 0, 2, 1), floodEntry(0, 1, 2)}, "s2": {hopEntry("p", 1, 1, 3)}}, nil)
	w.f.Nodes["s1"].emptied, w.f.Nodes["s2"].Reachable = w.now, false
	if s := w.plan(); len(s.Batches) > 0 || !s.Again.Equal(w.now.Add(shutMost)) {
		t.Errorf("at first: %v, again %v", s.Batches, s.Again)
	}
	w.now = w.now.Add(shutMost)
	if b := w.plan().Batches["s1"]; len(b.Add) != 1 || b.Add[0].Policy != "" {
		t.Errorf("then: %v", b.Add)
	}
}

// TestFloodingNeverLoops: from one spanning tree to another, whatever the order in which switches act, and although one is unreachable
// for a while, no state in between has a cycle.
func TestFloodingNeverLoops(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 6).Draw(t, "switches")
		var ids []fabric.SwitchID
		for i := range n {
			ids = append(ids, fabric.SwitchID(fmt.Sprint("s", i)))
		}
		w := newWorld(t, ids...)
		// port j+1 of switch i leads to switch j; port 100 is an edge port
		trees := func(label string) map[fabric.SwitchID][]fabric.Entry {
			near := make([][]flow.Port, n)
			order := rapid.Permutation(ids).Draw(t, label)
			at := map[fabric.SwitchID]int{}
			for i, id := range ids {
				at[id] = i
			}
			for k := 1; k < n; k++ {
				a, b := at[order[k]], at[order[rapid.IntRange(0, k-1).Draw(t, label+" parent")]]
				near[a], near[b] = append(near[a], flow.Port(b+1)), append(near[b], flow.Port(a+1))
			}
			out := map[fabric.SwitchID][]fabric.Entry{}
			for i, id := range ids {
				ports := append([]flow.Port{100}, near[i]...)
				for _, in := range ports {
					out[id] = append(out[id], floodEntry(in, slices.DeleteFunc(slices.Clone(ports), func(p flow.Port) bool { return p == in })...))
				}
			}
			return out
		}
		check := func() {
			for start := range ids {
				type visit struct{ sw, in int }
				seen := map[visit]bool{}
				queue := []visit{{start, 100}}
				for steps := 0; len(queue) > 0; steps++ {
					v := queue[0]
					queue = queue[1:]
					if seen[v] {
						t.Fatalf("a frame from s%d comes to s%d by port %d again", start, v.sw, v.in)
					}
					seen[v] = true
					for _, h := range w.f.Nodes[ids[v.sw]].Held {
						if p, _ := h.Match.InPort(); int(p) != v.in {
							continue
						}
						for _, o := range h.flood {
							if o != 100 {
								queue = append(queue, visit{int(o) - 1, v.sw + 1})
							}
						}
					}
				}
			}
		}
		w.want(trees("first"), nil)
		w.all()
		check()
		for round := range rapid.IntRange(1, 3).Draw(t, "changes") {
			w.want(trees(fmt.Sprint("tree ", round)), nil)
			for range rapid.IntRange(0, 12).Draw(t, "steps") {
				s := w.plan()
				if len(s.Batches) == 0 {
					break
				}
				id := rapid.SampledFrom(slices.Sorted(maps.Keys(s.Batches))).Draw(t, "next")
				w.do(id, s.Batches[id])
				check()
			}
		}
		w.all()
		check()
		for id, x := range w.f.Nodes {
			if len(x.Held) != len(x.Target) {
				t.Fatalf("%s has %d entries, want %d", id, len(x.Held), len(x.Target))
			}
			for k, r := range x.Target {
				if x.Held[k] == nil || x.Held[k].Content != r.Content {
					t.Fatalf("%s lacks %v", id, r.Match)
				}
			}
		}
	})
}

// TestATreeIsLeftBeforeAnotherIsEntered: a-b, c-d, b-d becomes a-b, c-d, a-c. If a and c acted first, a frame would go round a-b-d-c.
func TestATreeIsLeftBeforeAnotherIsEntered(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d")
	const a, b, c, d, edge = 1, 2, 3, 4, 100
	both := func(p, q flow.Port) []fabric.Entry {
		return []fabric.Entry{floodEntry(p, q, edge), floodEntry(q, p, edge), floodEntry(edge, p, q)}
	}
	one := func(p flow.Port) []fabric.Entry { return []fabric.Entry{floodEntry(p, edge), floodEntry(edge, p)} }
	w.want(map[fabric.SwitchID][]fabric.Entry{"a": one(b), "b": both(a, d), "c": one(d), "d": both(c, b)}, nil)
	w.all()
	w.want(map[fabric.SwitchID][]fabric.Entry{"a": both(b, c), "b": one(a), "c": both(d, a), "d": one(c)}, nil)
	s := w.plan()
	for _, id := range []fabric.SwitchID{"a", "c"} {
		for _, r := range s.Batches[id].Add {
			if slices.Contains(r.flood, c) && id == "a" || slices.Contains(r.flood, a) && id == "c" {
				t.Errorf("%s may flood to the new link at once: %s -> %s", id, r.Match, r.Content)
			}
		}
	}
	for _, id := range []fabric.SwitchID{"b", "d"} {
		w.do(id, s.Batches[id])
	}
	w.all()
	if got := len(w.f.Nodes["a"].Held); got != 3 {
		t.Errorf("a has %d entries at last, want 3", got)
	}
}

// TestNoFrameLeavesTheWay: a policy is moved from one way to another, in random order of answers, which come later than what they tell of,
// and of changes; a frame that is caught at any moment always reaches the end of a way.
func TestNoFrameLeavesTheWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []fabric.SwitchID{"a", "b", "c", "d", "e"}
		index := map[fabric.SwitchID]flow.Port{}
		for i, id := range ids {
			index[id] = flow.Port(i + 1)
		}
		w := newWorld(t, append(slices.Clone(ids), "end")...)
		index["end"] = 99
		draw := func(label string) map[fabric.SwitchID][]fabric.Entry {
			way := rapid.Permutation(ids[1:]).Draw(t, label)[:rapid.IntRange(0, 4).Draw(t, label+" length")]
			walk := append([]fabric.SwitchID{"a"}, way...)
			walk = append(walk, "end")
			out := map[fabric.SwitchID][]fabric.Entry{}
			in := flow.Port(50)
			for i, id := range walk[:len(walk)-1] {
				out[id] = append(out[id], hopEntry("p", uint8(i), in, index[walk[i+1]]))
				in = index[id]
			}
			return out
		}
		way := map[fabric.SwitchID]Batch{} // told, not yet answered
		force := map[fabric.SwitchID]map[Key]*Rule{}
		act := func(id fabric.SwitchID) { // before it answers
			if force[id] == nil {
				force[id] = map[Key]*Rule{}
			}
			for _, h := range way[id].Remove {
				delete(force[id], h.Key)
			}
			for _, r := range way[id].Add {
				force[id][r.Key] = r
			}
		}
		answer := func(id fabric.SwitchID) {
			n := w.f.Nodes[id]
			n.Busy = false
			n.Heard()
			w.do(id, way[id])
			delete(way, id)
		}
		check := func() {
			at, in := fabric.SwitchID("a"), openflow.Port(50)
			for hops := 0; at != "end"; hops++ {
				var next openflow.Port
				rules := force[at]
				if rules == nil { // all has been answered
					rules = map[Key]*Rule{}
					for k, h := range w.f.Nodes[at].Held {
						rules[k] = h.Rule
					}
				}
				for _, r := range rules {
					if p, _ := r.Match.InPort(); p == in {
						next = r.Do[0].(openflow.ApplyActions)[0].(openflow.Output).Port
					}
				}
				if hops == 0 && next == 0 {
					return // not in force yet
				}
				if next == 0 || hops > 2*len(ids) { // first an old way's hops, then a new one's
					t.Fatalf("a frame is lost at %s, port %d, after %d hops", at, in, hops)
				}
				in = openflow.Port(index[at])
				for id, n := range index {
					if openflow.Port(n) == next {
						at = id
					}
				}
			}
		}
		for round := range rapid.IntRange(1, 5).Draw(t, "changes") {
			w.want(draw(fmt.Sprint("way ", round)), nil)
			for range rapid.IntRange(0, 15).Draw(t, "steps") {
				for id, b := range w.plan().Batches {
					way[id] = b
					w.f.Nodes[id].Busy = true
					w.f.Nodes[id].Tell(b)
				}
				if len(way) == 0 {
					w.now = w.now.Add(100 * time.Millisecond)
					continue
				}
				id := rapid.SampledFrom(slices.Sorted(maps.Keys(way))).Draw(t, "next")
				if act(id); rapid.Bool().Draw(t, "answers") {
					answer(id)
				}
				check()
			}
		}
		for _, id := range slices.Sorted(maps.Keys(way)) {
			act(id)
			answer(id)
		}
		for id := range w.f.Nodes {
			force[id] = nil
		}
		w.all()
		check()
	})
}
