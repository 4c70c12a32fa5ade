package testbed

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// Impairment of a cable, the same in both directions; "" is none. See Link for the notation.
type Impairment struct {
	Rate, Delay, Loss string
}

// tbfQueue is how long a frame may wait in the queue of a cable with a rate before it is dropped.
const tbfQueue = 50e3 // microseconds

// Impair gives the cable at an end ("s1:2", a station's or agent's name) this rate, delay and loss instead of what it had.
func Impair(name, at string, i Impairment) error {
	p, err := find(name)
	if err != nil {
		return err
	}
	c, err := p.cable(at)
	if err != nil {
		return err
	}
	return p.impair(c, i)
}

func (p plan) impair(c cable, i Impairment) error {
	var shape shape
	var err error
	if i.Rate != "" {
		if shape.rate, err = ParseRate(i.Rate); err != nil {
			return fmt.Errorf("rate %w: %w", err, ErrInvalid)
		}
	}
	if i.Delay != "" {
		d, err := ParseDelay(i.Delay)
		if err != nil {
			return fmt.Errorf("delay %w: %w", err, ErrInvalid)
		}
		shape.delay = uint32(d.Microseconds())
	}
	if i.Loss != "" {
		l, err := ParseLoss(i.Loss)
		if err != nil {
			return fmt.Errorf("loss %w: %w", err, ErrInvalid)
		}
		shape.loss = float32(l)
	}
	for _, s := range c.sides {
		if err := netns.Do(p.netns(s.space), func() error { return shape.set(s.Interface) }); err != nil {
			return fmt.Errorf("cable %s - %s: %w", c.a, c.b, err)
		}
	}
	return nil
}

// shape is what leaves by an interface.
type shape struct {
	rate  uint64  // bits per second, 0 any
	delay uint32  // microseconds
	loss  float32 // per cent
}

// set replaces the root qdisc of an interface in the thread's namespace: netem for delay and loss, tbf for a rate alone.
func (s shape) set(link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	have, err := netlink.QdiscList(l)
	if err != nil {
		return fmt.Errorf("queues of %s: %w", link, err)
	}
	for _, q := range have {
		if q.Attrs().Parent == netlink.HANDLE_ROOT && (q.Type() == "tbf" || q.Type() == "netem") {
			if err := netlink.QdiscDel(q); err != nil {
				return fmt.Errorf("queue of %s: %w", link, err)
			}
		}
	}
	attrs := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}
	var q netlink.Qdisc
	var kind string
	switch {
	case s.delay > 0 || s.loss > 0:
		n := netlink.NewNetem(attrs, netlink.NetemQdiscAttrs{Latency: s.delay, Loss: s.loss, Limit: 10000})
		n.Rate64 = s.rate / 8
		q, kind = n, "netem"
	case s.rate > 0:
		bytes := s.rate / 8
		burst := max(uint32(bytes/100), 3*2048) // 10 ms, and some whole frames
		q, kind = &netlink.Tbf{QdiscAttrs: attrs, Rate: bytes, Buffer: uint32(netlink.Xmittime(bytes, burst)), Limit: uint32(float64(bytes)*tbfQueue/1e6) + burst}, "tbf"
	default:
		return nil
	}
	err = netlink.QdiscAdd(q)
	if errors.Is(err, unix.ENOENT) || err != nil && strings.Contains(err.Error(), "not supported") {
		return fmt.Errorf("this kernel has no %s queue (CONFIG_NET_SCH_%s): %w", kind, strings.ToUpper(kind), ErrMissing)
	}
	if err != nil {
		return fmt.Errorf("%s queue of %s: %w", kind, link, err)
	}
	return nil
}

// Cut takes the cable at an end down, as if it were pulled out: both ends see it. "NODE:mgmt" is an agent's, or the switches' ("ovs:mgmt"),
// connection to the management network.
func Cut(name, at string) error { return plug(name, at, false) }

// Heal puts it in again.
func Heal(name, at string) error { return plug(name, at, true) }

func plug(name, at string, up bool) error {
	p, err := find(name)
	if err != nil {
		return err
	}
	if node, ok := strings.CutSuffix(at, ":"+mgmt); ok {
		if !p.address(node).IsValid() || node == NodeManager {
			return fmt.Errorf("%w: %s has no connection to the management network of testbed %s", ErrNotFound, node, p.Name)
		}
		return p.setUp(side{node: NodeManager, space: NodeManager, Interface: "to-" + node}, up)
	}
	c, err := p.cable(at)
	if err != nil {
		return err
	}
	return p.setUp(c.sides[0], up)
}

// find is the plan of a testbed that is up.
func find(name string) (plan, error) {
	r, err := readRecord(name)
	if err != nil {
		return plan{}, err
	}
	return newPlan(r.Spec), nil
}
