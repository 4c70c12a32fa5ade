package inspect

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// pending is a request without an answer.
type pending struct {
	hit       Hit
	responses set  // rules whose words count in the answer
	head      bool // HEAD: the answer has no content
	connect   bool
	upgrade   bool
	cost      int // of the budget, while it waits
}

const (
	maxWaiting = 64 // pipelined requests
	maxTunnels = 3
	maxFolds   = 100 // folded lines in a header: each copies the value
	maxChunk   = 1 << 48
	maxLine    = 4 << 10 // of a chunk's length
)

// http1 reads one side of HTTP/1.0 and 1.1.
type http1 struct {
	conn   *Conn
	side   Side
	state  h1state
	buf    []byte // a header, or a line, as far as it is there
	remain uint64
	sink   sink
	now    pending // the request that is answered
	lines  int     // in buf, of a header
	junk   int     // bytes to look at for a status line, of an answer without one
	host   host    // that was asked last
}

// host as a request names it, and as it is compared: over a connection all name the same.
type host struct {
	sent  string
	names []string
}

const maxKnown = 64 // bytes of a host that is kept: no budget counts them

type h1state int

const (
	h1Head h1state = iota
	h1Fixed
	h1ChunkSize
	h1Chunk
	h1ChunkEnd
	h1Trailer
	h1Rest   // content up to the end
	h1Answer // a request that may end HTTP waits for its answer
)

func newHTTP1(c *Conn, s Side) *http1 { return &http1{conn: c, side: s} }

func (h *http1) close() {
	h.conn.give(cap(h.buf))
	h.buf = nil
	closeSink(h.sink)
	h.sink = nil
}

// idle: nothing of another message has come.
func (h *http1) idle() bool { return h.state == h1Head && len(bytes.TrimLeft(h.buf, "\r\n")) == 0 }

func (h *http1) feed(data []byte) (int, error) {
	switch h.state {
	case h1Head, h1Trailer:
		return h.collect(data)
	case h1Fixed, h1Chunk:
		n := int(min(uint64(len(data)), h.remain))
		if err := h.sink.write(data[:n]); err != nil {
			return n, err
		}
		if h.remain -= uint64(n); h.remain > 0 {
			return n, nil
		}
		if h.state == h1Chunk {
			h.state = h1ChunkEnd
			return n, nil
		}
		return n, h.ended()
	case h1ChunkSize, h1ChunkEnd:
		return h.chunkLine(data)
	case h1Rest:
		return len(data), h.rest(data)
	}
	return 0, malformed("data before the answer to %s", h.now.hit.Method)
}

// keep bytes of a header or a line.
func (h *http1) keep(data []byte, limit int) error {
	if len(h.buf)+len(data) > limit {
		return malformed("header of more than %d bytes", limit)
	}
	var ok bool
	if h.buf, ok = h.conn.room(h.buf, len(data)); !ok {
		return h.conn.full()
	}
	h.buf = append(h.buf, data...)
	return nil
}

// collect a header, or what follows the last chunk, up to its empty line.
func (h *http1) collect(data []byte) (int, error) {
	if h.side == Client && h.state == h1Head && len(h.buf) == 0 { // empty lines before it
		if n := len(data) - len(bytes.TrimLeft(data, "\r\n")); n > 0 {
			return n, nil
		}
	}
	n := len(data)
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		n = i + 1
	}
	if err := h.keep(data[:n], h.conn.policy.MaxHeader); err != nil {
		return n, err
	}
	if i := bareCR(h.buf, n); i >= 0 && h.side == Client { // for some servers the line has ended
		return n, malformed("header line %s", quoted(string(h.buf[max(0, i-20):])))
	}
	if h.buf[len(h.buf)-1] != '\n' {
		if h.side == Server && h.state == h1Head && h.lines == 0 && h.buf[0] != '\r' && !strings.HasPrefix("HTTP/", string(h.buf[:min(len(h.buf), 5)])) {
			return n, h.notHTTP()
		}
		return n, nil
	}
	if h.lines++; h.state == h1Head && h.lines == 1 {
		if len(bytes.TrimLeft(h.buf, "\r\n")) == 0 { // empty lines before it
			h.buf, h.lines = h.buf[:0], 0
			return n, nil
		}
		if done, err := h.firstLine(); done || err != nil {
			return n, err
		}
	}
	if !bytes.HasSuffix(h.buf, []byte("\n\n")) && !bytes.HasSuffix(h.buf, []byte("\n\r\n")) {
		if h.state == h1Head || string(h.buf) != "\r\n" && string(h.buf) != "\n" {
			return n, nil
		}
	}
	text := string(h.buf)
	h.buf, h.lines = h.buf[:0], 0
	if h.state == h1Trailer {
		return n, h.ended()
	}
	if h.side == Client {
		return n, h.request(text)
	}
	return n, h.response(text)
}

// firstLine looks at it alone when it has just ended: it may say that there is no header.
func (h *http1) firstLine() (done bool, err error) {
	if h.side == Server {
		if !bytes.HasPrefix(h.buf, []byte("HTTP/")) {
			return true, h.notHTTP()
		}
		return false, nil
	}
	line := string(h.buf)
	f := splitSpaces(line)
	if kindOfSplit(line, f) != isHTTP1 {
		return false, malformed("request line %s", quoted(line))
	}
	if len(f) == 3 {
		return false, nil
	}
	h.buf, h.lines = h.buf[:0], 0
	q := &request{method: "GET", target: f[1]}
	hosts := []string{h.conn.server.String()}
	if host, path, ok := absolute(f[1]); ok {
		hosts[0], q.target = host, path
	}
	if q.hosts, err = named(hosts); err != nil {
		return true, err
	}
	h.state = h1Answer
	_, err = h.admit(q, pending{})
	return true, err
}

// maxJunk is how many bytes browsers look at for the begin of a status line.
const maxJunk = 32

// notHTTP: an answer without a header, up to the end.
func (h *http1) notHTTP() error {
	h.answered()
	h.pop()
	text := bytes.Clone(h.buf)
	h.buf, h.lines = h.buf[:0], 0
	var err error
	h.sink, err = h.conn.newContent(h.now.responses, h.now.hit, true, nil)
	h.state, h.junk = h1Rest, maxJunk
	switch {
	case err != nil:
		return err
	case h.sink == nil:
		h.conn.end(h.side)
		return nil
	}
	return h.rest(text)
}

// rest of an answer, up to the end. A status line that browsers would find in it is none that we read.
func (h *http1) rest(data []byte) error {
	if n := min(h.junk, len(data)); n > 0 {
		if err := h.keep(data[:n], maxJunk); err != nil {
			return err
		}
		h.junk -= n
		if begin := string(h.buf); strings.Contains(strings.ToLower(begin), "http/") {
			return malformed("status line %s", quoted(begin))
		}
	}
	return h.sink.write(data)
}

// answered takes the request that is answered.
func (h *http1) answered() {
	c := h.conn
	if len(c.waits) == 0 { // nobody knows what it answers: all words count
		h.now = pending{responses: c.policy.inResponses}
		return
	}
	h.now = c.waits[0]
}

func (h *http1) pop() {
	if c := h.conn; len(c.waits) > 0 {
		c.give(c.waits[0].cost)
		c.waits = append(c.waits[:0], c.waits[1:]...)
	}
}

// admit judges a request, and lets it wait for its answer.
func (h *http1) admit(q *request, p pending) (requests set, err error) {
	c := h.conn
	if len(q.target) > maxTarget {
		return nil, malformed("address of more than %d bytes", maxTarget)
	}
	requests, responses, rule, hit := c.policy.judge(q)
	if rule != nil {
		return nil, c.block(rule, hit, 0)
	}
	if len(c.waits) == maxWaiting {
		return nil, malformed("more than %d requests without an answer", maxWaiting)
	}
	p.hit, p.responses = hit, responses
	if p.cost = 512 + 8*len(responses); !c.take(p.cost) {
		return nil, c.full()
	}
	c.waits = append(c.waits, p)
	h.now = p
	return requests, nil
}

// field of a header.
type field struct{ name, value string }

// header reads a header's lines behind the first one. Names that count are in lower case. A folded line of an answer is part of the value before it; in a request it is
// refused, as servers differ.
func (h *http1) header(text string) (first string, fields []field, err error) {
	first, text, _ = strings.Cut(strings.TrimLeft(text, "\r\n"), "\n")
	first = strings.TrimSuffix(first, "\r")
	if hasControl(first) {
		return "", nil, malformed("first line %s", quoted(first))
	}
	folds := 0
	fields = make([]field, 0, 16)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if line == "" {
			break
		}
		if hasControl(line) {
			return "", nil, malformed("header line %s", quoted(line))
		}
		if line[0] == ' ' || line[0] == '\t' {
			if folds++; len(fields) == 0 || h.side == Client || folds > maxFolds {
				return "", nil, malformed("folded header line %s", quoted(line))
			}
			f := &fields[len(fields)-1]
			f.value = trim(f.value + " " + trim(line))
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || !areTokens(name) {
			if h.side == Client || strings.Contains(strings.ToLower(name), "content-") || strings.Contains(strings.ToLower(name), "transfer-") {
				return "", nil, malformed("header line %s", quoted(line))
			}
			continue // browsers pass it over, too
		}
		fields = append(fields, field{counting(name), trim(value)})
	}
	return first, fields, nil
}

// counting names of fields are in lower case, others as they were sent.
func counting(name string) string {
	for _, known := range [...]string{"host", "upgrade", "content-length", "content-encoding", "transfer-encoding"} {
		if len(name) == len(known) && strings.EqualFold(name, known) {
			return known
		}
	}
	return name
}

// trim the white space of HTTP (RFC 9110, section 5.6.3), and no other.
func trim(s string) string { return strings.Trim(s, " \t") }

// framing is how a message's end is known.
type framing struct {
	chunked bool
	coded   []string // as transferred, and before that as content
	length  uint64
	known   bool // it has a length
	given   bool // TE is there, without chunked at the end
}

func frame(fields []field, version string) (f framing, err error) {
	var transfer, content []string
	for _, x := range fields {
		switch x.name {
		case "content-length":
			for v := range strings.SplitSeq(x.value, ",") {
				v = trim(v)
				n, err := strconv.ParseUint(v, 10, 63)
				if err != nil || strings.HasPrefix(v, "+") || f.known && n != f.length {
					return f, malformed("Content-Length %s", quoted(x.value))
				}
				f.length, f.known = n, true
			}
		case "transfer-encoding":
			f.given = true
			for v := range strings.SplitSeq(x.value, ",") {
				transfer = append(transfer, strings.ToLower(trim(v)))
			}
		case "content-encoding":
			content = append(content, strings.Split(x.value, ",")...)
		}
	}
	if f.given {
		if f.known || version != "HTTP/1.1" {
			return f, malformed("Transfer-Encoding beside Content-Length, or in %s", quoted(version))
		}
		if i := slices.Index(transfer, "chunked"); i >= 0 {
			if i != len(transfer)-1 {
				return f, malformed("Transfer-Encoding %s", quoted(strings.Join(transfer, ", ")))
			}
			f.chunked = true
			transfer = transfer[:i]
		}
		for _, t := range transfer {
			if t != "gzip" && t != "x-gzip" && t != "deflate" && t != "identity" {
				return f, malformed("Transfer-Encoding %s", quoted(t))
			}
		}
	}
	f.coded = append(content, transfer...)
	return f, nil
}

func values(fields []field, name string) (out []string) {
	for _, f := range fields {
		if f.name == name {
			out = append(out, f.value)
		}
	}
	return out
}

// absolute splits a URI as requests to proxies have it.
func absolute(target string) (host, path string, ok bool) {
	scheme, rest, ok := strings.Cut(target, "://")
	if !ok || scheme == "" || !areTokens(scheme) {
		return "", "", false
	}
	i := strings.IndexAny(rest, "/?#\\")
	if i < 0 {
		return rest, "/", true
	}
	if rest[i] != '/' {
		return rest[:i], "/" + rest[i:], true
	}
	return rest[:i], rest[i:], true
}

// named as the function of this name, which it calls for a host other than before.
func (h *http1) named(hosts []string) ([]string, error) {
	if len(hosts) == 1 && h.host.names != nil && hosts[0] == h.host.sent {
		return h.host.names, nil
	}
	names, err := named(hosts)
	if err == nil && len(hosts) == 1 && len(hosts[0]) <= maxKnown {
		h.host = host{strings.Clone(hosts[0]), names}
	}
	return names, err
}

func (h *http1) request(text string) error {
	first, fields, err := h.header(text)
	if err != nil {
		return err
	}
	f := splitSpaces(first)
	version := strings.ToUpper(f[len(f)-1])
	q := &request{method: f[0], target: f[1]}
	hosts := values(fields, "host")
	connect := strings.EqualFold(q.method, "CONNECT")
	if connect {
		hosts = append([]string{q.target}, hosts...)
	} else if host, path, ok := absolute(q.target); ok {
		hosts, q.target = append([]string{host}, hosts...), path
	}
	if len(hosts) == 0 {
		hosts = []string{h.conn.server.String()}
	}
	if q.hosts, err = h.named(hosts); err != nil {
		return err
	}
	body, err := frame(fields, version)
	if err != nil {
		return err
	}
	if body.given && !body.chunked {
		return malformed("request with Transfer-Encoding, but not chunked")
	}
	p := pending{head: strings.EqualFold(q.method, "HEAD"), connect: connect, upgrade: len(values(fields, "upgrade")) > 0}
	requests, err := h.admit(q, p)
	if err != nil {
		return err
	}
	if connect {
		h.state = h1Answer
		return nil
	}
	if h.sink, err = h.conn.newContent(requests, h.now.hit, false, body.coded); err != nil {
		return err
	}
	return h.body(body, false)
}

// body begins a message's content.
func (h *http1) body(f framing, untilEnd bool) error {
	switch {
	case f.chunked:
		h.state = h1ChunkSize
	case f.known && f.length > 0 && h.sink == nil: // not looked at
		h.conn.skip[h.side] = f.length
		return h.ended()
	case f.known && f.length > 0:
		h.state, h.remain = h1Fixed, f.length
	case !f.known && untilEnd && h.sink == nil:
		h.conn.end(h.side)
	case !f.known && untilEnd:
		h.state = h1Rest
	default:
		return h.ended()
	}
	return nil
}

// ended is what follows a whole message.
func (h *http1) ended() error {
	closeSink(h.sink)
	h.sink = nil
	h.state = h1Head
	if h.side == Client && h.now.upgrade {
		h.state = h1Answer
	}
	return nil
}

func (h *http1) response(text string) error {
	first, fields, err := h.header(text)
	if err != nil {
		return err
	}
	c := h.conn
	h.answered()
	f := strings.Split(first, " ")
	f = slices.DeleteFunc(f, func(s string) bool { return s == "" })
	status := 0
	if len(f) >= 2 && len(f[1]) == 3 {
		status, _ = strconv.Atoi(f[1])
	}
	if status < 100 {
		return malformed("status line %s", quoted(first))
	}
	client, isHTTP1 := c.sides[Client].(*http1)
	waiting := isHTTP1 && client.state == h1Answer
	switch {
	case status == 101:
		if !h.now.upgrade || !waiting || len(c.waits) != 1 {
			return malformed("another protocol, for which nobody asked")
		}
		for _, v := range values(fields, "upgrade") {
			if strings.EqualFold(v, "h2c") {
				return c.upgradeHTTP2(h.now)
			}
			if strings.Contains(strings.ToLower(v), "tls/") { // RFC 2817
				h.pop()
				return c.tunnel()
			}
		}
		c.endAll()
		return nil
	case status < 200:
		return nil // another one follows
	case status < 300 && h.now.connect:
		h.pop()
		return c.tunnel()
	}
	h.pop()
	if isHTTP1 && len(c.waits) == 0 && (h.now.connect || h.now.upgrade) { // it stays what it is
		client.now.upgrade = false
		if waiting {
			client.state = h1Head
		}
	}
	if h.now.head || status == 204 || status == 304 {
		return h.ended()
	}
	body, err := frame(fields, strings.ToUpper(f[0]))
	if err != nil {
		return err
	}
	if h.sink, err = c.newContent(h.now.responses, h.now.hit, true, body.coded); err != nil {
		return err
	}
	return h.body(body, true)
}

// tunnel begins: what is in it is found out as at a connection's begin.
func (c *Conn) tunnel() error {
	if c.layers++; c.layers > maxTunnels {
		return malformed("more than %d tunnels in each other", maxTunnels)
	}
	c.detect()
	return nil
}

// chunkLine reads the line with a chunk's length, or the one that ends a chunk.
func (h *http1) chunkLine(data []byte) (int, error) {
	n := len(data)
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		n = i + 1
	}
	if err := h.keep(data[:n], maxLine); err != nil {
		return n, err
	}
	if h.buf[len(h.buf)-1] != '\n' {
		return n, nil
	}
	line, ok := strings.CutSuffix(string(h.buf), "\r\n")
	h.buf = h.buf[:0]
	if !ok || strings.ContainsAny(line, "\r\n\x00") {
		return n, malformed("line of a chunk")
	}
	if h.state == h1ChunkEnd {
		if line != "" {
			return n, malformed("chunk longer than it says")
		}
		h.state = h1ChunkSize
		return n, nil
	}
	digits, _, _ := strings.Cut(line, ";")
	digits = strings.TrimRight(digits, " \t")
	size, err := strconv.ParseUint(digits, 16, 63)
	if err != nil || size > maxChunk || strings.ContainsAny(digits, "+_") {
		return n, malformed("length of a chunk %s", quoted(line))
	}
	switch h.remain = size; {
	case size == 0:
		h.state = h1Trailer
	case h.sink == nil: // not looked at
		h.conn.skip[h.side] = size
		h.state = h1ChunkEnd
	default:
		h.state = h1Chunk
	}
	return n, nil
}
