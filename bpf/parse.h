// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// From a frame to its key.
#pragma once

// same_mac: both are aligned to two bytes.
static __always_inline bool same_mac(const void *x, const void *y)
{
	const __u16 *a = x, *b = y;

	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2];
}

static __always_inline bool is_tag(__u16 type)
{
	return type == ETH_P_8021Q || type == ETH_P_8021AD;
}

// tag_of gives a frame's outermost tag if it is one of the fabric's. Where frames are received the kernel has taken the outermost tag
// off into the skb before our programs run, and the bridge keeps it there.
static __always_inline __u16 tag_of(struct __sk_buff *skb)
{
	__u16 id = skb->vlan_tci & 0xfff;

	if (!skb->vlan_present || skb->vlan_proto != bpf_htons(ETH_P_8021AD))
		return 0;
	return id >= TAG_FIRST && id <= TAG_LAST ? id : 0;
}

static __always_inline void parse_ports(struct __sk_buff *skb, __u32 off, struct key *k)
{
	__be16 ports[2];

	if (k->proto != IPPROTO_TCP && k->proto != IPPROTO_UDP && k->proto != IPPROTO_SCTP)
		return;
	if (bpf_skb_load_bytes(skb, off, ports, sizeof(ports)))
		return; // cut short
	k->src_port = bpf_ntohs(ports[0]);
	k->dst_port = bpf_ntohs(ports[1]);
	k->has |= HAS_PORTS;
}

static __always_inline void parse_ipv4(struct __sk_buff *skb, __u32 off, struct key *k)
{
	__u8 h[20];

	k->has = UNREAD_NETWORK;
	if (bpf_skb_load_bytes(skb, off, h, sizeof(h)))
		return; // runt
	if (h[0] >> 4 != 4 || (h[0] & 0xf) < 5 || skb->len < off + (h[0] & 0xf) * 4)
		return; // not an IPv4 header, or its options are cut short
	k->has = HAS_IP;
	k->proto = h[9];
	__builtin_memcpy(k->src, h + 12, 4);
	__builtin_memcpy(k->dst, h + 16, 4);
	if ((h[6] & 0x1f) | h[7])
		return; // a fragment, not the first
	parse_ports(skb, off + (h[0] & 0xf) * 4, k);
}

#define MAX_EXTENSIONS 6

static __always_inline bool is_extension(__u8 header)
{
	return header == IPPROTO_HOPOPTS || header == IPPROTO_ROUTING || header == IPPROTO_DSTOPTS || header == IPPROTO_FRAGMENT ||
	       header == IPPROTO_AH;
}

static __always_inline void parse_ipv6(struct __sk_buff *skb, __u32 off, struct key *k)
{
	__u8 h[8], x[4], header;
	__u32 length;
	int i;

	k->has = UNREAD_NETWORK;
	if (bpf_skb_load_bytes(skb, off, h, sizeof(h)) || h[0] >> 4 != 6)
		return; // not an IPv6 header
	if (bpf_skb_load_bytes(skb, off + 8, k->src, 32)) // and dst, which follows it
		return; // runt
	k->has = HAS_IP;
	header = h[6];
	off += 40;
	for (i = 0; i < MAX_EXTENSIONS && is_extension(header); i++) {
		if (bpf_skb_load_bytes(skb, off, x, sizeof(x)))
			break; // cut short
		length = header == IPPROTO_FRAGMENT ? 8 : header == IPPROTO_AH ? x[1] * 4 + 8 : x[1] * 8 + 8;
		off += length;
		if (header == IPPROTO_FRAGMENT && (x[2] | (x[3] & 0xf8))) { // a fragment, not the first
			if (is_extension(x[0]))
				k->has |= UNREAD_UPPER; // its upper layer may begin here or in another
			else
				k->proto = x[0];
			return;
		}
		header = x[0];
	}
	if (is_extension(header)) {
		k->has |= UNREAD_UPPER; // one too many, or cut short
		return;
	}
	k->proto = header;
	parse_ports(skb, off, k);
}

#define FIRST_TYPE 0x600 // less is a length (IEEE 802.3, 3.2.6)

// snap_type reads the EtherType behind a length (RFC 1042); 0: there is none.
static __always_inline __u16 snap_type(struct __sk_buff *skb, __u32 off)
{
	__u8 h[8];
	__u16 type;

	if (bpf_skb_load_bytes(skb, off, h, sizeof(h)))
		return 0; // too short
	if (h[0] != 0xaa || h[1] != 0xaa || h[2] != 3 || h[3] | h[4] | h[5])
		return 0; // another kind of LLC
	type = h[6] << 8 | h[7];
	return type < FIRST_TYPE ? 0 : type;
}

// parse reads what the stage's rules look at. A fabric tag (k->tag) is as if it were not there.
static __always_inline void parse(struct __sk_buff *skb, __u32 fields, struct key *k)
{
	__u8 h[ETH_HLEN];
	__be16 tag[2];
	__u32 off = ETH_HLEN;
	__u16 type, tags = 0;
	int i;

	k->vlan = VLAN_NONE;
	if (!(fields & ~FIELD_IN_PORT) || bpf_skb_load_bytes(skb, 0, h, sizeof(h)))
		return; // nothing to look at, or a runt
	__builtin_memcpy(k->dst_mac, h, 6);
	__builtin_memcpy(k->src_mac, h + 6, 6);
	type = h[12] << 8 | h[13];
	if (skb->vlan_present && !k->tag) { // the outermost tag was taken off by the device or the stack
		k->vlan = skb->vlan_tci & 0xfff;
		tags = 1;
	}
	for (i = 0; i < 2; i++) {
		if (!is_tag(type) || tags == 2)
			break;
		if (bpf_skb_load_bytes(skb, off, tag, sizeof(tag)))
			break; // cut short
		if (!tags)
			k->vlan = bpf_ntohs(tag[0]) & 0xfff;
		type = bpf_ntohs(tag[1]);
		off += sizeof(tag);
		tags++;
	}
	if (type < FIRST_TYPE) {
		__u16 inner = snap_type(skb, off);

		if (inner) {
			type = inner;
			off += 8;
		}
	}
	k->ethertype = type;
	if (!(fields & (FIELD_ADDRESSES | FIELD_PROTO | FIELD_PORTS)))
		return;
	if (type == ETH_P_IP)
		parse_ipv4(skb, off, k);
	else if (type == ETH_P_IPV6)
		parse_ipv6(skb, off, k);
	else if (is_tag(type))
		k->has = UNREAD_NETWORK; // one too many, or cut short
}
