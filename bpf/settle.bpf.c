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

static __always_inline int settle_at(void *flows, const struct function *f, const struct settle_key *k, __u8 verdict, __u64 now)
{
	struct given *e = bpf_map_lookup_elem(flows, k);
	__u64 was;

	if (!e || e->generation != f->generation || now - e->last > SETTLE_IDLE)
		return 0; // not given, or long ago
	was = e->state;
	if (verdict == VERDICT_NONE) {
		take_back(e, 0);
		return 1;
	}
	if (now < was >> VERDICT_BITS)
		return SETTLE_EARLY;
	if (!(was & VERDICT_MASK))
		e->since = now;
	return __sync_val_compare_and_swap(&e->state, was, (was & ~(__u64)VERDICT_MASK) | verdict) == was ? 1 : SETTLE_EARLY;
}

static __noinline long read_request(struct __sk_buff *skb, struct settle_request *r) { return bpf_skb_load_bytes(skb, 0, r, sizeof(*r)); }

SEC("tc") int settle(struct __sk_buff *skb)
{
	struct settle_request r;
	struct function *f;
	int i, n, answer = 0;
	__u64 now = tick();
	void *flows;
	__u32 fn;

	if (read_request(skb, &r) || r.verdict > VERDICT_DROP)
		return 0; // cannot be
	fn = r.function;
	flows = bpf_map_lookup_elem(&settled, &fn);
	if (!flows)
		return 0; // it settles nothing any more
	f = bpf_map_lookup_elem(&functions, &fn);
	if (!f)
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
		n = settle_at(flows, f, &r.key, r.verdict, now);
		answer = n == SETTLE_EARLY ? answer | SETTLE_EARLY : answer + n;
	}
	return answer;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
