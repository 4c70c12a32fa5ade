// Package suite is the conformance suite of switch drivers: real frames, in fresh network namespaces, compared with what the reference
// switch of package flow does with the same rules and frames. A driver's test calls Run with a way to open its switch.
package suite

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
	"weir.dev/weir/portkind"
)

// Factory opens a switch of the instance. It is called on a thread inside the namespace that is to be the switch's.
type Factory func(i instance.Instance) (datapath.Switch, error)

// Capability is something that a switch may lack: by its nature, not for want of work. A driver whose switch lacks some says which by a
// method Lacks() []Capability on what its Factory returns, and the cases look for the next best thing. They are listed in the log.
type Capability string

const (
	// Unattended: a process's end sets its function down while nobody drives the switch.
	Unattended Capability = "a process's end is noticed while nobody drives the switch"
	// Ordered: a frame that is sent after a commit does not overtake one that was sent before it.
	Ordered Capability = "frames keep their order over commits"
	// SixHeaders: the upper layer behind more than six extension headers of IPv6 is not known.
	SixHeaders Capability = "at most six extension headers of IPv6 are passed"
	// WrongLengths: a packet whose lengths are wrong has IP fields as far as its headers are there.
	WrongLengths Capability = "packets whose lengths are wrong have IP fields"
	// LaterFragments: of an IPv6 fragment other than the first the protocol is known, unless extension headers follow.
	LaterFragments Capability = "the protocol of an IPv6 fragment other than the first is known"
	// ThreeTags: a frame with two VLAN tags of the user's can carry a fabric tag, and what stands behind all three is known.
	ThreeTags Capability = "a fabric tag over two VLAN tags"
	// TagAndVLAN: a rule can tell apart the user's VLANs behind a fabric tag.
	TagAndVLAN Capability = "the user's VLAN is known behind a fabric tag"
	// DropEligible: the DEI bit of VLAN tags is kept.
	DropEligible Capability = "the bit \"drop eligible\" of VLAN tags is kept"
	// TooLarge: frames that a port's link is too small for are counted.
	TooLarge Capability = "frames that are larger than a port's MTU are counted in what it has dropped"
	// Known: the endpoint's Peer is a static address of the bridge.
	Known Capability = "a station behind a link that Weir made is known before it speaks"
	// Instant: what is learned from a frame holds for the next one. Without it the switch has a method Converge, called where that matters.
	Instant Capability = "what is learned holds for the very next frame"
)

type converger interface {
	Converge(ctx context.Context) error
}

// can reports whether the switch has a capability.
func (r *Rig) can(c Capability) bool {
	l, ok := r.Switch.(interface{ Lacks() []Capability })
	if !ok || !slices.Contains(l.Lacks(), c) {
		return true
	}
	r.t.Logf("this switch lacks: %s", c)
	return false
}

// converge lets what was just learned take hold.
func (r *Rig) converge() {
	r.t.Helper()
	if c, ok := r.Switch.(converger); ok {
		must(r.t, c.Converge(Context(r.t)))
	}
}

type settler interface {
	Settle(ctx context.Context) error
}

// settle has the switch do now what it puts off until ports are left alone, for what is compared with it later.
func (r *Rig) settle() {
	r.t.Helper()
	if s, ok := r.Switch.(settler); ok {
		must(r.t, s.Settle(Context(r.t)))
	}
}

// Rig is a host in a namespace of its own, with a switch, stations behind endpoints, and functions. All of it is removed when the
// test ends.
type Rig struct {
	t        testing.TB
	open     Factory
	dir      string
	Instance instance.Instance
	Host     *netns.Space
	Switch   datapath.Switch
	Stations map[string]*Station
	Funcs    map[string]*Function
}

// Station is what stands behind an endpoint.
type Station struct {
	Name string
	MAC  flow.MAC
	Port flow.Port
	NS   *netns.Space
	E    datapath.Endpoint
	*Socket
}

// Function is a network function with a socket at each of its interfaces.
type Function struct {
	Name    string
	Ports   datapath.Ports
	F       datapath.Function
	NS      *netns.Space
	Sockets map[string]*Socket // in, out, tap
	pump    *pump
}

// NewRig makes a host and opens its switch.
func NewRig(t testing.TB, open Factory) *Rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	var id [3]byte
	if _, err := rand.Read(id[:]); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "weir-suite-")
	must(t, err)
	name := "t" + hex.EncodeToString(id[:])
	r := &Rig{t: t, open: open, dir: dir, Stations: map[string]*Station{}, Funcs: map[string]*Function{},
		Instance: instance.Instance{Name: name, Root: filepath.Join(dir, "root"), Run: filepath.Join(dir, "run")}}
	t.Cleanup(func() {
		_ = unix.Unmount(r.Instance.BPFFS(), unix.MNT_DETACH) // of a switch that did not open
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("leftovers: %v", err)
		}
	})
	r.Host = r.namespace("host")
	r.keepFromFilters()
	r.Reopen()
	t.Cleanup(func() {
		if r.Switch == nil {
			return
		}
		if err := r.Switch.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// keepFromFilters: iptables must not see bridged frames here. It would drop those that are no sound IP packets.
func (r *Rig) keepFromFilters() {
	r.t.Helper()
	err := r.Host.Do(func() error {
		for _, name := range []string{"iptables", "ip6tables", "arptables"} {
			err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+name, []byte("0"), 0o644)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
	must(r.t, err)
}

// Reopen opens the switch, after a Close.
func (r *Rig) Reopen() {
	r.t.Helper()
	err := r.Host.Do(func() error {
		s, err := r.open(r.Instance)
		if err == nil { // else the former one is still good for Destroy
			r.Switch = s
		}
		return err
	})
	must(r.t, err)
}

// Close closes the switch.
func (r *Rig) Close() {
	r.t.Helper()
	must(r.t, r.Switch.Close())
}

func (r *Rig) namespace(name string) *netns.Space {
	r.t.Helper()
	path := filepath.Join(r.dir, "ns", name)
	must(r.t, netns.Create(path, netns.Options{Quiet: true}))
	space, err := netns.At(path)
	must(r.t, err)
	r.t.Cleanup(func() {
		space.Close()
		if err := netns.Delete(path); err != nil {
			r.t.Error(err)
		}
	})
	return space
}

// Path of a namespace made here.
func (r *Rig) Path(name string) string { return filepath.Join(r.dir, "ns", name) }

// Station makes a station with an endpoint.
func (r *Rig) Station(name string) *Station {
	r.t.Helper()
	return r.plugStation(r.Unplugged(name))
}

// Fabric makes a port into the fabric; the station behind it stands for all that is there.
func (r *Rig) Fabric(name string, isolated bool) *Station {
	r.t.Helper()
	st := r.Unplugged(name)
	st.E.Fabric, st.E.Isolated, st.E.Peer = true, isolated, flow.MAC{}
	return r.plugStation(st)
}

func (r *Rig) plugStation(st *Station) *Station {
	r.t.Helper()
	port, err := r.Switch.AddEndpoint(Context(r.t), st.E)
	must(r.t, err)
	st.Port = port
	r.Stations[st.Name] = st
	return st
}

// Unplugged makes a station whose link is no port of the switch yet.
func (r *Rig) Unplugged(name string) *Station {
	r.t.Helper()
	ns := r.namespace(name)
	object := "endpoint/" + name
	mac := flow.MAC{2, 0x57}
	copy(mac[2:], name)
	pair, err := r.Host.Veth(ns, netns.VethOptions{HostName: r.Instance.Link(object), Alias: r.Instance.Alias(object), HostMAC: r.Instance.MAC(object),
		PeerName: "eth0", PeerMAC: mac})
	must(r.t, err)
	return &Station{Name: name, MAC: mac, NS: ns, E: datapath.Endpoint{Name: name, Link: pair.Host.Name, Peer: mac, Netns: r.Path(name)},
		Socket: newSocket(r.t, ns, pair.Peer.Index)}
}

// Wire makes a function whose frames the switch's own forwarder passes on.
func (r *Rig) Wire(name string) *Function {
	r.t.Helper()
	return r.function(datapath.Function{Name: name, Forwarder: "wire"}, false)
}

// Inline makes a function that forwards by itself, by raw sockets.
func (r *Rig) Inline(f datapath.Function) *Function {
	r.t.Helper()
	fn := r.function(f, false)
	fn.pump = startPump(fn)
	r.t.Cleanup(fn.pump.stop)
	return fn
}

// Tap makes a tap function.
func (r *Rig) Tap(name string) *Function {
	r.t.Helper()
	return r.function(datapath.Function{Name: name}, true)
}

func (r *Rig) function(f datapath.Function, tap bool) *Function {
	r.t.Helper()
	fn := r.Links(f, tap)
	r.Plug(fn)
	must(r.t, r.Switch.SetState(Context(r.t), f.Name, datapath.Up, 0))
	return fn
}

// Plug makes the function's links ports of the switch.
func (r *Rig) Plug(fn *Function) {
	r.t.Helper()
	ports, err := r.Switch.AddFunction(Context(r.t), fn.F)
	must(r.t, err)
	fn.Ports = ports
	r.Funcs[fn.Name] = fn
}

// Links makes a function's namespace and links only.
func (r *Rig) Links(f datapath.Function, tap bool) *Function {
	r.t.Helper()
	fn := &Function{Name: f.Name, NS: r.namespace(f.Name), Sockets: map[string]*Socket{}}
	if f.Kind != portkind.Tap {
		f.Netns = r.Path(f.Name)
	}
	for _, side := range flow.SidesOf(tap) {
		object := side.Of(f.Name)
		if f.Kind == portkind.Tap {
			link := r.Instance.Link(object)
			*[]*string{&f.In, &f.Out, &f.Tap}[side], f.MACs[side] = link, r.Instance.MAC(object+"/peer")
			fn.Sockets[side.String()] = newTap(r.t, r.Host, link, r.Instance.Alias(object))
			continue
		}
		index := 1024 + int(side)
		pair, err := r.Host.Veth(fn.NS, netns.VethOptions{HostName: r.Instance.Link(object), Alias: r.Instance.Alias(object),
			PeerName: side.String(), PeerIndex: index, PeerMAC: r.Instance.MAC(object + "/peer"), Quiet: true})
		must(r.t, err)
		switch side {
		case flow.In:
			f.In, f.InPeer = pair.Host.Name, side.String()
		case flow.Out:
			f.Out, f.OutPeer = pair.Host.Name, side.String()
		case flow.Tap:
			f.Tap = pair.Host.Name
		}
		fn.Sockets[side.String()] = newSocket(r.t, fn.NS, index)
	}
	fn.F = f
	return fn
}

// Commit puts rules in force.
func (r *Rig) Commit(rules ...flow.Rule) datapath.Commit {
	r.t.Helper()
	c, err := r.Switch.Commit(Context(r.t), rules)
	must(r.t, err)
	return c
}

// ports of the switch, by name.
func (r *Rig) ports() map[string]datapath.PortStatus {
	r.t.Helper()
	ports, err := r.Switch.Ports(Context(r.t))
	must(r.t, err)
	all := map[string]datapath.PortStatus{}
	for _, p := range ports {
		all[p.Name] = p
	}
	return all
}

func (r *Rig) port(name string) datapath.PortStatus {
	r.t.Helper()
	p, there := r.ports()[name]
	if !there {
		r.t.Fatalf("no port %s", name)
	}
	return p
}

// Reference is the reference switch with the same ports, states and rules.
func (r *Rig) Reference(rules []flow.Rule) *flow.Switch {
	r.t.Helper()
	s := flow.New()
	check := func(err error) { must(r.t, err) }
	for _, st := range r.Stations {
		if st.E.Fabric {
			check(s.AddFabric(st.Port, st.Name, st.E.Isolated))
			continue
		}
		check(s.AddEndpoint(st.Port, st.Name))
		check(s.Guard(st.Port, st.E.Guard))
		if (st.E.Peer != flow.MAC{}) && r.can(Known) {
			s.Know(st.E.Peer, st.Port)
		}
	}
	down := map[string]bool{}
	for _, p := range r.ports() {
		if p.Function != "" {
			down[p.Function] = p.State == datapath.Down
		}
	}
	for _, fn := range r.Funcs {
		f := flow.Function{Name: fn.Name, In: fn.Ports.In, Out: fn.Ports.Out, Tap: fn.Ports.Tap,
			Down: down[fn.Name], Bypass: fn.F.OnFail == datapath.FailBypass, Speaks: fn.F.Speaks}
		mac := func(side flow.Side) flow.MAC { return r.Instance.MAC(side.Of(fn.Name) + "/peer") }
		f.InMAC, f.OutMAC, f.TapMAC = mac(flow.In), mac(flow.Out), mac(flow.Tap)
		check(s.AddFunction(f))
	}
	check(s.Commit(rules))
	return s
}

// must ends a test at an error.
func must(t interface {
	Helper()
	Fatal(args ...any)
}, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// patience is how long anything may take, also on a machine that is busy with other things.
const patience = 20 * time.Second

// Context of a test's call: nothing here may take longer.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Until polls to a deadline.
func Until(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}
