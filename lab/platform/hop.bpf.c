// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// A wire by hand: what comes in at one of a namespace's two links leaves by the other.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* by the link where a frame came in; both are indexes of one namespace */
struct { __uint(type, BPF_MAP_TYPE_DEVMAP_HASH); __uint(max_entries, 2); __type(key, __u32); __type(value, __u32); } other SEC(".maps");

SEC("xdp") int hop(struct xdp_md *ctx)
{
	return bpf_redirect_map(&other, ctx->ingress_ifindex, 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
