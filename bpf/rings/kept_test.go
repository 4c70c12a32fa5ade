package rings

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// corked is what a UDP socket counts: what it can hold back.
const corked = 120 << 10

// taken are ways to have the kernel keep memory for a socket. Each fills one socket more, and fails when the kernel gives no more.
var taken = map[string]func(i int) error{
	"a datagram": func(int) error { return hold(unix.AF_INET, 0, 65507) },
	"a datagram of IPv6 in small fragments": func(int) error {
		return hold(unix.AF_INET6, 0, 65487)
	},
	"a datagram of UDP-Lite":                 func(int) error { return hold(unix.AF_INET, unix.IPPROTO_UDPLITE, 65507) },
	"what was sent by UDP, asked by option":  func(int) error { return told(sent, 0, 0) },
	"what was sent by UDP, asked by message": func(int) error { return told(0, sent, 0) },
	"what was sent by UDP, in a long queue":  func(int) error { return told(sent, 0, setting("rmem_max")) },
	"what was sent by TCP, asked by option":  func(int) error { return toldOfTCP(sent, 0) },
	"what was sent by TCP, asked by message": func(int) error { return toldOfTCP(0, sent) },
	"what arrived by TCP, asked by message":  func(int) error { return toldOfTCP(0, unix.SOF_TIMESTAMPING_TX_ACK) },
	"errors":                                 func(int) error { return erred(0) },
	"errors, in a long queue":                func(int) error { return erred(setting("rmem_max")) },
	"memberships":                            joined,
	"memberships of IPv4":                    joined4,
	"sources":                                sourced,
	"filters":                                func(int) error { return filtered(setting("optmem_max") / 200) }, // about the most that the kernel takes of such statements
}

const sent = unix.SOF_TIMESTAMPING_TX_SCHED | unix.SOF_TIMESTAMPING_TX_SOFTWARE

// take fills sockets in one way, and keeps them.
func take(way string, n int) (err error) {
	err = upLo()
	for i := 0; i < n && err == nil; i++ {
		err = taken[way](i)
	}
	return err
}

var loopback = &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}

// hold has a UDP socket hold back a datagram.
func hold(family, protocol, bytes int) error {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM, protocol)
	if err != nil {
		return err
	}
	var to unix.Sockaddr = loopback
	if family == unix.AF_INET6 {
		to = &unix.SockaddrInet6{Port: 9, Addr: [16]byte{15: 1}}
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU, 1280)
	}
	return errors.Join(err, unix.Sendto(fd, make([]byte, bytes), unix.MSG_MORE, to))
}

// message asks for timestamps.
func message(flags int) []byte {
	if flags == 0 {
		return nil
	}
	b := make([]byte, unix.CmsgSpace(4))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.SOL_SOCKET, unix.SO_TIMESTAMPING
	h.SetLen(unix.CmsgLen(4))
	binary.NativeEndian.PutUint32(b[unix.CmsgLen(0):], uint32(flags))
	return b
}

// told has a UDP socket be told of what it sends, and reads nothing.
func told(option, asked, queue int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err == nil && option != 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, option|unix.SOF_TIMESTAMPING_OPT_TSONLY)
	}
	if err == nil && queue != 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, queue)
	}
	length := 0
	if err == nil {
		length, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	}
	for i := 0; i < length/512 && err == nil; i++ {
		err = unix.Sendmsg(fd, []byte{1}, message(asked), loopback, 0)
	}
	return err
}

// accepted is a connection: the listener, who has asked for it, and who was accepted. ask is done with the listener first.
func accepted(ask func(l int) error) (l, c, a int, err error) {
	if l, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err == nil {
		err = ask(l)
	}
	if err == nil {
		err = errors.Join(unix.Bind(l, &unix.SockaddrInet4{Addr: loopback.Addr}), unix.Listen(l, 1))
	}
	if err != nil {
		return
	}
	at, err := unix.Getsockname(l)
	if err == nil {
		c, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	}
	if err == nil {
		err = unix.Connect(c, at)
	}
	if err == nil {
		a, _, err = unix.Accept(l)
	}
	return
}

// connects has a socket that comes from accept make a connection of its own: it is told of errors as its listener is.
func connects() error {
	_, c, a, err := accepted(func(l int) error { return unix.SetsockoptInt(l, unix.SOL_IP, unix.IP_RECVERR, 1) })
	if err == nil {
		err = unix.Close(c)
	}
	if err != nil {
		return err
	}
	if _, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(a), uintptr(unsafe.Pointer(&unix.RawSockaddr{Family: unix.AF_UNSPEC})), unix.SizeofSockaddrInet4); e != 0 {
		return e
	}
	if err := unix.SetNonblock(a, true); err != nil {
		return err
	}
	return unix.Connect(a, &unix.SockaddrInet4{Port: 1, Addr: [4]byte{127, 0, 0, 2}})
}

// toldOfTCP has a socket that comes from accept be told of what it sends.
func toldOfTCP(option, asked int) error {
	l, c, fd, err := accepted(func(l int) error {
		if option == 0 {
			return nil
		}
		return unix.SetsockoptInt(l, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, option|unix.SOF_TIMESTAMPING_OPT_TSONLY)
	})
	if err == nil {
		err = errors.Join(unix.Close(l), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	}
	for i, got := 0, 0; i < 400 && err == nil; i++ {
		err = unix.Sendmsg(fd, []byte{1}, message(asked), nil, unix.MSG_DONTWAIT)
		if n, _, rerr := unix.Recvfrom(c, make([]byte, 16), unix.MSG_DONTWAIT); rerr == nil {
			got += n
		}
		if i == 50 && got == 0 {
			return nil // what it sends is dropped
		}
	}
	return err
}

// erred has a UDP socket be told of errors: its datagrams are too long for the path.
func erred(queue int) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
	if err == nil && queue != 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, queue)
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	}
	length := 0
	if err == nil {
		length, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	}
	if err != nil {
		return err
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU, 1280), unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO),
		unix.Connect(fd, &unix.SockaddrInet6{Port: 9, Addr: [16]byte{15: 1}}))
	for i := 0; i < length/512 && err == nil; i++ {
		if err = unix.Send(fd, make([]byte, 2000), 0); err == unix.EMSGSIZE {
			err = nil
		}
	}
	return err
}

// joined has a socket be in as many groups of its own as the kernel lets it.
func joined(i int) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	for n := range 1 << 14 {
		m := unix.IPv6Mreq{Multiaddr: [16]byte{0xff, 2}, Interface: 1}
		binary.BigEndian.PutUint64(m.Multiaddr[8:], uint64(i<<16+n))
		if err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &m); err != nil {
			if n == 0 {
				return err
			}
			return nil
		}
	}
	return nil
}

func joined4(i int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	for n := 0; n < 20 && err == nil; n++ { // net.ipv4.igmp_max_memberships
		err = unix.SetsockoptIPMreq(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreq{Multiaddr: [4]byte{232, byte(i >> 8), byte(i), byte(n)}, Interface: loopback.Addr})
	}
	return err
}

// sourced has a socket hear many sources of groups of its own.
func sourced(i int) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	var req struct { // struct group_source_req
		face, _       uint32
		group, source struct {
			unix.RawSockaddrInet6
			_ [100]byte
		}
	}
	req.face = 1
	req.group.Family, req.source.Family = unix.AF_INET6, unix.AF_INET6
	req.group.Addr = [16]byte{0xff, 2}
	req.source.Addr[0] = 0x20
	for n := range 1 << 14 {
		binary.BigEndian.PutUint64(req.group.Addr[8:], uint64(i<<16+n/64))
		binary.BigEndian.PutUint64(req.source.Addr[8:], uint64(n+1))
		if err := setsockopt(fd, unix.IPPROTO_IPV6, unix.MCAST_JOIN_SOURCE_GROUP, unsafe.Slice((*byte)(unsafe.Pointer(&req)), unsafe.Sizeof(req))); err != nil {
			if n == 0 {
				return err
			}
			return nil
		}
	}
	return nil
}

// filtered has a socket have a filter.
func filtered(statements int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	return filter(fd, unix.SO_ATTACH_FILTER, statements)
}

func filter(fd, option, statements int) error {
	f := slices.Repeat([]unix.SockFilter{{Code: 0x20}}, statements) // ld [0]
	f[statements-1] = unix.SockFilter{Code: 0x06}                   // ret #0
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, option, &unix.SockFprog{Len: uint16(statements), Filter: &f[0]})
}

// memory is what the kernel has for itself, in pieces of less than 8 KiB.
func memory(t *testing.T) int64 {
	t.Helper()
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, m := range regexp.MustCompile(`(?m)^(?:SUnreclaim): +(\d+) kB`).FindAllSubmatch(raw, -1) {
		n, _ := strconv.ParseInt(string(m[1]), 10, 64)
		sum += n << 10
	}
	return sum
}

// TestWhatTheKernelKeepsForSocketsIsBounded: what is counted is no less than what the kernel takes, as far as others let that be seen.
func TestWhatTheKernelKeepsForSocketsIsBounded(t *testing.T) {
	for way := range taken {
		t.Run(way, func(t *testing.T) {
			for tries := 3; ; tries-- {
				took, counted := takes(t, way)
				if took <= counted+counted/4+4*mib {
					return
				}
				if tries == 1 {
					t.Fatalf("the kernel took %d KiB, and %d KiB count", took>>10, counted>>10)
				}
			}
		})
	}
}

// takes has a process take what it gets in a way, and tells what the kernel took, and what counts.
func takes(t *testing.T, way string) (took, counted int64) {
	t.Helper()
	most, sockets := 12*mib, 1000
	switch {
	case strings.Contains(way, "TCP"):
		sockets = 300
	case way == "memberships": // the kernel goes over all of them for each
		most, sockets = 6*mib, 12*(128<<10)/setting("optmem_max")
	}
	scope := group(t, top(), fmt.Sprintf("weir-kept-%d-%d", os.Getpid(), time.Now().UnixNano()))
	b := attached(t, scope, uint64(most))
	a := join(t, group(t, scope, "one"))
	before := memory(t)
	fmt.Fprintf(a.in, "take %d %s\n", sockets, way)
	if !a.out.Scan() {
		t.Fatal("the process is gone")
	}
	took = memory(t) - before
	got := swept(t, b)["one"]
	t.Logf("it ended with %v; the kernel took %d KiB, %d KiB count, %d were refused", unix.Errno(must(strconv.Atoi(a.out.Text()))), took>>10, got.Bytes>>10, got.Refused)
	if got.Bytes > uint64(most) || got.Refused == 0 {
		t.Errorf("%+v: want %d bytes at most, and some that are refused", got, most)
	}
	a.end()
	for deadline := time.Now().Add(10 * time.Second); swept(t, b)["one"].Bytes != 0; {
		if time.Now().After(deadline) {
			t.Fatal("it counts 10 s after all was closed")
		}
	}
	return took, int64(got.Bytes)
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

// TestSocketsOfUDPAreBounded: each can hold back a datagram, until it is closed.
func TestSocketsOfUDPAreBounded(t *testing.T) {
	udp, udp6, lite := fmt.Sprint(unix.AF_INET, unix.SOCK_DGRAM, 0), fmt.Sprint(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP), fmt.Sprint(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE)
	scope := group(t, top(), "weir-kept-udp-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, 3*corked)
	a, o := join(t, group(t, scope, "one")), join(t, group(t, scope, "two"))
	if !a.can(lite) { // Linux 7.1 has no UDP-Lite
		lite = udp
	}
	full := func() {
		t.Helper()
		for _, kind := range []string{udp, udp6, lite} {
			a.does(unix.ENOMEM, "socket x "+kind)
		}
		a.does(0, fmt.Sprintf("socket t %d %d 0", unix.AF_INET6, unix.SOCK_STREAM))
		a.does(0, "close t")
	}
	for i, kind := range []string{udp, udp6, lite} {
		a.does(0, fmt.Sprintf("socket %d %s", i, kind))
	}
	full()
	// It is not closed as long as somebody has it.
	a.does(0, "dup 0 3")
	a.does(0, "close 0")
	full()
	a.does(0, "close 3")
	a.does(0, "socket 0 "+lite)
	full()
	a.does(0, "pass 1")
	full()
	a.does(0, "receive 1")
	full()
	a.does(0, "close 1")
	a.does(0, "socket 1 "+udp6)
	full()
	if got := swept(t, b)["one"]; got.Bytes != 3*corked || got.Refused != 18 {
		t.Errorf("%+v, want 3 sockets, 18 refused", got)
	}
	// What it holds back when it is closed is gone soon.
	a.does(0, "hold 1")
	a.does(0, "close 1")
	for deadline := time.Now().Add(5 * time.Second); swept(t, b)["one"].Bytes != 2*corked; {
		if time.Now().After(deadline) {
			t.Fatal("it counts 5 s after it was closed")
		}
	}
	a.does(0, "socket 1 "+udp)
	o.does(0, "socket x "+udp)
	if got := swept(t, b)["two"].Bytes; got != corked {
		t.Errorf("%d bytes of another group, want one socket", got)
	}
}

// TestWhoIsToldCounts: as much as a socket may be told of before anybody reads it, whichever it asks for first.
func TestWhoIsToldCounts(t *testing.T) {
	usual, long := setting("rmem_default"), 2*min(setting("rmem_max"), 4*mib)
	udp := fmt.Sprint(unix.AF_INET, unix.SOCK_DGRAM, 0)
	scope := group(t, top(), "weir-kept-told-"+strconv.Itoa(os.Getpid()))
	most := uint64(2 * (3*corked + 3*long)) // half of it for long queues
	pins := filepath.Join(t.TempDir(), "pins")
	t.Cleanup(func() {
		if err := Detach(scope, pins); err != nil {
			t.Error(err)
		}
	})
	b := again(t, scope, pins, most)
	a := join(t, group(t, scope, "one"))
	want := uint64(0)
	counts := func(more int) {
		t.Helper()
		want += uint64(more)
		if got := swept(t, b)["one"].Bytes; got != want {
			t.Errorf("%d bytes, want %d", got, want)
		}
	}
	set := func(name string, level, option, value int) {
		a.does(0, fmt.Sprintf("set %s %d %d %d", name, level, option, value))
	}
	a.does(0, "socket x "+udp)
	counts(corked)
	set("x", unix.SOL_SOCKET, unix.SO_TIMESTAMPING, unix.SOF_TIMESTAMPING_RX_SOFTWARE|unix.SOF_TIMESTAMPING_SOFTWARE) // of what it receives
	counts(0)
	set("x", unix.SOL_SOCKET, unix.SO_TIMESTAMPING_NEW, unix.SOF_TIMESTAMPING_TX_SCHED)
	counts(usual)
	set("x", unix.SOL_IP, unix.IP_RECVERR, 1) // in the same queue
	counts(0)
	a.does(unix.Errno(long>>10), fmt.Sprintf("queue x %d", long/2))
	counts(long - usual)
	a.does(unix.Errno(long>>10), fmt.Sprintf("queue x %d", long/2))
	counts(0)
	a.does(0, "socket y "+udp)
	a.does(unix.Errno(long>>10), fmt.Sprintf("queue y %d", long/2))
	counts(corked)
	a.does(unix.Errno(8), "queue y 4096") // another thread may have asked for the long one
	set("y", unix.SOL_IP, unix.IP_RECVERR, 1)
	counts(long)
	a.does(0, "socket t "+fmt.Sprint(unix.AF_INET, unix.SOCK_STREAM, 0))
	set("t", unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<16)
	counts(0)
	set("t", unix.SOL_IP, unix.IP_RECVERR, 1)
	counts(1 << 17)
	a.does(0, "close x")
	a.does(0, "close t")
	counts(-corked - long - 1<<17)
	set("y", unix.SOL_IP, unix.IP_RECVERR, 0) // what has come may wait
	counts(0)
	a.does(0, "close y")
	counts(-corked - long)

	// Who gets no more is told.
	again(t, scope, pins, corked+uint64(usual)-1)
	a.does(0, "socket z "+udp)
	a.does(unix.ENOMEM, fmt.Sprintf("set z %d %d 1", unix.SOL_IP, unix.IP_RECVERR))
	a.does(unix.ENOMEM, fmt.Sprintf("set z %d %d %d", unix.SOL_SOCKET, unix.SO_TIMESTAMPING, unix.SOF_TIMESTAMPING_TX_SOFTWARE))
	a.does(unix.EPERM, "tell z") // a message asks for it
	counts(corked)
	if got := swept(t, b)["one"].Refused; got != 3 {
		t.Errorf("%d refused, want 3", got)
	}
}

// TestAnAcceptedSocketThatConnectsCounts, if its listener is told of errors: the kernel tells it of those of its own connection.
func TestAnAcceptedSocketThatConnectsCounts(t *testing.T) {
	scope := group(t, top(), "weir-kept-connects-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, 64*mib)
	a := join(t, group(t, scope, "one"))
	a.does(unix.EINPROGRESS, "connects")
	got := swept(t, b)["one"]
	if got.Bytes == 0 || got.Refused != 0 {
		t.Errorf("%+v, want a listener and a socket", got)
	}
	o := join(t, group(t, scope, "two"))
	if err := b.o.Bounds.Put(uint32(0), RingsBound{Scope: b.scope, Bytes: got.Bytes - 1}); err != nil {
		t.Fatal(err)
	}
	o.does(unix.EINPROGRESS, "connects")
	if got, one := swept(t, b)["two"], got.Bytes; got.Refused == 0 || got.Bytes >= one {
		t.Errorf("%+v, want a listener, and a socket that is refused", got)
	}
}

// TestOptionsCount: what the kernel keeps for them.
func TestOptionsCount(t *testing.T) {
	udp := fmt.Sprint(unix.AF_INET6, unix.SOCK_DGRAM, 0)
	scope := group(t, top(), "weir-kept-options-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, 64*mib)
	a := join(t, group(t, scope, "one"))
	want := uint64(0)
	counts := func(more int) {
		t.Helper()
		want += uint64(more)
		if got := swept(t, b)["one"]; got.Bytes != want {
			t.Errorf("%d bytes, want %d", got.Bytes, want)
		}
	}
	a.does(0, "socket x "+udp)
	counts(corked)
	a.does(0, "join x 3")
	counts(3 * 512)
	a.does(0, fmt.Sprintf("filter x %d 100", unix.SO_ATTACH_FILTER))
	counts(101 * 64)
	a.does(0, fmt.Sprintf("filter x %d 50", unix.SO_ATTACH_FILTER)) // in its place
	counts(0)
	a.does(0, fmt.Sprintf("filter x %d 101", unix.SO_ATTACH_FILTER))
	counts(64)
	a.does(0, fmt.Sprintf("set x %d %d 1", unix.SOL_SOCKET, unix.SO_REUSEPORT))
	a.does(0, "bind6 x")
	a.does(0, fmt.Sprintf("filter x %d 64", unix.SO_ATTACH_REUSEPORT_CBPF))
	a.does(unix.ENOMEM, fmt.Sprintf("filter x %d 65", unix.SO_ATTACH_REUSEPORT_CBPF))
	counts(0)
	a.does(0, fmt.Sprintf("set x %d %d 1", unix.SOL_SOCKET, unix.SO_ZEROCOPY))
	counts(max(setting("optmem_max"), usualOptmem))
	a.does(0, fmt.Sprintf("set x %d %d 1", unix.SOL_SOCKET, unix.SO_ZEROCOPY))
	counts(0)
	a.does(0, "close x")
	counts(-int(want))
	if got := swept(t, b)["one"].Refused; got != 1 {
		t.Errorf("%d refused, want 1", got)
	}
}
