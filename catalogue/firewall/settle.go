package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
)

// Flows whose packets the rules accept are settled: the switch passes their further packets by. The rules look at a packet's port, protocol and ports,
// and at TCP's flags only where SYN, FIN or RST is set, which the switch always gives to the function. So what holds for one packet of a direction holds
// for all, until the rules change. Replies are the exception, where connections are tracked: they need the kernel's entry.
//
// The rules write accepted flows into two small sets, which are read and emptied all the time. An element tells how old its flow's last packet is.
const (
	flowLife    = time.Second            // of an element that nobody reads
	pollEvery   = 50 * time.Millisecond  // a verdict has to be said within 100 ms of its packet (nf.Settler)
	pollIdle    = 400 * time.Millisecond // where no flow was accepted for idleAfter: a look costs half a millisecond
	idleAfter   = 2 * time.Second
	maxAccepted = 100 // in each set at a time: as many as the platform takes, 2,000 a second

	// The kernel forgets a connection of which it sees no packets. So the switch is to give a settled flow to the function again before that, and the kernel
	// has to remember it for longer than this when it is settled: UDP 30 s until there is a reply, TCP 300 s while data is not acknowledged.
	udpAgain, udpLeast = 20 * time.Second, 25 * time.Second
	tcpAgain, tcpLeast = 200 * time.Second, 240 * time.Second
	maxTold            = 16384 // flows of each that are to be given again, together as many as the switch remembers; the oldest go first
	maxGiven           = 200   // at a time

	regularly = time.Second // a flow whose packets come again within this time is worth a line; a query and its answer are not
)

// acceptedSet has flows of one family.
type acceptedSet struct {
	version byte // of IP
	addr    nftables.SetDatatype
}

var acceptedSets = []acceptedSet{{4, nftables.TypeIPAddr}, {6, nftables.TypeIP6Addr}}

// set in a table, of a generation of the rules. An element is the port where packets enter, the protocol, both addresses, and both ports in one.
func (a acceptedSet) set(t *nftables.Table, generation int) *nftables.Set {
	return &nftables.Set{
		Table: t, Name: fmt.Sprintf("g%d_accepted%d", generation, a.version), Dynamic: true, HasTimeout: true, Timeout: flowLife, Size: maxAccepted,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFIndex, nftables.TypeInetProto, a.addr, a.addr, nftables.TypeInteger),
	}
}

// rules write flows of TCP and UDP into the set, as the switch knows them: without VLAN tags, IP options, extension headers and fragments. TCP's packets that
// begin or end a connection belong to none.
func (a acceptedSet) rules(set string, tracked bool) (all [][]expr.Any) {
	for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		var exprs []expr.Any
		addresses, length := uint32(12), uint32(4)
		if a.version == 4 {
			exprs = join(outerType(etherIPv4), equal(network(0, 1), []byte{0x45}), equal(network(9, 1), []byte{proto}), masked(network(6, 2), []byte{0x3f, 0xff}, 0, 0))
		} else {
			addresses, length = 8, 16
			exprs = join(outerType(etherIPv6), equal(network(6, 1), []byte{proto}))
		}
		least := udpLeast
		if proto == unix.IPPROTO_TCP {
			const fin, syn, rst, ack = 1, 2, 4, 16
			exprs = join(exprs, masked(transport(13, 1), []byte{fin | syn | rst | ack}, ack))
			least = tcpLeast
		}
		if tracked {
			exprs = join(exprs, remembered(least))
		}
		at := uint32(firstRegister)
		load := func(offset, length uint32, base expr.PayloadBase) expr.Any {
			e := &expr.Payload{DestRegister: at, Base: base, Offset: offset, Len: length}
			at += (length + 3) / 4
			return e
		}
		exprs = append(exprs, &expr.Meta{Key: expr.MetaKeyIIF, Register: at})
		at++
		exprs = append(exprs, &expr.Immediate{Register: at, Data: []byte{proto}})
		at++
		exprs = append(exprs, load(addresses, length, expr.PayloadBaseNetworkHeader), load(addresses+length, length, expr.PayloadBaseNetworkHeader),
			load(portSrc, 4, expr.PayloadBaseTransportHeader))
		all = append(all, append(exprs, &expr.Dynset{SrcRegKey: firstRegister, SetName: set, Operation: uint32(unix.NFT_DYNSET_OP_UPDATE), Timeout: flowLife}))
	}
	return all
}

const firstRegister = unix.NFT_REG32_00

// outerType is the type behind the addresses: that of a tag, if there is one.
func outerType(t uint16) []expr.Any {
	return equal(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 12, Len: 2}, binaryutil.BigEndian.PutUint16(t))
}

func network(offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

func equal(load expr.Any, data []byte) []expr.Any {
	return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}

func masked(load expr.Any, mask []byte, data ...byte) []expr.Any {
	return []expr.Any{
		load, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data},
	}
}

// remembered: the kernel keeps the connection for so long, if it sees no further packet.
func remembered(least time.Duration) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyEXPIRATION, Register: 1}, // ms, in the machine's order
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: binaryutil.BigEndian.PutUint32(uint32(least.Milliseconds()))},
	}
}

// accepted is a flow in one direction, and when its last packet came.
type accepted struct {
	iif  uint32
	flow nf.Flow
	at   time.Time
}

// read the flows of an element's key.
func (a acceptedSet) read(e nftables.SetElement, now time.Time) (accepted, bool) {
	n := int(a.addr.Bytes)
	if len(e.Key) != 4+4+2*n+4 {
		return accepted{}, false
	}
	src, _ := netip.AddrFromSlice(e.Key[8 : 8+n])
	dst, _ := netip.AddrFromSlice(e.Key[8+n : 8+2*n])
	ports := e.Key[8+2*n:]
	return accepted{
		iif: binary.NativeEndian.Uint32(e.Key), at: now.Add(min(e.Expires-flowLife, 0)),
		flow: nf.Flow{
			Proto: e.Key[4], VLAN: nf.NoVLAN,
			Src: netip.AddrPortFrom(src, binary.BigEndian.Uint16(ports)), Dst: netip.AddrPortFrom(dst, binary.BigEndian.Uint16(ports[2:])),
		},
	}, true
}

// takeAccepted reads the sets, which are those of acceptedSets, and empties them.
func takeAccepted(c *nftables.Conn, sets []*nftables.Set) (all []accepted, err error) {
	for i, s := range sets {
		now := time.Now() // before: a flow counts as older than it is
		elements, err := c.GetSetElements(s)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			if f, ok := acceptedSets[i].read(e, now); ok {
				all = append(all, f)
			}
		}
		if len(elements) > 0 {
			c.FlushSet(s)
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, c.Flush()
}

// settling tells the switch of accepted flows. Its lock is held from reading flows until they are said, and while rules change, so that no flow is said
// by former rules.
type settling struct {
	sync.Mutex
	to      *nf.Settler
	path    string          // of the platform's socket
	in, out int             // indices of the ports
	sets    []*nftables.Set // where the rules in force collect flows; nil: they do not
	tracked bool            // they need the kernel's connections
	liberal func(nf.Flow) error
	regular regular
	tcp     again
	udp     again
}

// wanted tells whether the platform takes verdicts.
func (s *settling) wanted() bool {
	_, err := os.Stat(s.path)
	return err == nil
}

// run until ctx ends.
func (s *settling) run(ctx context.Context, log func(error)) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		log(err)
		return
	}
	defer func() { _ = c.CloseLasting() }()
	failed, busy, next := false, time.Now(), pollEvery
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
		now := time.Now()
		some, err := s.poll(c, now)
		if some {
			busy = now
		}
		if next = pollEvery; now.Sub(busy) > idleAfter {
			next = pollIdle
		}
		if err != nil && !failed {
			log(err)
		}
		failed = err != nil
	}
}

// poll looks once; some: there were accepted flows.
func (s *settling) poll(c *nftables.Conn, now time.Time) (some bool, err error) {
	s.Lock()
	defer s.Unlock()
	if s.sets == nil {
		return false, nil
	}
	s.tcp.giveAgain(s.to, now)
	s.udp.giveAgain(s.to, now)
	flows, err := takeAccepted(c, s.sets)
	if err != nil {
		return false, err
	}
	var failed error
	for _, a := range flows {
		d, known := map[uint32]nf.Dir{uint32(s.in): nf.Up, uint32(s.out): nf.Down}[a.iif]
		if !known {
			continue
		}
		if !s.regular.again(told{d, a.flow}, now) {
			continue
		}
		if s.tracked {
			if err := s.track(told{d, a.flow}, now); err != nil {
				if !errors.Is(err, unix.ENOENT) { // the connection has ended
					failed = err
				}
				continue
			}
		}
		s.to.PassFlowAt(d, a.flow, a.at)
	}
	return len(flows) > 0, failed
}

// track has the kernel take a connection as it is when its packets come again.
func (s *settling) track(f told, now time.Time) error {
	if f.flow.Proto != nf.TCP {
		s.udp.add(s.to, f, now.Add(udpAgain))
		return nil
	}
	if err := s.liberal(f.flow); err != nil {
		return err
	}
	s.tcp.add(s.to, f, now.Add(tcpAgain))
	return nil
}

// anew takes all back, since the rules are others.
func (s *settling) anew() {
	s.tcp, s.udp = again{}, again{}
	s.to.Reset()
}

type told struct {
	dir  nf.Dir
	flow nf.Flow
}

// regular are flows that were read within the last second or two: at most maxAccepted of a family each time.
type regular struct {
	now, before map[told]bool
	since       time.Time
}

// again tells whether it was read before.
func (r *regular) again(f told, now time.Time) bool {
	if r.now == nil || now.Sub(r.since) > regularly {
		r.now, r.before, r.since = map[told]bool{}, r.now, now // nobody polled for long: then before is old, and one more line is said
	}
	known := r.now[f] || r.before[f]
	r.now[f] = true
	return known
}

// again are flows that the switch is to give again, those of the next time first.
type again struct {
	queue []due
	known map[told]bool // those in the queue
}

type due struct {
	told
	at time.Time
}

func (a *again) add(to *nf.Settler, f told, at time.Time) {
	if a.known[f] {
		return // it comes sooner
	}
	if a.known == nil {
		a.known = map[told]bool{}
	}
	if len(a.queue) >= maxTold {
		a.next(to)
	}
	a.queue = append(a.queue, due{f, at})
	a.known[f] = true
}

func (a *again) giveAgain(to *nf.Settler, now time.Time) {
	for n := 0; n < maxGiven && len(a.queue) > 0 && !now.Before(a.queue[0].at); n++ {
		a.next(to)
	}
}

func (a *again) next(to *nf.Settler) {
	f := a.queue[0].told
	a.queue = a.queue[1:]
	delete(a.known, f)
	to.JudgeFlowAt(f.dir, f.flow)
}
