package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/probing"
)

const (
	probeType  = 0x88b5 // IEEE 802 local experimental EtherType 1
	probeMagic = 0x57656972
	probeWait  = time.Second // without a deadline in ctx
)

// probeWay is what one probe needs.
type probeWay struct {
	name  string
	in    int    // interface to send out of
	out   uint32 // slot of the port where the program consumes it
	slot  uint16 // of the function
	nonce uint32
	sent  uint64
	rtt   time.Duration // 0: it has not come out
}

// Probe sends a frame in at one port of an inline function and waits for it at the other, where the program consumes it.
func (s *Switch) Probe(ctx context.Context, name string) (datapath.Probe, error) {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, probeWait)
		defer cancel()
	}
	ways, err := s.sendProbes(ctx, []string{name})
	switch {
	case err != nil:
	case len(ways) == 0:
		err = fmt.Errorf("no such inline function: %w", datapath.ErrNotFound)
	case ways[0].rtt > 0:
		return datapath.Probe{RTT: ways[0].rtt}, nil
	case errors.Is(ctx.Err(), context.Canceled):
		return datapath.Probe{}, ctx.Err()
	default:
		err = fmt.Errorf("the frame sent into port in did not come out of port out: %w", ctx.Err())
	}
	return datapath.Probe{}, fmt.Errorf("probe function %s: %w", name, err)
}

// ProbeAll probes many functions at once.
func (s *Switch) ProbeAll(ctx context.Context, names []string) (map[string]datapath.Probe, error) {
	ways, err := s.sendProbes(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("probe %d functions: %w", len(names), err)
	}
	passed := make(map[string]datapath.Probe, len(ways))
	for _, w := range ways {
		if w.rtt > 0 {
			passed[w.name] = datapath.Probe{RTT: w.rtt}
		}
	}
	return passed, nil
}

// sendProbes sends a frame through each inline function among names, and waits until all are out or ctx ends.
func (s *Switch) sendProbes(ctx context.Context, names []string) ([]probeWay, error) {
	ways, seen, socket, err := s.probeWays(ctx, names)
	if err != nil || len(ways) == 0 {
		return nil, err
	}
	defer seen.Close()
	for i := range ways {
		w := &ways[i]
		var frame []byte
		frame, w.nonce = probeFrame(w.slot)
		if w.sent, err = now(); err != nil {
			return nil, err
		}
		if err := socket.send(frame, w.in); err != nil && len(names) == 1 { // one whose link is gone is none of the others' trouble
			return nil, fmt.Errorf("send: %w", err)
		}
	}
	err = probing.Await(ctx, len(ways), func(i int) (bool, error) {
		var p bpf.SteerProbe
		w := &ways[i]
		if err := seen.Lookup(w.out, &p); err != nil {
			return false, err
		}
		if p.Nonce != w.nonce || p.Time < w.sent {
			return false, nil
		}
		w.rtt = max(time.Duration(p.Time-w.sent), 1)
		return true, nil
	})
	if err != nil && ctx.Err() == nil {
		return nil, err
	}
	return ways, nil
}

// probeWays looks up what probes need. The map is the caller's to close: Close may come meanwhile.
func (s *Switch) probeWays(ctx context.Context, names []string) ([]probeWay, *ebpf.Map, *probeSocket, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	defer leave()
	var ways []probeWay
	for _, name := range names {
		if fn := s.fns[name]; fn != nil && len(fn.Ports) == 2 {
			ways = append(ways, probeWay{name: name, in: int(fn.Ports[0].Index), out: uint32(fn.Ports[1].Slot), slot: fn.Slot})
		}
	}
	if len(ways) == 0 {
		return nil, nil, nil, nil
	}
	if err := s.openProbes(); err != nil {
		return nil, nil, nil, err
	}
	seen, err := s.maps.Probes.Clone()
	return ways, seen, s.probes, err
}

// probeSocket sends frames out of any link of the switch's namespace. It is kept: making a thread and a socket for each probe and
// closing it again (the kernel waits for a grace period) costs many times the probe itself.
type probeSocket struct{ f *os.File }

func (s *Switch) openProbes() error {
	if s.probes != nil {
		return nil
	}
	return s.home.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // protocol 0: receives nothing
		if err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		s.probes = &probeSocket{os.NewFile(uintptr(fd), "probes")}
		return nil
	})
}

func (p *probeSocket) send(frame []byte, index int) error {
	c, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := c.Control(func(fd uintptr) {
		sent = unix.Sendto(int(fd), frame, 0, &unix.SockaddrLinklayer{Ifindex: index})
	}); err != nil {
		return err
	}
	return sent
}

// probeFrame is an Ethernet frame of the least size. Its addresses are nobody's.
func probeFrame(function uint16) ([]byte, uint32) {
	b := make([]byte, 60)
	dst, src := [6]byte{0x06, 0x57, 0xff, 'p', 'r', 'o'}, [6]byte{0x06, 0x57, 0xff, 'p', 'r', 'f'} // locally administered
	copy(b, dst[:])
	copy(b[6:], src[:])
	n := rand.Uint32() | 1 // tells probes apart, is no secret
	binary.BigEndian.PutUint16(b[12:], probeType)
	binary.BigEndian.PutUint32(b[14:], probeMagic)
	binary.BigEndian.PutUint32(b[18:], uint32(function))
	binary.BigEndian.PutUint32(b[22:], n)
	return b, n
}
