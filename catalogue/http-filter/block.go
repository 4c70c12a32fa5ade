package main

import (
	"fmt"
	"net/netip"

	"weir.dev/weir/catalogue/http-filter/inspect"
	"weir.dev/weir/catalogue/nf"
)

// ending is a packet of ours. It may be lost, and who waits for data says nothing that could be answered.
type ending struct {
	dir   nf.Dir
	frame nf.Frame
}

// full memory ends a connection, or lets it through.
func (x *filter) full(fl *flow, side inspect.Side, p *nf.Packet, f nf.Frame) nf.Verdict {
	if x.cfg.Full == "pass" {
		x.event("full", "memory is full: a connection is let through unread")
		x.pass(fl)
		return nf.Pass
	}
	return x.block(fl, side, p, f, &inspect.Block{Hit: inspect.Hit{Why: memoryFull}})
}

// block ends a connection. The segment with which it came does not pass.
func (x *filter) block(fl *flow, side inspect.Side, p *nf.Packet, f nf.Frame, b *inspect.Block) nf.Verdict {
	client, server := &fl.halves[inspect.Client], &fl.halves[inspect.Server]
	x.count.Blocked++
	what := ends(p, side) + ": " + describe(b.Hit)
	action := "reset"
	if p.Flags&nf.ACK != 0 {
		fl.halves[side].ack = p.Ack
	}
	back := side == inspect.Client // to the client is back to the sender
	if b.Page != nil && back && server.known && len(server.ahead) == 0 && p.Ack == server.sent {
		action = "403"
		fl.page, fl.pageAt, fl.got = b.Page, server.sent, later(client.next, p.Seq+uint32(len(p.Data(f.Data))))
		if len(client.ahead) > 0 && client.ahead[0].start == client.next {
			fl.got = later(fl.got, client.ahead[0].end)
		}
		fl.ending = append(fl.ending, ending{server.dir, fl.pageFrame(p, f)})
	} else if server.known {
		fl.ending = append(fl.ending, ending{server.dir, p.MakeTCP(f.Data, nf.Segment{Back: back, Seq: client.ack, Ack: client.sent, Flags: nf.RST | nf.ACK})})
	} else {
		fl.ending = append(fl.ending, ending{server.dir, p.MakeTCP(f.Data, nf.Segment{Back: back, Ack: client.next, Flags: nf.RST | nf.ACK})})
	}
	fl.ending = append(fl.ending, ending{client.dir, p.MakeTCP(f.Data, nf.Segment{Back: !back, Seq: client.sent, Ack: server.sent, Flags: nf.RST | nf.ACK})})
	x.sendEnding(fl)
	kind, rule := b.Rule, fmt.Sprintf("rule %q", b.Rule)
	if b.Rule == "" {
		kind, rule = "unreadable", "no rule"
	}
	x.event(kind, fmt.Sprintf("%s: %s: %s", rule, what, action))
	x.strip(fl)
	fl.state = blocked
	for _, e := range fl.ending {
		fl.kept += len(e.frame.Data)
	}
	if !fl.client.budget.Take(fl.kept) {
		fl.ending, fl.page, fl.kept = nil, nil, 0
	}
	return nf.Drop
}

// ends of the connection of a packet that a side sent: client and server.
func ends(p *nf.Packet, side inspect.Side) string {
	e := [2]netip.AddrPort{netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)}
	return fmt.Sprintf("%s -> %s", e[side], e[side.Other()])
}

// describe what was met.
func describe(h inspect.Hit) string {
	if h.Host == "" && h.Path == "" {
		return h.Why
	}
	return fmt.Sprintf("%s: %q %q %q", h.Why, h.Method, h.Host, h.Path)
}

const pageWindow = 1 << 13

// pageFrame is the page for the client, in answer to one of its frames, and the end of the server's stream.
func (fl *flow) pageFrame(p *nf.Packet, f nf.Frame) nf.Frame {
	return p.MakeTCP(f.Data, nf.Segment{Back: true, Seq: fl.pageAt, Ack: fl.got, Flags: nf.PSH | nf.FIN | nf.ACK, Window: pageWindow, Data: fl.page})
}

func (x *filter) sendEnding(fl *flow) {
	for _, e := range fl.ending {
		x.send(e.dir, e.frame)
	}
}

// answer what still comes of a connection that was ended: packets of ours may have been lost.
func (x *filter) answer(fl *flow, side inspect.Side, p *nf.Packet, f nf.Frame) {
	if p.Flags&(nf.RST|nf.SYN) != 0 || p.Flags&nf.ACK == 0 || fl.answers >= maxAnswers {
		return
	}
	fl.answers++
	after := fl.pageAt + uint32(len(fl.page)) + 1
	to := fl.halves[side.Other()].dir
	switch {
	case side == inspect.Server || fl.page == nil:
		x.send(to, p.MakeTCP(f.Data, nf.Segment{Back: true, Seq: p.Ack, Flags: nf.RST}))
	case p.Ack != after:
		x.send(to, fl.pageFrame(p, f))
	default: // the client has it; the end of its stream is acknowledged
		n := uint32(len(p.Data(f.Data)))
		if p.Flags&nf.FIN != 0 {
			n++
		}
		if n > 0 {
			x.send(to, p.MakeTCP(f.Data, nf.Segment{Back: true, Seq: after, Ack: p.Seq + n, Flags: nf.ACK, Window: pageWindow}))
		}
	}
}
