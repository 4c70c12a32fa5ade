package flow

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const (
	alice Port = 1
	bob   Port = 2
	carol Port = 3
	fwIn  Port = 11
	fwOut Port = 12
	w1In  Port = 13
	w1Out Port = 14
	mon   Port = 15
)

var macC = MAC{2, 0, 0, 0, 0, 0xc}

// lab: three endpoints, two wires, a tap.
func lab(t testing.TB) *Switch {
	t.Helper()
	s := New()
	for p, name := range map[Port]string{alice: "alice", bob: "bob", carol: "carol"} {
		check(t, s.AddEndpoint(p, name))
	}
	check(t, s.AddFunction(Function{Name: "fw", In: fwIn, Out: fwOut, InMAC: MAC{6, 0x57, 1}, OutMAC: MAC{6, 0x57, 2}}))
	check(t, s.AddFunction(Function{Name: "w1", In: w1In, Out: w1Out, Bypass: true}))
	check(t, s.AddFunction(Function{Name: "mon", Tap: mon}))
	return s
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func from(src, dst MAC) []byte {
	f := eth(EtherTypeIPv4, ipv4(ProtoTCP, 0, 4, 0, 0, 80)...)
	copy(f, dst[:])
	copy(f[6:], src[:])
	return f
}

func path(t testing.TB, s *Switch, at Port, frame []byte) string {
	t.Helper()
	r, err := s.Inject(at, frame)
	check(t, err)
	for _, d := range r.Deliveries {
		if string(d.Frame) != string(frame) {
			t.Errorf("delivered changed: % x", d.Frame)
		}
	}
	return strings.Join(r.Path(), " ")
}

func expect(t testing.TB, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBridgeLearnsAndFloods(t *testing.T) {
	s := lab(t)
	expect(t, path(t, s, alice, from(macA, macB)), "endpoint/bob endpoint/carol")
	expect(t, path(t, s, bob, from(macB, macA)), "endpoint/alice")
	expect(t, path(t, s, alice, from(macA, macB)), "endpoint/bob")
	expect(t, path(t, s, bob, from(macA, macB)), "") // macA moved, macB is where it came from
	expect(t, path(t, s, alice, from(macC, MAC{255, 255, 255, 255, 255, 255})), "endpoint/bob endpoint/carol")
	expect(t, path(t, s, alice, from(macA, MAC{1, 0x80, 0xc2, 0, 0, 0xe})), "") // LLDP
	expect(t, path(t, s, alice, from(macA, MAC{1, 0x80, 0xc2, 0, 0, 0})), "endpoint/bob endpoint/carol")
	expect(t, path(t, s, alice, []byte{1, 2, 3}), "")
	if c := s.Counters(alice); c.Rx.Packets != 6 || c.Dropped.Packets != 2 {
		t.Errorf("counters of alice: %+v", c)
	}
}

// chain: alice to bob through fw and w1 with a tap, bob to alice back.
func chain() []Rule {
	return []Rule{
		{Cookie: 1, Priority: 100, Stage: Egress, Match: Match{InPort: alice, OutPort: bob}, Action: Action{Op: Output, Port: fwIn}},
		{Cookie: 2, Priority: 100, Match: Match{InPort: fwOut}, Action: Action{Op: Output, Port: w1In}},
		{Cookie: 3, Priority: 100, Match: Match{InPort: w1Out}, Action: Action{Clones: Clones(mon), Op: Output, Port: bob}},
		{Cookie: 4, Priority: 100, Match: Match{InPort: bob}, Action: Action{Op: Output, Port: w1Out}},
		{Cookie: 5, Priority: 100, Match: Match{InPort: w1In}, Action: Action{Op: Output, Port: fwOut}},
		{Cookie: 6, Priority: 100, Match: Match{InPort: fwIn}, Action: Action{Op: Resume, Port: bob}},
	}
}

func TestChainBothWays(t *testing.T) {
	s := lab(t)
	check(t, s.Commit(chain()))
	expect(t, path(t, s, bob, from(macB, macA)), "function/w1/out function/fw/out endpoint/alice endpoint/carol")
	expect(t, path(t, s, alice, from(macA, macB)), "function/fw/in function/w1/in function/mon/tap endpoint/bob")
	expect(t, path(t, s, carol, from(macC, macB)), "endpoint/bob") // learned at bob, though it came back from a chain
	if got := s.Hits(3); got.Packets != 1 || got.Bytes == 0 {
		t.Errorf("hits %+v", got)
	}
	check(t, s.Commit(append(chain(), Rule{Cookie: 9, Match: Match{InPort: carol}, Action: Action{Op: Drop}})))
	if got := s.Hits(3); got.Packets != 1 {
		t.Errorf("hits after a commit %+v", got)
	}
	expect(t, path(t, s, carol, from(macC, macB)), "")
}

func TestDownFunctionsFollowOnFail(t *testing.T) {
	s := lab(t)
	check(t, s.Commit(chain()))
	s.Inject(bob, from(macB, macA))
	check(t, s.SetDown("w1", true))
	expect(t, path(t, s, alice, from(macA, macB)), "function/fw/in function/mon/tap endpoint/bob")
	check(t, s.SetDown("mon", true))
	expect(t, path(t, s, alice, from(macA, macB)), "function/fw/in endpoint/bob")
	check(t, s.SetDown("fw", true))
	expect(t, path(t, s, alice, from(macA, macB)), "")
	check(t, s.SetDown("fw", false))
	expect(t, path(t, s, bob, from(macB, macA)), "function/fw/out endpoint/alice")
	if s.SetDown("nobody", true) == nil {
		t.Error("unknown function accepted")
	}
}

func TestLearnedExits(t *testing.T) {
	s := lab(t)
	rules := []Rule{
		{Cookie: 1, Priority: 9, Stage: Egress, Match: Match{OutPort: bob}, Learn: true, Action: Action{Op: Output, Port: fwIn}},
		{Cookie: 2, Priority: 9, Stage: Egress, Match: Match{OutPort: carol}, Learn: true, Action: Action{Op: Output, Port: fwIn}},
		{Cookie: 3, Match: Match{InPort: fwOut}, Action: Action{Op: Output}},
		{Cookie: 4, Match: Match{InPort: alice, VLAN: 7}, Learn: true, Action: Action{Op: Output, Port: w1In}},
		{Cookie: 5, Match: Match{InPort: w1Out}, Action: Action{Op: Resume}},
	}
	check(t, s.Commit(rules))
	s.Inject(bob, from(macB, macA))
	s.Inject(carol, from(macC, macA))
	expect(t, path(t, s, alice, from(macA, macC)), "function/fw/in endpoint/carol")
	expect(t, path(t, s, alice, from(macA, macB)), "function/fw/in endpoint/bob")
	expect(t, path(t, s, alice, from(macA, MAC{255, 255, 255, 255, 255, 255})), "function/fw/in function/fw/in") // what is for many has no exit
	tagged := eth(EtherTypeVLAN, 0, 7, 8, 0)
	expect(t, path(t, s, alice, tagged), "function/w1/in function/fw/in endpoint/bob")
	rules[3].Learn = false
	copy(tagged[6:], []byte{2, 9, 9, 9, 9, 9})
	check(t, s.Commit(rules))
	expect(t, path(t, s, alice, tagged), "function/w1/in")
}

func TestOwnWordsOfFunctionsDoNotLeave(t *testing.T) {
	s := lab(t)
	check(t, s.Commit(chain()))
	expect(t, path(t, s, fwOut, from(MAC{6, 0x57, 2}, macB)), "")
	expect(t, path(t, s, fwOut, from(MAC{6, 0x57, 1}, macB)), "")
	expect(t, path(t, s, fwOut, from(macA, macB)), "function/w1/in function/mon/tap endpoint/bob")
	expect(t, path(t, s, mon, from(macA, macB)), "") // no rule names it
	check(t, s.AddFunction(Function{Name: "nat", In: 21, Out: 22, OutMAC: MAC{6, 0x57, 9}, Speaks: true}))
	check(t, s.Commit([]Rule{{Cookie: 1, Match: Match{InPort: 22}, Action: Action{Op: Output, Port: bob}}}))
	expect(t, path(t, s, 22, from(MAC{6, 0x57, 9}, macB)), "endpoint/bob")
}

func TestModelsMayDropRewriteAndMultiply(t *testing.T) {
	s := lab(t)
	check(t, s.AddFunction(Function{Name: "nat", In: 21, Out: 22, Model: func(at Side, f []byte) []Emitted {
		if f[13] == 6 {
			return nil
		}
		back := append([]byte{}, f...)
		copy(f, macC[:])
		return []Emitted{{opposite(at), f}, {at, back}}
	}}))
	check(t, s.Commit([]Rule{
		{Cookie: 1, Match: Match{InPort: alice}, Action: Action{Op: Output, Port: 21}},
		{Cookie: 2, Match: Match{InPort: 22}, Action: Action{Op: Output, Port: bob}},
		{Cookie: 3, Match: Match{InPort: 21}, Action: Action{Op: Output, Port: carol}},
	}))
	r, err := s.Inject(alice, from(macA, macB))
	check(t, err)
	var got []string
	for _, d := range r.Deliveries {
		got = append(got, fmt.Sprintf("%d %s", d.Port, MAC(d.Frame[:6])))
	}
	if diff := cmp.Diff([]string{"2 " + macC.String(), "3 " + macB.String()}, got); diff != "" {
		t.Error(diff)
	}
	expect(t, path(t, s, alice, eth(EtherTypeARP)), "function/nat/in")
}

func TestNoPortNamedIsAnyEndpointButNoFunction(t *testing.T) {
	s := lab(t)
	check(t, s.Commit([]Rule{
		{Cookie: 1, Priority: 9, Match: Match{EtherType: EtherTypeIPv4}, Action: Action{Op: Output, Port: fwIn}},
		{Cookie: 2, Priority: 1, Match: Match{InPort: fwOut}, Action: Action{Op: Output, Port: carol}},
		{Cookie: 3, Priority: 1, Match: Match{InPort: fwIn}, Action: Action{Op: Normal}},
	}))
	expect(t, path(t, s, alice, from(macA, macB)), "function/fw/in endpoint/carol")
	expect(t, path(t, s, bob, from(macB, macA)), "function/fw/in endpoint/carol")
	expect(t, path(t, s, fwIn, from(macA, macB)), "")
}

func TestLoopsEnd(t *testing.T) {
	tests := []struct {
		name  string
		rules []Rule
	}{
		{"two functions", []Rule{
			{Cookie: 1, Match: Match{InPort: alice}, Action: Action{Op: Output, Port: fwIn}},
			{Cookie: 2, Match: Match{InPort: fwOut}, Action: Action{Op: Output, Port: w1In}},
			{Cookie: 3, Match: Match{InPort: w1Out}, Action: Action{Op: Output, Port: fwIn}},
		}},
		{"by clones", []Rule{
			{Cookie: 1, Match: Match{InPort: alice}, Action: Action{Op: Output, Port: fwIn}},
			{Cookie: 2, Match: Match{InPort: fwOut}, Action: Action{Clones: Clones(fwIn), Op: Drop}},
		}},
		{"egress and resume", []Rule{
			{Cookie: 1, Stage: Egress, Match: Match{OutPort: bob}, Action: Action{Op: Resume, Port: alice}},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := lab(t)
			check(t, s.Commit(tt.rules))
			r, err := s.Inject(alice, from(macA, macB))
			if !errors.Is(err, ErrLoop) || len(r.Trail) == 0 {
				t.Errorf("got %v with %d steps", err, len(r.Trail))
			}
		})
	}
	t.Run("bypassed functions", func(t *testing.T) {
		s := lab(t)
		check(t, s.Commit([]Rule{
			{Cookie: 1, Match: Match{InPort: alice}, Action: Action{Op: Output, Port: w1In}},
			{Cookie: 2, Match: Match{InPort: w1Out}, Action: Action{Op: Output, Port: w1In}},
		}))
		check(t, s.SetDown("w1", true))
		if _, err := s.Inject(alice, from(macA, macB)); !errors.Is(err, ErrLoop) {
			t.Errorf("got %v", err)
		}
	})
}

func TestBadCommitChangesNothing(t *testing.T) {
	s := lab(t)
	check(t, s.Commit(chain()))
	s.Inject(bob, from(macB, macA))
	if err := s.Commit([]Rule{{Cookie: 1}, {Cookie: 1}}); err == nil || !strings.Contains(err.Error(), "shared") {
		t.Errorf("got %v", err)
	}
	if s.Commit([]Rule{{Match: Match{VLAN: 5000}}}) == nil {
		t.Error("a bad match was accepted")
	}
	expect(t, path(t, s, alice, from(macA, macB)), "function/fw/in function/w1/in function/mon/tap endpoint/bob")
}

func TestPortsAreChecked(t *testing.T) {
	s := lab(t)
	for _, err := range []error{s.AddEndpoint(0, "x"), s.AddEndpoint(fwIn, "x"), s.AddFunction(Function{Name: "fw", Tap: 99}),
		s.AddFunction(Function{Name: "x", In: 98}), s.AddFunction(Function{Name: "x"}), s.AddFunction(Function{Name: "x", In: 98, Out: 99, Tap: 97})} {
		if err == nil {
			t.Error("accepted")
		}
	}
}

// The index finds what a plain search through all rules finds.
func TestIndexAgreesWithPlainSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var rules []*ruleState
		for i := range rapid.IntRange(0, 40).Draw(t, "rules") {
			r := Rule{Cookie: uint64(i), Priority: rapid.Uint16Range(1, 4).Draw(t, "priority"), Stage: Egress, Match: drawMatch(t)}
			if err := r.Match.Validate(); err != nil { // of the index all stages are alike
				t.Fatal(err)
			}
			rules = append(rules, &ruleState{Rule: r})
		}
		index := newTable(rules)
		for range 20 {
			k, in, out := drawKey(t), drawPort(t), drawPort(t)
			var want *ruleState
			for _, r := range rules {
				if r.Match.Matches(k, in, out) && (want == nil || winner(r, want) < 0) {
					want = r
				}
			}
			if got := index.find(k, in, out, false); got != want {
				t.Fatalf("%v: got %+v, want %+v", k, got, want)
			}
		}
	})
}

func BenchmarkInject10000Rules(b *testing.B) {
	s := lab(b)
	rules := chain()
	for i := range 10000 {
		rules = append(rules, Rule{Cookie: uint64(1000 + i), Priority: 50, Stage: Egress,
			Match: Match{OutPort: bob, EtherType: EtherTypeIPv4, Proto: ProtoTCP, DstPorts: PortRange{uint16(i), uint16(i)}}, Action: Action{Op: Drop}})
	}
	check(b, s.Commit(rules))
	s.Inject(bob, from(macB, macA))
	frame := from(macA, macB)
	for b.Loop() {
		s.Inject(alice, frame)
	}
}
