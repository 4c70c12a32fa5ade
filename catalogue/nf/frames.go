package nf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Frames is the loop of a function that looks at frames in user space. It reads both ports, asks the handler about each frame, and hands on those
// that pass, as they came: with their VLAN tags, segments of up to 64 KiB with the description of what the sender left to the hardware (struct
// virtio_net_hdr). The platform's probes pass without the handler.
//
// The handler, Tick, Due and what Do runs are called by one goroutine, never at the same time: what they share needs no lock. They must not block: no frame
// passes meanwhile. The loop keeps a thread of its own, and allocates nothing per frame.
type Frames struct {
	o     Options
	probe []byte      // the first 14 bytes of the platform's probes; nil: none
	ports [3]*port    // by the direction of their frames; the third may be nil
	after *port       // see Options.After; nil: none
	in    batch       // what was received last
	out   [3]outgoing // by direction
	made  []byte      // copies that wait to be sent
	came  int64       // when the frame came that the handler is asked about, by the clock, in nanoseconds; 0: it is not known
	now   time.Time   // see Now
	wakes int         // eventfd
	count Counters

	mu    sync.Mutex
	calls []func()
	over  bool
}

// Options of a loop.
type Options struct {
	In, Out string                   // names of the ports; default "in" and "out"
	Side    string                   // a third port, which the function has made: "" none. Its frames come to the handler as Side and never pass; Send(Side) sends there
	Probe   string                   // file with the addresses of the platform's probes; default ProbeFile. Without such a file no frame passes unasked
	Handle  func(Dir, Frame) Verdict // asked about each frame; nil: all pass
	Tick    func(now time.Time)      // called each second, for what times out; nil: not called
	// After are TCP ports of servers. Segments to them by IPv4, whole, without options of IP and VLAN tags, that come by the port in, and all of IPv4 that comes by
	// Side, come to the handler only if nftables' hook ingress leaves them; all other frames come before it. Rules there must drop what has a VLAN tag, which would come
	// again without. Empty: all come before it.
	After []uint16
	// Settler, which speaks of frames while the handler is asked about them: it learns when each came.
	Settler *Settler
	// Due is called after each batch of frames, and when the time has come that it returned last. It sends what is due by then and returns when more is; the zero
	// time: nothing waits. nil: not called. The kernel then does not put off the timers of the loop's thread.
	Due func(now time.Time) (next time.Time)
}

// Dir is a direction.
type Dir int

// Directions.
const (
	Up   Dir = iota // from in (clients) to out (servers)
	Down            // from out to in
	Side            // from or to the third port, where there is one
)

// Back is the other direction, of Up or Down.
func (d Dir) Back() Dir { return 1 - d }

func (d Dir) String() string { return [3]string{"up", "down", "side"}[d] }

// Verdict says what happens to a frame.
type Verdict int

// Verdicts. The zero value drops.
const (
	Drop Verdict = iota
	Pass         // hand on, unchanged
)

// vnetHeader is the length of struct virtio_net_hdr: what the sender left to the hardware, checksums and segmentation.
const vnetHeader = 10

// Frame is an Ethernet frame. A frame that the handler gets is valid until the handler returns; Clone keeps it for longer.
type Frame struct {
	Data []byte // from the destination's address on, VLAN tags included; not to be changed
	raw  []byte // the description, and Data
}

// NewFrame makes a frame to send, from a copy of its bytes. It must be complete: checksums, and no longer than the MTU allows.
func NewFrame(data []byte) Frame {
	raw := make([]byte, vnetHeader+len(data))
	copy(raw[vnetHeader:], data)
	return Frame{raw[vnetHeader:], raw}
}

// Received is a frame as a packet socket with PACKET_VNET_HDR gives it: its description, and its bytes.
func Received(raw []byte) Frame { return Frame{raw[vnetHeader:], raw} }

// Clone is a copy that may be kept, and sent later as the frame came.
func (f Frame) Clone() Frame {
	raw := bytes.Clone(f.raw)
	return Frame{raw[vnetHeader:], raw}
}

// Readdressed is a copy of a frame of TCP, as p has it, with other headers before that of TCP: it goes on as it came, whole segments and missing checksums
// included. The new headers end with one of IPv6 or IPv4. What is in TCP's own header is the caller's to adjust.
func (f Frame) Readdressed(headers []byte, p *Packet, ipv6 bool) Frame {
	raw := make([]byte, vnetHeader+len(headers)+p.End-p.Transport)
	copy(raw, f.raw[:vnetHeader])
	copy(raw[vnetHeader:], headers)
	copy(raw[vnetHeader+len(headers):], f.Data[p.Transport:p.End])
	for _, field := range []int{2, 6} { // hdr_len and csum_start count from the frame's begin
		if v := int(binary.NativeEndian.Uint16(raw[field:])); v != 0 {
			binary.NativeEndian.PutUint16(raw[field:], uint16(max(v+len(headers)-p.Transport, 0)))
		}
	}
	const tcp4, tcp6 = 1, 4
	if raw[1] != 0 { // gso_type; its flag for ECN stays
		raw[1] &^= tcp4 | tcp6
		if ipv6 {
			raw[1] |= tcp6
		} else {
			raw[1] |= tcp4
		}
	}
	return Frame{raw[vnetHeader:], raw}
}

// Segmented tells whether the frame stands for several that are still to be cut: its IP packet may be longer than the MTU.
func (f Frame) Segmented() bool { return f.raw[1] != 0 } // gso_type

// SegmentSize is how much data of the upper layer each of the frames is to have for which this one stands; 0: it stands for itself.
func (f Frame) SegmentSize() int {
	if !f.Segmented() {
		return 0
	}
	return int(binary.NativeEndian.Uint16(f.raw[4:])) // gso_size
}

// Datagrams are the data of each datagram of UDP for which the frame stands; data are those of the frame. A sender on the same machine may leave it to the hardware to cut
// several out of one frame, and each is read by itself where it arrives.
func (f Frame) Datagrams(data []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		n := f.SegmentSize()
		for n > 0 && len(data) > n {
			if !yield(data[:n]) {
				return
			}
			data = data[n:]
		}
		yield(data)
	}
}

// ChecksumMissing tells whether the transport checksum is still to be computed: the one in the frame is not complete.
func (f Frame) ChecksumMissing() bool { return f.raw[0]&1 != 0 } // VIRTIO_NET_HDR_F_NEEDS_CSUM

// ChecksumMissingAt tells whether it is that of the upper layer's header at an offset in the frame. In a tunnel's packet it may be that of the packet within: the
// outer one is complete, for whatever the inner one will be.
func (f Frame) ChecksumMissingAt(transport int) bool {
	return f.ChecksumMissing() && int(binary.NativeEndian.Uint16(f.raw[6:])) == transport // csum_start
}

// Counters of a loop.
type Counters struct {
	Received  [3]uint64 // frames, by direction; one of 64 KiB is one
	Sent      [3]uint64 // probes and injected frames count
	Missed    [3]uint64 // for which the kernel had no room: they came faster than they were read
	Unread    [3]uint64 // longer than 64 KiB, or without an Ethernet header; dropped
	Refused   [3]uint64 // that the other port did not take
	Described uint64    // whose description the kernel could not make (UDP segments before Linux 6.2); dropped
}

// OpenFrames opens the sockets. Frames that come from now on wait for Run.
func OpenFrames(o Options) (*Frames, error) {
	if o.In == "" {
		o.In = "in"
	}
	if o.Out == "" {
		o.Out = "out"
	}
	if o.Probe == "" {
		o.Probe = ProbeFile
	}
	if o.Handle == nil {
		o.Handle = func(Dir, Frame) Verdict { return Pass }
	}
	s := &Frames{o: o, wakes: -1, made: make([]byte, 0, copiesRoom), now: time.Now()}
	s.in.make()
	if o.Settler != nil {
		o.Settler.came = s.frameCame
	}
	probe, err := LoadProbe(o.Probe)
	if err != nil {
		return nil, err
	}
	if probe != nil {
		s.probe = append(probe, 0x88, 0xb5)
	}
	if s.wakes, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	names := []string{o.In, o.Out}
	if o.Side != "" {
		names = append(names, o.Side)
	}
	for d, name := range names {
		if s.ports[d], err = s.openPort(name, Dir(d)); err != nil {
			s.Close()
			return nil, fmt.Errorf("port %s: %w", name, err)
		}
	}
	if len(o.After) > 0 {
		if s.after, err = openPort(o.In, taken{Up, unix.ETH_P_IP, afterFilter(o.After, true)}); err != nil {
			s.Close()
			return nil, fmt.Errorf("port %s: %w", o.In, err)
		}
	}
	return s, nil
}

func (s *Frames) openPort(name string, d Dir) (*port, error) {
	switch {
	case len(s.o.After) > 0 && d == Up:
		return openPort(name, taken{dir: d, filter: afterFilter(s.o.After, false)})
	case len(s.o.After) > 0 && d == Side:
		return openPort(name, taken{dir: d, protocol: unix.ETH_P_IP})
	}
	return openPort(name, taken{dir: d})
}

// open are the ports that there are.
func (s *Frames) open() (all []*port) {
	for _, p := range append(s.ports[:], s.after) {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// Close the sockets: no frame passes any more. Not while Run runs.
func (s *Frames) Close() {
	for _, p := range s.open() {
		p.close()
	}
	if s.wakes >= 0 {
		unix.Close(s.wakes)
	}
}

// Send a frame in a direction: by out for Up, by in for Down, by the third port for Side. It leaves after all that were sent or passed before in that direction. Only for the handler,
// Tick, Due and what Do runs.
func (s *Frames) Send(d Dir, f Frame) { s.queue(d, f.raw) }

// Now is the time when the loop turned to the batch of frames at hand, or to what else it is at: to read the clock for each frame would be a part of its work. Only for the
// handler, Tick, Due and what Do runs.
func (s *Frames) Now() time.Time { return s.now }

// Copy is a copy of a frame to be changed and sent at once: it is valid until the handler returns. Unlike Clone it allocates nothing for the small frames of which there may be
// very many. Only for the handler, Tick, Due and what Do runs.
func (s *Frames) Copy(f Frame) Frame {
	at, n := len(s.made), len(f.raw)
	if cap(s.made)-at < n {
		return f.Clone()
	}
	s.made = append(s.made, f.raw...)
	return Received(s.made[at : at+n : at+n])
}

// MTU of the port by which frames leave in a direction, as it was at the start.
func (s *Frames) MTU(d Dir) int { return s.exit(d).mtu }

// exit is the port by which frames leave in a direction.
func (s *Frames) exit(d Dir) *port {
	if d == Side {
		return s.ports[Side]
	}
	return s.ports[d.Back()]
}

// Counters so far. Only for the handler, Tick and what Do runs.
func (s *Frames) Counters() Counters {
	for _, p := range s.open() {
		s.missed(p)
	}
	return s.count
}

// missed adds what the kernel had no room for since it was asked last.
func (s *Frames) missed(p *port) {
	if st, err := unix.GetsockoptTpacketStats(p.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil { // it begins anew with each reading
		s.count.Missed[p.dir] += uint64(st.Drops)
		p.dropped += uint64(st.Drops)
		p.came += uint64(st.Packets) // with those that were dropped
	}
}

// lookAtRings gives up a ring that takes no frames any more. A frame that the kernel cannot describe (segments of SCTP, or of UDP before Linux 6.2) leaves its slot as if it were
// still being written, and all that come after it are dropped. Who sends one such frame must not stop us: frames come through the queue from then on, where it costs only itself.
func (s *Frames) lookAtRings() {
	for _, p := range s.open() {
		if p.ring == nil {
			continue
		}
		s.missed(p)
		n, _ := p.ring.ready(1)
		switch {
		case n > 0 || p.took || p.came > p.dropped:
			p.stuck = false
		case p.dropped > 0 && p.stuck: // it was empty at the last look, too, and has taken nothing since
			p.unring()
			s.count.Described++
		case p.dropped > 0:
			p.stuck = true
		}
		p.dropped, p.came, p.took = 0, 0, false
	}
}

// Do runs f in the loop, between frames, and returns when it has run. After the loop's end f runs at once.
func (s *Frames) Do(f func()) {
	done := make(chan struct{})
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		f()
		return
	}
	s.calls = append(s.calls, func() { f(); close(done) })
	s.mu.Unlock()
	s.wake()
	<-done
}

func (s *Frames) wake() { _, _ = unix.Write(s.wakes, []byte{1, 0, 0, 0, 0, 0, 0, 0}) } // full: it wakes already

// Serve runs the loop until ctx ends. Signals are served beside it: what Work's functions share with the handler they reach by Do.
func (s *Frames) Serve(ctx context.Context, told Signals, w Work) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var beside sync.WaitGroup
	beside.Go(func() { w.attend(ctx, told) })
	err := s.Run(ctx)
	stop()
	beside.Wait()
	w.Report()
	return err
}

const (
	tickEvery = time.Second
	lookEvery = 100 * time.Millisecond
	lookSlack = 20 * time.Millisecond // by which the kernel may put that off, to wake for many functions at once
)

// Run the loop until ctx ends, or a port is gone.
func (s *Frames) Run(ctx context.Context) error {
	defer s.end()
	defer context.AfterFunc(ctx, s.wake)()
	ports := s.open()
	fds := make([]unix.PollFd, 0, len(ports)+1)
	for _, p := range ports {
		fds = append(fds, unix.PollFd{Events: unix.POLLIN, Fd: int32(p.fd)})
	}
	fds = append(fds, unix.PollFd{Events: unix.POLLIN, Fd: int32(s.wakes)})
	next := time.Now().Add(tickEvery)
	look := time.Now().Add(lookEvery)
	ready := slices.Repeat([]bool{true}, len(ports))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slack := lookSlack
	if s.o.Due != nil {
		slack = 1 // where it is refused, frames are 50 us late
	}
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0)
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) //nolint:errcheck // 0: as it was
	for ctx.Err() == nil {
		for i, p := range ports {
			if !ready[i] {
				continue
			}
			var err error
			if ready[i], err = s.receive(p); err != nil {
				return err
			}
		}
		timeout := time.Duration(-1)
		if s.o.Tick != nil || slices.ContainsFunc(ports, func(p *port) bool { return p.down }) {
			now := time.Now()
			if !now.Before(next) {
				if err := s.tick(now); err != nil {
					return err
				}
				next = now.Add(tickEvery)
			}
			timeout = next.Sub(now)
		}
		if slices.ContainsFunc(ports, func(p *port) bool { return p.ring != nil }) {
			now := time.Now()
			if !now.Before(look) {
				s.lookAtRings()
				look = now.Add(lookEvery)
			}
			if wait := look.Sub(now); timeout < 0 || wait < timeout {
				timeout = wait
			}
		}
		if s.o.Due != nil {
			s.now = time.Now()
			now, due := s.now, s.o.Due(s.now)
			s.flush()
			if wait := max(due.Sub(now), 0); !due.IsZero() && (timeout < 0 || wait < timeout) {
				timeout = wait
			}
		}
		if slices.Contains(ready, true) {
			timeout = 0
		}
		if err := poll(fds, timeout); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for frames: %w", err)
		}
		for i := range ports {
			ready[i] = ready[i] || fds[i].Revents != 0
		}
		if fds[len(ports)].Revents != 0 {
			s.called()
		}
	}
	return nil
}

// poll waits, for ever if the time is negative.
func poll(fds []unix.PollFd, wait time.Duration) error {
	var timeout *unix.Timespec
	if wait >= 0 {
		timeout = new(unix.NsecToTimespec(wait.Nanoseconds()))
	}
	_, err := unix.Ppoll(fds, timeout, nil)
	return err
}

func (s *Frames) tick(now time.Time) error {
	for _, p := range s.open() {
		if !p.down {
			continue
		}
		var err error
		if p.down, err = p.isDown(); err != nil {
			return fmt.Errorf("port %s is gone: %w", p.name, err)
		}
	}
	if s.o.Tick != nil {
		s.now = now
		s.o.Tick(now)
		s.flush()
	}
	return nil
}

func (s *Frames) called() {
	var b [8]byte
	_, _ = unix.Read(s.wakes, b[:])
	s.mu.Lock()
	calls := s.calls
	s.calls = nil
	s.mu.Unlock()
	s.now = time.Now()
	for _, f := range calls {
		f()
	}
	s.flush()
}

func (s *Frames) end() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.called()
}

// receive takes one batch from a port. more: there may be another.
func (s *Frames) receive(p *port) (more bool, err error) {
	if p.ring == nil {
		return s.drain(p)
	}
	n, queued := p.ring.ready(batchSize)
	if n == 0 {
		return s.drain(p) // where the kernel says what happened to the port
	}
	got, err := s.longFrames(p, queued)
	if err != nil {
		return false, err
	}
	s.count.Received[p.dir] += uint64(n)
	s.now = time.Now()
	for i, long := 0, 0; i < n; i++ {
		raw, at := p.ring.frame(i)
		if at == inQueue && long < got {
			raw, at = s.in.frame(long), inSlot
			long++
		}
		if at != inSlot {
			s.count.Received[p.dir]--
			s.count.Missed[p.dir]++
			continue
		}
		s.came = p.ring.came(i)
		s.handle(p.dir, raw)
	}
	s.came = 0
	s.flush()
	p.ring.release(n)
	p.took = true
	return n == batchSize, nil
}

// longFrames reads frames of which the ring has the begin only, n of them, and tells how many it got.
func (s *Frames) longFrames(p *port, n int) (got int, err error) {
	again := n > 0
	for tries := 0; again && tries < 8; tries++ {
		if got, again, err = s.fromQueue(p, n); err != nil {
			return 0, err
		}
	}
	return got, nil
}

// drain takes one batch from a port's queue.
func (s *Frames) drain(p *port) (more bool, err error) {
	n, again, err := s.fromQueue(p, batchSize)
	if n == 0 || err != nil {
		return again, err
	}
	s.count.Received[p.dir] += uint64(n)
	s.now = time.Now()
	for i := range n {
		s.handle(p.dir, s.in.frame(i))
	}
	s.flush()
	return n == batchSize, nil
}

// fromQueue reads frames of a port's queue, most at most. again: none, but there may be some.
func (s *Frames) fromQueue(p *port, most int) (n int, again bool, err error) {
	switch n, err = s.in.read(p.fd, most); {
	case err == nil:
		return n, false, nil
	case errors.Is(err, unix.EAGAIN):
		return 0, false, nil
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
	case errors.Is(err, unix.EINVAL):
		s.count.Described++
	case errors.Is(err, unix.ENETDOWN):
		p.down = true // the kernel says that once, and nothing when the interface goes
	default:
		return 0, false, fmt.Errorf("port %s: receive: %w", p.name, err)
	}
	return 0, true, nil
}

// frameCame is when the frame came that the handler is asked about. It may have waited for long: for this process, on a busy machine. The zero time: it is not known.
func (s *Frames) frameCame() time.Time {
	if s.came == 0 {
		return time.Time{}
	}
	return time.Unix(0, s.came)
}

// handle a frame; nil: it cannot be read.
func (s *Frames) handle(d Dir, raw []byte) {
	if raw == nil {
		s.count.Unread[d]++
		return
	}
	f := Received(raw)
	if d == Side {
		s.o.Handle(d, f)
		return
	}
	if s.probe != nil && bytes.HasPrefix(f.Data, s.probe) || s.o.Handle(d, f) == Pass {
		s.queue(d, raw)
	}
}

func (s *Frames) queue(d Dir, raw []byte) {
	if s.out[d].n == batchSize {
		s.flushTo(d)
	}
	s.out[d].add(raw)
}

func (s *Frames) flush() {
	s.flushTo(Up)
	s.flushTo(Down)
	s.flushTo(Side)
	s.made = s.made[:0]
}

func (s *Frames) flushTo(d Dir) {
	if s.out[d].n == 0 {
		return
	}
	sent, refused := s.out[d].write(s.exit(d).fd)
	s.count.Sent[d] += uint64(sent)
	s.count.Refused[d] += uint64(refused)
}

// port is one of the function's interfaces.
type port struct {
	name       string
	dir        Dir // of what comes by it
	fd         int
	ring       *ring // nil: the kernel has none for us
	index, mtu int
	down       bool

	came, dropped uint64 // since the last look
	took          bool   // frames came out of the ring since
	stuck         bool   // so it looked then
}

// unring has frames come through the queue.
func (p *port) unring() {
	p.ring.close() // before: the kernel keeps a ring that is mapped
	p.ring = nil
	_ = unix.SetsockoptTpacketReq(p.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq{})
}

func (p *port) close() {
	unix.Close(p.fd)
	if p.ring != nil {
		p.ring.close()
	}
}

// isDown asks the namespace in which the socket was opened.
func (p *port) isDown() (bool, error) {
	ask, err := unix.NewIfreq(p.name)
	if err != nil {
		return false, err
	}
	if err := unix.IoctlIfreq(p.fd, unix.SIOCGIFINDEX, ask); err != nil {
		return false, err
	}
	if ask.Uint32() != uint32(p.index) {
		return false, unix.ENODEV
	}
	if err := unix.IoctlIfreq(p.fd, unix.SIOCGIFFLAGS, ask); err != nil {
		return false, err
	}
	return ask.Uint16()&unix.IFF_UP == 0, nil
}

const (
	receiveBuffer = 4 << 20
	sendPatience  = 100_000 // microseconds that a full interface may hold us up
)

// taken are the frames that come by a port.
type taken struct {
	dir      Dir
	protocol uint16            // of Ethernet, after the hook ingress of nftables; 0: all, before it
	filter   []unix.SockFilter // nil: none
}

func openPort(name string, t taken) (*port, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("%w (the ports in and out must exist before the function starts)", err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // nothing comes until bind
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w (kernel option CONFIG_PACKET; capability CAP_NET_RAW)", err)
	}
	for _, option := range []int{unix.PACKET_VNET_HDR, unix.PACKET_AUXDATA, unix.PACKET_IGNORE_OUTGOING} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_PACKET, option, 1)
		}
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil { // not for root of a user namespace: as much as the host allows
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: sendPatience})
	}
	if err == nil && t.filter != nil {
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(t.filter)), Filter: &t.filter[0]})
	}
	if t.protocol == 0 {
		t.protocol = unix.ETH_P_ALL
	}
	p := &port{name: name, dir: t.dir, fd: fd, index: i.Index, mtu: i.MTU}
	if err == nil {
		p.ring, _ = openRing(fd) // without it frames come through the queue
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: i.Index, Protocol: t.protocol<<8 | t.protocol>>8}) // in network order
	}
	if err == nil { // a network card would keep back what is addressed to others
		err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &unix.PacketMreq{Ifindex: int32(i.Index), Type: unix.PACKET_MR_PROMISC})
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return p, nil
}

const (
	batchSize  = 32
	copiesRoom = 64 << 10
	tagLength  = 4
	maxFrame   = 1<<16 + 64 // an IP packet of 65535 bytes, its Ethernet header, tags
	room       = tagLength + vnetHeader + maxFrame
	ancillary  = 64
)

// message is struct mmsghdr.
type message struct {
	unix.Msghdr
	n uint32
}

// batch has room for frames to receive.
type batch struct {
	messages [batchSize]message
	vectors  [batchSize]unix.Iovec
	control  [batchSize][ancillary]byte
	buffers  []byte
}

func (b *batch) make() {
	b.buffers = make([]byte, batchSize*room)
	for i := range b.messages {
		v := &b.vectors[i]
		v.Base = &b.buffers[i*room+tagLength]
		v.SetLen(room - tagLength)
		b.messages[i].Iov = v
		b.messages[i].SetIovlen(1)
		b.messages[i].Control = &b.control[i][0]
	}
}

// read frames, as many as are there, most at most. Go's scheduler does not know of this call, nor of that which sends: the kernel takes a frame all the way to its receiver in it, and
// may let who wakes for that go first. The scheduler would give our processor to another thread meanwhile, and the loop would go on there.
func (b *batch) read(fd, most int) (int, error) {
	for i := range most {
		b.messages[i].SetControllen(ancillary)
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.messages)), uintptr(most), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// frame gives a received frame with its description, its VLAN tag put back. nil: it is not whole.
func (b *batch) frame(i int) []byte {
	m := &b.messages[i]
	if m.Flags&unix.MSG_TRUNC != 0 || m.n < vnetHeader+ethernetHeader {
		return nil
	}
	raw := b.buffers[i*room : i*room+tagLength+int(m.n)]
	const auxdata = 20
	control := b.control[i][:min(int(m.Controllen), ancillary)]
	if len(control) < unix.SizeofCmsghdr+auxdata {
		return raw[tagLength:]
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	aux := control[unix.SizeofCmsghdr:] // struct tpacket_auxdata
	if h.Level != unix.SOL_PACKET || h.Type != unix.PACKET_AUXDATA || binary.NativeEndian.Uint32(aux)&unix.TP_STATUS_VLAN_VALID == 0 {
		return raw[tagLength:]
	}
	return retag(raw, binary.NativeEndian.Uint16(aux[18:]), binary.NativeEndian.Uint16(aux[16:])) // tp_vlan_tpid, tp_vlan_tci
}

// outgoing is what waits to be sent.
type outgoing struct {
	n        int
	messages [batchSize]message
	vectors  [batchSize]unix.Iovec
}

func (o *outgoing) add(raw []byte) {
	v := &o.vectors[o.n]
	v.Base = &raw[0]
	v.SetLen(len(raw))
	o.messages[o.n].Iov = v
	o.messages[o.n].SetIovlen(1)
	o.n++
}

// write all. A frame that the interface does not take is lost, as on any wire.
func (o *outgoing) write(fd int) (sent, refused int) {
	for at := 0; at < o.n; {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&o.messages[at])), uintptr(o.n-at), unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.EAGAIN {
			n, _, errno = unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&o.messages[at])), uintptr(o.n-at), 0, 0, 0)
		}
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			refused++
			at++
		default:
			sent += int(n)
			at += int(n)
		}
	}
	clear(o.vectors[:o.n])
	o.n = 0
	return sent, refused
}
