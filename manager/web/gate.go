package web

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"weir.dev/weir/api"
)

// gateBounds are those of a listener's connections. A connection over which a valid token or certificate came is known; until then it is a stranger's.
type gateBounds struct {
	known, knownPer         int // in all, and of one source
	rootOnly                int // of known, places that this machine's root alone may take
	strangers, strangersPer int
	timeout                 time.Duration // of a stranger's connection
}

// Who has the token needs milliseconds to show it, so 32 places are many.
var (
	apiBounds   = gateBounds{known: 2_000, knownPer: 1_000, rootOnly: 100, strangers: 256, strangersPer: 32, timeout: headerTimeout}
	agentBounds = gateBounds{known: 30_000, knownPer: 1_000, strangers: 4_096, strangersPer: 256, timeout: HandshakeTimeout + headerTimeout}
)

// gate bounds a listener by who connects: strangers cannot take the places of those who are known. Where there are too many, the oldest connection of
// the source that has the most ends: a newcomer always has the time to show who it is.
type gate struct {
	net.Listener
	bounds gateBounds
	source func(net.Conn) string // who connects: an address, or a user of this machine

	mu        sync.Mutex
	knownBy   map[string]int
	known     int
	strangers []*gatedConn   // in the order in which they came
	strange   map[string]int // how many of them are of a source
}

func newGate(l net.Listener, bounds gateBounds, source func(net.Conn) string) *gate {
	return &gate{Listener: l, bounds: bounds, source: source, knownBy: map[string]int{}, strange: map[string]int{}}
}

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		gc := &gatedConn{Conn: c, gate: g, source: g.source(c)}
		if gc.source != localRoot {
			g.enter(gc)
			return gc, nil
		}
		if gc.show() {
			return gc, nil
		}
		c.Close() // the client sees a reset
	}
}

// enter lets a stranger in, in the place of another if there are too many.
func (g *gate) enter(c *gatedConn) {
	g.mu.Lock()
	out := g.tooMany(c.source)
	g.strangers = append(g.strangers, c)
	g.strange[c.source]++
	c.timer = time.AfterFunc(g.bounds.timeout, c.expire)
	g.mu.Unlock()
	if out != nil {
		out.expire()
	}
}

// tooMany is the connection that has to go so that one more of a source can come.
func (g *gate) tooMany(source string) *gatedConn {
	goes := func(s *gatedConn) bool { return s.source == source }
	if g.strange[source] < g.bounds.strangersPer {
		if len(g.strangers) < g.bounds.strangers {
			return nil
		}
		most := slices.Max(slices.Collect(maps.Values(g.strange)))
		goes = func(s *gatedConn) bool { return g.strange[s.source] == most }
	}
	return g.strangers[slices.IndexFunc(g.strangers, goes)]
}

// count tells how many strangers there are of a source.
func (g *gate) count(source string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.strange[source]
}

// gatedConn is a connection and what is known of it.
type gatedConn struct {
	net.Conn
	gate   *gate
	source string

	timer         *time.Timer // nil: never was a stranger
	known, closed bool        // while gate.mu is held
}

// NetConn is the connection itself.
func (c *gatedConn) NetConn() net.Conn { return c.Conn }

// show notes that this is a known client's connection; false: its source has too many such connections.
func (c *gatedConn) show() bool {
	g := c.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.known || c.closed {
		return true
	}
	if g.known >= g.bounds.known || c.source != localRoot && (g.known >= g.bounds.known-g.bounds.rootOnly || g.knownBy[c.source] >= g.bounds.knownPer) {
		return false
	}
	g.leave(c)
	c.known = true
	g.known++
	g.knownBy[c.source]++
	return true
}

// leave ends being a stranger.
func (g *gate) leave(c *gatedConn) {
	if c.timer == nil {
		return
	}
	c.timer.Stop()
	i := slices.Index(g.strangers, c)
	if i < 0 { // it was sent out
		return
	}
	g.strangers = slices.Delete(g.strangers, i, i+1)
	if g.strange[c.source]--; g.strange[c.source] == 0 {
		delete(g.strange, c.source)
	}
}

func (c *gatedConn) isKnown() bool {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	return c.known
}

// expire ends a connection that is still a stranger's.
func (c *gatedConn) expire() {
	if !c.isKnown() {
		c.Close()
	}
}

// Close implements net.Conn.
func (c *gatedConn) Close() error {
	g := c.gate
	g.mu.Lock()
	if !c.closed {
		c.closed = true
		if c.known {
			g.known--
			if g.knownBy[c.source]--; g.knownBy[c.source] <= 0 {
				delete(g.knownBy, c.source)
			}
		} else {
			g.leave(c)
		}
	}
	g.mu.Unlock()
	return c.Conn.Close()
}

type gateKey struct{} // *gatedConn of a connection

// withGate notes which connection requests come over, if it came through a gate.
func withGate(ctx context.Context, c net.Conn) context.Context {
	for {
		if g, ok := c.(*gatedConn); ok {
			return context.WithValue(ctx, gateKey{}, g)
		}
		inner, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return ctx
		}
		c = inner.NetConn()
	}
}

// Show notes that whoever sent a request is known.
func Show(r *http.Request) error {
	if c, gated := r.Context().Value(gateKey{}).(*gatedConn); gated && !c.show() {
		return api.Refuse(http.StatusTooManyRequests, fmt.Sprintf("%s has too many connections: use fewer, or end some", c.source))
	}
	return nil
}

// Shown tells that the connection is not a stranger's.
func Shown(r *http.Request) bool {
	c, gated := r.Context().Value(gateKey{}).(*gatedConn)
	return !gated || c.isKnown()
}

// UserOf is the user of this machine who connected over loopback, as the kernel says.
func UserOf(r *http.Request) (string, error) {
	if c, gated := r.Context().Value(gateKey{}).(*gatedConn); gated && c.source != unknownUser {
		return c.source, nil
	}
	return "", api.Refuse(http.StatusForbidden, "the kernel does not tell which user of this machine asks")
}

func sourceAddress(c net.Conn) string { return HostOf(c.RemoteAddr().String()) }

// Sources of connections over loopback.
const (
	localRoot   = "user 0"
	unknownUser = "user ?"
)

// localUser asks the kernel whose socket is at the other end of a connection over loopback.
func localUser(c net.Conn) string {
	mine, ok := c.LocalAddr().(*net.TCPAddr)
	theirs, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok || !ok2 {
		return unknownUser
	}
	uid, err := ownerOf(theirs.AddrPort(), mine.AddrPort())
	if err != nil {
		return unknownUser
	}
	return "user " + strconv.FormatUint(uint64(uid), 10)
}
