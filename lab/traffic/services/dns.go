package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// DNSOptions of queries over UDP, each socket with several under way.
type DNSOptions struct {
	From     string     // namespace of the clients
	Address  netip.Addr // that they ask, at port 53
	Clients  int        // sockets; 0: 8
	UnderWay int        // queries of each; 0: 8
	Name     string     // that is asked for, type A
	Want     netip.Addr // the answer
	Duration time.Duration
}

const (
	dnsPort     = 53
	maxUnderWay = 256
	queryIn     = 200 * time.Millisecond // what is not answered by then is lost
)

// DNS asks.
func DNS(ctx context.Context, o DNSOptions) (Result, error) {
	if o.Clients == 0 {
		o.Clients = 8
	}
	if o.UnderWay == 0 {
		o.UnderWay = 8
	}
	err := check(o.Address, o.Clients, o.Duration)
	if o.UnderWay < 1 || o.UnderWay > maxUnderWay {
		err = errors.Join(err, fmt.Errorf("%d queries under way: want 1 to %d", o.UnderWay, maxUnderWay))
	}
	if err == nil {
		var r Result
		if r, err = o.ask(ctx); err == nil {
			return r, nil
		}
	}
	return Result{}, fmt.Errorf("dns: %w", err)
}

// resolver is one socket.
type resolver struct {
	o    DNSOptions
	c    net.Conn
	text []byte // a query, whose first two bytes are its id
	sent []time.Time
	buf  []byte
}

func (o DNSOptions) open() (r *resolver, err error) {
	r = &resolver{o: o, sent: make([]time.Time, o.UnderWay), buf: make([]byte, 4096)}
	m := new(dns.Msg).SetQuestion(dns.Fqdn(o.Name), dns.TypeA)
	if r.text, err = m.Pack(); err != nil {
		return nil, err
	}
	return r, netns.Do(o.From, func() error {
		r.c, err = net.Dial("udp4", netip.AddrPortFrom(o.Address, dnsPort).String())
		return err
	})
}

// send the query of a slot, which is its id.
func (r *resolver) send(slot int) error {
	r.text[0], r.text[1] = byte(slot>>8), byte(slot)
	r.sent[slot] = time.Now()
	_, err := r.c.Write(r.text)
	if err != nil && refused(err) { // the server may have just begun
		return nil
	}
	return err
}

// receive an answer: its slot and how long it took; ok is false if none came in time.
func (r *resolver) receive() (slot int, took time.Duration, ok bool, err error) {
	if err := r.c.SetReadDeadline(time.Now().Add(queryIn)); err != nil {
		return 0, 0, false, err
	}
	n, err := r.c.Read(r.buf)
	if errors.Is(err, os.ErrDeadlineExceeded) || refused(err) {
		return 0, 0, false, nil
	}
	if err != nil {
		return 0, 0, false, err
	}
	var m dns.Msg
	if err := m.Unpack(r.buf[:n]); err != nil {
		return 0, 0, false, err
	}
	if len(m.Answer) != 1 {
		return 0, 0, false, fmt.Errorf("%d answers: want one", len(m.Answer))
	}
	if x, is := m.Answer[0].(*dns.A); !is || x.A.String() != r.o.Want.String() {
		return 0, 0, false, fmt.Errorf("answer %v: want %s", m.Answer, r.o.Want)
	}
	slot = int(m.Id)
	if slot >= len(r.sent) || r.sent[slot].IsZero() { // late: counted as lost
		return 0, 0, false, nil
	}
	took = time.Since(r.sent[slot])
	r.sent[slot] = time.Time{}
	return slot, took, true, nil
}

// warm asks until an answer is there.
func (r *resolver) warm(ctx context.Context) error {
	for end := time.Now().Add(answersIn); ; {
		if err := r.send(0); err != nil {
			return err
		}
		switch _, _, ok, err := r.receive(); {
		case err != nil:
			return err
		case ok:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("%s does not answer for %s within %s", r.o.Address, r.o.Name, answersIn)
		}
	}
}

// run asks until the end.
func (r *resolver) run(ctx context.Context, end time.Time, l *loop) error {
	for slot := range r.sent {
		if err := r.send(slot); err != nil {
			return err
		}
	}
	for time.Now().Before(end) && ctx.Err() == nil {
		slot, took, ok, err := r.receive()
		if err != nil {
			return err
		}
		if ok {
			l.took(took)
			if err := r.send(slot); err != nil {
				return err
			}
			continue
		}
		for slot, at := range r.sent {
			if !at.IsZero() && time.Since(at) >= queryIn {
				l.lost++
				if err := r.send(slot); err != nil {
					return err
				}
			}
		}
	}
	return ctx.Err()
}

func (o DNSOptions) ask(ctx context.Context) (Result, error) {
	all := make([]*resolver, o.Clients)
	defer func() {
		for _, r := range all {
			if r != nil && r.c != nil {
				_ = r.c.Close()
			}
		}
	}()
	for i := range all {
		var err error
		if all[i], err = o.open(); err != nil {
			return Result{}, err
		}
		if err := all[i].warm(ctx); err != nil {
			return Result{}, err
		}
	}
	loops := make([]loop, o.Clients)
	var g errgroup.Group
	begin := time.Now()
	end := begin.Add(o.Duration)
	for i, r := range all {
		g.Go(func() error {
			return r.run(ctx, end, &loops[i])
		})
	}
	err := g.Wait()
	return sum(loops, time.Since(begin)), err
}

// refused tells that nobody listens there yet.
func refused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }
