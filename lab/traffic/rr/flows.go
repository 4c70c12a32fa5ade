package rr

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Mix says which flows there are: in every round each client sends one, and the round's flows start together. A share of the clients sends an
// elephant, the others a mouse; which ones is drawn anew for each round.
type Mix struct {
	Clients   int
	Rounds    int
	Mouse     int64   // bytes
	Elephant  int64   // bytes
	Elephants float64 // share of the clients, rounded to whole ones
}

// Bounds of a mix. The first bytes of a flow say which it is and how long.
const (
	MaxFlows   = 100_000
	MinFlow    = 16
	MaxFlow    = 10 << 30
	maxMixed   = 1 << 40 // bytes of all flows
	MaxMessage = 1 << 20
)

// Check says what is wrong with a mix.
func (m Mix) Check() error {
	var errs []error
	if m.Clients < 1 || m.Clients > MaxConnections {
		errs = append(errs, fmt.Errorf("%d clients: want 1 to %d", m.Clients, MaxConnections))
	}
	if m.Rounds < 1 || m.Clients > 0 && m.Rounds > MaxFlows/m.Clients {
		errs = append(errs, fmt.Errorf("%d rounds of %d flows: want at least one round, at most %d flows", m.Rounds, m.Clients, MaxFlows))
	}
	for _, size := range []int64{m.Mouse, m.Elephant} {
		if size < MinFlow || size > MaxFlow {
			errs = append(errs, fmt.Errorf("a flow of %d bytes: want %d to %d", size, MinFlow, int64(MaxFlow)))
		}
	}
	if !(m.Elephants >= 0 && m.Elephants <= 1) { // NaN is neither
		errs = append(errs, fmt.Errorf("a share of %v elephants: want 0 to 1", m.Elephants))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if total := m.bytes() * float64(m.Rounds); total > maxMixed {
		return fmt.Errorf("%.0f bytes in all: want at most %d", total, int64(maxMixed))
	}
	return nil
}

func (m Mix) elephants() int { return int(m.Elephants*float64(m.Clients) + 0.5) }

// bytes of a round.
func (m Mix) bytes() float64 {
	e := float64(m.elephants())
	return e*float64(m.Elephant) + (float64(m.Clients)-e)*float64(m.Mouse)
}

// Flow is one transfer. Begun is since its round's start, Done since its own beginning until the receiver had the last byte.
type Flow struct {
	Round    int           `json:"round"`
	Client   int           `json:"client"`
	Elephant bool          `json:"elephant,omitempty"`
	Bytes    int64         `json:"bytes"`
	Begun    time.Duration `json:"begun_ns"`
	Done     time.Duration `json:"done_ns"`
}

// Plan is the flows of a mix, round by round and client by client. The same seed gives the same plan.
func (m Mix) Plan(seed uint64) []Flow {
	rng := rand.New(rand.NewPCG(seed, 0xf10))
	var out []Flow
	for round := range m.Rounds {
		big := rng.Perm(m.Clients)[:m.elephants()]
		for client := range m.Clients {
			f := Flow{Round: round, Client: client, Bytes: m.Mouse, Elephant: slices.Contains(big, client)}
			if f.Elephant {
				f.Bytes = m.Elephant
			}
			out = append(out, f)
		}
	}
	return out
}

// Ends of a client's flows.
type Ends struct {
	From, To string     // namespaces of the sender and the receiver
	Address  netip.Addr // of the receiver
	// FromCPUs and ToCPUs are processors that the sender and the receiver may run on; nil: all that this process has.
	FromCPUs, ToCPUs []int
}

// FlowOptions of a run.
type FlowOptions struct {
	From, To string     // namespaces of senders and receivers
	Address  netip.Addr // of the receivers
	// Pairs are the ends of each client in the place of those: one a client; nil: all clients have those.
	Pairs   []Ends
	Mix     Mix
	Seed    uint64
	Message int // bytes written at once; 0: 128 KiB

	Congestion string // control, of both ends; empty: that of the namespaces
}

// FlowResult is what became of the flows.
type FlowResult struct {
	Flows       []Flow        `json:"flows"`
	Sent        int64         `json:"sent_bytes"`
	Received    int64         `json:"received_bytes"`
	Busy        time.Duration `json:"busy_ns"` // the sum of the rounds, each from its start until its last flow was complete
	Retransmits int           `json:"retransmits"`
	Congestion  string        `json:"congestion"`
	CPU         time.Duration `json:"cpu_ns"` // of both ends' threads
}

// Check says what does not balance.
func (r FlowResult) Check() error {
	var planned int64
	for _, f := range r.Flows {
		planned += f.Bytes
		if f.Done <= 0 {
			return fmt.Errorf("flow %d of round %d was not completed", f.Client, f.Round)
		}
	}
	if r.Sent != planned || r.Received != planned {
		return fmt.Errorf("%d bytes planned, %d sent, %d received: want all the same", planned, r.Sent, r.Received)
	}
	return nil
}

// defaultMessage is iperf3's.
const defaultMessage = 128 << 10

// RunFlows runs the rounds of a mix. A flow has a connection of its own; it begins before the connection is made and is complete when its
// receiver has the last byte.
func RunFlows(ctx context.Context, o FlowOptions) (r FlowResult, err error) {
	if o.Message == 0 {
		o.Message = defaultMessage
	}
	if err := o.Mix.Check(); err != nil {
		return r, fmt.Errorf("flows: %w", err)
	}
	if err := o.checkEnds(); err != nil {
		return r, err
	}
	e := &ends{congestion: o.Congestion}
	defer func() { err = errors.Join(err, e.closeAll()) }()
	listeners, err := e.listeners(o)
	if err != nil {
		return r, fmt.Errorf("flows: %w", err)
	}
	r.Flows = o.Mix.Plan(o.Seed)
	buffers := make([]buffer, o.Mix.Clients)
	for i := range buffers {
		buffers[i] = buffer{out: make([]byte, o.Message), in: make([]byte, defaultMessage)}
	}
	for round := range slices.Chunk(r.Flows, o.Mix.Clients) {
		if err := r.round(ctx, e, o, round, listeners, buffers); err != nil {
			return r, fmt.Errorf("flows of round %d: %w", round[0].Round, err)
		}
	}
	return r, nil
}

func (o FlowOptions) checkEnds() error {
	if o.Pairs != nil && len(o.Pairs) != o.Mix.Clients {
		return fmt.Errorf("flows of %d clients, %d pairs of ends: want one a client", o.Mix.Clients, len(o.Pairs))
	}
	for i := range o.Mix.Clients {
		if to := o.ends(i).Address; !to.IsValid() || o.Message < MinFlow || o.Message > MaxMessage {
			return fmt.Errorf("flows to %s, %d bytes at once: want an address, and %d to %d bytes", to, o.Message, MinFlow, MaxMessage)
		}
	}
	return nil
}

// ends of a client.
func (o FlowOptions) ends(client int) Ends {
	if o.Pairs == nil {
		return Ends{From: o.From, To: o.To, Address: o.Address}
	}
	return o.Pairs[client]
}

// listener of a client's flows.
type listener struct {
	fd int
	to netip.AddrPort
}

// listeners of all clients: one for all, or, with pairs, one for each.
func (e *ends) listeners(o FlowOptions) (out []listener, err error) {
	for i := range o.Mix.Clients {
		if i > 0 && o.Pairs == nil {
			out = append(out, out[0])
			continue
		}
		var l listener
		if l.fd, l.to, err = e.listen(o.ends(i).To, o.ends(i).Address, o.Mix.Clients); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// senders' sockets, one a client.
func (e *ends) senders(o FlowOptions) (out []int, err error) {
	if o.Pairs == nil {
		return e.make(o.From, family(o.Address), o.Mix.Clients)
	}
	for _, p := range o.Pairs {
		fds, err := e.make(p.From, family(p.Address), 1)
		if err != nil {
			return nil, err
		}
		out = append(out, fds...)
	}
	return out, nil
}

// buffer of a sender and of a receiver; rounds share them.
type buffer struct{ out, in []byte }

// arrival of a flow at its receiver.
type arrival struct {
	client int
	bytes  int64
	at     time.Time
}

func (r *FlowResult) round(ctx context.Context, e *ends, o FlowOptions, flows []Flow, listeners []listener, buffers []buffer) error {
	fds, err := e.senders(o)
	if err != nil {
		return err
	}
	if r.Congestion == "" {
		if r.Congestion, err = congestion(fds[0]); err != nil {
			return err
		}
	}
	c := newCrew(ctx, e)
	arrivals, begun := make([]arrival, len(flows)), make([]time.Time, len(flows))
	sent, again := make([]int64, len(flows)), make([]int, len(flows))
	var ready = make(chan struct{}, len(flows))
	begin := make(chan struct{})
	for i := range flows {
		on := o.ends(i)
		c.startOn(on.ToCPUs, "receiver", func() (err error) {
			arrivals[i], err = e.receive(listeners[i].fd, buffers[i].in, flows)
			return err
		})
		c.startOn(on.FromCPUs, "sender", func() (err error) {
			ready <- struct{}{}
			<-begin
			begun[i] = time.Now()
			sent[i], again[i], err = e.send(fds[i], listeners[i].to, flows[i], buffers[i].out)
			return err
		})
	}
	for range flows {
		<-ready
	}
	start := time.Now()
	close(begin)
	if err := c.wait(); err != nil {
		return err
	}
	r.CPU += c.cpu
	last := start
	for i, a := range arrivals {
		f := &flows[a.client]
		if f.Done != 0 {
			return fmt.Errorf("flow of client %d arrived twice", a.client)
		}
		f.Begun, f.Done = begun[a.client].Sub(start), a.at.Sub(begun[a.client])
		if a.at.After(last) {
			last = a.at
		}
		r.Sent, r.Received, r.Retransmits = r.Sent+sent[i], r.Received+a.bytes, r.Retransmits+again[i]
	}
	r.Busy += last.Sub(start)
	return nil
}

// send a flow: who it is and how long, then the rest; the receiver says when it has all.
func (e *ends) send(fd int, to netip.AddrPort, f Flow, b []byte) (sent int64, retransmits int, err error) {
	if err := connect(fd, to); err != nil {
		return 0, 0, err
	}
	binary.LittleEndian.PutUint64(b, uint64(f.Client))
	binary.LittleEndian.PutUint64(b[8:], uint64(f.Bytes))
	for sent < f.Bytes {
		piece := b[:min(int64(len(b)), f.Bytes-sent)]
		if err := writeAll(fd, piece); err != nil {
			return sent, 0, err
		}
		sent += int64(len(piece))
	}
	if err := readFull(fd, make([]byte, 1)); err != nil {
		return sent, 0, fmt.Errorf("the receiver's word: %w", err)
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return sent, 0, fmt.Errorf("tcp info: %w", err)
	}
	// Without lingering, so that thousands of flows leave no ports behind that wait.
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	return sent, int(info.Total_retrans), errors.Join(err, e.close(fd))
}

// receive the next flow, whichever it is.
func (e *ends) receive(listener int, b []byte, flows []Flow) (a arrival, err error) {
	fd, err := e.accept(listener)
	if err != nil {
		return a, err
	}
	if err := readFull(fd, b[:MinFlow]); err != nil {
		return a, fmt.Errorf("the flow's head: %w", err)
	}
	client, size := binary.LittleEndian.Uint64(b), int64(binary.LittleEndian.Uint64(b[8:]))
	if client >= uint64(len(flows)) || flows[client].Bytes != size {
		return a, fmt.Errorf("a flow of client %d of %d bytes: there is none", client, size)
	}
	a = arrival{client: int(client), bytes: MinFlow}
	for a.bytes < size {
		n, err := unix.Read(fd, b[:min(int64(len(b)), size-a.bytes)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return a, told("read", err)
		case n == 0:
			return a, fmt.Errorf("it ended after %d of %d bytes", a.bytes, size)
		default:
			a.bytes += int64(n)
		}
	}
	a.at = time.Now()
	return a, errors.Join(writeAll(fd, b[:1]), e.close(fd))
}
