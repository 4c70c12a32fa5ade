package ovs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

const (
	probeType  = 0x88b5 // IEEE 802 local experimental EtherType 1
	probeMagic = 0x57656972
	probeWait  = time.Second // without a deadline in ctx
)

// Addresses of probe frames: nobody's, locally administered.
var (
	probeDst = flow.MAC{0x06, 0x57, 0xff, 'p', 'r', 'o'}
	probeSrc = flow.MAC{0x06, 0x57, 0xff, 'p', 'r', 'f'}
)

// Probe sends a frame in at an inline function's port in and waits for it at out, where an entry drops it.
func (s *Switch) Probe(ctx context.Context, name string) (datapath.Probe, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return datapath.Probe{}, err
	}
	fn := s.fns[name]
	if fn == nil || len(fn.Ports) != 2 {
		leave()
		return datapath.Probe{}, fmt.Errorf("probe function %s: no such inline function: %w", name, datapath.ErrNotFound)
	}
	in, out := fn.Ports[0].Index, fn.Ports[1].Index
	f, err := s.listen(out)
	leave()
	if err != nil {
		return datapath.Probe{}, fmt.Errorf("probe function %s: %w", name, err)
	}
	defer f.Close()
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, probeWait)
		defer cancel()
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	frame := probeFrame()
	raw, err := f.SyscallConn()
	if err != nil {
		return datapath.Probe{}, err
	}
	sent := time.Now()
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.Sendto(int(fd), frame, 0, &unix.SockaddrLinklayer{Ifindex: in})
	}); err != nil || failed != nil {
		return datapath.Probe{}, fmt.Errorf("probe function %s: send: %w", name, errors.Join(err, failed))
	}
	buf := make([]byte, len(frame))
	for {
		n, err := f.Read(buf)
		if ctx.Err() != nil {
			return datapath.Probe{}, fmt.Errorf("probe function %s: the frame sent into port in did not come out of port out: %w", name, ctx.Err())
		}
		if err != nil {
			return datapath.Probe{}, fmt.Errorf("probe function %s: %w", name, err)
		}
		if bytes.Equal(buf[:n], frame) {
			return datapath.Probe{RTT: time.Since(sent)}, nil
		}
	}
}

// listen for probe frames at a link: the socket sees them before Open vSwitch does.
func (s *Switch) listen(index int) (*os.File, error) {
	prog := []unix.SockFilter{ // EtherType (classic BPF: linux/bpf_common.h)
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: probeType},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	var f *os.File
	err := s.home.Do(func() error {
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
		all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index})
	})
	if err != nil && f != nil {
		f.Close()
	}
	return f, err
}

// probeFrame is an Ethernet frame of the least size.
func probeFrame() []byte {
	b := make([]byte, 60)
	copy(b, probeDst[:])
	copy(b[6:], probeSrc[:])
	binary.BigEndian.PutUint16(b[12:], probeType)
	binary.BigEndian.PutUint32(b[14:], probeMagic)
	binary.BigEndian.PutUint64(b[18:], rand.Uint64()) // tells probes apart, is no secret
	return b
}
