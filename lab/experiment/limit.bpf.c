// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// A forwarder that passes a known number of frames a second and drops the others: a leaky bucket (the virtual scheduling of ITU-T I.371).
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

struct bucket {
	__u64 interval; /* ns between two frames */
	__u64 slack;    /* ns that a frame may come before its time */
	__u64 due;      /* time of the next frame */
	__u64 passed, dropped;
	__u32 to, unused; /* interface */
};

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct bucket); } buckets SEC(".maps");

/* One CPU at a time: what enters at one queue does. */
SEC("tc") int limit(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct bucket *b = bpf_map_lookup_elem(&buckets, &zero);
	__u64 now = bpf_ktime_get_ns();

	if (!b)
		return TC_ACT_SHOT;
	if (b->due > now + b->slack) {
		b->dropped++;
		return TC_ACT_SHOT;
	}
	b->due = (b->due > now ? b->due : now) + b->interval;
	b->passed++;
	return bpf_redirect(b->to, 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
