package platform

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	switches "weir.dev/weir/datapath/drivers"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
	"weir.dev/weir/router"
)

// switched is a switch of Weir's, made by its driver and steered by the rules of Weir's router, as an agent would.
type switched struct {
	links
	fn        function
	sw        datapath.Switch
	endpoints map[string]flow.Port
	mu        sync.Mutex // of functions
	functions map[string]router.Function
}

// switchNetwork is what a driver makes.
func switchNetwork(name string, d switches.Driver) networkMaker {
	options := func(l links) switches.Options {
		return switches.Options{Instance: l.inst, Logger: slog.New(slog.DiscardHandler), Private: true}
	}
	n := networkMaker{
		name: name, about: "Weir's switch " + name, wires: true, splits: true,
		check: func(Options) string {
			for _, f := range d.Features() {
				if f.Required && !f.OK {
					return f.Name + ": " + f.Detail
				}
			}
			return ""
		},
		destroy: func(ctx context.Context, l links) error {
			if !netns.Exists(l.home) { // all of it was there
				return nil
			}
			return netns.Do(l.home, func() error { return d.Destroy(ctx, options(l)) })
		},
		open: func(ctx context.Context, l links, f function) (network, error) {
			s := &switched{links: l, fn: f, endpoints: map[string]flow.Port{}, functions: map[string]router.Function{}}
			err := netns.Do(l.home, func() (err error) { s.sw, err = d.Open(ctx, options(l)); return err })
			if err != nil {
				return nil, err
			}
			return s, nil
		},
	}
	if name == "ovs" {
		n.process, n.inherent = true, userSpaceSwitch()
	}
	return n
}

func (s *switched) station(ctx context.Context, name, space string, address netip.Prefix) error {
	link, err := s.joinStation(name, space, address)
	if err != nil {
		return err
	}
	port, err := s.sw.AddEndpoint(ctx, datapath.Endpoint{Name: name, Link: link.Name, Peer: s.inst.MAC(stationObject(name)), Netns: space})
	s.endpoints[name] = port
	return err
}

func (s *switched) add(ctx context.Context, name, space string) error {
	in, out, err := s.joinFunction(name, space)
	if err != nil {
		return err
	}
	ports, err := s.sw.AddFunction(ctx, datapath.Function{
		Name: name, Netns: space, In: in.Name, Out: out.Name, InPeer: flow.In.String(), OutPeer: flow.Out.String(), Forwarder: s.fn.forwarder,
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.functions[name] = router.Function{In: ports.In, Out: ports.Out}
	return err
}

func (s *switched) ready(ctx context.Context, name string, pid int) error {
	return s.sw.SetState(ctx, name, datapath.Up, pid)
}

func (s *switched) lead(ctx context.Context, chains [][]string) error {
	if x, ok := s.sw.(interface{ Settle(context.Context) error }); ok { // what a driver puts off
		if err := x.Settle(ctx); err != nil {
			return err
		}
	}
	in := router.Input{Endpoints: s.endpoints, Functions: s.functions, Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{}}
	match := []string{"tcp", "udp", "icmp"}
	if s.fn.neighbours {
		match = []string{"all"}
	}
	for i, functions := range chains {
		if len(functions) == 0 {
			continue
		}
		name, from := fmt.Sprintf("wires-%d", i), "alice"
		if i > 0 {
			from = api.Selector{Kind: api.SelectMAC, MAC: SourceMAC(i)}.String()
		}
		in.Chains[name] = api.ChainSpec{Path: strings.Join(functions, " | ")}
		in.Policies[name] = api.PolicySpec{From: from, To: "bob", Match: match, Chain: name, Priority: 100 + i}
	}
	out := router.Compile(in)
	for name, err := range out.Errors {
		return fmt.Errorf("policy %s: %w", name, err)
	}
	_, err := s.sw.Commit(ctx, out.Rules)
	return err
}

func (s *switched) entry() string { return s.inst.Link(stationObject("alice")) }

func (s *switched) close(ctx context.Context) error { return s.sw.Destroy(ctx) }
