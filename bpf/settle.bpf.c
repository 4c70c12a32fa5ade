// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// What a function says of flows. User space runs the program with a request as its frame; the answer is how many entries have the verdict now.
// Only the programs that give frames to functions make entries: a flow that was not given has none. An entry is changed by compare and exchange, so
// that a SYN at the same moment, whose connection the function cannot have judged yet, wins.
#include <linux/bpf.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "weir.h"
#include "settled.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); // set by user space
	__type(key, __u32);
	__type(value, struct function);
} functions SEC(".maps");

static __always_inline bool same_rewrite(const struct rewrite *a, const struct rewrite *b)
{
	const __u32 *x = (const __u32 *)a, *y = (const __u32 *)b;
	int i;

#pragma unroll
	for (i = 0; i < sizeof(*a) / 4; i++) {
		if (x[i] != y[i])
			return false;
	}
	return true;
}

static __always_inline int settle_at(void *flows, const struct function *f, const struct settle_key *k, const struct settle_request *r, __u64 now, __u32 turn)
{
	struct given *e = bpf_map_lookup_elem(flows, k);
	__u8 verdict = r->verdict;
	__u64 was;

	if (!e || e->generation != f->generation || older(e->last, now, SETTLE_IDLE))
		return 0; // not given, or long ago
	was = e->state;
	if (verdict == VERDICT_NONE) {
		take_back(e, 0);
		return 1;
	}
	if (now < was >> VERDICT_BITS)
		return SETTLE_EARLY;
	if (verdict == VERDICT_REWRITE && was & VERDICT_MASK) {
		if ((was & VERDICT_MASK) == verdict && same_rewrite(&e->rewrite, &r->rewrite))
			return 1;
		take_back(e, 0); // a frame under way may be about to read the former rewrite
		return SETTLE_EARLY;
	}
	if (!(was & VERDICT_MASK)) { // nobody counts its frames now
		e->since = now;
		e->turn = turn;
		e->packets = -e->ahead_packets; // which functions behind are still to count; here they were before this verdict
		e->bytes = -e->ahead_bytes;
	}
	if (verdict == VERDICT_REWRITE)
		e->rewrite = r->rewrite;
	if (__sync_val_compare_and_swap(&e->state, was, (was & ~(__u64)VERDICT_MASK) | verdict) != was)
		return SETTLE_EARLY;
	if (bpf_map_lookup_elem(flows, k) == e)
		return 1;
	take_back(e, 0); // pushed out meanwhile: it is another flow's
	return SETTLE_EARLY;
}

static __noinline long read_request(struct __sk_buff *skb, struct settle_request *r) { return bpf_skb_load_bytes(skb, 0, r, sizeof(*r)); }

SEC("tc") int settle(struct __sk_buff *skb)
{
	struct settle_request r;
	struct function *f;
	int i, n, answer = 0;
	__u64 now = tick();
	__u32 fn, *since;
	void *flows;

	if (read_request(skb, &r) || r.verdict > VERDICT_REWRITE ||
	    (r.verdict == VERDICT_REWRITE && (!r.oneway || (r.key.proto != IPPROTO_TCP && r.key.proto != IPPROTO_UDP))))
		return 0; // cannot be
	fn = r.function;
	flows = bpf_map_lookup_elem(&settled, &fn);
	if (!flows)
		return 0; // it settles nothing any more
	f = bpf_map_lookup_elem(&functions, &fn);
	since = turn_of(&r.key);
	if (!f || !since)
		return 0; // cannot be
#pragma unroll
	for (i = 0; i < 4; i++) {
		if (i == 2) {
			if (r.oneway)
				break;
			turn(&r.key);
		}
		r.key.port = r.port[i & 1];
		if (!r.key.port)
			continue;
		n = settle_at(flows, f, &r.key, &r, now, *since);
		answer = n == SETTLE_EARLY ? answer | SETTLE_EARLY : answer + n;
	}
	changed(&r.key);
	return answer;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
