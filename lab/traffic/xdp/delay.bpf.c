// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// A forwarder that holds every frame back until a given time after its departure, or, without a stamp, works on each for that time.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct order { __u64 delay; __u32 to, stamp; /* interface; offset of the stamp */ };
struct wait { __u64 until; };

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct order); } orders SEC(".maps");

static long spin(__u64 i, struct wait *w) { return bpf_ktime_get_ns() >= w->until; }

SEC("tc") int hold(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct order *o = bpf_map_lookup_elem(&orders, &zero);
	__be16 s[3];
	struct wait w;

	if (!o)
		return TC_ACT_SHOT;
	if (!o->stamp)
		w.until = bpf_ktime_get_ns() + o->delay;
	else if (bpf_skb_load_bytes(skb, o->stamp, s, sizeof(s)))
		return TC_ACT_SHOT;
	else
		w.until = ((__u64)bpf_ntohs(s[0]) << 32 | (__u64)bpf_ntohs(s[1]) << 16 | bpf_ntohs(s[2])) + o->delay;
	bpf_loop(1 << 17, spin, &w, 0);
	return bpf_redirect(o->to, 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
