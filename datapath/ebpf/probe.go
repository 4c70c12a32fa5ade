package ebpf

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/lifecycle"
	"weir.dev/weir/datapath/internal/probing"
)

// prober sends probes.
type prober struct {
	gate   *lifecycle.Gate
	home   *home.Home
	maps   *mapSet
	ports  *ports
	socket *os.File // nil until the first probe
}

// probeWay is what one probe needs.
type probeWay struct {
	name   string
	in     int    // interface to send out of
	out    uint16 // slot of the port where the program consumes it
	slot   uint32 // of the function
	with   datapath.ProbeAddresses
	turn   *probing.Turn
	seen   *ebpf.Map
	socket *os.File
	sent   uint64
}

// Probe sends a frame in at one port of an inline function and waits for it at the other, where the program consumes it.
func (s *Switch) Probe(ctx context.Context, name string) (datapath.Probe, error) {
	return probing.Through(s.prober.send).One(ctx, name)
}

// ProbeAll probes many functions at once.
func (s *Switch) ProbeAll(ctx context.Context, names []string) (map[string]datapath.Probe, error) {
	return probing.Through(s.prober.send).All(ctx, names)
}

// send is a probing.Through.
func (p *prober) send(ctx context.Context, names []string) (map[string]time.Duration, error) {
	ways, seen, err := p.ways(ctx, names)
	if err != nil || len(ways) == 0 {
		return nil, err
	}
	defer seen.Close()
	return probing.Run(ctx, ways, len(names) == 1)
}

// ways looks up what probes need. The map is the caller's to close: Close may come meanwhile.
func (p *prober) ways(ctx context.Context, names []string) (ways []*probeWay, seen *ebpf.Map, err error) {
	leave, err := p.gate.Enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	for _, name := range names {
		if fn := p.ports.fns[name]; fn != nil && len(fn.Ports) == 2 {
			ways = append(ways, &probeWay{name: name, in: int(fn.Ports[0].Index), out: fn.Ports[1].Slot, slot: uint32(fn.Slot), turn: fn.turn, with: fn.F.Probe})
		}
	}
	if len(ways) == 0 {
		return nil, nil, nil
	}
	if err := p.open(); err != nil {
		return nil, nil, err
	}
	seen, err = p.maps.Probes.Clone()
	for _, w := range ways {
		w.seen, w.socket = seen, p.socket
	}
	return ways, seen, err
}

// open the socket that sends frames out of any link of the switch's namespace. It is kept: making a thread and a socket for each
// probe and closing it again (the kernel waits for a grace period) costs many times the probe itself.
func (p *prober) open() error {
	if p.socket != nil {
		return nil
	}
	return p.home.Space.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // protocol 0: receives nothing
		if err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		p.socket = os.NewFile(uintptr(fd), "probes")
		return nil
	})
}

func (p *prober) close() {
	if p.socket != nil {
		p.socket.Close() // errors of one that is sending are its own
	}
}

func (w *probeWay) Function() string    { return w.name }
func (w *probeWay) Take(wait bool) bool { return w.turn.Take(wait) }
func (w *probeWay) Done()               { w.turn.Give() }

// Send tells the program which probe is outstanding, and sends it.
func (w *probeWay) Send() error {
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
	if err := w.seen.Put(w.slot, p); err != nil {
		return err
	}
	w.sent = sent
	return probing.Send(w.socket, frame, w.in)
}

// Back asks the program whether the frame has come out.
func (w *probeWay) Back() (time.Duration, error) {
	var p bpf.SteerProbe
	if err := w.seen.Lookup(w.slot, &p); err != nil || w.sent == 0 || p.Time < w.sent {
		return 0, err
	}
	return max(time.Duration(p.Time-w.sent), 1), nil
}
