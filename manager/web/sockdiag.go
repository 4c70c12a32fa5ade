package web

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Sizes of linux/inet_diag.h: inet_diag_req_v2 and inet_diag_msg. Both have the socket's id at offsets of their own.
const (
	diagRequest   = 56
	diagRequestID = 8
	diagMessage   = 72
	diagMessageID = 4
	diagID        = 48
	diagUID       = 64
	established   = 1 // TCP_ESTABLISHED
)

// ownerOf is the user of this machine whose established TCP socket has these two addresses (sock_diag(7)). A socket that its owner has closed has none: the
// kernel says 0 of it, which is not root's.
func ownerOf(local, remote netip.AddrPort) (uint32, error) {
	id := make([]byte, diagID) // ports and addresses in the order of the network
	binary.BigEndian.PutUint16(id, local.Port())
	binary.BigEndian.PutUint16(id[2:], remote.Port())
	copy(id[4:20], local.Addr().Unmap().AsSlice())
	copy(id[20:36], remote.Addr().Unmap().AsSlice())
	ask := make([]byte, diagRequest)
	ask[0], ask[1] = unix.AF_INET, unix.IPPROTO_TCP
	if local.Addr().Unmap().Is6() {
		ask[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(ask[4:], 1<<established)
	copy(ask[diagRequestID:], id)
	for i := range 8 { // INET_DIAG_NOCOOKIE
		ask[diagRequestID+40+i] = 0xff
	}
	req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, 0) // not a dump: the one socket
	req.AddRawData(ask)
	answers, err := req.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
	if err != nil {
		return 0, fmt.Errorf("sock_diag: %w", err)
	}
	if len(answers) != 1 || len(answers[0]) < diagMessage {
		return 0, fmt.Errorf("sock_diag: %d answers: want one", len(answers))
	}
	a := answers[0]
	if a[1] != established || string(a[diagMessageID:diagMessageID+36]) != string(id[:36]) { // or else a listener's
		return 0, errors.New("sock_diag: no such socket")
	}
	return binary.NativeEndian.Uint32(a[diagUID:]), nil
}
