package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/home"
)

// maxSettlers bounds the functions that settle flows: each has a table of its own, so that none can push another's flows out.
const maxSettlers = 64

// The C's constants (bpf/weir.h).
const (
	settleV4, settleV6 = 4, 6
	settleEarly        = 256
	verdictRewrite     = 3
	icmpRequest        = 8
	icmp6Request       = 128
	protoICMP          = 1
	protoICMPv6        = 58
)

// settlers are the functions that settle flows, and their tables.
type settlers struct {
	opts     *Options
	home     *home.Home
	tables   *tables
	ports    *ports
	liveness *liveness
	full     string // the function for which there was no room, as the log says
}

var _ datapath.Settler = (*Switch)(nil)

// SettleFlow carries out what a function says of a flow that it has been given.
func (s *Switch) SettleFlow(ctx context.Context, name string, v datapath.Settlement) (int, error) {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	if v.Late(time.Now()) { // a commit was under way
		return 0, datapath.ErrEarly
	}
	fn, err := s.settlers.function(name)
	if err != nil {
		return 0, err
	}
	return s.settlers.settle(fn, v)
}

// UnsettleFlows takes all verdicts of a function back.
func (s *Switch) UnsettleFlows(ctx context.Context, name string) error {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	fn, err := s.settlers.function(name)
	if err != nil {
		return err
	}
	return s.settlers.anew(fn)
}

// function that settles flows.
func (s *settlers) function(name string) (*function, error) {
	switch fn := s.ports.fns[name]; {
	case fn == nil:
		return nil, fmt.Errorf("function %s: %w", name, datapath.ErrNotFound)
	case !fn.F.Settles:
		return nil, fmt.Errorf("function %s: %w", name, datapath.ErrSettlesNothing)
	case !fn.settles:
		return nil, fmt.Errorf("function %s: %w: at most %d functions of a switch settle flows", name, datapath.ErrFull, s.opts.settlers)
	default:
		return fn, nil
	}
}

// settle runs the program that writes verdicts.
func (s *settlers) settle(fn *function, v datapath.Settlement) (int, error) {
	if err := v.Check(); err != nil {
		return 0, err
	}
	if v.At != "" && len(fn.Ports) != 2 {
		return 0, fmt.Errorf("function %s has no port %s", fn.F.Name, v.At)
	}
	raw, err := binary.Append(nil, binary.NativeEndian, request(fn, v))
	if err != nil {
		return 0, err
	}
	answer, err := s.tables.programs.Settle.Run(&ebpf.RunOptions{Data: raw})
	switch {
	case err != nil:
		return 0, fmt.Errorf("settle a flow: %w", err)
	case answer%settleEarly > 0:
		return int(answer % settleEarly), nil
	case answer&settleEarly != 0:
		return 0, datapath.ErrEarly
	}
	return 0, datapath.ErrNotGiven
}

func request(fn *function, v datapath.Settlement) *bpf.SettleSettleRequest {
	f := v.Flow
	k := bpf.SettleSettleKey{Vlan: f.VLAN, Proto: f.Protocol, SrcPort: f.Src.Port(), DstPort: f.Dst.Port(), Family: settleV6}
	if f.Src.Addr().Is4() {
		k.Family = settleV4
	}
	k.Src, k.Dst = words(f.Src.Addr()), words(f.Dst.Addr())
	switch f.Protocol {
	case protoICMP:
		k.DstPort = icmpRequest
	case protoICMPv6:
		k.DstPort = icmp6Request
	}
	if f.VLAN == 0 {
		k.Vlan = datapath.NoVLAN
	}
	r := &bpf.SettleSettleRequest{Key: k, Function: fn.Slot, Verdict: uint8(v.Verdict)}
	if v.OneWay {
		r.Oneway = 1
	}
	if w := v.Rewrite; w != nil {
		r.Verdict = verdictRewrite
		r.Rewrite = bpf.SettleRewrite{Port: w.To.Port(), Mac: w.MAC, Addr: words(w.To.Addr())}
		if w.Target {
			r.Rewrite.End = 1
		}
	}
	for i, p := range fn.Ports { // in, out
		if v.At == "" || v.At == [...]string{"in", "out"}[i] {
			r.Port[i] = p.Slot
		}
	}
	return r
}

// words of an address as keys have it: IPv4 in the first.
func words(a netip.Addr) (w [4]uint32) {
	b := a.AsSlice()
	for i := range len(b) / 4 {
		w[i] = word(b[4*i:])
	}
	return w
}

// anew makes a function judge all its flows anew.
func (s *settlers) anew(fn *function) error {
	return s.liveness.change(fn, func(v *bpf.SteerFunction) { v.Generation++ })
}

// judgeAnew does so for the functions at these slots of ports.
func (s *settlers) judgeAnew(slots map[uint16]bool) error {
	for _, fn := range s.ports.fns {
		for _, p := range fn.Ports {
			if fn.settles && slots[p.Slot] {
				if err := s.anew(fn); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}

// place gives a function that is to settle flows its table, a new one if it is new or its links are. Without room, or memory, it settles none.
func (s *settlers) place(fn, old *function, moved bool) error {
	if fn.F.Settles && old != nil && old.settles && !moved {
		fn.settles = true
		return nil
	}
	if !fn.F.Settles || !s.liveness.kernel.settles {
		return s.remove(fn)
	}
	number := 0
	for _, other := range s.ports.fns {
		if other.settles && other.F.Name != fn.F.Name {
			number++
		}
	}
	err := fmt.Errorf("%d functions settle flows already", number)
	if number < s.opts.settlers {
		err = s.table(fn)
	}
	if err == nil {
		fn.settles = true
		return nil
	}
	if s.full != fn.F.Name {
		s.home.Log.Warn("the function settles no flows", "function", fn.F.Name, "error", err)
		s.full = fn.F.Name
	}
	return s.remove(fn)
}

// table makes a function's table.
func (s *settlers) table(fn *function) error {
	all, _, err := s.opts.specs()
	if err != nil {
		return err
	}
	m, err := ebpf.NewMap(all.settle.Maps[bpf.SettleMapSettled].InnerMap)
	if err != nil {
		return fmt.Errorf("make a table of %d settled flows: %w", s.opts.Settled, err)
	}
	defer m.Close() // the table of tables holds it
	if err := s.tables.maps.SteerMaps.Settled.Put(uint32(fn.Slot), m); err != nil {
		return fmt.Errorf("write table of settled flows: %w", err)
	}
	return s.anew(fn) // other functions' stretches may have been found with a former table
}

// remove a function's table, if it has one.
func (s *settlers) remove(fn *function) error {
	fn.settles = false
	if err := s.tables.maps.SteerMaps.Settled.Delete(uint32(fn.Slot)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove table of settled flows: %w", err)
	}
	return nil
}

// restore finds the tables that there are.
func (s *settlers) restore() error {
	for _, fn := range s.ports.fns {
		var id uint32
		err := s.tables.maps.SteerMaps.Settled.Lookup(uint32(fn.Slot), &id)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read table of settled flows: %w", err)
		}
		if had := err == nil; had || fn.F.Settles {
			if err := s.place(fn, &function{settles: had && fn.F.Settles}, false); err != nil {
				return err
			}
		}
	}
	return nil
}
