// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// The generator (XDP live frames: it runs once per frame of a page pool and decides whether that frame leaves now) and the sink. What the
// fields of a frame mean stands in frame.go.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define SLOTS 4096
#define FRAME 1536
#define SEEN_WORDS (1 << 20) /* 64 frames each */
#define BUCKETS 2560
#define MANY 4096 /* frames, so that the time of the last one is exact to 0.2 % */

struct plan {
	__u64 start, stop;    /* CLOCK_MONOTONIC, ns */
	__u64 rate;           /* frames a second; 0: as fast as it goes */
	__u64 limit;          /* frames at most */
	__u32 slots, burst;   /* burst: frames that may leave at once when the program was late */
	__u32 slack, faster;  /* frames that it may send later than that; of so many frames it then sends one more than are due */
	__u32 room;           /* bytes that BPF_PROG_RUN was given: the longest frame */
	__u32 redirect;       /* interface to send to; 0: pass up as received */
	__u16 run, port;      /* of the frames to be counted; port in network order */
	__u32 strict;         /* the sink compares every byte */
	__u32 apart;          /* redirected frames leave from CPU cpu, whose kernel thread sends them on */
	__u32 cpu;
	__u32 unused;
};

struct slot {
	__u32 length, payload, flow, unused; /* payload: offset of the fields */
	__u8 data[FRAME];
};

struct fields {
	__be16 run;
	__be32 seq;
	__be16 stamp[3];
	__be16 balance; /* makes the sum of all fields but run 0xffff, so that the frame's checksum stays that of the slot */
} __attribute__((packed));

struct departed {
	__u64 sent, skipped, spins, now;
	__u64 lag, late; /* frames that the schedule is put off by; all that were, or skipped */
};
struct arrived { __u64 frames, bytes, unique, duplicated, reordered, corrupted, foreign, early, sum, least, most, first, last; };

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct plan); } config SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, SLOTS); __type(key, __u32); __type(value, struct slot); } slots SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct departed); } generated SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct arrived); } counted SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, SLOTS); __type(key, __u32); __type(value, __u64); } highest SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, BUCKETS); __type(key, __u32); __type(value, __u64); } latency SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __uint(max_entries, SEEN_WORDS); __type(key, __u32); __type(value, __u64); } seen SEC(".maps");
/* as seen, of what left in a paced run: what is not there was skipped */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __uint(max_entries, SEEN_WORDS); __type(key, __u32); __type(value, __u64); } departures SEC(".maps");

/* As many entries as the machine may have CPUs: the loader says. */
struct { __uint(type, BPF_MAP_TYPE_CPUMAP); __uint(max_entries, 1); __type(key, __u32); __type(value, struct bpf_cpumap_val); } elsewhere SEC(".maps");

/* keeps the compiler from reading a variable anew behind its check */
#define bounded(x) asm volatile("" : "+r"(x))

static __always_inline __u32 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline __u32 sum_of(const struct fields *f)
{
	__u32 seq = f->seq;

	return fold((seq & 0xffff) + (seq >> 16) + f->stamp[0] + f->stamp[1] + f->stamp[2]);
}

SEC("xdp") int generate(struct xdp_md *ctx)
{
	__u32 zero = 0, at, length, payload, word;
	struct plan *c = bpf_map_lookup_elem(&config, &zero);
	struct departed *g = bpf_map_lookup_elem(&generated, &zero);
	struct slot *s;
	struct fields f;
	__u64 now, done, due, behind, *p;

	if (!c || !g)
		return XDP_ABORTED;
	/* Reading the clock is a tenth of the work. At full speed, where latencies say nothing, every eighth frame does it. */
	if (c->rate || !(g->sent & 7))
		g->now = bpf_ktime_get_ns();
	now = g->now;
	done = g->sent + g->skipped;
	if (now < c->start || now >= c->stop || done >= c->limit || !c->slots) {
		g->spins++;
		return XDP_DROP;
	}
	if (c->rate) {
		due = (now - c->start) * c->rate / 1000000000 + 1;
		if (due > c->limit)
			due = c->limit;
		if (done + g->lag >= due) {
			g->spins++;
			return XDP_DROP;
		}
		behind = due - done - g->lag;
		if (behind > c->burst) { /* too late for these: they leave later, or not at all */
			g->late += behind - c->burst;
			g->lag += behind - c->burst;
			if (g->lag > c->slack) {
				g->skipped += g->lag - c->slack;
				done += g->lag - c->slack;
				g->lag = c->slack;
			}
		}
		if (g->lag && c->faster && !(g->sent % c->faster))
			g->lag--;
	}
	at = done % c->slots;
	s = bpf_map_lookup_elem(&slots, &at);
	if (!s)
		return XDP_ABORTED;
	length = s->length;
	payload = s->payload;
	bounded(length);
	if (length < 60 || length > FRAME)
		return XDP_ABORTED;
	if (length != c->room && bpf_xdp_adjust_tail(ctx, (int)length - (int)c->room))
		return XDP_ABORTED;
	/* Pages are recycled as they come back: whatever a function wrote has to go. */
	if (bpf_xdp_store_bytes(ctx, 0, s->data, length))
		return XDP_ABORTED;
	f.run = bpf_htons(c->run);
	f.seq = bpf_htonl((__u32)done);
	f.stamp[0] = bpf_htons(now >> 32);
	f.stamp[1] = bpf_htons(now >> 16);
	f.stamp[2] = bpf_htons(now);
	f.balance = ~sum_of(&f);
	if (bpf_xdp_store_bytes(ctx, payload, &f, sizeof(f)))
		return XDP_ABORTED;
	g->sent++;
	word = done / 64;
	if (c->rate && (p = bpf_map_lookup_elem(&departures, &word))) /* no other CPU writes */
		*p |= 1ULL << (done % 64);
	if (!c->redirect)
		return XDP_PASS;
	if (c->apart)
		return bpf_redirect_map(&elsewhere, c->cpu, 0);
	return bpf_redirect(c->redirect, 0);
}

/* sends on what the generator handed to another CPU */
SEC("xdp/cpumap") int onward(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct plan *c = bpf_map_lookup_elem(&config, &zero);

	return c ? bpf_redirect(c->redirect, 0) : XDP_ABORTED;
}

/* where are the fields? 0: nowhere, it is another frame. */
static __always_inline __u32 find(void *data, void *end, __be16 port)
{
	struct ethhdr *eth = data;
	__be16 proto;
	__u32 off = sizeof(*eth);
	struct udphdr *udp;

	if (data + sizeof(*eth) > end)
		return 0;
	proto = eth->h_proto;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (proto != bpf_htons(ETH_P_8021Q) && proto != bpf_htons(ETH_P_8021AD))
			break;
		if (data + off + 4 > end)
			return 0;
		proto = *(__be16 *)(data + off + 2);
		off += 4;
	}
	if (proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + off;

		if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_UDP || ip->ihl != 5)
			return 0;
		off += sizeof(*ip);
	} else if (proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + off;

		if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_UDP)
			return 0;
		off += sizeof(*ip);
	} else {
		return 0;
	}
	udp = data + off;
	if ((void *)(udp + 1) > end || udp->dest != port)
		return 0;
	return off + sizeof(*udp);
}

static __always_inline __u32 bucket(__u64 v)
{
	__u32 shift = 0;
	__u64 x = v >> 7;

#pragma unroll
	for (int i = 5; i >= 0; i--)
		if (x >> (1 << i)) {
			x >>= 1 << i;
			shift += 1 << i;
		}
	if (v >> 7)
		shift++;
	v = (__u64)shift * 64 + (v >> shift);
	return v < BUCKETS ? v : BUCKETS - 1;
}

/* A frame is compared in a copy, in steps of 64 bytes. */
struct scratch { __u8 data[FRAME + 64]; };
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct scratch); } scratch SEC(".maps");

struct comparison { __u32 slot, length, differs; };

static long compare(__u64 i, struct comparison *c)
{
	__u32 zero = 0, off = (__u32)i * 64;
	struct scratch *got = bpf_map_lookup_elem(&scratch, &zero);
	struct slot *want = bpf_map_lookup_elem(&slots, &c->slot);

	bounded(off);
	if (!got || !want || off >= c->length || off > FRAME - 64)
		return 1;
#pragma unroll
	for (int j = 0; j < 8; j++)
		if (*(__u64 *)(got->data + off + 8 * j) != *(__u64 *)(want->data + off + 8 * j))
			c->differs = 1;
	return c->differs;
}

/* load_skb puts a VLAN tag back which the kernel keeps beside the packet. */
static __always_inline int load_skb(struct __sk_buff *skb, struct scratch *got, __u32 length)
{
	__be16 tag[2];

	if (!skb->vlan_present)
		return bpf_skb_load_bytes(skb, 0, got->data, length);
	tag[0] = skb->vlan_proto;
	tag[1] = bpf_htons(skb->vlan_tci);
	__builtin_memcpy(got->data + 12, tag, 4);
	return bpf_skb_load_bytes(skb, 0, got->data, 12) || bpf_skb_load_bytes(skb, 12, got->data + 16, length - 16);
}

/* differs tells whether a frame is another than its slot's, all but the fields. */
static __always_inline int differs(void *ctx, int xdp, __u32 at, struct slot *s, __u32 length)
{
	struct comparison c = { .slot = at, .length = s->length };
	__u32 zero = 0, payload = s->payload;
	struct scratch *got = bpf_map_lookup_elem(&scratch, &zero);

	bounded(length);
	bounded(payload);
	if (!got || length != s->length || length < 60 || length > FRAME || payload > FRAME - 64)
		return 1;
	if (xdp) {
		if (bpf_xdp_load_bytes(ctx, 0, got->data, length))
			return 1;
	} else if (load_skb(ctx, got, length)) {
		return 1;
	}
	__builtin_memcpy(got->data + payload, s->data + payload, sizeof(struct fields));
	__builtin_memset(got->data + length, 0, 64);
	bpf_loop(FRAME / 64, compare, &c, 0);
	return c.differs;
}

/* account counts one frame; a frame that is not ours is left alone: 0. What is counted is each CPU's own, but for what tells frames apart.
 * hidden: bytes of the frame that are not between data and end. */
static __always_inline int account(void *ctx, int xdp, void *data, void *end, __u32 hidden)
{
	__u32 zero = 0, off, seq, at, word;
	struct plan *c = bpf_map_lookup_elem(&config, &zero);
	struct arrived *n = bpf_map_lookup_elem(&counted, &zero);
	__u64 now, stamp, took, *p, bit, old;
	struct fields *f;
	struct slot *s;

	if (!c || !n)
		return 0;
	off = find(data, end, c->port);
	if (!off)
		return 0;
	f = data + off;
	if ((void *)(f + 1) > end)
		return 0;
	if (f->run != bpf_htons(c->run)) {
		n->foreign++;
		return 1;
	}
	n->frames++;
	n->bytes += end - data + hidden;
	seq = bpf_ntohl(f->seq);
	if (fold(sum_of(f) + f->balance) != 0xffff || seq >= c->limit || seq >= SEEN_WORDS * 64ULL) {
		n->corrupted++;
		return 1;
	}
	at = seq % (c->slots ? c->slots : 1);
	s = bpf_map_lookup_elem(&slots, &at);
	if (!s)
		return 1;
	if (c->strict && differs(ctx, xdp, at, s, end - data + hidden)) {
		n->corrupted++;
		return 1;
	}
	word = seq / 64;
	bit = 1ULL << (seq % 64);
	p = bpf_map_lookup_elem(&seen, &word);
	if (!p)
		return 1;
	old = __sync_fetch_and_or(p, bit);
	if (old & bit) {
		n->duplicated++;
		return 1;
	}
	/* As for the generator, reading the clock is much of the work: at full speed every eighth frame does it, once there are many. */
	if (c->rate || n->unique < MANY || !(n->unique & 7)) {
		now = bpf_ktime_get_ns();
		if (!n->first)
			n->first = now;
		n->last = now;
	}
	n->unique++;
	at = s->flow;
	p = bpf_map_lookup_elem(&highest, &at);
	if (p) { /* RFC 4737: reordered is what comes after a later one of its flow */
		if (*p > (__u64)seq + 1)
			n->reordered++;
		else
			*p = (__u64)seq + 1;
	}
	if (!c->rate)
		return 1; /* how long it waited in queues that are full says nothing */
	stamp = (__u64)bpf_ntohs(f->stamp[0]) << 32 | (__u64)bpf_ntohs(f->stamp[1]) << 16 | bpf_ntohs(f->stamp[2]);
	took = (now - stamp) & 0xffffffffffffULL;
	if (took >> 47) { /* before it was sent: clocks differ */
		n->early++;
		return 1;
	}
	at = bucket(took);
	p = bpf_map_lookup_elem(&latency, &at);
	if (p)
		__sync_fetch_and_add(p, 1);
	n->sum += took;
	if (took < n->least || !n->least)
		n->least = took;
	if (took > n->most)
		n->most = took;
	return 1;
}

SEC("xdp") int sink_frames(struct xdp_md *ctx)
{
	return account(ctx, 1, (void *)(long)ctx->data, (void *)(long)ctx->data_end, 0) ? XDP_DROP : XDP_PASS;
}

SEC("tc") int sink_skbs(struct __sk_buff *skb)
{
	if ((void *)(long)skb->data_end - (void *)(long)skb->data < skb->len)
		bpf_skb_pull_data(skb, skb->len);
	return account(skb, 0, (void *)(long)skb->data, (void *)(long)skb->data_end, skb->vlan_present ? 4 : 0) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
