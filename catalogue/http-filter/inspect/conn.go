package inspect

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"
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

// room for more bytes behind those of b. false: there is no memory.
func (c *Conn) room(b []byte, more int) ([]byte, bool) {
	need := len(b) + more
	if need <= cap(b) {
		return b, true
	}
	size := max(need, 2*cap(b), 512)
	if !c.take(size) {
		return b, false
	}
	c.give(cap(b))
	return append(make([]byte, 0, size), b...), true
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
	conn  *Conn
	side  Side
	head  []byte
	blank bool // the client sent blanks before head: TLS and HTTP/2 do not begin so
	seen  int  // bytes at the begin of head that a method can have
	begun bool // one of them is no space
	cr    bool // a CR without LF has come
}

func newDetector(c *Conn, s Side) *detector { return &detector{conn: c, side: s} }

func (d *detector) close() { d.conn.give(cap(d.head)); d.head = nil }

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// blanks are skipped by servers before a request, in any number.
const blanks = " \t\v\f\r\n"

// feed collects until it knows. Then the parser gets what it has collected. Blanks at the begin are not kept.
func (d *detector) feed(data []byte) (int, error) {
	c := d.conn
	if d.side == Server {
		return d.server(data)
	}
	if len(d.head) == 0 {
		if n := len(data) - len(bytes.TrimLeft(data, blanks)); n > 0 {
			d.blank = true
			return n, nil
		}
	}
	n := len(data)
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		n = i + 1
	}
	n = min(n, c.policy.MaxHeader+1-len(d.head))
	var ok bool
	if d.head, ok = c.room(d.head, n); !ok {
		return 0, c.full()
	}
	d.head = append(d.head, data[:n]...)
	head := d.head
	switch d.kind(n) {
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
	var ok bool
	if d.head, ok = c.room(d.head, n); !ok {
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
			if client.blank {
				return n, malformed("HTTP/2 preface")
			}
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

// kind of what a client says first. head ends with the first line feed or before; so many bytes of it are new.
//
// It is unknown only if no server reads a request in it. A line that is too long is refused, whatever its method is: servers have other bounds.
func (d *detector) kind(fresh int) kind {
	b := d.head
	if !d.blank {
		switch {
		case changeCipher <= b[0] && b[0] <= heartbeat:
			return kindOfRecord(b)
		case b[0]&0x80 != 0 && len(b) < 4:
			return undecided
		case b[0]&0x80 != 0 && b[2] == 1 && b[3] <= 3:
			return isOldTLS
		}
		if k := min(len(b), 16); string(b[:k]) == preface[:k] { // as far as the first line feed
			if k == 16 {
				return isHTTP2
			}
			return undecided
		}
	}
	for ; d.seen < len(b); d.seen++ {
		if ch := b[d.seen]; isBreak(ch) && d.begun {
			break
		} else if !isBreak(ch) && !isToken(ch) {
			return notKnown
		} else if !isBreak(ch) {
			d.begun = true
		}
	}
	if i := bareCR(b, fresh); i >= 0 && !d.cr { // for some servers the line has ended
		d.cr = true
		if kindOfLine(string(b[:i])) != notKnown {
			return badHTTP
		}
	}
	switch {
	case b[len(b)-1] == '\n':
		return kindOfLine(string(b))
	case len(b) <= d.conn.policy.MaxHeader:
		return undecided
	}
	if f := splitWide(string(b)); len(f) > 0 && hasControl(string(b)) && !methods[strings.ToUpper(f[0])] {
		return notKnown
	}
	return badHTTP
}

// kindOfRecord that may be TLS. Some servers take an alert before the hello, or versions that do not exist: the handshake judges, or refuses, those.
func kindOfRecord(b []byte) kind {
	switch hello := b[0] == handshakeType; {
	case len(b) < 2:
		return undecided
	case hello && b[1] == 3:
		return isTLS
	case b[1] >= 0x10:
		return notKnown
	case len(b) < recordHeader+1:
		return undecided
	case hello && b[recordHeader] == helloType, b[0] == alertRecord && b[3] == 0 && b[4] == 2, b[1] == 3 && b[2] <= 4 && b[3] <= maxRecord>>8:
		return isTLS
	}
	return notKnown
}

// kindOfLine that may be a request's first one. A line that only some servers take for one, or that they split in different ways, is badHTTP.
func kindOfLine(line string) kind { return kindOfSplit(line, splitSpaces(line)) }

func kindOfSplit(line string, words []string) kind {
	k := kindOfWords(words)
	text := strings.TrimRight(line, "\r\n")
	switch {
	case k == notKnown && kindOfWords(splitWide(line)) != notKnown:
		return badHTTP
	case k == isHTTP1 && (hasControl(text) || !utf8.ValidString(text) && strings.ContainsAny(latin1(text), "\u0085\u00a0")):
		return badHTTP
	}
	return k
}

func kindOfWords(f []string) kind {
	if len(f) < 2 {
		return notKnown
	}
	version, method := strings.ToUpper(f[len(f)-1]), strings.ToUpper(f[0])
	aims := f[1][0] == '/' || f[1][0] == '*' || strings.Contains(f[1], "://") || method == "CONNECT"
	switch {
	case strings.HasPrefix(version, "HTTP/"):
		if len(f) != 3 || strings.HasPrefix(version, "HTTP/2") || len(method) > maxMethod {
			return badHTTP
		}
		return isHTTP1
	case len(f) == 2 && method == "GET" && aims: // HTTP/0.9
		return isHTTP1
	case methods[method] && aims && !(method == "OPTIONS" && f[1][0] != '/' && otherVersion(version)):
		return badHTTP // some servers do not look at the version
	}
	return notKnown
}

// otherVersion is that of a protocol which looks like HTTP: RTSP/1.0, SIP/2.0. They share OPTIONS with it.
func otherVersion(v string) bool {
	name, number, ok := strings.Cut(v, "/")
	return ok && len(name) >= 3 && len(number) == 3 && number[1] == '.' && strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// isBreak is a byte at which some server ends a word of the request line. Python splits at all that is a space in Latin-1.
func isBreak(b byte) bool {
	return isSpace(b) || b == '\n' || 0x1c <= b && b <= 0x1f || b == 0x85 || b == 0xa0
}

func splitWide(s string) []string {
	return strings.FieldsFunc(latin1(s), func(r rune) bool { return isBreak(byte(r)) })
}

// bareCR finds the first CR which no LF follows, where so many bytes at the end of b are new; -1: there is none.
func bareCR(b []byte, fresh int) int {
	for i := max(len(b)-fresh, 1); i < len(b); i++ {
		if b[i-1] == '\r' && b[i] != '\n' {
			return i - 1
		}
	}
	return -1
}

func latin1(s string) string {
	r := make([]rune, len(s))
	for i := range len(s) {
		r[i] = rune(s[i])
	}
	return string(r)
}

// hasControl: RFC 9110, section 5.5. A tab is none.
func hasControl(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' && s[i] != '\t' || s[i] == 0x7f {
			return true
		}
	}
	return false
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\v' || b == '\f' || b == '\r' }

func splitSpaces(s string) []string {
	out := make([]string, 0, 4)
	begin := -1
	for i := range len(s) {
		switch space := s[i] == '\n' || isSpace(s[i]); {
		case space && begin >= 0:
			out = append(out, s[begin:i])
			begin = -1
		case !space && begin < 0:
			begin = i
		}
	}
	if begin >= 0 {
		out = append(out, s[begin:])
	}
	return out
}

// isToken: RFC 9110, section 5.6.2.
func isToken(b byte) bool { return tokens[b] }

var tokens = func() (t [256]bool) {
	for _, b := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		t[b] = true
	}
	return t
}()

// areTokens tells whether all bytes of a text are.
func areTokens(s string) bool {
	for i := range len(s) {
		if !tokens[s[i]] {
			return false
		}
	}
	return true
}
