package openflow_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	. "weir.dev/weir/openflow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// raw is a peer that the test writes by hand, at the other end of a loopback TCP connection.
type raw struct {
	net.Conn
	t *testing.T
}

func tcp(t *testing.T) (net.Conn, *raw) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	b.SetDeadline(time.Now().Add(20 * time.Second))
	return a, &raw{b, t}
}

func (r *raw) send(xid uint32, ms ...Message) {
	r.t.Helper()
	var b []byte
	var err error
	for _, m := range ms {
		if b, err = Append(b, xid, m); err != nil {
			r.t.Fatal(err)
		}
	}
	if _, err := r.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) read() (uint32, Message, error) {
	head := make([]byte, 8)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	b := make([]byte, int(head[2])<<8|int(head[3]))
	copy(b, head)
	if _, err := io.ReadFull(r, b[8:]); err != nil {
		return 0, nil, err
	}
	return Decode(b)
}

// expect reads until a message of type M.
func expect[M Message](r *raw) (uint32, M) {
	r.t.Helper()
	for {
		xid, m, err := r.read()
		if err != nil {
			r.t.Fatalf("no %T came: %v", *new(M), err)
		}
		if m, ok := m.(M); ok {
			return xid, m
		}
	}
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// shake is a connection to a switch made of raw bytes, after its handshake.
func shake(t *testing.T, o Options) (*Conn, *raw, context.Context) {
	t.Helper()
	ctx := deadline(t)
	nc, r := tcp(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		r.send(1, &Hello{})
		xid, _ := expect[*FeaturesRequest](r)
		r.send(xid, &FeaturesReply{DatapathID: 7, Tables: 2})
	})
	c, err := Controller(ctx, nc, o)
	if err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	t.Cleanup(func() { c.Close() })
	return c, r, ctx
}

func TestBothEndsOfAConnection(t *testing.T) {
	ctx := deadline(t)
	a, b := net.Pipe() // no buffer at all: both ends write their hello at once
	features := FeaturesReply{DatapathID: 0xabc, Tables: 3, Capabilities: CapFlowStats}
	var sw *Conn
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		if sw, err = Switch(ctx, b, features, Options{}); err != nil {
			t.Error(err)
		}
	})
	c, err := Controller(ctx, a, Options{})
	if err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	defer c.Close()
	if d := cmp.Diff(features, c.Features()); d != "" {
		t.Errorf("features -want +got\n%s", d)
	}
	wg.Go(func() {
		for e := range sw.Events() {
			if _, ok := e.Message.(*BarrierRequest); ok {
				if err := sw.Reply(ctx, e.XID, &BarrierReply{}); err != nil {
					t.Error(err)
				}
			}
		}
	})
	if err := c.Barrier(ctx); err != nil {
		t.Error(err)
	}
	if m, err := sw.Request(ctx, &EchoRequest{[]byte("x")}); err != nil || string(m.(*EchoReply).Data) != "x" {
		t.Errorf("echo from the switch: %v, %v", m, err)
	}
	c.Close()
	wg.Wait()
	<-sw.Done()
	if err := sw.Err(); !errors.Is(err, ErrClosed) {
		t.Errorf("the other end: %v, want ErrClosed", err)
	}
	if err := c.Barrier(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
}

func TestHandshakeRefuses(t *testing.T) {
	for _, k := range []struct {
		name  string
		first []byte
		want  func(error) bool
		tells bool // the peer gets HELLO_FAILED
	}{
		{"1.0", []byte{1, 0, 0, 8, 0, 0, 0, 1}, isVersion("peer speaks 1.0 at most, want 1.3"), true},
		{"1.5 and 1.0 by bitmap", []byte{6, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 0x42}, isVersion("peer speaks 1.0, 1.5, want 1.3"), true},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), func(err error) bool { return errors.Is(err, ErrNotOpenFlow) }, false},
		{"TLS", []byte{22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, func(err error) bool { return errors.Is(err, ErrNotOpenFlow) }, false},
		{"zeros", make([]byte, 64), func(err error) bool { return errors.Is(err, ErrNotOpenFlow) }, false},
	} {
		t.Run(k.name, func(t *testing.T) {
			nc, r := tcp(t)
			if _, err := r.Write(k.first); err != nil {
				t.Fatal(err)
			}
			_, err := Controller(deadline(t), nc, Options{})
			if !k.want(err) {
				t.Errorf("got %v", err)
			}
			if !k.tells {
				return
			}
			b, err := io.ReadAll(r)
			if err != nil && len(b) == 0 {
				t.Fatal(err)
			}
			// Behind our hello of 16 bytes stands the error, in the peer's version.
			if len(b) < 16+12 || b[16] != min(k.first[0], 4) || b[17] != byte(TypeError) || b[24]|b[25]|b[26]|b[27] != 0 {
				t.Errorf("the peer was told %x, want HELLO_FAILED, INCOMPATIBLE", b)
			}
		})
	}
	t.Run("silence", func(t *testing.T) {
		nc, _ := tcp(t)
		_, err := Controller(deadline(t), nc, Options{Handshake: 50 * time.Millisecond})
		var ne net.Error
		if !errors.As(err, &ne) || !ne.Timeout() || !strings.Contains(err.Error(), "no answer in time") {
			t.Errorf("got %v, want a timeout", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		nc, _ := tcp(t)
		ctx, cancel := context.WithCancel(deadline(t))
		time.AfterFunc(20*time.Millisecond, cancel)
		if _, err := Controller(ctx, nc, Options{}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	})
	t.Run("refused by the peer", func(t *testing.T) {
		nc, r := tcp(t)
		r.send(1, &Hello{}, &Error{Code: HelloIncompatible, Data: []byte("no")})
		var e *Error
		if _, err := Controller(deadline(t), nc, Options{}); !errors.As(err, &e) || e.Code != HelloIncompatible {
			t.Errorf("got %v, want the peer's HELLO_FAILED", err)
		}
	})
}

func isVersion(text string) func(error) bool {
	return func(err error) bool {
		var v *VersionError
		return errors.As(err, &v) && strings.HasSuffix(v.Error(), text)
	}
}

func TestSilentPeerIsLost(t *testing.T) {
	c, r, _ := shake(t, Options{EchoInterval: 30 * time.Millisecond, EchoTimeout: 2 * time.Second})
	xid, m := expect[*EchoRequest](r) // asked, answered: it lives on
	r.send(xid, &EchoReply{m.Data})
	xid, m = expect[*EchoRequest](r)
	r.send(xid, &EchoReply{m.Data})
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("a silent peer was kept")
	}
	if !errors.Is(c.Err(), ErrTimeout) {
		t.Errorf("got %v, want ErrTimeout", c.Err())
	}
}

func TestAnswersFindTheirRequests(t *testing.T) {
	c, r, ctx := shake(t, Options{})
	var wg sync.WaitGroup
	wg.Go(func() {
		xids := map[Type]uint32{}
		for len(xids) < 2 {
			xid, m, err := r.read()
			if err != nil {
				t.Error(err)
				return
			}
			xids[m.Type()] = xid
		}
		first, second := xids[TypeGetConfigRequest], xids[TypeRoleRequest]
		r.send(second, &RoleReply{Role: RoleMaster, GenerationID: 9}) // in any order
		r.send(0xdead0000, &PortStatus{Desc: PortDesc{Port: 3}})
		r.send(first, &Raw{TypeGetConfigReply, []byte{0, 0, 0, 5}})
	})
	answer := make(chan Message, 1)
	wg.Go(func() {
		m, err := c.Request(ctx, &Raw{Kind: TypeGetConfigRequest})
		if err != nil {
			t.Error(err)
		}
		answer <- m
	})
	role, err := c.Role(ctx, RoleMaster, 9)
	if err != nil || role.GenerationID != 9 {
		t.Errorf("role %+v, %v", role, err)
	}
	if d := cmp.Diff(Message(&Raw{TypeGetConfigReply, []byte{0, 0, 0, 5}}), <-answer); d != "" {
		t.Error(d)
	}
	if e := <-c.Events(); e.XID != 0xdead0000 {
		t.Errorf("event %+v", e)
	}
	wg.Wait()
}

func TestACancelledRequestLeavesTheConnection(t *testing.T) {
	c, r, ctx := shake(t, Options{})
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := c.Request(short, &Raw{Kind: TypeGetConfigRequest})
		failed <- err
	}()
	xid, _ := expect[*Raw](r)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	r.send(xid, &Raw{Kind: TypeGetConfigReply}) // late: becomes an event
	if e := <-c.Events(); e.XID != xid {
		t.Errorf("event %+v, want the late answer", e)
	}
}

func TestMultipartAnswersAreBounded(t *testing.T) {
	part := &MultipartReply{More: true, Body: RawMultipart{MultipartDesc, nil}}
	part.Body = FlowStatsReply(make([]FlowStats, 100))
	c, r, ctx := shake(t, Options{Parts: 20000})
	var wg sync.WaitGroup
	wg.Go(func() {
		xid, _ := expect[*MultipartRequest](r)
		r.send(xid, part, part, part, part, part)
		xid, _ = expect[*MultipartRequest](r)
		r.send(xid, part, &MultipartReply{Body: FlowStatsReply(make([]FlowStats, 7))})
	})
	if _, err := c.Flows(ctx, FlowStatsRequest{Table: TableAll}); !errors.Is(err, ErrTooLong) {
		t.Errorf("got %v, want ErrTooLong", err)
	}
	if fs, err := c.Flows(ctx, FlowStatsRequest{Table: TableAll}); err != nil || len(fs) != 107 {
		t.Errorf("got %d entries, %v; want 107", len(fs), err)
	}
	wg.Wait()
}

// TestPacketInsAreDroppedStatusIsNot: the documented policy when nobody reads events.
func TestPacketInsAreDroppedStatusIsNot(t *testing.T) {
	c, r, ctx := shake(t, Options{Events: 10})
	for range 25 {
		r.send(0, &PacketIn{Data: []byte{1}})
	}
	r.send(0, &PortStatus{Desc: PortDesc{Port: 77}})
	sync := func() {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- c.Barrier(ctx) }()
		xid, _ := expect[*BarrierRequest](r)
		r.send(xid, &BarrierReply{})
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	sync()
	if c.Dropped() != 15 {
		t.Errorf("%d packet-ins dropped, want 15", c.Dropped())
	}
	for range 10 {
		if _, ok := (<-c.Events()).Message.(*PacketIn); !ok {
			t.Error("want packet-ins first")
		}
	}
	if m, ok := (<-c.Events()).Message.(*PortStatus); !ok || m.Desc.Port != 77 {
		t.Errorf("got %+v, want the port-status", m)
	}
	for range 21 {
		r.send(0, &PortStatus{})
	}
	select {
	case <-c.Done():
	case <-ctx.Done():
		t.Fatal("the connection lives though status was lost")
	}
	if !errors.Is(c.Err(), ErrOverflow) {
		t.Errorf("got %v, want ErrOverflow", c.Err())
	}
}

func TestSendWaitsForTheQueue(t *testing.T) {
	c, _, ctx := shake(t, Options{Queue: 64 << 10}) // the peer does not read
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	data := make([]byte, 32<<10)
	var err error
	for range 2000 { // 64 MiB: more than any socket buffer
		if err = c.Send(short, &EchoRequest{data}); err != nil {
			break
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
}

func TestGarbageEndsOnlyThisConnection(t *testing.T) {
	for name, b := range map[string][]byte{
		"length 3":          {4, 10, 0, 3, 0, 0, 0, 0},
		"malformed":         {4, 12, 0, 12, 0, 0, 0, 0, 1, 2, 3, 4},
		"another version":   {1, 10, 0, 8, 0, 0, 0, 0},
		"cut in the middle": {4, 10, 0, 90, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c, r, ctx := shake(t, Options{})
			if _, err := r.Write(b); err != nil {
				t.Fatal(err)
			}
			if name == "cut in the middle" {
				r.Close()
			}
			waiting := make(chan error, 1)
			go func() { waiting <- c.Barrier(ctx) }()
			select {
			case <-c.Done():
			case <-ctx.Done():
				t.Fatal("garbage was taken")
			}
			if err := <-waiting; err == nil {
				t.Error("a request on it was answered")
			}
			if c.Err() == nil || strings.Contains(c.Err().Error(), "%!") {
				t.Errorf("reason: %v", c.Err())
			}
		})
	}
}

// TestASwitchAnswersWhatItCannotRead with the error that the protocol has for it, and lives on.
func TestASwitchAnswersWhatItCannotRead(t *testing.T) {
	ctx := deadline(t)
	nc, r := tcp(t)
	r.send(1, &Hello{})
	c, err := Switch(ctx, nc, FeaturesReply{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, k := range []struct {
		b    []byte
		code ErrorCode
	}{
		{[]byte{4, 24, 0, 12, 0, 0, 0, 5, 1, 2, 3, 4}, BadLen},
		{[]byte{1, 20, 0, 8, 0, 0, 0, 6}, BadVersion},
	} {
		if _, err := r.Write(k.b); err != nil {
			t.Fatal(err)
		}
		xid, e := expect[*Error](r)
		if _, about, ok := e.Offending(); e.Code != k.code || xid != uint32(k.b[7]) || !ok || about != xid {
			t.Errorf("told %v with xid %d, want %s", e, xid, k.code)
		}
	}
	r.send(9, &EchoRequest{[]byte("still there")})
	if _, m := expect[*EchoReply](r); string(m.Data) != "still there" {
		t.Errorf("echo %q", m.Data)
	}
}
