package ebpf

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
)

// Status reads ports, by name, and rules, in the order of the commit, back with their counters.
func (s *Switch) Status(ctx context.Context) ([]datapath.PortStatus, []datapath.RuleStatus, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	ports, err := s.portsStatus()
	if err != nil {
		return nil, nil, err
	}
	rules := make([]datapath.RuleStatus, 0, len(s.rules.Rules))
	for i := range s.rules.Rules {
		r := &s.rules.Rules[i]
		sum, err := sums(s.maps.RuleCounts, s.rules.Slots[r.Cookie], 2)
		if err != nil {
			return nil, nil, fmt.Errorf("status of rule %016x: %w", r.Cookie, err)
		}
		base := s.state.Rules[r.Cookie]
		rules = append(rules, datapath.RuleStatus{Cookie: r.Cookie, Note: r.Note,
			Hits: counter{Packets: base.Packets + sum[0], Bytes: base.Bytes + sum[1]}})
	}
	return ports, rules, nil
}

// Ports reads ports, by name, back with their counters.
func (s *Switch) Ports(ctx context.Context) ([]datapath.PortStatus, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.portsStatus()
}

func (s *Switch) portsStatus() ([]datapath.PortStatus, error) {
	var ports []datapath.PortStatus
	lost, err := s.home.Lost()
	if err != nil {
		return nil, err
	}
	there := make(map[string]bool, len(s.ports))
	for _, p := range s.ports {
		st, err := s.portStatus(p)
		if err != nil {
			return nil, fmt.Errorf("status of %s: %w", p.Name, err)
		}
		there[p.Name] = true
		st.Dropped.Packets += s.losses.Total(p.Name, int(p.Index), p.Veth, lost[int(p.Index)])
		ports = append(ports, st)
	}
	s.losses.Keep(func(port string) bool { return there[port] })
	slices.SortFunc(ports, func(a, b datapath.PortStatus) int { return cmp.Compare(a.Name, b.Name) })
	return ports, nil
}

func (s *Switch) portStatus(p *port) (datapath.PortStatus, error) {
	sum, err := sums(s.maps.PortCounts, uint32(p.Slot), 6)
	if err != nil {
		return datapath.PortStatus{}, err
	}
	c := s.state.Ports[p.Name].plus(sum)
	st := datapath.PortStatus{Port: p.number(), Name: p.Name, Link: p.Link, Rx: c.Rx, Tx: c.Tx, Dropped: c.Dropped, State: datapath.Up}
	if st.Refused, err = s.refused(p); err != nil {
		return st, err
	}
	if name := p.functionName(); name != "" {
		var v bpf.SteerFunction
		if err := s.maps.Functions.Lookup(uint32(s.fns[name].Slot), &v); err != nil {
			return st, err
		}
		st.Function, st.State = name, datapath.State(v.State)
	}
	return st, nil
}

func (c portCounters) plus(sum []uint64) portCounters {
	add := func(c *counter, packets, bytes uint64) {
		c.Packets += packets
		c.Bytes += bytes
	}
	add(&c.Rx, sum[0], sum[1])
	add(&c.Tx, sum[2], sum[3])
	add(&c.Dropped, sum[4], sum[5])
	return c
}

// sums of the n words of a per-CPU entry over all CPUs.
func sums(m *ebpf.Map, slot uint32, n int) ([]uint64, error) {
	var perCPU [][]byte
	if err := m.Lookup(slot, &perCPU); err != nil {
		return nil, err
	}
	sum := make([]uint64, n)
	for _, v := range perCPU {
		for i := range sum {
			if len(v) >= 8*i+8 {
				sum[i] += binary.NativeEndian.Uint64(v[8*i:])
			}
		}
	}
	return sum, nil
}

func word(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
