package discovery

import (
	"cmp"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/lldp"
	"weir.dev/weir/router/fabric"
)

// Options of a network.
type Options struct {
	Key     []byte                            // signs switches' link discovery frames
	HostKey func(host string) ([]byte, error) // of a host; ErrNoKey: the host is unknown. It must be quick
	Known   func(host string) bool            // the host is one of this Weir's, as far as that is known yet
	Log     *slog.Logger
}

// Network is what has been found: switches' ports, the links between them and to hosts, and stations. It sends nothing and tells nobody: who gives
// it a frame, a port or the time asks what follows from that (Take).
type Network struct {
	Options
	Switches    map[uint64]*Switch
	Stations    stations
	contests    map[claimed]*contest
	sought      map[string]sought // by endpoint
	window      lldp.Window
	sequence    lldp.Sequence
	hostKeys    map[string]hostKey
	damped      damper
	lost        map[Cable]outage // links that were there
	Links       map[Cable]bool   // links in the last survey
	Declared    map[flow.MAC]Claim
	DeclaredIPs map[netip.Addr]Claim
	started     time.Time
	lastTick    time.Time
	next        Findings
}

// Findings are what follows from what a network was given.
type Findings struct {
	Out     map[uint64][]openflow.Message // by switch
	Events  []api.Event                   // without their time
	Changed bool                          // rules have to be computed anew
	AtOnce  bool                          // without waiting for more
}

// New knows no switch yet.
func New(o Options, now time.Time) *Network {
	return &Network{
		Options: o, Switches: map[uint64]*Switch{}, Stations: newStations(), contests: map[claimed]*contest{}, sought: map[string]sought{},
		hostKeys: map[string]hostKey{}, damped: damper{}, lost: map[Cable]outage{}, Links: map[Cable]bool{},
		Declared: map[flow.MAC]Claim{}, DeclaredIPs: map[netip.Addr]Claim{}, started: now, lastTick: now,
	}
}

// Take gives what has followed since the last time.
func (n *Network) Take() Findings {
	f := n.next
	n.next = Findings{}
	return f
}

func (n *Network) dirty() { n.next.Changed = true }

func (n *Network) dirtyNow() { n.next.Changed, n.next.AtOnce = true, true }

func (n *Network) send(d *Switch, messages []openflow.Message) {
	if len(messages) == 0 {
		return
	}
	if n.next.Out == nil {
		n.next.Out = map[uint64][]openflow.Message{}
	}
	n.next.Out[d.DPID] = append(n.next.Out[d.DPID], messages...)
}

func (n *Network) event(severity api.Severity, reason string, kind api.Kind, object, message string, outage time.Duration) {
	n.next.Events = append(n.next.Events, api.Event{Severity: severity, Reason: reason, Kind: kind, Object: object, Message: message, OutageNs: outage.Nanoseconds()})
}

// damper tells each thing once a minute.
type damper map[string]time.Time

func (d damper) again(what string, now time.Time) bool {
	if at, ok := d[what]; ok && now.Sub(at) < time.Minute {
		return false
	}
	if len(d) > 4096 {
		clear(d)
	}
	d[what] = now
	return true
}

// Damp tells whether something may be told again: once a minute.
func (n *Network) Damp(what string, now time.Time) bool { return n.damped.again(what, now) }

// Switch is a switch as the network sees it.
type Switch struct {
	DPID       uint64
	Name       string
	ID         fabric.SwitchID
	Connected  bool
	Remembered bool // known from before the start, not seen yet
	Primed     bool // what brings link discovery frames to us is in force
	Ports      map[uint32]*Port
}

// Tick sends link discovery frames, and finds what has become silent. look gives endpoints whose stations are missing, and the addresses of all others.
func (n *Network) Tick(now time.Time, look func() ([]Missing, map[flow.MAC]bool)) {
	if gap := now.Sub(n.lastTick); gap > lateTick { // we were not running: nobody could be heard
		for _, d := range n.Switches {
			for _, p := range d.Ports {
				if !p.heard.IsZero() && !p.silent {
					p.heard = p.heard.Add(gap)
				}
			}
		}
	}
	n.lastTick = now
	missed := n.patience(now)
	for _, d := range n.Switches {
		if d.Connected {
			n.tickPorts(d, missed, now)
		}
	}
	n.tickStations(now, look)
	n.tickContests(now)
}

// FrameIn is a frame that a switch has got at a port.
func (n *Network) FrameIn(d *Switch, in uint32, frame []byte, now time.Time) {
	p := d.Ports[in]
	switch {
	case p == nil || !p.Up || len(frame) < ethernetSize:
	case lldp.Is(frame):
		n.heardLink(d, p, frame, now)
	default:
		n.station(d, p, frame, now)
	}
}

// Forget drops a switch that does not come back, and the stations at its ports.
func (n *Network) Forget(d *Switch) {
	delete(n.Switches, d.DPID)
	n.Stations.leave(d.ID)
}

// portAt is a switch's port, nil for a host's.
func (n *Network) portAt(at fabric.At) *Port {
	if d := n.switchOf(at.Switch); d != nil {
		return d.Ports[uint32(at.Port.Number)]
	}
	return nil
}

func (d *Switch) sortedPorts() []*Port {
	return slices.SortedFunc(maps.Values(d.Ports), func(a, b *Port) int { return cmp.Compare(a.Number, b.Number) })
}

func (n *Network) switchOf(id fabric.SwitchID) *Switch {
	dpid, host, err := lldp.ParseChassis(string(id))
	if err != nil || host != "" {
		return nil
	}
	return n.Switches[dpid]
}
