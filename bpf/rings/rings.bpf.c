// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// Bounds the memory of rings of packet and AF_XDP sockets, and of long queues of packet and netlink sockets, which the kernel counts against no cgroup: for each group below one.
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <bpf/bpf_helpers.h>

#define SOL_SOCKET 1
#define SO_RCVBUF  8
#define SO_RCVBUFFORCE 33
#define AF_NETLINK 16
#define AF_PACKET  17
#define SOL_PACKET 263
#define SOL_XDP    283
#define PAGE	   4096  // the least that the kernel hands to a program of an option
#define DEEPEST	   16    // below the top of all groups, of the group that this program is attached to
#define ENTRY	   8     // bytes of a ring of AF_XDP whose entries are addresses
#define DESCRIPTOR 16    // and of one whose entries are descriptors
#define HEADER	   1024  // at most, before the entries
#define CHUNK	   16    // bytes that the kernel needs for a frame of a socket's memory, once
#define POOLED	   144   // and for each queue of an interface that the memory is used at
#define LEAST	   2048  // bytes of such a frame
#define MEMBERS	   256   // of a fanout group, unless the caller says how many
#define USUAL	   212992    // bytes of a socket's queue that everybody gets; the kernel doubles them
#define LONGEST	   (4 << 20) // of one
#define TRIES	   64    // of a change at the same time as others'

struct group {
	__u64 granted; // bytes of all rings that were ever made in it
	__u64 refused; // how often more was asked for
	__u64 packet, xdp; // of granted, those of packet and of AF_XDP sockets: added afterwards
	__u64 frames; // bytes that one queue takes for the largest memory of AF_XDP sockets
	__u64 fills; // how many fill rings there were: no more queues use the memory of AF_XDP sockets
};

struct ring {
	__u64 group;
	__u64 packet, xdp; // bytes of its rings, summed up as if none was ever given back
	__u64 most[8]; // of each kind
};

// sum is of the bytes of packet and of AF_XDP sockets.
struct sum {
	__u64 packet, xdp;
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

// What is gone, as user space has found, by group.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct sum);
} gone SEC(".maps");

// What a socket has goes with it.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct ring);
} sockets SEC(".maps");

enum { RX, TX, QUEUE, UMEM, RECEIVE, SEND, FILL, COMPLETION };

// bounded tells whether an option is one that takes memory by the caller's number.
static __always_inline bool bounded(struct bpf_sockopt *ctx)
{
	if (ctx->level == SOL_PACKET)
		return ctx->optname == PACKET_RX_RING || ctx->optname == PACKET_TX_RING || ctx->optname == PACKET_FANOUT;
	return ctx->level == SOL_XDP && ctx->optname >= XDP_RX_RING && ctx->optname <= XDP_UMEM_COMPLETION_RING;
}

// long_queue tells whether an option is the length of a queue that is counted nowhere, longer than usual. It is made LONGEST, if it is more.
static __always_inline bool long_queue(struct bpf_sockopt *ctx)
{
	__u32 *value = ctx->optval;
	void *end = ctx->optval_end;

	if (ctx->level != SOL_SOCKET || (ctx->optname != SO_RCVBUF && ctx->optname != SO_RCVBUFFORCE) || !ctx->sk ||
	    (ctx->sk->family != AF_PACKET && ctx->sk->family != AF_NETLINK) || (void *)(value + 1) > end || *value <= USUAL)
		return false;
	if (*value > LONGEST)
		*value = LONGEST;
	return true;
}

// power is the least power of 2 that is not below n.
static __always_inline __u64 power(__u64 n)
{
	n--;
	n |= n >> 1;
	n |= n >> 2;
	n |= n >> 4;
	n |= n >> 8;
	n |= n >> 16;
	return n + 1;
}

// asked is how many bytes an option takes, and of which kind they are; -1: more than anybody gets.
// frames is what each queue takes besides, for an AF_XDP socket's memory.
static __always_inline __s64 asked(struct bpf_sockopt *ctx, int length, __u32 *kind, __u64 *frames)
{
	void *value = ctx->optval, *end = ctx->optval_end;
	__u64 size;

	if (ctx->level == SOL_SOCKET) {
		*kind = QUEUE;
		return value + 4 > end ? 0 : 2LL * *(__u32 *)value;
	}
	if (ctx->level == SOL_PACKET && ctx->optname == PACKET_FANOUT) {
		struct { __u32 id, members; } *fanout = value; // struct fanout_args

		// The kernel allocates 8 bytes a member. With its own number it is as much as a socket takes, which it counts.
		if ((void *)(fanout + 1) > end || length < (int)sizeof(*fanout))
			return 0;
		return fanout->members > MEMBERS ? -1 : 0;
	}
	if (ctx->level == SOL_PACKET) {
		struct tpacket_req *req = value; // the beginning of all versions of it

		*kind = ctx->optname == PACKET_TX_RING ? TX : RX;
		if ((void *)(req + 1) > end)
			return 0; // the kernel refuses it
		if (req->tp_block_size >> 31)
			return -1;
		if (!req->tp_block_size)
			return 0;
		return power(req->tp_block_size) * req->tp_block_nr; // of pages, the kernel takes a power of 2 for a block
	}
	if (ctx->optname == XDP_UMEM_REG) {
		struct { __u64 addr, len; __u32 chunk; } *umem = value; // the beginning of struct xdp_umem_reg
		__u64 chunk;

		*kind = UMEM;
		if ((void *)umem + 20 > end)
			return 0;
		chunk = umem->chunk < LEAST ? LEAST : umem->chunk;
		if (umem->len >> 40)
			return -1;
		*frames = power(umem->len / chunk) * POOLED;
		return umem->len / chunk * CHUNK;
	}
	*kind = ctx->optname == XDP_RX_RING ? RECEIVE : ctx->optname == XDP_TX_RING ? SEND : ctx->optname == XDP_UMEM_FILL_RING ? FILL : COMPLETION;
	if (value + 4 > end || !*(__u32 *)value)
		return 0;
	// Of what is to be sent there is a copy of the ring.
	size = *kind == RECEIVE ? DESCRIPTOR : *kind == SEND ? 2 * DESCRIPTOR : ENTRY;
	return (*(__u32 *)value * size + HEADER + PAGE - 1) & ~(PAGE - 1ULL);
}

// place is the group below scope that the caller is in; scope, if it is in scope itself, or elsewhere: somebody was handed the socket.
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
	return scope;
}

static __always_inline int refuse(struct bpf_sockopt *ctx, __u32 kind)
{
	__u32 *value = ctx->optval;
	void *end = ctx->optval_end;

	if (kind == QUEUE && (void *)(value + 1) <= end) { // as the kernel does: it is not told
		*value = USUAL;
		return 1;
	}
	bpf_set_retval(-ENOMEM);
	return 0;
}

// grant adds to what a group has been granted, up to what it may have at a time.
static __always_inline bool grant(struct group *group, __u64 id, __u64 more, __u64 most)
{
	struct sum *found = bpf_map_lookup_elem(&gone, &id);
	__u64 freed = found ? *(volatile __u64 *)&found->packet + *(volatile __u64 *)&found->xdp : 0;
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

// pooled is what an option takes at queues for the memory of AF_XDP sockets. A socket may share another one's memory at another queue, by bind(2), which
// cannot be seen here: each fill ring counts as if it was for the largest memory. The two counters are changed before the other one is read, so that
// of a fill ring and a memory at the same time at least one sees the other.
static __always_inline __u64 pooled(struct group *group, __u32 kind, __u64 frames)
{
	__u64 old;
	int tries;

	if (kind == FILL) {
		__sync_fetch_and_add(&group->fills, 1);
		return *(volatile __u64 *)&group->frames;
	}
	if (kind != UMEM)
		return 0;
	for (tries = 0; tries < TRIES; tries++) {
		old = *(volatile __u64 *)&group->frames;
		if (frames <= old)
			return 0;
		if (__sync_val_compare_and_swap(&group->frames, old, frames) == old)
			return (frames - old) * *(volatile __u64 *)&group->fills;
	}
	return -1;
}

SEC("cgroup/setsockopt") int weir_rings(struct bpf_sockopt *ctx)
{
	struct group *group, none = {};
	__u64 more, id, owner, frames = 0;
	__u32 zero = 0, kind = RX;
	struct bound *bound;
	struct ring *ring;
	int length = ctx->optlen;
	__s64 bytes;

	if (!bounded(ctx) && !long_queue(ctx)) {
		ctx->optlen = 0; // the kernel takes the caller's own, not our copy, which ends after a page
		return 1;
	}
	if (length > PAGE)
		return 0; // the kernel would take what we cannot see
	bytes = asked(ctx, length, &kind, &frames);
	if (bytes == 0)
		return 1;
	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (!bound || !ctx->sk)
		return 0;
	id = place(bound->scope);
	group = bpf_map_lookup_elem(&groups, &id);
	if (!group) {
		bpf_map_update_elem(&groups, &id, &none, BPF_NOEXIST);
		group = bpf_map_lookup_elem(&groups, &id);
		if (!group)
			return refuse(ctx, kind);
	}
	ring = bpf_sk_storage_get(&sockets, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!ring || bytes < 0 || bytes > bound->bytes || frames > bound->bytes)
		goto refused;
	owner = __sync_val_compare_and_swap(&ring->group, 0, id);
	if (owner && owner != id)
		return refuse(ctx, kind); // another's socket
	kind &= 7;
	more = pooled(group, kind, frames);
	if (more > bound->bytes)
		goto refused;
	// A ring that is there has to be given back before another one of its kind is made, which cannot be seen here. So the largest of a kind counts.
	// Of two calls at once both count.
	if (bytes > ring->most[kind])
		more += bytes - ring->most[kind];
	if (!more)
		return 1;
	// First the socket, then the group: user space reads the group, then the sockets, and never takes for gone what is about to be made.
	__sync_fetch_and_add(kind < UMEM ? &ring->packet : &ring->xdp, more);
	if (!grant(group, id, more, bound->bytes)) {
		__sync_fetch_and_add(kind < UMEM ? &ring->packet : &ring->xdp, -more);
		if (kind == FILL)
			__sync_fetch_and_add(&group->fills, -1);
		goto refused;
	}
	__sync_fetch_and_add(kind < UMEM ? &group->packet : &group->xdp, more);
	if (bytes > ring->most[kind])
		__sync_fetch_and_add(&ring->most[kind], bytes - ring->most[kind]);
	return 1;
refused:
	if (kind != QUEUE)
		__sync_fetch_and_add(&group->refused, 1);
	return refuse(ctx, kind);
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
	__type(value, struct sum);
} lives SEC(".maps");

// Sums up what the sockets that are there have, by group.
SEC("iter/bpf_sk_storage_map") int weir_rings_live(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sum one, *sum;
	struct ring *ring = ctx->value;
	__u64 id;

	if (!ring || !ctx->sk)
		return 0;
	id = ring->group;
	one.packet = ring->packet;
	one.xdp = ring->xdp;
	sum = bpf_map_lookup_elem(&lives, &id);
	if (!sum) {
		bpf_map_update_elem(&lives, &id, &one, BPF_ANY);
		return 0;
	}
	__sync_fetch_and_add(&sum->packet, one.packet);
	__sync_fetch_and_add(&sum->xdp, one.xdp);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
