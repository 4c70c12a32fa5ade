package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// How the queues of a port are named, as tc(8) does.
var (
	root       = netlink.MakeHandle(1, 0)
	shaped     = netlink.MakeHandle(1, 1) // everything but probes
	aside      = netlink.MakeHandle(1, 2) // probes
	others     = netlink.MakeHandle(1, 3) // of shaped, what is in no other class
	firstShare = uint16(0x100)            // of shaped, one for each share of the clients
)

const (
	probeType  = 0x88b5
	probeRate  = 1_000_000 // bits a second beside the limit
	shares     = 32        // of the clients, by the last byte of their addresses
	hashTable  = 2 << 20   // as u32 names its tables
	hashes     = 256
	quantum    = maxFrame // what a class sends in its turn
	leafRate   = 40e9 / 8 // bytes a second of a leaf that only bounds how much waits
	leafBurst  = 4 << 20
	flowsLimit = 10_240 // packets that wait in the kernel's fair queue
)

// Ways in which clients or flows share a rate.
const (
	byFlow   = "flows (fq_codel)"
	byClient = "clients (by the last byte of their addresses: this kernel has no fq_codel)"
	byNobody = "none"
)

// kernel sets queues of the ports.
type kernel struct {
	h       *netlink.Handle
	in, out netlink.Link
	now     *config // in force; nil: not known
	sharing string  // as apply says it
}

func newKernel(in, out string) (*kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	k := &kernel{h: h}
	for name, link := range map[string]*netlink.Link{in: &k.in, out: &k.out} {
		if *link, err = h.LinkByName(name); err != nil {
			h.Close()
			return nil, fmt.Errorf("port %s: %w", name, err)
		}
	}
	return k, nil
}

// apply a configuration: what leaves at out goes up, what leaves at in goes down. Queues that are there get other rates and sizes, and lose nothing. A port's queues are made
// anew, which drops what waits there, only where a limit goes or clients share in another way.
func (k *kernel) apply(cfg config, probe []byte) (sharing string, err error) {
	sharing = byNobody
	now := k.now
	k.now = nil
	defer func() {
		if err == nil {
			k.now, k.sharing = &cfg, sharing
		}
	}()
	for _, d := range []struct {
		name       string
		link       netlink.Link
		limit, now limit
		v4, v6     int32 // where the last word of the clients' address is, in bytes from the network header
	}{{"up", k.out, cfg.Up, former(now).Up, 12, 20}, {"down", k.in, cfg.Down, former(now).Down, 16, 36}} {
		p := port{k.h, d.link.Attrs().Index, d.limit, time.Duration(cfg.Queue), false}
		if now != nil && d.limit.Rate > 0 && d.now.Rate > 0 && now.fair() == cfg.fair() {
			p.change = true
			if err := p.reshape(k.sharing); err == nil {
				sharing = k.sharing
				continue
			}
			p.change = false
		}
		if err := k.clear(d.link); err != nil {
			return "", fmt.Errorf("%s: %w", d.name, err)
		}
		if d.limit.Rate == 0 {
			continue
		}
		if sharing, err = p.shape(cfg.fair(), probe, d.v4, d.v6); err != nil {
			return "", errors.Join(fmt.Errorf("%s: %w", d.name, err), k.clear(d.link))
		}
	}
	return sharing, nil
}

// former is what is in force; nothing if that is not known.
func former(now *config) config {
	if now == nil {
		return config{}
	}
	return *now
}

// clear takes the queues of a port away, if it has any.
func (k *kernel) clear(l netlink.Link) error {
	all, err := k.h.QdiscList(l)
	if err != nil {
		return fmt.Errorf("list queues: %w", err)
	}
	for _, q := range all {
		if q.Attrs().Parent == netlink.HANDLE_ROOT && q.Attrs().Handle == root {
			return k.h.QdiscDel(q)
		}
	}
	return nil
}

// sent counts what a port has sent, and what its queues dropped.
func (k *kernel) sent(l netlink.Link) (bytes, packets, drops uint64) {
	all, err := k.h.QdiscList(l)
	if err != nil {
		return 0, 0, 0
	}
	for _, q := range all {
		if s := q.Attrs().Statistics; s != nil && q.Attrs().Parent == netlink.HANDLE_ROOT && s.Basic != nil && s.Queue != nil {
			return s.Basic.Bytes, uint64(s.Basic.Packets), uint64(s.Queue.Drops)
		}
	}
	return 0, 0, 0
}

// port shapes what leaves it.
type port struct {
	h      *netlink.Handle
	index  int
	limit  limit
	queue  time.Duration
	change bool // what is there already
}

// reshape gives queues that are there other rates and sizes.
func (p port) reshape(sharing string) error {
	all := uint64(p.limit.Rate)
	if err := errors.Join(p.class(root, shaped, all, all), p.class(shaped, others, all, all)); err != nil {
		return err
	}
	if sharing == byFlow {
		return p.h.QdiscChange(p.codel())
	}
	if err := p.bounded(others); err != nil || sharing == byNobody {
		return err
	}
	return p.shares()
}

// codel is the kernel's fair queue.
func (p port) codel() *netlink.FqCodel {
	codel := netlink.NewFqCodel(netlink.QdiscAttrs{LinkIndex: p.index, Handle: netlink.MakeHandle(uint16(others&0xffff)+0x10, 0), Parent: others})
	codel.Limit, codel.Quantum = flowsLimit, 1514
	codel.MemoryLimit = 4 * p.limit.waits(p.queue) // of the kernel's own memory for them
	return codel
}

func (p port) shape(fair bool, probe []byte, v4, v6 int32) (sharing string, err error) {
	q := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: p.index, Handle: root, Parent: netlink.HANDLE_ROOT})
	q.Defcls = uint32(others & 0xffff)
	if err := p.h.QdiscAdd(q); err != nil {
		return "", fmt.Errorf("queue htb: %w (kernel option CONFIG_NET_SCH_HTB; capability CAP_NET_ADMIN)", err)
	}
	all := uint64(p.limit.Rate)
	if err := errors.Join(p.class(root, shaped, all, all), p.probes(probe)); err != nil {
		return "", err
	}
	if !fair {
		return byNobody, errors.Join(p.class(shaped, others, all, all), p.bounded(others))
	}
	if err := p.class(shaped, others, all, all); err != nil {
		return "", err
	}
	if err := p.h.QdiscAdd(p.codel()); err == nil {
		return byFlow, nil
	}
	if err := p.bounded(others); err != nil {
		return "", err
	}
	return byClient, p.clients(v4, v6)
}

// class of a rate; it borrows up to ceil.
func (p port) class(parent, handle uint32, rate, ceil uint64) error {
	burst := min(p.limit.burst(), max(minBurst, uint32(float64(p.limit.burst())*float64(rate)/float64(p.limit.Rate))))
	c := netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: p.index, Parent: parent, Handle: handle},
		netlink.HtbClassAttrs{Rate: rate, Ceil: ceil, Buffer: burst, Cbuffer: p.limit.burst(), Quantum: quantum})
	set := p.h.ClassAdd
	if p.change {
		set = p.h.ClassChange
	}
	if err := set(c); err != nil {
		return fmt.Errorf("class %s of htb: %w", netlink.HandleStr(handle), err)
	}
	return nil
}

// bounded bounds how much waits in a class.
func (p port) bounded(class uint32) error {
	set := p.h.QdiscAdd
	if p.change {
		set = p.h.QdiscChange
	}
	err := set(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: p.index, Handle: netlink.MakeHandle(uint16(class&0xffff)+0x10, 0), Parent: class},
		Rate:       leafRate, Limit: p.limit.waits(p.queue), Buffer: netlink.Xmittime(leafRate, leafBurst),
	})
	if err != nil {
		return fmt.Errorf("queue of class %s: %w (kernel option CONFIG_NET_SCH_TBF)", netlink.HandleStr(class), err)
	}
	return nil
}

// probes pass beside the limit, or a full queue would look like a dead function. They are told by their two addresses, which nobody else knows.
func (p port) probes(probe []byte) error {
	if err := p.class(root, aside, probeRate, probeRate); err != nil {
		return err
	}
	if err := p.bounded(aside); err != nil || len(probe) != 12 {
		return err
	}
	s := &nl.TcU32Sel{Flags: nl.TC_U32_TERMINAL}
	for i, at := range []int32{-14, -10, -6} {
		s.Keys = append(s.Keys, nl.TcU32Key{Mask: 0xffffffff, Val: binary.BigEndian.Uint32(probe[4*i:]), Off: at})
	}
	return p.filter(probeType, 1, &netlink.U32{ClassId: aside, Sel: s})
}

// shares are the classes of the clients.
func (p port) shares() error {
	for i := range uint16(shares) {
		class := netlink.MakeHandle(1, firstShare+i)
		if err := errors.Join(p.class(shaped, class, max(uint64(p.limit.Rate)/shares, 8000), uint64(p.limit.Rate)), p.bounded(class)); err != nil {
			return err
		}
	}
	return nil
}

// clients share the rate: each has a class with those of whose address the last byte is the same but for multiples of shares.
func (p port) clients(v4, v6 int32) error {
	if err := p.shares(); err != nil {
		return err
	}
	for n, t := range []struct {
		protocol uint16
		at       int32
	}{{unix.ETH_P_IP, v4}, {unix.ETH_P_IPV6, v6}} {
		table, priority := uint32(hashTable*(n+1)), uint16(2+n)
		if err := p.filterAs(table, t.protocol, priority, &netlink.U32{Divisor: hashes}); err != nil {
			return err
		}
		for i := range uint32(hashes) {
			every := &nl.TcU32Sel{Flags: nl.TC_U32_TERMINAL, Keys: []nl.TcU32Key{{}}}
			f := &netlink.U32{Hash: table | i<<12, ClassId: netlink.MakeHandle(1, firstShare+uint16(i%shares)), Sel: every}
			if err := p.filterAs(table|i<<12|1, t.protocol, priority, f); err != nil {
				return err
			}
		}
		choose := &nl.TcU32Sel{Keys: []nl.TcU32Key{{}}, Hmask: 0xff, Hoff: int16(t.at)}
		if err := p.filter(t.protocol, priority, &netlink.U32{Link: table, Sel: choose}); err != nil {
			return err
		}
	}
	return nil
}

func (p port) filter(protocol, priority uint16, f *netlink.U32) error {
	return p.filterAs(0, protocol, priority, f)
}

func (p port) filterAs(handle uint32, protocol, priority uint16, f *netlink.U32) error {
	f.FilterAttrs = netlink.FilterAttrs{LinkIndex: p.index, Parent: root, Handle: handle, Protocol: protocol, Priority: priority}
	if err := p.h.FilterAdd(f); err != nil {
		return fmt.Errorf("filter u32 for ethertype %#04x: %w (kernel option CONFIG_NET_CLS_U32)", protocol, err)
	}
	return nil
}
