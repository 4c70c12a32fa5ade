// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// Steering at the host side of every port: `ingress` at endpoints and functions, `egress` at endpoints.
// A frame of a known flow costs one flow cache look-up at most (and one of `ports` when its place in `nearby` is taken by another).
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "weir.h"

// Maps that user space resizes have max_entries 1 here.
#define TABLE(name, kind, ktype, vtype, size, mflags)                                                                  \
	struct {                                                                                                       \
		__uint(type, kind);                                                                                    \
		__uint(max_entries, size);                                                                             \
		__uint(map_flags, mflags);                                                                             \
		__type(key, ktype);                                                                                    \
		__type(value, vtype);                                                                                  \
	} name SEC(".maps")

TABLE(controls, BPF_MAP_TYPE_ARRAY, __u32, struct control, 1, 0);
TABLE(moves, BPF_MAP_TYPE_ARRAY, __u32, __u32, 1, 0); // grows when an address turns up at another port
TABLE(nearby, BPF_MAP_TYPE_ARRAY, __u32, struct near, NEAR, 0); // ifindex % NEAR -> slot, asked before ports
TABLE(ports, BPF_MAP_TYPE_HASH, __u32, __u32, 1, BPF_F_NO_PREALLOC); // ifindex -> slot
TABLE(slots, BPF_MAP_TYPE_ARRAY, __u32, struct port, 1, 0);
TABLE(functions, BPF_MAP_TYPE_ARRAY, __u32, struct function, 1, 0);
TABLE(lists, BPF_MAP_TYPE_ARRAY, __u32, struct list, 1, 0);
TABLE(masks, BPF_MAP_TYPE_ARRAY, __u32, struct key, 1, 0);
TABLE(tuples, BPF_MAP_TYPE_HASH, struct key, struct tuple, 1, BPF_F_NO_PREALLOC);
TABLE(flows, BPF_MAP_TYPE_LRU_HASH, struct key, struct flow, 1, 0);
TABLE(learned, BPF_MAP_TYPE_LRU_HASH, struct exit_key, __u32, 1, 0);
TABLE(port_counts, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct port_stats, 1, 0);
TABLE(rule_counts, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct rule_stats, 1, 0);
TABLE(probes, BPF_MAP_TYPE_ARRAY, __u32, struct probe, 1, 0);

// walk is a frame's way through rules: where it is now, and the search for the rule there.
struct walk {
	__u32 version;
	__u32 hook; // the program: STAGE_INGRESS or STAGE_EGRESS
	__u32 slot; // of the port whose rule comes next
	__u32 in_port;
	__u32 fields;
	__u16 together;
	__u16 first;
	__u16 count;
	__u8 stage;
	__u8 flags;
	struct action action; // the rule's
	__u32 priority;	      // of the best rule so far
	__u64 cookie;
	__u64 packets, bytes;
};

struct size {
	__u64 packets, bytes;
};

static __always_inline __u32 slot_of(__u32 ifindex)
{
	__u32 i = ifindex & (NEAR - 1), *slot;
	struct near *n = bpf_map_lookup_elem(&nearby, &i);

	if (n && n->ifindex == ifindex)
		return n->slot;
	slot = bpf_map_lookup_elem(&ports, &ifindex);
	return slot ? *slot : 0;
}

// A GSO packet counts as the packets that it becomes on a wire.
static __always_inline struct size size_of(struct __sk_buff *skb)
{
	struct size s = {.packets = 1, .bytes = skb->len};

	if (skb->gso_segs > 1)
		s.packets = skb->gso_segs;
	else if (skb->gso_size) // from a sender that did not say
		s.packets = (skb->len + skb->gso_size - 1) / skb->gso_size;
	return s;
}

static __always_inline void count_rule(__u32 slot, struct size s)
{
	struct rule_stats *r = bpf_map_lookup_elem(&rule_counts, &slot);

	if (r) {
		r->packets += s.packets;
		r->bytes += s.bytes;
	}
}

static __always_inline void count_tx(__u32 slot, struct size s)
{
	struct port_stats *p = bpf_map_lookup_elem(&port_counts, &slot);

	if (p) {
		p->tx_packets += s.packets;
		p->tx_bytes += s.bytes;
	}
}

static __always_inline void count_drop(__u32 slot, struct size s)
{
	struct port_stats *p = bpf_map_lookup_elem(&port_counts, &slot);

	if (p) {
		p->drop_packets += s.packets;
		p->drop_bytes += s.bytes;
	}
}

static __always_inline bool is_tag(__u16 type)
{
	return type == ETH_P_8021Q || type == ETH_P_8021AD;
}

static __always_inline void parse_ports(struct __sk_buff *skb, __u32 off, struct key *k)
{
	__be16 ports[2];

	if (k->proto != IPPROTO_TCP && k->proto != IPPROTO_UDP && k->proto != IPPROTO_SCTP)
		return;
	if (bpf_skb_load_bytes(skb, off, ports, sizeof(ports)))
		return; // cut short
	k->src_port = bpf_ntohs(ports[0]);
	k->dst_port = bpf_ntohs(ports[1]);
	k->has |= HAS_PORTS;
}

static __always_inline void parse_ipv4(struct __sk_buff *skb, __u32 off, struct key *k)
{
	__u8 h[20];

	if (bpf_skb_load_bytes(skb, off, h, sizeof(h)))
		return; // runt
	if (h[0] >> 4 != 4 || (h[0] & 0xf) < 5 || skb->len < off + (h[0] & 0xf) * 4)
		return; // not an IPv4 header, or its options are cut short
	k->has = HAS_IP;
	k->proto = h[9];
	__builtin_memcpy(k->src, h + 12, 4);
	__builtin_memcpy(k->dst, h + 16, 4);
	if ((h[6] & 0x1f) | h[7])
		return; // a fragment, not the first
	parse_ports(skb, off + (h[0] & 0xf) * 4, k);
}

#define MAX_EXTENSIONS 6

static __always_inline void parse_ipv6(struct __sk_buff *skb, __u32 off, struct key *k)
{
	__u8 h[8], x[4];
	__u32 length;
	int i;

	if (bpf_skb_load_bytes(skb, off, h, sizeof(h)) || h[0] >> 4 != 6)
		return; // not an IPv6 header
	if (bpf_skb_load_bytes(skb, off + 8, k->src, 32)) // and dst, which follows it
		return; // runt
	k->has = HAS_IP;
	k->proto = h[6];
	off += 40;
	for (i = 0; i < MAX_EXTENSIONS; i++) {
		__u8 header = k->proto;

		if (header != IPPROTO_HOPOPTS && header != IPPROTO_ROUTING && header != IPPROTO_DSTOPTS &&
		    header != IPPROTO_FRAGMENT && header != IPPROTO_AH)
			break;
		if (bpf_skb_load_bytes(skb, off, x, sizeof(x)))
			return; // cut short
		length = header == IPPROTO_FRAGMENT ? 8 : header == IPPROTO_AH ? x[1] * 4 + 8 : x[1] * 8 + 8;
		if (skb->len < off + length)
			return; // cut short
		k->proto = x[0];
		off += length;
		if (header == IPPROTO_FRAGMENT && (x[2] | (x[3] & 0xf8)))
			return; // a fragment, not the first
	}
	parse_ports(skb, off, k);
}

// parse reads what the stage's rules look at.
static __always_inline void parse(struct __sk_buff *skb, __u32 fields, struct key *k)
{
	__u8 h[ETH_HLEN];
	__be16 tag[2];
	__u32 off = ETH_HLEN;
	__u16 type, tags = 0;
	int i;

	k->vlan = VLAN_NONE;
	if (!(fields & ~FIELD_IN_PORT) || bpf_skb_load_bytes(skb, 0, h, sizeof(h)))
		return; // nothing to look at, or a runt
	__builtin_memcpy(k->dst_mac, h, 6);
	__builtin_memcpy(k->src_mac, h + 6, 6);
	type = h[12] << 8 | h[13];
	if (skb->vlan_present) { // the outermost tag was taken off by the device or the stack
		k->vlan = skb->vlan_tci & 0xfff;
		tags = 1;
	}
	for (i = 0; i < 2; i++) {
		if (!is_tag(type) || tags == 2)
			break;
		if (bpf_skb_load_bytes(skb, off, tag, sizeof(tag)))
			break; // cut short
		if (!tags)
			k->vlan = bpf_ntohs(tag[0]) & 0xfff;
		type = bpf_ntohs(tag[1]);
		off += sizeof(tag);
		tags++;
	}
	k->ethertype = type;
	if (!(fields & (FIELD_ADDRESSES | FIELD_PROTO | FIELD_PORTS)))
		return;
	if (type == ETH_P_IP)
		parse_ipv4(skb, off, k);
	else if (type == ETH_P_IPV6)
		parse_ipv6(skb, off, k);
}

static __always_inline void and_key(struct key *to, const struct key *a, const struct key *b)
{
	__u64 *t = (__u64 *)to;
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;
	int i;

#pragma unroll
	for (i = 0; i < KEY_WORDS; i++)
		t[i] = x[i] & y[i];
}

// learn remembers where an address was met: the chain's exit looks it up.
static __noinline void learn(const struct key *k, __u32 stage)
{
	struct exit_key e = {.vlan = k->vlan, .stage = stage};
	__u32 slot = k->port, zero = 0, *was, *moved;

	__builtin_memcpy(e.mac, stage == STAGE_INGRESS ? k->src_mac : k->dst_mac, 6);
	was = bpf_map_lookup_elem(&learned, &e);
	if (was && *was == slot)
		return;
	if (was) { // flows cached at the former port must learn again when the address comes back
		moved = bpf_map_lookup_elem(&moves, &zero);
		if (moved)
			__sync_fetch_and_add(moved, 1);
	}
	bpf_map_update_elem(&learned, &e, &slot, BPF_ANY);
}

// try_mask looks the frame up under one mask of the list; 0 ends the search. Global functions are verified once, not once per turn.
__noinline int try_mask(const struct key *k, struct walk *q, __u32 at)
{
	__u32 v, slot;
	struct list *l;
	struct key *mask, masked;
	struct tuple *t;

	if (!k || !q)
		return 0;
	v = q->version & 1;
	l = bpf_map_lookup_elem(&lists, &at);
	if (!l || l->copy[v].priority < q->priority)
		return 0; // no better one can follow
	slot = l->copy[v].mask;
	mask = bpf_map_lookup_elem(&masks, &slot);
	if (!mask)
		return 0;
	and_key(&masked, k, mask);
	masked.mask = slot;
	t = bpf_map_lookup_elem(&tuples, &masked);
	if (!t || !t->copy[v].priority)
		return 1;
	if (t->copy[v].priority < q->priority || (t->copy[v].priority == q->priority && t->copy[v].cookie > q->cookie))
		return 1;
	q->priority = t->copy[v].priority;
	q->cookie = t->copy[v].cookie;
	q->action = t->copy[v].action;
	return 1;
}

// search tries the list's masks, the highest priorities first.
static __always_inline void search(const struct key *k, struct walk *q)
{
	__u32 i;

	q->priority = 0;
	for (i = 0; i < MAX_MASKS; i++) {
		if (i >= q->count || !try_mask(k, q, q->first + i))
			return;
	}
}

// recall asks the flow cache, 1 when it knew. Its key is what the rules of the stage can tell apart, no more.
__noinline int recall(const struct key *k, struct walk *q)
{
	__u32 together, zero = 0, *moved;
	struct key *mask, known;
	struct flow *f;

	if (!k || !q)
		return 0;
	together = q->together;
	mask = bpf_map_lookup_elem(&masks, &together);
	moved = bpf_map_lookup_elem(&moves, &zero);
	if (!mask || !moved)
		return 0;
	and_key(&known, k, mask);
	known.port = k->port;
	known.stage = k->stage;
	f = bpf_map_lookup_elem(&flows, &known);
	if (!f || f->version != q->version || f->moves != *moved)
		return 0;
	q->action = f->action;
	return 1;
}

// remember puts the outcome of a search into the flow cache.
__noinline int remember(const struct key *k, struct walk *q)
{
	struct flow fresh = {};
	__u32 together, zero = 0, *moved;
	struct key *mask, known;

	if (!k || !q)
		return 0;
	together = q->together;
	mask = bpf_map_lookup_elem(&masks, &together);
	moved = bpf_map_lookup_elem(&moves, &zero);
	if (!mask || !moved)
		return 0;
	and_key(&known, k, mask);
	known.port = k->port;
	known.stage = k->stage;
	fresh.version = q->version;
	fresh.moves = *moved; // after learn: it may have grown
	fresh.action = q->action;
	bpf_map_update_elem(&flows, &known, &fresh, BPF_ANY);
	return 0;
}

// classify finds the rule for the frame; q->action.op is OP_NONE without one.
__noinline int classify(struct __sk_buff *skb, struct walk *q)
{
	struct key k = {};

	if (!q)
		return 0;
	parse(skb, q->fields, &k);
	k.port = q->slot;
	k.in_port = q->in_port;
	k.stage = q->stage;
	if (q->flags & STAGE_CACHED && recall(&k, q))
		return 0;
	q->action.op = OP_NONE;
	q->action.clones = 0;
	search(&k, q);
	if (!(q->flags & STAGE_CACHED))
		return 0;
	if (q->action.op != OP_NONE && q->action.flags & ACTION_LEARN)
		learn(&k, q->stage);
	remember(&k, q);
	return 0;
}

// copy_out sends a copy out of a port whose links lead to a function, or, past its Egress stage, to an endpoint.
static __always_inline void copy_out(struct __sk_buff *skb, const struct port *p, __u32 slot, __u32 secret, struct size s)
{
	__u32 mark = skb->mark;

	count_tx(slot, s);
	skb->mark = p->kind == PORT_ENDPOINT ? secret ^ p->ifindex : 0;
	bpf_clone_redirect(skb, p->ifindex, 0);
	skb->mark = mark;
}

// copy_to sends a copy to a port: 0 done, else the slot of the opposite port of a function that is bypassed.
__noinline int copy_to(struct __sk_buff *skb, __u32 slot)
{
	struct size s = size_of(skb);
	__u32 zero = 0, fn;
	struct function *f;
	struct control *c;
	struct port *p;

	p = bpf_map_lookup_elem(&slots, &slot);
	c = bpf_map_lookup_elem(&controls, &zero);
	if (!p || !c || p->kind == PORT_NONE)
		return 0; // gone
	fn = p->function;
	f = bpf_map_lookup_elem(&functions, &fn);
	if (p->kind == PORT_ENDPOINT || (f && f->state == FUNCTION_UP)) {
		copy_out(skb, p, slot, c->secret, s);
		return 0;
	}
	if (f && f->on_fail == ON_FAIL_BYPASS && p->kind == PORT_FUNCTION)
		return p->opposite;
	count_drop(slot, s);
	return 0; // the function is down
}

// copy_on takes a copy from a bypassed function to the next port: as if it had come out there. Only rules for whole ports lead on: which
// is all that a chain of copies has.
__noinline int copy_on(struct __sk_buff *skb, __u32 slot, __u32 version)
{
	struct size s = size_of(skb);
	struct port *p = bpf_map_lookup_elem(&slots, &slot);
	struct stage *st;
	int i;

	if (!p)
		return 0;
	st = &p->copy[version & 1].stage[STAGE_INGRESS];
	if (st->kind != KIND_DIRECT) {
		count_drop(slot, s);
		return 0;
	}
	count_rule(st->action.rule, s);
	for (i = 0; i < MAX_CLONES; i++) {
		if (i >= st->action.clones)
			break;
		copy_to(skb, st->action.clone[i]); // a tap; one that is down has no opposite port
	}
	if (st->action.op != OP_OUTPUT || !st->action.target)
		return 0; // the copy's way ends here
	return st->action.target;
}

// clone_to sends a copy on its way.
__noinline int clone_to(struct __sk_buff *skb, __u32 slot, __u32 version)
{
	int i;

	for (i = 0; i < MAX_HOPS; i++) {
		slot = copy_to(skb, slot);
		if (!slot)
			break;
		slot = copy_on(skb, slot, version);
		if (!slot)
			break;
	}
	return 0;
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
	return slot ? *slot : 0;
}

static __always_inline bool to_station(struct __sk_buff *skb, const struct port *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const __u8 *m = data;

	if (data + ETH_HLEN > end)
		return false;
	return m[0] == p->peer[0] && m[1] == p->peer[1] && m[2] == p->peer[2] && m[3] == p->peer[3] &&
	       m[4] == p->peer[4] && m[5] == p->peer[5];
}

// leave ends a frame's chain at an endpoint.
static __always_inline int leave(struct __sk_buff *skb, struct control *c, __u32 op, struct port *to, __u32 at, __u32 hook,
				 struct size s)
{
	// Already there (every function of the chain is bypassed): nothing to redirect.
	if (op == OP_RESUME && hook == STAGE_INGRESS && to->ifindex == skb->ifindex)
		return TC_ACT_UNSPEC;
	if (op == OP_OUTPUT)
		count_tx(at, s);
	if (op == OP_OUTPUT && hook == STAGE_EGRESS && to->ifindex == skb->ifindex)
		return TC_ACT_UNSPEC;
	// Straight to the only station behind the veth: no queue. The kernel (6.16 on) says PACKET_HOST by itself.
	if (op == OP_OUTPUT && hook == STAGE_INGRESS && to->flags & PORT_PEER && to_station(skb, to)) {
		if (skb->pkt_type != 0)
			bpf_skb_change_type(skb, 0 /* PACKET_HOST */);
		if (skb->mark)
			skb->mark = 0;
		return bpf_redirect_peer(to->ifindex, 0);
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
		return &st->action;
	case KIND_DRAIN:
		return bpf_ktime_get_ns() < st->until ? &st->action : NULL;
	case KIND_CLASSIFY:
		w->fields = st->fields;
		w->together = st->together;
		w->first = st->first;
		w->count = st->count;
		w->flags = st->flags;
		w->in_port = 0;
		if (w->stage == STAGE_EGRESS && st->fields & FIELD_IN_PORT)
			w->in_port = slot_of(skb->ingress_ifindex);
		classify(skb, w);
		return w->action.op == OP_NONE ? NULL : &w->action;
	}
	return NULL;
}

// hop applies the rule at the port where the walk is. GO_ON: the next function is bypassed, w->slot is its opposite port.
static __always_inline int hop(struct __sk_buff *skb, struct control *c, struct port *p, struct walk *w)
{
	struct size s = {w->packets, w->bytes};
	const struct action *a;
	struct function *f;
	__u32 target, fn;
	struct port *to;
	int i;

	a = rule(skb, &p->copy[w->version & 1].stage[w->stage & 1], w);
	if (!a) {
		if (p->kind == PORT_ENDPOINT)
			return TC_ACT_UNSPEC; // not steered
		count_drop(w->slot, s);
		return TC_ACT_SHOT; // out of a function, and nowhere to go
	}
	count_rule(a->rule, s);
	for (i = 0; i < MAX_CLONES; i++) {
		if (i >= a->clones)
			break;
		clone_to(skb, a->clone[i], w->version);
	}
	if (a->op == OP_NORMAL && p->kind == PORT_ENDPOINT)
		return TC_ACT_UNSPEC; // ordinary switching goes on
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
	if (to->kind == PORT_ENDPOINT)
		return leave(skb, c, a->op, to, target, w->hook, s);
	if (a->op == OP_RESUME) {
		count_drop(w->slot, s);
		return TC_ACT_SHOT; // ordinary switching knows endpoints only
	}
	fn = to->function;
	f = bpf_map_lookup_elem(&functions, &fn);
	if (f && f->state == FUNCTION_UP) {
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

	for (i = 0; i < MAX_HOPS && verdict == GO_ON; i++)
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
	const __u16 *m = data, *a = (const __u16 *)p->own[0], *b = (const __u16 *)p->own[1];

	if (data + ETH_HLEN > end)
		return true; // a runt: no Ethernet header
	return (m[3] == a[0] && m[4] == a[1] && m[5] == a[2]) || (m[3] == b[0] && m[4] == b[1] && m[5] == b[2]);
}

// probed takes note of a probe frame.
static __always_inline bool probed(struct __sk_buff *skb, const struct port *p, __u32 slot)
{
	struct probe_frame h;
	struct probe *seen;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &h, sizeof(h)) || h.magic != bpf_htonl(PROBE_MAGIC))
		return false;
	seen = bpf_map_lookup_elem(&probes, &slot);
	if (seen && h.function == bpf_htonl(p->function)) {
		seen->time = bpf_ktime_get_ns();
		seen->nonce = bpf_ntohl(h.nonce);
		seen->sequence = bpf_ntohl(h.sequence);
	}
	return true;
}

static __always_inline int at_ingress(struct __sk_buff *skb)
{
	struct walk w = {.hook = STAGE_INGRESS, .stage = STAGE_INGRESS};
	__u32 zero = 0, slot;
	struct port_stats *ps;
	struct control *c;
	struct port *p;
	struct size s;

	c = bpf_map_lookup_elem(&controls, &zero);
	if (!c)
		return TC_ACT_UNSPEC; // cannot be
	if (skb->mark && skb->mark == (c->secret ^ skb->ifindex)) {
		skb->mark = 0;
		return TC_ACT_UNSPEC; // resumed: ordinary switching goes on
	}
	slot = slot_of(skb->ifindex);
	p = bpf_map_lookup_elem(&slots, &slot);
	if (!slot || !p)
		return TC_ACT_UNSPEC; // not a port any more
	if (skb->protocol == bpf_htons(PROBE_TYPE) && p->kind != PORT_ENDPOINT && probed(skb, p, slot))
		return TC_ACT_SHOT; // a probe ends here
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
	w.version = c->version;
	w.slot = slot;
	w.packets = s.packets;
	w.bytes = s.bytes;
	return steer(skb, c, p, &w);
}

static __always_inline int at_egress(struct __sk_buff *skb)
{
	struct walk w = {.hook = STAGE_EGRESS, .stage = STAGE_EGRESS};
	__u32 zero = 0, slot;
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
	if (p->copy[c->version & 1].stage[STAGE_EGRESS].kind == KIND_PASS)
		return TC_ACT_UNSPEC; // not steered
	s = size_of(skb);
	w.version = c->version;
	w.slot = slot;
	w.packets = s.packets;
	w.bytes = s.bytes;
	return steer(skb, c, p, &w);
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
