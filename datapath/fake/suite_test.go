package fake_test

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/fake"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// The fake passes the suite of the real drivers, with its ports plugged into real links by raw sockets, but for what only a kernel has.
func TestConformance(t *testing.T) {
	var mu sync.Mutex
	open := map[string]*plugged{}
	suite.RunBut(t, func(i instance.Instance) (datapath.Switch, error) {
		mu.Lock()
		defer mu.Unlock()
		if p := open[i.Name]; p != nil { // again, after a Close
			p.Open()
			for pid := range p.pids { // as a driver looks whose processes are there
				if unix.Kill(pid, 0) != nil {
					p.Ended(pid)
				}
			}
			return p, nil
		}
		host, err := netns.At("")
		if err != nil {
			return nil, err
		}
		p := &plugged{host: host, links: map[string]*link{}, pids: map[int]bool{}}
		p.Switch = fake.New(fake.Options{Forward: p.forward, HasLink: func(name string) bool { _, err := host.Link(name); return err == nil }})
		open[i.Name] = p
		return p, nil
	}, map[string]string{
		"probes":                                "a fake's probes are no frames",
		"probes that stations forge and replay": "a fake's probes are no frames",
		"refusals":                              "what links are used for, only a kernel knows",
		"a stream with the fabric's tag":        "raw sockets lose which checksums are unfinished",
		"frames into a function that wants them whole": "raw sockets lose which checksums are unfinished",
	})
}

// plugged is a fake whose ports are links.
type plugged struct {
	*fake.Switch
	host *netns.Space

	mu    sync.Mutex // frames are handled one after another
	links map[string]*link
	ports map[flow.Port]string // to links
	pids  map[int]bool         // that SetState has named
}

// link is a socket at a link. Frames that come in enter the switch at a port.
type link struct {
	fd, index int
	port      string
}

func (*plugged) Lacks() []suite.Capability {
	return []suite.Capability{suite.TooLarge, suite.Unattended}
}

func (p *plugged) Destroy(ctx context.Context) error {
	p.mu.Lock()
	for name := range p.links {
		p.unplug(name)
	}
	p.mu.Unlock()
	return p.Switch.Destroy(ctx)
}

func (p *plugged) AddEndpoint(ctx context.Context, e datapath.Endpoint) (flow.Port, error) {
	n, err := p.Switch.AddEndpoint(ctx, e)
	if err == nil && !e.Held {
		err = p.plug(e.Link, "endpoint/"+e.Name)
	}
	return n, err
}

func (p *plugged) AddFunction(ctx context.Context, f datapath.Function) (datapath.Ports, error) {
	if f.Check() == nil && p.Abilities().Check(f) == nil && f.Forwarder == "" {
		if _, err := p.peer(f, flow.SidesOf(f.Tap != "")[0]); err != nil {
			return datapath.Ports{}, err
		}
	}
	ports, err := p.Switch.AddFunction(ctx, f)
	for side, name := range []string{f.In, f.Out, f.Tap} {
		if err == nil && name != "" {
			err = p.plug(name, flow.Side(side).Of(f.Name))
		}
	}
	return ports, err
}

// SetState watches the process as a driver does.
func (p *plugged) SetState(ctx context.Context, function string, s datapath.State, pid int) error {
	p.Settle() // frames that were sent before meet the former state
	p.mu.Lock()
	err := p.Switch.SetState(ctx, function, s, pid)
	p.pids[pid] = true
	p.mu.Unlock()
	if err != nil || pid <= 0 {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		p.Ended(pid)
		return nil
	} else if err != nil {
		return err
	}
	go func() {
		defer unix.Close(fd)
		for {
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
				break
			}
		}
		p.Ended(pid)
	}()
	return nil
}

// Settle returns when the switch has met all frames that have come in.
func (p *plugged) Settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.waiting() {
		p.mu.Unlock()
		runtime.Gosched()
		p.mu.Lock()
	}
}

// waiting tells whether a frame has come in that the switch has not met.
func (p *plugged) waiting() bool {
	for _, l := range p.links {
		if n, err := unix.IoctlGetInt(l.fd, unix.TIOCINQ); err == nil && n > 0 {
			return true
		}
	}
	return false
}

// peer is the inner end of a function's link.
func (p *plugged) peer(f datapath.Function, side flow.Side) (netns.Link, error) {
	space, err := netns.At(f.Netns)
	if err != nil {
		return netns.Link{}, err
	}
	defer space.Close()
	return space.Link(side.String())
}

// forward hands frames to the function's links. A function whose forwarder is the switch's shows them there, too.
func (p *plugged) forward(f datapath.Function) flow.Function {
	out := flow.Function{Model: func(at flow.Side, frame []byte) []flow.Emitted {
		p.write([]string{f.In, f.Out, f.Tap}[at], frame)
		switch {
		case f.Forwarder == "":
			return nil
		case at == flow.In:
			return []flow.Emitted{{Side: flow.Out, Frame: frame}}
		}
		return []flow.Emitted{{Side: flow.In, Frame: frame}}
	}}
	for _, side := range flow.SidesOf(f.Tap != "") {
		if l, err := p.peer(f, side); err == nil {
			*[]*flow.MAC{&out.InMAC, &out.OutMAC, &out.TapMAC}[side] = l.MAC
		}
	}
	return out
}

// plug a link into the switch at a port.
func (p *plugged) plug(name, port string) error {
	l, err := p.host.Link(name)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.number(); err != nil {
		return err
	}
	if old := p.links[name]; old != nil && old.index == l.Index && old.port == port {
		return nil
	}
	p.unplug(name)
	x := &link{index: l.Index, port: port}
	err = p.host.Do(func() (err error) {
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		if x.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(x.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		return errors.Join(unix.SetsockoptInt(x.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptInt(x.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.Bind(x.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Index}))
	})
	if err != nil {
		return err
	}
	p.links[name] = x
	go p.receive(name, x)
	return nil
}

// number notes which link is which port.
func (p *plugged) number() error {
	ports, err := p.Ports(context.Background())
	p.ports = map[flow.Port]string{}
	for _, s := range ports {
		p.ports[s.Port] = s.Link
	}
	return err
}

func (p *plugged) unplug(name string) {
	if l := p.links[name]; l != nil {
		delete(p.links, name) // receive closes the socket
	}
}

func (p *plugged) receive(name string, l *link) {
	defer unix.Close(l.fd)
	buf, oob := make([]byte, 1<<17), make([]byte, 256)
	for {
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}, 20)
		p.mu.Lock()
		if p.links[name] != l {
			p.mu.Unlock()
			return
		}
		n, on, _, _, err := unix.Recvmsg(l.fd, buf, oob, unix.MSG_DONTWAIT)
		if err == nil {
			p.enter(l, whole(slices.Clone(buf[:n]), oob[:on]))
		}
		p.mu.Unlock()
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENETDOWN) {
			return
		}
	}
}

func (p *plugged) enter(l *link, frame []byte) {
	res, err := p.Send(l.port, frame)
	if err != nil {
		return // a loop: what the suite looks for does not arrive
	}
	for _, d := range res.Deliveries {
		p.write(p.ports[d.Port], d.Frame)
	}
}

func (p *plugged) write(name string, frame []byte) {
	if l := p.links[name]; l != nil {
		_ = unix.Sendto(l.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.index}) // a link that is down drops
	}
}

// whole puts the tag back that the kernel took off.
func whole(frame, oob []byte) []byte {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(frame) < 14 {
		return frame
	}
	for _, m := range msgs {
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 20 &&
			binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
			tag := binary.BigEndian.AppendUint16(nil, binary.NativeEndian.Uint16(m.Data[18:]))
			return slices.Insert(frame, 12, binary.BigEndian.AppendUint16(tag, binary.NativeEndian.Uint16(m.Data[16:]))...)
		}
	}
	return frame
}
