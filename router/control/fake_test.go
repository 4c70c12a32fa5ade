package control

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/fake"
	"weir.dev/weir/router/discovery"
	"weir.dev/weir/router/rollout"
)

func TestARingIsFoundAndHeals(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1", 2: "s2", 3: "s3", 4: "s4"}})
	var sw []*fake.Switch
	for i := range 4 {
		sw = append(sw, fake.New(fake.Config{DatapathID: uint64(i + 1), Ports: ports(3), Tables: 4}))
	}
	var cuts []func()
	for i := range 4 {
		cuts = append(cuts, fake.Cable(sw[i], 1, sw[(i+1)%4], 2))
	}
	for _, s := range sw {
		r.dial(s)
	}
	r.waitLinks(4)
	for i := range 4 {
		r.waitEdge(fmt.Sprint("s", i+1), 3)
	}
	got := make(chan int, 100)
	for i, s := range sw {
		s.Attach(3, func([]byte) { got <- i })
	}
	reach := func(what string) {
		t.Helper()
		eventually(t, what, func() string {
			for len(got) > 0 {
				<-got
			}
			sw[0].Receive(3, arp(mac(1), [4]byte{10, 0, 0, 1}))
			seen := map[int]int{}
			for len(got) > 0 {
				seen[<-got]++
			}
			if len(seen) != 3 || seen[1] != 1 || seen[2] != 1 || seen[3] != 1 {
				return fmt.Sprintf("a broadcast of s1's station arrived at %v", seen)
			}
			return ""
		})
	}
	reach("whole ring")
	began := time.Now()
	cuts[0]()
	r.waitLinks(3)
	reach("ring with a cut")
	t.Logf("healed and reported after %v", time.Since(began))
	r.waitEvent("LinkLost", "s1:1 - s2:2")
	for _, s := range sw {
		if n := s.Loops(); n != 0 {
			t.Errorf("%d frames looped", n)
		}
	}
}

func TestForgedAndReplayedLinksAreIgnored(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1", 2: "s2"}})
	a, b := fake.New(fake.Config{DatapathID: 1, Ports: ports(2)}), fake.New(fake.Config{DatapathID: 2, Ports: ports(2)})
	captured := make(chan []byte, 100)
	a.Attach(1, func(f []byte) {
		select {
		case captured <- f:
		default:
		}
	})
	r.dial(a)
	r.dial(b)
	r.waitEdge("s1", 1)
	r.waitEdge("s2", 1)
	frame := <-captured
	forged := append([]byte{}, frame...)
	forged[len(forged)-10] ^= 1
	b.Receive(1, forged)
	r.waitEvent("LinkForged", "signature")
	old := time.Now().Add(2 * discovery.MaxFrameAge)
	eventually(t, "time for a replay", func() string {
		if time.Now().Before(old) {
			return "too early"
		}
		return ""
	})
	b.Receive(2, frame)
	r.waitEvent("LinkForged", "old")
	if l := r.links(); len(l) != 0 {
		t.Errorf("links: %v", l)
	}
	if p := r.port("s2", 1); p.Kind != "edge" {
		t.Errorf("port: %+v", p)
	}
}

func TestAnotherSwitchOfTheSameDatapathIDIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1"}})
	first := fake.New(fake.Config{DatapathID: 1, Ports: ports(1)})
	second := fake.New(fake.Config{DatapathID: 1, Ports: ports(7)})
	r.dial(first)
	r.waitEdge("s1", 1)
	r.dial(second)
	r.waitEvent("SwitchRefused", "datapath id 0000000000000001")
	if n := len(second.Flows()); n != 0 {
		t.Errorf("the second switch got %d entries", n)
	}
	if s := r.switches()["s1"].Status; s.State != "connected" || len(s.Ports) != 1 {
		t.Errorf("s1: %+v", s)
	}
}

func TestASwitchThatReconnectsKeepsItsEntries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]fake.Config{"with bundles": {}, "without bundles": {NoBundles: true}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{Names: map[uint64]string{1: "s1"}})
			c.DatapathID, c.Ports = 1, ports(2)
			s := fake.New(c)
			r.dial(s)
			r.waitEdge("s1", 1)
			r.waitEdge("s1", 2)
			if got := r.switches()["s1"].Status.Bundles; got == c.NoBundles {
				t.Errorf("bundles: %t", got)
			}
			s.Receive(1, arp(mac(1), [4]byte{10, 0, 0, 1}))
			eventually(t, "a station", func() string {
				if len(r.port("s1", 1).Stations) == 0 {
					return "not seen"
				}
				return ""
			})
			settled := func() map[string]uint64 {
				out := map[string]uint64{}
				for _, f := range s.Flows() {
					out[f.String()] = f.Packets
				}
				return out
			}
			var before map[string]uint64
			eventually(t, "rules", func() string {
				before = settled()
				if sw := r.switches()["s1"].Status; sw.Rules != len(before) {
					return fmt.Sprintf("%d reported, %d there", sw.Rules, len(before))
				}
				return ""
			})
			counted := uint64(0)
			for _, n := range before {
				counted += n
			}
			if counted == 0 {
				t.Error("no entry has counted anything: the test proves nothing")
			}
			s.Disconnect()
			r.waitEvent("SwitchLost", "s1")
			r.waitEvent("SwitchConnected", fmt.Sprintf("has %d entries", len(before)))
			r.stop()
			r.start()
			eventually(t, "the router's second life", func() string {
				if st := r.switches()["s1"].Status; st.State != "connected" || st.Rules != len(before) || len(st.Ports) != 2 || len(st.Ports[0].Stations) != 1 {
					return fmt.Sprintf("%+v", st)
				}
				return ""
			})
			for f, n := range settled() {
				if was, ok := before[f]; !ok || n < was {
					t.Errorf("%s counted %d, before %d (%t)", f, n, was, ok)
				}
			}
		})
	}
}

func TestAStationMovesAndIsNotStolen(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1"}})
	s := fake.New(fake.Config{DatapathID: 1, Ports: ports(3)})
	r.dial(s)
	for p := range 3 {
		r.waitEdge("s1", uint32(p+1))
	}
	ctx := t.Context()
	if _, err := r.client.Endpoints().Put(ctx, "vm1", api.EndpointSpec{Switch: "s1", SwitchPort: "1", MAC: mac(1).String()}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.Endpoints().Put(ctx, "vm2", api.EndpointSpec{Address: "10.0.0.2/24"}); err != nil {
		t.Fatal(err)
	}
	state := func(name, state, link string) {
		t.Helper()
		eventually(t, "endpoint "+name, func() string {
			e, err := r.client.Endpoints().Get(ctx, name)
			if err != nil || string(e.Status.State) != state || e.Status.Link != link {
				return fmt.Sprintf("%+v %v, want %s %s", e.Status, err, state, link)
			}
			return ""
		})
	}
	state("vm1", "up", "s1:1")
	state("vm2", "pending", "")
	s.Receive(2, arp(mac(2), [4]byte{10, 0, 0, 2}))
	state("vm2", "up", "s1:2")
	s.Receive(3, arp(mac(2), [4]byte{10, 0, 0, 2}))
	state("vm2", "up", "s1:3")
	r.waitEvent("StationMoved", "from s1:2 to s1:3")
	s.Receive(3, arp(mac(1), [4]byte{10, 0, 0, 1}))
	r.waitEvent("StationRefused", "endpoint vm1")
	state("vm1", "up", "s1:1")
	if err := deleteEndpoint(r, "vm2"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "deletion", func() string {
		if _, err := r.client.Endpoints().Get(ctx, "vm2"); err == nil {
			return "vm2 is still there"
		}
		return ""
	})
}

func deleteEndpoint(r *rig, name string) error {
	_, err := r.client.Endpoints().Delete(r.t.Context(), name)
	return err
}

// fig2 is the network of GLANF's Fig. 2: VM1 at port 2 of s1, port 1 of both joins them, VM2 at port 2 of s2, the host at port 3.
func fig2(t *testing.T, r *rig, c fake.Config) (s1, s2 *fake.Switch, h *agent) {
	t.Helper()
	c.DatapathID, c.Ports = 1, ports(2)
	s1 = fake.New(c)
	c.DatapathID, c.Ports = 2, ports(3)
	s2 = fake.New(c)
	fake.Cable(s1, 1, s2, 1)
	r.dial(s1)
	r.dial(s2)
	r.waitLinks(1)
	h = r.agent("h1", func(b []byte) { s2.Receive(3, b) })
	eventually(t, "the host", func() string {
		if p := r.port("s2", 3); p.Kind != "host" || p.Peer != "h1:eth0" {
			return fmt.Sprintf("%+v", p)
		}
		return ""
	})
	for name, e := range map[string]api.EndpointSpec{
		"vm1": {Switch: "s1", SwitchPort: "2", MAC: mac(1).String(), Address: "10.0.0.1/24"},
		"vm2": {Switch: "s2", SwitchPort: "2", MAC: mac(2).String(), Address: "10.0.0.2/24"},
	} {
		if _, err := r.client.Endpoints().Put(t.Context(), name, e); err != nil {
			t.Fatal(err)
		}
	}
	h.function("fw")
	if _, err := r.client.Chains().Put(t.Context(), "c", api.ChainSpec{Path: "fw"}); err != nil {
		t.Fatal(err)
	}
	return s1, s2, h
}

func TestTableIOfThePaper(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]fake.Config{"tables": {}, "one table": {Tables: 1}, "no bundles": {NoBundles: true}} {
		t.Run(name, func(t *testing.T) { tableI(t, c) })
	}
}

func tableI(t *testing.T, c fake.Config) {
	r := newRig(t, Options{Names: map[uint64]string{1: "s1", 2: "s2"}})
	_, _, h := fig2(t, r, c)
	if _, err := r.client.Policies().Put(t.Context(), "p", api.PolicySpec{From: "vm1", Chain: "c"}); err != nil {
		t.Fatal(err)
	}
	p := r.waitPolicy("p", "active")
	t.Logf("forward %v\nreverse %v", p.Status.RenderedPath, p.Status.RenderedReverse)
	find := func(name, match, actions string) {
		t.Helper()
		rules, err := r.c.SwitchRules(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, x := range rules.Rules {
			if x.Policy == "p" && x.Match == match && x.Actions == actions {
				return
			}
			all = append(all, fmt.Sprintf("%d %s: %s -> %s (%s)", x.Priority, x.Policy, x.Match, x.Actions, x.Note))
		}
		t.Errorf("%s has no %s -> %s among\n%s", name, match, actions, strings.Join(all, "\n"))
	}
	find("s1", "ip,in_port=2,nw_src=10.0.0.1", "output:1")
	find("s2", "ip,in_port=1,nw_src=10.0.0.1", "output:3")
	var in, out bool
	for _, x := range h.rules() {
		in = in || x.Match.InPort == "uplink/eth0" && x.Match.Src == "10.0.0.1/32" && x.Action.Port == "function/fw/in"
		out = out || x.Match.InPort == "function/fw/out" && x.Action.Port == "uplink/eth0"
	}
	if !in || !out {
		t.Errorf("the host's rules: %+v", h.rules())
	}
}

func TestAPolicyWaitsForItsHost(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1", 2: "s2"}})
	s1, _, h := fig2(t, r, fake.Config{})
	eventually(t, "quiet", func() string {
		if s := r.switches()["s1"].Status; s.Rules != len(s1.Flows()) {
			return "busy"
		}
		return ""
	})
	h.mu.Lock()
	h.held = true
	h.mu.Unlock()
	if _, err := r.client.Policies().Put(t.Context(), "p", api.PolicySpec{From: "vm1", Chain: "c"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "policy", func() string {
		p, err := r.client.Policies().Get(t.Context(), "p")
		if err != nil || p.Status.State != "pending" || !strings.Contains(p.Status.Message, "host h1") {
			return fmt.Sprintf("%+v %v", p.Status, err)
		}
		return ""
	})
	for _, f := range s1.Flows() {
		if strings.Contains(f.String(), "nw_src=10.0.0.1") {
			t.Errorf("frames are caught before the host is ready: %s", f)
		}
	}
	h.mu.Lock()
	h.held = false
	h.mu.Unlock()
	a, err := r.client.Assignments().Get(t.Context(), "h1")
	if err != nil {
		t.Fatal(err)
	}
	h.acknowledge(a)
	r.waitPolicy("p", "active")
}

func TestATableThatIsTooSmallRefusesThePolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1", 2: "s2"}})
	fig2(t, r, fake.Config{TableSize: 24})
	for i := range 12 {
		spec := api.PolicySpec{From: "vm1", Chain: "c", Match: []string{fmt.Sprintf("tcp/%d", 1000+i)}, Priority: 500 - i}
		if _, err := r.client.Policies().Put(t.Context(), fmt.Sprintf("p%02d", i), spec); err != nil {
			t.Fatal(err)
		}
	}
	r.waitPolicy("p00", "active")
	p := r.waitPolicy("p11", "error")
	if !strings.Contains(p.Status.Message, "24") {
		t.Errorf("message without numbers: %q", p.Status.Message)
	}
	t.Log(p.Status.Message)
}

// Default forwarding that is too large for a table is told of beforehand, and nothing is refused.
func TestATableThatIsTooSmallForStationsIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1"}})
	s := fake.New(fake.Config{DatapathID: 1, Ports: ports(2), TableSize: 24})
	r.dial(s)
	r.waitEdge("s1", 1)
	r.waitEdge("s1", 2)
	for i := range 30 {
		s.Receive(1, arp(mac(byte(i+1)), [4]byte{10, 0, 0, byte(i + 1)}))
	}
	const text = "table 1 holds 24 entries; default forwarding needs 31, 30 of them for stations: frames to 13 stations are flooded"
	eventually(t, "the switch's status", func() string {
		st := r.switches()["s1"].Status
		if len(st.Tables) < 2 || st.Tables[1].Needs != 31 || st.Tables[1].LeftOut != 13 || st.Tables[1].Rules != 18 || !strings.Contains(st.Message, text) {
			return fmt.Sprintf("%+v, %q", st.Tables, st.Message)
		}
		return ""
	})
	r.waitEvent("TableTooSmall", "switch s1: table 1 holds 24 entries")
	rules, err := r.c.SwitchRules(t.Context(), "s1")
	if err != nil || !strings.Contains(rules.Message, text) || rules.Tables[1].Needs != 31 {
		t.Errorf("%v, %+v, %q", err, rules.Tables, rules.Message)
	}
	l, err := r.client.Events().List(t.Context(), api.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range l.Items {
		if e.Reason == "TableFull" || e.Reason == "EntryRefused" {
			t.Errorf("the switch had to refuse something: %s", e.Message)
		}
	}
}

func TestForeignEntriesAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1"}})
	s := fake.New(fake.Config{DatapathID: 1, Ports: ports(2)})
	hangUp := r.dial(s)
	r.waitEdge("s1", 1)
	_ = hangUp
	other := s.Pipe(t.Context())
	conn, err := openflow.Controller(t.Context(), other, openflow.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	foreign := openflow.FlowMod{Priority: 7, Cookie: 0x42, Match: openflow.Match{openflow.InPort(2)}}
	if err := conn.Transact(t.Context(), &foreign); err != nil {
		t.Fatal(err)
	}
	mine := 0
	for _, f := range s.Flows() {
		if f.Cookie&rollout.CookieMask == rollout.CookieMark {
			mine++
		}
	}
	s.Disconnect()
	r.waitEvent("SwitchConnected", fmt.Sprintf("has %d entries", mine))
	for _, f := range s.Flows() {
		if f.Cookie == 0x42 {
			return
		}
	}
	t.Error("the foreign entry is gone")
}

// TestALostSwitchIsTheLastWay: a switch without its controller goes on forwarding, so what is behind it stays reachable; all else goes
// around it.
func TestALostSwitchIsTheLastWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1", 2: "s2", 3: "s3", 4: "s4"}})
	var sw []*fake.Switch
	for i := range 4 {
		sw = append(sw, fake.New(fake.Config{DatapathID: uint64(i + 1), Ports: ports(3)}))
	}
	for i := range 4 { // port 1 leads to the next, port 2 to the one before
		fake.Cable(sw[i], 1, sw[(i+1)%4], 2)
	}
	var hangUps []func()
	for _, s := range sw {
		hangUps = append(hangUps, r.dial(s))
	}
	r.waitLinks(4)
	for i := range 4 {
		r.waitEdge(fmt.Sprint("s", i+1), 3)
	}
	for n := byte(10); n < 20; n++ {
		sw[2].Receive(3, arp(mac(n), [4]byte{10, 0, 0, n}))
	}
	sw[1].Receive(3, arp(mac(2), [4]byte{10, 0, 0, 2}))
	ways := func() map[string]int {
		rules, err := r.c.SwitchRules(t.Context(), "s1")
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]int{}
		for _, x := range rules.Rules {
			if strings.Contains(x.Match, "dl_dst=02:") {
				out[x.Actions]++
			}
		}
		return out
	}
	eventually(t, "both ways round", func() string {
		if w := ways(); w["output:1"]+w["output:2"] != 11 || w["output:1"] < 2 || w["output:2"] == 0 {
			return fmt.Sprint(w)
		}
		return ""
	})
	got := make(chan struct{}, 1)
	sw[1].Attach(3, func([]byte) {
		select {
		case got <- struct{}{}:
		default:
		}
	})
	frame := arp(mac(1), [4]byte{10, 0, 0, 1})
	m := mac(2)
	copy(frame, m[:])
	reached := func() bool {
		sw[0].Receive(3, frame)
		select {
		case <-got:
			return true
		default:
			return false
		}
	}
	eventually(t, "the switch that will be lost knows its station", func() string { // what it does not have by then, it never gets
		if !reached() {
			return "the station is not reached"
		}
		return ""
	})
	hangUps[1]()
	r.waitEvent("SwitchLost", "s2")
	eventually(t, "one way round", func() string {
		if w := ways(); w["output:1"] != 1 || w["output:2"] != 10 {
			return fmt.Sprint(w)
		}
		return ""
	})
	if !reached() {
		t.Error("the station behind the lost switch cannot be reached")
	}
}

// TestALostSwitchKeepsItsPlaceInTheTrees: it goes on with the entries that it has, so all others flood as if it were there.
func TestALostSwitchKeepsItsPlaceInTheTrees(t *testing.T) {
	t.Parallel()
	const n = 4
	r := newRig(t, Options{Names: map[uint64]string{1: "s1", 2: "s2", 3: "s3", 4: "s4"}})
	var sw []*fake.Switch
	for i := range n {
		sw = append(sw, fake.New(fake.Config{DatapathID: uint64(i + 1), Ports: ports(3)}))
	}
	for i := range n {
		fake.Cable(sw[i], 1, sw[(i+1)%n], 2)
	}
	var hangUps []func()
	for _, s := range sw {
		hangUps = append(hangUps, r.dial(s))
	}
	r.waitLinks(n)
	got := make(chan int, 1000)
	for i, s := range sw {
		r.waitEdge(fmt.Sprint("s", i+1), 3)
		s.Attach(3, func([]byte) { got <- i })
	}
	r.quiet(n, n)
	once := func(when string) {
		t.Helper()
		for from := range n {
			for m := range byte(2) {
				for len(got) > 0 {
					<-got
				}
				frame := arp(mac(byte(2*from)+m), [4]byte{10, 0, byte(from), m})
				frame[12], frame[13] = testEtherType>>8, testEtherType&0xff
				sw[from].Receive(3, frame)
				seen := map[int]int{}
				for len(got) > 0 {
					seen[<-got]++
				}
				want := map[int]int{}
				for i := range n {
					if i != from {
						want[i] = 1
					}
				}
				if !maps.Equal(want, seen) {
					t.Errorf("%s: a broadcast of sender %d at s%d came to %v", when, m, from+1, seen)
				}
			}
		}
	}
	once("at first")
	for i := range 2 { // the root of the first tree, and another one
		hangUps[i]()
		r.waitEvent("SwitchLost", fmt.Sprint("s", i+1))
		r.quiet(n-1, n)
		once(fmt.Sprintf("s%d is lost", i+1))
		r.dial(sw[i])
		r.quiet(n, n)
	}
	for _, s := range sw {
		if loops := s.Loops(); loops != 0 {
			t.Errorf("%d frames looped", loops)
		}
	}
}

func TestAFlappingPortIsLeftOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1"}})
	s := fake.New(fake.Config{DatapathID: 1, Ports: ports(2)})
	r.dial(s)
	r.waitEdge("s1", 2)
	for range discovery.FlapUps + 2 {
		s.SetLink(2, false)
		s.SetLink(2, true)
	}
	r.waitEvent("PortFlapping", "port 2 of s1")
	eventually(t, "the port", func() string {
		if p := r.port("s1", 2); p.State != "down" {
			return fmt.Sprintf("%+v", p)
		}
		return ""
	})
	r.waitEdge("s1", 2)
}

// TestManySwitchesAreFound: a row of 60, each with 6 ports; the links are found, and nothing is sent in a burst.
func TestManySwitchesAreFound(t *testing.T) {
	t.Parallel()
	const n = 60
	r := newRig(t, Options{})
	var sw []*fake.Switch
	for i := range n {
		sw = append(sw, fake.New(fake.Config{DatapathID: uint64(i + 1), Ports: ports(6)}))
		if i > 0 {
			fake.Cable(sw[i-1], 1, sw[i], 2)
		}
	}
	began := time.Now()
	for _, s := range sw {
		r.dial(s)
	}
	r.waitLinks(n - 1)
	t.Logf("%d switches and %d links after %v", n, n-1, time.Since(began))
}

// TestFloodsSpreadOverSpines: those of even and of odd senders go by a spine each, unless a switch of the network cannot tell them.
func TestFloodsSpreadOverSpines(t *testing.T) {
	t.Parallel()
	mask := []openflow.Field{openflow.FieldEthSrc}
	for name, c := range map[string]struct {
		odd   fake.Config // of one leaf
		trees int
	}{
		"two trees":             {trees: 2},
		"a switch tells":        {fake.Config{NoMask: mask, TellFields: true}, 1},
		"a switch refuses":      {fake.Config{NoMask: mask}, 1},
		"one of few refuses":    {fake.Config{NoMask: mask, NoBundles: true}, 1},
		"all fields told of":    {fake.Config{TellFields: true}, 2},
		"a switch of one table": {fake.Config{Tables: 1}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spread(t, c.odd, c.trees)
		})
	}
}

func spread(t *testing.T, odd fake.Config, trees int) {
	const spines, n = 2, 5
	names := map[uint64]string{}
	var sw []*fake.Switch
	for i := range n {
		c := fake.Config{}
		if i == n-1 {
			c = odd
		}
		c.DatapathID, c.Ports = uint64(i+1), ports(n)
		if i < spines {
			c.Ports = ports(n)[spines:]
		}
		names[c.DatapathID] = fmt.Sprint("s", i+1)
		sw = append(sw, fake.New(c))
	}
	r := newRig(t, Options{Names: names})
	for leaf := spines; leaf < n; leaf++ {
		for spine := range spines {
			fake.Cable(sw[spine], openflow.Port(leaf+1), sw[leaf], openflow.Port(spine+1))
		}
	}
	for _, s := range sw {
		r.dial(s)
	}
	r.waitLinks(spines * (n - spines))
	got := make(chan openflow.Port, 1000)
	for leaf := spines; leaf < n; leaf++ {
		for p := openflow.Port(spines + 1); p <= n; p++ {
			r.waitEdge(names[uint64(leaf+1)], uint32(p))
			sw[leaf].Attach(p, func([]byte) { got <- openflow.Port(leaf)<<8 + p })
		}
	}
	r.quiet(n, spines*(n-spines)) // a port where nothing was found yet may have been taken for an edge
	const edges = (n - spines) * (n - spines)
	through := func() (packets [spines]uint64) {
		for i := range packets {
			for _, f := range sw[i].Flows() {
				if f.Table == 1 && f.Priority < 2 { // all that it floods
					packets[i] += f.Packets
				}
			}
		}
		return packets
	}
	used := map[int]bool{}
	eventually(t, "broadcasts of all", func() string {
		clear(used)
		for leaf := spines; leaf < n; leaf++ {
			for m := range byte(2) {
				for len(got) > 0 {
					<-got
				}
				before := through()
				sw[leaf].Receive(spines+1, arp(mac(byte(2*leaf)+m), [4]byte{10, 0, byte(leaf), m}))
				seen := map[openflow.Port]int{}
				for len(got) > 0 {
					seen[<-got]++
				}
				for p, times := range seen {
					if times > 1 {
						t.Errorf("port %d of s%d gets a frame of sender %d at s%d %d times", p&0xff, p>>8+1, m, leaf+1, times)
					}
				}
				if len(seen) != edges-1 {
					return fmt.Sprintf("a broadcast of sender %d at %s comes to %d ports, want %d", m, names[uint64(leaf+1)], len(seen), edges-1)
				}
				for i, now := range through() {
					if now > before[i] {
						used[i] = true
						if trees == 2 && i != int(m) {
							return fmt.Sprintf("a broadcast of sender %d goes by spine %d", m, i)
						}
					}
				}
			}
		}
		return ""
	})
	if len(used) != trees {
		t.Errorf("floods go by %d spines, want %d", len(used), trees)
	}
	odds := 0
	for _, s := range sw {
		for _, f := range s.Flows() {
			if rollout.TreeBitField(f.Match) >= 0 {
				odds++
			}
		}
		if loops := s.Loops(); loops != 0 {
			t.Errorf("%d frames looped", loops)
		}
	}
	if (odds > 0) != (trees == 2) {
		t.Errorf("%d entries for odd senders, %d trees", odds, trees)
	}
	if trees == 1 {
		r.waitEvent("OneFloodTree", "switch s5")
	}
}
