package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
	"weir.dev/weir/openflow/lldp"
)

const (
	soon   = 20 * time.Second
	absent = 150 * time.Millisecond
)

// joined are two hosts with a cable between them, its ends being named eth1.
func joined(t *testing.T, mtu int, uplink string) (*world, *host, *host) {
	t.Helper()
	w := newWorld(t)
	h1 := w.host("h1", childOptions{Address: netip.MustParseAddr("192.0.2.1"), Uplink: uplink})
	h2 := w.host("h2", childOptions{Address: netip.MustParseAddr("192.0.2.2"), Uplink: uplink})
	o := netns.VethOptions{HostName: "eth1", PeerName: "eth1", Alias: "a cable", MTU: mtu}
	if uplink == "" {
		o.Addresses = []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24")}
	}
	if _, err := h1.space.Veth(h2.space, o); err != nil {
		t.Fatal(err)
	}
	if uplink == "" {
		address(t, h1.space, "eth1", "192.0.2.1/24")
	}
	h1.start()
	h2.start()
	for _, name := range []string{"h1", "h2"} {
		w.until(name+" is ready", func(ctx context.Context) bool {
			h, err := w.client.Hosts().Get(ctx, name)
			return err == nil && h.Status.State == "ready"
		})
	}
	return w, h1, h2
}

func mesh() map[string]api.AssignmentSpec {
	return map[string]api.AssignmentSpec{
		"h1": {Tunnels: []api.Tunnel{{Host: "h2", Remote: "192.0.2.2", VNI: 77, Port: 4789}}},
		"h2": {Tunnels: []api.Tunnel{{Host: "h1", Remote: "192.0.2.1", VNI: 77, Port: 4789}}},
	}
}

// frame of a length, IPv4 with TTL 1 and don't-fragment set, which no one on the way may touch.
func frame(dst, src flow.MAC, length int, mark string) []byte {
	return frameDF(dst, src, length, mark, 0x40)
}

func frameDF(dst, src flow.MAC, length int, mark string, df byte) []byte {
	b := append(append(append([]byte{}, dst[:]...), src[:]...), 8, 0)
	b = append(b, 0x45, 0, byte((length-14)>>8), byte(length-14), 0, 1, df, 0, 1, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2)
	b = append(b, 0, 7, 0, 7, byte((length-34)>>8), byte(length-34), 0xab, 0xcd) // a checksum that is wrong, and stays so
	b = append(b, mark...)
	return append(b, bytes.Repeat([]byte{0x5a}, length-len(b))...)
}

var (
	macA      = flow.MAC{2, 0, 0, 0, 0, 0xa}
	macB      = flow.MAC{2, 0, 0, 0, 0, 0xb}
	broadcast = flow.MAC{255, 255, 255, 255, 255, 255}
)

// TestPacketsCrossTheUnderlayAsTheyAre: alice and bob are at two hosts, and so is what stands between them. Every frame is the same at
// each place, whatever its size, with tags and without.
func TestPacketsCrossTheUnderlayAsTheyAre(t *testing.T) {
	for _, mtu := range []int{1600, 1500} {
		t.Run(fmt.Sprintf("MTU %d", mtu), func(t *testing.T) {
			w, h1, h2 := joined(t, mtu, "")
			alice, bob := w.endpoint("alice", "h1"), w.endpoint("bob", "h2")
			in, out := w.endpoint("in", "h2"), w.endpoint("out", "h2") // a function's two sides
			w.assign(mesh())
			for _, h := range []string{"h1", "h2"} {
				if s := w.installed(h); s.State != "installed" {
					t.Fatalf("%s: %+v", h, s)
				}
			}
			df := byte(0x40)
			if mtu < 1554 {
				df = 0 // the largest need fragments
			}
			frame := func(dst, src flow.MAC, length int, mark string) []byte { return frameDF(dst, src, length, mark, df) }
			pass := func(what string, from, to *stationSocket, f []byte, mark string) {
				t.Helper()
				from.send(f)
				got := to.receive(mark, soon)
				if !bytes.Equal(got, f) {
					t.Fatalf("%s:\nsent %x\ncame %x", what, f, got)
				}
			}
			for i, length := range []int{60, 1000, 1514} {
				mark := fmt.Sprintf("frame %d.", i)
				pass("flooded", alice, bob, frame(broadcast, macA, length, mark), mark)
				pass("back", bob, alice, frame(macA, macB, length, mark+"back"), mark+"back")
				pass("there", alice, bob, frame(macB, macA, length, mark+"there"), mark+"there")
				pass("tagged", alice, bob, vlan(frame(macB, macA, length, mark+"vlan"), 7), mark+"vlan")
			}
			features(t, w, "h1", mtu >= 1500+54)

			// alice's frames for bob through the function at h2, its frames for alice back: tagged on the way, since they cross the cable
			// in either direction twice.
			steered := mesh()
			steered["h1"] = withRules(steered["h1"],
				api.HostRule{Cookie: "0000000000000001", Priority: 100, Stage: "ingress", Match: api.HostMatch{InPort: "endpoint/alice", EtherType: 0x800},
					Action: api.HostAction{Op: "output", Port: "tunnel/h2", Push: 3600}, Policy: "p"},
				api.HostRule{Cookie: "0000000000000002", Priority: 100, Stage: "ingress", Match: api.HostMatch{InPort: "tunnel/h2", Tag: 3601},
					Action: api.HostAction{Op: "normal", Pop: true}, Policy: "p"})
			steered["h2"] = withRules(steered["h2"],
				api.HostRule{Cookie: "0000000000000003", Priority: 100, Stage: "ingress", Match: api.HostMatch{InPort: "tunnel/h1", Tag: 3600},
					Action: api.HostAction{Op: "output", Port: "endpoint/in", Pop: true}, Policy: "p"},
				api.HostRule{Cookie: "0000000000000004", Priority: 100, Stage: "ingress", Match: api.HostMatch{InPort: "endpoint/out"},
					Action: api.HostAction{Op: "output", Port: "endpoint/bob"}, Policy: "p"},
				api.HostRule{Cookie: "0000000000000005", Priority: 100, Stage: "ingress", Match: api.HostMatch{InPort: "endpoint/in"},
					Action: api.HostAction{Op: "output", Port: "tunnel/h1", Push: 3601}, Policy: "p"})
			w.assign(steered)
			for _, h := range []string{"h1", "h2"} {
				if s := w.installed(h); s.State != "installed" || len(s.Missing) > 0 {
					t.Fatalf("%s: %+v", h, s)
				}
			}
			for i, length := range []int{60, 1514} {
				mark := fmt.Sprintf("steered %d.", i)
				f := frame(macB, macA, length, mark)
				pass("into the function", alice, in, f, mark)
				if bob.receive(mark, absent) != nil {
					t.Error("it went past the function")
				}
				pass("out of the function", out, bob, f, mark)
				pass("back over the cable", in, alice, frame(macA, macB, length, mark+"back"), mark+"back")
			}

			// Nobody is there: the rules stay in force.
			h1.stop(unix.SIGKILL)
			h2.stop(unix.SIGKILL)
			pass("while the agents are dead", alice, in, frame(macB, macA, 900, "dead agents"), "dead agents")
			h1.start()
			h2.start()
			w.assign(map[string]api.AssignmentSpec{"h1": {}, "h2": {}})
			for _, h := range []*host{h1, h2} {
				w.installed(h.o.Host)
				w.until("the tunnel is gone", func(context.Context) bool {
					links, err := h.space.Links(h.o.Instance.Alias("tunnel/"))
					return err == nil && len(links) == 0
				})
			}
		})
	}
}

// features looks that the host tells what it thinks of the underlay.
func features(t *testing.T, w *world, host string, ok bool) {
	t.Helper()
	w.until("the underlay is judged", func(ctx context.Context) bool {
		h, err := w.client.Hosts().Get(ctx, host)
		if err != nil {
			return false
		}
		for _, f := range h.Status.Features {
			if f.Name == "underlay MTU" {
				if f.OK != ok {
					t.Errorf("underlay MTU: %+v", f)
				}
				return true
			}
		}
		return false
	})
}

func withRules(s api.AssignmentSpec, rules ...api.HostRule) api.AssignmentSpec {
	s.Rules = rules
	return s
}

func vlan(f []byte, id byte) []byte {
	return append(append(append([]byte{}, f[:12]...), 0x81, 0, 0, id), f[12:len(f)-4]...)
}

// TestWithoutItsManagerAHostComesBackAsItWas: after a reboot nothing is in the kernel, and nobody answers.
func TestWithoutItsManagerAHostComesBackAsItWas(t *testing.T) {
	w, h1, _ := joined(t, 1600, "")
	w.endpoint("alice", "h1")
	bob := w.endpoint("bob", "h2")
	all := mesh()
	all["h1"] = withRules(all["h1"], api.HostRule{Cookie: "0000000000000001", Priority: 100, Stage: "ingress",
		Match: api.HostMatch{InPort: "endpoint/alice", DstMAC: macB.String()}, Action: api.HostAction{Op: "drop"}})
	w.assign(all)
	w.installed("h1")
	w.installed("h2")

	h1.stop(unix.SIGKILL)
	end := h1.command(childOptions{Instance: h1.o.Instance}) // as a reboot does: nothing is left but files
	if err := h1.space.Do(end.Run); err != nil {
		t.Fatal(err)
	}
	if _, err := h1.space.DeleteByAlias(h1.o.Instance.Alias(""), nil); err != nil {
		t.Fatal(err)
	}
	h1.o.Socket += ".gone"
	h1.start()
	w.until("the agent goes on without its manager", func(context.Context) bool { return logged(h1, "going on with what it said last") })
	space, err := netns.At(w.path("alice"))
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	w.until("alice's link and the tunnel are back", func(context.Context) bool {
		l, err := space.Link("eth0")
		links, err2 := h1.space.Links(h1.o.Instance.Alias("tunnel/"))
		return err == nil && err2 == nil && l.Up && len(links) == 1 && links[0].Master != 0
	})
	again := newStation(t, space)
	w.until("frames cross", func(context.Context) bool {
		again.send(frame(broadcast, macA, 100, "reborn"))
		return bob.receive("reborn", absent) != nil
	})
	again.send(frame(macB, macA, 100, "dropped by rule"))
	if bob.receive("dropped by rule", absent) != nil {
		t.Error("the assignment's rules did not come back")
	}
}

// TestWhatIsMissingIsTold: rules that name ports which are not there do not hold up the others, and what they should have caught does not
// go on as if nothing were wanted.
func TestWhatIsMissingIsTold(t *testing.T) {
	w, _, _ := joined(t, 1600, "")
	alice, bob := w.endpoint("alice", "h1"), w.endpoint("bob", "h1")
	rule := func(cookie string, ether uint16, port string) api.HostRule {
		return api.HostRule{Cookie: cookie, Priority: 100, Stage: "ingress", Match: api.HostMatch{InPort: "endpoint/alice", EtherType: ether},
			Action: api.HostAction{Op: "output", Port: port}}
	}
	w.assign(map[string]api.AssignmentSpec{"h1": {Rules: []api.HostRule{
		rule("000000000000000a", 0x800, "function/fw/in"), rule("000000000000000b", 0x1234, "endpoint/bob"),
		{Cookie: "000000000000000c", Priority: 1, Match: api.HostMatch{InPort: "function/fw/out"}, Action: api.HostAction{Op: "drop"}},
	}}})
	var a api.Assignment
	w.until("the assignment is answered", func(ctx context.Context) bool {
		var err error
		a, err = w.client.Assignments().Get(ctx, "h1")
		return err == nil && a.Status.ObservedGeneration == a.Generation
	})
	if s := a.Status; s.State != "partial" || fmt.Sprint(s.Missing) != "[000000000000000a 000000000000000c]" {
		t.Errorf("answered %+v", s)
	}
	alice.send(frame(broadcast, macA, 100, "steered to nowhere"))
	if bob.receive("steered to nowhere", absent) != nil {
		t.Error("a frame went past the function that is not there")
	}
	f := frame(broadcast, macA, 100, "the other rule")
	f[12], f[13] = 0x12, 0x34
	alice.send(f)
	if got := bob.receive("the other rule", soon); !bytes.Equal(got, f) {
		t.Errorf("the other rule: got %x", got)
	}
	w.assign(map[string]api.AssignmentSpec{"h1": {Rules: []api.HostRule{
		{Cookie: "nonsense", Action: api.HostAction{Op: "drop"}}, rule("000000000000000b", 0x1234, "endpoint/bob")}}})
	if s := w.installed("h1"); s.State != "error" || s.Message == "" {
		t.Errorf("a rule that makes no sense: %+v", s)
	}
}

// TestUplinkIsFoundAndReported: the host shows itself at its uplink, in frames that only those with the key can make, and tells the
// link's state at once.
func TestUplinkIsFoundAndReported(t *testing.T) {
	w, _, h2 := joined(t, 1500, "eth1")
	config, err := w.client.AgentConfig(t.Context(), "h1")
	if err != nil {
		t.Fatal(err)
	}
	h2.stop(unix.SIGTERM) // its end of the cable is ours now
	other := w.namespace("switch")
	if err := h2.space.Do(func() error { return moveAway("eth1", other, "eth0") }); err != nil {
		t.Fatal(err)
	}
	s := newStation(t, other)
	var last lldp.Frame
	for range 2 {
		raw := s.receive("host:h1", soon)
		f, err := lldp.Verify(raw, config.LLDPKey)
		if err != nil {
			t.Fatalf("%x: %v", raw, err)
		}
		if f.Port != "eth1" || f.Sequence <= last.Sequence || f.TTL < 2 {
			t.Errorf("frame %+v after %+v", f, last)
		}
		last = f
	}
	state := func(want string) {
		t.Helper()
		w.until("the uplink is "+want, func(ctx context.Context) bool {
			h, err := w.client.Hosts().Get(ctx, "h1")
			return err == nil && len(h.Status.Uplinks) == 1 && string(h.Status.Uplinks[0].State) == want && h.Status.Uplinks[0].Interface == "eth1"
		})
	}
	state("up")
	if err := other.Do(func() error { return setLink("eth0", false) }); err != nil {
		t.Fatal(err)
	}
	state("down")
	if err := other.Do(func() error { return setLink("eth0", true) }); err != nil {
		t.Fatal(err)
	}
	state("up")
	h, err := w.client.Hosts().Get(t.Context(), "h1")
	if err != nil {
		t.Fatal(err)
	}
	if h.Status.Free == 0 || h.Status.Address != "192.0.2.1" {
		t.Errorf("host status %+v", h.Status)
	}
}

// TestStreamsCrossTheUnderlay: large segments and checksums that are left to the hardware, with a fabric tag in a tunnel.
func TestStreamsCrossTheUnderlay(t *testing.T) {
	w, _, _ := joined(t, 1600, "")
	alice, bob := w.station("alice", "h1", "10.9.0.1/24"), w.station("bob", "h2", "10.9.0.2/24")
	all := mesh()
	there, back := uint16(3600), uint16(3601)
	cross := func(endpoint, tunnel string, push, pop uint16) []api.HostRule {
		return []api.HostRule{
			{Cookie: fmt.Sprintf("%016x", push), Priority: 9, Match: api.HostMatch{InPort: endpoint}, Action: api.HostAction{Op: "output", Port: tunnel, Push: push}},
			{Cookie: fmt.Sprintf("%016x", 9000+pop), Priority: 9, Match: api.HostMatch{InPort: tunnel, Tag: pop}, Action: api.HostAction{Op: "output", Port: endpoint, Pop: true}},
		}
	}
	all["h1"] = withRules(all["h1"], cross("endpoint/alice", "tunnel/h2", there, back)...)
	all["h2"] = withRules(all["h2"], cross("endpoint/bob", "tunnel/h1", back, there)...)
	w.assign(all)
	w.installed("h1")
	w.installed("h2")
	var listener net.Listener
	if err := bob.Do(func() (err error) {
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
	if err := alice.Do(func() (err error) {
		c, err = net.DialTimeout("tcp4", "10.9.0.2:7", 5*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	sent := bytes.Repeat([]byte("a stream in a tunnel, "), 1<<20)
	go func() {
		_, _ = c.Write(sent)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	came, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent, came) {
		t.Errorf("%d bytes came back, not the %d that were sent", len(came), len(sent))
	}
}
