package openflow

import (
	"context"
	"time"
)

// Options of a connection; the zero value is usable.
type Options struct {
	EchoInterval time.Duration // an echo request goes out after so long without anything from the peer; 0: 5 s, negative: never
	EchoTimeout  time.Duration // then the connection is lost after so long without anything; 0: 5 s
	Handshake    time.Duration // bound of the handshake; 0: 10 s
	Queue        int           // bytes that may wait to be sent; 0: 4 MiB
	Events       int           // packet-ins that may wait in Events; 0: 1024
	Parts        int           // bytes of one multipart answer; 0: 256 MiB
	Rate         int           // messages that are read a second, twice as many at once; 0: no bound
	Bytes        int           // bytes that are read a second, twice as many at once; 0: no bound
}

// Event is a message that answers no request: packet-in, port-status, flow-removed, an error about a message that was only sent; at a switch
// all requests.
type Event struct {
	XID     uint32
	Message Message
}

// Features is what the switch said in the handshake.
func (c *Conn) Features() FeaturesReply { return c.features }

// Events delivers what the peer sends unasked, in order; it is closed when the connection ends. When Options.Events of them wait,
// further packet-ins are dropped (see Dropped); when twice as many wait, a controller's connection ends with ErrOverflow rather than
// lose a port-status, and a switch's stops reading.
func (c *Conn) Events() <-chan Event { return c.events }

// Dropped counts packet-ins that were dropped because Events was full.
func (c *Conn) Dropped() uint64 { return c.dropped.Load() }

// Done is closed when the connection has ended; Err then says why.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close ends the connection. Requests that wait fail. Safe to call twice.
func (c *Conn) Close() error { return c.shut(ErrClosed) }

// Barrier waits until the switch has processed all that was sent before.
func (c *Conn) Barrier(ctx context.Context) error { return c.Transact(ctx) }

// Transact sends messages and a barrier, and waits for it. The errors that the switch reported meanwhile about these messages are
// returned joined, each a *FlowError. Messages that were not refused are in force, also when others were.
func (c *Conn) Transact(ctx context.Context, ms ...Message) error {
	return c.transact(ctx, listed(ms))
}

// TransactAll is Transact of n messages that need not be in memory at once: at gives them, in order, each until it is called again. It may
// be asked again for some.
func (c *Conn) TransactAll(ctx context.Context, n int, at func(i int) Message) error {
	return c.transact(ctx, messages{n, at, true})
}

// Bundle has messages (flow-mods, group-mods, port-mods) executed as one bundle, atomic and ordered if flags say so: all or none.
// A refusal is a *FlowError with the message's index if the switch told which, else a *Error.
// A switch without bundles: errors.Is(err, ErrNoBundles).
func (c *Conn) Bundle(ctx context.Context, flags BundleFlags, ms ...Message) error {
	return c.bundle(ctx, flags, listed(ms))
}

// BundleAll is to Bundle what TransactAll is to Transact.
func (c *Conn) BundleAll(ctx context.Context, flags BundleFlags, n int, at func(i int) Message) error {
	return c.bundle(ctx, flags, messages{n, at, true})
}

// Desc describes the switch.
func (c *Conn) Desc(ctx context.Context) (DescReply, error) {
	return one[DescReply](c.multipart(ctx, DescRequest{}))
}

// Flows lists entries that match r. Use FlowStatsRequest{Table: TableAll} for all.
func (c *Conn) Flows(ctx context.Context, r FlowStatsRequest) ([]FlowStats, error) {
	return list[FlowStatsReply](c.multipart(ctx, r))
}

// Aggregate sums entries that match r.
func (c *Conn) Aggregate(ctx context.Context, r AggregateRequest) (AggregateReply, error) {
	return one[AggregateReply](c.multipart(ctx, r))
}

// TableFeatures describes the tables, their sizes among others.
func (c *Conn) TableFeatures(ctx context.Context) ([]TableFeatures, error) {
	return list[TableFeaturesMsg](c.multipart(ctx, TableFeaturesMsg(nil)))
}

// Ports describes the ports.
func (c *Conn) Ports(ctx context.Context) ([]PortDesc, error) {
	return list[PortDescReply](c.multipart(ctx, PortDescRequest{}))
}

// PortStats counts one port or, with PortAny, all.
func (c *Conn) PortStats(ctx context.Context, p Port) ([]PortStats, error) {
	return list[PortStatsReply](c.multipart(ctx, PortStatsRequest{p}))
}
