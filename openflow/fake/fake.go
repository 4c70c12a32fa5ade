// Package fake is an OpenFlow 1.3 switch in memory, for tests: tables with OpenFlow's matching and priorities, bundles, ports
// that can be cabled together so that frames travel, and faults on demand. Its one goroutine per connection runs while it is served.
package fake

import (
	"context"
	"net"
	"time"

	"weir.dev/weir/openflow"
)

// Config of a switch; the zero value is a switch with datapath id 0, no ports and 4 unbounded tables.
type Config struct {
	DatapathID uint64
	Ports      []openflow.Port
	Tables     int              // 0: 4
	TableSize  uint32           // entries of each table, more are refused with TABLE_FULL; 0 unbounded
	NoBundles  bool             // bundle messages are refused as an unknown experimenter
	Versions   uint32           // bit n: wire version n; 0: 1.3 only. Without 1.3 it says hello and no more.
	Delay      time.Duration    // before each answer
	NoMask     []openflow.Field // matched as a whole only: masks are refused
	TellFields bool             // table features list the fields that are matched
}

// Switch is one switch. It keeps its entries when controllers come and go.
type Switch struct{ sw }

// New makes a switch with its ports up.
func New(c Config) *Switch { return newSwitch(c) }

// Dial connects to a controller's address ("tcp", "127.0.0.1:6653") and serves it, again and again, until ctx ends.
func (s *Switch) Dial(ctx context.Context, network, address string) error {
	return s.dial(ctx, network, address)
}

// Pipe is the controller's end of a connection in memory that is served until ctx ends.
func (s *Switch) Pipe(ctx context.Context) net.Conn { return s.pipe(ctx) }

// Disconnect closes all connections to controllers.
func (s *Switch) Disconnect() { s.disconnect() }

// Restart forgets all entries and disconnects.
func (s *Switch) Restart() { s.restart() }

// AddPort adds a port and tells the controllers.
func (s *Switch) AddPort(p openflow.Port) { s.addPort(p) }

// SetLink takes a port's link up or down and tells the controllers. A cable's other end does not see it: see Cable.
func (s *Switch) SetLink(p openflow.Port, up bool) { s.setLink(p, up) }

// Receive lets a frame arrive at a port, as if from a station there. It returns when the frame has gone through this switch and all
// those that it reaches by cables (at most 64 hops; more is a loop: see Loops).
func (s *Switch) Receive(p openflow.Port, frame []byte) { s.receive(p, frame) }

// Attach calls f with each frame that leaves through the port (its own copy), in place of a cable; nil detaches.
func (s *Switch) Attach(p openflow.Port, f func(frame []byte)) { s.attach(p, f) }

// Loops counts frames that were dropped after 64 hops.
func (s *Switch) Loops() uint64 { return s.loops.Load() }

// Flows is a copy of all entries: by table, descending priority, then match.
func (s *Switch) Flows() []openflow.FlowStats { return s.flows() }

// Cable joins two ports: what leaves one arrives at the other, both links are up. The returned function cuts the cable: both links go
// down, as when a cable is pulled; called again it does nothing.
func Cable(a *Switch, ap openflow.Port, b *Switch, bp openflow.Port) (cut func()) {
	return cable(a, ap, b, bp)
}
