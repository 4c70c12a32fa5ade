package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// attr is one netlink attribute.
func attr(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), data...)
	return append(b, make([]byte, (4-len(b)%4)%4)...)
}

func word(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// ask sends one rtnetlink request and returns the kernel's answer; with a dump, whether anything was listed.
func ask(kind, flags uint16, index int32, attrs ...[]byte) (listed int, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	body := make([]byte, 16) // struct ifinfomsg
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	for _, a := range attrs {
		body = append(body, a...)
	}
	msg := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, unix.NLM_F_REQUEST|flags)
	msg = append(append(msg, word(1)...), word(0)...)
	if err := unix.Sendto(fd, append(msg, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	b := make([]byte, 8<<10) // the kernel splits longer dumps
	for {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			return listed, err
		}
		msgs, err := syscall.ParseNetlinkMessage(b[:n])
		if err != nil {
			return listed, err
		}
		for _, m := range msgs {
			switch m.Header.Type {
			case unix.NLMSG_ERROR:
				if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
					return listed, unix.Errno(-code)
				}
				return listed, nil
			case unix.NLMSG_DONE:
				return listed, nil
			default:
				listed++
			}
		}
	}
}

// made is a new link's name and kind.
func made(name, kind string, more ...[]byte) [][]byte {
	return append([][]byte{attr(unix.IFLA_IFNAME, []byte(name+"\x00")), attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, attr(unix.IFLA_INFO_KIND, []byte(kind+"\x00")))}, more...)
}

// namespaces are the ids under which other network namespaces may be known here; that of the peers of in and out is the host's.
const namespaces = 16

func each(try func(id uint32) (string, string)) (string, string) {
	var tries []func() (string, string)
	for id := range uint32(namespaces) {
		tries = append(tries, func() (string, string) { return try(id) })
	}
	return all(tries...)
}

// noLink is the index of no link.
const noLink = 1 << 30

const create = unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL

func netlinkAttempts() []attempt {
	return []attempt{
		{"link-in-host", func() (string, string) { // IFLA_TARGET_NETNSID
			return each(func(id uint32) (string, string) {
				for _, kind := range []string{"dummy", "bridge", "ifb"} {
					if _, err := ask(unix.RTM_NEWLINK, create, 0, made("esc0", kind, attr(unix.IFLA_TARGET_NETNSID, word(id)))...); err == nil {
						return escaped, fmt.Sprintf("made a %s in namespace %d", kind, id)
					} else if !errors.Is(err, unix.EOPNOTSUPP) {
						return refused, err.Error()
					}
				}
				return refused, "unknown kinds"
			})
		}},
		{"list-host-links", func() (string, string) {
			return each(func(id uint32) (string, string) {
				n, err := ask(unix.RTM_GETLINK, unix.NLM_F_DUMP, 0, attr(unix.IFLA_TARGET_NETNSID, word(id)))
				if err == nil && n == 0 {
					err = errors.New("nothing is listed")
				}
				return no(err, escaped, fmt.Sprintf("%d links of namespace %d", n, id))
			})
		}},
		{"delete-host-link", func() (string, string) {
			return each(func(id uint32) (string, string) {
				for index := int32(2); index < 64; index++ {
					if _, err := ask(unix.RTM_DELLINK, unix.NLM_F_ACK, index, attr(unix.IFLA_TARGET_NETNSID, word(id))); err == nil {
						return escaped, fmt.Sprintf("deleted link %d of namespace %d", index, id)
					} else if !errors.Is(err, unix.ENODEV) {
						return refused, err.Error()
					}
				}
				return refused, "no such link"
			})
		}},
		{"set-host-link-down", func() (string, string) {
			return each(func(id uint32) (string, string) {
				_, err := ask(unix.RTM_SETLINK, unix.NLM_F_ACK, 2, attr(unix.IFLA_TARGET_NETNSID, word(id)), attr(unix.IFLA_MTU, word(1400)))
				return no(err, escaped, fmt.Sprintf("changed a link of namespace %d", id))
			})
		}},
		{"macvlan-on-host", func() (string, string) { // IFLA_LINK_NETNSID: the lower link is the host's
			link := func(id uint32, kind string, index uint32) error {
				_, err := ask(unix.RTM_NEWLINK, create, 0, made("esc1", kind, attr(unix.IFLA_LINK, word(index)), attr(unix.IFLA_LINK_NETNSID, word(id)))...)
				return err
			}
			return each(func(id uint32) (string, string) {
				var last error
				for _, kind := range []string{"macvlan", "macvtap", "vlan", "ipvlan"} {
					if last = link(id, kind, noLink); !errors.Is(last, unix.ENODEV) {
						continue // refused before the kernel looks for the link
					}
					for index := uint32(1); index < 64; index++ {
						if last = link(id, kind, index); last == nil {
							return escaped, fmt.Sprintf("a %s on link %d of namespace %d", kind, index, id)
						}
					}
				}
				return refused, last.Error()
			})
		}},
		{"veth-into-host", func() (string, string) {
			return each(func(id uint32) (string, string) {
				peer := append(make([]byte, 16), attr(unix.IFLA_IFNAME, []byte("esc2\x00"))...)
				peer = append(peer, attr(unix.IFLA_TARGET_NETNSID, word(id))...)
				info := append(attr(unix.IFLA_INFO_KIND, []byte("veth\x00")), attr(2|unix.NLA_F_NESTED, attr(1|unix.NLA_F_NESTED, peer))...) // IFLA_INFO_DATA, VETH_INFO_PEER
				_, err := ask(unix.RTM_NEWLINK, create, 0, attr(unix.IFLA_IFNAME, []byte("esc3\x00")), attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, info))
				if err == nil { // the peer's attribute may be taken for nothing: then it is here
					_, gone := ask(unix.RTM_DELLINK, unix.NLM_F_ACK, 0, attr(unix.IFLA_IFNAME, []byte("esc2\x00")))
					if gone == nil {
						return harmless, "a veth in its own namespace"
					}
				}
				return no(err, escaped, fmt.Sprintf("a veth into namespace %d", id))
			})
		}},
		{"vxlan-from-host", func() (string, string) { // a tunnel whose socket is in the host
			return each(func(id uint32) (string, string) {
				data := append(attr(1, word(42)), attr(15, []byte{0x12, 0xb5})...) // IFLA_VXLAN_ID, IFLA_VXLAN_PORT
				info := append(attr(unix.IFLA_INFO_KIND, []byte("vxlan\x00")), attr(2|unix.NLA_F_NESTED, data)...)
				_, err := ask(unix.RTM_NEWLINK, create, 0, attr(unix.IFLA_IFNAME, []byte("esc4\x00")), attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, info), attr(unix.IFLA_LINK_NETNSID, word(id)))
				return no(err, escaped, fmt.Sprintf("a tunnel of namespace %d", id))
			})
		}},
		{"link-to-pid", func() (string, string) { // give a link to another process's namespace
			own, _ := os.Readlink("/proc/self/ns/net")
			for pid := uint32(1); pid < 64; pid++ {
				other, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
				if err != nil || other == own {
					continue
				}
				if _, err := ask(unix.RTM_NEWLINK, create, 0, made("esc5", "bridge", attr(unix.IFLA_NET_NS_PID, word(pid)))...); err == nil {
					return escaped, fmt.Sprintf("a bridge in the namespace of process %d", pid)
				}
			}
			return refused, "no process of another network namespace"
		}},
	}
}
