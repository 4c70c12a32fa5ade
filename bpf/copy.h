// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// Copies of frames: to taps, and into chains of copies.
#pragma once

// copy_out sends a copy out of a port whose links lead to a function, or, past its Egress stage, to an endpoint. A fabric tag to push is
// on the frame itself for that moment.
static __always_inline void copy_out(struct __sk_buff *skb, const struct port *p, __u32 slot, __u32 push, __u32 secret, struct size s)
{
	__u32 mark = skb->mark;

	if (push ? bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021AD), push) : p->flags & PORT_FABRIC && tag_of(skb)) {
		count_drop(slot, s);
		return; // no memory; or the user's own tag would be taken for the fabric's
	}
	count_tx(slot, s);
	skb->mark = p->kind == PORT_ENDPOINT ? secret ^ p->ifindex : 0;
	bpf_clone_redirect(skb, p->ifindex, 0);
	skb->mark = mark;
	if (push)
		bpf_skb_vlan_pop(skb); // what has been pushed just now comes off without memory
}

// copy_to sends a copy to a port: 0 done, else the slot of the opposite port of a function that is bypassed.
__noinline int copy_to(struct __sk_buff *skb, __u32 slot, __u32 push)
{
	struct size s = size_of(skb);
	__u32 zero = 0, fn, verdict;
	struct function *f;
	struct control *c;
	struct port *p;

	p = bpf_map_lookup_elem(&slots, &slot);
	c = bpf_map_lookup_elem(&controls, &zero);
	if (!p || !c || p->kind == PORT_NONE)
		return 0; // gone
	fn = p->function;
	f = bpf_map_lookup_elem(&functions, &fn);
	if (push && !(p->flags & PORT_FABRIC)) {
		count_drop(slot, s);
		return 0; // a fabric tag stays in the fabric
	}
	if (p->flags & PORT_SETTLES && f && f->state == FUNCTION_UP) {
		verdict = judged(skb, slot, COPY) >> 8; // no rewrite: that would change the frame that is copied
		if (verdict != VERDICT_NONE) {
			count_settled(slot, s);
			if (verdict == VERDICT_DROP && p->kind == PORT_FUNCTION)
				count_drop(slot, s);
			return verdict == VERDICT_PASS ? p->opposite : 0; // a tap has none
		}
	}
	if (p->kind == PORT_ENDPOINT || (f && f->state == FUNCTION_UP)) {
		copy_out(skb, p, slot, push, c->secret, s);
		return 0;
	}
	if (f && f->on_fail == ON_FAIL_BYPASS && p->kind == PORT_FUNCTION)
		return p->opposite;
	count_drop(slot, s);
	return 0; // the function is down
}

// copy_on takes a copy from a bypassed function to the next port: as if it had come out there. Only rules for whole ports lead on: which
// is all that a chain of copies has. The port's slot, and above it the fabric tag to put on; 0 the copy's way ends here.
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
		copy_to(skb, st->action.clone[i].port, st->action.clone[i].push); // a tap; one that is down has no opposite port
	}
	if (st->action.op != OP_OUTPUT || !st->action.target)
		return 0; // the copy's way ends here
	return st->action.target | st->action.push << 16;
}

// clone_to sends a copy on its way.
__noinline int clone_to(struct __sk_buff *skb, __u32 slot, __u32 push, __u32 version)
{
	__u32 on;
	int i;

	for (i = 0; i < MAX_HOPS; i++) {
		slot = copy_to(skb, slot, push);
		if (!slot)
			break;
		on = copy_on(skb, slot, version);
		if (!on)
			break;
		slot = on & 0xffff;
		push = on >> 16;
	}
	return 0;
}
