package main

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
)

// Of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_tcp.h.
const (
	ctNew                  = unix.NFNL_SUBSYS_CTNETLINK << 8 // and an entry that is there is changed
	ctTupleOrig            = 1
	ctTupleIP              = 1
	ctTupleProto           = 2
	ctIPv4Src, ctIPv4Dst   = 1, 2
	ctIPv6Src, ctIPv6Dst   = 3, 4
	ctProtoNum             = 1
	ctSrcPort, ctDstPort   = 2, 3
	ctProtoInfo            = 4
	ctProtoInfoTCP         = 1
	ctFlagsOrig, ctFlagsRe = 4, 5
	beLiberal              = 8
)

// connections changes the kernel's entries of connections.
type connections struct{ c *netlink.Conn }

func newConnections() (*connections, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("connections of the kernel: %w", err)
	}
	return &connections{c}, nil
}

func (k *connections) close() { _ = k.c.Close() }

// liberal has the kernel take the sequence numbers of a connection as they come. It does not see the segments that pass us by: those that come afterwards would
// be beyond the windows that it knows, and belong to no connection. The flow may be either direction.
func (k *connections) liberal(f nf.Flow) error {
	data, err := liberalRequest(f)
	if err != nil {
		return err
	}
	_, err = k.c.Execute(netlink.Message{Header: netlink.Header{Type: ctNew, Flags: netlink.Request | netlink.Acknowledge}, Data: data})
	if err != nil {
		return fmt.Errorf("change a connection (module nf_conntrack_netlink): %w", err)
	}
	return nil
}

func liberalRequest(f nf.Flow) ([]byte, error) {
	family, src, dst := byte(unix.AF_INET), uint16(ctIPv4Src), uint16(ctIPv4Dst)
	if f.Src.Addr().Is6() {
		family, src, dst = unix.AF_INET6, ctIPv6Src, ctIPv6Dst
	}
	e := netlink.NewAttributeEncoder()
	port := func(to *netlink.AttributeEncoder, kind, n uint16) { to.Bytes(kind, []byte{byte(n >> 8), byte(n)}) }
	e.Nested(ctTupleOrig, func(e *netlink.AttributeEncoder) error {
		e.Nested(ctTupleIP, func(e *netlink.AttributeEncoder) error {
			e.Bytes(src, f.Src.Addr().AsSlice())
			e.Bytes(dst, f.Dst.Addr().AsSlice())
			return nil
		})
		e.Nested(ctTupleProto, func(e *netlink.AttributeEncoder) error {
			e.Uint8(ctProtoNum, f.Proto)
			port(e, ctSrcPort, f.Src.Port())
			port(e, ctDstPort, f.Dst.Port())
			return nil
		})
		return nil
	})
	e.Nested(ctProtoInfo, func(e *netlink.AttributeEncoder) error {
		e.Nested(ctProtoInfoTCP, func(e *netlink.AttributeEncoder) error {
			e.Bytes(ctFlagsOrig, []byte{beLiberal, beLiberal}) // flags, mask
			e.Bytes(ctFlagsRe, []byte{beLiberal, beLiberal})
			return nil
		})
		return nil
	})
	data, err := e.Encode()
	return append([]byte{family, unix.NFNETLINK_V0, 0, 0}, data...), err
}
