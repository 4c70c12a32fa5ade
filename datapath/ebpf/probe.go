package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
)

const (
	probeType  = 0x88b5 // IEEE 802 local experimental EtherType 1
	probeMagic = 0x57656972
	probeWait  = time.Second // without a deadline in ctx
	probeLooks = 30          // before the first sleep
)

// Probe sends a frame in at an inline function's port in and waits for it at out, where the program consumes it.
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
	in, out, slot := fn.Ports[0].Index, fn.Ports[1].Slot, fn.Slot
	seen, err := s.maps.Probes.Clone() // Close may come meanwhile
	if err == nil {
		defer seen.Close()
		err = s.openProbes()
	}
	fd := s.probes
	leave()
	if err != nil {
		return datapath.Probe{}, fmt.Errorf("probe function %s: %w", name, err)
	}
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, probeWait)
		defer cancel()
	}
	frame, nonce := probeFrame(slot)
	sent, err := now()
	if err != nil {
		return datapath.Probe{}, err
	}
	if err := fd.send(frame, int(in)); err != nil {
		return datapath.Probe{}, fmt.Errorf("probe function %s: send: %w", name, err)
	}
	for wait, looks := 20*time.Microsecond, 0; ; looks++ {
		var p bpf.SteerProbe
		if err := seen.Lookup(uint32(out), &p); err != nil {
			return datapath.Probe{}, fmt.Errorf("probe function %s: %w", name, err)
		}
		if p.Nonce == nonce && p.Time >= sent {
			return datapath.Probe{RTT: time.Duration(p.Time - sent)}, nil
		}
		if looks < probeLooks { // most often it is there at once: sleeping and waking up costs more than looking
			continue
		}
		t := time.NewTimer(wait)
		wait = min(2*wait, time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			if errors.Is(ctx.Err(), context.Canceled) {
				return datapath.Probe{}, ctx.Err()
			}
			return datapath.Probe{}, fmt.Errorf("probe function %s: the frame sent into port in did not come out of port out: %w", name, ctx.Err())
		case <-t.C:
		}
	}
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
