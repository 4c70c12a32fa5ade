package rollout

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/model"
)

// follower takes a network in memory from input to input, by the stage, the planner and the compiler, one host's commit after the other.
type follower struct {
	*world
	n       *model.Network
	stage   Stage
	compile func(fabric.Input) fabric.Output
	out     fabric.Output
	in      fabric.Input
	names   []string // hosts
	check   func()
}

func (f *follower) next(in fabric.Input) {
	in.Lingering = f.f.Lingering()
	t := f.stage.Next(in, nil, f.out, f.settled(), f.now, f.compile)
	f.out, f.in = t.Out, t.In
	f.f.Paths = t.Out.Paths
	for _, name := range f.names {
		p := f.f.Peers[name]
		p.Target, p.Settled = map[string]api.HostRule{}, false
		for _, r := range t.Out.Hosts[fabric.HostID(name)] {
			p.Target[r.Cookie] = *r
		}
	}
}

func (f *follower) settled() bool {
	for _, p := range f.f.Peers {
		if !p.Settled {
			return false
		}
	}
	return true
}

// show puts what hosts have in force in the model.
func (f *follower) show() {
	f.t.Helper()
	out := f.out
	out.Hosts = map[fabric.SwitchID][]*api.HostRule{}
	for name, p := range f.f.Peers {
		for _, c := range slices.Sorted(maps.Keys(p.Acked)) {
			r := p.Acked[c]
			out.Hosts[fabric.HostID(name)] = append(out.Hosts[fabric.HostID(name)], &r)
		}
	}
	if err := f.n.Install(f.in, out); err != nil {
		f.t.Fatal(err)
	}
	f.check()
}

// run carries out what is planned until all is in force, or for so long.
func (f *follower) run(in fabric.Input, limit time.Duration) {
	f.t.Helper()
	end := f.now.Add(limit)
	for range 1000 {
		s := f.plan()
		switch {
		case len(s.Specs) > 0:
			name := slices.Sorted(maps.Keys(s.Specs))[0]
			f.install(name, s.Specs[name])
			f.now = f.now.Add(20 * time.Millisecond)
			f.show()
		case f.settled() && f.stage.More():
			f.next(in)
		case f.settled():
			return
		default:
			f.now = maxTime(s.Again, f.now.Add(time.Millisecond))
		}
		if f.now.After(end) {
			return
		}
	}
	f.t.Fatalf("no end: %v", f.now)
}

func mesh(hosts ...string) fabric.Input {
	in := fabric.Input{
		Topology:  fabric.Topology{Switches: map[fabric.SwitchID]fabric.Switch{}},
		Endpoints: map[string]fabric.Endpoint{}, Functions: map[string]fabric.Function{}, Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{},
		InForce: map[string]bool{"p": true},
	}
	for i, a := range hosts {
		s := fabric.Switch{Name: a, Host: true}
		for j, b := range hosts {
			if i == j {
				continue
			}
			s.Ports = append(s.Ports, fabric.Port{Name: "tunnel/" + b})
			if i < j {
				in.Links = append(in.Links, fabric.Link{A: fabric.At{Switch: fabric.HostID(a), Port: fabric.Port{Name: "tunnel/" + b}}, B: fabric.At{Switch: fabric.HostID(b), Port: fabric.Port{Name: "tunnel/" + a}}})
			}
		}
		in.Switches[fabric.HostID(a)] = s
	}
	return in
}

// A chain's path is edited again and again, in a hurry and not: a frame always meets the functions of one of the paths.
func TestFramesFollowOnePathWhileItIsEdited(t *testing.T) {
	in := mesh("h1", "h2", "h3")
	for i, at := range []string{"h1", "h2"} {
		name := fmt.Sprint("v", i+1)
		in.Endpoints[name] = fabric.Endpoint{
			At: fabric.At{Switch: fabric.HostID(at), Port: fabric.Port{Name: "endpoint/" + name}}, MACs: []flow.MAC{{2, 0, 0, 0, 0, byte(i + 1)}},
			Prefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 32)},
		}
	}
	for name, at := range map[string]string{"a1": "h3", "b1": "h1", "a2": "h2", "b2": "h3", "a5": "h3", "b5": "h2", "a6": "h1", "b6": "h3", "w1": "h3", "w2": "h1"} {
		in.Functions[name] = fabric.Function{Host: fabric.HostID(at), Ready: true}
	}
	no := false
	in.Policies["p"] = api.PolicySpec{From: "v1", To: "v2", Match: []string{"udp"}, Symmetric: &no, Chain: "c"}
	paths := []string{"a1 | b1", "b2 | a2", "a1 | b1", "a5 | b5", "a5 | w1 | b5", "w2 | a5 | w1 | b5", "w2 | a5 | b5", "a6 | b5", "a6 | b5 | w2", "a6 | w1 | b5 | w2", "a6 | b6 | w2", "a6 | b6", "a5 | b5"}
	whole := flow.MAC{255, 255, 255, 255, 255, 255}
	frame, _, _ := flow.Witness(flow.Match{
		SrcMAC: in.Endpoints["v1"].MACs[0], SrcMACMask: whole, DstMAC: in.Endpoints["v2"].MACs[0], DstMACMask: whole, EtherType: flow.EtherTypeIPv4, Proto: flow.ProtoUDP,
		Src: in.Endpoints["v1"].Prefixes[0], Dst: in.Endpoints["v2"].Prefixes[0], SrcPorts: flow.PortRange{First: 9, Last: 9}, DstPorts: flow.PortRange{First: 9, Last: 9},
	})
	for _, hurry := range []time.Duration{time.Minute, 700 * time.Millisecond, 300 * time.Millisecond, 100 * time.Millisecond, 10 * time.Millisecond} {
		t.Run(hurry.String(), func(t *testing.T) {
			n, err := model.New(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			f := &follower{world: newWorld(t), n: n, compile: NewCompiler(), names: []string{"h1", "h2", "h3"}}
			for _, name := range f.names {
				f.host(name)
			}
			step := func(i int) fabric.Input {
				next := in
				next.Chains = map[string]api.ChainSpec{"c": {Path: paths[i]}}
				return next
			}
			f.check = func() {}
			f.next(step(0))
			f.run(step(0), time.Minute)
			fenced := false
			f.check = func() {
				t.Helper()
				r, err := n.Send("v1", frame)
				if err != nil {
					t.Fatal(err)
				}
				var met []string
				for _, m := range r.Meetings {
					met = append(met, strings.Split(m.Port, "/")[1])
				}
				ways := []string{f.stage.now.Chains["c"].Path}
				for _, in := range f.stage.past {
					ways = append(ways, in.Chains["c"].Path)
				}
				if fenced = fenced || len(f.out.Errors) > 0; fenced && hurry < time.Second && len(met) == 0 {
					return // two edits became one, in which functions change places
				}
				if len(r.Deliveries) != 1 || !slices.Contains(ways, strings.Join(met, " | ")) {
					t.Errorf("%v, %v: %d arrive, met %v\n%s", f.now.Sub(time.Unix(1000, 0)), ways, len(r.Deliveries), met, strings.Join(r.Trail, "\n"))
				}
			}
			for i := range paths {
				f.next(step(i))
				f.show()
				f.run(step(i), hurry)
			}
			f.run(step(len(paths)-1), time.Minute)
			if !f.settled() {
				t.Error("not settled")
			}
		})
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
