// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// The maps of the steering programs, and counting in them.
#pragma once

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
TABLE(moves, BPF_MAP_TYPE_ARRAY, __u32, __u32, 2, 0); // 0: grows when flows have to learn again; 1: when an exit was missed last
TABLE(nearby, BPF_MAP_TYPE_ARRAY, __u32, struct near, NEAR, 0); // ifindex % NEAR -> slot, asked before ports
TABLE(ports, BPF_MAP_TYPE_HASH, __u32, __u32, 1, BPF_F_NO_PREALLOC); // ifindex -> slot
TABLE(slots, BPF_MAP_TYPE_ARRAY, __u32, struct port, 1, 0);
TABLE(functions, BPF_MAP_TYPE_ARRAY, __u32, struct function, 1, 0);
TABLE(lists, BPF_MAP_TYPE_ARRAY, __u32, struct list, 1, 0);
TABLE(masks, BPF_MAP_TYPE_ARRAY, __u32, struct key, 1, 0);
TABLE(tuples, BPF_MAP_TYPE_HASH, struct key, struct tuple, 1, BPF_F_NO_PREALLOC);
TABLE(flows, BPF_MAP_TYPE_LRU_HASH, struct key, struct flow, 1, 0);
TABLE(learned, BPF_MAP_TYPE_LRU_HASH, struct exit_key, __u32, 1, 0);
TABLE(stations, BPF_MAP_TYPE_HASH, struct station_key, __u32, 1, BPF_F_NO_PREALLOC); // MAC -> slot of the endpoint
TABLE(homes, BPF_MAP_TYPE_ARRAY, __u32, __u32, 1, 0); // by slot: 1 the bridge has met the station there, and nowhere since
TABLE(guards, BPF_MAP_TYPE_HASH, __u32, struct guard, 1, BPF_F_NO_PREALLOC); // slot -> the endpoint's port security
TABLE(owners, BPF_MAP_TYPE_HASH, struct station_key, __u32, 1, BPF_F_NO_PREALLOC); // MACs that guards name
TABLE(guard_counts, BPF_MAP_TYPE_HASH, __u32, struct guard_stats, 1, BPF_F_NO_PREALLOC); // by slot
TABLE(port_counts, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct port_stats, 1, 0);
TABLE(rule_counts, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct rule_stats, 1, 0);
TABLE(settle_works, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct settle_work, 1, 0);
TABLE(probes, BPF_MAP_TYPE_ARRAY, __u32, struct probe, 1, 0);

#include "settled.h"

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

static __always_inline void count_settled(__u32 slot, struct size s)
{
	struct port_stats *p = bpf_map_lookup_elem(&port_counts, &slot);

	if (p) {
		p->settled_packets += s.packets;
		p->settled_bytes += s.bytes;
	}
}
