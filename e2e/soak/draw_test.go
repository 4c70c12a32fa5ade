package soak

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/router"
)

// model is what the walk wants to be there. What it draws depends on the seed and on this alone, never on what Weir answers or how long it takes:
// the same seed repeats the same steps.
type model struct {
	r        *rand.Rand
	kind     kind
	stations map[string]api.EndpointSpec
	doc      api.Document
	stopped  map[string]bool // by command; the document says nothing about it
}

// step is one of a walk.
type step struct {
	text string
	do   func(w *walk) error
}

// base is where every walk begins and to which it returns to be measured.
func (m *model) base() api.Document {
	at := func(i int) string { return m.kind.hosts[i%len(m.kind.hosts)] }
	d := api.Document{
		Endpoints: maps.Clone(m.stations),
		Functions: map[string]api.FunctionSpec{
			"f1": {Image: "wire"}, "f2": {Image: "firewall", Config: allowing(0)}, "f3": {Image: "wire", OnFail: api.OnFailBypass},
			"m1": {Image: "monitor"},
		},
		Chains:   map[string]api.ChainSpec{"c1": {Path: "f1 | f2 | tap:m1"}, "c2": {Path: "f3"}},
		Policies: map[string]api.PolicySpec{"p1": {From: "a", To: "b", Match: []string{"udp", "tcp"}, Chain: "c1"}, "p2": {From: "c", Mode: api.ModeExhaustive, Chain: "c2", Priority: 50}},
	}
	if at(0) != "" {
		for i, name := range slices.Sorted(maps.Keys(d.Functions)) {
			f := d.Functions[name]
			f.Host = at(i)
			d.Functions[name] = f
		}
	}
	return d
}

// allowing is a firewall's configuration that lets all frames of the walk pass, and sees all of them; n tells one from another.
func allowing(n int) map[string]any {
	return map[string]any{"default": "accept", "settle": false, "deny": []any{"sctp/" + strconv.Itoa(1+n)}}
}

const (
	maxFunctions = 6
	maxTaps      = 2
	maxPolicies  = 4
)

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// functionsOf are the names of functions with one port, or of those with two.
func functionsOf(d *api.Document, taps bool) (names []string) {
	for _, n := range slices.Sorted(maps.Keys(d.Functions)) {
		if (d.Functions[n].Image == "monitor") == taps {
			names = append(names, n)
		}
	}
	return names
}

func copyOf(d api.Document) api.Document {
	return api.Document{Endpoints: maps.Clone(d.Endpoints), Functions: maps.Clone(d.Functions), Chains: maps.Clone(d.Chains), Policies: maps.Clone(d.Policies)}
}

// change draws one or several changes of the document that go together.
func (m *model) change() (next api.Document, text string) {
	for {
		d, texts := copyOf(m.doc), []string{}
		for range 1 + m.r.IntN(3) {
			if t := m.edit(&d); t != "" {
				texts = append(texts, t)
			}
		}
		if len(texts) > 0 && len(router.Validate(d)) == 0 && (m.kind.file == "" || !mixed(d)) {
			return d, strings.Join(texts, "; ")
		}
	}
}

// mixed tells whether policies share a chain of which one catches frames at their source and another at their destination, as a fabric refuses in the
// status of the second one (router/fabric/steering, mixed); the overlap of their traffic is not looked at here.
func mixed(d api.Document) bool {
	type way struct {
		chain   string
		reverse bool
	}
	at := map[way][2]bool{}
	see := func(w way, from, to string) {
		places := at[w]
		if wide(from) && !wide(to) {
			places[1] = true
		} else {
			places[0] = true
		}
		at[w] = places
	}
	for _, p := range d.Policies {
		see(way{p.Chain, false}, p.From, p.To)
		if p.Symmetric == nil || *p.Symmetric {
			see(way{p.Chain, true}, p.To, p.From)
		}
	}
	for _, places := range at {
		if places[0] && places[1] {
			return true
		}
	}
	return false
}

// wide tells whether an end of a policy may be several stations.
func wide(end string) bool { return end == "" || end == "any" || strings.Contains(end, "/") }

// edit makes one change; "" where there was nothing to change.
func (m *model) edit(d *api.Document) string {
	r := m.r
	switch functions, taps := functionsOf(d, false), functionsOf(d, true); r.IntN(13) {
	case 0, 1, 2: // functions are dealt anew to the chains
		return "chains " + m.deal(d, functions, taps)
	case 3:
		for i := range maxFunctions {
			if name := fmt.Sprintf("f%d", i+1); d.Functions[name].Image == "" {
				d.Functions[name] = api.FunctionSpec{Image: "wire", Host: pick(r, m.kind.hosts...)}
				return "new function " + name + " at " + d.Functions[name].Host
			}
		}
	case 4:
		if len(functions) < 3 {
			return ""
		}
		name := pick(r, append(functions, taps...)...)
		delete(d.Functions, name)
		return "without function " + name + ", chains " + m.deal(d, without(functions, name), without(taps, name))
	case 5, 6, 7:
		name := fmt.Sprintf("p%d", 1+r.IntN(maxPolicies))
		p := m.policy(d)
		d.Policies[name] = p
		return "policy " + name + " " + text(p)
	case 8:
		if len(d.Policies) > 1 {
			name := pick(r, slices.Sorted(maps.Keys(d.Policies))...)
			delete(d.Policies, name)
			return "without policy " + name
		}
	case 9:
		name := pick(r, append(functions, taps...)...)
		return m.respec(d, name)
	case 10: // a tap more or less
		for i := range maxTaps {
			if name := fmt.Sprintf("m%d", i+1); d.Functions[name].Image == "" {
				d.Functions[name] = api.FunctionSpec{Image: "monitor", Host: pick(r, m.kind.hosts...)}
				return "new tap " + name + ", chains " + m.deal(d, functions, append(taps, name))
			}
		}
	case 11:
		name := pick(r, "a", "b", "c")
		e, ok := d.Endpoints[name]
		if !ok || e.Netns == "" {
			return ""
		}
		e.MTU = pick(r, 1400, 1450, 1500)
		if len(m.kind.hosts) == 1 {
			e.Interface = pick(r, "eth0", "eth0", "lan")
		}
		d.Endpoints[name] = e
		return "endpoint " + name + " " + text(e)
	case 12: // a station goes or comes back, with the policies that name it
		if _, there := d.Endpoints["c"]; !there {
			d.Endpoints["c"] = m.stations["c"]
			return "endpoint c is back"
		}
		delete(d.Endpoints, "c")
		maps.DeleteFunc(d.Policies, func(_ string, p api.PolicySpec) bool { return p.From == "c" || p.To == "c" })
		return "without endpoint c"
	}
	return ""
}

func without(list []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(n string) bool { return n == name })
}

// respec changes a function in place: its image, its limits, its configuration, what happens when it fails, its host.
func (m *model) respec(d *api.Document, name string) string {
	r, f := m.r, d.Functions[name]
	switch r.IntN(6) {
	case 0:
		switch f.Image {
		case "wire":
			f.Image, f.Config = "firewall", allowing(r.IntN(1000))
		case "firewall":
			f.Image, f.Config = "wire", nil
		default:
			f.Config = map[string]any{"max_flows": 1000 + r.IntN(1000)}
		}
	case 1:
		f.OnFail = pick(r, api.OnFailDrop, api.OnFailBypass)
	case 2:
		f.Memory = pick(r, "", "48M", "64M", "96M")
	case 3:
		f.CPUs = pick(r, "", "0.3", "0.5", "1")
	case 4:
		if f.Image == "firewall" {
			f.Config = allowing(r.IntN(1000))
		} else {
			f.Env = map[string]string{"WALK": strconv.Itoa(r.IntN(1000))}
		}
	case 5:
		f.Host = pick(r, m.kind.hosts...)
	}
	d.Functions[name] = f
	return "function " + name + " " + text(f)
}

// deal puts the functions into the two chains that there are, in any order; some stay outside.
func (m *model) deal(d *api.Document, functions, taps []string) string {
	r := m.r
	functions, taps = slices.Clone(functions), slices.Clone(taps)
	r.Shuffle(len(functions), func(i, j int) { functions[i], functions[j] = functions[j], functions[i] })
	cut := 1 + r.IntN(len(functions)-1)
	rest := functions[cut:]
	if len(rest) > 1 && r.IntN(2) == 0 {
		rest = rest[:1+r.IntN(len(rest)-1)]
	}
	paths := [2][]string{functions[:cut:cut], slices.Clone(rest)}
	for _, tap := range taps {
		if at := r.IntN(3); at < 2 {
			paths[at] = slices.Insert(paths[at], r.IntN(len(paths[at])+1), "tap:"+tap)
		}
	}
	d.Chains["c1"], d.Chains["c2"] = api.ChainSpec{Path: strings.Join(paths[0], " | ")}, api.ChainSpec{Path: strings.Join(paths[1], " | ")}
	return d.Chains["c1"].Path + " and " + d.Chains["c2"].Path
}

// policy draws one whose traffic the oracle can tell.
func (m *model) policy(d *api.Document) api.PolicySpec {
	r := m.r
	names := slices.Sorted(maps.Keys(d.Endpoints))
	endpoint := func() string { return pick(r, names...) }
	end := func() string {
		switch r.IntN(6) {
		case 0:
			return "any"
		case 1:
			return pick(r, "10.0.0.0/30", "10.0.0.2", "10.0.0.0/24", m.stations["b"].MAC)
		}
		return endpoint()
	}
	own := func(endpoint, other string) bool {
		return endpoint == "b" && slices.Contains([]string{"10.0.0.2", m.stations["b"].MAC}, other)
	}
	p := api.PolicySpec{Chain: pick(r, "c1", "c2"), Priority: 1 + r.IntN(1000)}
	symmetric := r.IntN(3) > 0
	p.Symmetric = &symmetric
	switch r.IntN(6) {
	case 0:
		p.Mode, p.From = api.ModeExhaustive, endpoint()
		return p
	case 1:
		p.Mode = api.ModeReplica
	}
	for p.From, p.To = end(), end(); p.From != "any" && p.From == p.To || own(p.From, p.To) || own(p.To, p.From); { // no station sends to itself
		p.From, p.To = end(), end()
	}
	if wide(p.From) && wide(p.To) {
		p.Symmetric = new(bool)
	}
	p.Match = pick(r, []string{"udp/53"}, []string{"tcp"}, []string{"icmp"}, []string{"tcp/80", "udp"}, []string{"ip"}, []string{"all"})
	return p
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // of strings and numbers
	}
	return string(b)
}

// next draws a step. Functions that were stopped are started again before the document changes: a chain that is not ready changes nothing, and
// what is in force would depend on the moment.
func (m *model) next() step {
	r := m.r
	if len(m.stopped) > 0 && r.IntN(3) == 0 {
		name := slices.Sorted(maps.Keys(m.stopped))[0]
		return step{"start " + name, m.started(name)}
	}
	all := slices.Sorted(maps.Keys(m.doc.Functions))
	switch n := r.IntN(20); {
	case n < 8 && len(m.stopped) == 0:
		d, t := m.change()
		m.doc = d
		if r.IntN(4) == 0 {
			after := time.Duration(r.IntN(600)) * time.Millisecond
			node := pick(r, m.kind.daemons...)
			return step{fmt.Sprintf("apply, %s killed after %v: %s", node, after, t), func(w *walk) error { return w.applyAndKill(d, node, after) }}
		}
		return step{"apply: " + t, func(w *walk) error { return w.apply(d) }}
	case n < 10 && len(m.stopped) == 0:
		name := pick(r, all...)
		m.stopped = map[string]bool{name: true}
		return step{"stop " + name, func(w *walk) error { return w.command("function", "stop", name) }}
	case n < 11:
		name := pick(r, all...)
		if m.stopped[name] {
			return step{"start " + name, m.started(name)}
		}
		return step{"restart " + name, func(w *walk) error { return w.command("function", "restart", name) }}
	case n < 14:
		name := pick(r, all...)
		if m.stopped[name] {
			return step{"pause", pause(100 * time.Millisecond)}
		}
		return step{"kill function " + name, func(w *walk) error { return w.killFunction(name) }}
	case n < 16:
		node := pick(r, m.kind.daemons...)
		off := time.Duration(r.IntN(1500)) * time.Millisecond
		return step{fmt.Sprintf("kill %s, start it again after %v", node, off), func(w *walk) error { return w.killDaemon(node, off) }}
	case n < 18:
		flap := pick(r, m.kind.flaps...)
		off := time.Duration(r.IntN(800)) * time.Millisecond
		return step{fmt.Sprintf("%s for %v", flap, off), func(w *walk) error { return w.flap(flap, off) }}
	case n < 19 && m.kind.kept:
		return step{"weir down --keep-state, weir up", func(w *walk) error { return w.keepState() }}
	}
	off := time.Duration(r.IntN(1200)) * time.Millisecond
	return step{fmt.Sprintf("pause %v", off), pause(off)}
}

func (m *model) started(name string) func(*walk) error {
	m.stopped = maps.Clone(m.stopped)
	delete(m.stopped, name)
	return func(w *walk) error { return w.command("function", "start", name) }
}

func pause(d time.Duration) func(*walk) error {
	return func(w *walk) error {
		select {
		case <-time.After(d):
		case <-w.ctx.Done():
		}
		return nil
	}
}
