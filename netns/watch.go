package netns

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// LinkEvent tells what became of an interface.
type LinkEvent struct {
	Index   int
	Name    string
	Gone    bool // it was removed, or moved to another namespace
	Up      bool // set up
	Carrier bool // and connected: of a veth, its peer is up, too
	Lost    bool // events were lost: anything may have changed; the other fields say nothing
}

// WatchLinks calls f with what happens to the namespace's interfaces until ctx ends. f must not take long: what the kernel cannot hand
// over is lost, and told as such.
func (s *Space) WatchLinks(ctx context.Context, f func(LinkEvent)) error {
	var file *os.File
	err := s.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_LINK - 1)}); err != nil {
			unix.Close(fd)
			return err
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) // best effort: fewer events lost
		file = os.NewFile(uintptr(fd), "links")
		return nil
	})
	if err != nil {
		return fmt.Errorf("watch links in %s: %w", s, err)
	}
	defer file.Close()
	stop := context.AfterFunc(ctx, func() { file.Close() }) // which ends Read
	defer stop()
	buf := make([]byte, 64<<10)
	for {
		n, err := file.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			f(LinkEvent{Lost: true})
			continue
		case err != nil:
			return fmt.Errorf("watch links in %s: %w", s, err)
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofNlMsghdr; {
			length := int(nl.NativeEndian().Uint32(rest))
			kind := nl.NativeEndian().Uint16(rest[4:])
			if length < unix.SizeofNlMsghdr || length > len(rest) {
				break // cut short
			}
			if e, ok := linkEvent(kind, rest[unix.SizeofNlMsghdr:length]); ok {
				f(e)
			}
			rest = rest[min(len(rest), (length+3)&^3):]
		}
	}
}

func linkEvent(kind uint16, m []byte) (LinkEvent, bool) {
	if kind != unix.RTM_NEWLINK && kind != unix.RTM_DELLINK || len(m) < unix.SizeofIfInfomsg || m[0] != unix.AF_UNSPEC { // a bridge tells of its ports, too
		return LinkEvent{}, false
	}
	msg := nl.DeserializeIfInfomsg(m)
	e := LinkEvent{
		Index: int(msg.Index), Gone: kind == unix.RTM_DELLINK,
		Up: msg.Flags&unix.IFF_UP != 0, Carrier: msg.Flags&unix.IFF_LOWER_UP != 0,
	}
	for rest := m[unix.SizeofIfInfomsg:]; len(rest) >= 4; { // only the name: the whole is parsed a hundred times slower
		length, attr := int(nl.NativeEndian().Uint16(rest)), nl.NativeEndian().Uint16(rest[2:])
		if length < 4 || length > len(rest) {
			break
		}
		if attr == unix.IFLA_IFNAME {
			e.Name = text(rest[4:length])
			break
		}
		rest = rest[min(len(rest), (length+3)&^3):]
	}
	return e, true
}
