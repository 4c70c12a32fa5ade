package xdp

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir.dev/weir/netns"
)

// Delay is a forwarder with a delay that is known, to test generators and sinks with. It takes frames of untagged IPv4 flows that a link
// receives, holds each back until a time after its departure, and sends it out of a link.
type Delay struct {
	maps delayObjects
	hook link.Link
	to   int
}

// between attaches a program to what a link receives, in front of all others, and finds the index of the link that it sends out of.
func between(at Place, to string, program *ebpf.Program) (hook link.Link, index int, err error) {
	err = netns.Do(at.Space, func() error {
		in, err := net.InterfaceByName(at.Link)
		if err != nil {
			return err
		}
		out, err := net.InterfaceByName(to)
		if err != nil {
			return err
		}
		index = out.Index
		hook, err = link.AttachTCX(link.TCXOptions{Program: program, Interface: in.Index, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
		return err
	})
	return hook, index, err
}

// stampOffset is where the time of departure is in the frames that a Delay knows.
const stampOffset = 14 + 20 + 8 + 6

// MaxDelay is how long a frame can be held: the CPU waits meanwhile.
const MaxDelay = time.Millisecond

// NewDelay attaches one that sends out of a link of the same namespace, maybe the same link. It is at tcx (Linux 6.6), in front of a sink.
func NewDelay(at Place, to string) (*Delay, error) {
	d := &Delay{}
	if err := loadDelayObjects(&d.maps, nil); err != nil {
		return nil, fmt.Errorf("load the delay: %w", err)
	}
	var err error
	if d.hook, d.to, err = between(at, to, d.maps.Hold); err != nil {
		return nil, errors.Join(fmt.Errorf("delay at %s: %w", at.Link, err), d.Close())
	}
	return d, d.Set(0)
}

// Set the delay, 0 to MaxDelay.
func (d *Delay) Set(delay time.Duration) error {
	if delay < 0 || delay > MaxDelay {
		return fmt.Errorf("delay of %s: want 0 to %s", delay, MaxDelay)
	}
	return d.maps.Orders.Put(uint32(0), &delayOrder{Delay: uint64(delay), To: uint32(d.to), Stamp: stampOffset})
}

// Close detaches it.
func (d *Delay) Close() error {
	var err error
	if d.hook != nil {
		err = d.hook.Close()
	}
	return errors.Join(err, d.maps.Close())
}
