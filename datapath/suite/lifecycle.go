package suite

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// Stream is a counted stream of numbered frames from one station to another, for finding out what an action loses or doubles.
type Stream struct {
	from, to *Station
	stop     chan struct{}
	done     sync.WaitGroup
	sent     atomic.Uint64
	anyOrder bool
}

// enough frames for a stream to tell something.
const enough = 1000

// StartStream sends frames (EtherType 0x1234), never more than 64 of them under way.
func StartStream(from, to *Station) *Stream {
	s := &Stream{from: from, to: to, stop: make(chan struct{})}
	s.done.Go(func() {
		for {
			select {
			case <-s.stop:
				return
			default:
			}
			sent, came := s.sent.Load(), uint64(to.Count())
			if sent > came+64 && !s.wait() {
				return
			}
			payload := binary.BigEndian.AppendUint64(make([]byte, 46), sent)
			if from.send(l2(to.MAC, from.MAC, nil, 0x1234, payload)) != nil {
				return
			}
			s.sent.Add(1)
		}
	})
	return s
}

// wait for frames under way; lost ones are not waited for.
func (s *Stream) wait() bool {
	select {
	case <-s.stop:
		return false
	default:
	}
	at := s.to.Count()
	for range 50000 {
		if s.to.Count() != at {
			break
		}
		runtime.Gosched()
	}
	return true
}

// Stop ends the stream when it is long enough and reports frames that were lost, came twice or out of order.
func (s *Stream) Stop(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(patience); s.sent.Load() < enough && time.Now().Before(end); {
		unix.Nanosleep(&unix.Timespec{Nsec: 1e5}, nil)
	}
	close(s.stop)
	s.done.Wait()
	lost, twice, late := s.count(t)
	if s.anyOrder {
		t.Logf("%d out of order", late)
		late = 0
	}
	sent := s.sent.Load()
	t.Logf("%d frames", sent)
	if lost+twice+late > 0 {
		t.Errorf("of %d frames %d lost, %d doubled, %d out of order", sent, lost, twice, late)
	}
	if sent < enough {
		t.Errorf("only %d frames", sent)
	}
}

func (s *Stream) count(t testing.TB) (lost, twice, late int) {
	t.Helper()
	seen := make([]int, s.sent.Load())
	tally := func() bool {
		clear(seen)
		got := 0
		s.to.mu.Lock()
		defer s.to.mu.Unlock()
		last := -1
		late = 0
		for _, f := range s.to.frames {
			if len(f) != 68 || f[12] != 0x12 || f[13] != 0x34 {
				continue
			}
			n := int(binary.BigEndian.Uint64(f[60:]))
			if n < last {
				late++
			}
			last = n
			seen[n]++
			got++
		}
		return got >= len(seen)
	}
	for end := time.Now().Add(patience); !tally() && time.Now().Before(end); { // what is under way
		unix.Nanosleep(&unix.Timespec{Nsec: 1e5}, nil)
	}
	for _, n := range seen {
		switch {
		case n == 0:
			lost++
		case n > 1:
			twice += n - 1
		}
	}
	return lost, twice, late
}

// testCommitTraffic: commits lose and double nothing.
func testCommitTraffic(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	a, b, c, d := r.Wire("a"), r.Wire("b"), r.Wire("c"), r.Wire("d")
	chains := [][]hop{{{fn: a}, {fn: b}}, {{fn: c}, {fn: d}}, nil, {{fn: a}, {fn: c}, {fn: b}}}
	rules := func(i int) []flow.Rule {
		if chains[i] == nil {
			return nil
		}
		p := policy{mode: "selective", from: alice, to: bob, chain: chains[i], match: flow.Match{EtherType: 0x1234}, cookie: uint64(i)<<32 | 1}
		more := policy{mode: "selective", from: alice, to: bob, chain: chains[i][:1], match: flow.Match{EtherType: 0x1235}, cookie: uint64(i)<<32 | 1000, priority: uint16(10 + i)}
		return append(p.rules(), more.rules()[:1]...)
	}
	r.Commit(rules(0)...)
	s := StartStream(alice, bob)
	for i := range 100 {
		r.Commit(rules((i + 1) % len(chains))...)
	}
	if !r.can(Ordered) {
		s.anyOrder = true
	}
	s.Stop(t)
}

// testRestart: another process finds everything as it was, writes nothing and counts on.
func testRestart(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	wire, tap := r.Wire("wire"), r.Tap("tap")
	down := r.Links(datapath.Function{Name: "down"}, false)
	r.Plug(down)
	rules := policy{mode: "selective", from: alice, to: bob, chain: []hop{{fn: tap, tap: true}, {fn: wire}}, match: flow.Match{EtherType: 0x1234}, cookie: 7}.rules()
	for i := range rules {
		rules[i].Note = "rule " + string(rune('a'+i))
	}
	first := r.Commit(rules...)
	// Under traffic: closed, opened, told of the same ports and rules again. All stays as it was.
	type all struct {
		Ports []datapath.PortStatus
		Rules []datapath.RuleStatus
	}
	status := func() (a all) {
		var err error
		if a.Ports, a.Rules, err = r.Switch.Status(Context(t)); err != nil {
			t.Fatal(err)
		}
		return a
	}
	s := StartStream(alice, bob)
	Until(t, "some frames", func() bool { return bob.Count() > 200 })
	for range 3 {
		Until(t, "they are counted", func() bool { return status().Rules[0].Hits.Packets > 200 })
		before := status()
		r.Close()
		if _, err := r.Switch.Commit(Context(t), rules); err == nil {
			t.Error("a closed switch took rules")
		}
		r.Reopen()
		for _, st := range r.Stations {
			if p, err := r.Switch.AddEndpoint(Context(t), st.E); err != nil || p != st.Port {
				t.Fatalf("endpoint %s: port %d, %v; was %d", st.Name, p, err, st.Port)
			}
		}
		for _, fn := range r.Funcs {
			if p, err := r.Switch.AddFunction(Context(t), fn.F); err != nil || p != fn.Ports {
				t.Fatalf("function %s: ports %v, %v; were %v", fn.Name, p, err, fn.Ports)
			}
		}
		if d := cmp.Diff(datapath.Commit{Unchanged: len(rules), Version: first.Version}, r.Commit(rules...)); d != "" {
			t.Errorf("equal rules after a restart: %s", d)
		}
		after := status()
		for i, b := range before.Ports {
			a := after.Ports[i]
			if a.Name != b.Name || a.State != b.State || a.Rx.Packets < b.Rx.Packets || a.Tx.Packets < b.Tx.Packets || a.Rx.Bytes < b.Rx.Bytes {
				t.Errorf("port before %+v, after %+v", b, a)
			}
		}
		for i, b := range before.Rules {
			a := after.Rules[i]
			if a.Cookie != b.Cookie || a.Note != b.Note || a.Hits.Packets < b.Hits.Packets || a.Hits.Bytes < b.Hits.Bytes {
				t.Errorf("rule before %+v, after %+v", b, a)
			}
		}
		before = after
	}
	s.Stop(t)
	// Only counters, exactly.
	Until(t, "every frame counted", func() bool {
		return status().Rules[0].Hits == datapath.Counter{Packets: s.sent.Load(), Bytes: 68 * s.sent.Load()}
	})
}

// Snapshot of a host: all that the switch could leave behind.
func Snapshot(t testing.TB, r *Rig) string {
	t.Helper()
	var b strings.Builder
	err := r.Host.Netlink(func(h *netlink.Handle) error {
		links, err := h.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			a := l.Attrs()
			// Carrier and promiscuity belong to the link as others left it.
			lines := []string{a.Name, l.Type(), a.Alias, a.Flags.String(), a.HardwareAddr.String()}
			b.WriteString(strings.Join(lines, " ") + " master " + string(rune('0'+a.MasterIndex)) + "\n")
			qdiscs, err := h.QdiscList(l)
			if err != nil {
				return err
			}
			for _, q := range qdiscs {
				b.WriteString("  " + q.Type() + "\n")
			}
			for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
				filters, err := h.FilterList(l, parent)
				if err != nil {
					continue // no clsact
				}
				for _, f := range filters {
					b.WriteString("  filter " + f.Type() + "\n")
				}
			}
			addresses, err := h.AddrList(l, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			for _, at := range addresses {
				b.WriteString("  " + at.IPNet.String() + "\n")
			}
		}
		return nil
	})
	must(t, err)
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for _, l := range strings.Split(string(mounts), "\n") {
		if strings.Contains(l, r.dir) {
			b.WriteString(l + "\n")
		}
	}
	var files []string
	for _, dir := range []string{r.Instance.Run, r.Instance.Root} {
		_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err == nil {
				files = append(files, path)
			}
			return nil
		})
	}
	slices.Sort(files)
	return b.String() + strings.Join(files, "\n")
}

// testHeld: a held endpoint has its number and passes nothing until it is let go; one that passes frames is not held up.
func testHeld(t *testing.T, open Factory) {
	r := NewRig(t, open)
	bob, alice := r.Station("bob"), r.Unplugged("alice")
	alice.E.Held = true
	r.plugStation(alice)
	r.Commit(flow.Rule{Cookie: 1, Match: flow.Match{InPort: alice.Port, EtherType: 0x88b5}, Action: flow.Action{Op: flow.Drop}})
	n := 0
	frame := func(etherType uint16) (m, f []byte) {
		n++
		m = mark(n)
		return m, l2(bob.MAC, alice.MAC, nil, etherType, m)
	}
	// While it is held nothing passes, also after a restart.
	var early [][]byte
	held := func() {
		for _, e := range []uint16{0x88b5, 0x1234} {
			m, f := frame(e)
			_ = alice.send(f) // its link may be down
			early = append(early, m)
		}
	}
	held()
	r.Close()
	r.Reopen()
	if p, err := r.Switch.AddEndpoint(Context(t), alice.E); err != nil || p != alice.Port {
		t.Fatalf("held again: port %d, %v; was %d", p, err, alice.Port)
	}
	held()
	// Once it passes frames, it is not held up any more, and its rules were there before the first frame.
	for _, held := range []bool{false, true, false} {
		alice.E.Held = held
		if p, err := r.Switch.AddEndpoint(Context(t), alice.E); err != nil || p != alice.Port {
			t.Fatalf("held %v: port %d, %v; was %d", held, p, err, alice.Port)
		}
		dropped, f := frame(0x88b5)
		passed, g := frame(0x1234)
		Until(t, "a frame passes", func() bool {
			_ = alice.send(f)
			return alice.send(g) == nil && len(bob.Frames(passed)) > 0
		})
		if got := bob.Frames(dropped); len(got) > 0 {
			t.Errorf("%d frames went past the rule", len(got))
		}
	}
	for _, m := range early {
		if len(bob.Frames(m)) > 0 {
			t.Errorf("%s passed while the endpoint was held", m)
		}
	}
	// One that was only ever held leaves nothing behind.
	other := r.Unplugged("carol")
	other.E.Held = true
	r.settle()
	before := Snapshot(t, r)
	for range 2 {
		if _, err := r.Switch.AddEndpoint(Context(t), other.E); err != nil {
			t.Fatal(err)
		}
		must(t, r.Switch.Remove(Context(t), "endpoint/carol"))
	}
	if d := cmp.Diff(before, Snapshot(t, r)); d != "" {
		t.Errorf("left behind:\n%s", d)
	}
}

// testDestroy: nothing is left behind, of a switch in use and of one that nobody drives.
func testDestroy(t *testing.T, open Factory) {
	for _, c := range []string{"open", "closed", "removed one by one"} {
		t.Run(c, func(t *testing.T) {
			r := NewRig(t, open)
			must(t, r.Switch.Destroy(Context(t)))
			// Links as they were found, one of them down, with things of others.
			nic := r.Unplugged("nic")
			fn := r.Links(datapath.Function{Name: "f", Forwarder: "wire"}, false)
			tap := r.Links(datapath.Function{Name: "t"}, true)
			foreign(t, r, nic.E.Link)
			err := r.Host.Do(func() error { // a link as found somewhere: down
				l, err := netlink.LinkByName(nic.E.Link)
				if err != nil {
					return err
				}
				return netlink.LinkSetDown(l)
			})
			must(t, err)
			before := Snapshot(t, r)
			r.Reopen()
			port, err := r.Switch.AddEndpoint(Context(t), nic.E)
			must(t, err)
			r.Plug(fn)
			r.Plug(tap)
			r.Commit(flow.Rule{Cookie: 1, Match: flow.Match{InPort: port}, Action: flow.Action{Op: flow.Output, Port: fn.Ports.In}})
			switch c {
			case "closed":
				r.Close()
			case "removed one by one":
				for _, o := range []string{"endpoint/nic", "function/f", "function/t", "function/f", "endpoint/nobody"} {
					must(t, r.Switch.Remove(Context(t), o))
				}
				if ports, err := r.Switch.Ports(Context(t)); err != nil || len(ports) > 0 {
					t.Errorf("ports left: %v, %v", ports, err)
				}
			}
			// Destroy finds the switch open, closed or empty, and nothing the second time.
			for range 2 {
				err := r.Host.Do(func() error { return r.Switch.Destroy(Context(t)) })
				must(t, err)
			}
			var d string
			Until(t, "nothing left", func() bool { d = cmp.Diff(before, Snapshot(t, r)); return d == "" || t.Failed() })
			if d != "" {
				t.Error(d)
			}
		})
	}
}

// foreign puts somebody else's clsact and filter on a link.
func foreign(t testing.TB, r *Rig, link string) {
	t.Helper()
	err := r.Host.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		index := l.Attrs().Index
		if err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}); err != nil {
			return err
		}
		return netlink.FilterAdd(&netlink.U32{FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: unix.ETH_P_ALL},
			ClassId: netlink.MakeHandle(1, 1)})
	})
	must(t, err)
}

// testRefusals: what cannot be is refused with a reason, and changes nothing.
func testRefusals(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice := r.Station("alice")
	fn := r.Wire("f")
	kept := flow.Rule{Cookie: 1, Priority: 5, Match: flow.Match{InPort: alice.Port, EtherType: 0x1234}, Action: flow.Action{Op: flow.Drop}}
	r.Commit(kept)

	// Links that are in use elsewhere: one with an address, one in another bridge.
	busy := r.Unplugged("busy")
	host := func(f func(h *netlink.Handle) error) {
		t.Helper()
		must(t, r.Host.Netlink(f))
	}
	enslaved := r.Unplugged("enslaved")
	host(func(h *netlink.Handle) error {
		l, err := h.LinkByName(busy.E.Link)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr("192.0.2.1/24")
		if err != nil {
			return err
		}
		if err := h.AddrAdd(l, a); err != nil {
			return err
		}
		other := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "other"}}
		if err := h.LinkAdd(other); err != nil {
			return err
		}
		if l, err = h.LinkByName(enslaved.E.Link); err != nil {
			return err
		}
		return h.LinkSetMaster(l, other)
	})
	for _, c := range []struct {
		name, text string
		e          datapath.Endpoint
	}{
		{"no such link", "not found", datapath.Endpoint{Name: "x", Link: "nolink"}},
		{"a name that no link can have", "1 to 15 bytes", datapath.Endpoint{Name: "x", Link: "averyveryverylongname"}},
		{"no name", "name is needed", datapath.Endpoint{Link: alice.E.Link}},
		{"already a port", "already the port endpoint/alice", datapath.Endpoint{Name: "x", Link: alice.E.Link}},
		{"a function's", "already the port function/f/in", datapath.Endpoint{Name: "x", Link: fn.F.In}},
		{"in another bridge", "belongs to other", datapath.Endpoint{Name: "x", Link: enslaved.E.Link}},
		{"with an address", "192.0.2.1/24", datapath.Endpoint{Name: "x", Link: busy.E.Link}},
		{"the loopback", "want a NIC", datapath.Endpoint{Name: "x", Link: "lo"}},
		{"the bridge itself", "bridge", datapath.Endpoint{Name: "x", Link: r.Instance.Bridge()}},
	} {
		if _, err := r.Switch.AddEndpoint(Context(t), c.e); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q in it", c.name, err, c.text)
		}
	}
	for _, c := range []struct {
		name, text string
		f          datapath.Function
	}{
		{"no namespace", "namespace", datapath.Function{Name: "x", In: alice.E.Link, Out: fn.F.Out}},
		{"another namespace", "not in", datapath.Function{Name: "x", In: fn.F.In, Out: fn.F.Out, Netns: r.Path("alice")}},
		{"links of another function", "already the port", datapath.Function{Name: "x", In: fn.F.In, Out: fn.F.Out, Netns: fn.F.Netns}},
		{"in without out", "in and out", datapath.Function{Name: "x", In: fn.F.In, Netns: fn.F.Netns}},
		{"unknown forwarder", "want wire", datapath.Function{Name: "x", In: fn.F.In, Out: fn.F.Out, Netns: fn.F.Netns, Forwarder: "magic"}},
	} {
		if _, err := r.Switch.AddFunction(Context(t), c.f); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q in it", c.name, err, c.text)
		}
	}
	rule := func(change func(*flow.Rule)) []flow.Rule {
		bad := flow.Rule{Cookie: 2, Match: flow.Match{InPort: alice.Port}, Action: flow.Action{Op: flow.Drop}}
		change(&bad)
		return []flow.Rule{kept, bad}
	}
	for _, c := range []struct {
		name, text string
		rules      []flow.Rule
	}{
		{"cookie twice", "shared", rule(func(r *flow.Rule) { r.Cookie = 1 })},
		{"unknown in port", "no port", rule(func(r *flow.Rule) { r.Match.InPort = 9999 })},
		{"unknown out port", "no port", rule(func(r *flow.Rule) { r.Action = flow.Action{Op: flow.Output, Port: 9999} })},
		{"unknown clone", "no port", rule(func(r *flow.Rule) { r.Action.Clones = flow.Clones(9999) })},
		{"resume in a function", "function", rule(func(r *flow.Rule) { r.Action = flow.Action{Op: flow.Resume, Port: fn.Ports.In} })},
		{"ports without a protocol", "TCP, UDP or SCTP", rule(func(r *flow.Rule) { r.Match.DstPorts = flow.PortRange{First: 1, Last: 2} })},
		{"families mixed", "contradicts", rule(func(r *flow.Rule) {
			r.Match.Src, r.Match.Dst = netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd57::/16")
		})},
	} {
		if _, err := r.Switch.Commit(Context(t), c.rules); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q in it", c.name, err, c.text)
		}
	}
	if err := r.Switch.SetState(Context(t), "nobody", datapath.Up, 0); !errors.Is(err, datapath.ErrNotFound) {
		t.Errorf("state of an unknown function: %v", err)
	}
	// What was refused has changed nothing.
	if c := r.Commit(kept); c.Unchanged != 1 || c.Changed+c.Added+c.Removed != 0 {
		t.Errorf("refused commits changed something: %+v", c)
	}
	host(func(h *netlink.Handle) error {
		l, err := h.LinkByName(enslaved.E.Link)
		if err != nil {
			return err
		}
		m, err := h.LinkByIndex(l.Attrs().MasterIndex)
		if err != nil || m.Attrs().Name != "other" {
			t.Errorf("the refused link's master: %v, %v", m, err)
		}
		return nil
	})
}
