package control

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/lldp"
	"weir.dev/weir/router/rollout"
)

const (
	handshakeTimeout = 10 * time.Second
	answerTimeout    = 10 * time.Second // of one batch
	readTimeout      = 30 * time.Second // of all entries
	aliveTimeout     = time.Second      // of a switch that another one claims to be
	echoInterval     = 1500 * time.Millisecond
	echoTimeout      = 3 * time.Second
	probeQueue       = 256     // packet-outs that may wait for a slow switch
	sendQueue        = 8 << 20 // bytes
	packetInRate     = 500     // a second and switch, besides link discovery
	packetInBurst    = 1000
	lldpRate         = 4096 // link discovery frames a second and switch
	portRate         = 20   // changes of ports a second and switch; beyond it the ports are read, once a second at most
	portBurst        = 1024
	errorRate        = 1 // that are logged, a second and switch
	errorBurst       = 20
	messageRate      = 10_000   // that are read, a second and switch
	byteRate         = 64 << 20 // a second and switch
	answerBytes      = 32 << 20 // of one answer, as that with all entries
)

// session is one connection to a switch, from its handshake to its end.
type session struct {
	conn    *openflow.Conn
	log     *slog.Logger
	dpid    uint64
	address string
	desc    openflow.DescReply
	ports   []openflow.PortDesc
	sizes   []table
	oneTree bool // a table says that it does not match a part of a sender's MAC
	bundles bool
	entries []openflow.FlowStats // of Weir, found at connection
	probes  chan []openflow.Message
	cert    *x509.Certificate // nil: without TLS
	key     string            // of cert, see certificateID
}

// opening is what a handshake needs besides the connection.
type opening struct {
	door      *door
	certified func(dpid uint64) error
}

type table struct {
	id   uint8
	name string
	size uint32
}

// open asks a new connection for all that the loop wants to know.
func open(ctx context.Context, nc net.Conn, generation uint64, log *slog.Logger, o opening) (*session, error) {
	address := nc.RemoteAddr().String()
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn, err := openflow.Controller(ctx, nc, openflow.Options{
		EchoInterval: echoInterval, EchoTimeout: echoTimeout, Handshake: handshakeTimeout, Queue: sendQueue, Events: 4 * packetInBurst, Parts: answerBytes,
		Rate: messageRate, Bytes: byteRate,
	})
	if err != nil {
		return nil, err
	}
	s := &session{
		conn: conn, dpid: conn.Features().DatapathID, address: address, probes: make(chan []openflow.Message, probeQueue),
		log: log.With("datapath", fmt.Sprintf("%016x", conn.Features().DatapathID), "address", address),
	}
	err = o.certified(s.dpid)
	if err == nil {
		err = s.ask(ctx, generation, o.door)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("switch %016x at %s: %w", s.dpid, address, err)
	}
	return s, nil
}

func (s *session) ask(ctx context.Context, generation uint64, d *door) error {
	if err := s.master(ctx, generation); err != nil {
		return err
	}
	var err error
	if s.desc, err = s.conn.Desc(ctx); err != nil {
		s.log.Debug("no description", "error", err) // it is for people, but for one thing
	}
	config := openflow.SetConfig{Flags: openflow.FragNormal, MissSendLen: openflow.MaxLenNoBuffer}
	if readsFragments(product(s.desc)) { // by default it hides the ports of first fragments, too
		config.Flags = openflow.FragMatch
	}
	if err := s.conn.Send(ctx, &config); err != nil {
		return fmt.Errorf("set configuration: %w", err)
	}
	if s.ports, err = s.conn.Ports(ctx); err != nil {
		return fmt.Errorf("port description: %w", err)
	}
	if err := s.tables(ctx); err != nil {
		return err
	}
	// An empty bundle shows whether there are any.
	s.bundles = s.conn.Bundle(ctx, openflow.BundleAtomic|openflow.BundleOrdered) == nil
	select { // all that the switches of an address can have read at once is bounded
	case d.reading <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("read entries: too many switches connect: %w", context.Cause(ctx))
	}
	defer func() { <-d.reading }()
	return s.read(ctx)
}

// master asks for the role. A switch that has seen a later generation tells which one by refusing; it is then outbid.
func (s *session) master(ctx context.Context, generation uint64) error {
	_, err := s.conn.Role(ctx, openflow.RoleMaster, generation)
	var refused *openflow.Error
	if !errors.As(err, &refused) {
		return err
	}
	now, err := s.conn.Role(ctx, openflow.RoleNoChange, 0)
	if err != nil {
		s.log.Debug("no roles", "error", refused) // optional before there are two controllers
		return nil
	}
	if _, err := s.conn.Role(ctx, openflow.RoleMaster, now.GenerationID+1); err != nil {
		return fmt.Errorf("role master: %w", err)
	}
	return nil
}

// tables learns the tables' sizes, as far as the switch tells.
func (s *session) tables(ctx context.Context) error {
	features, err := s.conn.TableFeatures(ctx)
	if err == nil && len(features) > 0 {
		for _, f := range features[:min(len(features), 8)] {
			s.sizes = append(s.sizes, table{f.Table, f.Name, f.MaxEntries})
			if masked, known := f.Masks(openflow.FieldEthSrc); f.Table <= 1 && known && !masked {
				s.oneTree = true
			}
		}
		return nil
	}
	var refused *openflow.Error
	if err != nil && !errors.As(err, &refused) {
		return fmt.Errorf("table features: %w", err)
	}
	for i := range min(s.conn.Features().Tables, 8) {
		s.sizes = append(s.sizes, table{id: i})
	}
	return nil
}

// read lists Weir's entries.
func (s *session) read(ctx context.Context) error {
	var err error
	s.entries, err = s.readAgain(ctx)
	return err
}

func (s *session) readAgain(ctx context.Context) ([]openflow.FlowStats, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	all, err := s.conn.Flows(ctx, openflow.FlowStatsRequest{Table: openflow.TableAll, Cookie: rollout.CookieMark, CookieMask: rollout.CookieMask})
	if err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}
	return slices.DeleteFunc(all, func(e openflow.FlowStats) bool { return e.Cookie&rollout.CookieMask != rollout.CookieMark }), nil // some switches do not filter
}

// count is how many entries of Weir there are.
func (s *session) count(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	r, err := s.conn.Aggregate(ctx, openflow.AggregateRequest{Table: openflow.TableAll, Cookie: rollout.CookieMark, CookieMask: rollout.CookieMask})
	return int(r.Flows), err
}

// serve passes what the switch says on, until the connection ends.
func (s *session) serve(ctx context.Context, to chan<- event, now func() time.Time) {
	sending, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.send(sending)
	packets, frames := bucket{rate: packetInRate, burst: packetInBurst}, bucket{rate: lldpRate, burst: lldpRate}
	changes, errs := bucket{rate: portRate, burst: portBurst}, bucket{rate: errorRate, burst: errorBurst}
	reread := newLazy(portsEvery, func() { s.readPorts(sending, to) })
	defer reread.stop()
	post := func(e event) {
		select {
		case to <- e:
		case <-ctx.Done():
		}
	}
	for e := range s.conn.Events() {
		switch m := e.Message.(type) {
		case *openflow.PacketIn:
			limit := &packets
			if lldp.Is(m.Data) {
				limit = &frames
			}
			if limit.take(now()) {
				post(func(l *loop) { l.packetIn(s, m) })
			}
		case *openflow.PortStatus:
			if changes.take(now()) {
				post(func(l *loop) { l.portStatus(s, m) })
			} else {
				reread.want()
			}
		case *openflow.Error:
			if errs.take(now()) {
				s.log.Warn("the switch refuses something", "error", m)
			}
		}
	}
	post(func(l *loop) { l.disconnected(s) })
}

// portsEvery is how often the ports of a switch are read that tells of more changes than are followed one by one.
const portsEvery = time.Second

// readPorts takes over all ports as they are now.
func (s *session) readPorts(ctx context.Context, to chan<- event) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	ports, err := s.conn.Ports(ctx)
	if err != nil {
		s.log.Debug("read ports", "error", err)
		return
	}
	select {
	case to <- func(l *loop) { l.portsRead(s, ports) }:
	case <-ctx.Done():
	}
}

// lazy calls f some time after it is wanted, once for however many wants.
type lazy struct {
	mu    sync.Mutex
	after time.Duration
	timer *time.Timer
	f     func()
	ended bool
}

func newLazy(after time.Duration, f func()) *lazy { return &lazy{after: after, f: f} }

func (z *lazy) want() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.timer != nil || z.ended {
		return
	}
	z.timer = time.AfterFunc(z.after, func() {
		z.mu.Lock()
		z.timer = nil
		z.mu.Unlock()
		z.f()
	})
}

func (z *lazy) stop() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.ended = true
	if z.timer != nil {
		z.timer.Stop()
	}
}

// send sends packet-outs. While the switch does not read, others wait in the queue and are dropped when it is full.
func (s *session) send(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case ms := <-s.probes:
			if err := s.conn.Send(ctx, ms...); err != nil && ctx.Err() == nil {
				s.log.Debug("packet-out", "error", err)
			}
		}
	}
}

// out queues packet-outs; they are lost if the switch is slow.
func (s *session) out(ms []openflow.Message) {
	select {
	case s.probes <- ms:
	default:
	}
}

// refused is an entry that the switch did not take.
type refused struct {
	rule *rollout.Rule
	err  error
}

// apply brings a batch into force: all of it in one atomic step where the switch can, else in order. It returns what was refused; an
// error means that it is not known what is in force.
func (s *session) apply(ctx context.Context, b rollout.Batch, round uint8) ([]refused, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var before, after []*rollout.Held
	for _, h := range b.Remove {
		if h.Gives() {
			before = append(before, h)
		} else {
			after = append(after, h)
		}
	}
	first, last := len(before), len(before)+len(b.Add) // of those that are added
	var mod openflow.FlowMod
	n, at := last+len(after), func(i int) openflow.Message {
		switch {
		case i < first:
			mod = before[i].Remove()
		case i < last:
			mod = b.Add[i-first].Mod(round)
		default:
			mod = after[i-last].Remove()
		}
		return &mod
	}
	if s.bundles && n > 1 {
		err := s.conn.BundleAll(ctx, openflow.BundleAtomic|openflow.BundleOrdered, n, at)
		var answer *openflow.Error
		if err == nil {
			return nil, nil
		}
		if !errors.As(err, &answer) {
			return nil, err
		}
		s.log.Info("bundle refused, its entries follow one by one", "entries", n, "error", err)
	}
	err := s.conn.TransactAll(ctx, n, at)
	if err == nil {
		return nil, nil
	}
	var out []refused
	for _, e := range flatten(err) {
		var f *openflow.FlowError
		switch {
		case !errors.As(e, &f):
			return nil, e
		case f.Index >= first && f.Index < last:
			out = append(out, refused{b.Add[f.Index-first], f})
		}
	}
	return out, nil
}

func flatten(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return []error{err}
}

// bucket limits a rate.
type bucket struct {
	rate, burst float64
	level       float64
	last        time.Time
}

func (b *bucket) take(now time.Time) bool {
	if b.last.IsZero() {
		b.level = b.burst
	} else {
		b.level = min(b.burst, b.level+b.rate*now.Sub(b.last).Seconds())
	}
	b.last = now
	if b.level < 1 {
		return false
	}
	b.level--
	return true
}
