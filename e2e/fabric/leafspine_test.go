package fabric

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
	"weir.dev/weir/router"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/model"
	"weir.dev/weir/router/fabric/oracle"
	"weir.dev/weir/router/fabric/steering"
)

// The functions of all batches stay; only policies change.
var leafSpineDocument = api.Document{
	Functions: map[string]api.FunctionSpec{
		"w1": {Image: "wire", Host: "h1"}, "w2": {Image: "wire", Host: "h3"}, "w3": {Image: "wire", Host: "h5"}, "w4": {Image: "wire", Host: "h7"},
		"w5": {Image: "wire", Host: "h1"}, "w6": {Image: "wire", Host: "h5"}, "w7": {Image: "wire", Host: "h3"}, "w8": {Image: "wire", Host: "h1"},
		"w9": {Image: "wire", Host: "h7"}, "w10": {Image: "wire", Host: "h7"},
		"m1": {Image: "monitor", Host: "h3"}, "m2": {Image: "monitor", Host: "h7"}, "m3": {Image: "monitor", Host: "h5"},
	},
	Chains: map[string]api.ChainSpec{
		"one": {Path: "w1"}, "two": {Path: "w2 | w3"}, "three": {Path: "w4 | tap:m1 | w5"}, "four": {Path: "w6 | w7 | tap:m2 | w8"},
		"near": {Path: "w9 | w10"}, "look": {Path: "tap:m3"},
	},
}

const (
	batches     = 10
	inBatch     = 10
	settleQuiet = 150 * time.Millisecond // a copy too many would follow the last frame at once
	lost        = 5 * time.Second        // without any news, what is missing will not come
)

var leafSpineStations = []string{"h2", "h4", "h6", "h8", "v1", "v3", "v5", "v7"}

// A hundred random policies, ten at a time, and every pair of stations: each frame meets what the rules in memory predict, and nothing else.
func TestLeafSpineAgreesWithThePrediction(t *testing.T) {
	t.Parallel()
	b := newBed(t, "leaf-spine.yaml", nil)
	doc := leafSpineDocument
	doc.Endpoints = map[string]api.EndpointSpec{}
	for i, s := range leafSpineStations {
		e := api.EndpointSpec{Address: fmt.Sprintf("10.0.0.%s/24", s[1:])}
		if i >= 4 {
			e.Host, e.Netns, e.Interface = "h"+s[1:], b.netns(s), "eth0"
		}
		doc.Endpoints[s] = e
	}
	b.document(doc)
	l := &leafSpine{bed: b, base: doc, stations: map[string]rig.Station{}, places: map[string]fabric.At{}}
	l.look()
	for _, from := range leafSpineStations {
		for _, to := range leafSpineStations {
			if from != to {
				b.reach(from, l.stations[to].Addr.String())
			}
		}
	}
	l.listenEverywhere()
	l.round("no policy", doc)
	seed := uint64(time.Now().UnixNano())
	if again, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seed = again
	}
	r := rand.New(rand.NewPCG(seed, 1))
	t.Logf("SEED=%d draws these policies again", seed)
	policies := 0
	for i := range batches {
		batch := l.draw(r, i)
		policies += len(batch.Policies)
		begin := time.Now()
		b.document(batch)
		took := time.Since(begin)
		l.round(fmt.Sprintf("batch %d", i), batch)
		t.Logf("batch %d: %d policies in force after %s; %d frames so far; so far %d policies need a tag", i, len(batch.Policies), took.Round(time.Millisecond), l.frames, l.tagged)
		if t.Failed() {
			text, _ := json.Marshal(batch.Policies)
			t.Fatalf("policies: %s", text)
		}
	}
	if policies < batches*inBatch || l.tagged == 0 || l.tagsSeen() == 0 {
		t.Errorf("%d policies, %d of them need a tag, %d tagged frames seen; want %d, and some", policies, l.tagged, l.tagsSeen(), batches*inBatch)
	}
}

// document applies one, without what it does not name.
func (b *bed) document(d api.Document) {
	b.t.Helper()
	text, err := json.Marshal(d)
	if err != nil {
		b.t.Fatal(err)
	}
	b.apply(string(text), "--prune")
}

// leafSpine is what the rounds have in common.
type leafSpine struct {
	*bed
	base     api.Document
	topology fabric.Topology
	stations map[string]rig.Station
	places   map[string]fabric.At
	at       map[string]*rig.Capture // by place
	cables   []*rig.Capture          // between switches
	frames   int
	tagged   int
}

// look finds what the prediction starts from: the testbed's cables, and the addresses that stations have.
func (l *leafSpine) look() {
	l.t.Helper()
	l.topology.Switches = map[fabric.SwitchID]fabric.Switch{}
	ids := map[string]fabric.SwitchID{}
	status := l.status()
	for _, n := range status.Nodes {
		switch n.Kind {
		case "switch":
			ids[n.Name] = fabric.SwitchID("of:" + n.DatapathID)
			l.topology.Switches[ids[n.Name]] = fabric.Switch{Name: n.Name, Tables: make([]uint32, 254), Fragments: true}
		case "agent":
			ids[n.Name] = fabric.HostID(n.Name)
			l.topology.Switches[ids[n.Name]] = fabric.Switch{Name: n.Name, Host: true, Ports: []fabric.Port{{Name: "uplink/eth1"}}}
		}
	}
	end := func(text string) fabric.At {
		name, number, _ := strings.Cut(text, ":")
		n, _ := strconv.Atoi(number)
		p := fabric.Port{Number: flow.Port(n)}
		if n == 0 {
			p.Name = "uplink/eth1"
		}
		return fabric.At{Switch: ids[name], Port: p}
	}
	for _, c := range status.Links {
		a, b := end(c.A), end(c.B)
		for _, e := range []fabric.At{a, b} {
			if s, ok := l.topology.Switches[e.Switch]; ok && !s.Host {
				s.Ports = append(s.Ports, e.Port)
				l.topology.Switches[e.Switch] = s
			}
		}
		if b.Switch == "" {
			l.places[c.B] = a
		} else {
			l.topology.Links = append(l.topology.Links, fabric.Link{A: a, B: b})
		}
	}
	for i, s := range leafSpineStations {
		if i < 4 {
			l.stations[s] = l.station(s)
			continue
		}
		l.stations[s] = l.taken(s, "10.0.0."+s[1:])
		l.places[s] = fabric.At{Switch: ids["h"+s[1:]], Port: fabric.Port{Name: "endpoint/" + s}}
	}
}

// input of the compiler, and of the oracle, for a document.
func (l *leafSpine) input(d api.Document) fabric.Input {
	in := fabric.Input{Topology: l.topology, Endpoints: map[string]fabric.Endpoint{}, Functions: map[string]fabric.Function{}, Chains: d.Chains, Policies: d.Policies}
	in.Stations = nil
	for name, s := range l.stations {
		mac := flow.MAC(s.MAC)
		in.Endpoints[name] = fabric.Endpoint{At: l.places[name], MACs: []flow.MAC{mac}, Prefixes: []netip.Prefix{netip.PrefixFrom(s.Addr, 32)}}
		in.Stations = append(in.Stations, fabric.Station{MAC: mac, IPs: []netip.Addr{s.Addr}, At: l.places[name], Endpoint: name})
	}
	for name, f := range d.Functions {
		in.Functions[name] = fabric.Function{Host: fabric.HostID(f.Host), Tap: f.Image == "monitor", Ready: true}
	}
	return in
}

// draw makes a batch of policies that the manager and the compiler take.
func (l *leafSpine) draw(r *rand.Rand, batch int) api.Document {
	l.t.Helper()
	d := l.base
	d.Policies = map[string]api.PolicySpec{}
	for tries := 0; len(d.Policies) < inBatch; tries++ {
		if tries > 1000 {
			l.t.Fatalf("only %d policies of 1000 are taken", len(d.Policies))
		}
		name := fmt.Sprintf("p%d-%d", batch, len(d.Policies))
		p := l.policy(r)
		for _, o := range d.Policies { // of two that are as important as each other, and are caught at the same place, either may win
			if o.Priority == p.Priority {
				p.Priority = 0
			}
		}
		if p.Priority == 0 {
			continue
		}
		d.Policies[name] = p
		if len(router.Validate(d)) > 0 || len(steering.Compile(l.input(d)).Errors) > 0 {
			delete(d.Policies, name)
		}
	}
	return d
}

func (l *leafSpine) policy(r *rand.Rand) api.PolicySpec {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	endpoint := func() string { return pick(leafSpineStations...) }
	end := func() string {
		switch r.IntN(6) {
		case 0:
			return "any"
		case 1:
			return pick("10.0.0.0/30", "10.0.0.4/30", "10.0.0.0/29", "10.0.0.8/32", "10.0.0.0/24")
		case 2:
			return l.stations[endpoint()].MAC.String()
		}
		return endpoint()
	}
	p := api.PolicySpec{Chain: pick(slices.Sorted(maps.Keys(l.base.Chains))...), Priority: 1 + r.IntN(1000)}
	symmetric := r.IntN(3) > 0
	p.Symmetric = &symmetric
	switch r.IntN(6) {
	case 0:
		p.Mode, p.From = api.ModeExhaustive, endpoint()
		return p
	case 1:
		p.Mode = api.ModeReplica
	}
	p.From, p.To = end(), end()
	if wide(p.From) && wide(p.To) { // a frame between two of them could be a request as well as a reply
		p.Symmetric = new(bool)
	}
	p.Match = [][]string{{"udp/53"}, {"tcp"}, {"icmp"}, {"tcp/80", "udp"}, {"ip"}, {"udp/9450-9549"}, {"all"}}[r.IntN(7)]
	if r.IntN(4) == 0 {
		p.MatchBy = api.MatchByMAC
	}
	return p
}

func wide(end string) bool { return end == "any" || strings.Contains(end, "/") }

func (l *leafSpine) listenEverywhere() {
	l.t.Helper()
	l.at = map[string]*rig.Capture{}
	for _, s := range leafSpineStations {
		l.at["station/"+s] = listen(l.t, l.netns(s), "eth0")
	}
	for name, f := range l.base.Functions {
		sides := []string{"in", "out"}
		if f.Image == "monitor" {
			sides = []string{"tap"}
		}
		for _, side := range sides {
			l.at["function/"+name+"/"+side] = listen(l.t, l.function(f.Host, name), side)
		}
	}
	for _, leaf := range []string{"lf1", "lf2", "lf3", "lf4"} {
		for _, port := range []string{"-1", "-2"} {
			l.cables = append(l.cables, listen(l.t, l.netns("ovs"), leaf+port))
		}
	}
}

func (l *leafSpine) tagsSeen() int {
	n := 0
	for _, c := range l.cables {
		for _, f := range c.Seen() {
			if flow.FabricTag(f.Data) != 0 {
				n++
			}
		}
	}
	return n
}

// probe is a frame with what is predicted of it.
type probe struct {
	text, payload string
	from          string
	frame         []byte
	want          map[string]int
}

// round sends frames between all pairs of stations and compares.
func (l *leafSpine) round(name string, d api.Document) {
	l.t.Helper()
	in := l.input(d)
	for _, path := range steering.Compile(in).Paths.All() {
		l.tagged += min(1, len(path.Tags))
	}
	l.entries(name, in)
	l.settled(name, in)
	for i := 1; ; i++ {
		before, err := netns.Overruns()
		if err != nil {
			l.t.Fatal(err)
		}
		probes := l.probe(name, in)
		cached := l.cached()
		wrong := l.compare(name, d, probes)
		after, err := netns.Overruns()
		if err != nil {
			l.t.Fatal(err)
		}
		if len(wrong) > 0 && i < attempts {
			if stale := l.stale(cached); len(stale) > 0 { // first: it would be so in every attempt
				l.t.Logf("void: %d frames went otherwise while switches did not do what their own entries say; again without their cache: %s\n%s", len(wrong), strings.Join(stale, "\n"), wrong[0])
				l.purge()
				continue
			}
			if after > before {
				l.t.Logf("void: %d frames went otherwise while the processors' receive queues, which all namespaces share, overran by %d; again\n%s", len(wrong), after-before, wrong[0])
				continue
			}
		}
		for _, w := range wrong[:min(10, len(wrong))] {
			l.t.Error(w)
		}
		if len(wrong) > 0 {
			l.t.Errorf("%s: %d frames go otherwise than predicted", name, len(wrong))
		}
		return
	}
}

// probe sends frames between all pairs of stations.
func (l *leafSpine) probe(name string, in fabric.Input) []probe {
	l.t.Helper()
	var probes []probe
	senders := map[string]*rig.Sender{}
	for _, from := range leafSpineStations {
		senders[from] = newSender(l.t, l.netns(from), "eth0")
		for _, to := range leafSpineStations {
			if from == to {
				continue
			}
			for _, k := range []struct {
				text string
				make func(string) []byte
			}{
				{"udp/53", ip(l.stations[from], l.stations[to], unix.IPPROTO_UDP, 53)}, {"udp/9500", ip(l.stations[from], l.stations[to], unix.IPPROTO_UDP, 9500)},
				{"tcp/80", ip(l.stations[from], l.stations[to], unix.IPPROTO_TCP, 80)}, {"icmp", ip(l.stations[from], l.stations[to], unix.IPPROTO_ICMP, 0)},
				{"not IP", other(l.stations[from], l.stations[to])},
			} {
				p := probe{from: from, text: from + " to " + to + ", " + k.text, payload: fmt.Sprintf("<%s %d.%d>", name, l.frames, time.Now().UnixNano())}
				l.frames++
				p.frame = k.make(p.payload)
				p.want = predict(in, from, p.frame)
				probes = append(probes, p)
				if err := senders[from].Send(p.frame); err != nil {
					l.t.Fatal(err)
				}
			}
		}
	}
	return probes
}

func ip(from, to rig.Station, proto uint8, port uint16) func(string) []byte {
	return func(payload string) []byte {
		return rig.Packet{Proto: proto, Src: 40000, Dst: port, TTL: 33, Payload: payload}.Bytes(from, to)
	}
}

// settled waits until the hosts have what the router wants of them, and nothing of what was in force before.
func (l *leafSpine) settled(name string, in fabric.Input) {
	l.t.Helper()
	want := map[string]map[string]int{}
	for id, rules := range steering.Compile(in).Hosts {
		list := make([]api.HostRule, len(rules))
		for i, r := range rules {
			list[i] = *r
		}
		host, _ := id.Host()
		want[host] = stages(list)
	}
	l.await(name+": the hosts have their rules", func() (bool, string) {
		all, err := l.client.Assignments().List(l.ctx, api.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		got := map[string]map[string]int{}
		for _, a := range all.Items {
			if a.Status.ObservedGeneration != a.Generation || a.Status.State != "installed" {
				return false, fmt.Sprintf("%s: %+v of generation %d", a.Name, a.Status, a.Generation)
			}
			got[a.Name] = stages(a.Spec.Rules)
		}
		for host, rules := range want {
			if !maps.Equal(got[host], rules) {
				return false, fmt.Sprintf("%s is assigned %v, want %v", host, got[host], rules)
			}
			c, err := l.client.Counters(l.ctx, host) // also what its agent compiles by itself
			if err != nil {
				return false, err.Error()
			}
			for _, r := range c.Rules {
				if _, there := in.Policies[r.Policy]; r.Policy != "" && !there {
					return false, fmt.Sprintf("%s has a rule of policy %s yet", host, r.Policy)
				}
			}
		}
		return true, ""
	})
}

// stages counts rules by stage and priority; those for tags are one, since legs to one end may share a tag or not, as others have left it.
func stages(rules []api.HostRule) map[string]int {
	n := map[string]int{}
	for _, r := range rules {
		if r.Priority >= tagPriority {
			n["tags"] = 1
			continue
		}
		n[fmt.Sprint(r.Stage, " ", r.Priority)]++
	}
	return n
}

// tagPriority is where the priorities of rules for tagged frames begin.
const tagPriority = 63000

// entries compares how many entries of each table the switches have with what the compiler wants.
func (l *leafSpine) entries(name string, in fabric.Input) {
	l.t.Helper()
	out := steering.Compile(in)
	l.await(name+": the switches have the entries of the input", func() (bool, string) {
		for id, list := range out.Entries {
			want := map[string]int{}
			same := map[string]bool{} // to a switch, entries of one match and priority are one
			for _, e := range list {
				key := fmt.Sprint(e.Table, e.Priority, e.Tagged, e.Tiny, e.Match)
				if same[key] {
					l.t.Fatalf("two entries of %s have one match: table %d, priority %d, %+v: %s", id, e.Table, e.Priority, e.Match, e.Note)
				}
				same[key] = true
				n := ports(e.Match.SrcPorts) * ports(e.Match.DstPorts)
				if e.Match.Unread != flow.ReadAll {
					n = len(fabric.Headers(&e.Match))
				}
				want[fmt.Sprintf("table=%d, priority=%d", e.Table, e.Priority)] += n
			}
			got := map[string]int{}
			for _, f := range l.flows(l.topology.Switches[id].Name) {
				got[fmt.Sprintf("table=%d, priority=%d", number(inTable, f), number(ofPriority, f))]++
			}
			for _, m := range []map[string]int{want, got} { // legs to one end may share a tag or not, as others have left it
				if tags := fmt.Sprintf("table=0, priority=%d", tagPriority); m[tags] > 0 {
					m[tags] = 1
				}
			}
			if !maps.Equal(want, got) {
				return false, fmt.Sprintf("%s has %v, want %v", l.topology.Switches[id].Name, got, want)
			}
		}
		return true, ""
	})
}

// ports is how many entries a range takes: one for each of its masks.
func ports(r flow.PortRange) int { return len(fabric.PortMasks(nil, r)) }

var inTable, ofPriority = regexp.MustCompile(`table=(\d+)`), regexp.MustCompile(`priority=(\d+)`)

// number that an entry says; 0 is not said.
func number(field *regexp.Regexp, entry string) int {
	m := field.FindStringSubmatch(entry)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// predict counts the places where the oracle says that a frame comes by.
func predict(in fabric.Input, from string, frame []byte) map[string]int {
	want := map[string]int{}
	p := oracle.Predict(in, from, frame, nil)
	for _, port := range slices.Concat(p.Meets, p.Copies) {
		want[port]++
	}
	for to := range p.Arrives {
		want["station/"+to]++
	}
	return want
}

// compare waits until all that is predicted has arrived, and a moment for what should not. It lists what went otherwise.
func (l *leafSpine) compare(name string, d api.Document, probes []probe) (wrong []string) {
	l.t.Helper()
	byPayload := map[string]*probe{}
	for i := range probes {
		byPayload[probes[i].payload] = &probes[i]
	}
	missing := func() int {
		got, n := l.count(byPayload), 0
		for _, p := range probes {
			for place, k := range p.want {
				n += max(0, k-got[p.payload][place])
			}
		}
		return n
	}
	for begin, last, news := time.Now(), -1, time.Now(); time.Since(begin) < patience && time.Since(news) < lost; time.Sleep(10 * time.Millisecond) {
		now := missing()
		if now == 0 {
			break
		}
		if now != last {
			last, news = now, time.Now()
		}
	}
	time.Sleep(settleQuiet)
	for place, c := range l.at {
		for _, f := range c.Seen() {
			if p := byPayload[rig.PayloadOf(f.Data)]; p != nil && !f.Outgoing && rig.SameSender(f.Data, p.frame) && !bytes.Equal(f.Data, p.frame) {
				l.t.Errorf("%s at %s:\n%x, sent was\n%x", p.payload, place, f.Data, p.frame)
			}
		}
	}
	got := l.count(byPayload)
	for _, p := range probes {
		if !maps.Equal(p.want, got[p.payload]) {
			wrong = append(wrong, fmt.Sprintf("%s: %s: predicted %v, seen %v%s", name, p.text, p.want, got[p.payload], l.inMemory(d, p)))
		}
	}
	return wrong
}

// count tells how often frames came in, by payload, then by place.
func (l *leafSpine) count(probes map[string]*probe) map[string]map[string]int {
	got := make(map[string]map[string]int, len(probes))
	for payload := range probes {
		got[payload] = map[string]int{}
	}
	for place, c := range l.at {
		for _, f := range c.Seen() {
			payload := rig.PayloadOf(f.Data)
			if p := probes[payload]; p != nil && !f.Outgoing && rig.SameSender(f.Data, p.frame) { // else an answer, which quotes it
				got[payload][place]++
			}
		}
	}
	return got
}

// inMemory tells, of a frame that went otherwise, what the compiled rules do with it in memory: is it the rules, or who carries them out?
func (l *leafSpine) inMemory(d api.Document, p probe) string {
	in := l.input(d)
	n, err := model.New(in, nil)
	if err != nil {
		return err.Error()
	}
	without := in
	without.Policies = nil
	if err := n.Install(without, steering.Compile(without)); err != nil {
		return err.Error()
	}
	for _, name := range leafSpineStations {
		hello := bytes.Join([][]byte{{255, 255, 255, 255, 255, 255}, l.stations[name].MAC, {0x88, 0xb6}, make([]byte, 46)}, nil)
		if _, err := n.Send(name, hello); err != nil {
			return err.Error()
		}
	}
	if err := n.Install(in, steering.Compile(in)); err != nil {
		return err.Error()
	}
	r, err := n.Send(p.from, p.frame)
	if err != nil {
		return err.Error()
	}
	got := map[string]int{}
	for _, m := range r.Meetings {
		got[m.Port]++
	}
	for _, x := range r.Deliveries {
		got["station/"+x.Endpoint]++
	}
	if maps.Equal(got, p.want) {
		return "; in memory as predicted: " + strings.Join(r.Trail, ", ")
	}
	return fmt.Sprintf("; in memory %v: %s", got, strings.Join(r.Trail, ", "))
}
