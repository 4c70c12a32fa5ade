// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// Flows that a function has settled pass it by, as they are or rewritten as it would, or are dropped before it. A frame that has no key goes to the function, always.
#pragma once

enum keyed {
	KEYED = 1,   // settle_works has the frame's key
	UNKEYED = 2, // the frame has none
	BEGINS = 4,  // it begins or ends a connection: the function is to see it. Beside UNKEYED: settle_works has the connection's key all the same
	FRESH = 8,   // it begins one, or answers to that: SYN
	COPY = 16,   // of a question: the frame is a copy, which nobody rewrites
	LINE = 32,   // of a question: it has passed a function by, and a rule for every frame has led it straight to this one
	WALK = 64,   // of a question: the frame was told to try, and the stretch did not hold
};

// Of an answer of pass, above the verdict's byte.
enum further {
	LEAP = 1 << 16,	 // the frame may pass a stretch of functions behind this one by, too: leap
	REPAY = 1 << 17, // what went past functions of a former stretch has to be counted there: repay
};

#define MAX_KEY_TAGS 3 // in a frame, beside the one that was taken off

#define FIN 1
#define SYN 2
#define RST 4
#define ACK 16

static __always_inline int key_tcp(struct __sk_buff *skb, __u32 off, struct settle_key *k, __u8 *h)
{
	__u8 flags;

	if (bpf_skb_load_bytes(skb, off, h, 14) || (h[12] >> 4) < 5 || skb->len < off + (h[12] >> 4) * 4)
		return UNKEYED; // cut short
	k->src_port = h[0] << 8 | h[1];
	k->dst_port = h[2] << 8 | h[3];
	flags = h[13];
	if (!(flags & (SYN | FIN | RST)))
		return flags & ACK ? KEYED : UNKEYED; // every segment of a connection has ACK, but its first
	return flags & SYN ? KEYED | BEGINS | FRESH : KEYED | BEGINS;
}

// key_upper reads what stands behind the addresses: room is how much of the frame the IP header says there is.
static __always_inline int key_upper(struct __sk_buff *skb, __u32 off, __u32 room, struct settle_key *k, __u8 *h)
{
	__u32 length;

	if (k->proto == IPPROTO_TCP)
		return room < 20 ? UNKEYED : key_tcp(skb, off, k, h);
	if (room < 8 || bpf_skb_load_bytes(skb, off, h, 8))
		return UNKEYED; // cut short
	if (k->proto == IPPROTO_UDP) {
		length = h[4] << 8 | h[5];
		if (length < 8 || length > room)
			return UNKEYED; // receivers may read it otherwise
		k->src_port = h[0] << 8 | h[1];
		k->dst_port = h[2] << 8 | h[3];
		return KEYED;
	}
	if (h[1])
		return UNKEYED; // no echo
	if (k->family == SETTLE_V4 ? k->proto != IPPROTO_ICMP || (h[0] != ICMP_REQUEST && h[0] != ICMP_REPLY)
				   : k->proto != IPPROTO_ICMPV6 || (h[0] != ICMP6_REQUEST && h[0] != ICMP6_REPLY))
		return UNKEYED;
	k->src_port = h[4] << 8 | h[5];
	k->dst_port = h[0];
	return KEYED;
}

// key_odd does so for a frame whose headers are odd, part: it is the first of several fragments. Such a frame has no key, but may begin a connection. A
// part may end before the flags: all are taken for beginnings.
static __always_inline int key_odd(struct __sk_buff *skb, __u32 off, __u32 room, bool part, struct settle_key *k, __u8 *h)
{
	if (k->proto != IPPROTO_TCP)
		return UNKEYED;
	if (!part)
		return UNKEYED | ((room < 20 ? UNKEYED : key_tcp(skb, off, k, h)) & (BEGINS | FRESH));
	if (room < 4 || bpf_skb_load_bytes(skb, off, h, 4))
		return UNKEYED;
	k->src_port = h[0] << 8 | h[1];
	k->dst_port = h[2] << 8 | h[3];
	return UNKEYED | BEGINS | FRESH;
}

static __always_inline int key_ipv4(struct __sk_buff *skb, __u32 off, bool odd, struct settle_work *w)
{
	struct settle_key *k = &w->key;
	__u8 *h = (__u8 *)w->head;
	__u32 room, length;
	bool part;

	if (bpf_skb_load_bytes(skb, off, h, 20) || h[0] >> 4 != 4 || (h[6] & 0x1f) | h[7])
		return UNKEYED; // cut short; a fragment, not the first
	w->network = off;
	k->family = SETTLE_V4;
	k->proto = h[9];
	k->src[0] = w->head[3];
	k->dst[0] = w->head[4];
	length = (h[0] & 0xf) * 4;
	room = h[2] << 8 | h[3];
	if (!room) // longer than the field can say: the kernel knows
		room = skb->gso_size ? skb->len - off : 0;
	if (length < 20 || room < length || skb->len < off + room)
		return UNKEYED;
	part = h[6] & 0x20;
	if (odd || part || length > 20 || h[6] & 0x80)
		return key_odd(skb, off + length, room - length, part, k, h);
	return key_upper(skb, off + 20, room - 20, k, h);
}

static __always_inline int key_ipv6(struct __sk_buff *skb, __u32 off, bool odd, struct settle_work *w)
{
	struct settle_key *k = &w->key;
	__u8 *h = (__u8 *)w->head;
	bool part = false;
	__u32 room, length;
	int i;

	if (bpf_skb_load_bytes(skb, off, h, 40) || h[0] >> 4 != 6)
		return UNKEYED;
	w->network = off;
	k->family = SETTLE_V6;
	k->proto = h[6];
	__builtin_memcpy(k->src, w->head + 2, 16);
	__builtin_memcpy(k->dst, w->head + 6, 16);
	room = h[4] << 8 | h[5];
	if (!room)
		room = skb->gso_size ? skb->len - off - 40 : 0;
	off += 40;
	if (skb->len < off + room)
		return UNKEYED;
	for (i = 0; i < MAX_EXTENSIONS && is_extension(k->proto); i++) {
		if (bpf_skb_load_bytes(skb, off, h, 4))
			return UNKEYED; // cut short
		length = k->proto == IPPROTO_FRAGMENT ? 8 : k->proto == IPPROTO_AH ? h[1] * 4 + 8 : h[1] * 8 + 8;
		if (k->proto == IPPROTO_FRAGMENT) {
			if (h[2] | (h[3] & 0xf8))
				return UNKEYED; // a fragment, not the first
			part |= h[3] & 1;
		}
		if (room < length)
			return UNKEYED;
		k->proto = h[0];
		room -= length;
		off += length;
		odd = true;
	}
	return odd ? key_odd(skb, off, room, part, k, h) : key_upper(skb, off, room, k, h);
}

// key_tag takes a tag into the key: whether the frame can still have one. The id 0 gives a priority alone: who receives the frame takes it as one
// without that tag, so it has the same key.
static __always_inline bool key_tag(struct settle_key *k, __u16 type, __u16 id)
{
	if (!id)
		return true;
	if (type != ETH_P_8021Q || k->vlan != VLAN_NONE)
		return false; // another network than any key can name
	k->vlan = id;
	return true;
}

// key_of: frames of TCP, UDP and ICMP echo with at most one 802.1Q tag, without IP options, extension headers and fragments have a key. Of others it is
// told whether they begin a connection of some key.
static __always_inline int key_of(struct __sk_buff *skb, struct settle_work *w)
{
	__u32 off = ETH_HLEN, tags = 0;
	__u8 *h = (__u8 *)w->head;
	bool odd = false;
	__u16 type;
	int i;

	__builtin_memset(&w->key, 0, sizeof(w->key));
	w->key.vlan = VLAN_NONE;
	if (bpf_skb_load_bytes(skb, 12, h, 2))
		return UNKEYED; // a runt
	type = h[0] << 8 | h[1];
	if (skb->vlan_present) { // the outermost tag was taken off by the device or the stack
		if (!key_tag(&w->key, bpf_ntohs(skb->vlan_proto), skb->vlan_tci & 0xfff))
			return UNKEYED;
		odd = skb->vlan_proto != bpf_htons(ETH_P_8021Q);
		tags = 1;
	}
	for (i = 0; i < MAX_KEY_TAGS && is_tag(type); i++) {
		if (bpf_skb_load_bytes(skb, off, h, 4) || !key_tag(&w->key, type, (h[0] << 8 | h[1]) & 0xfff))
			return UNKEYED;
		odd |= tags || type != ETH_P_8021Q;
		tags = 1;
		type = h[2] << 8 | h[3];
		off += 4;
	}
	if (type == ETH_P_IP)
		return key_ipv4(skb, off, odd, w);
	return type == ETH_P_IPV6 ? key_ipv6(skb, off, odd, w) : UNKEYED;
}

// key_plain reads the key of most frames, without a call: of TCP or UDP over IPv4 without a tag, whole, that neither begins nor ends a connection. false: key_of is to.
static __always_inline bool key_plain(struct __sk_buff *skb, struct settle_work *w)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct settle_key *k = &w->key;
	const __u8 *h = data;
	__u32 room, length;

	if (data + ETH_HLEN + 28 > end || skb->vlan_present || h[12] != 8 || h[13] || h[14] != 0x45 || (h[20] & 0xbf) | h[21])
		return false;
	room = h[16] << 8 | h[17];
	if (room < 28 || skb->len < ETH_HLEN + room)
		return false;
	if (h[23] == IPPROTO_TCP) {
		if (room < 40 || data + ETH_HLEN + 40 > end)
			return false;
		length = h[46] >> 4;
		if (length < 5 || skb->len < ETH_HLEN + 20 + length * 4 || (h[47] & (SYN | FIN | RST | ACK)) != ACK)
			return false;
	} else if (h[23] == IPPROTO_UDP) {
		length = h[38] << 8 | h[39];
		if (length < 8 || length > room - 20)
			return false;
	} else {
		return false;
	}
	__builtin_memset(k, 0, sizeof(*k));
	k->vlan = VLAN_NONE;
	k->family = SETTLE_V4;
	k->proto = h[23];
	__builtin_memcpy(k->src, h + 26, 4);
	__builtin_memcpy(k->dst, h + 30, 4);
	k->src_port = h[34] << 8 | h[35];
	k->dst_port = h[36] << 8 | h[37];
	w->network = ETH_HLEN;
	__builtin_memcpy(w->macs, h, 12);
	return true;
}

// revoke has both directions of a connection judged anew, at both ports.
static __always_inline void revoke(void *flows, struct settle_work *w, __u16 slot)
{
	struct given *e;
	int i;

	for (i = 0; i < 4; i++) {
		w->key.port = i & 1 ? w->opposite : slot;
		if (i == 2)
			turn(&w->key);
		e = bpf_map_lookup_elem(flows, &w->key);
		if (e)
			take_back(e, w->until);
	}
	turn(&w->key);
	w->key.port = slot;
	barrier(); // the stack is short: the key is read from there again
	changed(&w->key);
}

static __always_inline bool same_macs(const struct given *e, const __u32 *macs)
{
	const __u32 *known = (const __u32 *)e->macs;

	return macs[0] == known[0] && macs[1] == known[1] && macs[2] == known[2];
}

// copied takes the rewrite of an entry for the frame under way. false: the verdict has changed meanwhile.
static __always_inline bool copied(struct settle_work *w, const struct given *e, __u64 state)
{
	__u64 since = *(volatile __u64 *)&e->since;

	w->rewrite = e->rewrite;
	barrier();
	return *(volatile __u64 *)&e->state == state && *(volatile __u64 *)&e->since == since;
}

// rewritten gives a frame the address and port that settle_works has for it; 0 done. Checksums are adjusted, so what came damaged stays so. A device may
// have given the sum of the whole packet (CHECKSUM_COMPLETE). It stays the same, as checksums in the packet make up for what changes. But the kernel counts
// the pseudo header's change in, which is right for IPv4 alone: BPF_F_RECOMPUTE_CSUM takes it out again.
__noinline int rewritten(struct __sk_buff *skb)
{
	__u32 zero = 0, end, upper, sum, flags = 0, whole = 0, i, *old;
	struct settle_work *w = bpf_map_lookup_elem(&settle_works, &zero);
	struct rewrite *r;
	__u16 was, port, check;
	bool v4;

	if (!w)
		return -1; // cannot be
	r = &w->rewrite;
	v4 = w->key.family == SETTLE_V4;
	end = r->end & 1;
	upper = w->network + (v4 ? 20 : 40);
	sum = upper + 16;
	if (w->key.proto == IPPROTO_UDP) {
		sum = upper + 6;
		flags = BPF_F_MARK_MANGLED_0; // 0 says that there is none
		if (bpf_skb_load_bytes(skb, sum, &check, 2))
			return -1; // cannot be
		if (!check)
			whole = BPF_F_RECOMPUTE_CSUM; // nothing makes up for the port
	}
	old = end ? w->key.dst : w->key.src;
	was = bpf_htons(end ? w->key.dst_port : w->key.src_port);
	port = bpf_htons(r->port);
	if (bpf_l4_csum_replace(skb, sum, was, port, flags | 2))
		return -1; // no memory; from here on the headers are the frame's own
	for (i = 0; i < 4; i++) {
		if (v4 && i)
			break;
		if (bpf_l4_csum_replace(skb, sum, old[i], r->addr[i], flags | BPF_F_PSEUDO_HDR | 4))
			return -1;
	}
	if (v4) {
		if (bpf_l3_csum_replace(skb, w->network + 10, old[0], r->addr[0], 4) ||
		    bpf_skb_store_bytes(skb, w->network + 12 + 4 * end, r->addr, 4, BPF_F_INVALIDATE_HASH))
			return -1;
	} else if (bpf_skb_store_bytes(skb, w->network + 8 + 16 * end, r->addr, 16, BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH)) {
		return -1;
	}
	if (bpf_skb_store_bytes(skb, upper + 2 * end, &port, 2, whole))
		return -1;
	if ((r->mac[0] | r->mac[1] | r->mac[2] | r->mac[3] | r->mac[4] | r->mac[5]) && bpf_skb_store_bytes(skb, 0, r->mac, 6, 0))
		return -1;
	return 0;
}

// along gives the port of the next function of a stretch behind the one that a frame enters at slot, NULL if there is none any more. slot is its own then, and rule the
// one that leads there.
static __always_inline struct port *along(__u32 *slot, __u32 version, __u32 *rule)
{
	struct port *p = bpf_map_lookup_elem(&slots, slot);
	__u32 from = p ? p->opposite : 0;
	struct stage *st;

	p = bpf_map_lookup_elem(&slots, &from);
	if (!p)
		return NULL; // cannot be
	st = &p->copy[version & 1].stage[STAGE_INGRESS];
	*slot = st->action.target;
	*rule = st->action.rule;
	p = bpf_map_lookup_elem(&slots, slot);
	return st->kind == KIND_DIRECT && p && p->kind == PORT_FUNCTION && p->flags & PORT_SETTLES ? p : NULL;
}

// leap passes the functions of a stretch (settle_works) by at once, and counts the frame at each: the port from which it goes on, 0 if that is no stretch any
// more. The first function's port is slot.
__noinline int leap(__u32 slot, __u32 version)
{
	__u32 zero = 0, at = slot, sum = 0, rule, fn, n, i;
	struct settle_work *w = bpf_map_lookup_elem(&settle_works, &zero);
	struct function *f;
	struct port *p;
	struct size s;

	if (!w)
		return 0; // cannot be
	n = w->stretch & ((1 << STRETCH_BITS) - 1);
	for (i = 0; i < STRETCH_FUNCTIONS && i < n; i++) {
		p = along(&at, version, &rule);
		if (!p)
			return 0;
		fn = p->function;
		f = bpf_map_lookup_elem(&functions, &fn);
		if (!f || f->state != FUNCTION_UP)
			return 0;
		sum += f->generation;
		w->way[i].slot = at;
		w->way[i].rule = rule;
	}
	if ((sum ^ w->stretch >> (STRETCH_BITS + VERSION_BITS)) & ((1 << GENERATION_BITS) - 1))
		return 0;
	s.packets = w->packets;
	s.bytes = w->bytes;
	for (i = 0; i < STRETCH_FUNCTIONS && i < n; i++) {
		count_rule(w->way[i].rule, s);
		count_settled(w->way[i].slot, s);
	}
	p = bpf_map_lookup_elem(&slots, &at);
	return p ? p->opposite : 0;
}

// repay counts at the functions of a former stretch (settle_works) what has passed them by.
__noinline int repay(__u32 slot, __u32 version)
{
	__u32 zero = 0, at = slot, rule, fn, n, i;
	struct settle_work *w = bpf_map_lookup_elem(&settle_works, &zero);
	struct function *f;
	struct given *e;
	struct port *p;
	void *flows;

	if (!w)
		return 0; // cannot be
	n = w->stretch & ((1 << STRETCH_BITS) - 1);
	for (i = 0; i < STRETCH_FUNCTIONS && i < n; i++) {
		p = along(&at, version, &rule);
		if (!p)
			break;
		fn = p->function;
		f = bpf_map_lookup_elem(&functions, &fn);
		flows = bpf_map_lookup_elem(&settled, &fn);
		if (!f || !flows)
			break;
		w->key.port = at;
		e = bpf_map_lookup_elem(flows, &w->key);
		if (!e || e->generation != f->generation || (__s32)((e->turn - (__u32)(w->stretch >> (64 - TURN_BITS))) << (32 - TURN_BITS)) >= 0)
			continue; // given anew since, or settled
		__sync_fetch_and_add(&e->packets, w->packets);
		__sync_fetch_and_add(&e->bytes, w->bytes);
	}
	w->key.port = slot;
	return 0;
}

// stretch_of a number of functions.
static __always_inline __u64 stretch_of(__u32 n, __u32 version, __u32 generations, __u32 turn)
{
	return n | (__u64)(version & ((1 << VERSION_BITS) - 1)) << STRETCH_BITS |
	       (__u64)(generations & ((1 << GENERATION_BITS) - 1)) << (STRETCH_BITS + VERSION_BITS) | (__u64)turn << (64 - TURN_BITS);
}

#define STRETCH_SAME ~(((1ULL << GENERATION_BITS) - 1) << (STRETCH_BITS + VERSION_BITS) | ((1 << STRETCH_BITS) - 1))

// begin is for a function that has said pass, and is the first one of a stretch: LEAP, if the frame may try to pass the stretch by. Else it is to ask each function.
static __always_inline __u32 begin(struct settle_work *w, struct given *e, __u32 fn, __u32 question, struct size s)
{
	__u32 *turn = turn_of(&w->key), version = question >> 8;

	if (!turn)
		return 0; // cannot be
	w->stretch = *(volatile __u64 *)&e->stretch;
	if (question & WALK) { // it has tried
		__sync_fetch_and_add(&e->ahead_packets, -s.packets);
		__sync_fetch_and_add(&e->ahead_bytes, -s.bytes);
	} else if (w->stretch && !((w->stretch ^ stretch_of(0, version, 0, *(volatile __u32 *)turn)) & STRETCH_SAME) && (__u32)w->now - e->walked <= STRETCH_MOST) {
		__sync_fetch_and_add(&e->ahead_packets, s.packets);
		__sync_fetch_and_add(&e->ahead_bytes, s.bytes);
		w->packets = s.packets;
		w->bytes = s.bytes;
		return LEAP;
	}
	w->first = w->key.port;
	w->function = fn;
	w->behind = 0;
	w->turn = *(volatile __u32 *)turn;
	__sync_lock_test_and_set(&w->generations, 0); // and a barrier: verdicts are read afterwards
	*(volatile __u64 *)&e->stretch = 0;
	e->walked = w->now;
	if (!w->stretch || !e->ahead_packets)
		return 0;
	w->packets = __sync_lock_test_and_set(&e->ahead_packets, 0);
	w->bytes = __sync_lock_test_and_set(&e->ahead_bytes, 0);
	__sync_fetch_and_add(&e->packets, w->packets);
	__sync_fetch_and_add(&e->bytes, w->bytes);
	return REPAY;
}

// lengthen is for one that has said pass, behind others of the stretch that the frame walks along. The generation is that of the verdict: the function's own may be
// another one by now.
static __always_inline void lengthen(struct settle_work *w, const struct given *e, __u32 version)
{
	__u32 fn = w->function, slot = w->key.port;
	struct given *first;
	void *flows = bpf_map_lookup_elem(&settled, &fn);

	w->behind++;
	w->generations += *(volatile __u32 *)&e->generation;
	if (!flows)
		return; // it settles nothing any more
	w->key.port = w->first;
	first = bpf_map_lookup_elem(flows, &w->key);
	w->key.port = slot;
	if (first)
		*(volatile __u64 *)&first->stretch = stretch_of(w->behind, version, w->generations, w->turn);
}

// judged: what becomes of a frame that is about to enter a function that is up. The question is how far the frame's key is known, and above it (8 bits) the
// version of the rules. The low byte of the answer is how far it is known now, to be given to the next such function, the next one the verdict:
// VERDICT_NONE, the function gets it. Then the flow is known to have been given to it. Above them: enum further. A copy's question is COPY: its key is read anew.
__noinline int judged(struct __sk_buff *skb, __u32 slot, __u32 question)
{
	__u32 at = 0, keyed = question & (COPY - 1), further = 0;
	struct settle_work *work;
	struct settle_key *k;
	struct given *e;
	struct function *f;
	struct size s;
	struct port *p;
	bool copy = question & COPY;
	__u32 verdict;
	void *flows;
	__u64 state;

	p = bpf_map_lookup_elem(&slots, &slot);
	work = bpf_map_lookup_elem(&settle_works, &at);
	if (!p || !work)
		return UNKEYED; // cannot be
	k = &work->key;
	work->opposite = p->opposite;
	at = p->function;
	flows = bpf_map_lookup_elem(&settled, &at);
	if (!flows)
		return keyed; // it settles nothing any more
	f = bpf_map_lookup_elem(&functions, &at);
	if (!f)
		return keyed; // cannot be
	if (copy || !keyed) { // else the frame has passed another function by, as it is
		work->now = tick();
		if (key_plain(skb, work))
			keyed = KEYED;
		else if (bpf_skb_load_bytes(skb, 0, work->macs, sizeof(work->macs)))
			keyed = UNKEYED; // a runt
		else
			keyed = key_of(skb, work);
	}
	if ((keyed & (UNKEYED | BEGINS)) == UNKEYED)
		return keyed;
	k->port = slot;
	work->until = keyed & BEGINS ? work->now + SETTLE_BAR : 0;
	if (keyed & BEGINS)
		revoke(flows, work, slot);
	if (keyed & UNKEYED)
		return keyed;
	e = bpf_map_lookup_elem(flows, k);
	if (!e) {
		if (keyed & BEGINS && !(keyed & FRESH))
			return keyed; // it ends
		work->fresh.state = work->until << VERDICT_BITS;
		work->fresh.last = work->now;
		work->fresh.generation = f->generation;
		__builtin_memcpy(work->fresh.macs, work->macs, sizeof(work->fresh.macs));
		bpf_map_update_elem(flows, k, &work->fresh, BPF_NOEXIST);
		return keyed;
	}
	if (e->generation != f->generation || older(e->last, work->now, SETTLE_IDLE)) { // another instance's, or forgotten
		take_back(e, work->until);
		changed(k);
		__builtin_memcpy(e->macs, work->macs, sizeof(e->macs));
		e->last = work->now;
		e->generation = f->generation;
		return keyed;
	}
	if (!same_macs(e, work->macs))
		return keyed; // between others: a verdict says nothing of it
	if (older(e->last, work->now, 256)) // seldom, as other processors read it
		e->last = work->now;
	if (e->state & VERDICT_MASK && older(e->since, work->now, SETTLE_MOST)) {
		take_back(e, 0);
		changed(k);
	}
	state = *(volatile __u64 *)&e->state;
	verdict = state & VERDICT_MASK;
	if (verdict == VERDICT_REWRITE && (copy || !copied(work, e, state)))
		return keyed;
	if (verdict == VERDICT_NONE)
		return keyed;
	s = size_of(skb);
	if (verdict == VERDICT_PASS && !copy) {
		if (question & LINE && work->first && work->behind < STRETCH_FUNCTIONS) {
			lengthen(work, e, question >> 8);
		} else {
			further = begin(work, e, at, question, s);
			if (further & LEAP)
				return keyed | verdict << 8 | further;
		}
	}
	__sync_fetch_and_add(&e->packets, s.packets); // frames of one direction may come on several processors
	__sync_fetch_and_add(&e->bytes, s.bytes);
	return keyed | verdict << 8 | further;
}
