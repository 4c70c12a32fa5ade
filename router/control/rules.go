package control

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router/rollout"
)

// SwitchRules reads a switch's entries of Weir live, by its name.
func (c *Controller) SwitchRules(ctx context.Context, name string) (api.SwitchRules, error) {
	c.mu.Lock()
	s, events := c.running[name], c.events
	c.mu.Unlock()
	if s == nil {
		return api.SwitchRules{}, fmt.Errorf("switch %s is not connected", name)
	}
	entries, err := s.readAgain(ctx)
	if err != nil {
		return api.SwitchRules{}, fmt.Errorf("switch %s: %w", name, err)
	}
	slices.SortStableFunc(entries, func(a, b openflow.FlowStats) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Cookie&rollout.IdentityMask, b.Cookie&rollout.IdentityMask))
	})
	known := explain(ctx, s, events, entries)
	out := api.SwitchRules{Switch: name, Message: known.message}
	count := map[uint8]int{}
	for i, e := range entries {
		r := api.SwitchRule{
			Table: e.Table, Priority: e.Priority, Cookie: fmt.Sprintf("%#x", e.Cookie), Match: e.Match.String(),
			Actions: openflow.InstructionString(e.Instructions), Hits: api.Counter{Packets: e.Packets, Bytes: e.Bytes},
		}
		if n := known.rules[i]; n != nil {
			r.Policy, r.Note = n.Policy, n.Note
		}
		count[e.Table]++
		out.Rules = append(out.Rules, r)
	}
	for _, t := range s.sizes {
		if t.id > 1 && count[t.id] == 0 {
			continue
		}
		out.Tables = append(out.Tables, known.use(t, count[t.id]))
	}
	return out, nil
}

// maxPorts bounds the counters of one switch.
const maxPorts = 4096

// SwitchCounters reads the counters of a switch's ports live, by its name. Its local port and other reserved ones are left out.
func (c *Controller) SwitchCounters(ctx context.Context, name string) (api.SwitchCounters, error) {
	c.mu.Lock()
	s := c.running[name]
	c.mu.Unlock()
	if s == nil {
		return api.SwitchCounters{}, fmt.Errorf("switch %s is not connected", name)
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	all, err := s.conn.PortStats(ctx, openflow.PortAny)
	if err != nil {
		return api.SwitchCounters{}, fmt.Errorf("switch %s: %w", name, err)
	}
	out := api.SwitchCounters{Switch: name}
	for _, p := range all {
		if p.Port > openflow.PortMax || len(out.Ports) == maxPorts {
			continue
		}
		out.Ports = append(out.Ports, api.SwitchPortCounters{
			Number: uint32(p.Port), Rx: api.Counter{Packets: counted(p.RxPackets), Bytes: counted(p.RxBytes)}, Tx: api.Counter{Packets: counted(p.TxPackets), Bytes: counted(p.TxBytes)},
			Dropped: counted(p.RxDropped) + counted(p.TxDropped), Errors: counted(p.RxErrors) + counted(p.TxErrors),
		})
	}
	slices.SortFunc(out.Ports, func(a, b api.SwitchPortCounters) int { return cmp.Compare(a.Number, b.Number) })
	return out, nil
}

// counted is 0 for what a switch does not count: it says so by all ones.
func counted(n uint64) uint64 {
	if n == math.MaxUint64 {
		return 0
	}
	return n
}

// known is what the loop knows of a switch and its entries.
type known struct {
	capacity
	rules   []*rollout.Rule // what entries are for; nil where nobody knows
	message string
}

// explain asks the loop.
func explain(ctx context.Context, s *session, events chan<- event, entries []openflow.FlowStats) known {
	keys := make([]rollout.Key, len(entries))
	for i, e := range entries {
		keys[i] = rollout.KeyOf(&e)
	}
	answer := make(chan known, 1)
	post(ctx, events, func(l *loop) {
		out := known{rules: make([]*rollout.Rule, len(keys))}
		if d := l.switches[s.dpid]; d != nil {
			out.capacity, out.message = capacity{maps.Clone(d.full), d.short}, d.shortage()
			for i, k := range keys {
				if h := d.node.Held[k]; h != nil && h.Known {
					out.rules[i] = h.Rule
				}
			}
		}
		answer <- out
	})
	select {
	case out := <-answer:
		return out
	case <-ctx.Done():
	case <-s.conn.Done():
	}
	return known{rules: make([]*rollout.Rule, len(entries))}
}
