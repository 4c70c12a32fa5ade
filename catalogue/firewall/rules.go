package main

import (
	"bytes"
	"crypto/sha256"
	"slices"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Ethertypes and protocol numbers.
const (
	etherIPv4  = unix.ETH_P_IP
	etherIPv6  = unix.ETH_P_IPV6
	etherARP   = unix.ETH_P_ARP
	etherProbe = 0x88b5 // IEEE local experimental 1: the switch's probe of a function's liveness
)

// rule is one line of the filter with what it is called in logs and comments.
type rule struct {
	name   string
	denies bool
	settle bool // its flows may be settled: what it says of a packet it says of all that follow, with the same addresses and ports
	match  []expr.Any
	sets   []*set // that are looked up, in the order of match's lookups and updates
}

// set of the kernel's.
type set struct {
	v6       bool
	elements addresses
	dynamic  bool // sources with a limit of their own
}

// reads tells whether the rule looks at ports, flags or types. A later fragment has data in their place; the kernel compares these on a bridge, so no later fragment
// meets such a rule.
func (r rule) reads() bool {
	return slices.ContainsFunc(r.match, func(e expr.Any) bool {
		p, ok := e.(*expr.Payload)
		return ok && p.Base == expr.PayloadBaseTransportHeader
	})
}

// laterFragments are the rules that lead all fragments but first ones to the rules that look at nothing behind the IP header.
func laterFragments() []rule {
	v4, v6 := fragmentsFrom(1)
	return []rule{{name: "later fragments", match: v4}, {name: "later fragments", match: v6}}
}

// Rules about first fragments of IPv6: the headers of a packet may be in another fragment, behind a long extension header. Then nobody can compare the first one with
// what is denied; stations drop such packets, too (RFC 7112), but not all of them do.
var (
	firstFragments = rule{name: "first fragments of IPv6", match: join(ethertype(etherIPv6), []expr.Any{
		&expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_FRAGMENT, Offset: 2, Len: 2, Op: expr.ExthdrOpIpv6},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0xff, 0xf8}, Xor: []byte{0, 0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 0}},
	})}
	readable   = rule{name: "first fragments with ports", match: []expr.Any{transport(0, 4), &expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: []byte{0, 0, 0, 0}}}}
	unreadable = rule{name: "deny headers that are in another fragment", denies: true}
)

// fragmentsFrom an offset on, in units of 8 bytes, of IPv4 and of IPv6.
func fragmentsFrom(least uint16) (v4, v6 []expr.Any) {
	v4 = join(ethertype(etherIPv4), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 6, Len: 2},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0x1f, 0xff}, Xor: []byte{0, 0}},
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: binaryutil.BigEndian.PutUint16(least)},
	})
	v6 = join(ethertype(etherIPv6), []expr.Any{
		&expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_FRAGMENT, Offset: 2, Len: 2, Op: expr.ExthdrOpIpv6},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0xff, 0xf8}, Xor: []byte{0, 0}},
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: binaryutil.BigEndian.PutUint16(least << 3)},
	})
	return v4, v6
}

// filter is rules that are being computed, and their sets.
type filter struct {
	in, out string
	rules   []rule
	whole   bool // what denies has to be compared with every packet: none may hide its headers
	sets    []*set
	known   map[string]*set // by what they are of
}

// within are the alternatives in which a packet is from some addresses to others, or just one if they are all. back: a packet of a server.
func (f *filter) within(e entry, back bool) []rule {
	if e.sources == nil && e.targets == nil {
		return []rule{{}}
	}
	var out []rule
	for _, v6 := range []bool{false, true} {
		r, some := rule{}, true
		for _, side := range []struct {
			all  addresses
			text string
			dst  bool
		}{{e.sources, e.fromText, back}, {e.targets, e.toText, !back}} {
			if side.all == nil {
				continue
			}
			of := side.all.of(v6)
			if some = some && len(of) > 0; !some {
				break
			}
			r.match = append(append(r.match, address(v6, side.dst)...), &expr.Lookup{SourceRegister: 1})
			r.sets = append(r.sets, f.set(of, v6))
		}
		if some {
			out = append(out, r)
		}
	}
	return out
}

// set of addresses; entries with the same ones share it.
func (f *filter) set(of addresses, v6 bool) *set {
	sum := sha256.New()
	for _, s := range of {
		sum.Write(s.first.AsSlice())
		sum.Write(s.last.AsSlice())
	}
	name := string(sum.Sum(nil))
	if f.known[name] == nil {
		f.known[name] = &set{v6: v6, elements: of}
		f.sets = append(f.sets, f.known[name])
	}
	return f.known[name]
}

// add rules of an entry, one for each alternative of addresses and services.
func (f *filter) add(name string, denies, back bool, e entry, more ...expr.Any) {
	for _, r := range f.within(e, back) {
		f.rules = append(f.rules, rule{name: name, denies: denies, match: join(r.match, more), sets: r.sets})
	}
}

// settling adds rules whose flows may be settled.
func (f *filter) settling(name string, back bool, e entry, more ...expr.Any) {
	n := len(f.rules)
	f.add(name, false, back, e, more...)
	for i := n; i < len(f.rules); i++ {
		f.rules[i].settle = e.Limit == nil
	}
}

// limited adds rules for packets that count for a limit: as many as may pass, and no others.
func (f *filter) limited(name string, e entry, m []expr.Any) {
	l := &expr.Limit{Type: expr.LimitTypePkts, Rate: e.Limit.n, Unit: e.Limit.unit, Burst: e.Limit.Burst}
	if !e.Limit.PerSource {
		f.add(name+" limited", false, false, e, append(slices.Clone(m), l)...)
	} else {
		for _, v6 := range []bool{false, true} {
			of := address(v6, false)
			if v6 { // a site has a /64
				of = append(of, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 16, Mask: append(bytes.Repeat([]byte{0xff}, 8), make([]byte, 8)...), Xor: make([]byte, 16)})
			}
			s := &set{v6: v6, dynamic: true}
			f.sets = append(f.sets, s)
			of = append(of, &expr.Dynset{SrcRegKey: 1, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{l}})
			n := len(f.rules)
			f.add(name+" limited", false, false, e, join(m, of)...)
			for i := n; i < len(f.rules); i++ {
				f.rules[i].sets = append(slices.Clone(f.rules[i].sets), s)
			}
		}
	}
	f.add("over the limit of "+name, true, false, e, m...)
}

// plan computes the filter, in order: the first rule that matches decides. stateful uses connection tracking for replies; without,
// a reply is told by its source port, and for TCP by not being a lone SYN.
func plan(cfg config, in, out string, stateful bool) *filter {
	f := &filter{in: in, out: out, whole: len(cfg.Deny) > 0, known: map[string]*set{}}
	var rules []rule
	if cfg.probe != nil { // every other frame of that type is as any frame
		rules = append(rules, rule{name: "probe", match: join(ethertype(etherProbe), ends(cfg.probe))})
	}
	if len(cfg.Deny) > 0 { // stations take off tags of VLAN 0, however many they are; we look behind one
		for _, inner := range []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD} {
			rules = append(rules, rule{name: "deny what hides behind priority tags", denies: true, match: join(ethertype(inner), []expr.Any{
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 14, Len: 2},
				&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0x0f, 0xff}, Xor: []byte{0, 0}},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 0}},
			})})
		}
	}
	for _, s := range cfg.Deny {
		if s.proto == "arp" { // which has no addresses here
			rules = append(rules, rule{name: "deny " + s.String(), denies: true, match: ethertype(etherARP)})
		}
	}
	// Without these nothing finds its neighbour or its path's MTU, whatever else is allowed.
	rules = append(rules,
		rule{name: "arp", match: ethertype(etherARP)},
		rule{name: "neighbour discovery", match: join(l4(unix.IPPROTO_ICMPV6), between(transport(0, 1), []byte{133}, []byte{137}))},
		// destination unreachable; time exceeded, parameter problem
		rule{name: "icmp errors", match: join(l4(unix.IPPROTO_ICMP), between(transport(0, 1), []byte{3}, []byte{3}))},
		rule{name: "icmp errors", match: join(l4(unix.IPPROTO_ICMP), between(transport(0, 1), []byte{11}, []byte{12}))},
		rule{name: "icmpv6 errors", match: join(l4(unix.IPPROTO_ICMPV6), between(transport(0, 1), []byte{1}, []byte{4}))},
	)
	f.rules = rules
	for _, e := range cfg.Deny {
		if e.proto == "arp" {
			continue
		}
		for _, m := range matches(e.service, portDst) {
			f.add("deny "+e.String(), true, false, e, join(iif(in), m)...)
		}
		if e.first == 0 { // a whole protocol: in both directions
			for _, m := range matches(e.service, portDst) {
				f.add("deny "+e.String(), true, true, e, join(iif(out), m)...)
			}
		}
	}
	if stateful && cfg.Default == "drop" {
		f.rules = append(f.rules, rule{name: "replies", settle: true, match: join(iif(out), established())})
	}
	for _, e := range cfg.Allow {
		f.allow(e, stateful)
	}
	f.rules = append(f.rules, rule{name: "default " + cfg.Default, denies: cfg.Default == "drop", settle: cfg.Default != "drop"})
	return f
}

func (f *filter) allow(e entry, stateful bool) {
	name := "allow " + e.String()
	for _, m := range matches(e.service, portDst) {
		switch m = join(iif(f.in), m); {
		case e.Limit != nil && e.proto == "tcp":
			f.limited(name, e, join(m, begins(expr.CmpOpEq)))
			fallthrough
		case e.Limit == nil:
			f.settling(name, false, e, m...)
		default:
			f.limited(name, e, m)
		}
	}
	for _, m := range fragments(e.service) {
		if e.sources == nil && e.targets == nil {
			f.add(name+" fragments", false, false, e, m...)
			continue
		}
		f.add(name+" fragments", false, false, e, join(iif(f.in), m)...)
		f.add(name+" fragments", false, true, e, join(iif(f.out), m)...)
	}
	if !stateful {
		for _, m := range replies(e.service) {
			f.settling(name+" replies", true, e, join(iif(f.out), m)...)
		}
	}
}

// begins tells whether a TCP segment begins a connection: SYN without ACK.
func begins(op expr.CmpOp) []expr.Any {
	const syn, ack = 0x02, 0x10
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: 1, Data: []byte{syn}},
	}
}

// Offsets of the ports in the headers of TCP, UDP and SCTP.
const (
	portSrc = 0
	portDst = 2
)

// matches are the alternatives by which a service is told, its port standing at an offset.
func matches(s service, port uint32) [][]expr.Any {
	switch s.proto {
	case "all":
		return [][]expr.Any{nil}
	case "arp":
		return [][]expr.Any{ethertype(etherARP)}
	case "ip":
		return [][]expr.Any{ethertype(etherIPv4), ethertype(etherIPv6)}
	case "icmp":
		return [][]expr.Any{l4(unix.IPPROTO_ICMP), l4(unix.IPPROTO_ICMPV6)}
	}
	m := l4(number(s.proto))
	if s.first != 0 {
		m = append(m, between(transport(port, 2), binaryutil.BigEndian.PutUint16(s.first), binaryutil.BigEndian.PutUint16(s.last))...)
	}
	return [][]expr.Any{m}
}

// replies are what servers send back for a service: the same with source ports, but no new connection and no new ping.
func replies(s service) [][]expr.Any {
	switch s.proto {
	case "icmp":
		return [][]expr.Any{
			join(l4(unix.IPPROTO_ICMP), not(transport(0, 1), 8)),
			join(l4(unix.IPPROTO_ICMPV6), not(transport(0, 1), 128)),
		}
	case "tcp":
		return [][]expr.Any{join(matches(s, portSrc)[0], begins(expr.CmpOpNeq))}
	}
	return matches(s, portSrc) // all and ip: whatever comes
}

// fragments pass when their protocol has an allowed service: only the first fragment carries ports, and without it the others are of
// no use. One that could overwrite the ports or flags of the first (within 16 bytes, RFC 1858) does not pass.
func fragments(s service) [][]expr.Any {
	switch {
	case s.proto == "icmp": // those of replies, too; clients' are told by their protocol alone
		v4, v6 := fragmentsFrom(1)
		return [][]expr.Any{join(l4(unix.IPPROTO_ICMP), v4), join(l4(unix.IPPROTO_ICMPV6), v6)}
	case s.first == 0 && s.proto != "tcp": // told by its protocol alone
		return nil
	}
	v4, v6 := fragmentsFrom(2)
	return [][]expr.Any{join(l4(number(s.proto)), v4), join(l4(number(s.proto)), v6)}
}

func number(proto string) byte {
	switch proto {
	case "tcp":
		return unix.IPPROTO_TCP
	case "udp":
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_SCTP
}

func join(parts ...[]expr.Any) []expr.Any {
	var out []expr.Any
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func iif(name string) []expr.Any {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data},
	}
}

// ethertype is the one behind any VLAN tag: the kernel keeps the outer tag beside the frame.
func ethertype(t uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(t)},
	}
}

// ends are the first bytes of a frame: destination and source.
func ends(head []byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 0, Len: uint32(len(head))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: head},
	}
}

func l4(proto byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
	}
}

func transport(offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length}
}

func between(load expr.Any, first, last []byte) []expr.Any {
	if string(first) == string(last) {
		return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: first}}
	}
	return []expr.Any{load, &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: first, ToData: last}}
}

func not(load expr.Any, value byte) []expr.Any {
	return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{value}}}
}

func established() []expr.Any {
	mask := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}
