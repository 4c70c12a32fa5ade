// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// The tables of settled flows, for the programs that look there and the one that writes verdicts.
#pragma once

struct settled_flows {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1); // set by user space
	__uint(key_size, sizeof(struct settle_key)); // types that only an inner map points to clang does not describe
	__uint(value_size, sizeof(struct given));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1); // set by user space
	__type(key, __u32); // slot in functions
	__array(values, struct settled_flows);
} settled SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TURNS);
	__type(key, __u32); // bucket_of
	__type(value, __u32);
} turns SEC(".maps"); // grows after the verdict of a flow there has changed

// bucket_of a flow and of its reverse.
static __always_inline __u32 bucket_of(const struct settle_key *k)
{
	__u32 h = k->src_port, i;

	if (k->proto == IPPROTO_TCP || k->proto == IPPROTO_UDP)
		h ^= k->dst_port; // of an echo it is the type, by which the reverse differs
#pragma unroll
	for (i = 0; i < 4; i++)
		h ^= k->src[i] ^ k->dst[i];
	return h * 0x9e3779b1 >> 20; // TURNS
}

static __always_inline __u32 *turn_of(const struct settle_key *k)
{
	__u32 at = bucket_of(k);

	return bpf_map_lookup_elem(&turns, &at);
}

// changed: from now on stretches with a verdict of this flow that was read before do not hold. The former count is asked for, as the kernel orders only such an
// addition behind what was written before it.
static __always_inline void changed(const struct settle_key *k)
{
	__u32 *turn = turn_of(k);

	if (turn)
		asm volatile("" : : "r"(__sync_fetch_and_add(turn, 1)));
}

static __always_inline __u64 tick(void) { return bpf_ktime_get_coarse_ns() >> TICK_SHIFT; }

// older tells whether something is older than so many ticks. Another processor may have read a later tick: that is no age.
static __always_inline bool older(__u64 since, __u64 now, __s64 than) { return (__s64)(now - since) > than; }

// turn makes a flow's key that of its reverse.
static __always_inline void turn(struct settle_key *k)
{
	__u16 port = k->src_port;
	int i;

#pragma unroll
	for (i = 0; i < 4; i++) {
		__u32 word = k->src[i];

		k->src[i] = k->dst[i];
		k->dst[i] = word;
	}
	if (k->proto == IPPROTO_TCP || k->proto == IPPROTO_UDP) {
		k->src_port = k->dst_port;
		k->dst_port = port;
	} else if (k->proto == IPPROTO_ICMP) {
		k->dst_port ^= ICMP_REQUEST ^ ICMP_REPLY;
	} else {
		k->dst_port ^= ICMP6_REQUEST ^ ICMP6_REPLY;
	}
}

// take_back makes the function judge a flow anew. After a SYN, FIN or RST no verdict is taken until `until`, otherwise 0. Another processor may do the same: what does
// not bar leaves the bar alone, and of two bars of the same moment either will do. There are kernels that have no atomic operation for this.
static __always_inline void take_back(struct given *e, __u64 until)
{
	if (until > e->state >> VERDICT_BITS)
		*(volatile __u64 *)&e->state = until << VERDICT_BITS;
	else
		*(volatile __u8 *)&e->state = VERDICT_NONE; // the low byte: bpfel
}
