package ebpf

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/hostlink"
)

// counters of ports and rules, the losses of links among them. What was counted before the present maps were made is in switch.json.
type counters struct {
	home   *home.Home
	tables *tables
	ports  *ports
	guards *guards
	losses hostlink.Losses
}

// portWords are the words of a port's counters.
const portWords = 8

// Status reads ports, by name, and rules, in the order of the commit, back with their counters.
func (s *Switch) Status(ctx context.Context) ([]datapath.PortStatus, []datapath.RuleStatus, error) {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	ports, err := s.counters.ofPorts()
	if err != nil {
		return nil, nil, err
	}
	rules, err := s.counters.ofRules(&s.rules.set)
	if err != nil {
		return nil, nil, err
	}
	return ports, rules, nil
}

// Ports reads ports, by name, back with their counters.
func (s *Switch) Ports(ctx context.Context) ([]datapath.PortStatus, error) {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.counters.ofPorts()
}

func (c *counters) ofRules(set *ruleSet) ([]datapath.RuleStatus, error) {
	all := make([]datapath.RuleStatus, 0, len(set.Rules))
	for i := range set.Rules {
		r := &set.Rules[i]
		sum, err := sums(c.tables.maps.RuleCounts, set.Slots[r.Cookie], 2)
		if err != nil {
			return nil, fmt.Errorf("status of rule %016x: %w", r.Cookie, err)
		}
		base := c.tables.state.Rules[r.Cookie]
		all = append(all, datapath.RuleStatus{Cookie: r.Cookie, Note: r.Note,
			Hits: counter{Packets: base.Packets + sum[0], Bytes: base.Bytes + sum[1]}})
	}
	return all, nil
}

func (c *counters) ofPorts() ([]datapath.PortStatus, error) {
	var all []datapath.PortStatus
	lost, err := c.home.Space.Lost()
	if err != nil {
		return nil, err
	}
	there := make(map[string]bool, len(c.ports.bySlot))
	for _, p := range c.ports.bySlot {
		st, err := c.ofPort(p)
		if err != nil {
			return nil, fmt.Errorf("status of %s: %w", p.Name, err)
		}
		there[p.Name] = true
		st.Dropped.Packets += c.losses.Total(p.Name, int(p.Index), p.Veth, lost[int(p.Index)])
		all = append(all, st)
	}
	c.losses.Keep(func(port string) bool { return there[port] })
	slices.SortFunc(all, func(a, b datapath.PortStatus) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

func (c *counters) ofPort(p *port) (datapath.PortStatus, error) {
	sum, err := sums(c.tables.maps.PortCounts, uint32(p.Slot), portWords)
	if err != nil {
		return datapath.PortStatus{}, err
	}
	all := c.tables.state.Ports[p.Name].plus(sum)
	st := datapath.PortStatus{Port: p.number(), Name: p.Name, Link: p.Link, Rx: all.Rx, Tx: all.Tx, Dropped: all.Dropped, Settled: all.Settled, State: datapath.Up}
	if st.Refused, err = c.guards.refused(p); err != nil {
		return st, err
	}
	if name := p.functionName(); name != "" {
		var v bpf.SteerFunction
		if err := c.tables.maps.Functions.Lookup(uint32(c.ports.fns[name].Slot), &v); err != nil {
			return st, err
		}
		st.Function, st.State, st.Settles = name, datapath.State(v.State), c.ports.fns[name].settles
	}
	return st, nil
}

// clear those of a slot that becomes another port's.
func (c *counters) clear(slot uint16) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	if err := c.tables.maps.PortCounts.Put(uint32(slot), make([]bpf.SteerPortStats, cpus)); err != nil {
		return fmt.Errorf("clear counters: %w", err)
	}
	if err := c.tables.maps.GuardCounts.Delete(uint32(slot)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("clear counters: %w", err)
	}
	return nil
}

// forget a port that is no more.
func (c *counters) forget(port string) error {
	if _, had := c.tables.state.Ports[port]; !had {
		return nil
	}
	delete(c.tables.state.Ports, port)
	return c.tables.save()
}

// renew those of rules, by cookie and slot: new rules begin at zero, and those that are neither in force nor next are forgotten.
func (c *counters) renew(inForce, next map[uint64]uint32) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	zero := make([]bpf.SteerRuleStats, cpus)
	for cookie, slot := range next {
		if _, known := inForce[cookie]; known {
			continue
		}
		if err := c.tables.maps.RuleCounts.Put(slot, zero); err != nil {
			return fmt.Errorf("clear counter: %w", err)
		}
	}
	forgotten := false
	for cookie := range c.tables.state.Rules {
		if _, kept := next[cookie]; !kept {
			if _, now := inForce[cookie]; !now {
				delete(c.tables.state.Rules, cookie)
				forgotten = true
			}
		}
	}
	if forgotten {
		return c.tables.save()
	}
	return nil
}

// carryRules adds what rules have in a map that is being replaced.
func (c *counters) carryRules(counts *ebpf.Map, slots map[uint64]uint32) {
	for cookie, slot := range slots {
		if sum, err := sums(counts, slot, 2); err == nil {
			had := c.tables.state.Rules[cookie]
			c.tables.state.Rules[cookie] = counter{Packets: had.Packets + sum[0], Bytes: had.Bytes + sum[1]}
		}
	}
}

// carryPorts adds what ports have in a map that is being replaced.
func (c *counters) carryPorts(counts *ebpf.Map) error {
	for slot, p := range c.ports.bySlot {
		if sum, err := sums(counts, uint32(slot), portWords); err == nil {
			c.tables.state.Ports[p.Name] = c.tables.state.Ports[p.Name].plus(sum)
		}
	}
	return nil
}

func (c portCounters) plus(sum []uint64) portCounters {
	add := func(c *counter, packets, bytes uint64) {
		c.Packets += packets
		c.Bytes += bytes
	}
	add(&c.Rx, sum[0], sum[1])
	add(&c.Tx, sum[2], sum[3])
	add(&c.Dropped, sum[4], sum[5])
	add(&c.Settled, sum[6], sum[7])
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
