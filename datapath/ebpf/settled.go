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
	defer t.flows.Close()
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
	var id ebpf.MapID
	if err = s.tables.maps.SteerMaps.Settled.Lookup(uint32(fn.Slot), &id); err == nil {
		t.flows, err = ebpf.NewMapFromID(id)
	}
	if err != nil {
		return t, fmt.Errorf("open the table of settled flows of function %s: %w", name, err)
	}
	return t, nil
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
	f.Missed = datapath.Counter{Packets: e.Packets, Bytes: e.Bytes}
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
