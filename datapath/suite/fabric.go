package suite

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
)

// testFabric: a fabric tag is matched at ports into the fabric only, popped before functions and endpoints, pushed towards the fabric;
// isolated ports are no way from one to another.
func testFabric(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	up, t1, t2 := r.Fabric("up", false), r.Fabric("t1", true), r.Fabric("t2", true)
	f0, f1, mon := r.Wire("f0"), r.Inline(datapath.Function{Name: "f1", OnFail: datapath.FailBypass}), r.Tap("mon")
	w := newTwins(t, r)
	three := r.can(ThreeTags)
	behind := flow.Match{InPort: up.Port, Tag: 3600, VLAN: 7, EtherType: 0x1234}
	if !r.can(TagAndVLAN) {
		behind.VLAN = 0
	}

	rule := func(cookie uint64, m flow.Match, a flow.Action) flow.Rule {
		return flow.Rule{Cookie: cookie, Priority: 10, Match: m, Action: a}
	}
	at := func(p flow.Port, tag uint16) flow.Match { return flow.Match{InPort: p, Tag: tag} }
	output := func(p flow.Port) flow.Action { return flow.Action{Op: flow.Output, Port: p} }
	popped := func(a flow.Action) flow.Action {
		a.Pop = true
		return a
	}
	pushed := func(tag uint16, a flow.Action) flow.Action {
		a.Push = tag
		return a
	}
	tapped := func(a flow.Action) flow.Action {
		a.Clones = flow.Clones(mon.Ports.Tap)
		return a
	}
	copies := func(a flow.Action, to ...flow.Clone) flow.Action {
		a.Clones = to
		return a
	}
	through := []flow.Rule{ // what goes into f0 goes on to f1, and out to the fabric with a tag
		rule(90, at(f0.Ports.Out, 0), output(f1.Ports.In)),
		rule(91, at(f1.Ports.Out, 0), pushed(3700, output(up.Port))),
		rule(92, at(f1.Ports.In, 0), output(f0.Ports.Out)),
		rule(93, at(f0.Ports.In, 0), output(alice.Port)),
	}
	with := func(rules ...flow.Rule) []flow.Rule { return append(rules, through...) }
	for _, c := range []struct {
		name  string
		rules []flow.Rule
	}{
		{"no rules", nil},
		{"popped into functions, another pushed behind them", with(rule(1, at(up.Port, 3600), tapped(popped(output(f0.Ports.In)))))},
		{"popped into functions from the other end", with(rule(1, at(up.Port, 3600), popped(output(f1.Ports.Out))))},
		{"popped to an endpoint", with(rule(1, at(up.Port, 3600), popped(output(bob.Port))))},
		{"popped into ordinary switching", with(rule(1, at(up.Port, 3600), popped(flow.Action{Op: flow.Normal})))},
		{"popped and resumed", with(rule(1, at(t1.Port, 3600), popped(flow.Action{Op: flow.Resume, Port: up.Port})))},
		{"exchanged on its way through", with(rule(1, at(t1.Port, 3600), popped(pushed(3601, output(t2.Port)))))},
		{"kept on its way through", with(rule(1, at(t1.Port, 3600), output(t2.Port)))},
		{"dropped", with(rule(1, at(up.Port, 3600), flow.Action{Op: flow.Drop}))},
		{"at any port into the fabric", with(rule(1, at(0, 3600), popped(output(f0.Ports.In))))},
		{"with fields behind it", with(rule(1, behind, popped(output(f0.Ports.In))))},
		{"frames without one", with(rule(1, at(up.Port, 0), output(f0.Ports.In)))},
		{"both", with(rule(1, at(up.Port, 0), output(f0.Ports.In)), rule(2, at(up.Port, 3600), popped(output(bob.Port))))},
		{"frames without one at any port", with(rule(1, flow.Match{EtherType: 0x1234}, tapped(flow.Action{Op: flow.Normal})))},
		{"pushed at the entry", with(rule(1, at(alice.Port, 0), pushed(3601, tapped(output(t1.Port)))))},
		{"pushed where it was about to leave", with(flow.Rule{Cookie: 1, Priority: 10, Stage: flow.Egress, Match: flow.Match{OutPort: bob.Port}, Action: pushed(3601, output(up.Port))})},
		{"pushed at the port where it was about to leave", with(flow.Rule{Cookie: 1, Priority: 10, Stage: flow.Egress, Match: flow.Match{OutPort: up.Port}, Action: pushed(3601, output(up.Port))})},
		{"into the fabric without one", with(rule(1, at(alice.Port, 0), output(up.Port)))},
		{"copied into the fabric with one", with(rule(1, at(alice.Port, 0), copies(flow.Action{Op: flow.Normal}, flow.Clone{Port: t1.Port, Push: 3601})))},
		{"copied into the fabric with one, and to a tap beside it", with(rule(1, at(alice.Port, 0),
			copies(output(bob.Port), flow.Clone{Port: t1.Port, Push: 3601}, flow.Clone{Port: mon.Ports.Tap}, flow.Clone{Port: t2.Port, Push: 3602}, flow.Clone{Port: t2.Port})))},
		{"copied with one, the original with another", with(rule(1, at(alice.Port, 0), copies(pushed(3603, output(up.Port)), flow.Clone{Port: t1.Port, Push: 3601}, flow.Clone{Port: up.Port, Push: 3602})))},
		{"copied with one, the original into functions", with(rule(1, at(alice.Port, 0), copies(output(f0.Ports.In), flow.Clone{Port: up.Port, Push: 3602})))},
		{"copied with one, the original dropped", with(rule(1, at(alice.Port, 0), copies(flow.Action{Op: flow.Drop}, flow.Clone{Port: up.Port, Push: 3602})))},
		{"exchanged on a copy", with(rule(1, at(t1.Port, 3600), popped(copies(output(bob.Port), flow.Clone{Port: up.Port, Push: 3602}))))},
		{"copied with one where it was about to leave", with(flow.Rule{Cookie: 1, Priority: 10, Stage: flow.Egress, Match: flow.Match{OutPort: bob.Port}, Action: copies(flow.Action{Op: flow.Normal}, flow.Clone{Port: t2.Port, Push: 3601})})},
		{"copied with one where it was about to leave into the fabric", with(flow.Rule{Cookie: 1, Priority: 10, Stage: flow.Egress, Match: flow.Match{OutPort: up.Port}, Action: copies(flow.Action{Op: flow.Normal}, flow.Clone{Port: t2.Port, Push: 3601})})},
		{"a chain of copies that leads out", []flow.Rule{
			rule(1, at(alice.Port, 0), copies(flow.Action{Op: flow.Normal}, flow.Clone{Port: f1.Ports.In})),
			rule(91, at(f1.Ports.Out, 0), copies(pushed(3700, output(up.Port)), flow.Clone{Port: t1.Port, Push: 3701})),
			rule(92, at(f1.Ports.In, 0), flow.Action{Op: flow.Drop})}},
		{"copied into the fabric", with(rule(1, at(alice.Port, 0), flow.Action{Clones: flow.Clones(t1.Port), Op: flow.Normal}))},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			w.commit(c.rules...)
			for round, state := range []datapath.State{datapath.Up, datapath.Up, datapath.Down} { // the second time flows are known
				w.state("f1", state)
				for _, from := range []*Station{up, t1, alice} {
					for _, tags := range [][]uint16{nil, {3600}, {3602}, {3600, 7}, {3600, 3600}, {100}, {4095}} {
						if len(tags) == 2 && from == alice && !three { // the user's, with a fabric tag on top
							continue
						}
						dst, name := bob.MAC, fmt.Sprintf("round %d, tags %v from %s", round, tags, from.Name)
						if len(tags) == 1 {
							dst = broadcast
						}
						m := w.next()
						w.send(name, from, m, tagged(dst, from.MAC, tags, append(make([]byte, 46), m...)))
					}
				}
			}
			w.state("f1", datapath.Up)
			w.check()
		})
	}
	t.Run("refused", func(t *testing.T) {
		for _, c := range []struct {
			name string
			rule flow.Rule
		}{
			{"a match at an ordinary port", rule(1, at(alice.Port, 3600), flow.Action{Op: flow.Drop})},
			{"kept to an ordinary port", rule(1, at(up.Port, 3600), output(alice.Port))},
			{"kept into a function", rule(1, at(up.Port, 3600), output(f0.Ports.In))},
			{"pushed to an ordinary port", rule(1, at(alice.Port, 0), pushed(3600, output(bob.Port)))},
			{"pushed on a copy to an ordinary port", rule(1, at(alice.Port, 0), copies(flow.Action{Op: flow.Normal}, flow.Clone{Port: bob.Port, Push: 3600}))},
			{"pushed on a copy into a function", rule(1, at(alice.Port, 0), copies(flow.Action{Op: flow.Normal}, flow.Clone{Port: mon.Ports.Tap, Push: 3600}))},
			{"pushed into a function", rule(1, at(alice.Port, 0), pushed(3600, output(f0.Ports.In)))},
		} {
			if _, err := r.Switch.Commit(Context(t), []flow.Rule{c.rule}); err == nil {
				t.Errorf("%s was accepted", c.name)
			}
		}
	})
}

// tagged is a frame of EtherType 0x1234 with 802.1ad tags.
func tagged(dst, src flow.MAC, tags []uint16, payload []byte) []byte {
	b := append(append(append([]byte{}, dst[:]...), src[:]...), 0x12, 0x34)
	b = append(b, payload...)
	for i := len(tags) - 1; i >= 0; i-- {
		b = flow.PushTag(b, tags[i])
	}
	return b
}

// streamLength is enough for many segments of the largest size.
const streamLength = 32 << 20

// testFabricStream: a cable joins two ports into the fabric. A TCP stream crosses it with the tag, both ways: large segments and
// checksums left to the hardware come through. Copies with a tag that cross it leave the stream itself as it is.
func testFabricStream(t *testing.T, open Factory) {
	in := func(p flow.Port, tag uint16) flow.Match { return flow.Match{InPort: p, Tag: tag} }
	for _, c := range []struct {
		name  string
		rules func(alice, bob, mon flow.Port, ends [2]flow.Port) []flow.Rule
	}{
		{"itself", func(alice, bob, _ flow.Port, ends [2]flow.Port) []flow.Rule {
			return []flow.Rule{
				{Cookie: 1, Match: in(alice, 0), Action: flow.Action{Op: flow.Output, Port: ends[0], Push: 3600}},
				{Cookie: 2, Match: in(ends[1], 3600), Action: flow.Action{Pop: true, Op: flow.Output, Port: bob}},
				{Cookie: 3, Match: in(bob, 0), Action: flow.Action{Op: flow.Output, Port: ends[1], Push: 3601}},
				{Cookie: 4, Match: in(ends[0], 3601), Action: flow.Action{Pop: true, Op: flow.Output, Port: alice}}}
		}},
		{"its copies", func(alice, bob, mon flow.Port, ends [2]flow.Port) []flow.Rule {
			return []flow.Rule{
				{Cookie: 1, Match: in(alice, 0), Action: flow.Action{Clones: []flow.Clone{{Port: ends[0], Push: 3602}, {Port: mon}}, Op: flow.Output, Port: bob}},
				{Cookie: 2, Match: in(ends[1], 3602), Action: flow.Action{Pop: true, Clones: flow.Clones(mon), Op: flow.Drop}},
				{Cookie: 3, Match: in(bob, 0), Action: flow.Action{Clones: []flow.Clone{{Port: mon}, {Port: ends[1], Push: 3603}}, Op: flow.Output, Port: alice}},
				{Cookie: 4, Match: in(ends[0], 3603), Action: flow.Action{Pop: true, Clones: flow.Clones(mon), Op: flow.Drop}}}
		}},
		{"itself and its copies", func(alice, bob, mon flow.Port, ends [2]flow.Port) []flow.Rule {
			return []flow.Rule{
				{Cookie: 1, Match: in(alice, 0), Action: flow.Action{Clones: []flow.Clone{{Port: ends[0], Push: 3602}}, Op: flow.Output, Port: ends[0], Push: 3600}},
				{Cookie: 2, Match: in(ends[1], 3602), Action: flow.Action{Pop: true, Clones: flow.Clones(mon), Op: flow.Drop}},
				{Cookie: 5, Match: in(ends[1], 3600), Action: flow.Action{Pop: true, Op: flow.Output, Port: bob}},
				{Cookie: 3, Match: in(bob, 0), Action: flow.Action{Clones: []flow.Clone{{Port: ends[1], Push: 3603}}, Op: flow.Output, Port: ends[1], Push: 3601}},
				{Cookie: 4, Match: in(ends[0], 3603), Action: flow.Action{Pop: true, Clones: flow.Clones(mon), Op: flow.Drop}},
				{Cookie: 6, Match: in(ends[0], 3601), Action: flow.Action{Pop: true, Op: flow.Output, Port: alice}}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := NewRig(t, open)
			alice, bob, mon := r.Station("alice"), r.Station("bob"), r.Tap("mon")
			r.Commit(c.rules(alice.Port, bob.Port, mon.Ports.Tap, r.cable())...)
			r.stream(alice, bob)
			Until(t, "most frames cross the cable", func() bool { // a busy machine may lose some
				_, rules, err := r.Switch.Status(Context(t))
				must(t, err)
				hits := map[uint64]uint64{}
				for _, rule := range rules {
					hits[rule.Cookie] = rule.Hits.Packets
				}
				return hits[1] > 0 && hits[3] > 0 && 2*hits[2] > hits[1] && 2*hits[4] > hits[3]
			})
		})
	}
}

// cable joins two ports into the fabric.
func (r *Rig) cable() (ends [2]flow.Port) {
	r.t.Helper()
	pair, err := r.Host.Veth(r.Host, netns.VethOptions{HostName: "cable0", Alias: r.Instance.Alias("cable"), PeerName: "cable1"})
	must(r.t, err)
	for i, link := range []string{pair.Host.Name, pair.Peer.Name} {
		if ends[i], err = r.Switch.AddEndpoint(Context(r.t), datapath.Endpoint{Name: link, Link: link, Fabric: true, Isolated: true}); err != nil {
			r.t.Fatal(err)
		}
	}
	return ends
}

// stream sends many bytes by TCP from alice to bob, who returns them, and expects them back as they were.
func (r *Rig) stream(alice, bob *Station) {
	t := r.t
	t.Helper()
	for _, st := range []*Station{alice, bob} {
		st.Close()
		address(t, st)
	}
	// Bob sends back what comes.
	var listener net.Listener
	if err := bob.NS.Do(func() (err error) {
		listener, err = net.Listen("tcp4", "10.9.0.2:7")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	var c net.Conn
	if err := alice.NS.Do(func() (err error) {
		c, err = net.DialTimeout("tcp4", "10.9.0.2:7", 5*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	// Random bytes: one that is doubled, lost or out of place is noticed.
	sent := make([]byte, streamLength)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(sent)
	go func() {
		_, _ = c.Write(sent)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	came, err := io.ReadAll(c)
	must(t, err)
	if !bytes.Equal(sent, came) {
		t.Errorf("%d bytes came back, not the %d that were sent", len(came), len(sent))
	}
}

// address gives a station 10.9.0.1 (alice) or 10.9.0.2.
func address(t testing.TB, st *Station) {
	t.Helper()
	text := "10.9.0.2/24"
	if st.Name == "alice" {
		text = "10.9.0.1/24"
	}
	err := st.NS.Do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, a)
	})
	must(t, err)
}
