// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// Bounds the memory of rings of packet and AF_XDP sockets, which the kernel counts against no cgroup: for each group below one.
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <bpf/bpf_helpers.h>

#define SOL_PACKET 263
#define SOL_XDP    283
#define PAGE	   4096  // the least that the kernel hands to a program of an option
#define DEEPEST	   16    // below the top of all groups, of the group that this program is attached to
#define DESCRIPTOR 16    // bytes of an entry of a ring of AF_XDP, at most
#define CHUNK	   256   // bytes that the kernel needs for a frame of a socket's memory, and for the pages that it has
#define LEAST	   2048  // bytes of such a frame
#define TRIES	   64    // of a change at the same time as others'

struct group {
	__u64 granted; // bytes of all rings that were ever made in it
	__u64 refused; // how often more was asked for
};

struct ring {
	__u64 group;
	__u64 bytes; // of its rings, summed up as if none was ever given back
	__u64 most[8]; // of each kind
};

struct bound {
	__u64 scope; // the group whose groups are bounded
	__u64 bytes; // of each
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bound);
} bounds SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct group);
} groups SEC(".maps");

// Bytes of rings that are gone, as user space has found.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u64);
} gone SEC(".maps");

// What a socket has goes with it.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct ring);
} sockets SEC(".maps");

// asked is how many bytes an option takes, and of which kind they are; -1: more than the kernel takes.
static __always_inline __s64 asked(struct bpf_sockopt *ctx, __u32 *kind)
{
	void *value = ctx->optval, *end = ctx->optval_end;

	if (ctx->level == SOL_PACKET) {
		struct tpacket_req *req = value; // the beginning of all versions of it

		*kind = ctx->optname == PACKET_TX_RING;
		if ((void *)(req + 1) > end)
			return 0; // the kernel refuses it
		return (__u64)req->tp_block_size * req->tp_block_nr;
	}
	if (ctx->optname == XDP_UMEM_REG) {
		struct { __u64 addr, len; __u32 chunk; } *umem = value; // the beginning of struct xdp_umem_reg
		__u64 chunk;

		*kind = 2;
		if ((void *)umem + 20 > end)
			return 0;
		chunk = umem->chunk < LEAST ? LEAST : umem->chunk;
		if (umem->len >> 40)
			return -1;
		return umem->len / chunk * CHUNK;
	}
	*kind = ctx->optname == XDP_RX_RING ? 3 : ctx->optname == XDP_TX_RING ? 4 : ctx->optname == XDP_UMEM_FILL_RING ? 5 : 6;
	if (value + 4 > end)
		return 0;
	return (__u64)*(__u32 *)value * DESCRIPTOR;
}

// place is the group below scope that the caller is in; scope, if it is in scope itself, and 0 if it is elsewhere.
static __always_inline __u64 place(__u64 scope)
{
	__u64 id, above = 0;
	int level;

#pragma unroll
	for (level = 0; level <= DEEPEST; level++) {
		id = bpf_get_current_ancestor_cgroup_id(level);
		if (above)
			return id ? id : above;
		if (id == scope)
			above = id;
	}
	return above;
}

static __always_inline int refuse(void)
{
	bpf_set_retval(-ENOMEM);
	return 0;
}

// grant adds to what a group has been granted, up to what it may have at a time.
static __always_inline bool grant(struct group *group, __u64 id, __u64 more, __u64 most)
{
	__u64 *found = bpf_map_lookup_elem(&gone, &id), freed = found ? *found : 0;
	int tries;

	for (tries = 0; tries < TRIES; tries++) {
		__u64 old = *(volatile __u64 *)&group->granted;

		if (old + more - freed > most)
			return false;
		if (__sync_val_compare_and_swap(&group->granted, old, old + more) == old)
			return true;
	}
	return false;
}

SEC("cgroup/setsockopt") int weir_rings(struct bpf_sockopt *ctx)
{
	__u32 zero = 0, kind = 0;
	struct group *group, none = {};
	struct bound *bound;
	struct ring *ring;
	__u64 more, id;
	__s64 bytes;

	if (ctx->level == SOL_PACKET ? ctx->optname != PACKET_RX_RING && ctx->optname != PACKET_TX_RING
				     : ctx->level != SOL_XDP || ctx->optname < XDP_RX_RING || ctx->optname > XDP_UMEM_COMPLETION_RING) {
		if (ctx->optlen > PAGE)
			ctx->optlen = 0; // too long to be handed to us: the kernel takes the caller's own
		return 1;
	}
	if (ctx->optlen > PAGE)
		return 0; // the kernel would take what we cannot see
	bytes = asked(ctx, &kind);
	if (bytes == 0)
		return 1;
	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (!bound || !ctx->sk)
		return 0;
	id = place(bound->scope);
	if (!id)
		return 1; // not by a function
	group = bpf_map_lookup_elem(&groups, &id);
	if (!group) {
		bpf_map_update_elem(&groups, &id, &none, BPF_NOEXIST);
		group = bpf_map_lookup_elem(&groups, &id);
		if (!group)
			return refuse();
	}
	ring = bpf_sk_storage_get(&sockets, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!ring || bytes < 0 || bytes > bound->bytes) {
		__sync_fetch_and_add(&group->refused, 1);
		return refuse();
	}
	// A ring that is there has to be given back before another one of its kind is made, which cannot be seen here. So the largest of a kind counts.
	// Of two calls at once both count.
	kind &= 7;
	if (ring->group && ring->group != id)
		return refuse(); // another's socket
	ring->group = id;
	if ((__u64)bytes <= ring->most[kind])
		return 1;
	more = bytes - ring->most[kind];
	// First the socket, then the group, which only grows: user space reads the group, then the sockets, and never takes for gone what is about to be made.
	__sync_fetch_and_add(&ring->bytes, more);
	if (!grant(group, id, more, bound->bytes)) {
		__sync_fetch_and_add(&ring->bytes, -more);
		__sync_fetch_and_add(&group->refused, 1);
		return refuse();
	}
	__sync_fetch_and_add(&ring->most[kind], more);
	return 1;
}

// Of the kernel's types, what is used here.
struct bpf_iter_meta;
struct bpf_map;
struct sock;
struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u64);
} lives SEC(".maps");

// Sums up what the sockets that are there have, by group.
SEC("iter/bpf_sk_storage_map") int weir_rings_live(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct ring *ring = ctx->value;
	__u64 *sum, id, bytes;

	if (!ring || !ctx->sk)
		return 0;
	id = ring->group;
	bytes = ring->bytes;
	sum = bpf_map_lookup_elem(&lives, &id);
	if (sum)
		__sync_fetch_and_add(sum, bytes);
	else
		bpf_map_update_elem(&lives, &id, &bytes, BPF_ANY);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
