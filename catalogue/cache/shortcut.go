package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// kernelShortcut hands on segments of connections between clients and nginx without the loop: maps of nftables say how the kernel rewrites them. What the maps do not
// know, and each begin and end of a connection, goes on to the loop.
//
//	from in    ── "up": addresses and ports of the link          ── nginx, or out by the loop's end ── nginx
//	from nginx ── "down": addresses and ports of the connection  ── out by in
//
// The table belongs to its socket: the kernel removes it when the function ends, so nothing passes without the function.
type kernelShortcut struct {
	fd     int
	toward []byte // addresses of Ethernet of frames to nginx
	answer []byte // room for what the kernel says
	atOnce bool   // the kernel takes rewritten segments at the port in
}

// shortFor is how long entries stay in the maps. The next segment then goes to the loop, which sees that the connection lives and makes new ones.
const shortFor = 10 * time.Second

const (
	shortTable = "cache"
	upMap      = "up"   // of the client's MAC address and the EtherType, addresses, ports
	downMap    = "down" // of addresses, ports
	upKey      = 20
	downKey    = 12
	shortValue = 24 // addresses of Ethernet, addresses, ports

	mostEntries = 2 * maxConnections // those that have had their time count for a while
	mostAtOnce  = 64                 // connections of one transaction
	ownedTable  = 2                  // NFT_TABLE_F_OWNER, Linux 5.12
)

// hook is where a chain sees frames.
type hook struct {
	link string
	kind uint32 // NF_NETDEV_...
}

// openShortcut makes the table. in is the port, kernel and loop are the ends of the link, and header begins with the addresses of Ethernet of frames to nginx.
func openShortcut(in, kernel, loop string, header []byte, ports []uint16) (*kernelShortcut, error) {
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
	k := &kernelShortcut{fd: fd, toward: slices.Clone(header[:12]), answer: make([]byte, 16<<10)}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		ways := []uint32{index[loop]}
		if takesAtOnce(in, ports) {
			ways = []uint32{atOnce, index[loop]}
		}
		for _, up := range ways {
			for _, nginx := range []hook{{kernel, unix.NF_NETDEV_EGRESS}, {loop, unix.NF_NETDEV_INGRESS}} { // the former saves a way through the link: Linux 5.16
				if err = k.say(shortTables(hook{in, unix.NF_NETDEV_INGRESS}, nginx, index[in], up)...); err == nil {
					k.atOnce = up == atOnce
					return k, nil
				}
			}
		}
	}
	k.Close()
	return nil, fmt.Errorf("nftables: %w (Linux 5.12, CONFIG_NF_TABLES_NETDEV, CONFIG_NFT_FWD_NETDEV)", err)
}

// atOnce is in the place of a link: the kernel takes a rewritten segment where it is, as one for this host.
const atOnce = 0

// takesAtOnce tells whether that is possible at the port in: the kernel must not look for a way back by it (strict rp_filter), and none of nginx's own ports may be
// one that the loop takes for a configured one.
func takesAtOnce(in string, ports []uint16) bool {
	for _, p := range ports {
		if p >= listenFrom && p < listenFrom+maxPorts {
			return false
		}
	}
	most := 0
	for _, name := range []string{"all", in} {
		raw, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/rp_filter")
		if err != nil {
			return false
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil {
			return false
		}
		most = max(most, n)
	}
	return most != 1
}

// Close removes the table.
func (k *kernelShortcut) Close() { unix.Close(k.fd) }

// entry of a map.
type entry struct{ key, value []byte }

// entries of a connection in both maps.
func (k *kernelShortcut) entries(c *conn) (up, down entry) {
	client, server := c.key.client.addr.As4(), c.key.server.addr.As4()
	from, to := address(asClient, c.ends.client).As4(), address(asServer, c.ends.server).As4()
	up.key = slices.Concat(c.header[6:14], client[:], server[:], ports(c.key.clientPort, c.key.serverPort))
	up.value = slices.Concat(k.toward, from[:], to[:], ports(c.ends.clientPort, c.ends.serverPort))
	down.key = slices.Concat(to[:], from[:], ports(c.ends.serverPort, c.ends.clientPort))
	down.value = slices.Concat(c.header[6:12], c.header[:6], server[:], client[:], ports(c.key.serverPort, c.key.clientPort))
	return up, down
}

func ports(src, dst uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst)
}

// add a connection for shortFor.
func (k *kernelShortcut) add(c *conn) error {
	up, down := k.entries(c)
	return k.say(elements(unix.NFT_MSG_NEWSETELEM, upMap, up), elements(unix.NFT_MSG_NEWSETELEM, downMap, down))
}

// remove connections, whether they have had their time or not. They are added before: a transaction that finds one missing fails, and takes the kernel's time.
func (k *kernelShortcut) remove(all []*conn) error {
	var errs error
	for some := range slices.Chunk(all, mostAtOnce) {
		var up, down []entry
		for _, c := range some {
			u, d := k.entries(c)
			up, down = append(up, u), append(down, d)
		}
		errs = errors.Join(errs, k.say(
			elements(unix.NFT_MSG_NEWSETELEM, upMap, up...), elements(unix.NFT_MSG_NEWSETELEM, downMap, down...),
			elements(unix.NFT_MSG_DELSETELEM, upMap, up...), elements(unix.NFT_MSG_DELSETELEM, downMap, down...)))
	}
	return errs
}

// say is one transaction. The kernel carries it out at once, and answers only if it does not.
func (k *kernelShortcut) say(messages ...netlink.Message) error {
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
	if err := unix.Sendto(k.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	var first error
	for {
		n, _, err := unix.Recvfrom(k.fd, k.answer, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return first
		case err != nil:
			return err
		case first == nil && n >= unix.SizeofNlMsghdr+4 && binary.NativeEndian.Uint16(k.answer[4:]) == unix.NLMSG_ERROR:
			if code := int32(binary.NativeEndian.Uint32(k.answer[unix.SizeofNlMsghdr:])); code != 0 {
				first = unix.Errno(-code)
			}
		}
	}
}
