package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// How the queues of a port are named, as tc(8) does.
var (
	root   = netlink.MakeHandle(1, 0)
	shaped = netlink.MakeHandle(1, 1) // everything but probes
	aside  = netlink.MakeHandle(1, 2) // probes
	others = netlink.MakeHandle(1, 3) // of shaped, what no filter gives to a class
)

// Classes of shaped, for the groups of frames: the classes of the configuration are the numbers from 0 on, and the rest is the last.
const (
	restNumber  = maxClasses
	firstGroup  = uint16(0x10)
	firstNobody = uint16(0x20)  // frames of no client
	firstShare  = uint16(0x100) // so many numbers for each group
)

const (
	probeType  = 0x88b5
	probeRate  = 1_000_000 // bits a second beside the limit
	shares     = 32        // of the clients, by the last byte of their addresses
	hashTable  = 1 << 20   // as u32 names its tables
	quantum    = maxFrame  // what a class sends in its turn
	leastRate  = 8         // bits a second of a class
	leafRate   = 40e9 / 8  // bytes a second of a leaf that only bounds how much waits
	leafBurst  = 4 << 20
	flowsLimit = 10_240 // packets that wait in the kernel's fair queue
)

// In which order filters are asked. The rules of the classes have two places: new ones are complete before the former ones go.
const (
	probesFirst  = 1
	rulesEven    = 2
	rulesOdd     = 3
	clientsNext  = 4
	everyoneLast = 5
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
	fairly  string  // how a limit is shared in equal parts on this kernel; "": not known yet
	rules   uint16  // place of the rules of the classes
}

func newKernel(in, out string) (*kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	k := &kernel{h: h, rules: rulesEven}
	for name, link := range map[string]*netlink.Link{in: &k.in, out: &k.out} {
		if *link, err = h.LinkByName(name); err != nil {
			h.Close()
			return nil, fmt.Errorf("port %s: %w", name, err)
		}
	}
	return k, nil
}

// apply a configuration: what leaves at out goes up, what leaves at in goes down. Queues that are there get other rates and sizes, and lose nothing. A port's queues are made
// anew, which drops what waits there, only where a limit goes, clients share in another way or there is another number of classes.
func (k *kernel) apply(cfg config, probe []byte) (sharing string, err error) {
	sharing = byNobody
	now := k.now
	k.now = nil
	defer func() {
		if err == nil {
			k.now = &cfg
		}
	}()
	otherRules := now != nil && !matchAlike(now.Classes, cfg.Classes)
	if otherRules {
		k.rules = rulesEven + rulesOdd - k.rules
	}
	for _, d := range []struct {
		name       string
		link       netlink.Link
		limit, now limit
	}{{"up", k.out, cfg.Up, former(now).Up}, {"down", k.in, cfg.Down, former(now).Down}} {
		p := port{h: k.h, index: d.link.Attrs().Index, up: d.name == "up", limit: d.limit, queue: time.Duration(cfg.Queue), classes: cfg.Classes, rules: k.rules, sharing: byNobody}
		if cfg.fair() {
			p.sharing = k.fairly
		}
		if now != nil && d.limit.Rate > 0 && d.now.Rate > 0 && now.fair() == cfg.fair() && len(now.Classes) == len(cfg.Classes) {
			if err := p.reshape(otherRules); err == nil {
				sharing = p.sharing
				continue
			}
		}
		if err := k.clear(d.link); err != nil {
			return "", fmt.Errorf("%s: %w", d.name, err)
		}
		if d.limit.Rate == 0 {
			continue
		}
		if err := p.shape(probe); err != nil {
			return "", errors.Join(fmt.Errorf("%s: %w", d.name, err), k.clear(d.link))
		}
		if sharing = p.sharing; cfg.fair() {
			k.fairly = p.sharing
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

// sent counts what queues have sent, and what they dropped.
type sent struct {
	name                  string // of a class; "": all
	bytes, packets, drops uint64
}

func (s *sent) add(q *netlink.QdiscStatistics) {
	if q != nil && q.Basic != nil && q.Queue != nil {
		s.bytes, s.packets, s.drops = s.bytes+q.Basic.Bytes, s.packets+uint64(q.Basic.Packets), s.drops+uint64(q.Queue.Drops)
	}
}

// sent of a port: of all, and of each class if the configuration has some.
func (k *kernel) sent(l netlink.Link) (all sent, classes []sent) {
	names := former(k.now).Classes
	if len(names) > 0 {
		for _, c := range names {
			classes = append(classes, sent{name: c.Name})
		}
		classes = append(classes, sent{name: rest})
	}
	queues, err := k.h.QdiscList(l)
	if err != nil {
		return all, classes
	}
	for _, q := range queues {
		a := q.Attrs()
		if a.Parent == netlink.HANDLE_ROOT {
			all.add(a.Statistics)
			continue
		}
		if n, ok := groupOf(a.Parent); ok && len(classes) > 0 {
			classes[min(n, len(names))].add(a.Statistics)
		}
	}
	return all, classes
}

// groupOf is the number of the group that a class belongs to.
func groupOf(class uint32) (n int, ok bool) {
	switch minor := uint16(class); {
	case class == others:
		return restNumber, true
	case minor >= firstShare:
		return int(minor/firstShare) - 1, true
	case minor >= firstGroup:
		return int(minor % firstGroup), true
	}
	return 0, false
}

// port shapes what leaves it.
type port struct {
	h       *netlink.Handle
	index   int
	up      bool
	limit   limit
	queue   time.Duration
	classes []class
	rules   uint16 // place of their rules
	sharing string // "": in equal parts, in the way that this kernel has
	change  bool   // what is there already
}

// reshape gives queues that are there other rates and sizes, and the classes other rules.
func (p port) reshape(otherRules bool) error {
	p.change = true
	if err := p.queues(); err != nil || !otherRules {
		return err
	}
	if err := p.choose(); err != nil {
		return err
	}
	old := &netlink.U32{FilterAttrs: netlink.FilterAttrs{LinkIndex: p.index, Parent: root, Protocol: unix.ETH_P_ALL, Priority: rulesEven + rulesOdd - p.rules}}
	if err := p.h.FilterDel(old); err != nil {
		return fmt.Errorf("take former filters away: %w", err)
	}
	return nil
}

// shape makes the queues and filters of a port that has none.
func (p *port) shape(probe []byte) error {
	q := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: p.index, Handle: root, Parent: netlink.HANDLE_ROOT})
	q.Defcls = uint32(others & 0xffff)
	if err := p.h.QdiscAdd(q); err != nil {
		return fmt.Errorf("queue htb: %w (kernel option CONFIG_NET_SCH_HTB; capability CAP_NET_ADMIN)", err)
	}
	if err := p.class(root, aside, probeRate, probeRate, 0); err != nil {
		return err
	}
	if p.sharing == "" {
		if err := p.probeFairness(); err != nil {
			return err
		}
	}
	if err := errors.Join(p.queues(), p.probes(probe), p.choose()); err != nil || p.sharing != byClient {
		return err
	}
	return p.clients()
}

// probeFairness finds out whether the kernel has a queue that is fair among flows.
func (p *port) probeFairness() error {
	p.sharing = byClient
	if codel := p.codel(aside); p.h.QdiscAdd(codel) == nil {
		p.sharing = byFlow
		if err := p.h.QdiscDel(codel); err != nil {
			return fmt.Errorf("take a queue away: %w", err)
		}
	}
	return nil
}

// group of frames to which a part of the rate is guaranteed: a class of the configuration, or the rest.
type group struct {
	number uint16 // the lowest goes first where groups want more than what is guaranteed
	rate   uint64 // guaranteed
}

// groups of the port. The rest is the first: what comes while queues are made must find its class.
func (p port) groups() []group {
	limit := float64(p.limit.Rate)
	all := []group{{restNumber, uint64(limit)}}
	for i, c := range p.classes {
		all = append(all, group{uint16(i), uint64(limit * float64(c.Share))})
		all[0].rate = uint64(limit * (1 - maxShares))
	}
	return all
}

// handle of the class for all frames of a group; where clients share, it is above theirs.
func (p port) handle(number uint16) uint32 {
	if number == restNumber && p.sharing != byClient {
		return others
	}
	return netlink.MakeHandle(1, firstGroup+number)
}

// share is the class of the i-th share of a group; the one behind the last is for frames of no client.
func share(number, i uint16) uint32 {
	switch {
	case i < shares:
		return netlink.MakeHandle(1, firstShare*(number+1)+i)
	case number == restNumber:
		return others
	}
	return netlink.MakeHandle(1, firstNobody+number)
}

// queues of everything but probes, each in a class of HTB. The rates of the lowest classes are at most the limit together, so no more passes if all of them send.
func (p port) queues() error {
	all := uint64(p.limit.Rate)
	if err := p.class(root, shaped, all, all, 0); err != nil {
		return err
	}
	for _, g := range p.groups() {
		class := p.handle(g.number)
		if err := p.class(shaped, class, g.rate, all, g.number); err != nil {
			return err
		}
		if p.sharing != byClient {
			if err := p.leaf(class); err != nil {
				return err
			}
			continue
		}
		for i := range uint16(shares + 1) {
			one := share(g.number, shares-i) // first that of what no filter chooses
			if err := p.class(class, one, max(g.rate/(shares+1), leastRate), all, g.number); err != nil {
				return err
			}
			if err := p.leaf(one); err != nil {
				return err
			}
		}
	}
	return nil
}

// leaf gives a class its queue.
func (p port) leaf(class uint32) error {
	if p.sharing != byFlow {
		return p.bounded(class)
	}
	set := p.h.QdiscAdd
	if p.change {
		set = p.h.QdiscChange
	}
	if err := set(p.codel(class)); err != nil {
		return fmt.Errorf("queue fq_codel of class %s: %w", netlink.HandleStr(class), err)
	}
	return nil
}

// codel is the kernel's fair queue.
func (p port) codel(class uint32) *netlink.FqCodel {
	codel := netlink.NewFqCodel(netlink.QdiscAttrs{LinkIndex: p.index, Handle: queueOf(class), Parent: class})
	codel.Limit, codel.Quantum = flowsLimit, 1514
	codel.MemoryLimit = 4 * p.limit.waits(p.queue) // of the kernel's own memory for them
	return codel
}

// queueOf is the handle of the queue of a class.
func queueOf(class uint32) uint32 { return netlink.MakeHandle(uint16(class)+0x10, 0) }

// class of a rate; it borrows up to ceil, before classes with a higher number of priority.
func (p port) class(parent, handle uint32, rate, ceil uint64, priority uint16) error {
	c := netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: p.index, Parent: parent, Handle: handle},
		netlink.HtbClassAttrs{Rate: rate, Ceil: ceil, Buffer: p.limit.burstOf(rate), Cbuffer: p.limit.burst(), Quantum: quantum, Prio: uint32(priority)})
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
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: p.index, Handle: queueOf(class), Parent: class},
		Rate:       leafRate, Limit: p.limit.waits(p.queue), Buffer: netlink.Xmittime(leafRate, leafBurst),
	})
	if err != nil {
		return fmt.Errorf("queue of class %s: %w (kernel option CONFIG_NET_SCH_TBF)", netlink.HandleStr(class), err)
	}
	return nil
}

// probes pass beside the limit, or a full queue would look like a dead function. They are told by their two addresses, which nobody else knows.
func (p port) probes(probe []byte) error {
	if err := p.bounded(aside); err != nil || len(probe) != 12 {
		return err
	}
	var keys rule
	for i, at := range []int32{-14, -10, -6} {
		keys = append(keys, nl.TcU32Key{Mask: 0xffffffff, Val: binary.BigEndian.Uint32(probe[4*i:]), Off: at})
	}
	return p.give(filter{parent: root, protocol: probeType, priority: probesFirst}, keys, aside)
}

// choose gives the classes of the configuration their frames.
func (p port) choose() error {
	for i, c := range p.classes {
		for _, m := range c.Match {
			for _, keys := range m.rules(p.up) {
				f := filter{parent: root, protocol: unix.ETH_P_ALL, priority: p.rules}
				if err := p.give(f, keys, p.handle(uint16(i))); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// clients share what a group has: each has a class with those of whose address the last byte is the same but for multiples of shares. Of the rest the port's own filters
// choose it, of the others those of their class.
func (p port) clients() error {
	for _, g := range p.groups() {
		parent := root
		if g.number != restNumber {
			parent = p.handle(g.number)
		}
		at := filter{parent: parent, protocol: unix.ETH_P_ALL, priority: clientsNext}
		for n, f := range families {
			table := uint32(hashTable * (2*int(g.number) + n + 1))
			if err := p.clientsOf(f, table, at, g.number); err != nil {
				return err
			}
		}
		if parent != root {
			at.priority = everyoneLast
			if err := p.give(at, rule{{}}, share(g.number, shares)); err != nil {
				return err
			}
		}
	}
	return nil
}

// clientsOf a family are told apart by a table.
func (p port) clientsOf(f family, table uint32, at filter, number uint16) error {
	whole := at
	whole.handle = table
	if err := p.set(whole, &netlink.U32{Divisor: shares}); err != nil {
		return err
	}
	for i := range uint32(shares) {
		bucket := at
		bucket.handle = table | i<<12 | 1
		every := &nl.TcU32Sel{Flags: nl.TC_U32_TERMINAL, Keys: rule{{}}}
		if err := p.set(bucket, &netlink.U32{Hash: table | i<<12, ClassId: share(number, uint16(i)), Sel: every}); err != nil {
			return err
		}
	}
	lastWord := f.source
	if !p.up {
		lastWord = f.target
	}
	lastWord += f.length - 4
	is := rule{{Off: beforeNetwork, Val: f.ethertype << 16, Mask: 0xffff0000}}
	return p.set(at, &netlink.U32{Link: table, Sel: &nl.TcU32Sel{Keys: is, Hmask: 0xff, Hoff: int16(lastWord)}})
}

// filter is where a filter of u32 is.
type filter struct {
	parent   uint32 // a queue or a class
	handle   uint32 // 0: the kernel chooses one
	protocol uint16
	priority uint16
}

// give frames with these words to a class.
func (p port) give(f filter, keys rule, class uint32) error {
	return p.set(f, &netlink.U32{ClassId: class, Sel: &nl.TcU32Sel{Flags: nl.TC_U32_TERMINAL, Keys: slices.Clip(keys)}})
}

func (p port) set(f filter, u *netlink.U32) error {
	u.FilterAttrs = netlink.FilterAttrs{LinkIndex: p.index, Parent: f.parent, Handle: f.handle, Protocol: f.protocol, Priority: f.priority}
	if err := p.h.FilterAdd(u); err != nil {
		return fmt.Errorf("filter u32 for ethertype %#04x: %w (kernel option CONFIG_NET_CLS_U32)", f.protocol, err)
	}
	return nil
}
