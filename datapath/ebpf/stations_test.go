package ebpf

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
)

const (
	taken     uint16 = 0x1234 // by the rules of newHost
	untaken   uint16 = 0x9000
	broadcast        = "\xff\xff\xff\xff\xff\xff"
)

// say sends a frame and gives what tells it from others.
func say(t *testing.T, n *int, from *suite.Station, as flow.MAC, to string, etherType uint16) []byte {
	t.Helper()
	*n++
	m := fmt.Appendf(nil, "weir-frame-%08d.", *n)
	f := binary.BigEndian.AppendUint16(append([]byte(to), as[:]...), etherType)
	from.Send(t, append(f, m...))
	return m
}

func arrives(t *testing.T, at *suite.Station, m []byte) {
	t.Helper()
	suite.Until(t, fmt.Sprintf("%s at %s", m, at.Name), func() bool { return len(at.Frames(m)) == 1 })
}

// isolate stations: the bridge forwards nothing between them.
func (h *host) isolate(t *testing.T, off bool, stations ...*suite.Station) {
	t.Helper()
	if err := h.Host.Do(func() error {
		for _, st := range stations {
			l, err := netlink.LinkByName(st.E.Link)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetIsolated(l, off); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// speak has alice and bob send to everybody: the bridge meets both.
func (h *host) speak(t *testing.T, n *int) {
	t.Helper()
	arrives(t, h.alice, say(t, n, h.bob, h.bob.MAC, broadcast, untaken))
	arrives(t, h.bob, say(t, n, h.alice, h.alice.MAC, broadcast, untaken))
}

// moves has bob turn up at another station's port, and come back: what alice sends to him goes where the bridge has met him.
func (h *host) moves(t *testing.T, n *int, to *suite.Station) {
	t.Helper()
	arrives(t, h.alice, say(t, n, to, h.bob.MAC, broadcast, untaken))
	m := say(t, n, h.alice, h.alice.MAC, string(h.bob.MAC[:]), taken)
	arrives(t, to, m)
	if len(h.bob.Frames(m)) > 0 {
		t.Errorf("a frame came to bob while the bridge had met him at %s's", to.Name)
	}
	h.speak(t, n)
}

// sentTo counts the frames that left by a station's port.
func (h *host) sentTo(t *testing.T, st *suite.Station) uint64 {
	t.Helper()
	ports, _, err := h.Switch.Status(suite.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		if p.Port == st.Port {
			return p.Tx.Packets
		}
	}
	t.Fatalf("no port of %s", st.Name)
	return 0
}

// What a rule at bob's egress takes from alice does not cross the bridge, once the bridge has met both; all else does.
func TestPastTheBridge(t *testing.T) {
	for _, hook := range []string{HookClsact, HookTCX} {
		t.Run(hook, func(t *testing.T) {
			h := newHost(t, Options{Hook: hook})
			n := 0
			bridge := func(off bool) { t.Helper(); h.isolate(t, off, h.alice, h.bob) }
			to := string(h.bob.MAC[:])
			// passes sends one frame of each kind while the bridge is shut: the taken one arrives if it goes past the bridge, the other never does.
			passes := func(want bool) {
				t.Helper()
				bridge(true)
				m, other := say(t, &n, h.alice, h.alice.MAC, to, taken), say(t, &n, h.alice, h.alice.MAC, to, untaken)
				if want {
					arrives(t, h.bob, m)
				}
				bridge(false)
				arrives(t, h.bob, say(t, &n, h.alice, h.alice.MAC, to, untaken)) // behind the others
				arrives(t, h.bob, say(t, &n, h.alice, h.alice.MAC, to, taken))
				if len(h.bob.Frames(other)) > 0 {
					t.Error("a frame that no rule takes went past the bridge")
				}
				if !want && len(h.bob.Frames(m)) > 0 {
					t.Error("a frame went past the bridge, want none")
				}
			}
			speak := func() { t.Helper(); h.speak(t, &n) }
			add := func(st *suite.Station) {
				t.Helper()
				var err error
				if st.Port, err = h.Switch.AddEndpoint(suite.Context(t), st.E); err != nil {
					t.Fatal(err)
				}
			}
			wantStatic(t, h, h.alice, h.bob)
			passes(false) // nobody has spoken: at home is who the bridge has met there
			speak()
			passes(true)
			if hits := h.hits(t); hits[1] != 3 || hits[2] != 3 || hits[3] != 3 { // of four: the shut bridge kept one
				t.Errorf("rules' hits: %v, want 3 each", hits)
			}

			carol := h.Station("carol")
			h.moves(t, &n, carol)
			passes(true)
			wantStatic(t, h, h.alice, h.bob, carol)

			h.Close()
			h.Reopen()
			passes(true)

			twin := h.Unplugged("twin")
			twin.E.Peer = h.bob.MAC
			add(twin)
			wantStatic(t, h, h.alice, carol)
			speak()
			passes(false) // who of the two is bob?
			if err := h.Switch.Remove(suite.Context(t), "endpoint/twin"); err != nil {
				t.Fatal(err)
			}
			wantStatic(t, h, h.alice, h.bob, carol)
			speak()
			passes(true)

			// An entry that has moved goes with the port where it is; and comes again.
			arrives(t, h.alice, say(t, &n, carol, h.bob.MAC, broadcast, untaken))
			if err := h.Switch.Remove(suite.Context(t), "endpoint/carol"); err != nil {
				t.Fatal(err)
			}
			wantStatic(t, h, h.alice)
			speak()
			s := h.Switch.(*Switch)
			s.gate.Lock()
			s.onlookers.kept = time.Time{}
			s.gate.Unlock()
			suite.Until(t, "bob's static entry", func() bool { return len(static(t, h)) == 2 })
			wantStatic(t, h, h.alice, h.bob)
			passes(true)
			add(carol)

			arrives(t, h.alice, say(t, &n, carol, h.bob.MAC, broadcast, untaken))
			known := h.bob.E
			h.bob.E.Peer = flow.MAC{2, 7}
			add(h.bob)
			if got := static(t, h); slices.ContainsFunc(got, func(e string) bool { return strings.HasSuffix(e, h.bob.MAC.String()) }) {
				t.Errorf("bob's address is not his any more: %q", got)
			}
			speak()
			passes(false)
			h.bob.E = known
			add(h.bob)
			speak()
			passes(true)
			wantStatic(t, h, h.alice, h.bob, carol)

			rules := func(family string) { // of somebody else
				t.Helper()
				h.run(t, "nft", fmt.Sprintf("add table %[1]s foreign; add chain %[1]s foreign c { type filter hook forward priority 0 ; }", family))
			}
			without := func(family string) {
				t.Helper()
				h.run(t, "nft", "delete table "+family+" foreign")
			}
			for _, family := range []string{"bridge", "ip"} {
				h.shown(t, family == "ip")
				rules(family)
				suite.Until(t, "the switch to look around", func() bool { return !h.past() })
				speak()
				passes(false) // someone's rules are to see what crosses the bridge
				without(family)
				suite.Until(t, "the switch to look around", h.past)
				speak()
				passes(true)
			}
			h.shown(t, false)
			option := func(on string) {
				h.run(t, "ip", "link", "set", h.Instance.Bridge(), "type", "bridge", "nf_call_iptables", on)
			}
			option("1")
			rules("ip")
			suite.Until(t, "the switch to look around", func() bool { return !h.past() })
			without("ip")
			option("0")
			suite.Until(t, "the switch to look around", h.past)
			speak()
			rules("ip")
			if err := h.Switch.(*Switch).lookAgain(); err != nil {
				t.Fatal(err)
			}
			passes(true) // they see nothing of what is bridged

			h.Commit() // who moves while there are no rules is not noted
			arrives(t, h.alice, say(t, &n, carol, h.bob.MAC, broadcast, untaken))
			h.Commit(h.rules...)
			arrives(t, carol, say(t, &n, h.alice, h.alice.MAC, to, taken))
			speak()
			passes(true)
		})
	}
}

// What resumes at alice's port behind a function goes straight to bob, once the bridge has met both and no rule waits for it at bob's; else by the bridge.
func TestResumedPastTheBridge(t *testing.T) {
	for _, hook := range []string{HookClsact, HookTCX} {
		t.Run(hook, func(t *testing.T) {
			h := newHost(t, Options{Hook: hook})
			n, to := 0, string(h.bob.MAC[:])
			exhaustive := []flow.Rule{
				{Cookie: 1, Match: flow.Match{InPort: h.alice.Port, EtherType: taken}, Action: flow.Action{Op: flow.Output, Port: h.a.Ports.In}},
				{Cookie: 2, Match: flow.Match{InPort: h.a.Ports.Out}, Action: flow.Action{Op: flow.Resume, Port: h.alice.Port}},
				{Cookie: 3, Stage: flow.Egress, Match: flow.Match{OutPort: h.alice.Port, EtherType: taken}, Action: flow.Action{Op: flow.Output, Port: h.a.Ports.Out}},
				{Cookie: 4, Match: flow.Match{InPort: h.a.Ports.In}, Action: flow.Action{Op: flow.Output, Port: h.alice.Port}},
			}
			h.Commit(exhaustive...)
			passes := func(want bool) {
				t.Helper()
				h.isolate(t, true, h.alice, h.bob)
				sent := h.sentTo(t, h.bob)
				m := say(t, &n, h.alice, h.alice.MAC, to, taken)
				if want {
					arrives(t, h.bob, m)
					if got := h.sentTo(t, h.bob); got != sent+1 {
						t.Errorf("%d frames counted at bob's port, want %d", got, sent+1)
					}
				}
				h.isolate(t, false, h.alice, h.bob)
				arrives(t, h.bob, say(t, &n, h.alice, h.alice.MAC, to, taken)) // behind the other
				if !want && len(h.bob.Frames(m)) > 0 {
					t.Error("a frame went past the bridge, want none")
				}
			}
			speak := func() { t.Helper(); h.speak(t, &n) }
			passes(false) // nobody has spoken
			speak()
			passes(true)

			carol := h.Station("carol")
			h.moves(t, &n, carol)
			passes(true)

			// A frame of another's address behind alice's port: the bridge is to hear of it.
			m := say(t, &n, h.alice, flow.MAC{2, 9}, to, taken)
			arrives(t, h.bob, m)
			arrives(t, h.alice, say(t, &n, h.bob, h.bob.MAC, string([]byte{2, 9, 0, 0, 0, 0}), untaken))

			// What rules wait for at bob's port meets them there.
			h.Commit(append(exhaustive, flow.Rule{Cookie: 5, Stage: flow.Egress, Match: flow.Match{OutPort: h.bob.Port, EtherType: taken}, Action: flow.Action{Op: flow.Drop}})...)
			speak()
			m = say(t, &n, h.alice, h.alice.MAC, to, taken)
			suite.Until(t, "the rule at bob's port to count", func() bool { return h.hits(t)[5] == 1 })
			arrives(t, h.bob, say(t, &n, h.alice, h.alice.MAC, to, untaken))
			if len(h.bob.Frames(m)) > 0 {
				t.Error("a frame came past the rule at its exit")
			}
			h.Commit(exhaustive...)
			passes(true)

			h.run(t, "nft", "add table bridge foreign; add chain bridge foreign c { type filter hook forward priority 0 ; }")
			suite.Until(t, "the switch to look around", func() bool { return !h.past() })
			speak()
			passes(false) // someone's rules are to see what crosses the bridge
			h.run(t, "nft", "delete table bridge foreign")
			suite.Until(t, "the switch to look around", h.past)
			speak()
			passes(true)
		})
	}
}

// What bridges say to each other stays on its link, and tells neither for nor against that a station is at home: of some of it the bridge learns
// nothing.
func TestBridgesOwnProtocolsAreNoStations(t *testing.T) {
	h := newHost(t, Options{})
	n := 0
	carol := h.Station("carol")
	group := func(last byte) string { return string([]byte{1, 0x80, 0xc2, 0, 0, last}) }
	speak := func() {
		t.Helper()
		arrives(t, h.alice, say(t, &n, h.bob, h.bob.MAC, broadcast, untaken))
		arrives(t, h.bob, say(t, &n, h.alice, h.alice.MAC, broadcast, untaken))
	}
	// none of frames comes to anybody, though one behind them does.
	kept := func(frames ...[]byte) {
		t.Helper()
		speak()
		for _, m := range frames {
			for _, st := range []*suite.Station{h.alice, h.bob, carol} {
				if len(st.Frames(m)) > 0 {
					t.Errorf("%s came to %s", m, st.Name)
				}
			}
		}
	}
	speak()
	kept(say(t, &n, h.alice, h.alice.MAC, group(1), taken), say(t, &n, h.alice, h.alice.MAC, group(2), taken), say(t, &n, h.alice, h.alice.MAC, group(0xe), taken))

	arrives(t, h.alice, say(t, &n, carol, h.bob.MAC, broadcast, untaken)) // bob is at carol's, says the bridge
	say(t, &n, h.bob, h.bob.MAC, group(1), untaken)                       // a pause: the bridge drops it, and learns nothing
	arrives(t, carol, say(t, &n, h.alice, h.alice.MAC, string(h.bob.MAC[:]), taken))

	speak()
	say(t, &n, carol, h.bob.MAC, group(0xe), untaken) // LLDP: the bridge keeps it, and learns
	arrives(t, carol, say(t, &n, h.alice, h.alice.MAC, string(h.bob.MAC[:]), taken))
}

// A port that is added anew says nothing of where its station is meanwhile; one that is new does.
func TestAddingAnewLeavesAStationWhereItWasMet(t *testing.T) {
	h := newHost(t, Options{})
	n := 0
	carol := h.Station("carol")
	add := func(st *suite.Station) {
		t.Helper()
		var err error
		if st.Port, err = h.Switch.AddEndpoint(suite.Context(t), st.E); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := h.Switch.Remove(suite.Context(t), "endpoint/"+name); err != nil {
			t.Fatal(err)
		}
	}
	// at: frames to the address of bob come to that station only.
	at := func(want *suite.Station) {
		t.Helper()
		for _, etherType := range []uint16{taken, untaken} {
			m := say(t, &n, h.alice, h.alice.MAC, string(h.bob.MAC[:]), etherType)
			arrives(t, want, m)
			for _, st := range []*suite.Station{h.bob, carol} {
				if st != want && len(st.Frames(m)) > 0 {
					t.Errorf("%s came to %s, too", m, st.Name)
				}
			}
		}
	}
	moves := func() {
		t.Helper()
		arrives(t, h.alice, say(t, &n, carol, h.bob.MAC, broadcast, untaken))
		at(carol)
	}
	returns := func() {
		t.Helper()
		arrives(t, h.alice, say(t, &n, h.bob, h.bob.MAC, broadcast, untaken))
		at(h.bob)
	}
	returns()
	moves()
	h.run(t, "ip", "link", "set", h.bob.E.Link, "nomaster")
	add(h.bob)
	at(carol)
	returns()

	twin := h.Unplugged("twin")
	twin.E.Peer = h.bob.MAC
	add(twin)
	moves()
	remove("twin")
	at(carol)
	returns()

	moves() // the endpoint goes: nothing is left that would not age
	remove("bob")
	if got := static(t, h); slices.ContainsFunc(got, func(e string) bool { return strings.HasSuffix(e, h.bob.MAC.String()) }) {
		t.Errorf("static addresses of the bridge: %q, want none of bob's", got)
	}
	add(h.bob) // as new
	h.Commit(h.rules...)
	at(h.bob)
	wantStatic(t, h, h.alice, h.bob, carol)
}

func (h *host) past() bool {
	s := h.Switch.(*Switch)
	s.gate.Lock()
	defer s.gate.Unlock()
	return s.control.past
}

// run carries a command out in the switch's namespace.
func (h *host) run(t *testing.T, command ...string) {
	t.Helper()
	if err := h.Host.Do(func() error {
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// shown sets whether iptables and the like are shown bridged packets.
func (h *host) shown(t *testing.T, on bool) {
	t.Helper()
	if err := h.Host.Do(func() error {
		return os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte(map[bool]string{true: "1", false: "0"}[on]), 0o644)
	}); err != nil {
		t.Fatal(err)
	}
}

// wantStatic: the bridge's static entries are these stations'.
func wantStatic(t *testing.T, h *host, stations ...*suite.Station) {
	t.Helper()
	var want []string
	for _, st := range stations {
		want = append(want, st.E.Link+" "+st.MAC.String())
	}
	slices.Sort(want)
	if got := static(t, h); !slices.Equal(got, want) {
		t.Errorf("static addresses of the bridge: %q, want %q", got, want)
	}
}

// static entries of the bridge, in order.
func static(t *testing.T, h *host) (got []string) {
	t.Helper()
	err := h.Host.Do(func() error {
		all, err := netlink.NeighList(0, unix.AF_BRIDGE)
		for _, e := range all {
			if l, lerr := netlink.LinkByIndex(e.LinkIndex); lerr == nil && e.State&netlink.NUD_NOARP != 0 && e.MasterIndex != 0 && e.Vlan == 0 {
				got = append(got, l.Attrs().Name+" "+e.HardwareAddr.String())
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	return got
}
