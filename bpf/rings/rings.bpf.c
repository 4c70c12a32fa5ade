// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// Bounds the memory that the kernel counts against no cgroup, for each group below one: rings of packet and AF_XDP sockets, queues of netlink, packet, raw and other sockets, what
// UDP sockets hold back, what sockets are told of what they have sent, and what some options have the kernel keep.
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define SOL_IP	   0
#define SOL_SOCKET 1
#define SOL_TCP	   6
#define SOL_IPV6   41
#define SO_SNDBUF  7
#define SO_RCVBUF  8
#define SO_SNDBUFFORCE 32
#define SO_RCVBUFFORCE 33
#define SO_ATTACH_FILTER 26
#define SO_TIMESTAMPING 37
#define SO_WIFI_STATUS 41
#define SO_ATTACH_REUSEPORT_CBPF 51
#define SO_ZEROCOPY 60
#define SO_TXTIME  61
#define SO_TIMESTAMPING_NEW 65
#define SENDING	   0x40303 // of the flags of SO_TIMESTAMPING, those for what is sent
#define IP_RECVERR 11
#define IP_MSFILTER 41
#define IPV6_RECVERR 25
#define MCAST_MSFILTER 48
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
#define CORKED	   (120 << 10) // that a UDP socket can hold back: a datagram of 64 KiB in fragments for paths of 1,280 bytes
#define MEMBER	   512	 // at most, of what a membership or an option as large takes
#define SOURCE	   8	 // of what the kernel keeps for each byte of a list of sources
#define STATION	   256	 // of what an address takes that a packet socket asks for
#define STATEMENT  64	 // of what a statement of a filter takes, compiled and as it was
#define STATEMENTS 64	 // of a filter that chooses among sockets of a port
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

// Sockets of TCP that are told of errors, and those that they accept. It is no part of what is counted: that goes from no socket to another.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u64);
} heirs SEC(".maps");

// As the host has them: net.core.rmem_max, net.core.optmem_max.
const volatile __u32 rmem_max = USUAL, optmem_max = 128 << 10;

// Sockets that are about to be refused.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u64);
} denied SEC(".maps");

// LENGTH is no kind, but the longest queue of what is received that was asked for, of a socket that is counted.
enum { RX, TX, UMEM, RECEIVE, SEND, FILL, COMPLETION, QUEUE, SENT, ERRORS, LENGTH, GROUPS, FILTER, ZEROCOPY };

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

static __always_inline bool of_ip(int family)
{
	return family == AF_INET || family == AF_INET6;
}

// corks tells whether a socket can hold back what is to be sent (MSG_MORE). The kernel counts that against no cgroup.
static __always_inline bool corks(int family, int type, int protocol)
{
	return of_ip(family) && type == SOCK_DGRAM && (!protocol || protocol == IPPROTO_UDP || protocol == IPPROTO_UDPLITE);
}

// bounded tells whether an option is one that takes memory by the caller's number.
static __always_inline bool bounded(struct bpf_sockopt *ctx)
{
	if (ctx->level == SOL_PACKET)
		return ctx->optname == PACKET_RX_RING || ctx->optname == PACKET_TX_RING || ctx->optname == PACKET_FANOUT;
	return ctx->level == SOL_XDP && ctx->optname >= XDP_RX_RING && ctx->optname <= XDP_UMEM_COMPLETION_RING;
}

// of_queue tells whether an option is the length of a queue that is counted nowhere. What a socket is told of what it has sent is as long as what it receives, and counted nowhere.
static __always_inline bool of_queue(struct bpf_sock *sk, int level, int name)
{
	bool received = name == SO_RCVBUF || name == SO_RCVBUFFORCE, sent = name == SO_SNDBUF || name == SO_SNDBUFFORCE;

	if (level != SOL_SOCKET || (!received && !sent))
		return false;
	return !counted(sk->family, sk->type, sk->protocol) || (received && of_ip(sk->family));
}

// tells tells whether an option may have the kernel tell a socket of what it has sent.
static __always_inline bool tells(struct bpf_sock *sk, int level, int name)
{
	if (!of_ip(sk->family) || !counted(sk->family, sk->type, sk->protocol))
		return false;
	if (level == SOL_SOCKET)
		return name == SO_TIMESTAMPING || name == SO_TIMESTAMPING_NEW || name == SO_TXTIME || name == SO_WIFI_STATUS;
	return (level == SOL_IP && name == IP_RECVERR) || (level == SOL_IPV6 && name == IPV6_RECVERR);
}

// kept is how many bytes the kernel keeps for an option besides what it counts, and of which kind they are; most is how many it keeps at most in all of that kind. Of most options it
// keeps what others of the kind have had it keep.
static __always_inline __u64 kept(int level, int name, __u64 length, __u64 statements, __u32 *kind, __u64 *most)
{
	*kind = GROUPS;
	*most = 10ULL * optmem_max; // the kernel charges 56 of the bytes of a membership
	if (level == SOL_SOCKET) {
		*most = 0;
		if (name == SO_ATTACH_FILTER) {
			*kind = FILTER;
			*most = (statements + 1) * STATEMENT;
		} else if (name == SO_ZEROCOPY) {
			*kind = ZEROCOPY;
			*most = optmem_max;
		}
		return *most;
	}
	if (level == SOL_PACKET && name == PACKET_ADD_MEMBERSHIP) {
		*most = -1;
		return STATION;
	}
	if (level == SOL_TCP)
		return name == 14 || name == 32 || name == 38 ? MEMBER : 0; // TCP_MD5SIG, TCP_MD5SIG_EXT, TCP_AO_ADD_KEY
	if (level != SOL_IP && level != SOL_IPV6)
		return 0;
	if ((level == SOL_IP && name == IP_MSFILTER) || name == MCAST_MSFILTER)
		return MEMBER + SOURCE * length;
	if (name == 42 || name == 43 || name == 44 || name == 46) // MCAST_JOIN_GROUP, MCAST_BLOCK_SOURCE, MCAST_UNBLOCK_SOURCE, MCAST_JOIN_SOURCE_GROUP
		return MEMBER;
	if (level == SOL_IP) // IP_ADD_MEMBERSHIP, IP_UNBLOCK_SOURCE, IP_BLOCK_SOURCE, IP_ADD_SOURCE_MEMBERSHIP
		return name == 35 || (name >= 37 && name <= 39) ? MEMBER : 0;
	if (name == 20 || name == 27 || name == 32) // IPV6_ADD_MEMBERSHIP, IPV6_JOIN_ANYCAST, IPV6_FLOWLABEL_MGR
		return MEMBER;
	// IPV6_2292PKTOPTIONS, IPV6_HOPOPTS, IPV6_RTHDRDSTOPTS, IPV6_RTHDR, IPV6_DSTOPTS
	return name == 6 || name == 54 || name == 55 || name == 57 || name == 59 ? MEMBER + length : 0;
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

// add has a socket count more for the group that has made it; id is whose it is if nobody has. False: it is more than that one may have.
static __always_inline bool add(struct ring *ring, __u64 id, int kind, __u64 more, __u64 most)
{
	__u64 owner = __sync_val_compare_and_swap(&ring->group, 0, id);
	struct group *group;

	if (owner)
		id = owner;
	group = group_of(id);
	if (!group)
		return false;
	// First the socket, then the group: see weir_rings.
	__sync_fetch_and_add(&ring->queues, more);
	if (!grant(group, id, more, most)) {
		__sync_fetch_and_add(&ring->queues, -more);
		return false;
	}
	__sync_fetch_and_add(&group->queues, more);
	__sync_fetch_and_add(&ring->most[kind & 15], more);
	return true;
}

// refused notes that a socket's group did not get more.
static __always_inline void refused(struct ring *ring, __u64 id)
{
	struct group *group = group_of(ring && ring->group ? ring->group : id);

	if (group)
		__sync_fetch_and_add(&group->refused, 1);
}

// queue lets a queue become longer, if half of what the group may have is left for the rest. Else it stays as long as it is counted; the kernel does not tell either when it
// cuts what was asked for.
static __noinline int queue(struct bpf_sockopt *ctx)
{
	bool sent = ctx->optname == SO_SNDBUF || ctx->optname == SO_SNDBUFFORCE;
	__u32 zero = 0, *value = ctx->optval;
	int kind = sent ? SENT : QUEUE;
	struct bound *bound;
	struct ring *ring;
	__u64 had, more;

	if ((void *)(value + 1) > (void *)ctx->optval_end)
		return 1; // the kernel refuses it
	ctx->optlen = sizeof(*value); // it takes what was looked at, not what the caller makes of it meanwhile
	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (!bound || !ctx->sk)
		return 0;
	ring = bpf_sk_storage_get(&sockets, ctx->sk, 0, 0);
	if (counted(ctx->sk->family, ctx->sk->type, ctx->sk->protocol)) {
		// What it may be told of is as long. The kernel has the socket locked here, but not from here until the queue is longer: so tell looks at what was asked for.
		if (!ring)
			ring = bpf_sk_storage_get(&sockets, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!ring)
			return refuse();
		more = 2ULL * (*value < rmem_max || ctx->optname == SO_RCVBUFFORCE ? *value : rmem_max);
		if (!ring->most[ERRORS]) {
			if (ring->most[LENGTH] < more)
				ring->most[LENGTH] = more;
			return 1;
		}
		kind = ERRORS;
	}
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
	if (!ring)
		ring = bpf_sk_storage_get(&sockets, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!ring)
		goto usual;
	if (ring->group && ring->group != place(bound->scope))
		goto usual; // another's socket
	if (!add(ring, place(bound->scope), kind, more, bound->bytes / 2))
		goto usual;
	if (ring->most[kind] == more) // the first time
		__sync_fetch_and_add(&ring->most[kind], had);
	return 1;
usual:
	*value = had / 2;
	return 1;
}

// tell has what a socket may be told of what it has sent count, in as long a queue as that of what it receives.
static __noinline int tell(struct bpf_sockopt *ctx)
{
	__u32 zero = 0, *flags = ctx->optval;
	int length = 0, level = ctx->level;
	__u64 id, most, one = 1;
	struct bound *bound;
	struct ring *ring;

	// The kernel may find other flags than there are here. But weir_ip_sent sees what is sent.
	if (level == SOL_SOCKET && (ctx->optname == SO_TIMESTAMPING || ctx->optname == SO_TIMESTAMPING_NEW) && ((void *)(flags + 1) > (void *)ctx->optval_end || !(*flags & SENDING)))
		goto granted;
	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (!bound || !ctx->sk)
		return 0;
	id = place(bound->scope);
	ring = bpf_sk_storage_get(&sockets, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!ring)
		goto refused;
	if (ctx->sk->protocol == IPPROTO_TCP && level != SOL_SOCKET && !bpf_sk_storage_get(&heirs, ctx->sk, &one, BPF_SK_STORAGE_GET_F_CREATE))
		goto refused;
	if (bpf_getsockopt(ctx->sk, SOL_SOCKET, SO_RCVBUF, &length, sizeof(length)) || length < 0)
		goto refused;
	most = length;
	if (most < ring->most[LENGTH])
		most = ring->most[LENGTH];
	if (most > ring->most[ERRORS] && !add(ring, id, ERRORS, most - ring->most[ERRORS], bound->bytes))
		goto refused;
granted:
	ctx->optlen = 0; // the kernel takes the caller's own
	return 1;
refused:
	refused(ring, id);
	return refuse();
}

// keep has what the kernel keeps for an option count. A socket keeps it until it is closed, as far as can be seen here.
static __noinline int keep(struct bpf_sockopt *ctx, __u32 kind, __u64 more, __u64 most)
{
	struct bound *bound;
	struct ring *ring;
	__u32 zero = 0;
	__u64 id, had;

	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (!bound || !ctx->sk)
		return 0;
	id = place(bound->scope);
	ring = bpf_sk_storage_get(&sockets, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!ring)
		goto refused;
	had = ring->most[kind & 15];
	if (had < most && !add(ring, id, kind, more < most - had ? more : most - had, bound->bytes))
		goto refused;
	if (kind != FILTER) // of which the kernel takes the length that was looked at
		ctx->optlen = 0;
	return 1;
refused:
	refused(ring, id);
	return refuse();
}

// choose bounds a filter that chooses among sockets of a port, alone: it stays when the socket that has brought it is closed. The kernel takes the length that was looked at.
static __noinline int choose(__u64 statements)
{
	struct bound *bound;
	__u32 zero = 0;

	if (statements <= STATEMENTS)
		return 1;
	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (bound)
		refused(0, place(bound->scope));
	return refuse();
}

// statements is how many there are in the filter that an option brings; -1: the kernel refuses it.
static __noinline __s64 statements(struct bpf_sockopt *ctx)
{
	__u16 *length = ctx->optval; // the beginning of struct sock_fprog

	return (void *)(length + 1) > (void *)ctx->optval_end ? -1 : *length;
}

// common is what becomes of an option that has the kernel take memory for sockets of most kinds; -1: it is another one.
static __noinline int common(struct bpf_sockopt *ctx)
{
	int level = ctx->level, name = ctx->optname, length = ctx->optlen;
	struct bpf_sock *sk = ctx->sk;
	__u64 more, most = 0;
	__s64 brought = 0;
	__u32 kind = 0;

	if (!sk)
		return -1;
	if (of_queue(sk, level, name))
		return queue(ctx);
	if (tells(sk, level, name))
		return tell(ctx);
	if (level == SOL_SOCKET && (name == SO_ATTACH_FILTER || name == SO_ATTACH_REUSEPORT_CBPF)) {
		brought = statements(ctx);
		if (brought < 0)
			return -1;
		if (name == SO_ATTACH_REUSEPORT_CBPF)
			return choose(brought);
	}
	more = kept(level, name, length > 0 ? length : 0, brought, &kind, &most);
	return more ? keep(ctx, kind, more, most) : -1;
}

SEC("cgroup/setsockopt") int weir_rings(struct bpf_sockopt *ctx)
{
	struct group *group;
	__u64 more, id, owner, frames = 0;
	__u32 zero = 0, kind = RX;
	struct bound *bound;
	struct ring *ring;
	int length = ctx->optlen, done;
	__s64 bytes;

	done = common(ctx);
	if (done >= 0)
		return done;
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
struct sk_buff {
	struct sock *sk;
	unsigned char *head;
	unsigned int end;
} __attribute__((preserve_access_index));
struct skb_shared_info {
	unsigned char tx_flags;
	unsigned int tskey;
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

// count counts what a socket can take that somebody makes in a group below the bound's. False: it is more than the group may have.
// A socket counts once: the programs of two versions may be there at a time.
static __always_inline bool count(struct bound *bound, __u64 id, struct group *group, struct ring *ring, __u64 bytes)
{
	if (!group || !ring)
		return false;
	if (__sync_val_compare_and_swap(&ring->group, 0, id))
		return ring->queues;
	ring->queues = bytes;
	if (grant(group, id, bytes, bound->bytes)) {
		__sync_fetch_and_add(&group->queues, bytes);
		return true;
	}
	ring->queues = 0;
	__sync_fetch_and_add(&group->refused, 1);
	return false;
}

// both is what both queues of a socket can take: one of netlink keeps the request of a dump while the answer waits to be read.
// Longer ones than usual, where the host has them for everybody, count no more: ordinary programs have some sockets on any host.
static __always_inline __u64 both(struct ring *ring, __u64 receive, __u64 send)
{
	if (ring && !ring->group) {
		ring->most[QUEUE] = receive;
		ring->most[SENT] = send;
	}
	return (receive < USUAL ? receive : USUAL) + (send < USUAL ? send : USUAL) + LAST;
}

// give_back takes off what a socket has that is about to be closed, if its queues are empty. The memory of others is freed later, and the iterator tells when; where there is
// none, it is taken off before that.
static __always_inline void give_back(struct ring *ring, int received, int sent)
{
	struct group *group;
	struct bound *bound;
	__u32 zero = 0;
	__u64 id, bytes;

	if (!ring || !ring->queues)
		return;
	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (!bound || ((received || sent > 1) && !bound->blind) || __sync_val_compare_and_swap(&ring->closed, 0, 1))
		return;
	// First the group, then the socket: user space sums up sockets, then reads the group, and never takes for gone what is given back here.
	// A packet that is sent later may add to the socket meanwhile.
	bytes = *(volatile __u64 *)&ring->queues;
	id = ring->group;
	group = bpf_map_lookup_elem(&groups, &id);
	if (group)
		__sync_fetch_and_add(&group->closed, bytes);
	__sync_fetch_and_add(&ring->queues, -bytes);
}

// Sockets of IP have hooks of their own for the groups in which they are made.
SEC("cgroup/sock_create") int weir_ip_made(struct bpf_sock *ctx)
{
	bool holds = corks(ctx->family, ctx->type, ctx->protocol);
	struct sock *sk = (struct sock *)ctx; // as the kernel has it
	__u64 id, bytes = CORKED;
	int receive = 0, send = 0;
	struct bound *bound;
	struct ring *ring;
	__u32 zero = 0;

	if (!holds && counted(ctx->family, ctx->type, ctx->protocol))
		return 1;
	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (!bound)
		return 1;
	id = below(bound->scope);
	if (!id)
		return 1;
	ring = bpf_sk_storage_get(&sockets, ctx, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!holds) {
		bpf_core_read(&receive, sizeof(receive), &sk->sk_rcvbuf);
		bpf_core_read(&send, sizeof(send), &sk->sk_sndbuf);
		bytes = both(ring, receive, send);
	}
	if (count(bound, id, group_of(id), ring, bytes))
		return 1;
	return refuse();
}

SEC("cgroup/sock_release") int weir_ip_closed(struct bpf_sock *ctx)
{
	struct ring *ring = bpf_sk_storage_get(&sockets, ctx, 0, 0);
	struct sock *sk = (struct sock *)ctx;
	int received = 0, sent = 0;

	if (!ring)
		return 1;
	// What waits to be received is counted elsewhere, unless it is what the socket is told.
	if (ring->most[ERRORS] || !counted(ctx->family, ctx->type, ctx->protocol))
		bpf_core_read(&received, sizeof(received), &sk->sk_backlog.rmem_alloc.counter);
	bpf_core_read(&sent, sizeof(sent), &sk->sk_wmem_alloc.refs.counter);
	give_back(ring, received, sent);
	return 1;
}

// below_of is below for the group in which a packet's socket was made.
static __always_inline __u64 below_of(struct __sk_buff *ctx, __u64 scope)
{
	__u64 id, above = 0;
	int level;

#pragma unroll
	for (level = 0; level <= DEEPEST; level++) {
		id = bpf_skb_ancestor_cgroup_id(ctx, level);
		if (above)
			return id ? id : above;
		if (!id)
			return scope;
		if (id == scope)
			above = id;
	}
	return above ? above : scope;
}

// Sees what sockets send. One that is to be told of a packet (timestamps, which also a message may ask for, and sockets that come from accept) has its queue of that count first, or
// the packet is dropped (EPERM). Of a connection that a socket makes it is told of errors, if it was to be, or the one that has accepted it.
SEC("cgroup_skb/egress") int weir_ip_sent(struct __sk_buff *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx; // as the kernel has it
	struct skb_shared_info *info;
	unsigned char *head = 0, flags = 0;
	unsigned int end = 0, number = 0;
	struct sock *sock = 0;
	struct bound *bound;
	struct bpf_sock *sk;
	struct ring *ring;
	__u32 zero = 0;
	int length = 0;
	__u64 id;

	bpf_core_read(&head, sizeof(head), &skb->head);
	bpf_core_read(&end, sizeof(end), &skb->end);
	info = (struct skb_shared_info *)(head + end);
	bpf_core_read(&flags, sizeof(flags), &info->tx_flags);
	bpf_core_read(&number, sizeof(number), &info->tskey); // of a segment of TCP whose arrival is to be told, alone
	sk = ctx->sk;
	if (!sk || (!flags && !number && sk->state != BPF_TCP_SYN_SENT))
		return 1;
	sk = bpf_sk_fullsock(sk);
	if (!sk || !counted(sk->family, sk->type, sk->protocol))
		return 1; // its queues count
	if (!flags && !number && !bpf_sk_storage_get(&heirs, sk, 0, 0))
		return 1;
	bpf_core_read(&sock, sizeof(sock), &skb->sk);
	bpf_core_read(&length, sizeof(length), &sock->sk_rcvbuf);
	ring = bpf_sk_storage_get(&sockets, sk, 0, 0);
	if (length < 0 || (ring && length <= ring->most[ERRORS]))
		return 1;
	bound = bpf_map_lookup_elem(&bounds, &zero);
	if (!bound)
		return 1;
	if (!ring)
		ring = bpf_sk_storage_get(&sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	id = below_of(ctx, bound->scope);
	if (ring && add(ring, id, ERRORS, length - ring->most[ERRORS], bound->bytes))
		return 1;
	refused(ring, id);
	return 0;
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
	struct ring *ring;
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
	ring = bpf_sk_storage_get(&sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (count(bound, id, group_of(id), ring, both(ring, sk->sk_rcvbuf, sk->sk_sndbuf)))
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
