// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// Steering at the host side of every port: `ingress` at endpoints and functions, `egress` at endpoints.
// A frame of a known flow costs one flow cache look-up a stage at most (and one of `ports` when its place in `nearby` is taken by another); one
// between two stations meets both stages here, and costs one of `stations` besides.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "weir.h"
#include "tables.h"
#include "parse.h"
#include "classify.h"
#include "settle.h"
#include "copy.h"
#include "guard.h"

// missed: an address has no exit. Others may have pushed it out of the table while its flow, which does not learn again, is still known: so all
// learn again, once in a millisecond at most, whatever functions send.
static __noinline void missed(void)
{
	__u32 zero = 0, one = 1, now = bpf_ktime_get_ns() >> 20;
	__u32 *moved = bpf_map_lookup_elem(&moves, &zero), *last = bpf_map_lookup_elem(&moves, &one);

	if (!moved || !last || *last == now)
		return;
	*last = now;
	__sync_fetch_and_add(moved, 1);
}

// exit_of looks up the learned port of a frame that leaves its chain.
static __always_inline __u32 exit_of(struct __sk_buff *skb, __u32 op)
{
	struct exit_key e = {.vlan = VLAN_NONE};
	__u32 *slot;
	__u8 h[ETH_HLEN + 2];

	if (bpf_skb_load_bytes(skb, 0, h, sizeof(h)))
		return 0; // runt
	if (skb->vlan_present)
		e.vlan = skb->vlan_tci & 0xfff;
	else if (is_tag(h[12] << 8 | h[13]))
		e.vlan = (h[14] << 8 | h[15]) & 0xfff;
	if (op == OP_OUTPUT) {
		e.stage = STAGE_EGRESS;
		__builtin_memcpy(e.mac, h, 6);
	} else {
		e.stage = STAGE_INGRESS;
		__builtin_memcpy(e.mac, h + 6, 6);
	}
	slot = bpf_map_lookup_elem(&learned, &e);
	if (slot)
		return *slot;
	if (e.stage == STAGE_INGRESS || !(e.mac[0] & 1)) // what is for many has none
		missed();
	return 0;
}

static __always_inline bool to_station(struct __sk_buff *skb, const struct port *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	return data + ETH_HLEN <= end && same_mac(data, p->peer);
}

// receiver is the slot of the endpoint behind which the bridge would send a frame that comes from slot, 0 unknown: the bridge has met the frame's
// receiver there, and nowhere since (datapath/ebpf/stations.go).
static __always_inline __u32 receiver(void *data, __u32 slot)
{
	struct station_key dst = {};
	__u32 *to, *home, at;

	__builtin_memcpy(dst.mac, data, 6);
	to = bpf_map_lookup_elem(&stations, &dst);
	if (!to || *to == slot)
		return 0;
	at = *to;
	home = bpf_map_lookup_elem(&homes, &at);
	return home && *home ? at : 0;
}

// straight hands a frame to the only station behind a veth, without a queue. The kernel (6.16 on) says PACKET_HOST by itself.
static __always_inline int straight(struct __sk_buff *skb, const struct port *to)
{
	if (skb->pkt_type != 0)
		bpf_skb_change_type(skb, 0 /* PACKET_HOST */);
	if (skb->mark)
		skb->mark = 0;
	return bpf_redirect_peer(to->ifindex, 0);
}

// resumed is where a frame that resumes ordinary switching at the port `from` would leave for sure, if no rule waits there and one station is
// behind it; 0 elsewhere. The bridge need not see it: it has met its sender, too.
static __noinline __u32 resumed(struct __sk_buff *skb, __u32 from, __u32 version)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 zero = 0, v = version & 1, at, *home = bpf_map_lookup_elem(&homes, &from);
	struct control *c = bpf_map_lookup_elem(&controls, &zero);
	struct port *p = bpf_map_lookup_elem(&slots, &from), *to;

	if (!c || !c->past || !p || !home || !*home || data + ETH_HLEN > end)
		return 0;
	if (!(p->copy[v].stage[STAGE_INGRESS].flags & STAGE_ONWARD) || !same_mac(data + 6, p->peer))
		return 0;
	at = receiver(data, from);
	to = bpf_map_lookup_elem(&slots, &at);
	if (!at || !to || to->kind != PORT_ENDPOINT || !(to->flags & PORT_PEER) || to->copy[v].stage[STAGE_EGRESS].kind != KIND_PASS)
		return 0;
	return to_station(skb, to) ? at : 0;
}

// into_fabric makes a frame ready for a port into the fabric; false: it must not go there.
static __always_inline bool into_fabric(struct __sk_buff *skb, __u16 push, struct walk *w)
{
	if (!push)
		return w->tag || !tag_of(skb); // the user's own tag would be taken for the fabric's
	w->tag = push;
	return !bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021AD), push);
}

// leave ends a frame's chain at an endpoint.
static __always_inline int leave(struct __sk_buff *skb, struct control *c, __u32 op, struct port *to, __u32 at, __u32 hook,
				 __u32 version, struct size s)
{
	struct port *exit;
	__u32 past;

	// Already there (every function of the chain is bypassed): nothing to redirect.
	if (op == OP_RESUME && hook == STAGE_INGRESS && to->ifindex == skb->ifindex)
		return TC_ACT_UNSPEC;
	if (op == OP_OUTPUT && hook == STAGE_EGRESS && to->ifindex == skb->ifindex)
		return TC_ACT_UNSPEC; // counted there
	if (op == OP_OUTPUT)
		count_tx(at, s);
	if (op == OP_OUTPUT && hook == STAGE_INGRESS && to->flags & PORT_PEER && to_station(skb, to))
		return straight(skb, to);
	if (op == OP_RESUME && hook == STAGE_INGRESS) {
		past = resumed(skb, at, version);
		exit = bpf_map_lookup_elem(&slots, &past);
		if (past && exit) {
			count_tx(past, s);
			return straight(skb, exit);
		}
	}
	skb->mark = c->secret ^ to->ifindex; // the program there lets it pass and clears the mark
	return bpf_redirect(to->ifindex, op == OP_RESUME ? BPF_F_INGRESS : 0);
}

#define GO_ON (-2) // no verdict yet

// rule finds the rule at the port where the walk is; NULL without one.
static __always_inline const struct action *rule(struct __sk_buff *skb, struct stage *st, struct walk *w)
{
	switch (st->kind) {
	case KIND_DIRECT:
		return w->tag ? NULL : &st->action; // it is for frames without a fabric tag
	case KIND_DRAIN:
		return bpf_ktime_get_ns() < st->until ? &st->action : NULL;
	case KIND_CLASSIFY:
		w->fields = st->fields;
		w->together = st->together;
		w->at[0] = st->first;
		w->flags = st->flags;
		w->in_port = 0;
		if (w->stage == STAGE_EGRESS && st->fields & FIELD_IN_PORT)
			w->in_port = slot_of(skb->ingress_ifindex);
		classify(skb, w);
		return w->action.op == OP_NONE ? NULL : &w->action;
	}
	return NULL;
}

// past tells whether a function that is up has settled the frame's flow: VERDICT_NONE, the function gets it. on is the port from which the frame goes on, if it
// has passed further functions by.
static __always_inline __u32 past(struct __sk_buff *skb, struct walk *w, __u32 target, __u32 *on)
{
	__u32 answer, question = w->keyed | w->version << 8;

	if (w->tag || w->settled >= MAX_SETTLED)
		return VERDICT_NONE;
	answer = judged(skb, target, question);
	if (answer & LEAP) {
		*on = leap(target, w->version);
		if (!*on)
			answer = judged(skb, target, (answer & 0xff) | WALK | w->version << 8);
	}
	if (answer & REPAY)
		repay(target, w->version);
	w->keyed = answer;
	w->settled++;
	return answer >> 8 & 0xff;
}

// hop applies the rule at the port where the walk is. GO_ON: the next function is passed by, w->slot is its opposite port.
static __always_inline int hop(struct __sk_buff *skb, struct control *c, struct port *p, struct walk *w)
{
	struct size s = {w->packets, w->bytes};
	const struct action *a;
	struct function *f;
	__u32 target, fn, verdict, on = 0;
	struct stage *st;
	struct port *to;
	int i;

	st = &p->copy[w->version & 1].stage[w->stage & 1];
	a = rule(skb, st, w);
	if (!a) {
		if (p->kind == PORT_ENDPOINT && !w->tag)
			return TC_ACT_UNSPEC; // not steered
		count_drop(w->slot, s);
		return TC_ACT_SHOT; // out of a function, and nowhere to go; or with a fabric tag that is not known here
	}
	count_rule(a->rule, s);
	if (st->kind != KIND_DIRECT || a->clones || a->flags & ACTION_POP || a->push || !a->target)
		w->keyed &= ~LINE;
	if (a->flags & ACTION_POP) {
		w->tag = 0;
		if (bpf_skb_vlan_pop(skb)) {
			count_drop(w->slot, s);
			return TC_ACT_SHOT; // no memory
		}
	}
	for (i = 0; i < MAX_CLONES; i++) {
		if (i >= a->clones)
			break;
		clone_to(skb, a->clone[i].port, a->clone[i].push, w->version);
	}
	if (a->op == OP_NORMAL && p->kind == PORT_ENDPOINT) {
		if (w->hook == w->stage)
			return TC_ACT_UNSPEC; // ordinary switching goes on
		count_tx(w->slot, s);
		skb->mark = c->secret ^ p->ifindex; // ahead of the bridge: this was its rule there
		return bpf_redirect(p->ifindex, 0);
	}
	if (a->op != OP_OUTPUT && a->op != OP_RESUME) {
		count_drop(w->slot, s);
		return TC_ACT_SHOT; // by rule; and out of a function there is no ordinary switching
	}
	target = a->target ? a->target : exit_of(skb, a->op);
	to = bpf_map_lookup_elem(&slots, &target);
	if (!target || !to || to->kind == PORT_NONE) {
		count_drop(w->slot, s);
		return TC_ACT_SHOT; // the exit is unknown, or the port gone
	}
	if (to->flags & PORT_FABRIC && a->op == OP_OUTPUT && !into_fabric(skb, a->push, w)) {
		count_drop(target, s);
		return TC_ACT_SHOT;
	}
	if (to->kind == PORT_ENDPOINT)
		return leave(skb, c, a->op, to, target, w->hook, w->version, s);
	if (a->op == OP_RESUME) {
		count_drop(w->slot, s);
		return TC_ACT_SHOT; // ordinary switching knows endpoints only
	}
	fn = to->function;
	f = bpf_map_lookup_elem(&functions, &fn);
	if (f && f->state == FUNCTION_UP) {
		if (to->flags & PORT_SETTLES) {
			verdict = past(skb, w, target, &on);
			if (verdict != VERDICT_NONE)
				count_settled(target, s);
			if (verdict == VERDICT_DROP) {
				count_drop(target, s);
				return TC_ACT_SHOT;
			}
			if (verdict == VERDICT_REWRITE && rewritten(skb)) {
				count_drop(target, s);
				return TC_ACT_SHOT; // no memory
			}
			if (verdict != VERDICT_NONE) {
				if (verdict == VERDICT_REWRITE)
					w->keyed = 0; // it has another key now
				else if (!on)
					w->keyed |= LINE;
				w->slot = on ? on : to->opposite;
				w->stage = STAGE_INGRESS;
				return GO_ON;
			}
		}
		count_tx(target, s);
		if (skb->mark)
			skb->mark = 0; // no namespace's business but its own
		if (w->hook == STAGE_INGRESS && to->flags & PORT_PEER)
			return bpf_redirect_peer(to->ifindex, 0);
		return bpf_redirect(to->ifindex, 0);
	}
	if (!f || f->on_fail != ON_FAIL_BYPASS || to->kind != PORT_FUNCTION) {
		count_drop(target, s);
		return TC_ACT_SHOT; // the function is down
	}
	w->keyed &= ~LINE;
	w->slot = to->opposite;
	w->stage = STAGE_INGRESS;
	return GO_ON;
}

__noinline int hop_on(struct __sk_buff *skb, struct walk *w)
{
	__u32 zero = 0, slot;
	struct control *c;
	struct port *p;

	if (!w)
		return TC_ACT_SHOT; // cannot be
	slot = w->slot;
	c = bpf_map_lookup_elem(&controls, &zero);
	p = bpf_map_lookup_elem(&slots, &slot);
	if (!c || !p)
		return TC_ACT_SHOT; // cannot be: slots are within the table
	return hop(skb, c, p, w);
}

static __always_inline int steer(struct __sk_buff *skb, struct control *c, struct port *p, struct walk *w)
{
	struct size s = {w->packets, w->bytes};
	int i, verdict = hop(skb, c, p, w);

	for (i = 0; i < MAX_HOPS + MAX_SETTLED && verdict == GO_ON; i++)
		verdict = hop_on(skb, w);
	if (verdict != GO_ON)
		return verdict;
	count_drop(w->slot, s);
	return TC_ACT_SHOT; // rules that lead in a circle of dead functions
}

// own: the frame was originated by one of the function's own interfaces.
static __always_inline bool own(struct __sk_buff *skb, const struct port *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (data + ETH_HLEN > end)
		return true; // a runt: no Ethernet header
	return same_mac(data + 6, p->own[0]) || same_mac(data + 6, p->own[1]);
}

// probed tells the function's own probe frames from all others of their type, and takes note of the outstanding one, once.
static __always_inline bool probed(struct __sk_buff *skb, const struct port *p, __u32 slot)
{
	__u32 fn = p->function;
	struct probe *known = bpf_map_lookup_elem(&probes, &fn);
	__u16 mac[6];
	__u64 nonce[2];

	if (!known || !known->dst[0] || bpf_skb_load_bytes(skb, 0, mac, sizeof(mac)) ||
	    bpf_skb_load_bytes(skb, PROBE_NONCE, nonce, sizeof(nonce)))
		return false; // no probe yet; too short
	if (!same_mac(mac, known->dst) || !same_mac(mac + 3, known->src))
		return false;
	if (slot == known->port && known->nonce[0] && nonce[0] == known->nonce[0] && nonce[1] == known->nonce[1]) {
		known->nonce[0] = 0;
		known->time = bpf_ktime_get_ns();
	}
	return true; // one that is late, or came back at port in, ends here too: nobody else learns the addresses
}

// reserved: what bridges say to each other (IEEE 802.1Q, 8.6.3). Linux keeps most of it, and need not learn of it: never of a pause.
static __always_inline bool reserved(const __u8 *mac)
{
	return mac[0] == 1 && mac[1] == 0x80 && mac[2] == 0xc2 && !mac[3] && !mac[4] && mac[5] < 0x10;
}

// met: a frame of this station comes in here. Elsewhere than at home, the bridge moves its address, and must be asked from now on; back
// home, the bridge has to see it once, and to learn of it.
static __noinline void met(const struct station_key *k, __u32 slot, bool learned)
{
	__u32 *owner = bpf_map_lookup_elem(&stations, k), at, *home;

	if (!owner)
		return; // nobody's, or several stations'
	at = *owner;
	home = bpf_map_lookup_elem(&homes, &at);
	if (!home)
		return;
	__sync_lock_test_and_set(home, at == slot && learned); // and a barrier: the agent takes the station away first, then its home
	owner = bpf_map_lookup_elem(&stations, k);
	if (!owner || *owner != at)
		*home = 0;
}

// destination is the slot of the endpoint where the bridge would send a frame for sure, 0 unknown: sender and receiver are where it has
// met them, and their addresses never age there.
static __always_inline __u32 destination(struct __sk_buff *skb, struct port *p, __u32 slot)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct station_key src = {};
	__u32 *home = bpf_map_lookup_elem(&homes, &slot);

	if (!home || data + ETH_HLEN > end)
		return 0; // cannot be; a runt
	__builtin_memcpy(src.mac, data + 6, 6);
	if (!*home || !same_mac(src.mac, p->peer)) {
		met(&src, slot, !reserved(data));
		return 0;
	}
	return receiver(data, slot);
}

// onward goes on with ordinary switching: by the bridge, unless the rules at the port where that would send the frame lead into a chain. To
// meet them here saves the bridge and a queue.
static __always_inline int onward(struct __sk_buff *skb, struct control *c, struct port *p, __u32 slot, struct walk *w)
{
	__u32 v = w->version & 1, at;
	int i, verdict = GO_ON;
	struct port *to;
	struct size s;

	if (!c->past || p->kind != PORT_ENDPOINT || !(p->copy[v].stage[STAGE_INGRESS].flags & STAGE_ONWARD))
		return TC_ACT_UNSPEC;
	at = destination(skb, p, slot);
	to = bpf_map_lookup_elem(&slots, &at);
	if (!at || !to || to->kind != PORT_ENDPOINT || to->copy[v].stage[STAGE_EGRESS].kind == KIND_PASS)
		return TC_ACT_UNSPEC;
	s = size_of(skb);
	w->packets = s.packets;
	w->bytes = s.bytes;
	w->keyed &= ~LINE; // a stretch ends where the frame resumes
	w->stage = STAGE_EGRESS;
	w->slot = at;
	for (i = 0; i <= MAX_HOPS + MAX_SETTLED && verdict == GO_ON; i++)
		verdict = hop_on(skb, w);
	if (verdict != GO_ON)
		return verdict;
	count_drop(w->slot, s);
	return TC_ACT_SHOT; // rules that lead in a circle of dead functions
}

// bridge hands a frame to ordinary switching. One from the fabric must not move a local station's address there.
static __always_inline int bridge(struct __sk_buff *skb, struct control *c, struct port *p, __u32 slot, struct walk *w)
{
	struct size s;

	if (p->flags & PORT_FABRIC && c->owned && guard_other(skb)) {
		s = size_of(skb);
		return refuse(slot, s.packets, s.bytes, REFUSED_MAC);
	}
	return onward(skb, c, p, slot, w);
}

static __always_inline int at_ingress(struct __sk_buff *skb)
{
	struct walk w = {.hook = STAGE_INGRESS, .stage = STAGE_INGRESS};
	__u32 zero = 0, slot;
	struct port_stats *ps;
	struct control *c;
	struct port *p;
	int verdict, why;
	struct size s;

	c = bpf_map_lookup_elem(&controls, &zero);
	if (!c)
		return TC_ACT_UNSPEC; // cannot be
	slot = slot_of(skb->ifindex);
	p = bpf_map_lookup_elem(&slots, &slot);
	w.version = c->version;
	if (skb->mark && skb->mark == (c->secret ^ skb->ifindex)) {
		skb->mark = 0;
		return slot && p ? bridge(skb, c, p, slot, &w) : TC_ACT_UNSPEC; // resumed: ordinary switching goes on
	}
	if (!slot || !p)
		return TC_ACT_UNSPEC; // not a port any more
	if (skb->protocol == bpf_htons(PROBE_TYPE) && p->kind != PORT_ENDPOINT && probed(skb, p, slot))
		return TC_ACT_SHOT; // the switch's own frame
	s = size_of(skb);
	ps = bpf_map_lookup_elem(&port_counts, &slot);
	if (ps) {
		ps->rx_packets += s.packets;
		ps->rx_bytes += s.bytes;
	}
	if (p->kind != PORT_ENDPOINT && !(p->flags & PORT_SPEAKS) && own(skb, p)) {
		count_drop(slot, s);
		return TC_ACT_SHOT; // the interface speaks for itself
	}
	why = refusal(skb, c, p, slot);
	if (why)
		return refuse(slot, s.packets, s.bytes, why);
	w.slot = slot;
	w.packets = s.packets;
	w.bytes = s.bytes;
	if (p->flags & PORT_FABRIC)
		w.tag = tag_of(skb);
	verdict = steer(skb, c, p, &w);
	return verdict == TC_ACT_UNSPEC ? bridge(skb, c, p, slot, &w) : verdict;
}

static __always_inline int at_egress(struct __sk_buff *skb)
{
	struct walk w = {.hook = STAGE_EGRESS, .stage = STAGE_EGRESS};
	__u32 zero = 0, slot;
	int verdict = TC_ACT_UNSPEC;
	struct control *c;
	struct port *p;
	struct size s;

	c = bpf_map_lookup_elem(&controls, &zero);
	if (!c)
		return TC_ACT_UNSPEC; // cannot be
	if (skb->mark && skb->mark == (c->secret ^ skb->ifindex)) {
		skb->mark = 0;
		return TC_ACT_UNSPEC; // out of its chain
	}
	slot = slot_of(skb->ifindex);
	p = bpf_map_lookup_elem(&slots, &slot);
	if (!slot || !p || p->kind != PORT_ENDPOINT)
		return TC_ACT_UNSPEC; // not a port any more
	if (p->copy[c->version & 1].stage[STAGE_EGRESS].kind != KIND_PASS) {
		s = size_of(skb);
		w.version = c->version;
		w.slot = slot;
		w.packets = s.packets;
		w.bytes = s.bytes;
		verdict = steer(skb, c, p, &w);
	}
	if (verdict != TC_ACT_UNSPEC)
		return verdict;
	s = size_of(skb);
	if (p->flags & PORT_FABRIC && !w.tag && tag_of(skb)) {
		count_drop(slot, s);
		return TC_ACT_SHOT; // the user's own tag would be taken for the fabric's
	}
	count_tx(slot, s);
	return TC_ACT_UNSPEC;
}

// A port has its programs as tc filters (quick to attach) or as tcx links (quicker per packet), for a moment both while the one
// is replaced by the other. tcx comes first; what it passes on, the filter must not handle again: a note in the skb says so.
static __always_inline __u32 note_of(struct __sk_buff *skb, __u32 hook)
{
	__u32 zero = 0;
	struct control *c = bpf_map_lookup_elem(&controls, &zero);

	return c ? c->secret ^ (skb->ifindex << 1 | hook) : 0;
}

SEC("tc") int ingress_tcx(struct __sk_buff *skb)
{
	int verdict = at_ingress(skb);

	if (verdict == TC_ACT_UNSPEC)
		skb->cb[4] = note_of(skb, STAGE_INGRESS);
	return verdict;
}

SEC("tc") int ingress_cls(struct __sk_buff *skb)
{
	if (skb->cb[4] == note_of(skb, STAGE_INGRESS)) {
		skb->cb[4] = 0;
		return TC_ACT_UNSPEC; // the tcx program was here
	}
	return at_ingress(skb);
}

SEC("tc") int egress_tcx(struct __sk_buff *skb)
{
	int verdict = at_egress(skb);

	if (verdict == TC_ACT_UNSPEC)
		skb->cb[4] = note_of(skb, STAGE_EGRESS);
	return verdict;
}

SEC("tc") int egress_cls(struct __sk_buff *skb)
{
	if (skb->cb[4] == note_of(skb, STAGE_EGRESS)) {
		skb->cb[4] = 0;
		return TC_ACT_UNSPEC; // the tcx program was here
	}
	return at_egress(skb);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
