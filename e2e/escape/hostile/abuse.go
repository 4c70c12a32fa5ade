package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// abuses take what they can get, for abuseFor each. What stops them is measured outside.
var abuses = map[string]func(deadline time.Time) string{
	"fork-bomb": func(deadline time.Time) string {
		n := 0
		var last error
		for time.Now().Before(deadline) {
			c := exec.Command("/proc/self/exe", "abuse", "sleep")
			if err := c.Start(); err != nil {
				last = err
				break
			}
			n++
		}
		return fmt.Sprintf("%d processes, then %v", n, last)
	},
	"sleep": func(deadline time.Time) string { time.Sleep(time.Until(deadline)); return "slept" },
	"memory": func(deadline time.Time) string {
		var kept [][]byte
		for time.Now().Before(deadline) && len(kept) < 1<<14 { // 16 GiB
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			kept = append(kept, b)
		}
		return fmt.Sprintf("%d MiB", len(kept))
	},
	"descriptors": func(deadline time.Time) string {
		var kept []*os.File
		for time.Now().Before(deadline) {
			r, w, err := os.Pipe()
			if err != nil {
				return fmt.Sprintf("%d descriptors, then %v", 2*len(kept), err)
			}
			kept = append(kept, r, w)
		}
		return fmt.Sprintf("%d descriptors", 2*len(kept))
	},
	"log": func(deadline time.Time) string { // into the function's own log: the first process's output
		out, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", first()), os.O_WRONLY, 0)
		if err != nil {
			return err.Error()
		}
		line := bytes.Repeat([]byte("x"), 1<<16-1)
		line = append(line, '\n')
		var n int64
		var last error
		for time.Now().Before(deadline) && n < 4<<30 {
			m, err := out.Write(line)
			n += int64(m)
			if last = err; err != nil {
				break
			}
		}
		return fmt.Sprintf("%d MiB printed, %v", n>>20, last)
	},
	"disk": func(deadline time.Time) string {
		var said []string
		for _, dir := range []string{"/", "/tmp", "/run", "/dev", "/dev/shm", "/etc/weir", "/run/weir", "/var/tmp"} {
			f, err := os.CreateTemp(dir, "fill")
			if err != nil {
				continue
			}
			b := make([]byte, 1<<20)
			n := 0
			for ; time.Now().Before(deadline) && n < 4096; n++ {
				if _, err = f.Write(b); err != nil {
					break
				}
			}
			said = append(said, fmt.Sprintf("%s %d MiB (%v)", dir, n, err))
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
		return strings.Join(said, ", ")
	},
	"rings": func(deadline time.Time) string { // of sockets, which the kernel counts against nobody
		var taken int
		var last [2]error
		for last[0] == nil && taken < 2<<10 {
			var fd int
			if fd, last[0] = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); last[0] == nil {
				last[0] = unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq{Block_size: 1 << 20, Block_nr: 4, Frame_size: 2048, Frame_nr: 2048})
			}
			if last[0] == nil {
				taken += 4
			}
		}
		for last[1] == nil && taken < 2<<10 {
			var fd int
			if fd, last[1] = unix.Socket(unix.AF_XDP, unix.SOCK_RAW, 0); last[1] == nil {
				last[1] = unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_RX_RING, 1<<18)
			}
			if last[1] == nil {
				taken += 4
			}
		}
		time.Sleep(time.Until(deadline))
		return fmt.Sprintf("%d MiB of rings, then %v, %v", taken, last[0], last[1])
	},
	"sockets": func(deadline time.Time) string { // whose queues the kernel counts against nobody
		var n [3]int
		var last [3]error
		for i, kind := range [][3]int{{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, {unix.AF_PACKET, unix.SOCK_RAW, 3 << 8}, {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}} {
			for n[i] < 1000 && time.Now().Before(deadline) {
				var fd int
				if fd, last[i] = unix.Socket(kind[0], kind[1], kind[2]); last[i] != nil {
					break
				}
				n[i]++
				for m := 0; i == 0 && m < 200; m++ { // questions, whose answers nobody reads
					if unix.Sendto(fd, []byte{17, 0, 0, 0, unix.RTM_GETLINK, 0, unix.NLM_F_REQUEST | unix.NLM_F_ACK, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
						break
					}
				}
			}
		}
		time.Sleep(time.Until(deadline))
		return fmt.Sprintf("%d netlink, %d packet, %d raw sockets, then %v, %v, %v", n[0], n[1], n[2], last[0], last[1], last[2])
	},
	"kept": func(deadline time.Time) string { // for sockets, which the kernel counts against nobody
		var n [3]int
		var last [3]error
		for done := false; !done && time.Now().Before(deadline); {
			done = true
			for i, keep := range []func() error{heldBack, toldOfAll, inGroups} {
				if last[i] != nil || n[i] == 1000 {
					continue
				}
				if last[i] = keep(); last[i] == nil {
					n[i]++
					done = false
				}
			}
		}
		time.Sleep(time.Until(deadline))
		return fmt.Sprintf("%d sockets that hold back, %d that are told, %d in groups, then %v, %v, %v", n[0], n[1], n[2], last[0], last[1], last[2])
	},
	"watches": func(deadline time.Time) string { // of files, which the kernel counts for each user of the host
		n := 0
		var last error
		for ; n < 1<<16; n++ {
			if _, last = unix.InotifyInit1(0); last != nil {
				break
			}
		}
		time.Sleep(time.Until(deadline))
		return fmt.Sprintf("%d inotify instances, then %v", n, last)
	},
	"signals": func(deadline time.Time) string { // that wait to be taken, which the kernel counts as well
		runtime.LockOSThread()
		const number = 40 // a real-time signal: each one waits
		var set unix.Sigset_t
		set.Val[0] = 1 << (number - 1)
		_ = unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil)
		info := [32]int32{0: number, 2: -1} // SI_QUEUE
		n := 0
		var last error
		for ; n < 1<<20; n++ {
			if _, _, errno := unix.RawSyscall6(unix.SYS_RT_TGSIGQUEUEINFO, uintptr(os.Getpid()), uintptr(unix.Gettid()), number, uintptr(unsafe.Pointer(&info)), 0, 0); errno != 0 {
				last = errno
				break
			}
		}
		time.Sleep(time.Until(deadline))
		return fmt.Sprintf("%d signals, then %v", n, last)
	},
	"inodes": func(deadline time.Time) string {
		n := 0
		var last error
		for time.Now().Before(deadline) {
			f, err := os.Create(fmt.Sprintf("/tmp/i%d", n))
			if last = err; err != nil {
				break
			}
			f.Close()
			n++
		}
		return fmt.Sprintf("%d files, %v", n, last)
	},
	"events": func(deadline time.Time) string {
		client := http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", "/run/weir/events.sock")
		}}}
		taken, not := 0, 0
		for i := 0; time.Now().Before(deadline); i++ {
			r, err := client.Post("http://weir/", "application/json", strings.NewReader(fmt.Sprintf(`{"severity":"critical","reason":"FunctionDied","message":"storm %d"}`, i)))
			if err == nil {
				r.Body.Close()
			}
			if err == nil && r.StatusCode < 300 {
				taken++
			} else {
				not++
			}
		}
		return fmt.Sprintf("%d events taken, %d not", taken, not)
	},
	"connections": func(deadline time.Time) string {
		var kept []net.Conn
		var last error
		for time.Now().Before(deadline) && len(kept) < 20000 {
			c, err := net.DialTimeout("unix", "/run/weir/events.sock", 200*time.Millisecond)
			if last = err; err != nil {
				break
			}
			kept = append(kept, c)
		}
		time.Sleep(time.Until(deadline))
		return fmt.Sprintf("%d connections, %v", len(kept), last)
	},
	"read": func(deadline time.Time) string { // what it has, from the disk, again and again
		var n int64
		for time.Now().Before(deadline) {
			f, err := os.Open("/proc/self/exe")
			if err != nil {
				return err.Error()
			}
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // not from memory
			m, err := io.Copy(io.Discard, f)
			f.Close()
			if n += m; err != nil {
				return fmt.Sprintf("%d bytes read, then %v", n, err)
			}
		}
		return fmt.Sprintf("%d bytes read", n)
	},
	"cpu": func(deadline time.Time) string {
		for range 64 {
			go func() {
				for n := uint64(0); ; n++ { // as busy as a loop can be
					spun.Store(n)
				}
			}()
		}
		time.Sleep(time.Until(deadline))
		return "burnt"
	},
	"links": func(deadline time.Time) string {
		n := 0
		var last error
		for time.Now().Before(deadline) && n < 1000 { // not more: the kernel takes 40 ms to remove one, alone
			if _, last = ask(unix.RTM_NEWLINK, create, 0, made(fmt.Sprintf("l%d", n), "bridge")...); last != nil {
				break
			}
			n++
		}
		return fmt.Sprintf("%d bridges, %v", n, last)
	},
	// forge sends, out of both ports, frames in the name of others: config of the test in the environment (MACs and addresses of carol).
	"forge": func(deadline time.Time) string {
		mac, err := net.ParseMAC(os.Getenv("CAROL_MAC"))
		ip := net.ParseIP(os.Getenv("CAROL_IP")).To4()
		if err != nil || ip == nil {
			return "CAROL_MAC and CAROL_IP are needed"
		}
		n := 0
		for _, name := range []string{"in", "out"} {
			link, err := net.InterfaceByName(name)
			if err != nil {
				return err.Error()
			}
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
			if err != nil {
				return err.Error()
			}
			defer unix.Close(fd)
			for round := 0; round < 200 && time.Now().Before(deadline); round++ {
				for _, frame := range forged(mac, ip) {
					if unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index, Protocol: 0x0003}) == nil {
						n++
					}
				}
			}
		}
		return fmt.Sprintf("%d frames sent", n)
	},
}

var spun atomic.Uint64

const abuseFor = 4 * time.Second

func abuse(name string) {
	f := abuses[name]
	if f == nil {
		fmt.Println("unknown abuse")
		os.Exit(2)
	}
	fmt.Println(f(time.Now().Add(abuseFor)))
}

// forged are frames in the name of a station that is not on the chain: ordinary, ARP, gratuitous ARP, neighbour advertisement, router advertisement,
// DHCP offer, VLAN, fabric tag, spanning tree, pause, link discovery, probe.
func forged(mac net.HardwareAddr, ip net.IP) [][]byte {
	all := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	evil := net.HardwareAddr{2, 0xba, 0xd, 0xba, 0xd, 1}
	frame := func(to, from net.HardwareAddr, kind uint16, body []byte) []byte {
		b := append(append([]byte{}, to...), from...)
		b = append(binary.BigEndian.AppendUint16(b, kind), body...)
		return append(b, make([]byte, max(0, 60-len(b)))...)
	}
	arp := func(op byte, sender net.HardwareAddr, target []byte) []byte {
		b := append([]byte{0, 1, 8, 0, 6, 4, 0, op}, sender...)
		b = append(append(b, ip...), make([]byte, 6)...)
		return append(b, target...)
	}
	ip4 := func(src net.IP, proto byte, body []byte) []byte {
		b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, proto, 0, 0}
		b = append(append(b, src...), 255, 255, 255, 255)
		binary.BigEndian.PutUint16(b[2:], uint16(20+len(body)))
		var sum uint32
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
		return append(b, body...)
	}
	ip6 := func(kind byte, body []byte) []byte {
		icmp := append([]byte{kind, 0, 0, 0}, body...)
		b := append([]byte{0x60, 0, 0, 0, 0, byte(len(icmp)), 58, 255}, net.ParseIP("fe80::bad")...)
		return append(append(b, net.ParseIP("ff02::1")...), icmp...)
	}
	dhcp := append([]byte{0, 67, 0, 68, 1, 0, 0, 0, 2, 1, 6, 0}, make([]byte, 244)...)
	na := append([]byte{0x20, 0, 0, 0}, net.ParseIP("fe80::1")...)
	ra := append([]byte{64, 0x80, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}, evil...)
	return [][]byte{
		frame(all, mac, 0x0800, ip4(ip, 17, make([]byte, 20))),
		frame(all, evil, 0x0806, arp(2, evil, ip)),
		frame(all, mac, 0x0806, arp(2, mac, ip)),
		frame(all, evil, 0x0806, arp(1, evil, ip)),
		frame(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, evil, 0x86dd, ip6(136, append(na, append([]byte{2, 1}, evil...)...))),
		frame(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, evil, 0x86dd, ip6(134, ra)),
		frame(all, evil, 0x0800, ip4(ip, 17, dhcp)),
		frame(all, mac, 0x8100, append([]byte{0, 7, 8, 0}, ip4(ip, 17, make([]byte, 20))...)),
		frame(all, mac, 0x88a8, append([]byte{0x0e, 0x01, 8, 0}, ip4(ip, 17, make([]byte, 20))...)),
		frame(net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0}, mac, 38, []byte{0x42, 0x42, 3, 0, 0, 0, 0, 0, 0, 0}),
		frame(net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 1}, mac, 0x8808, []byte{0, 1, 0xff, 0xff}),
		frame(net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0xe}, evil, 0x88cc, []byte{2, 7, 4, 2, 0xba, 0xd, 0xba, 0xd, 1, 4, 2, 7, 'x', 6, 2, 0, 120, 0, 0}),
		frame(all, evil, 0x88b5, []byte("Weir\x00\x00\x00\x01aaaaaaaaaaaaaaaa")),
	}
}

// first is the function's first process: of those in this one's control group the one with the lowest number, which is 1 in a PID namespace.
func first() int {
	own, _ := os.ReadFile("/proc/self/cgroup")
	all, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	lowest := os.Getpid()
	for _, f := range all {
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && pid < lowest {
			if in, err := os.ReadFile(f); err == nil && bytes.Equal(in, own) {
				lowest = pid
			}
		}
	}
	return lowest
}

var itself = &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}

// heldBack has a UDP socket hold back a datagram.
func heldBack() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	return unix.Sendto(fd, make([]byte, 65000), unix.MSG_MORE, itself)
}

// toldOfAll has a UDP socket be told of all that it sends, which nobody reads.
func toldOfAll() error {
	ask := make([]byte, unix.CmsgSpace(4))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&ask[0]))
	h.Level, h.Type = unix.SOL_SOCKET, unix.SO_TIMESTAMPING
	h.SetLen(unix.CmsgLen(4))
	binary.NativeEndian.PutUint32(ask[unix.CmsgLen(0):], unix.SOF_TIMESTAMPING_TX_SCHED|unix.SOF_TIMESTAMPING_TX_SOFTWARE)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	for i := 0; i < 300 && err == nil; i++ {
		err = unix.Sendmsg(fd, []byte{1}, ask, itself, 0)
	}
	return err
}

// inGroups has a UDP socket be in 30 multicast groups.
func inGroups() error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
	for i := 0; i < 30 && err == nil; i++ {
		g := unix.IPv6Mreq{Multiaddr: [16]byte{0: 0xff, 1: 2}, Interface: 1}
		binary.BigEndian.PutUint64(g.Multiaddr[8:], uint64(fd<<16+i))
		err = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &g)
	}
	return err
}
