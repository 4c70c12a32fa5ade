package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"

	"github.com/miekg/dns"

	"weir.dev/weir/catalogue/names"
	"weir.dev/weir/catalogue/nf/station"
	"weir.dev/weir/catalogue/nf/targets"
)

const (
	maxUDP      = 1232 // bytes of an answer by UDP, whatever the client offers: it needs no fragments (DNS flag day 2020)
	maxQuery    = 4096 // bytes; a longer one for a name of ours is an error
	leastCookie = 16   // bytes of a client's and a server's cookie together (RFC 7873)
)

// zone answers for the names of a configuration. It is read by many and changed by none, except for what up says.
type zone struct {
	names map[string]*service
	up    func(netip.Addr, *targets.Check) bool // nil: all targets are up
	any   func() float64                        // in [0,1)
}

func newZone(cfg config, up func(netip.Addr, *targets.Check) bool) *zone {
	return &zone{names: cfg.Names, up: up, any: rand.Float64}
}

// find the service of a name and the name that it was configured by, without "*.". A wildcard is for all names below, except those that are
// configured themselves and what is below these (RFC 4592).
func (z *zone) find(q *names.Question) (*service, string) {
	name := q.Text()
	if s := z.names[string(name)]; s != nil {
		return s, string(name)
	}
	var star [names.MaxName + 2]byte
	for {
		dot := bytes.IndexByte(name, '.')
		if dot < 0 {
			return nil, ""
		}
		name = name[dot+1:]
		wild := append(append(star[:0], "*."...), name...)
		if s := z.names[string(wild)]; s != nil {
			return s, string(name)
		}
		if z.names[string(name)] != nil {
			return nil, ""
		}
	}
}

// fate of a message.
type fate int

const (
	passes   fate = iota // it is not ours
	answered             // by what was returned
	dropped
)

// query decides about a message from a client. limit is what the transport carries: 0 for UDP, where the message says it.
func (z *zone) query(msg []byte, client netip.Addr, limit int) ([]byte, fate) {
	var q names.Question
	if !q.Read(msg) || q.Response {
		return nil, passes
	}
	s, apex := z.find(&q)
	if s == nil {
		return nil, passes
	}
	var asked dns.Msg
	if len(msg) > maxQuery || asked.Unpack(msg) != nil || len(asked.Question) != 1 {
		return malformed(msg), answered
	}
	var reply dns.Msg
	reply.SetReply(&asked)
	reply.Compress, reply.Authoritative, reply.RecursionAvailable = true, true, asked.RecursionDesired
	opt, rcode := options(&asked)
	size := dns.MinMsgSize
	if opt != nil {
		size = min(max(int(opt.UDPSize()), size), maxUDP)
		reply.Extra = append(reply.Extra, optionsOf(opt))
	}
	if limit > 0 {
		size = limit
	}
	reply.Rcode = rcode
	if rcode == dns.RcodeSuccess {
		chosen, all := z.choose(s, q.Kind, client)
		switch {
		case !all && s.AllDown == pass:
			return nil, passes
		case !all && s.AllDown == servfail:
			reply.Rcode, reply.Authoritative = dns.RcodeServerFailure, false
		default:
			fill(&reply, s, apex, chosen)
		}
	}
	reply.Truncate(size) // with TC and without records if they do not fit
	if reply.Truncated {
		reply.Answer, reply.Ns = nil, nil
	}
	packed, err := reply.Pack()
	if err != nil || len(packed) > size {
		return nil, dropped
	}
	return packed, answered
}

// foreign tells whether a message from a server must not reach a client: an answer for a name that only this function answers, or one that clients may take for that. Some look at the
// first of several questions alone, or at none, or follow pointers, and few at the operation.
func (z *zone) foreign(msg []byte) bool {
	if len(msg) < names.HeaderLength || msg[2]&0x80 == 0 {
		return false
	}
	switch questions(msg) {
	case 0:
		return binary.BigEndian.Uint16(msg[6:]) > 0 // it has records; without, it says that the server does not understand the query
	case 1:
	default:
		return true // servers have none such to send (RFC 9619)
	}
	var q names.Question
	if !q.ReadFirst(msg) {
		return true
	}
	if update := msg[2]&0x78 != 0 && q.Kind == dns.TypeSOA; update || q.Class != dns.ClassINET {
		return false // it is about a zone, as that of UPDATE and NOTIFY
	}
	s, _ := z.find(&q)
	return s != nil && s.AllDown != pass
}

// questions is how many a whole header says.
func questions(msg []byte) uint16 { return binary.BigEndian.Uint16(msg[4:]) }

// malformed answers a query whose question is for us and whose rest cannot be read.
func malformed(msg []byte) []byte {
	at := names.HeaderLength
	for msg[at] != 0 { // read has been there
		at += int(msg[at]) + 1
	}
	reply := bytes.Clone(msg[:at+5])
	flags := binary.BigEndian.Uint16(msg[2:])
	binary.BigEndian.PutUint16(reply[2:], flags&0x0110|0x8000|dns.RcodeFormatError) // RD and CD stay
	clear(reply[6:names.HeaderLength])
	return reply
}

// options of a query, and what is wrong with it.
func options(asked *dns.Msg) (opt *dns.OPT, rcode int) {
	for _, r := range asked.Extra {
		switch r := r.(type) {
		case *dns.OPT:
			if opt != nil || r.Hdr.Name != "." {
				return nil, dns.RcodeFormatError
			}
			opt = r
		case *dns.TSIG, *dns.SIG:
			return nil, dns.RcodeRefused // we have no key to sign with
		}
	}
	switch {
	case len(asked.Answer) > 0 || len(asked.Ns) > 0:
		return opt, dns.RcodeFormatError
	case opt == nil:
		return nil, dns.RcodeSuccess
	case opt.Version() != 0:
		return opt, dns.RcodeBadVers
	}
	for _, o := range opt.Option {
		if c, ok := o.(*dns.EDNS0_COOKIE); ok {
			if n := len(c.Cookie) / 2; n != 8 && (n < leastCookie || n > 40) {
				return opt, dns.RcodeFormatError
			}
		}
	}
	return opt, dns.RcodeSuccess
}

// optionsOf the answer. A client that has a cookie of the server expects its own back. We answer in the server's place and cannot make its cookie,
// so both go back as they came; a client that has none yet gets none.
func optionsOf(asked *dns.OPT) *dns.OPT {
	opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
	opt.SetUDPSize(maxUDP)
	if asked.Do() {
		opt.SetDo()
	}
	for _, o := range asked.Option {
		if c, ok := o.(*dns.EDNS0_COOKIE); ok && len(c.Cookie)/2 >= leastCookie && len(opt.Option) == 0 {
			opt.Option = append(opt.Option, c)
		}
	}
	return opt
}

// choose the targets of an answer. false: the service has targets of this family, and none is up; then they are all candidates.
func (z *zone) choose(s *service, kind uint16, client netip.Addr) (chosen []target, up bool) {
	var all, well []target
	for _, t := range s.Targets {
		if station.Family(t.Address) == 0 && kind == dns.TypeA || station.Family(t.Address) == 1 && kind == dns.TypeAAAA {
			all = append(all, t)
			if s.Check == nil || z.up == nil || z.up(t.Address, s.Check) {
				well = append(well, t)
			}
		}
	}
	up = len(all) == 0 || len(well) > 0
	if len(well) == 0 {
		well = all
	}
	if s.Strategy != failover {
		z.order(well, s.Strategy == hash, client)
	}
	return well[:min(len(well), s.Answers)], up
}

// order targets so that each has its weight's chance to be first, and so on among the rest (Efraimidis and Spirakis): the least -ln(u)/weight is first.
// For the strategy hash u is what a hash of client and target says, so a target that goes changes only the answers that had it.
func (z *zone) order(targets []target, stable bool, client netip.Addr) {
	type ranked struct {
		target
		key float64
	}
	list := make([]ranked, len(targets))
	for i, t := range targets {
		u := z.any
		if stable {
			u = func() float64 { return drawn(client, t.Address) }
		}
		list[i] = ranked{t, math.Inf(1)} // a weight of 0 is behind all others
		if *t.Weight > 0 {
			list[i].key = -math.Log(1-u()) / float64(*t.Weight)
		}
	}
	slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Compare(a.key, b.key) })
	for i, l := range list {
		targets[i] = l.target
	}
}

// drawn is a number in [0,1) that a client and a target always have. A client of IPv6 is its network of 64 bits, as hosts change the rest.
func drawn(client, target netip.Addr) float64 {
	if client.Is6() {
		if p, err := client.Prefix(64); err == nil {
			client = p.Addr()
		}
	}
	h := fnv.New64a()
	for _, a := range []netip.Addr{client, target} {
		b := a.As16()
		_, _ = h.Write(b[:])
	}
	x := h.Sum64() // its upper bits are weak: mix them (splitmix64)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return float64(x>>11) / (1 << 53)
}

// fill in the records. None of the type asked for: the name exists and has no such record, which an SOA says (RFC 2308).
func fill(reply *dns.Msg, s *service, apex string, chosen []target) {
	name := reply.Question[0].Name // as the client wrote it
	for _, t := range chosen {
		h := dns.RR_Header{Name: name, Class: dns.ClassINET, Ttl: *s.TTL}
		if station.Family(t.Address) == 0 {
			h.Rrtype = dns.TypeA
			reply.Answer = append(reply.Answer, &dns.A{Hdr: h, A: net.IP(t.Address.AsSlice())})
		} else {
			h.Rrtype = dns.TypeAAAA
			reply.Answer = append(reply.Answer, &dns.AAAA{Hdr: h, AAAA: net.IP(t.Address.AsSlice())})
		}
	}
	if len(chosen) > 0 {
		return
	}
	owner := name[len(name)-len(apex)-1:] // its own name, or what a wildcard stands below
	reply.Ns = append(reply.Ns, &dns.SOA{
		Hdr: dns.RR_Header{Name: owner, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: *s.TTL},
		Ns:  owner, Mbox: "nobody.invalid.", Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: *s.TTL,
	})
}
