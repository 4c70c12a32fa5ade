package openflow

// prerequisite of a field (7.2.3.8).
type prerequisite uint8

const (
	preNone prerequisite = iota
	preVLAN
	preIP
	preIPv4
	preIPv6
	preARP
	preTCP
	preUDP
	preSCTP
	preICMPv4
	preICMPv6
	preND
	preNS
	preNA
	preMPLS
	prePBB
)

func (p prerequisite) String() string {
	return [...]string{"nothing", "vlan_vid with OFPVID_PRESENT", "eth_type 0x0800 or 0x86dd", "eth_type 0x0800", "eth_type 0x86dd",
		"eth_type 0x0806", "ip_proto 6", "ip_proto 17", "ip_proto 132", "eth_type 0x0800 and ip_proto 1", "eth_type 0x86dd and ip_proto 58",
		"icmpv6_type 135 or 136", "icmpv6_type 135", "icmpv6_type 136", "eth_type 0x8847 or 0x8848", "eth_type 0x88e7"}[p]
}

// basic is indexed by the field number in class 0x8000. Names are Open vSwitch's, in matches and in actions.
var basic = [...]fieldInfo{
	{"in_port", "OXM_OF_IN_PORT", 32, noMask, portNo, preNone},
	{"in_phy_port", "OXM_OF_IN_PHY_PORT", 32, noMask, portNo, preNone},
	{"metadata", "OXM_OF_METADATA", 64, anyMask, hexa, preNone},
	{"eth_dst", "NXM_OF_ETH_DST", 48, anyMask, mac, preNone},
	{"eth_src", "NXM_OF_ETH_SRC", 48, anyMask, mac, preNone},
	{"eth_type", "NXM_OF_ETH_TYPE", 16, noMask, hexa, preNone},
	{"vlan_vid", "OXM_OF_VLAN_VID", 13, anyMask, decimal, preNone},
	{"vlan_pcp", "OXM_OF_VLAN_PCP", 3, noMask, decimal, preVLAN},
	{"ip_dscp", "OXM_OF_IP_DSCP", 6, noMask, decimal, preIP},
	{"nw_ecn", "NXM_NX_IP_ECN", 2, noMask, decimal, preIP},
	{"nw_proto", "NXM_OF_IP_PROTO", 8, noMask, decimal, preIP},
	{"ip_src", "NXM_OF_IP_SRC", 32, anyMask, ip, preIPv4},
	{"ip_dst", "NXM_OF_IP_DST", 32, anyMask, ip, preIPv4},
	{"tcp_src", "NXM_OF_TCP_SRC", 16, ovsMask, decimal, preTCP},
	{"tcp_dst", "NXM_OF_TCP_DST", 16, ovsMask, decimal, preTCP},
	{"udp_src", "NXM_OF_UDP_SRC", 16, ovsMask, decimal, preUDP},
	{"udp_dst", "NXM_OF_UDP_DST", 16, ovsMask, decimal, preUDP},
	{"sctp_src", "OXM_OF_SCTP_SRC", 16, ovsMask, decimal, preSCTP},
	{"sctp_dst", "OXM_OF_SCTP_DST", 16, ovsMask, decimal, preSCTP},
	{"icmp_type", "NXM_OF_ICMP_TYPE", 8, noMask, decimal, preICMPv4},
	{"icmp_code", "NXM_OF_ICMP_CODE", 8, noMask, decimal, preICMPv4},
	{"arp_op", "NXM_OF_ARP_OP", 16, noMask, decimal, preARP},
	{"arp_spa", "NXM_OF_ARP_SPA", 32, anyMask, ip, preARP},
	{"arp_tpa", "NXM_OF_ARP_TPA", 32, anyMask, ip, preARP},
	{"arp_sha", "NXM_NX_ARP_SHA", 48, anyMask, mac, preARP},
	{"arp_tha", "NXM_NX_ARP_THA", 48, anyMask, mac, preARP},
	{"ipv6_src", "NXM_NX_IPV6_SRC", 128, anyMask, ip, preIPv6},
	{"ipv6_dst", "NXM_NX_IPV6_DST", 128, anyMask, ip, preIPv6},
	{"ipv6_label", "NXM_NX_IPV6_LABEL", 20, anyMask, hexa, preIPv6},
	{"icmpv6_type", "NXM_NX_ICMPV6_TYPE", 8, noMask, decimal, preICMPv6},
	{"icmpv6_code", "NXM_NX_ICMPV6_CODE", 8, noMask, decimal, preICMPv6},
	{"nd_target", "NXM_NX_ND_TARGET", 128, ovsMask, ip, preND},
	{"nd_sll", "NXM_NX_ND_SLL", 48, ovsMask, mac, preNS},
	{"nd_tll", "NXM_NX_ND_TLL", 48, ovsMask, mac, preNA},
	{"mpls_label", "OXM_OF_MPLS_LABEL", 20, noMask, decimal, preMPLS},
	{"mpls_tc", "OXM_OF_MPLS_TC", 3, noMask, decimal, preMPLS},
	{"mpls_bos", "OXM_OF_MPLS_BOS", 1, noMask, decimal, preMPLS},
	{"pbb_isid", "OXM_OF_PBB_ISID", 24, anyMask, hexa, prePBB},
	{"tun_id", "NXM_NX_TUN_ID", 64, anyMask, hexa, preNone},
	{"ipv6_exthdr", "OXM_OF_IPV6_EXTHDR", 9, anyMask, hexa, preIPv6},
}

var (
	regNames = [16]string{"reg0", "reg1", "reg2", "reg3", "reg4", "reg5", "reg6", "reg7", "reg8", "reg9", "reg10", "reg11", "reg12", "reg13", "reg14", "reg15"}
	regNXM   = [16]string{"NXM_NX_REG0", "NXM_NX_REG1", "NXM_NX_REG2", "NXM_NX_REG3", "NXM_NX_REG4", "NXM_NX_REG5", "NXM_NX_REG6", "NXM_NX_REG7", "NXM_NX_REG8", "NXM_NX_REG9", "NXM_NX_REG10", "NXM_NX_REG11", "NXM_NX_REG12", "NXM_NX_REG13", "NXM_NX_REG14", "NXM_NX_REG15"}
)

func (f Field) number() int { return int(f >> 9 & 0x7f) }

func (f Field) class() uint16 { return uint16(f >> 16) }

// info is what is known of a field; its length must be right, too.
func (f Field) info() (fieldInfo, bool) {
	n := f.number()
	switch f.class() {
	case 0x8000:
		if n < len(basic) && f.Len() == (basic[n].bits+7)/8 || f == FieldIPv6FLabel || f == FieldMPLSLabel {
			return basic[n], true
		}
	case 0x0001:
		if n < 16 && f.Len() == 4 {
			return fieldInfo{regNames[n], regNXM[n], 32, anyMask, hexa, preNone}, true
		}
	}
	switch f {
	case FieldNXMInPort:
		return fieldInfo{"in_port", "NXM_OF_IN_PORT", 16, noMask, portNo, preNone}, true
	case FieldNXMVLANTCI:
		return fieldInfo{"vlan_tci", "NXM_OF_VLAN_TCI", 16, anyMask, hexa, preNone}, true
	case FieldNXMTunID:
		return fieldInfo{"tun_id", "NXM_NX_TUN_ID", 64, anyMask, hexa, preNone}, true
	case FieldIPFrag:
		return fieldInfo{"ip_frag", "NXM_NX_IP_FRAG", 8, anyMask, hexa, preIP}, true
	}
	return fieldInfo{}, false
}

// fullMask is byte i of a mask that covers all bits that the field has.
func fullMask(f Field, i int) byte {
	info, ok := f.info()
	if !ok {
		return 0xff
	}
	spare := 8*f.Len() - info.bits - 8*i // unused bits at the top, from byte i on
	if spare <= 0 {
		return 0xff
	}
	return byte(0xff >> min(spare, 8))
}
