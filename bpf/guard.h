// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// Port security: what may enter at an endpoint. What is checked, and in which order, stands at flow.Guard.
#pragma once

// own_packet6 is own_packet for IPv6: TCP, or UDP that is not a DHCP server's, without extension headers.
static __always_inline bool own_packet6(const __u8 *h, const void *end, const struct port *p)
{
	__u64 src[2];

	if ((const void *)h + ETH_HLEN + 42 > end || h[14] >> 4 != 6)
		return false;
	__builtin_memcpy(src, h + 22, sizeof(src));
	if (!src[0] || src[0] != p->source6[0] || src[1] != p->source6[1] || !same_mac(h + 6, p->peer))
		return false;
	return h[20] == IPPROTO_TCP || (h[20] == IPPROTO_UDP && (h[54] != 547 >> 8 || h[55] != (547 & 0xff)));
}

// own_packet tells most of a station's packets without a look-up: its only MAC, its first IPv4 or IPv6 address, no tag, no options, and not
// from a DHCP server's port. All others guard_frame decides.
static __always_inline bool own_packet(struct __sk_buff *skb, const struct port *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const __u8 *h = data;
	__be32 src;

	if (data + ETH_HLEN + 24 > end || skb->vlan_present)
		return false;
	if (h[12] == 0x86 && h[13] == 0xdd)
		return own_packet6(h, end, p);
	__builtin_memcpy(&src, h + 26, sizeof(src));
	if (!src || src != p->source || h[12] != 0x08 || h[13] || h[14] != 0x45 || !same_mac(h + 6, p->peer))
		return false;
	return h[23] != IPPROTO_UDP || h[34] || h[35] != 67;
}

static __always_inline bool guard_mac(const struct guard *g, const __u8 *mac)
{
	int i;

	if (!(g->flags & GUARD_MAC))
		return true;
	for (i = 0; i < GUARD_MACS; i++) {
		if (i >= g->macs)
			break;
		if (same_mac(mac, g->mac[i]))
			return true;
	}
	return false;
}

static __noinline bool guard_v4(const struct guard *g, __be32 a)
{
	int i;

	if (!(g->flags & GUARD_BOUND))
		return true;
	for (i = 0; i < GUARD_V4; i++) {
		if (i >= g->v4s)
			break;
		if ((a & g->v4[i].mask) == g->v4[i].addr)
			return true;
	}
	return false;
}

static __noinline bool guard_v6(const struct guard *g, const __u64 *a)
{
	int i;

	if (!(g->flags & GUARD_BOUND))
		return true;
	for (i = 0; i < GUARD_V6; i++) {
		if (i >= g->v6s)
			break;
		if ((a[0] & g->v6[i].mask[0]) == g->v6[i].addr[0] && (a[1] & g->v6[i].mask[1]) == g->v6[i].addr[1])
			return true;
	}
	return false;
}

// guard_shared4 tells whether an address is one that several stations have.
static __noinline bool guard_shared4(const struct guard *g, __be32 a)
{
	int i;

	for (i = 0; i < GUARD_V4; i++) {
		if (i >= g->v4s)
			break;
		if (i + g->v4_shared >= g->v4s && a == g->v4[i].addr)
			return true;
	}
	return false;
}

static __noinline bool guard_shared6(const struct guard *g, const __u64 *a)
{
	int i;

	for (i = 0; i < GUARD_V6; i++) {
		if (i >= g->v6s)
			break;
		if (i + g->v6_shared >= g->v6s && a[0] == g->v6[i].addr[0] && a[1] == g->v6[i].addr[1])
			return true;
	}
	return false;
}

static __noinline int guard_arp(struct __sk_buff *skb, const struct guard *g, __u32 off)
{
	static const __u8 ethernet_ipv4[6] = {0, 1, 8, 0, 6, 4};
	__be32 sender, target;
	__u8 h[28];

	// Cut short, not of Ethernet and IPv4, or with another's MAC.
	if (bpf_skb_load_bytes(skb, off, h, sizeof(h)) || !same_mac(h, ethernet_ipv4) || !guard_mac(g, h + 8))
		return g->flags & (GUARD_MAC | GUARD_BOUND) ? REFUSED_ARP : ACCEPTED;
	__builtin_memcpy(&sender, h + 14, 4);
	__builtin_memcpy(&target, h + 24, 4);
	if (!sender)
		sender = target;
	return guard_v4(g, sender) && !guard_shared4(g, sender) ? ACCEPTED : REFUSED_ARP;
}

static __noinline int guard_ipv4(struct __sk_buff *skb, const struct guard *g, __u32 off)
{
	__be16 udp[4] = {};
	bool whole, checked = (g->flags & GUARD_BOUND) && !(g->flags & GUARD_ROUTER);
	__u32 options;
	__be32 src;
	__u8 h[20];

	if (bpf_skb_load_bytes(skb, off, h, sizeof(h)))
		return checked ? REFUSED_SOURCE : ACCEPTED; // cut short
	options = (h[0] & 0xf) * 4;
	whole = h[0] >> 4 == 4 && options >= 20 && skb->len >= off + options;
	if (whole && h[9] == IPPROTO_UDP && !((h[6] & 0x1f) | h[7]) && bpf_skb_load_bytes(skb, off + options, udp, sizeof(udp)))
		udp[0] = 0;
	if (udp[0] == bpf_htons(67) && !(g->flags & GUARD_DHCP))
		return REFUSED_DHCP;
	if (!checked)
		return ACCEPTED;
	__builtin_memcpy(&src, h + 12, 4);
	if (whole && ((!src && udp[0] == bpf_htons(68) && udp[1] == bpf_htons(67)) || guard_v4(g, src)))
		return ACCEPTED;
	return REFUSED_SOURCE;
}

static __noinline int guard_source(const struct guard *g, const __u64 *src)
{
	if ((g->flags & GUARD_ROUTER) || !(g->flags & GUARD_BOUND))
		return ACCEPTED;
	return (src[0] | src[1]) && guard_v6(g, src) ? ACCEPTED : REFUSED_SOURCE;
}

#define ND_ASK	   135
#define ND_TELL	   136
#define ND_OPTIONS 16

// guard_nd takes a neighbour solicitation or advertisement (RFC 4861).
static __noinline int guard_nd(struct __sk_buff *skb, const struct guard *g, const __u64 *src, __u32 off)
{
	__u8 h[8], told[2][6] = {}, none[6] = {};
	__u64 target[2];
	bool nowhere, tells;
	__u32 kind;
	int i;

	if (bpf_skb_load_bytes(skb, off, h, sizeof(h)) || bpf_skb_load_bytes(skb, off + 8, target, sizeof(target)))
		return REFUSED_ND; // cut short
	if (h[1] || !(target[0] | target[1]))
		return REFUSED_ND;
	kind = h[0];
	off += 24;
	for (i = 0; i <= ND_OPTIONS; i++) {
		if (bpf_skb_load_bytes(skb, off, h, sizeof(h)) || !h[1] || off + h[1] * 8 > skb->len)
			break; // nobody reads on
		if (i == ND_OPTIONS)
			return REFUSED_ND;
		if (h[1] == 1 && h[0] == 1) { // of the source
			if (!same_mac(told[0], none))
				return REFUSED_ND; // twice
			__builtin_memcpy(told[0], h + 2, 6);
		} else if (h[1] == 1 && h[0] == 2) { // of the target
			if (!same_mac(told[1], none))
				return REFUSED_ND; // twice
			__builtin_memcpy(told[1], h + 2, 6);
		}
		off += h[1] * 8;
	}
	if (kind == ND_ASK ? !same_mac(told[0], none) && !guard_mac(g, told[0]) : !same_mac(told[1], none) && !guard_mac(g, told[1]))
		return REFUSED_ND;
	nowhere = kind == ND_ASK && !(src[0] | src[1]); // detection of duplicates
	tells = nowhere || kind == ND_TELL;
	if (guard_shared6(g, src) || (tells && guard_shared6(g, target)))
		return REFUSED_ND;
	if (!nowhere && guard_source(g, src))
		return REFUSED_SOURCE;
	if (tells && !guard_v6(g, target))
		return REFUSED_ND;
	return ACCEPTED;
}

// guard_icmp6 takes ICMPv6, whatever extension headers stand before it.
static __noinline int guard_icmp6(struct __sk_buff *skb, const struct guard *g, const __u64 *src, __u32 off)
{
	__u8 h[8];

	if (bpf_skb_load_bytes(skb, off, h, sizeof(h)) || !h[0])
		return REFUSED_UNREAD;
	switch (h[0]) {
	case 134: // router advertisement
	case 137: // redirect
		if (!(g->flags & GUARD_ROUTER))
			return REFUSED_RA;
		break;
	case ND_ASK:
	case ND_TELL:
		return guard_nd(skb, g, src, off);
	case 131: // multicast reports
	case 132:
	case 133: // router solicitation
	case 143:
		if (!(src[0] | src[1]))
			return ACCEPTED;
		if (h[0] == 133 && guard_shared6(g, src)) // it may tell its MAC
			return REFUSED_ND;
	}
	return guard_source(g, src);
}

static __noinline int guard_ipv6(struct __sk_buff *skb, const struct guard *g, __u32 off)
{
	__u8 h[8], proto, x[8];
	__u64 src[2], dst[2];
	__u32 length;
	__be16 udp[4];
	int i;

	if (bpf_skb_load_bytes(skb, off, h, sizeof(h)) || bpf_skb_load_bytes(skb, off + 8, src, sizeof(src)) ||
	    bpf_skb_load_bytes(skb, off + 24, dst, sizeof(dst)) || h[0] >> 4 != 6)
		return REFUSED_UNREAD;
	proto = h[6];
	off += 40;
	for (i = 0; i < MAX_EXTENSIONS; i++) {
		if (!is_extension(proto))
			break;
		if (bpf_skb_load_bytes(skb, off, x, sizeof(x)))
			return REFUSED_UNREAD;
		if (proto == IPPROTO_FRAGMENT && (x[2] | (x[3] & 0xf8)))
			return guard_source(g, src); // a later fragment
		length = proto == IPPROTO_FRAGMENT ? 8 : proto == IPPROTO_AH ? x[1] * 4 + 8 : x[1] * 8 + 8;
		off += length;
		if (off > skb->len)
			return REFUSED_UNREAD;
		proto = x[0];
	}
	if (is_extension(proto))
		return REFUSED_UNREAD;
	if (proto == IPPROTO_ICMPV6)
		return guard_icmp6(skb, g, src, off);
	if (proto == IPPROTO_UDP && !(g->flags & GUARD_DHCP) && !bpf_skb_load_bytes(skb, off, udp, sizeof(udp)) && udp[0] == bpf_htons(547))
		return REFUSED_DHCP;
	return guard_source(g, src);
}

// owned: the MAC is one that some endpoint's guard names.
static __noinline bool owned(const __u8 *mac)
{
	struct station_key k = {};

	__builtin_memcpy(k.mac, mac, 6);
	return bpf_map_lookup_elem(&owners, &k) != NULL;
}

// guard_frame decides on a frame that enters at an endpoint with a guard.
__noinline int guard_frame(struct __sk_buff *skb, __u32 slot)
{
	struct guard *g = bpf_map_lookup_elem(&guards, &slot);
	__u32 off = ETH_HLEN, tags = 0;
	__u8 h[ETH_HLEN];
	__be16 tag[2];
	__u16 type;
	int i;

	if (!g || bpf_skb_load_bytes(skb, 0, h, sizeof(h)))
		return ACCEPTED; // cannot be: it is written before the port's flag; a runt
	if (g->flags & GUARD_MAC ? !guard_mac(g, h + 6) : owned(h + 6))
		return REFUSED_MAC;
	type = h[12] << 8 | h[13];
	if (skb->vlan_present)
		tags = 1;
	for (i = 0; i < 2; i++) {
		if (!is_tag(type) || tags == 2)
			break;
		if (bpf_skb_load_bytes(skb, off, tag, sizeof(tag)))
			break; // cut short
		type = bpf_ntohs(tag[1]);
		off += sizeof(tag);
		tags++;
	}
	switch (type) {
	case ETH_P_8021Q:
	case ETH_P_8021AD:
		return REFUSED_UNREAD;
	case ETH_P_ARP:
		return guard_arp(skb, g, off);
	case ETH_P_IP:
		return guard_ipv4(skb, g, off);
	case ETH_P_IPV6:
		return guard_ipv6(skb, g, off);
	}
	return ACCEPTED;
}

// guard_other: the sender's MAC is another endpoint's. For ports where no MAC is known.
__noinline int guard_other(struct __sk_buff *skb)
{
	__u8 h[ETH_HLEN];

	if (bpf_skb_load_bytes(skb, 0, h, sizeof(h)))
		return ACCEPTED; // a runt
	return owned(h + 6) ? REFUSED_MAC : ACCEPTED;
}

static __always_inline int refusal(struct __sk_buff *skb, const struct control *c, const struct port *p, __u32 slot)
{
	if (p->flags & PORT_GUARD)
		return own_packet(skb, p) ? ACCEPTED : guard_frame(skb, slot);
	if (c->owned && p->kind == PORT_ENDPOINT && !(p->flags & PORT_FABRIC))
		return guard_other(skb);
	return ACCEPTED;
}

// refuse drops a frame, and counts why.
static __noinline int refuse(__u32 slot, __u64 packets, __u64 bytes, __u32 why)
{
	struct guard_stats *g = bpf_map_lookup_elem(&guard_counts, &slot);
	struct size s = {packets, bytes};

	if (g && why < REFUSALS)
		__sync_fetch_and_add(&g->refused[why], packets);
	count_drop(slot, s);
	return TC_ACT_SHOT;
}
