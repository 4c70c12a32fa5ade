// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// The search for a frame's rule among many, and the cache of known flows.
#pragma once

// walk is a frame's way through rules: where it is now, and the search for the rule there.
struct walk {
	__u32 version;
	__u16 slot; // of the port whose rule comes next
	__u16 in_port;
	__u32 at[MAX_DEPTH]; // lists under way: the next entry
	__u16 together;
	__u16 tag; // the fabric's, on the frame now
	__u8 hook; // the program: STAGE_INGRESS or STAGE_EGRESS
	__u8 stage;
	__u8 flags;
	__u8 fields;
	__u8 depth;
	__u8 keyed;   // the frame's key of settled flows: enum keyed
	__u8 settled; // functions asked for it
	struct action action; // the rule's
	__u32 priority;	      // of the best rule so far
	__u32 packets;
	__u64 bytes;
	__u64 cookie;
};

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
	if (stage == STAGE_EGRESS && e.mac[0] & 1)
		return; // for many: it has no exit
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

// step looks the frame up under one mask of the list that is under way; 0 ends the search. Global functions are verified once, not once per turn.
__noinline int step(const struct key *k, struct walk *q)
{
	__u32 v, slot, at, depth;
	struct list *l;
	struct key *mask, masked;
	struct tuple *t;
	struct tuple_copy *c;

	if (!k || !q)
		return 0;
	v = q->version & 1;
	depth = q->depth;
	if (depth >= MAX_DEPTH)
		return 0; // cannot be
	at = q->at[depth];
	l = bpf_map_lookup_elem(&lists, &at);
	if (!l || !l->copy[v].priority || l->copy[v].priority < q->priority) { // the end, or no better one can follow here
		q->depth = depth - 1;
		return depth;
	}
	q->at[depth] = at + 1;
	slot = l->copy[v].mask;
	mask = bpf_map_lookup_elem(&masks, &slot);
	if (!mask)
		return 0;
	and_key(&masked, k, mask);
	masked.mask = slot;
	t = bpf_map_lookup_elem(&tuples, &masked);
	if (!t)
		return 1;
	c = &t->copy[v];
	if (!c->priority || c->priority < q->priority)
		return 1;
	if (c->action.op == OP_SEARCH) {
		if (++depth >= MAX_DEPTH)
			return 0; // cannot be
		q->depth = depth;
		q->at[depth] = c->action.rule;
		return 1;
	}
	if (c->priority == q->priority && c->cookie > q->cookie)
		return 1;
	q->priority = c->priority;
	q->cookie = c->cookie;
	q->action = c->action;
	return 1;
}

// search goes through the list's masks, the highest priorities first, and into the lists that it finds under them.
static __always_inline void search(const struct key *k, struct walk *q)
{
	__u32 i;

	q->priority = 0;
	q->depth = 0;
	for (i = 0; i < MAX_STEPS; i++) {
		if (!step(k, q))
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

// remember puts the outcome of a search into the flow cache; the key is not one of the frame any more then. Kernels before 6.8 round each
// function's stack up to 32 bytes and allow 512 for a chain of calls: a second key here would be too much. So it is no global function, either:
// those may not give a map their caller's key.
static __noinline int remember(struct key *k, struct walk *q)
{
	__u16 port = k->port;
	__u8 stage = k->stage;
	__u32 together = q->together, zero = 0, *moved;
	struct flow fresh = {};
	struct key *mask;

	mask = bpf_map_lookup_elem(&masks, &together);
	moved = bpf_map_lookup_elem(&moves, &zero);
	if (!mask || !moved)
		return 0;
	and_key(k, k, mask);
	k->port = port;
	k->stage = stage;
	fresh.version = q->version;
	fresh.moves = *moved; // after learn: it may have grown
	fresh.action = q->action;
	bpf_map_update_elem(&flows, k, &fresh, BPF_ANY);
	return 0;
}

// classify finds the rule for the frame; q->action.op is OP_NONE without one.
__noinline int classify(struct __sk_buff *skb, struct walk *q)
{
	struct key k = {};

	if (!q)
		return 0;
	k.tag = q->tag;
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
