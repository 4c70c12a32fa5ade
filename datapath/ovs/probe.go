package ovs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/lifecycle"
	"weir.dev/weir/datapath/internal/probing"
)

// prober sends probes.
type prober struct {
	gate  *lifecycle.Gate
	home  *home.Home
	ports *ports
	ears  map[string]*ear // by function
}

// ear is the socket at which a function's probes are heard. It is kept: to close one costs a grace period of the kernel, many times the probe.
type ear struct {
	turn  probing.Turn
	f     *os.File
	index int // of the link
	hears datapath.ProbeAddresses
}

// probeWay is what one probe needs.
type probeWay struct {
	name  string
	in    int // interface to send out of
	ear   *ear
	kept  bool // the ear is
	frame []byte
	sent  time.Time
}

// Probe sends a frame in at an inline function's port in and waits for it at out, where an entry drops it.
func (s *Switch) Probe(ctx context.Context, name string) (datapath.Probe, error) {
	return probing.Through(s.prober.send).One(ctx, name)
}

// ProbeAll probes many functions at once.
func (s *Switch) ProbeAll(ctx context.Context, names []string) (map[string]datapath.Probe, error) {
	return probing.Through(s.prober.send).All(ctx, names)
}

// send is a probing.Through.
func (p *prober) send(ctx context.Context, names []string) (map[string]time.Duration, error) {
	ways, err := p.ways(ctx, names)
	if err != nil || len(ways) == 0 {
		return nil, err
	}
	return probing.Run(ctx, ways, len(names) == 1)
}

// ways looks up what probes need.
func (p *prober) ways(ctx context.Context, names []string) ([]*probeWay, error) {
	leave, err := p.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var ways []*probeWay
	for _, name := range names {
		fn := p.ports.fns[name]
		if fn == nil || len(fn.Ports) != 2 {
			continue
		}
		w := &probeWay{name: name, in: fn.Ports[0].Index, kept: fn.F.Forwarder == ""}
		if w.ear, err = p.ear(fn); err != nil && len(names) == 1 {
			return nil, err
		} else if err == nil {
			ways = append(ways, w)
		}
	}
	return ways, nil
}

// ear of a function; kept where the function forwards by itself. One that the switch forwards for is probed rarely, and would pay for an ear
// with each frame.
func (p *prober) ear(fn *function) (*ear, error) {
	index := fn.Ports[1].Index
	if e := p.ears[fn.F.Name]; e != nil && e.index == index && e.hears == fn.F.Probe {
		return e, nil
	}
	p.deafen(fn.F.Name)
	f, err := p.listen(index, fn.F.Probe)
	if err != nil {
		return nil, err
	}
	e := &ear{f: f, index: index, hears: fn.F.Probe}
	if fn.F.Forwarder == "" {
		p.ears[fn.F.Name] = e
	}
	return e, nil
}

// deafen closes a function's ear.
func (p *prober) deafen(name string) {
	if e := p.ears[name]; e != nil {
		e.f.Close()
		delete(p.ears, name)
	}
}

func (p *prober) close() {
	for name := range p.ears {
		p.deafen(name)
	}
}

func (w *probeWay) Function() string    { return w.name }
func (w *probeWay) Take(wait bool) bool { return w.ear.turn.Take(wait) }

func (w *probeWay) Done() {
	w.ear.turn.Give()
	if !w.kept {
		w.ear.f.Close()
	}
}

// maxStale bounds what is thrown away of earlier probes: a function may send frames of that kind as fast as it likes.
const maxStale = 256

// Send forgets frames of earlier probes, and sends a new one.
func (w *probeWay) Send() (err error) {
	if w.frame, _, err = probing.Frame(w.ear.hears); err != nil {
		return err
	}
	for range maxStale {
		if n, _, err := w.receive(nil); err != nil || n < 0 {
			break
		}
	}
	w.sent = time.Now()
	return probing.Send(w.ear.f, w.frame, w.in)
}

// Back tells whether the frame has come out.
func (w *probeWay) Back() (time.Duration, error) {
	buf := make([]byte, len(w.frame))
	for range maxStale {
		n, at, err := w.receive(buf)
		if err != nil || n < 0 {
			return 0, err
		}
		if bytes.Equal(buf[:n], w.frame) {
			return max(at.Sub(w.sent.Round(0)), 1), nil // the wall clock: the kernel's stamps are of that
		}
	}
	return 0, nil
}

// receive a frame without waiting; -1: there is none. at is when the kernel got it.
func (w *probeWay) receive(buf []byte) (n int, at time.Time, err error) {
	oob := make([]byte, 64)
	var oobn int
	err = w.ear.do(func(fd int) error {
		n, oobn, _, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_DONTWAIT)
		return err
	})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return -1, at, nil
	}
	at = time.Now()
	if err != nil {
		return -1, at, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err == nil && len(messages) > 0 && len(messages[0].Data) >= 16 {
		at = time.Unix(int64(binary.NativeEndian.Uint64(messages[0].Data)), int64(binary.NativeEndian.Uint64(messages[0].Data[8:])))
	}
	return n, at, nil
}

// do something with the socket, which Close cannot take away meanwhile.
func (e *ear) do(f func(fd int) error) error {
	raw, err := e.f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// listen for a function's probe frames at a link: the socket sees them before Open vSwitch does. Other frames do not even get into the
// socket's buffer, so no station can fill it.
func (p *prober) listen(index int, a datapath.ProbeAddresses) (*os.File, error) {
	prog := only(probing.Head(a))
	var f *os.File
	err := p.home.Space.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // protocol 0: nothing yet
		if err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		f = os.NewFile(uintptr(fd), "probe")
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}); err != nil {
			return fmt.Errorf("packet socket: filter: %w", err)
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index})
	})
	if err != nil && f != nil {
		f.Close()
	}
	return f, err
}

// only is a filter for frames that begin so (classic BPF: linux/bpf_common.h).
func only(head []byte) []unix.SockFilter {
	var prog []unix.SockFilter
	for at := 0; at < len(head); at += 4 {
		at = min(at, len(head)-4)
		prog = append(prog,
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(at)},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: binary.BigEndian.Uint32(head[at:])},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0})
	}
	return append(prog, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16})
}
