package ebpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
)

// host is a rig whose switch is opened with options that a test changes.
type host struct {
	*suite.Rig
	opts       Options
	alice, bob *suite.Station
	a, b       *suite.Function
	rules      []flow.Rule
}

func newHost(t *testing.T, o Options) *host {
	t.Helper()
	h := &host{opts: o}
	h.Rig = suite.NewRig(t, func(i instance.Instance) (datapath.Switch, error) {
		o := h.opts
		o.Instance = i
		return Open(context.Background(), o)
	})
	h.alice, h.bob, h.a, h.b = h.Station("alice"), h.Station("bob"), h.Wire("a"), h.Wire("b")
	h.rules = []flow.Rule{
		{Cookie: 1, Note: "in", Stage: flow.Egress, Match: flow.Match{OutPort: h.bob.Port, EtherType: 0x1234}, Action: flow.Action{Op: flow.Output, Port: h.a.Ports.In}},
		{Cookie: 2, Note: "on", Match: flow.Match{InPort: h.a.Ports.Out}, Action: flow.Action{Op: flow.Output, Port: h.b.Ports.In}},
		{Cookie: 3, Note: "out", Match: flow.Match{InPort: h.b.Ports.Out}, Action: flow.Action{Op: flow.Output, Port: h.bob.Port}},
	}
	h.Commit(h.rules...)
	return h
}

func (h *host) hits(t *testing.T) map[uint64]uint64 {
	t.Helper()
	_, rules, err := h.Switch.Status(suite.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	hits := map[uint64]uint64{}
	for _, r := range rules {
		hits[r.Cookie] = r.Hits.Packets
	}
	return hits
}

// Another build of the programs, or tables of another layout, take over under traffic: nothing lost, counters go on.
func TestUpgradeLosesNothing(t *testing.T) {
	for _, hook := range []string{HookClsact, HookTCX, HookAuto} {
		for name, change := range map[string]func(o *Options){
			"programs": func(o *Options) { o.build = "another" },
			"tables":   func(o *Options) { o.Rules, o.Flows, o.Masks = 1000, 1024, 512 },
		} {
			t.Run(hook+"/"+name, func(t *testing.T) {
				h := newHost(t, Options{Hook: hook})
				if err := h.Switch.SetState(suite.Context(t), "b", datapath.Up, os.Getpid()); err != nil {
					t.Fatal(err)
				}
				s := suite.StartStream(h.alice, h.bob)
				suite.Until(t, "traffic", func() bool { return h.bob.Count() > 500 })
				for range 2 {
					before := h.hits(t)
					h.Close()
					change(&h.opts)
					h.Reopen()
					after := h.hits(t)
					for cookie, n := range before {
						if after[cookie] < n || n == 0 {
							t.Errorf("rule %d: %d hits before, %d after", cookie, n, after[cookie])
						}
					}
					if c := h.Commit(h.rules...); c.Unchanged != 3 {
						t.Errorf("equal rules after the upgrade: %+v", c)
					}
					h.opts = Options{Hook: hook}
				}
				s.Stop(t)
				sent := h.hits(t)[1]
				suite.Until(t, "every frame counted at every hop", func() bool {
					hits := h.hits(t)
					sent = hits[1]
					return hits[2] == sent && hits[3] == sent && int(sent) == h.bob.Count()
				})
				entries, err := os.ReadDir(h.Instance.BPFFS())
				if err != nil {
					t.Fatal(err)
				}
				var left []string
				for _, e := range entries {
					if !strings.Contains(e.Name(), ".") {
						kind, _, _ := strings.Cut(e.Name(), "-")
						left = append(left, kind)
					}
				}
				if d := cmp.Diff([]string{"links", "maps", "programs"}, left); d != "" {
					t.Errorf("pins: %s", d)
				}
			})
		}
	}
}

// The process dies at any step of a commit: the next one finds the old rules or the new ones whole, and goes on.
func TestCommitDiesHalfway(t *testing.T) {
	dead := errors.New("killed")
	for _, step := range []string{"staged", "flipped"} {
		t.Run(step, func(t *testing.T) {
			h := newHost(t, Options{})
			h.Close()
			h.opts.fault = func(s string) error {
				if s == step {
					return dead
				}
				return nil
			}
			h.Reopen()
			next := []flow.Rule{h.rules[0], {Cookie: 9, Note: "new", Match: flow.Match{InPort: h.a.Ports.Out}, Action: flow.Action{Op: flow.Output, Port: h.bob.Port}},
				{Cookie: 10, Priority: 3, Match: flow.Match{Proto: 6, DstPorts: flow.PortRange{First: 1, Last: 1000}}, Action: flow.Action{Op: flow.Drop}}}
			if _, err := h.Switch.Commit(suite.Context(t), next); !errors.Is(err, dead) {
				t.Fatal(err)
			}
			h.Close() // writes nothing
			h.opts.fault = nil
			h.Reopen()
			want, other := h.rules, next
			if step == "flipped" {
				want, other = next, h.rules
			}
			s := h.Switch.(*Switch)
			_, stale, err := s.rules.readImage()
			if err != nil {
				t.Fatal(err)
			}
			if !stale.None() {
				t.Errorf("copies differ after repair: %+v", stale)
			}
			if c := h.Commit(want...); c.Unchanged != 3 || c.Added+c.Changed+c.Removed != 0 {
				t.Errorf("the rules in force are not whole: %+v", c)
			}
			stream := suite.StartStream(h.alice, h.bob)
			for i := range 20 {
				h.Commit([][]flow.Rule{other, want}[i%2]...)
			}
			stream.Stop(t)
		})
	}
}

// Somebody unmounts the bpffs: the switch comes back from its files.
func TestBPFFSLost(t *testing.T) {
	h := newHost(t, Options{Hook: HookTCX})
	h.Close()
	if err := os.RemoveAll(filepath.Join(h.Instance.BPFFS(), "links")); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"maps", "programs"} {
		dirs, err := filepath.Glob(filepath.Join(h.Instance.BPFFS(), kind+"-*"))
		if err != nil || len(dirs) != 1 {
			t.Fatal(dirs, err)
		}
		if err := os.RemoveAll(dirs[0]); err != nil {
			t.Fatal(err)
		}
	}
	h.Reopen()
	for _, name := range []string{"a", "b"} {
		if err := h.Switch.SetState(suite.Context(t), name, datapath.Up, 0); err != nil {
			t.Fatal(err)
		}
	}
	if c := h.Commit(h.rules...); c.Unchanged != 3 {
		t.Errorf("%+v", c)
	}
	s := suite.StartStream(h.alice, h.bob)
	suite.Until(t, "traffic", func() bool { return h.bob.Count() > 1200 })
	s.Stop(t)
	if h.hits(t)[3] == 0 {
		t.Error("the chain was not met")
	}
}

// Someone deletes the bridge: the next look at the endpoints makes it anew.
func TestBridgeLost(t *testing.T) {
	h := newHost(t, Options{})
	if err := h.Host.Do(func() error {
		l, err := netlink.LinkByName(h.Instance.Bridge())
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	}); err != nil {
		t.Fatal(err)
	}
	for _, st := range []*suite.Station{h.alice, h.bob} {
		if p, err := h.Switch.AddEndpoint(suite.Context(t), st.E); err != nil || p != st.Port {
			t.Fatal(p, err)
		}
	}
	s := suite.StartStream(h.alice, h.bob)
	suite.Until(t, "traffic", func() bool { return h.bob.Count() > 1200 })
	s.Stop(t)
	if h.hits(t)[3] == 0 {
		t.Error("the chain was not met")
	}
}

// Links made anew move the ports, which keep their numbers: the same rules write nothing.
func TestFunctionMoves(t *testing.T) {
	h := newHost(t, Options{})
	err := h.Host.Do(func() error {
		for _, name := range []string{h.a.F.In, h.a.F.Out} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkDel(l); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	old := h.a.Ports
	again := h.Links(datapath.Function{Name: "a2", Forwarder: "wire"}, false)
	f := again.F
	f.Name = "a"
	ports, err := h.Switch.AddFunction(suite.Context(t), f)
	if err != nil {
		t.Fatal(err)
	}
	if ports != old {
		t.Fatalf("ports %v, were %v", ports, old)
	}
	if err := h.Switch.SetState(suite.Context(t), "a", datapath.Up, 0); err != nil {
		t.Fatal(err)
	}
	s := suite.StartStream(h.alice, h.bob)
	suite.Until(t, "traffic", func() bool { return h.bob.Count() > 1500 })
	before := h.Switch.(*Switch).control.version
	if c := h.Commit(h.rules...); c.Changed != 0 || c.Version != before {
		t.Errorf("moved ports: %+v, version was %d", c, before)
	}
	s.Stop(t)
}

func TestTablesFull(t *testing.T) {
	h := newHost(t, Options{Ports: 16, Rules: 64, Keys: 64, Masks: 32, Flows: 64})
	rule := func(i int, m flow.Match) flow.Rule {
		m.OutPort = h.bob.Port
		return flow.Rule{Cookie: uint64(100 + i), Priority: uint16(i), Stage: flow.Egress, Match: m, Action: flow.Action{Op: flow.Drop}}
	}
	var many, wide, shapes []flow.Rule
	for i := range 70 {
		many = append(many, rule(i, flow.Match{EtherType: uint16(0x1000 + i)}))
	}
	for i := range 5 {
		wide = append(wide, rule(i, flow.Match{VLAN: uint16(1 + i), Proto: 6, DstPorts: flow.PortRange{First: 1, Last: 65534}}))
	}
	for i := range 20 {
		m := flow.Match{}
		m.SrcMACMask[i/8] = 1 << (i % 8)
		m.DstMACMask[(i+3)/8] = 1 << ((i + 3) % 8)
		shapes = append(shapes, rule(i, m), rule(100+i, flow.Match{SrcMACMask: m.DstMACMask}))
	}
	for name, c := range map[string]struct {
		rules []flow.Rule
		text  string
	}{"rules": {many, "Rules"}, "keys": {wide, "Keys"}, "shapes": {shapes, "Masks"}} {
		_, err := h.Switch.Commit(suite.Context(t), c.rules)
		if !errors.Is(err, datapath.ErrFull) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want ErrFull that names %s", name, err, c.text)
		}
	}
	var err error
	for i := 0; err == nil && i < 20; i++ {
		st := h.Unplugged(fmt.Sprintf("more%d", i))
		_, err = h.Switch.AddEndpoint(suite.Context(t), st.E)
	}
	if !errors.Is(err, datapath.ErrFull) {
		t.Errorf("ports: %v, want ErrFull", err)
	}
	if c := h.Commit(h.rules...); c.Unchanged != 3 {
		t.Errorf("something changed: %+v", c)
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	h := newHost(t, Options{})
	err := h.Host.Do(func() error {
		_, err := Open(context.Background(), Options{Instance: h.Instance})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("%v", err)
	}
}
