package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"net"
	"slices"
	"time"

	"weir.dev/weir/openflow"
)

// controller is one connection.
type controller struct {
	conn    *openflow.Conn
	ctx     context.Context
	role    openflow.Role
	bundles map[uint32]*bundle
}

type bundle struct {
	flags  openflow.BundleFlags
	closed bool
	events []openflow.Event
}

// maxBundle bounds the messages of a bundle.
const maxBundle = 1 << 20

func (s *Switch) serve(ctx context.Context, nc net.Conn) error {
	if s.c.Versions&(1<<openflow.Version13) == 0 {
		return s.refuse(ctx, nc)
	}
	conn, err := openflow.Switch(ctx, nc, openflow.FeaturesReply{DatapathID: s.c.DatapathID, Tables: uint8(s.c.Tables),
		Capabilities: openflow.CapFlowStats | openflow.CapTableStats | openflow.CapPortStats}, openflow.Options{EchoInterval: -1})
	if err != nil {
		return fmt.Errorf("switch %#x: %w", s.c.DatapathID, err)
	}
	c := &controller{conn: conn, ctx: ctx, role: openflow.RoleEqual, bundles: map[uint32]*bundle{}}
	s.mu.Lock()
	s.controllers[c] = struct{}{}
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	for e := range conn.Events() {
		s.handle(c, e)
	}
	s.mu.Lock()
	delete(s.controllers, c)
	s.mu.Unlock()
	return conn.Err()
}

// refuse says hello as a switch without 1.3 and reads until the controller gives up.
func (s *Switch) refuse(ctx context.Context, nc net.Conn) error {
	defer nc.Close()
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	h := &openflow.Hello{Highest: uint8(31 - bits.LeadingZeros32(s.c.Versions))}
	if h.Highest > openflow.Version13 {
		h.Versions = s.c.Versions // 1.0 has no bitmap
	}
	b, err := openflow.Append(nil, 1, h)
	if err != nil {
		return err
	}
	if _, err := nc.Write(b); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, nc)
	return err
}

// Dial connects to a controller's address ("tcp", "127.0.0.1:6653") and serves it, again and again, until ctx ends.
func (s *Switch) Dial(ctx context.Context, network, address string) error {
	const pause = 50 * time.Millisecond // short, so that a test's controller that restarts is found soon
	var last error
	for {
		var d net.Dialer
		nc, err := d.DialContext(ctx, network, address)
		if err == nil {
			err = s.serve(ctx, nc)
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		case <-time.After(pause):
		}
	}
}

// Pipe is the controller's end of a connection in memory that is served until ctx ends.
func (s *Switch) Pipe(ctx context.Context) net.Conn {
	a, b := net.Pipe()
	go s.serve(ctx, b)
	return a
}

// Disconnect closes all connections to controllers.
func (s *Switch) Disconnect() {
	s.mu.Lock()
	cs := slices.Collect(maps.Keys(s.controllers))
	s.mu.Unlock()
	for _, c := range cs {
		c.conn.Close()
	}
}

// Restart forgets all entries and disconnects.
func (s *Switch) Restart() {
	s.mu.Lock()
	s.clear()
	s.hasGen = false
	s.mu.Unlock()
	s.Disconnect()
}

// tell sends what no controller has asked for to all of them; slaves get port-status only (6.3.6).
func (s *Switch) tell(ms ...openflow.Message) {
	if len(ms) == 0 {
		return
	}
	s.mu.Lock()
	roles := map[*controller]openflow.Role{}
	for c := range s.controllers {
		roles[c] = c.role
	}
	s.mu.Unlock()
	for c, role := range roles {
		for _, m := range ms {
			if _, status := m.(*openflow.PortStatus); status || role != openflow.RoleSlave {
				_ = c.conn.Send(c.ctx, m) // a connection that has ended is its reader's affair
			}
		}
	}
}

// answer is what a request leads to.
type answer struct {
	replies []openflow.Message
	told    []openflow.Message // to all controllers
	code    openflow.ErrorCode
	blamed  *openflow.Event // goes before the others
	frames  []arrival
}

func (s *Switch) handle(c *controller, e openflow.Event) {
	a := answer{code: ok}
	if out, is := e.Message.(*openflow.PacketOut); is {
		a.frames, a.code = s.packetOut(out)
	} else {
		s.mu.Lock()
		s.process(c, e, &a)
		s.mu.Unlock()
	}
	if s.c.Delay > 0 && (len(a.replies) > 0 || a.code != ok) {
		t := time.NewTimer(s.c.Delay)
		select {
		case <-t.C:
		case <-c.conn.Done():
		}
		t.Stop()
	}
	if a.code != ok {
		a.replies = append(a.replies, s.refusal(a.code, e))
	}
	if a.blamed != nil {
		_ = c.conn.Reply(c.ctx, a.blamed.XID, a.blamed.Message)
	}
	for _, m := range a.replies {
		_ = c.conn.Reply(c.ctx, e.XID, m)
	}
	s.tell(a.told...)
	travel(a.frames)
}

func (s *Switch) refusal(code openflow.ErrorCode, e openflow.Event) openflow.Message {
	b, err := openflow.Append(nil, e.XID, e.Message)
	if err != nil {
		b = nil
	}
	return openflow.NewError(code, b)
}

func (s *Switch) process(c *controller, e openflow.Event, a *answer) {
	switch m := e.Message.(type) {
	case *openflow.BarrierRequest:
		a.replies = append(a.replies, &openflow.BarrierReply{})
	case *openflow.SetConfig, *openflow.SetAsync: // accepted, without effect
	case *openflow.RoleRequest:
		s.setRole(c, m, a)
	case *openflow.MultipartRequest:
		s.multipart(m, a)
	case *openflow.BundleControl:
		s.bundleControl(c, m, a)
	case *openflow.BundleAdd:
		s.bundleAdd(c, m, e.XID, a)
	case *openflow.FlowMod:
		if c.role == openflow.RoleSlave {
			a.code = openflow.BadRequestSlave
			return
		}
		a.told, a.code = s.flowMod(m)
	case *openflow.Error:
	case *openflow.Experimenter:
		a.code = openflow.BadExperimenter
	default:
		a.code = openflow.BadType
	}
}

func (s *Switch) setRole(c *controller, m *openflow.RoleRequest, a *answer) {
	switch m.Role {
	case openflow.RoleMaster, openflow.RoleSlave:
		if s.hasGen && int64(m.GenerationID-s.generation) < 0 {
			a.code = openflow.RoleStale
			return
		}
		s.generation, s.hasGen = m.GenerationID, true
		if m.Role == openflow.RoleMaster {
			for other := range s.controllers {
				if other != c && other.role == openflow.RoleMaster {
					other.role = openflow.RoleSlave
				}
			}
		}
		c.role = m.Role
	case openflow.RoleEqual:
		c.role = m.Role
	case openflow.RoleNoChange:
	default:
		a.code = openflow.RoleBad
		return
	}
	a.replies = append(a.replies, &openflow.RoleReply{Role: c.role, GenerationID: s.generation})
}

// packetOut executes actions on a packet; mu is not held.
func (s *Switch) packetOut(m *openflow.PacketOut) ([]arrival, openflow.ErrorCode) {
	s.mu.Lock()
	code := s.checkActions(m.Actions)
	if code == ok && m.Buffer != 0 {
		code = openflow.ErrorCode(1<<16 | 8) // BUFFER_UNKNOWN: nothing is ever buffered
	}
	if code != ok {
		s.mu.Unlock()
		return nil, code
	}
	r := run{s: s}
	r.actions(&packet{in: m.InPort, data: append([]byte(nil), m.Data...)}, m.Actions, true)
	return s.finish(&r, 0), ok
}

func (s *Switch) bundleControl(c *controller, m *openflow.BundleControl, a *answer) {
	b := c.bundles[m.ID]
	switch {
	case s.c.NoBundles:
		a.code = openflow.BadExperimenter
		return
	case m.Kind == openflow.BundleOpenRequest && b != nil:
		a.code = openflow.BundleExist
		return
	case m.Kind == openflow.BundleOpenRequest && len(c.bundles) >= 64:
		a.code = openflow.BundleOutOf
		return
	case m.Kind == openflow.BundleOpenRequest:
		c.bundles[m.ID] = &bundle{flags: m.Flags}
	case b == nil:
		a.code = openflow.BundleBadID
		return
	case b.flags != m.Flags:
		a.code = openflow.BundleBadFlags
		return
	case m.Kind == openflow.BundleCloseRequest && b.closed:
		a.code = openflow.BundleClosed
		return
	case m.Kind == openflow.BundleCloseRequest:
		b.closed = true
	case m.Kind == openflow.BundleCommitRequest:
		delete(c.bundles, m.ID)
		if s.commit(c, b, a); a.code != ok {
			return
		}
	case m.Kind == openflow.BundleDiscardRequest:
		delete(c.bundles, m.ID)
	default:
		a.code = openflow.BundleBadType
		return
	}
	a.replies = append(a.replies, &openflow.BundleControl{ID: m.ID, Kind: m.Kind + 1, Flags: m.Flags})
}

func (s *Switch) bundleAdd(c *controller, m *openflow.BundleAdd, xid uint32, a *answer) {
	b := c.bundles[m.ID]
	switch {
	case s.c.NoBundles:
		a.code = openflow.BadExperimenter
	case b == nil:
		b = &bundle{flags: m.Flags}
		c.bundles[m.ID] = b
		b.events = append(b.events, openflow.Event{XID: xid, Message: m.Message})
	case b.closed:
		a.code = openflow.BundleClosed
	case b.flags != m.Flags:
		a.code = openflow.BundleBadFlags
	case len(b.events) >= maxBundle:
		a.code = openflow.BundleMsgTooMany
	default:
		b.events = append(b.events, openflow.Event{XID: xid, Message: m.Message})
	}
}

// commit executes all messages or none: mu is held, so that no packet meets half of them.
func (s *Switch) commit(c *controller, b *bundle, a *answer) {
	undo := s.save()
	for _, e := range b.events {
		var told []openflow.Message
		code := openflow.BundleMsgUnsupported
		if m, is := e.Message.(*openflow.FlowMod); is {
			told, code = s.flowMod(m)
		}
		if c.role == openflow.RoleSlave {
			code = openflow.BadRequestSlave
		}
		if code != ok {
			undo()
			a.code, a.told = openflow.BundleFailed, nil
			a.blamed = &openflow.Event{XID: e.XID, Message: s.refusal(code, e)}
			return
		}
		a.told = append(a.told, told...)
	}
}
