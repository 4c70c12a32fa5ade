package ebpf

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
)

// The C's constants (bpf/weir.h).
const (
	tickShift   = 20
	settleIdle  = 57220
	settleMost  = 286102
	verdictMask = 3
	icmpReply   = 0
	icmp6Reply  = 129
	stretchMask = 1<<6 - 1
	stretchMost = 16
	turnBits    = 28
	kindDirect  = 1
)

// readTogether so many entries of a table are read at a time: more than fall into one of its buckets.
const readTogether = 1024

// SettledFlows reads the flows for which a verdict of the function holds now.
func (s *Switch) SettledFlows(ctx context.Context, name string, q datapath.SettledQuery) (datapath.SettledFlows, error) {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return datapath.SettledFlows{}, err
	}
	t, err := s.settlers.look(name)
	leave() // the table may be long, and functions are to be heard meanwhile
	if err != nil {
		return datapath.SettledFlows{}, err
	}
	defer t.close()
	found, err := t.read(ctx, q)
	if err != nil {
		return datapath.SettledFlows{}, fmt.Errorf("read settled flows of function %s: %w", name, err)
	}
	return found, nil
}

// settledTable is a function's table, and what its entries mean.
type settledTable struct {
	flows      *ebpf.Map
	generation uint32
	ports      map[uint16]string // by slot
	ahead      []ahead
}

// ahead is a port at which a flow may have passed by, with its function, a stretch of functions: what went by there counts at the other ones later.
type ahead struct {
	flows *ebpf.Map
	port  uint16 // its slot
	at    uint16 // the port of the table's function that is in the stretch
	place uint64 // which one of the stretch it is there: 1 the first behind the port
}

func (t *settledTable) close() {
	for _, m := range t.tables() {
		m.Close()
	}
}

// tables: the function's, and those ahead.
func (t *settledTable) tables() []*ebpf.Map {
	all := []*ebpf.Map{t.flows}
	for _, a := range t.ahead {
		if !slices.Contains(all, a.flows) {
			all = append(all, a.flows)
		}
	}
	return all
}

func (s *settlers) look(name string) (t settledTable, err error) {
	fn, err := s.function(name)
	if err != nil {
		return t, err
	}
	var v bpf.SteerFunction
	if err := s.tables.maps.Functions.Lookup(uint32(fn.Slot), &v); err != nil {
		return t, fmt.Errorf("read function %s: %w", name, err)
	}
	t.generation, t.ports = v.Generation, map[uint16]string{}
	for i, p := range fn.Ports {
		t.ports[p.Slot] = [...]string{"in", "out"}[i]
		if len(fn.Ports) == 1 {
			t.ports[p.Slot] = "tap"
		}
	}
	if t.flows, err = s.flows(fn); err != nil {
		return t, err
	}
	for _, other := range s.ports.fns {
		if other == fn || !other.settles {
			continue
		}
		if err := s.lookAhead(&t, other); err != nil {
			t.close()
			return t, err
		}
	}
	return t, nil
}

// flows is the table of a function.
func (s *settlers) flows(fn *function) (*ebpf.Map, error) {
	var id ebpf.MapID
	err := s.tables.maps.SteerMaps.Settled.Lookup(uint32(fn.Slot), &id)
	var m *ebpf.Map
	if err == nil {
		m, err = ebpf.NewMapFromID(id)
	}
	if err != nil {
		return nil, fmt.Errorf("open the table of settled flows of function %s: %w", fn.F.Name, err)
	}
	return m, nil
}

// lookAhead finds those ports of another function from which a stretch may lead by a port of the table's one.
func (s *settlers) lookAhead(t *settledTable, other *function) error {
	var flows *ebpf.Map
	for _, p := range other.Ports {
		line, err := s.line(p.Slot)
		if err != nil {
			return err
		}
		for i, at := range line {
			if _, ok := t.ports[at]; !ok {
				continue
			}
			if flows == nil {
				if flows, err = s.flows(other); err != nil {
					return err
				}
			}
			t.ahead = append(t.ahead, ahead{flows: flows, port: p.Slot, at: at, place: uint64(i + 1)})
		}
	}
	return nil
}

// line is where the rules for every frame lead from a port of a function, if it and those behind pass frames by: the ports of functions there, as far as a stretch may
// go (leap in bpf/settle.h).
func (s *settlers) line(slot uint16) ([]uint16, error) {
	var c bpf.SteerControl
	if err := s.tables.maps.Controls.Lookup(uint32(0), &c); err != nil {
		return nil, fmt.Errorf("read the version of the rules: %w", err)
	}
	var out []uint16
	var p bpf.SteerPort
	for len(out) < stretchMost {
		if err := s.tables.maps.Slots.Lookup(uint32(slot), &p); err != nil {
			return nil, fmt.Errorf("read port: %w", err)
		}
		if err := s.tables.maps.Slots.Lookup(uint32(p.Opposite), &p); err != nil {
			return nil, fmt.Errorf("read port: %w", err)
		}
		stage := &p.Copy[c.Version&1].Stage[0]
		if slot = stage.Action.Target; stage.Kind != kindDirect || slot == 0 {
			return out, nil
		}
		out = append(out, slot)
	}
	return out, nil
}

// read keeps no more than twice what is asked for.
func (t *settledTable) read(ctx context.Context, q datapath.SettledQuery) (found datapath.SettledFlows, err error) {
	now, err := coarse()
	if err != nil {
		return found, err
	}
	limit, order := max(q.Limit, 1), biggest
	if q.Newest {
		order = newest
	}
	keys, values := make([]bpf.SettleSettleKey, readTogether), make([]bpf.SteerGiven, readTogether)
	var cursor ebpf.MapBatchCursor
	for ctx.Err() == nil {
		n, err := t.flows.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return found, err
		}
		for i := range n {
			f, holds := t.entry(&keys[i], &values[i], now)
			if !holds {
				continue
			}
			if err := t.wentAhead(&keys[i], values[i].Turn, &f.Missed); err != nil {
				return found, err
			}
			found.Total++
			found.Flows = append(found.Flows, f)
		}
		last := err != nil
		if last || len(found.Flows) > 2*limit {
			slices.SortFunc(found.Flows, order)
			found.Flows = found.Flows[:min(len(found.Flows), limit)]
		}
		if last {
			return found, nil
		}
	}
	return found, context.Cause(ctx)
}

// wentAhead adds what has passed the function by in stretches since its entry counted last, and since its verdict, which was given in that turn.
func (t *settledTable) wentAhead(k *bpf.SettleSettleKey, turn uint32, c *datapath.Counter) error {
	for _, a := range t.ahead {
		if a.at != k.Port {
			continue
		}
		key, e := *k, bpf.SteerGiven{}
		key.Port = a.port
		err := a.flows.Lookup(&key, &e)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if then := uint32(e.Stretch >> (64 - turnBits)); e.Stretch&stretchMask >= a.place && int32((turn-then)<<(32-turnBits)) < 0 {
			c.Packets += e.AheadPackets
			c.Bytes += e.AheadBytes
		}
	}
	return nil
}

// entry of a table; holds: its verdict does.
func (t *settledTable) entry(k *bpf.SettleSettleKey, e *bpf.SteerGiven, now uint64) (f datapath.SettledFlow, holds bool) {
	f.Verdict = datapath.Verdict(e.State & verdictMask)
	age, idle := now-min(now, e.Since), now-min(now, e.Last)
	at, known := t.ports[k.Port]
	if f.Verdict == datapath.Judge || !known || e.Generation != t.generation || age > settleMost || idle > settleIdle {
		return f, false
	}
	f.At, f.Age, f.Idle, f.Generation = at, time.Duration(age<<tickShift), time.Duration(idle<<tickShift), e.Generation
	if uint8(f.Verdict) == verdictRewrite {
		w := &e.Rewrite
		f.Verdict, f.Rewrite = datapath.Pass, &datapath.Rewrite{Target: w.End == 1, To: netip.AddrPortFrom(addressOf(k.Family, w.Addr), w.Port), MAC: w.Mac}
	}
	f.Missed = datapath.Counter{Packets: e.Packets + e.AheadPackets, Bytes: e.Bytes + e.AheadBytes}
	srcPort, dstPort := k.SrcPort, k.DstPort
	if k.Proto == protoICMP || k.Proto == protoICMPv6 { // the id, and the type
		f.Reply = dstPort == map[uint8]uint16{protoICMP: icmpReply, protoICMPv6: icmp6Reply}[k.Proto]
		dstPort = srcPort
	}
	f.Flow = datapath.Flow{
		Protocol: k.Proto, VLAN: k.Vlan,
		Src: netip.AddrPortFrom(addressOf(k.Family, k.Src), srcPort), Dst: netip.AddrPortFrom(addressOf(k.Family, k.Dst), dstPort),
	}
	return f, true
}

// addressOf words as keys have them: IPv4 in the first.
func addressOf(family uint8, w [4]uint32) netip.Addr {
	var b [16]byte
	for i := range w {
		binary.NativeEndian.PutUint32(b[4*i:], w[i])
	}
	if family == settleV4 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

func biggest(a, b datapath.SettledFlow) int {
	return cmp.Or(cmp.Compare(b.Missed.Bytes, a.Missed.Bytes), cmp.Compare(a.Age, b.Age), byName(a, b))
}

func newest(a, b datapath.SettledFlow) int {
	return cmp.Or(cmp.Compare(a.Age, b.Age), cmp.Compare(b.Missed.Bytes, a.Missed.Bytes), byName(a, b))
}

func byName(a, b datapath.SettledFlow) int {
	return cmp.Or(a.Flow.Src.Compare(b.Flow.Src), a.Flow.Dst.Compare(b.Flow.Dst), cmp.Compare(a.At, b.At))
}

// coarse is the programs' clock in ticks.
func coarse() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &t); err != nil {
		return 0, err
	}
	return uint64(t.Nano()) >> tickShift, nil
}
