package openflow

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Send queues messages, encoded at once, in order. It waits while the queue is full. An answer to them is an Event, and so are errors
// about them: use Transact to be told. If one cannot be encoded, those before it may have been sent.
func (c *Conn) Send(ctx context.Context, ms ...Message) error {
	for i, m := range ms {
		if err := c.wait(ctx); err != nil {
			return err
		}
		err := c.appendLocked(false, func(b []byte) ([]byte, error) { return Append(b, c.nextXID(), m) })
		c.mu.Unlock()
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
	}
	return nil
}

// Reply sends an answer with the request's transaction id.
func (c *Conn) Reply(ctx context.Context, xid uint32, m Message) error {
	if err := c.wait(ctx); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return c.appendLocked(false, func(b []byte) ([]byte, error) { return Append(b, xid, m) })
}

// begin sends a message and registers the call that waits for its answer.
func (c *Conn) begin(ctx context.Context, m Message, multi bool) (uint32, *call, error) {
	if err := c.wait(ctx); err != nil {
		return 0, nil, err
	}
	defer c.mu.Unlock()
	xid := c.nextXID()
	for c.pending[xid] != nil {
		xid = c.nextXID()
	}
	k := &call{done: make(chan struct{}), multi: multi}
	if err := c.appendLocked(false, func(b []byte) ([]byte, error) { return Append(b, xid, m) }); err != nil {
		return 0, nil, err
	}
	c.pending[xid] = k
	return xid, k, nil
}

// finish waits for a call. A late answer becomes an Event.
func (c *Conn) finish(ctx context.Context, xid uint32, k *call) error {
	select {
	case <-k.done:
		return k.err
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.pending, xid)
		c.mu.Unlock()
		return context.Cause(ctx)
	}
}

// Request sends a message and waits for its answer. An error message is returned as a *Error.
// Of a multipart request, use the typed methods: Flows, Ports, ...
func (c *Conn) Request(ctx context.Context, m Message) (Message, error) {
	xid, k, err := c.begin(ctx, m, false)
	if err == nil {
		err = c.finish(ctx, xid, k)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Type(), err)
	}
	return k.reply, nil
}

func (c *Conn) multipart(ctx context.Context, r MultipartBody) ([]MultipartBody, error) {
	xid, k, err := c.begin(ctx, &MultipartRequest{Body: r}, true)
	if err == nil {
		err = c.finish(ctx, xid, k)
	}
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", r.Kind(), err)
	}
	return k.parts, nil
}

var multipartNames = [...]string{"description", "flows", "aggregate", "tables", "port statistics", "queues", "group statistics", "groups",
	"group features", "meter statistics", "meters", "meter features", "table features", "ports"}

func (k MultipartKind) String() string {
	if int(k) < len(multipartNames) {
		return multipartNames[k]
	}
	return fmt.Sprintf("multipart type %d", uint16(k))
}

func one[T MultipartBody](bodies []MultipartBody, err error) (T, error) {
	var zero T
	if err != nil {
		return zero, err
	}
	for _, b := range bodies {
		if t, ok := b.(T); ok {
			return t, nil
		}
	}
	return zero, fmt.Errorf("openflow: answer is not of kind %s", zero.Kind())
}

func list[T interface {
	~[]E
	MultipartBody
}, E any](bodies []MultipartBody, err error) ([]E, error) {
	var zero T
	if err != nil {
		return nil, err
	}
	var all []E
	for _, b := range bodies {
		t, ok := b.(T)
		if !ok {
			return nil, fmt.Errorf("openflow: answer of kind %s, want %s", b.Kind(), zero.Kind())
		}
		if all == nil {
			all = t
		} else {
			all = append(all, t...)
		}
	}
	return all, nil
}

// messages that are made when they are sent; reused: in the same memory each time.
type messages struct {
	n      int
	at     func(int) Message
	reused bool
}

func listed(ms []Message) messages {
	return messages{n: len(ms), at: func(i int) Message { return ms[i] }}
}

// transact: the errors about messages come before the barrier's answer, since switches answer in order up to a barrier.
func (c *Conn) transact(ctx context.Context, ms messages) error {
	b, err := c.sendBatch(ctx, ms.n, ms.at)
	if err != nil {
		return err
	}
	defer c.drop(b)
	if _, err := c.Request(ctx, &BarrierRequest{}); err != nil {
		return err
	}
	return c.verdict(b, ms)
}

func (c *Conn) drop(b *batch) {
	c.mu.Lock()
	delete(c.batches, b)
	c.mu.Unlock()
}

// sendBatch reserves consecutive xids for messages and sends them.
func (c *Conn) sendBatch(ctx context.Context, n int, at func(int) Message) (*batch, error) {
	b := &batch{count: uint32(n), errs: map[uint32]*Error{}}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, c.err
	}
	b.first = c.xid + 1
	if b.first == 0 || b.first+b.count < b.first {
		b.first = 1
	}
	c.xid = b.first + b.count - 1
	if n > 0 {
		c.batches[b] = struct{}{}
	}
	c.mu.Unlock()
	const chunk = 256
	for i := 0; i < n; i += chunk {
		if err := c.wait(ctx); err != nil {
			c.drop(b)
			return nil, err
		}
		err := c.appendLocked(false, func(out []byte) ([]byte, error) {
			var err error
			for k := i; k < min(i+chunk, n); k++ {
				if out, err = Append(out, b.first+uint32(k), at(k)); err != nil {
					return out, fmt.Errorf("message %d: %w", k, err)
				}
			}
			return out, nil
		})
		c.mu.Unlock()
		if err != nil {
			c.drop(b)
			return nil, err
		}
	}
	return b, nil
}

// verdict joins a batch's errors in the order of messages.
func (c *Conn) verdict(b *batch, ms messages) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var is []uint32
	for i := range b.errs {
		is = append(is, i)
	}
	slices.Sort(is)
	var errs []error
	for _, i := range is {
		m := ms.at(int(i))
		if f, ok := m.(*FlowMod); ok && ms.reused {
			own := *f
			m = &own
		}
		errs = append(errs, &FlowError{Index: int(i), Message: m, Err: b.errs[i]})
	}
	return errors.Join(errs...)
}

// bundle opens, fills, closes and commits. The open's answer is awaited first: a switch without bundles would refuse each message. So is
// the close's: Open vSwitch would commit without the messages that it refused when they were added.
func (c *Conn) bundle(ctx context.Context, flags BundleFlags, ms messages) error {
	c.mu.Lock()
	id := c.nextXID()
	c.mu.Unlock()
	control := BundleControl{ID: id, Kind: BundleOpenRequest, Flags: flags}
	if err := c.bundleControl(ctx, control); err != nil {
		var e *Error
		if errors.As(err, &e) && (e.Code == BadExperimenter || e.Code == BadExperimenterType || e.Code == BadType) {
			return fmt.Errorf("%w: %w", ErrNoBundles, err)
		}
		return fmt.Errorf("openflow: open bundle: %w", err)
	}
	add := BundleAdd{ID: id, Flags: flags}
	b, err := c.sendBatch(ctx, ms.n, func(i int) Message {
		add.Message = ms.at(i)
		return &add
	})
	if err != nil {
		c.discard(control)
		return fmt.Errorf("openflow: fill bundle: %w", err)
	}
	defer c.drop(b)
	control.Kind = BundleCloseRequest
	err = c.bundleControl(ctx, control)
	if refused := c.verdict(b, ms); refused != nil {
		err = refused
	}
	if err != nil {
		c.discard(control)
		return fmt.Errorf("openflow: fill bundle: %w", err)
	}
	control.Kind = BundleCommitRequest
	if err = c.bundleControl(ctx, control); err == nil {
		return nil
	}
	if refused := c.verdict(b, ms); refused != nil {
		err = refused
	}
	return fmt.Errorf("openflow: commit bundle of %d messages: %w", ms.n, err)
}

func (c *Conn) bundleControl(ctx context.Context, b BundleControl) error {
	m, err := c.Request(ctx, &b)
	if err != nil {
		return err
	}
	if r, ok := m.(*BundleControl); !ok || r.Kind != b.Kind+1 || r.ID != b.ID {
		return fmt.Errorf("openflow: bundle control %d answered by %s %+v", b.Kind, m.Type(), m)
	}
	return nil
}

// discard does not wait for the answer, which becomes an Event: the caller has an error already, perhaps that of its context.
func (c *Conn) discard(b BundleControl) {
	b.Kind = BundleDiscardRequest
	_ = c.append(true, func(out []byte) ([]byte, error) { return Append(out, c.nextXID(), &b) })
}

// Role asks for a role and returns the one in force.
func (c *Conn) Role(ctx context.Context, r Role, generation uint64) (RoleReply, error) {
	m, err := c.Request(ctx, &RoleRequest{r, generation})
	if err != nil {
		return RoleReply{}, err
	}
	reply, ok := m.(*RoleReply)
	if !ok {
		return RoleReply{}, fmt.Errorf("openflow: role request answered by %s", m.Type())
	}
	return *reply, nil
}
