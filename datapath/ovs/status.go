package ovs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// saveEvery bounds how much counting a crash of this process and of Open vSwitch together can lose.
const saveEvery = time.Second

// Status reads ports, by name, and rules, in the order of the commit, back with their counters. While Open vSwitch is away the counters are
// the last known ones.
func (s *Switch) Status(ctx context.Context) ([]datapath.PortStatus, []datapath.RuleStatus, error) {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	sums, err := s.counters.count(ctx, s.rules.installed)
	if err != nil {
		return nil, nil, err
	}
	rules := make([]datapath.RuleStatus, 0, len(s.rules.set.Rules))
	for i := range s.rules.set.Rules {
		r := &s.rules.set.Rules[i]
		rules = append(rules, datapath.RuleStatus{Cookie: r.Cookie, Note: r.Note, Hits: sums[owner{ownRule, r.Cookie}]})
	}
	return s.counters.ofPorts(sums), rules, nil
}

// Ports reads ports, by name, back with their counters, which are those of entries.
func (s *Switch) Ports(ctx context.Context) ([]datapath.PortStatus, error) {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	sums, err := s.counters.count(ctx, s.rules.installed)
	if err != nil {
		return nil, err
	}
	return s.counters.ofPorts(sums), nil
}

// count reads all counters, if Open vSwitch is there.
func (s *counters) count(ctx context.Context, installed entrySet) (map[owner]counter, error) {
	if s.connection.up() {
		if err := s.read(ctx, installed); err != nil && s.connection.of.Err() == nil {
			return nil, fmt.Errorf("status: %w", err)
		}
		if err := s.readLosses(ctx); err != nil && s.connection.of.Err() == nil {
			return nil, fmt.Errorf("status: %w", err)
		}
		if time.Since(s.saved) > saveEvery {
			if err := s.save(); err != nil {
				return nil, err
			}
		}
	}
	return s.sums(installed), nil
}

func (s *counters) ofPorts(sums map[owner]counter) []datapath.PortStatus {
	ports := make([]datapath.PortStatus, 0, len(s.ports.all))
	there := make(map[string]bool, len(s.ports.all))
	for _, p := range s.ports.all {
		there[p.Name] = true
		n := uint64(p.Number)
		st := datapath.PortStatus{Port: p.Number, Name: p.Name, Link: p.Link, State: datapath.Up,
			Rx: sums[owner{ownRx, n}], Tx: sums[owner{ownTx, n}], Dropped: sums[owner{ownDropped, n}]}
		if lost, told := s.unsent[p.Number]; told {
			st.Dropped.Packets += s.losses.Total(p.Name, p.Index, p.function != nil || p.E.Peer != flow.MAC{}, lost)
		}
		for why := range st.Refused {
			st.Refused[why] = sums[owner{ownRefused + ownerKind(why), n}].Packets
		}
		if p.function != nil {
			st.Function, st.State = p.function.F.Name, p.function.State
		}
		ports = append(ports, st)
	}
	s.losses.Keep(func(port string) bool { return there[port] })
	slices.SortFunc(ports, func(a, b datapath.PortStatus) int { return cmp.Compare(a.Name, b.Name) })
	return ports
}
