package main

import (
	"encoding/binary"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
)

// attributes of a message of netfilter. google/nftables has no expression "fwd", and its interface expr.Any cannot be implemented outside of its package.
type attributes func(*netlink.AttributeEncoder)

func encode(a attributes) []byte {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	a(e)
	b, err := e.Encode()
	if err != nil {
		panic(err) // lengths of ours
	}
	return b
}

func inside(e *netlink.AttributeEncoder, kind uint16, a attributes) {
	e.Bytes(kind|unix.NLA_F_NESTED, encode(a))
}

func value(e *netlink.AttributeEncoder, kind uint16, b []byte) {
	inside(e, kind, func(e *netlink.AttributeEncoder) { e.Bytes(unix.NFTA_DATA_VALUE, b) })
}

// message makes a message of nftables.
func message(kind int, a attributes) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | netlink.Create},
		Data:   append([]byte{unix.NFPROTO_NETDEV, unix.NFNETLINK_V0, 0, 0}, encode(a)...),
	}
}

func elements(kind int, of string, all ...entry) netlink.Message {
	return message(kind, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_ELEM_LIST_TABLE, shortTable)
		e.String(unix.NFTA_SET_ELEM_LIST_SET, of)
		inside(e, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(e *netlink.AttributeEncoder) {
			for _, x := range all {
				inside(e, unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) {
					value(e, unix.NFTA_SET_ELEM_KEY, x.key)
					value(e, unix.NFTA_SET_ELEM_DATA, x.value)
				})
			}
		})
	})
}

// shortTables are the table, its maps, and a chain for segments of clients and one for those of nginx. The last two numbers are links by which these leave, and those, if not atOnce.
func shortTables(clients, nginx hook, in, loop uint32) []netlink.Message {
	all := []netlink.Message{message(unix.NFT_MSG_NEWTABLE, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_TABLE_NAME, shortTable)
		e.Uint32(unix.NFTA_TABLE_FLAGS, ownedTable)
	})}
	for i, m := range []struct {
		name string
		key  uint32
	}{{upMap, upKey}, {downMap, downKey}} {
		all = append(all, message(unix.NFT_MSG_NEWSET, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_SET_TABLE, shortTable)
			e.String(unix.NFTA_SET_NAME, m.name)
			e.Uint32(unix.NFTA_SET_ID, uint32(i+1))
			e.Uint32(unix.NFTA_SET_FLAGS, unix.NFT_SET_MAP|unix.NFT_SET_TIMEOUT)
			e.Uint32(unix.NFTA_SET_KEY_TYPE, 0)
			e.Uint32(unix.NFTA_SET_KEY_LEN, m.key)
			e.Uint32(unix.NFTA_SET_DATA_TYPE, 0)
			e.Uint32(unix.NFTA_SET_DATA_LEN, shortValue)
			e.Uint64(unix.NFTA_SET_TIMEOUT, uint64(shortFor.Milliseconds()))
			inside(e, unix.NFTA_SET_DESC, func(e *netlink.AttributeEncoder) { e.Uint32(unix.NFTA_SET_DESC_SIZE, mostEntries) })
		}))
	}
	for _, h := range []hook{clients, nginx} {
		all = append(all, message(unix.NFT_MSG_NEWCHAIN, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_CHAIN_TABLE, shortTable)
			e.String(unix.NFTA_CHAIN_NAME, h.link)
			e.String(unix.NFTA_CHAIN_TYPE, "filter")
			inside(e, unix.NFTA_CHAIN_HOOK, func(e *netlink.AttributeEncoder) {
				e.Uint32(unix.NFTA_HOOK_HOOKNUM, h.kind)
				e.Uint32(unix.NFTA_HOOK_PRIORITY, 0)
				e.String(unix.NFTA_HOOK_DEV, h.link)
			})
		}))
	}
	up := slices.Concat(plainSegments(), []attributes{load(0, unix.NFT_PAYLOAD_LL_HEADER, 6, 8)}, loadEnds(2), rewritten(upMap, upKey/4, loop))
	down := slices.Concat(plainSegments(), loadEnds(0), rewritten(downMap, downKey/4, in))
	// The loop has seen what has a VLAN tag, and would see it again without.
	tagged := []attributes{load(checked, unix.NFT_PAYLOAD_LL_HEADER, 12, 2), compare(unix.NFT_CMP_NEQ, nf.EtherIPv4>>8, nf.EtherIPv4&0xff), drop()}
	all = append(all, rule(clients.link, up), rule(clients.link, tagged), rule(nginx.link, down))
	if loop == atOnce { // nothing else that comes by the port is for the kernel, whatever its addresses; the loop gets it all the same
		all = append(all, rule(clients.link, are(packetOtherHost)))
	}
	return all
}

func rule(chain string, expressions []attributes) netlink.Message {
	m := message(unix.NFT_MSG_NEWRULE, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, shortTable)
		e.String(unix.NFTA_RULE_CHAIN, chain)
		inside(e, unix.NFTA_RULE_EXPRESSIONS, func(e *netlink.AttributeEncoder) {
			for _, x := range expressions {
				inside(e, unix.NFTA_LIST_ELEM, x)
			}
		})
	})
	m.Header.Flags |= netlink.Append
	return m
}

// checked is the register of what is compared, and of the link at last. Registers have 4 bytes each.
const checked = 15

func register(n uint32) uint32 { return unix.NFT_REG32_00 + n }

func expression(name string, data attributes) attributes {
	return func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_EXPR_NAME, name)
		inside(e, unix.NFTA_EXPR_DATA, data)
	}
}

// load a part of a header. The kernel is quickest with 4 bytes, and with mask and compare of them.
func load(to, base, offset, length uint32) attributes {
	return expression("payload", func(e *netlink.AttributeEncoder) {
		e.Uint32(unix.NFTA_PAYLOAD_DREG, register(to))
		e.Uint32(unix.NFTA_PAYLOAD_BASE, base)
		e.Uint32(unix.NFTA_PAYLOAD_OFFSET, offset)
		e.Uint32(unix.NFTA_PAYLOAD_LEN, length)
	})
}

// store over a header; sum is where that header has a checksum of it, 0: it has none. pseudo: that of TCP is of it, too.
func store(from, base, offset, length, sum uint32, pseudo bool) attributes {
	return expression("payload", func(e *netlink.AttributeEncoder) {
		e.Uint32(unix.NFTA_PAYLOAD_SREG, register(from))
		e.Uint32(unix.NFTA_PAYLOAD_BASE, base)
		e.Uint32(unix.NFTA_PAYLOAD_OFFSET, offset)
		e.Uint32(unix.NFTA_PAYLOAD_LEN, length)
		if sum > 0 {
			e.Uint32(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET)
			e.Uint32(unix.NFTA_PAYLOAD_CSUM_OFFSET, sum)
		}
		if pseudo {
			e.Uint32(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)
		}
	})
}

func mask(bits ...byte) attributes {
	return expression("bitwise", func(e *netlink.AttributeEncoder) {
		e.Uint32(unix.NFTA_BITWISE_SREG, register(checked))
		e.Uint32(unix.NFTA_BITWISE_DREG, register(checked))
		e.Uint32(unix.NFTA_BITWISE_LEN, uint32(len(bits)))
		value(e, unix.NFTA_BITWISE_MASK, bits)
		value(e, unix.NFTA_BITWISE_XOR, make([]byte, len(bits)))
	})
}

func compare(how uint32, with ...byte) attributes {
	return expression("cmp", func(e *netlink.AttributeEncoder) {
		e.Uint32(unix.NFTA_CMP_SREG, register(checked))
		e.Uint32(unix.NFTA_CMP_OP, how)
		value(e, unix.NFTA_CMP_DATA, with)
	})
}

func drop() attributes { return verdict(0) } // NF_DROP

func verdict(code uint32) attributes {
	return expression("immediate", func(e *netlink.AttributeEncoder) {
		e.Uint32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		inside(e, unix.NFTA_IMMEDIATE_DATA, func(e *netlink.AttributeEncoder) {
			inside(e, unix.NFTA_DATA_VERDICT, func(e *netlink.AttributeEncoder) { e.Uint32(unix.NFTA_VERDICT_CODE, code) })
		})
	})
}

// plainSegments goes on for those of TCP over IPv4, whole and without options of IP, that neither begin nor end a connection.
func plainSegments() []attributes {
	return []attributes{
		load(checked, unix.NFT_PAYLOAD_NETWORK_HEADER, 0, 1), compare(unix.NFT_CMP_EQ, 0x45),
		load(checked, unix.NFT_PAYLOAD_NETWORK_HEADER, 6, 4), mask(0x3f, 0xff, 0, 0xff), compare(unix.NFT_CMP_EQ, 0, 0, 0, unix.IPPROTO_TCP),
		load(checked, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 12, 4), mask(0, nf.FIN|nf.SYN|nf.RST, 0, 0), compare(unix.NFT_CMP_EQ, 0, 0, 0, 0),
	}
}

// loadEnds loads addresses and ports into three registers.
func loadEnds(to uint32) []attributes {
	return []attributes{
		load(to, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 4), load(to+1, unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4), load(to+2, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4),
	}
}

// What a packet is to the kernel (linux/if_packet.h).
const (
	packetHost      = 0
	packetOtherHost = 3
)

// are makes packets of a kind.
func are(kind byte) []attributes {
	return []attributes{
		expression("immediate", func(e *netlink.AttributeEncoder) {
			e.Uint32(unix.NFTA_IMMEDIATE_DREG, register(checked))
			value(e, unix.NFTA_IMMEDIATE_DATA, []byte{kind, 0, 0, 0})
		}),
		expression("meta", func(e *netlink.AttributeEncoder) {
			e.Uint32(unix.NFTA_META_KEY, unix.NFT_META_PKTTYPE)
			e.Uint32(unix.NFTA_META_SREG, register(checked))
		}),
	}
}

// rewritten looks up the key in the registers before data. A segment that is found is rewritten and sent out by a link, or taken at once; another one goes on to the next rule.
func rewritten(in string, data, link uint32) []attributes {
	all := []attributes{
		expression("lookup", func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_LOOKUP_SET, in)
			e.Uint32(unix.NFTA_LOOKUP_SREG, register(0))
			e.Uint32(unix.NFTA_LOOKUP_DREG, register(data))
		}),
		store(data+3, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 8, 10, true),
		store(data+5, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4, 16, false),
		expression("immediate", func(e *netlink.AttributeEncoder) {
			e.Uint32(unix.NFTA_IMMEDIATE_DREG, register(checked))
			value(e, unix.NFTA_IMMEDIATE_DATA, binary.NativeEndian.AppendUint32(nil, link))
		}),
	}
	if link == atOnce {
		return slices.Concat(all[:len(all)-1], are(packetHost), []attributes{verdict(1)}) // NF_ACCEPT
	}
	return append(all, store(data, unix.NFT_PAYLOAD_LL_HEADER, 0, 12, 0, false),
		expression("fwd", func(e *netlink.AttributeEncoder) { e.Uint32(unix.NFTA_FWD_SREG_DEV, register(checked)) }))
}
