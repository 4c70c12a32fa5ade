package ebpf

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/probing"
)

// probeWay is what one probe needs.
type probeWay struct {
	name string
	in   int         // interface to send out of
	out  uint16      // slot of the port where the program consumes it
	slot uint32      // of the function
	turn *sync.Mutex // one probe of a function is outstanding at a time
	with datapath.ProbeAddresses
	sent uint64
	rtt  time.Duration // 0: it has not come out
}

// Probe sends a frame in at one port of an inline function and waits for it at the other, where the program consumes it.
func (s *Switch) Probe(ctx context.Context, name string) (datapath.Probe, error) {
	return probing.Through(s.sendProbes).One(ctx, name)
}

// ProbeAll probes many functions at once.
func (s *Switch) ProbeAll(ctx context.Context, names []string) (map[string]datapath.Probe, error) {
	return probing.Through(s.sendProbes).All(ctx, names)
}

// sendProbes is a probing.Through.
func (s *Switch) sendProbes(ctx context.Context, names []string) (map[string]time.Duration, error) {
	ways, seen, socket, err := s.probeWays(ctx, names)
	if err != nil || len(ways) == 0 {
		return nil, err
	}
	defer seen.Close()
	var out []*probeWay // on their way
	for i := range ways {
		w := &ways[i]
		if len(names) == 1 {
			w.turn.Lock()
		} else if !w.turn.TryLock() { // somebody looks closely at this one just now
			continue
		}
		defer w.turn.Unlock()
		if err := w.send(seen, socket); err != nil && len(names) == 1 { // one whose link is gone is none of the others' trouble
			return nil, fmt.Errorf("send: %w", err)
		}
		out = append(out, w)
	}
	err = probing.Await(ctx, len(out), func(i int) (bool, error) {
		var p bpf.SteerProbe
		w := out[i]
		if err := seen.Lookup(w.slot, &p); err != nil {
			return false, err
		}
		if w.sent == 0 || p.Time < w.sent {
			return false, nil
		}
		w.rtt = max(time.Duration(p.Time-w.sent), 1)
		return true, nil
	})
	if err != nil && ctx.Err() == nil {
		return nil, err
	}
	took := make(map[string]time.Duration, len(ways))
	for _, w := range ways {
		took[w.name] = w.rtt
	}
	return took, nil
}

// send tells the program which probe is outstanding, and sends it.
func (w *probeWay) send(seen *ebpf.Map, socket *os.File) error {
	frame, nonce, err := probing.Frame(w.with)
	if err != nil {
		return err
	}
	sent, err := now()
	if err != nil {
		return err
	}
	p := bpf.SteerProbe{Dst: w.with.Dst, Src: w.with.Src, Port: w.out,
		Nonce: [2]uint64{binary.NativeEndian.Uint64(nonce[:8]), binary.NativeEndian.Uint64(nonce[8:])}}
	if err := seen.Put(w.slot, p); err != nil {
		return err
	}
	w.sent = sent
	return probing.Send(socket, frame, w.in)
}

// probeWays looks up what probes need. The map is the caller's to close: Close may come meanwhile.
func (s *Switch) probeWays(ctx context.Context, names []string) ([]probeWay, *ebpf.Map, *os.File, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	defer leave()
	var ways []probeWay
	for _, name := range names {
		if fn := s.fns[name]; fn != nil && len(fn.Ports) == 2 {
			ways = append(ways, probeWay{name: name, in: int(fn.Ports[0].Index), out: fn.Ports[1].Slot, slot: uint32(fn.Slot), turn: fn.turn, with: fn.F.Probe})
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

// openProbes opens the socket that sends frames out of any link of the switch's namespace. It is kept: making a thread and a socket for each
// probe and closing it again (the kernel waits for a grace period) costs many times the probe itself.
func (s *Switch) openProbes() error {
	if s.probes != nil {
		return nil
	}
	return s.home.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // protocol 0: receives nothing
		if err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		s.probes = os.NewFile(uintptr(fd), "probes")
		return nil
	})
}
