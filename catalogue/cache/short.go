package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// shortcut hands segments of connections that last from the port in to the link of nginx and back without the loop: the kernel rewrites them, by maps of nftables at
// the ingress of both. The loop sees a connection's begin and end, and what the maps do not know.
//
//	in ── ingress: key in "up"?   ── addresses and ports of the link ── out by the loop's end ── nginx
//	in ── addresses and ports of the connection ── key in "down"? ingress ── the loop's end ── nginx
//
// The kernel removes the table when the function ends (it is the owner's), so nothing passes without it.
type shortcut struct {
	fd   int
	link []byte // addresses of Ethernet of what goes to nginx
}

// shortFor is how long a connection is in the maps. Then the loop sees a segment of it, knows that it lives, and puts it in again.
const shortFor = 10 * time.Second

const (
	shortTable = "cache"
	upMap      = "up"   // client's MAC address, addresses, ports
	downMap    = "down" // addresses, ports
	upKey      = 20
	downKey    = 12
	shortValue = 24 // addresses of Ethernet and of IPv4, ports

	ownedTable = 2 // NFT_TABLE_F_OWNER, Linux 5.12
)

// openShortcut makes the table. header begins with the addresses of Ethernet of frames to nginx.
func openShortcut(in, loop string, header []byte) (*shortcut, error) {
	index := map[string]uint32{}
	for _, name := range []string{in, loop} {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return nil, err
		}
		index[name] = uint32(i.Index)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("netlink socket of netfilter: %w", err)
	}
	s := &shortcut{fd, slices.Clone(header[:12])}
	if err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err == nil {
		err = s.say(shortTables(in, loop, index)...)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("nftables (CONFIG_NF_TABLES_NETDEV, CONFIG_NFT_FWD_NETDEV): %w", err)
	}
	return s, nil
}

// Close removes the table.
func (s *shortcut) Close() { unix.Close(s.fd) }

// entries of a connection in the maps.
func (s *shortcut) entries(c *conn) (up, down, toNginx, toClient []byte) {
	client, server := c.key.client.addr.As4(), c.key.server.addr.As4()
	from, to := address(asClient, c.ends.client).As4(), address(asServer, c.ends.server).As4()
	up = slices.Concat(c.header[6:12], []byte{0, 0}, client[:], server[:], ports(c.key.clientPort, c.key.serverPort))
	toNginx = slices.Concat(s.link, from[:], to[:], ports(c.ends.clientPort, c.ends.serverPort))
	down = slices.Concat(to[:], from[:], ports(c.ends.serverPort, c.ends.clientPort))
	toClient = slices.Concat(c.header[6:12], c.header[:6], server[:], client[:], ports(c.key.serverPort, c.key.clientPort))
	return up, down, toNginx, toClient
}

func ports(src, dst uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst)
}

// add a connection for shortFor.
func (s *shortcut) add(c *conn) error {
	up, down, toNginx, toClient := s.entries(c)
	return s.say(element(unix.NFT_MSG_NEWSETELEM, upMap, up, toNginx), element(unix.NFT_MSG_NEWSETELEM, downMap, down, toClient))
}

// remove a connection, each entry by itself: one may have had its time.
func (s *shortcut) remove(c *conn) error {
	up, down, _, _ := s.entries(c)
	var errs error
	for _, m := range []netlink.Message{element(unix.NFT_MSG_DELSETELEM, upMap, up, nil), element(unix.NFT_MSG_DELSETELEM, downMap, down, nil)} {
		if err := s.say(m); !errors.Is(err, unix.ENOENT) {
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

// say is one transaction. The kernel carries it out at once, and answers only if it does not.
func (s *shortcut) say(messages ...netlink.Message) error {
	const batch = 10 // NFNL_SUBSYS_NFTABLES as the subject of both ends
	bound := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request}, Data: []byte{0, 0, 0, batch}}
	}
	var out []byte
	for _, m := range slices.Concat([]netlink.Message{bound(unix.NFNL_MSG_BATCH_BEGIN)}, messages, []netlink.Message{bound(unix.NFNL_MSG_BATCH_END)}) {
		m.Header.Length = uint32(unix.SizeofNlMsghdr + len(m.Data))
		b, err := m.MarshalBinary()
		if err != nil {
			return err
		}
		out = append(out, b...)
	}
	if err := unix.Sendto(s.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	var errs error
	for b := make([]byte, 16<<10); ; {
		n, _, err := unix.Recvfrom(s.fd, b, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			return errs
		}
		if err != nil {
			return errors.Join(errs, err)
		}
		if n >= unix.SizeofNlMsghdr+4 && binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR {
			if code := int32(binary.NativeEndian.Uint32(b[unix.SizeofNlMsghdr:])); code != 0 {
				errs = errors.Join(errs, unix.Errno(-code))
			}
		}
	}
}

// attributes of a message of netfilter.
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

func element(kind int, of string, key, data []byte) netlink.Message {
	return message(kind, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_ELEM_LIST_TABLE, shortTable)
		e.String(unix.NFTA_SET_ELEM_LIST_SET, of)
		inside(e, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(e *netlink.AttributeEncoder) {
			inside(e, unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) {
				value(e, unix.NFTA_SET_ELEM_KEY, key)
				if data != nil {
					value(e, unix.NFTA_SET_ELEM_DATA, data)
				}
			})
		})
	})
}

// shortTables are the table, its maps and its chains.
func shortTables(in, loop string, index map[string]uint32) []netlink.Message {
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
			inside(e, unix.NFTA_SET_DESC, func(e *netlink.AttributeEncoder) { e.Uint32(unix.NFTA_SET_DESC_SIZE, maxConnections) })
		}))
	}
	for _, link := range []string{in, loop} {
		all = append(all, message(unix.NFT_MSG_NEWCHAIN, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_CHAIN_TABLE, shortTable)
			e.String(unix.NFTA_CHAIN_NAME, link)
			e.String(unix.NFTA_CHAIN_TYPE, "filter")
			inside(e, unix.NFTA_CHAIN_HOOK, func(e *netlink.AttributeEncoder) {
				e.Uint32(unix.NFTA_HOOK_HOOKNUM, unix.NF_NETDEV_INGRESS)
				e.Uint32(unix.NFTA_HOOK_PRIORITY, 0)
				e.String(unix.NFTA_HOOK_DEV, link)
			})
		}))
	}
	// What has a VLAN tag is the loop's before it comes here, and would come to it again without.
	untagged := slices.Concat([]attributes{load(checked, unix.NFT_PAYLOAD_LL_HEADER, 12, 2), compare(unix.NFT_CMP_NEQ, 8, 0)}, drop())
	up := slices.Concat(plainSegments(), []attributes{
		load(0, unix.NFT_PAYLOAD_LL_HEADER, 6, 6), load(2, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 8), load(4, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4),
	}, rewritten(upMap, 5, index[loop]))
	down := slices.Concat(plainSegments(), []attributes{
		load(0, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 8), load(2, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4),
	}, rewritten(downMap, 3, index[in]))
	return append(all, rule(in, untagged), rule(in, up), rule(loop, down))
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

// checked is the register of what is compared. Registers have 4 bytes each.
const checked = 15

func register(n uint32) uint32 { return unix.NFT_REG32_00 + n }

func expression(name string, data attributes) attributes {
	return func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_EXPR_NAME, name)
		inside(e, unix.NFTA_EXPR_DATA, data)
	}
}

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

func drop() []attributes {
	return []attributes{expression("immediate", func(e *netlink.AttributeEncoder) {
		e.Uint32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		inside(e, unix.NFTA_IMMEDIATE_DATA, func(e *netlink.AttributeEncoder) {
			inside(e, unix.NFTA_DATA_VERDICT, func(e *netlink.AttributeEncoder) { e.Uint32(unix.NFTA_VERDICT_CODE, 0) }) // NF_DROP
		})
	})}
}

// plainSegments goes on for those of TCP over IPv4, whole and without options of IP, that neither begin nor end a connection.
func plainSegments() []attributes {
	return []attributes{
		load(checked, unix.NFT_PAYLOAD_NETWORK_HEADER, 0, 1), compare(unix.NFT_CMP_EQ, 0x45),
		load(checked, unix.NFT_PAYLOAD_NETWORK_HEADER, 6, 4), mask(0x3f, 0xff, 0, 0xff), compare(unix.NFT_CMP_EQ, 0, 0, 0, unix.IPPROTO_TCP),
		load(checked, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1), mask(0x07), compare(unix.NFT_CMP_EQ, 0), // FIN, SYN, RST
	}
}

// rewritten looks the key up that begins in register 0, and ends before register data. What is found is sent out by a link.
func rewritten(in string, data, link uint32) []attributes {
	return []attributes{
		expression("lookup", func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_LOOKUP_SET, in)
			e.Uint32(unix.NFTA_LOOKUP_SREG, register(0))
			e.Uint32(unix.NFTA_LOOKUP_DREG, register(data))
		}),
		store(data, unix.NFT_PAYLOAD_LL_HEADER, 0, 12, 0, false),
		store(data+3, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 8, 10, true),
		store(data+5, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4, 16, false),
		expression("immediate", func(e *netlink.AttributeEncoder) {
			e.Uint32(unix.NFTA_IMMEDIATE_DREG, register(checked))
			value(e, unix.NFTA_IMMEDIATE_DATA, binary.NativeEndian.AppendUint32(nil, link))
		}),
		expression("fwd", func(e *netlink.AttributeEncoder) { e.Uint32(unix.NFTA_FWD_SREG_DEV, register(checked)) }),
	}
}
