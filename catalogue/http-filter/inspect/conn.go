package inspect

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
)

// Side of a connection, by who sends.
type Side int

// Sides.
const (
	Client Side = iota
	Server
)

// Other side.
func (s Side) Other() Side { return 1 - s }

// Budget is memory that connections share. What is taken of it is taken of its parent, too.
type Budget struct {
	Used, Limit int
	Parent      *Budget // nil: none
}

// Take some; false: it is not there.
func (b *Budget) Take(n int) bool {
	if b.Used+n > b.Limit || b.Parent != nil && !b.Parent.Take(n) {
		return false
	}
	b.Used += n
	return true
}

// Give some back.
func (b *Budget) Give(n int) {
	b.Used -= n
	if b.Parent != nil {
		b.Parent.Give(n)
	}
}

// Conn judges one connection.
type Conn struct {
	policy *Policy
	budget *Budget
	server netip.Addr // the name of a server that is not named
	used   int
	sides  [2]parser
	done   [2]bool
	skip   [2]uint64
	waits  []pending // requests without an answer yet, HTTP/1
	layers int       // tunnels in tunnels
	h2     *h2

	decoded int // bytes of content since Decoded
}

// parser reads one side. It takes all of data, or sets the side's skip, or changes the side's parser, and says how much it took.
type parser interface {
	feed(data []byte) (n int, err error)
	close()
}

// NewConn begins to judge a connection to a server.
func (p *Policy) NewConn(b *Budget, server netip.Addr) *Conn {
	c := &Conn{policy: p, budget: b, server: server}
	c.detect()
	return c
}

func (c *Conn) detect() {
	c.set(Client, newDetector(c, Client))
	c.set(Server, newDetector(c, Server))
}

func (c *Conn) set(s Side, p parser) {
	if c.sides[s] != nil {
		c.sides[s].close()
	}
	c.sides[s] = p
}

// Close frees what the connection has of the budget.
func (c *Conn) Close() {
	for s := range c.sides {
		if c.sides[s] != nil {
			c.sides[s].close()
		}
		c.sides[s] = nil
	}
	c.done = [2]bool{true, true}
	c.give(c.used)
}

// Feed the next bytes of a side. An error is a *Block: these bytes must not pass.
func (c *Conn) Feed(s Side, data []byte) error {
	for len(data) > 0 && !c.done[s] {
		if k := min(c.skip[s], uint64(len(data))); k > 0 {
			c.skip[s] -= k
			data = data[k:]
			continue
		}
		n, err := c.sides[s].feed(data)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// Skip tells how many of the next bytes of a side are not looked at. They may be fed, or be left out after Skipped.
func (c *Conn) Skip(s Side) uint64 { return c.skip[s] }

// Skipped says that so many of them are left out.
func (c *Conn) Skipped(s Side, n uint64) { c.skip[s] -= n }

// Done tells whether nothing that a side still sends is looked at.
func (c *Conn) Done(s Side) bool { return c.done[s] }

// Decoded tells how many bytes of content were decoded since the last call. A short message can be the work of a long one.
func (c *Conn) Decoded() (n int) {
	n, c.decoded = c.decoded, 0
	return n
}

func (c *Conn) end(s Side) {
	c.set(s, nil)
	c.done[s] = true
}

func (c *Conn) endAll() { c.end(Client); c.end(Server) }

// unknown: it is neither HTTP nor TLS.
func (c *Conn) unknown() error {
	if c.policy.Unknown == Reset {
		return &Block{Hit: Hit{Why: "neither HTTP nor TLS"}}
	}
	c.endAll()
	return nil
}

func (c *Conn) take(n int) bool {
	if !c.budget.Take(n) {
		return false
	}
	c.used += n
	return true
}

func (c *Conn) give(n int) {
	c.budget.Give(n)
	c.used -= n
}

func (c *Conn) full() error { return &Block{Hit: Hit{Why: "memory is full"}, Full: true} }

func malformed(format string, args ...any) error {
	return &Block{Hit: Hit{Why: fmt.Sprintf(format, args...)}}
}

func quoted(s string) string { return fmt.Sprintf("%q", s[:min(len(s), 40)]) }

// block by a rule. own says how many requests without an answer the offending one itself is among those that wait; -1: what offends is an answer.
func (c *Conn) block(r *Rule, h Hit, own int) error {
	b := &Block{Hit: h}
	if r.Action == Forbid && own >= 0 {
		b.Page = c.page(r.Page, own)
	}
	return b
}

const defaultPage = "This request is not allowed by the network's policy.\n"

// page is an answer to the request that is being read, if the client would take it for that. nil: it would not.
func (c *Conn) page(text string, own int) []byte {
	if text == "" {
		text = defaultPage
	}
	kind := "text/plain; charset=utf-8"
	if strings.HasPrefix(strings.TrimSpace(text), "<") {
		kind = "text/html; charset=utf-8"
	}
	if c.h2 != nil {
		return c.h2.page(kind, text)
	}
	h, ok := c.sides[Server].(*http1)
	d, fresh := c.sides[Server].(*detector)
	if !(ok && h.idle() || fresh && len(d.head) == 0) || len(c.waits) != own || c.skip[Server] > 0 {
		return nil // another answer comes first
	}
	return fmt.Appendf(nil, "HTTP/1.1 403 Forbidden\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n%s", kind, len(text), text)
}

// detector finds out what a side speaks.
type detector struct {
	conn *Conn
	side Side
	head []byte
}

func newDetector(c *Conn, s Side) *detector { return &detector{conn: c, side: s} }

func (d *detector) close() { d.conn.give(len(d.head)); d.head = nil }

// maxMethod bounds what stands before the first space, and the detector's work.
const maxMethod = 128

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// feed collects until it knows. Then the parser gets what it has collected.
func (d *detector) feed(data []byte) (int, error) {
	c := d.conn
	if d.side == Server {
		return d.server(data)
	}
	n := len(data)
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		n = i + 1
	}
	if n = min(n, c.policy.MaxHeader+1-len(d.head)); !c.take(n) {
		return 0, c.full()
	}
	d.head = append(d.head, data[:n]...)
	kind := undecided
	if before := len(d.head) - n; before <= maxMethod || d.head[len(d.head)-1] == '\n' { // else nothing new is to be seen
		kind = kindOf(d.head)
	}
	if kind == undecided && (len(d.head) > c.policy.MaxHeader || len(d.head) > maxMethod && !bytes.ContainsAny(d.head[:maxMethod], " \t\v\f\r")) {
		kind = notKnown
	}
	head := d.head
	switch kind {
	case undecided:
		return n, nil
	case isHTTP1:
		c.set(Client, newHTTP1(c, Client))
		if _, fresh := c.sides[Server].(*detector); fresh {
			c.set(Server, newHTTP1(c, Server))
		}
	case isHTTP2:
		if err := c.startHTTP2(); err != nil {
			return n, err
		}
	case isTLS:
		c.end(Server)
		c.set(Client, &handshake{conn: c})
	case isOldTLS:
		c.end(Server)
		if err := c.noName(); err != nil {
			return n, err
		}
		c.endAll()
		return n, nil
	case badHTTP:
		return n, malformed("request line %s", quoted(string(head)))
	default:
		return n, c.unknown()
	}
	return n, c.Feed(Client, head)
}

// server: what comes before the client has said anything.
func (d *detector) server(data []byte) (int, error) {
	c := d.conn
	n := min(len(data), frameHeader-len(d.head))
	if !c.take(n) {
		return 0, c.full()
	}
	d.head = append(d.head, data[:n]...)
	head := d.head
	switch k := min(len(head), 5); {
	case string(head[:k]) == "HTTP/"[:k]:
		if k < 5 {
			return n, nil
		}
		c.set(Server, newHTTP1(c, Server))
		return n, c.Feed(Server, head)
	case head[0] == 0 && len(head) < frameHeader:
		return n, nil
	case head[0] == 0 && string(head[3:]) == "\x04\x00\x00\x00\x00\x00": // settings of HTTP/2: some servers speak first
		var said []byte
		if client, ok := c.sides[Client].(*detector); ok {
			said = client.head
		}
		if err := c.startHTTP2(); err != nil {
			return n, err
		}
		if err := c.Feed(Client, said); err != nil {
			return n, err
		}
		return n, c.Feed(Server, head)
	}
	return n, c.unknown()
}

type kind int

const (
	undecided kind = iota
	isHTTP1
	isHTTP2
	isTLS
	isOldTLS
	badHTTP
	notKnown
)

var methods = map[string]bool{"GET": true, "HEAD": true, "POST": true, "PUT": true, "DELETE": true, "CONNECT": true, "OPTIONS": true, "TRACE": true, "PATCH": true,
	"PROPFIND": true, "PROPPATCH": true, "MKCOL": true, "COPY": true, "MOVE": true, "LOCK": true, "UNLOCK": true, "SEARCH": true, "REPORT": true}

// kindOf a client's first bytes, which end with the first line feed or before.
func kindOf(b []byte) kind {
	line := bytes.TrimLeft(b, "\r\n \t")
	if len(line) == 0 {
		return undecided
	}
	if len(line) == len(b) {
		switch {
		case b[0] == 0x16 && len(b) < 2, b[0]&0x80 != 0 && len(b) < 4:
			return undecided
		case b[0] == 0x16 && b[1] == 3:
			return isTLS
		case b[0]&0x80 != 0 && b[2] == 1 && b[3] <= 3:
			return isOldTLS
		}
		if bytes.HasPrefix(b, []byte(preface[:min(len(b), 16)])) { // as far as the first line feed
			if len(b) == 16 {
				return isHTTP2
			}
			return undecided
		}
	}
	for _, ch := range line {
		if isSpace(ch) || ch == '\n' {
			break
		}
		if !isToken(ch) {
			return notKnown
		}
	}
	if b[len(b)-1] != '\n' {
		return undecided
	}
	return kindOfLine(splitSpaces(string(line)))
}

func kindOfLine(f []string) kind {
	if len(f) < 2 {
		return notKnown
	}
	version, method := strings.ToUpper(f[len(f)-1]), strings.ToUpper(f[0])
	aims := f[1][0] == '/' || f[1][0] == '*' || strings.Contains(f[1], "://") || method == "CONNECT"
	switch {
	case strings.HasPrefix(version, "HTTP/"):
		if len(f) != 3 || strings.HasPrefix(version, "HTTP/2") {
			return badHTTP
		}
		return isHTTP1
	case len(f) == 2 && method == "GET" && aims: // HTTP/0.9
		return isHTTP1
	case methods[method] && aims && !otherVersion(version):
		return badHTTP
	}
	return notKnown
}

// otherVersion is that of a protocol which looks like HTTP: RTSP/1.0, SIP/2.0.
func otherVersion(v string) bool {
	name, number, ok := strings.Cut(v, "/")
	return ok && len(name) >= 3 && len(number) == 3 && number[1] == '.' && strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\v' || b == '\f' || b == '\r' }

func splitSpaces(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r < 0x80 && isSpace(byte(r)) })
}

// isToken: RFC 9110, section 5.6.2.
func isToken(b byte) bool {
	return 'a' <= fold(b) && fold(b) <= 'z' || '0' <= b && b <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", b) >= 0
}
