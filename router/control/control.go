package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/openflow/lldp"
	"weir.dev/weir/router/discovery"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/rollout"
)

// Underlays: how hosts reach each other.
const (
	UnderlayNone  = "none"  // by uplinks into the OpenFlow fabric
	UnderlayVXLAN = "vxlan" // by a full mesh of tunnels (RFC 7348)
)

// Encryption of tunnels.
const (
	TunnelsAuto      = "auto"      // where both hosts can
	TunnelsEncrypted = "encrypted" // there are no others
	TunnelsPlain     = "plain"     // none
)

// Options of a router. API and LLDPKey are needed; the rest is useful at zero.
type Options struct {
	API      *api.Client
	Listener net.Listener // where switches connect; nil: there are none. Run closes it.
	LLDPKey  []byte       // signs switches' link discovery frames, at least lldp.MinKey octets
	// HostKey is the key (api.AgentConfig.LLDPKey) by which a host's frames are known; discovery.ErrNoKey: the host is unknown. It must be quick:
	// it is asked while the loop waits, at most once a second and host. nil: no host has an uplink.
	HostKey func(host string) ([]byte, error)
	// TLS is the listener's, nil: switches connect without. Certify returns the datapath ids for which a certificate is good now.
	TLS     *tls.Config
	Certify func(ctx context.Context, c *x509.Certificate) ([]uint64, error)
	Log     *slog.Logger
	Now     func() time.Time

	Underlay string // default UnderlayNone
	Tunnels  string // default TunnelsAuto
	VNI      uint32 // from which those of the tunnels follow; default 22359
	VXLANUDP uint16 // their port; default 4789

	NoDefaultForwarding bool                             // ordinary routing is someone else's
	Names               map[uint64]string                // switches' names by datapath id, before what they say themselves
	Reserve             uint32                           // entries of each table that are left to others
	MaxSwitches         int                              // that are known, connected or not; default 1024
	MaxPerAddress       int                              // of these, without a certificate and from one address; default 256
	Drain               time.Duration                    // what was needed before stays so long after a change; default 500 ms
	Compile             func(fabric.Input) fabric.Output // default a steering.Compiler, which computes what has changed
}

const (
	defaultVNI      = 0x5757
	defaultVXLAN    = 4789
	defaultSwitches = 1024
	defaultDrain    = 500 * time.Millisecond
	eventQueue      = 8192
	probesAtOnce    = 64 // messages to a switch
	tickEvery       = 50 * time.Millisecond
	debounce        = 5 * time.Millisecond  // of changes
	debounceMax     = 50 * time.Millisecond // then rules are computed although changes go on
)

// Controller is the router of one Weir.
type Controller struct {
	o       Options
	mu      sync.Mutex
	running map[string]*session // by switch name, for live questions
	events  chan event          // of the loop that runs
	watch   []chan<- Progress
}

// New checks the options.
func New(o Options) (*Controller, error) {
	if o.API == nil {
		return nil, errors.New("control: want a client of the API")
	}
	if len(o.LLDPKey) < lldp.MinKey {
		return nil, fmt.Errorf("control: LLDP key of %d octets: want at least %d", len(o.LLDPKey), lldp.MinKey)
	}
	switch o.Underlay {
	case "":
		o.Underlay = UnderlayNone
	case UnderlayNone, UnderlayVXLAN:
	default:
		return nil, fmt.Errorf("control: underlay %q: want %s or %s", o.Underlay, UnderlayNone, UnderlayVXLAN)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	switch setDefault(&o.Tunnels, TunnelsAuto); o.Tunnels {
	case TunnelsAuto, TunnelsEncrypted, TunnelsPlain:
	default:
		return nil, fmt.Errorf("control: tunnels %q: want %s, %s or %s", o.Tunnels, TunnelsAuto, TunnelsEncrypted, TunnelsPlain)
	}
	setDefault(&o.VNI, defaultVNI)
	setDefault(&o.VXLANUDP, defaultVXLAN)
	setDefault(&o.MaxSwitches, defaultSwitches)
	setDefault(&o.MaxPerAddress, maxPerAddress)
	setDefault(&o.Drain, defaultDrain)
	if o.TLS != nil && o.Certify == nil {
		return nil, errors.New("control: TLS without Certify")
	}
	return &Controller{o: o, running: map[string]*session{}}, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Run controls the fabric until ctx ends. What is in force then stays in force. An error means that it could not go on.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer Calm()()
	l := newLoop(c)
	c.mu.Lock()
	c.events = l.events
	c.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	run := func(what string, f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	if err := l.remember(ctx); err != nil {
		return err
	}
	run("follow the intent", func(ctx context.Context) error { return watchAll(ctx, c.o.API, l.events) })
	run("report", l.reports.run)
	if c.o.Listener != nil {
		run("listen for switches", l.listen)
	}
	l.run(ctx, &wg)
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Progress tells that the rules in force are those of an input, for measurements and tests.
type Progress struct {
	At       time.Time
	Switches int // connected
	Links    int
	Entries  int // in force
	Pending  int // entries and hosts' rules that are not yet
	Policies int // that cross and are in force
	Round    int // computations so far
}

// Watch sends how things are after each change, if the channel has room.
func (c *Controller) Watch(to chan<- Progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch = append(c.watch, to)
}

// event is something that the loop does.
type event func(*loop)

// loop owns the state. Only its goroutine touches it.
type loop struct {
	o       Options
	c       *Controller
	log     *slog.Logger
	ctx     context.Context
	wg      *sync.WaitGroup
	events  chan event
	reports *reporter

	started    time.Time
	complete   bool // every noun has been listed
	intent     *intent
	tunnelled  []string // hosts that have tunnels, sorted, and the VNIs between them
	vnis       map[pair]uint32
	toldPlain  map[string]bool // hosts of which an event told that they cannot encrypt
	switches   map[uint64]*device
	byName     map[string]*device
	net        *discovery.Network
	generation uint64

	since, until time.Time // of the oldest change that is not computed yet; when it is
	computing    bool
	steering
	status bool // statuses have changed
	told   time.Time
}

func newLoop(c *Controller) *loop {
	now, o := c.o.Now(), c.o
	if o.Compile == nil {
		o.Compile = rollout.NewCompiler()
	}
	l := &loop{
		o: o, c: c, log: c.o.Log, events: make(chan event, eventQueue), reports: newReporter(c.o), started: now,
		intent: newIntent(), switches: map[uint64]*device{}, byName: map[string]*device{},
		generation: uint64(now.UnixMilli()), toldPlain: map[string]bool{},
		steering: newSteering(c.o.Drain),
	}
	l.Fleet.Fresh = l.fresh
	l.net = discovery.New(discovery.Options{Key: o.LLDPKey, HostKey: o.HostKey, Log: o.Log, Known: func(host string) bool {
		_, known := l.intent.hosts[host]
		return known || !l.complete
	}}, now)
	return l
}

func (l *loop) run(ctx context.Context, wg *sync.WaitGroup) {
	l.ctx, l.wg = ctx, wg
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer l.close()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-l.events:
			e(l)
			l.drainEvents()
		case <-tick.C:
			l.tick()
		case <-timer.C:
		}
		now := l.o.Now()
		l.carryOut(now)
		l.advance(now)
		timer.Reset(l.next(now))
	}
}

// drainEvents takes what else waits, so that one computation serves many events.
func (l *loop) drainEvents() {
	for range 256 {
		select {
		case e := <-l.events:
			e(l)
		default:
			return
		}
	}
}

// next is how long nothing has to be done.
func (l *loop) next(now time.Time) time.Duration {
	d := time.Second
	if !l.ready(now) {
		return d // a tick tells when
	}
	if !l.until.IsZero() && !l.computing {
		d = min(d, l.until.Sub(now))
	}
	if !l.again.IsZero() && l.rounds > 0 {
		d = min(d, l.again.Sub(now))
	}
	return max(d, time.Millisecond)
}

// dirty has the rules computed anew soon.
func (l *loop) dirty() {
	now := l.o.Now()
	if l.since.IsZero() {
		l.since = now
	}
	l.until = now.Add(debounce)
	if limit := l.since.Add(debounceMax); l.until.After(limit) {
		l.until = limit
	}
	l.status = true
}

func (l *loop) listed() {
	l.complete = true
	for name, p := range l.intent.policies {
		if p.Status.InForce || p.Status.State == api.PolicyActive { // the latter of one that a host had to itself
			l.inForce[name] = true
		}
	}
	l.dirty()
}

// ready reports that the router knows enough to change something: switches that were there before have come back, and it is decided whose each
// policy is; or there was time for that.
func (l *loop) ready(now time.Time) bool {
	if !l.complete {
		return false
	}
	if now.Sub(l.started) >= discovery.SettleTime {
		return true
	}
	for _, d := range l.switches {
		if d.session == nil && d.Remembered {
			return false
		}
	}
	for _, p := range l.intent.policies {
		if p.Placement == nil { // of an earlier version
			return false
		}
	}
	return true
}

// damp reports that something may be told again: once a minute for each thing.
func (l *loop) damp(what string) bool { return l.net.Damp(what, l.o.Now()) }

func (l *loop) event(severity api.Severity, reason string, kind api.Kind, object, message string, outage time.Duration) {
	l.log.Info(message, "event", reason, "kind", kind, "object", object)
	l.reports.event(api.Event{
		Time: l.o.Now().UTC(), Severity: severity, Reason: reason, Kind: kind, Object: object, Message: message, OutageNs: outage.Nanoseconds(),
	})
}

func (l *loop) close() {
	for _, d := range l.switches {
		if d.session != nil {
			d.session.conn.Close()
		}
	}
}

// forget drops what was known of an object that is gone.
func (l *loop) forget(kind api.Kind, name string) {
	l.reports.forget(kind, name)
	switch kind {
	case api.KindFunction:
		delete(l.placed, name)
	case api.KindPolicy:
		delete(l.inForce, name)
		l.unproven[name], l.edited[name] = true, true
	}
}
