// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// Bounds the memory that the kernel counts against no cgroup, for each group below one: rings of packet and AF_XDP sockets, and queues of netlink, packet, raw and other sockets.
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define SOL_SOCKET 1
#define SO_SNDBUF  7
#define SO_RCVBUF  8
#define SO_SNDBUFFORCE 32
#define SO_RCVBUFFORCE 33
#define AF_UNIX	   1
#define AF_INET	   2
#define AF_INET6   10
#define AF_NETLINK 16
#define NETLINK_USERSOCK 2
#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define SOCK_RAW   3
#define SOCK_SEQPACKET 5
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_SCTP 132
#define IPPROTO_UDPLITE 136
#define IPPROTO_MPTCP 262
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
#define USUAL	   212992    // bytes of a queue as kernels have it; what is asked for they double
#define LONGEST	   (4 << 20) // of a queue of what is received
#define LAST	   32768     // of the message that fills a queue: a part of a dump of netlink
#define TRIES	   64    // of a change at the same time as others'

struct group {
	__u64 granted; // bytes of all rings and queues that were ever made in it
	__u64 refused; // how often more was asked for
	__u64 packet, xdp, queues; // of granted, those of rings of packet and of AF_XDP sockets, and of queues: added afterwards
	__u64 closed; // of queues, those of sockets that were empty when they were closed
	__u64 frames; // bytes that one queue takes for the largest memory of AF_XDP sockets
	__u64 fills; // how many fill rings there were: no more queues use the memory of AF_XDP sockets
};

struct ring {
	__u64 group;
	__u64 packet, xdp; // bytes of its rings, summed up as if none was ever given back
	__u64 queues; // of both, and of what comes on top of them
	__u64 closed; // 1: it was empty when it was closed
	__u64 most[16]; // of each kind
};

// sum is of the bytes of rings of packet and of AF_XDP sockets, and of queues.
struct sum {
	__u64 packet, xdp, queues;
};

struct bound {
	__u64 scope; // the group whose groups are bounded
	__u64 bytes; // of each
	__u64 blind; // 1: nobody goes over sockets
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

// Sockets that are about to be refused.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u64);
} denied SEC(".maps");

enum { RX, TX, UMEM, RECEIVE, SEND, FILL, COMPLETION, QUEUE, SENT };

// counted tells whether the kernel counts a socket's queues against a cgroup: those of AF_UNIX as they are allocated (GFP_KERNEL_ACCOUNT), those of TCP, MPTCP, UDP and SCTP
// as they are taken (struct proto has memory_allocated). It counts those of no other family, and no raw or ping sockets of these.
static __always_inline bool counted(int family, int type, int protocol)
{
	if (family == AF_UNIX)
		return true;
	if ((family != AF_INET && family != AF_INET6) || type == SOCK_RAW)
		return false;
	switch (protocol) {
	case 0: // the usual one of the type
		return type == SOCK_STREAM || type == SOCK_DGRAM || type == SOCK_SEQPACKET;
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
	case IPPROTO_UDPLITE:
	case IPPROTO_MPTCP:
		return true;
	}
	return false;
}

// bounded tells whether an option is one that takes memory by the caller's number.
static __always_inline bool bounded(struct bpf_sockopt *ctx)
{
	if (ctx->level == SOL_PACKET)
		return ctx->optname == PACKET_RX_RING || ctx->optname == PACKET_TX_RING || ctx->optname == PACKET_FANOUT;
	return ctx->level == SOL_XDP && ctx->optname >= XDP_RX_RING && ctx->optname <= XDP_UMEM_COMPLETION_RING;
}

// of_queue tells whether an option is the length of a queue that is counted nowhere.
static __always_inline bool of_queue(struct bpf_sockopt *ctx)
{
	int name = ctx->optname;
	struct bpf_sock *sk = ctx->sk;

	return ctx->level == SOL_SOCKET && (name == SO_RCVBUF || name == SO_RCVBUFFORCE || name == SO_SNDBUF || name == SO_SNDBUFFORCE) && sk &&
	       !counted(sk->family, sk->type, sk->protocol);
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

// below is the group below scope that the caller is in; scope, if it is in scope itself; 0: it is elsewhere.
static __always_inline __u64 below(__u64 scope)
{
	__u64 id, above = 0;
	int level;

#pragma unroll
	for (level = 0; level <= DEEPEST; level++) {
		id = bpf_get_current_ancestor_cgroup_id(level);
		if (above)
			return id ? id : above;
		if (!id)
			return 0;
		if (id == scope)
			above = id;
	}
	return above;
}

// place is below, and scope for whoever is elsewhere: somebody was handed the socket.
static __always_inline __u64 place(__u64 scope)
{
	__u64 id = below(scope);

	return id ? id : scope;
}

static __always_inline struct group *group_of(__u64 id)
{
	struct group *group = bpf_map_lookup_elem(&groups, &id), none = {};

	if (group)
		return group;
	bpf_map_update_elem(&groups, &id, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&groups, &id);
}

static __always_inline int refuse(void)
{
	bpf_set_retval(-ENOMEM);
	return 0;
}

// try_grant is grant, but what is given back meanwhile may not count.
static __noinline bool try_grant(struct group *group, __u64 id, __u64 more, __u64 most)
{
	struct sum *found = bpf_map_lookup_elem(&gone, &id);
	__u64 freed;
	int tries;

	if (!group)
		return false;
	freed = *(volatile __u64 *)&group->closed;
	if (found)
		freed += *(volatile __u64 *)&found->packet + *(volatile __u64 *)&found->xdp + *(volatile __u64 *)&found->queues;
	for (tries = 0; tries < TRIES; tries++) {
		__u64 old = *(volatile __u64 *)&group->granted;

		if (old + more - freed > most)
			return false;
		if (__sync_val_compare_and_swap(&group->granted, old, old + more) == old)
			return true;
	}
	return false;
}

// grant adds to what a group has been granted, up to what it may have at a time. What was given back is read first, and more may have been since, and granted to
// others: so nobody is refused at once.
static __always_inline bool grant(struct group *group, __u64 id, __u64 more, __u64 most)
{
	return try_grant(group, id, more, most) || try_grant(group, id, more, most) || try_grant(group, id, more, most);
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

// queue lets a queue become longer, if half of what the group may have is left for the rest. Else it stays as long as it is counted; the kernel does not tell either when it
// cuts what was asked for.
static __always_inline int queue(struct bpf_sockopt *ctx)
{
	bool sent = ctx->optname == SO_SNDBUF || ctx->optname == SO_SNDBUFFORCE;
	__u32 zero = 0, *value = ctx->optval;
	int kind = sent ? SENT : QUEUE;
	__u64 id, owner, had, more;
	struct bound *bound;
	struct group *group;
	struct ring *ring;

	if ((void *)(value + 1) > (void *)ctx->optval_end)
		return 1; // the kernel refuses it
	ctx->optlen = sizeof(*value); // it takes what was looked at, not what the caller makes of it meanwhile
	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (!bound || !ctx->sk)
		return 0;
	ring = bpf_sk_storage_get(&sockets, ctx->sk, 0, 0);
	had = ring && ring->most[kind] ? ring->most[kind] : 2 * USUAL;
	if (!sent && *value > LONGEST)
		*value = LONGEST;
	more = 2ULL * *value;
	if (more <= had)
		return 1;
	more -= had;
	// One message as long as a queue of what is sent may wait in each socket that it is sent to. Everybody may send such ones by this protocol.
	if (sent && ctx->sk->family == AF_NETLINK && ctx->sk->protocol == NETLINK_USERSOCK)
		goto usual;
	id = place(bound->scope);
	group = group_of(id);
	if (!ring)
		ring = bpf_sk_storage_get(&sockets, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!group || !ring)
		goto usual;
	owner = __sync_val_compare_and_swap(&ring->group, 0, id);
	if (owner && owner != id)
		goto usual;
	__sync_fetch_and_add(&ring->queues, more);
	if (!grant(group, id, more, bound->bytes / 2)) {
		__sync_fetch_and_add(&ring->queues, -more);
		goto usual;
	}
	__sync_fetch_and_add(&group->queues, more);
	__sync_fetch_and_add(&ring->most[kind], ring->most[kind] ? more : had + more);
	return 1;
usual:
	*value = had / 2;
	return 1;
}

SEC("cgroup/setsockopt") int weir_rings(struct bpf_sockopt *ctx)
{
	struct group *group;
	__u64 more, id, owner, frames = 0;
	__u32 zero = 0, kind = RX;
	struct bound *bound;
	struct ring *ring;
	int length = ctx->optlen;
	__s64 bytes;

	if (of_queue(ctx))
		return queue(ctx);
	if (!bounded(ctx)) {
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
	group = group_of(id);
	if (!group)
		return refuse();
	ring = bpf_sk_storage_get(&sockets, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!ring || bytes < 0 || bytes > bound->bytes || frames > bound->bytes)
		goto refused;
	owner = __sync_val_compare_and_swap(&ring->group, 0, id);
	if (owner && owner != id)
		return refuse(); // another's socket
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
	__sync_fetch_and_add(&group->refused, 1);
	return refuse();
}

// Of the kernel's types, what is used here.
struct bpf_iter_meta;
struct bpf_map;
struct file;
struct sock_common {
	unsigned short skc_family;
} __attribute__((preserve_access_index));
struct sock {
	struct sock_common __sk_common;
	struct {
		struct {
			int counter;
		} rmem_alloc;
	} sk_backlog;
	struct {
		struct {
			int counter;
		} refs;
	} sk_wmem_alloc;
	int sk_rcvbuf, sk_sndbuf;
} __attribute__((preserve_access_index));
struct socket {
	struct sock *sk;
} __attribute__((preserve_access_index));
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
	one.queues = ring->queues;
	sum = bpf_map_lookup_elem(&lives, &id);
	if (!sum) {
		bpf_map_update_elem(&lives, &id, &one, BPF_ANY);
		return 0;
	}
	__sync_fetch_and_add(&sum->packet, one.packet);
	__sync_fetch_and_add(&sum->xdp, one.xdp);
	__sync_fetch_and_add(&sum->queues, one.queues);
	return 0;
}

// count counts both queues of a socket that somebody makes in a group below the bound's: a socket of netlink keeps the request of a dump while the answer waits to be read.
// Longer ones than usual, where the host has them for everybody, count no more: ordinary programs have some sockets on any host. False: it is more than the group may have.
// A socket counts once: the programs of two versions may be there at a time.
static __always_inline bool count(struct bound *bound, __u64 id, struct group *group, struct ring *ring, __u64 receive, __u64 send)
{
	__u64 bytes = (receive < USUAL ? receive : USUAL) + (send < USUAL ? send : USUAL) + LAST;

	if (!group || !ring)
		return false;
	if (__sync_val_compare_and_swap(&ring->group, 0, id))
		return ring->queues;
	ring->most[QUEUE] = receive;
	ring->most[SENT] = send;
	ring->queues = bytes;
	if (grant(group, id, bytes, bound->bytes)) {
		__sync_fetch_and_add(&group->queues, bytes);
		return true;
	}
	ring->queues = 0;
	__sync_fetch_and_add(&group->refused, 1);
	return false;
}

// give_back takes off what a socket has that is about to be closed, if its queues are empty. The memory of others is freed later, and the iterator tells when; where there is
// none, it is taken off before that.
static __always_inline void give_back(struct ring *ring, int received, int sent)
{
	struct group *group;
	struct bound *bound;
	__u32 zero = 0;
	__u64 id;

	if (!ring || !ring->queues)
		return;
	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (!bound || ((received || sent > 1) && !bound->blind) || __sync_val_compare_and_swap(&ring->closed, 0, 1))
		return;
	// First the group, then the socket: user space sums up sockets, then reads the group, and never takes for gone what is given back here.
	id = ring->group;
	group = bpf_map_lookup_elem(&groups, &id);
	if (group)
		__sync_fetch_and_add(&group->closed, ring->queues);
	ring->queues = 0;
}

// Sockets of IP have hooks of their own for the groups in which they are made.
SEC("cgroup/sock_create") int weir_ip_made(struct bpf_sock *ctx)
{
	struct sock *sk = (struct sock *)ctx; // as the kernel has it
	int receive = 0, send = 0;
	struct bound *bound;
	__u32 zero = 0;
	__u64 id;

	if (counted(ctx->family, ctx->type, ctx->protocol))
		return 1;
	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (!bound)
		return 1;
	id = below(bound->scope);
	if (!id)
		return 1;
	bpf_core_read(&receive, sizeof(receive), &sk->sk_rcvbuf);
	bpf_core_read(&send, sizeof(send), &sk->sk_sndbuf);
	if (count(bound, id, group_of(id), bpf_sk_storage_get(&sockets, ctx, 0, BPF_SK_STORAGE_GET_F_CREATE), receive, send))
		return 1;
	return refuse();
}

SEC("cgroup/sock_release") int weir_ip_closed(struct bpf_sock *ctx)
{
	struct sock *sk = (struct sock *)ctx;
	int received = 0, sent = 0;

	if (counted(ctx->family, ctx->type, ctx->protocol))
		return 1;
	bpf_core_read(&received, sizeof(received), &sk->sk_backlog.rmem_alloc.counter);
	bpf_core_read(&sent, sizeof(sent), &sk->sk_wmem_alloc.refs.counter);
	give_back(bpf_sk_storage_get(&sockets, ctx, 0, 0), received, sent);
	return 1;
}

// The programs below run wherever on the host a socket is made or closed. Those that do not concern them leave first.

// concerns takes the arguments of security_socket_post_create(sock, family, type, protocol, kern).
static __always_inline bool concerns(__u64 *ctx)
{
	int family = ctx[1];

	return family != AF_UNIX && family != AF_INET && family != AF_INET6 && !(int)ctx[4];
}

// Counts a socket when it is made. Here is what a socket has, but it cannot be refused: see weir_denied.
SEC("fentry/security_socket_post_create") int weir_made(__u64 *ctx)
{
	struct socket *sock = (struct socket *)ctx[0];
	__u64 id, key = ctx[0], one = 1;
	struct bound *bound;
	struct sock *sk;
	__u32 zero = 0;

	if (!concerns(ctx))
		return 0;
	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (!bound)
		return 0;
	id = below(bound->scope);
	if (!id)
		return 0;
	sk = sock->sk;
	if (!sk)
		return 0;
	if (count(bound, id, group_of(id), bpf_sk_storage_get(&sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE), sk->sk_rcvbuf, sk->sk_sndbuf))
		bpf_map_delete_elem(&denied, &key);
	else
		bpf_map_update_elem(&denied, &key, &one, BPF_ANY);
	return 0;
}

// Refuses a socket that weir_made has said no to.
SEC("fmod_ret/security_socket_post_create") int weir_denied(__u64 *ctx)
{
	__u64 key = ctx[0];

	if ((int)ctx[5]) // of another program
		return (int)ctx[5];
	if (!concerns(ctx) || bpf_map_delete_elem(&denied, &key))
		return 0;
	return -ENOMEM;
}

SEC("fentry/sock_close") int weir_closed(__u64 *ctx)
{
	struct socket *sock = bpf_sock_from_file((struct file *)ctx[1]);
	unsigned short family;
	struct sock *sk;

	if (!sock)
		return 0;
	sk = sock->sk;
	if (!sk)
		return 0;
	family = sk->__sk_common.skc_family;
	if (family == AF_UNIX || family == AF_INET || family == AF_INET6)
		return 0;
	give_back(bpf_sk_storage_get(&sockets, sk, 0, 0), sk->sk_backlog.rmem_alloc.counter, sk->sk_wmem_alloc.refs.counter);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
