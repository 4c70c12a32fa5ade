package rig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// Hostile frames, and what has to be true of a function that gets them.
type Hostile struct {
	Frames   int                                // that reach the function's ports; a tenth with -short
	MTU      int                                // of the ports and of the stations' links, from now on; 0: 1500
	Seeds    [][]byte                           // frames to change, besides packets of common protocols
	MemoryKB int                                // that the function's processes may have resident, each at its most
	Pass     float64                            // part of them that comes out, at least, each way
	Denied   func(up bool, frame []byte) string // why a frame that came out must not pass; "": it may. nil: every frame may
	AsSent   func(up bool, frame []byte) string // why it must not pass as it was sent, since it has to become another one; "": it may. nil: every frame may
	Was      func(frame []byte) [][]byte        // how a frame that came out may have been sent otherwise; nil: no frame
	Changed  func(frame []byte) bool            // whether it may have been sent in any way; nil: no frame
}

const (
	volleySize = 256     // frames that are sent at once; the function has taken them before the next ones are
	remembered = 1 << 16 // frames at least, to know them when they come out
	roomKB     = 32 << 10
)

// Send hostile frames, mutated and random ones, to both ports of a function that runs as a process and its children: from 14 bytes to what the ports take, always
// the same ones. Behind each few hundred a probe has to pass; a tap is not asked. How many frames there were and how much memory the function needed is logged.
func (h Hostile) Send(r *Rig, pid int) {
	r.T.Helper()
	if testing.Short() {
		h.Frames /= 10
	}
	begin, mtu := time.Now(), cmp.Or(h.MTU, 1500)
	x := &attack{Hostile: h, rig: r, made: newFrames(7, h.Seeds, mtu+14), seed: maphash.MakeSeed(), now: map[uint64]struct{}{}, before: map[uint64]struct{}{},
		buf: make([]byte, 65536), oob: make([]byte, 128)}
	ports := r.prepare(mtu)
	already := r.received(ports)
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	reached, passed := 0, [2]int{}
	for reached < h.Frames {
		if time.Since(begin) > 3*Patience {
			r.T.Fatalf("only %d frames reached the function in %s: want %d", reached, time.Since(begin), h.Frames)
		}
		for range 8 {
			x.volley(r.Client)
			if r.Server == nil {
				<-pace.C // nothing says when it has read them
				continue
			}
			passed[0] += x.follow(r.Client, r.Server, true)
			x.volley(r.Server)
			passed[1] += x.follow(r.Server, r.Client, false)
		}
		reached = r.received(ports) - already
	}
	kb := residentKB(r, pid)
	r.T.Logf("%d frames of 14 to %d bytes reached the function in %s (%d were refused on the way); %d came out up, %d down; it had at most %d KB resident",
		reached, mtu+14, time.Since(begin).Round(time.Millisecond), x.refused, passed[0], passed[1], kb)
	if kb > h.MemoryKB {
		r.T.Errorf("%d KB resident: want at most %d", kb, h.MemoryKB)
	}
	for i, way := range []string{"up", "down"} {
		if float64(passed[i]) < h.Pass*float64(reached)/2 {
			r.T.Errorf("%d frames came out %s: want a part of %g of %d at least", passed[i], way, h.Pass, reached/2)
		}
	}
}

// Speaks tells whether a frame is from a link of the stations or of the function: from the kernels of those, or from a function that speaks for itself. Hostile frames are not.
func (r *Rig) Speaks() func(frame []byte) bool {
	r.T.Helper()
	all := map[[6]byte]bool{r.Client.Link.MAC: true}
	ports := []string{"tap"}
	if r.Server != nil {
		all[r.Server.Link.MAC], ports = true, []string{"in", "out"}
	}
	s, err := netns.At(r.Netns)
	if err != nil {
		r.T.Fatal(err)
	}
	defer s.Close()
	for _, p := range ports {
		l, err := s.Link(p)
		if err != nil {
			r.T.Fatal(err)
		}
		all[l.MAC] = true
	}
	return func(frame []byte) bool { return all[[6]byte(frame[6:])] }
}

// prepare the links for it, and the stations' sockets for what a volley makes come out. ports are the function's.
func (r *Rig) prepare(mtu int) (ports []string) {
	r.T.Helper()
	set := func(space string, links ...string) {
		r.T.Helper()
		s, err := netns.At(space)
		if err != nil {
			r.T.Fatal(err)
		}
		defer s.Close()
		for _, l := range links {
			if err := s.SetMTU(l, mtu); err != nil {
				r.T.Fatal(err)
			}
		}
	}
	ports = []string{"tap"}
	stations := []*Station{r.Client}
	if r.Server != nil {
		ports, stations = []string{"in", "out"}, append(stations, r.Server)
	}
	for _, s := range stations {
		set(s.Netns, s.Link.Name)
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, roomKB<<10); err != nil {
			r.T.Fatal(err)
		}
	}
	set(r.Netns, ports...)
	return ports
}

// received is how many frames have come to the function's ports.
func (r *Rig) received(ports []string) (n int) {
	r.T.Helper()
	s, err := netns.At(r.Netns)
	if err != nil {
		r.T.Fatal(err)
	}
	defer s.Close()
	for _, p := range ports {
		some, err := s.Received(p)
		if err != nil {
			r.T.Fatal(err)
		}
		n += int(some)
	}
	return n
}

// attack is frames on their way.
type attack struct {
	Hostile
	rig         *Rig
	made        *frames
	seed        maphash.Seed
	now, before map[uint64]struct{} // digests of what was sent last
	frames      [volleySize][]byte
	messages    [volleySize]message
	vectors     [volleySize]unix.Iovec
	refused     int
	probes      byte
	buf, oob    []byte
}

// message is struct mmsghdr.
type message struct {
	unix.Msghdr
	n uint32
}

// volley sends frames from a station. One that the link does not take is lost, as on any wire.
func (x *attack) volley(from *Station) {
	x.rig.T.Helper()
	for i := range x.frames {
		f := x.made.next(x.frames[i])
		x.frames[i] = f
		if len(x.now) >= remembered {
			x.now, x.before = x.before, x.now
			clear(x.now)
		}
		x.now[maphash.Bytes(x.seed, f)] = struct{}{}
		x.vectors[i] = unix.Iovec{Base: &f[0]}
		x.vectors[i].SetLen(len(f))
		x.messages[i].Iov = &x.vectors[i]
		x.messages[i].SetIovlen(1)
	}
	for at := 0; at < volleySize; {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(from.fd), uintptr(unsafe.Pointer(&x.messages[at])), uintptr(volleySize-at), 0, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno == unix.ENOBUFS || errno == unix.EMSGSIZE || errno == unix.EINVAL || errno == unix.EAGAIN:
			x.refused++
			at++
		case errno != 0:
			x.rig.T.Fatalf("send frames: %v", errno)
		default:
			at += int(n)
		}
	}
}

// follow sends a probe behind a volley and looks at what comes out until the probe does.
func (x *attack) follow(from, to *Station, up bool) (passed int) {
	x.rig.T.Helper()
	x.probes++
	probe := Probe(x.probes)
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); {
		if err := unix.Sendto(from.fd, probe, 0, &unix.SockaddrLinklayer{Ifindex: from.Link.Index}); err != nil && !errors.Is(err, unix.ENOBUFS) {
			x.rig.T.Fatalf("send probe: %v", err)
		}
		for f := to.receive(200*time.Millisecond, x.buf, x.oob); f != nil; f = to.receive(200*time.Millisecond, x.buf, x.oob) {
			switch {
			case bytes.Equal(f, probe):
				return passed
			case bytes.Equal(f[:12], probe[:12]): // one that was late
			default:
				passed++
				x.judge(up, f, to)
			}
		}
	}
	x.rig.T.Fatal("nothing passes any more")
	return 0
}

// judge a frame that came out.
func (x *attack) judge(up bool, f []byte, at *Station) {
	x.rig.T.Helper()
	known := x.known(f)
	if !known && x.Was != nil {
		known = slices.ContainsFunc(x.Was(f), x.known)
	}
	if !known && (x.Changed == nil || !x.Changed(f)) {
		x.rig.T.Fatalf("a frame of %d bytes came to the %s that nobody sent: % x", len(f), filepath.Base(at.Netns), f[:min(len(f), 160)])
	}
	why := ""
	if x.Denied != nil {
		why = x.Denied(up, f)
	}
	if why == "" && x.AsSent != nil && x.known(f) {
		why = x.AsSent(up, f)
	}
	if why != "" {
		x.rig.T.Fatalf("a frame of %d bytes came to the %s: %s: % x", len(f), filepath.Base(at.Netns), why, f[:min(len(f), 160)])
	}
}

// known tells whether a frame was sent not long ago.
func (x *attack) known(f []byte) bool {
	d := maphash.Bytes(x.seed, f)
	_, now := x.now[d]
	_, before := x.before[d]
	return now || before
}

// residentKB is how much memory a process and those that descend from it have had resident, each at its most.
func residentKB(r *Rig, pid int) int {
	r.T.Helper()
	peaks, children := map[int]int{}, map[int][]int{}
	files, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		r.T.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		id, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		for line := range strings.Lines(string(text)) {
			n := 0
			if rest, ok := strings.CutPrefix(line, "PPid:"); ok {
				_, _ = fmt.Sscan(rest, &n)
				children[n] = append(children[n], id)
			} else if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
				_, _ = fmt.Sscan(rest, &n)
				peaks[id] = n
			}
		}
	}
	if peaks[pid] == 0 {
		r.T.Fatalf("process %d of the function has ended", pid)
	}
	kb := 0
	for all := []int{pid}; len(all) > 0; all = all[1:] {
		kb += peaks[all[0]]
		all = append(all, children[all[0]]...)
	}
	return kb
}
