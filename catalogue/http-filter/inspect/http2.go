package inspect

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/net/http2/hpack"
)

const (
	frameHeader   = 9
	maxStreams    = 1000
	tableSize     = 4 << 10  // of header compression, before a sender asks for more
	mostTable     = 64 << 10 // what it may ask for
	tableCost     = 3        // memory of a table, in its size: its smallest entries count 32 bytes, and take more
	h2Size        = 16 << 10 // memory of a connection without its tables
	streamSize    = 512
	maxFields     = 1000 // of a header
	keptFields    = 128  // room for fields that is kept for the next header
	dataFrame     = 0
	headersFrame  = 1
	resetFrame    = 3
	settingsFrame = 4
	pushFrame     = 5
	goAwayFrame   = 7
	continuation  = 9
	endStream     = 1
	endHeaders    = 4
	padded        = 8
	priority      = 0x20
)

// h2 is an HTTP/2 connection.
type h2 struct {
	conn    *Conn
	sides   [2]*h2side
	streams map[uint32]*stream
	cost    int    // of the budget, without its streams
	last    uint32 // the client's newest stream
	now     uint32 // whose request is being read
	open    int    // parsers that use it
}

type stream struct {
	hit       Hit
	responses set
	sinks     [2]sink
	seen      [2]bool // headers
	ended     [2]bool
	cost      int
}

// h2side reads one side's frames.
type h2side struct {
	h       *h2
	side    Side
	preface string // still to come
	header  []byte
	inside  bool // a frame's payload
	kind    byte
	flags   byte
	id      uint32
	left    int // of the frame
	pad     int // of it, at its end
	padRead bool
	buf     []byte // of a header block's frame
	block   []byte
	blockOf uint32 // stream that the block is for; 0: no block is open
	pushed  uint32 // stream that it promises
	ends    bool
	frames  bool // the first one has come
	decoder *hpack.Decoder
	table   int // its table's size, at most
	fields  []hpack.HeaderField
	size    int
}

func (c *Conn) startHTTP2() error {
	const cost = h2Size + 2*tableCost*tableSize
	if !c.take(cost) {
		return c.full()
	}
	c.h2 = &h2{conn: c, streams: map[uint32]*stream{}, open: 2, cost: cost}
	for s := range c.sides {
		c.h2.sides[s] = newH2side(c.h2, Side(s))
		c.set(Side(s), c.h2.sides[s])
	}
	c.h2.sides[Client].preface = preface
	return nil
}

// upgradeHTTP2: the answer to an HTTP/1 request comes in stream 1 (RFC 7540, section 3.2).
func (c *Conn) upgradeHTTP2(p pending) error {
	if err := c.startHTTP2(); err != nil {
		return err
	}
	c.waits = nil
	c.h2.last = 1
	c.h2.streams[1] = &stream{hit: p.hit, responses: p.responses, seen: [2]bool{Client: true}, ended: [2]bool{Client: true}, cost: p.cost}
	return nil
}

func newH2side(h *h2, s Side) *h2side {
	f := &h2side{h: h, side: s, table: tableSize}
	f.decoder = hpack.NewDecoder(tableSize, func(x hpack.HeaderField) {
		if f.size += len(x.Name) + len(x.Value) + 32; f.size <= 4*h.conn.policy.MaxHeader && len(f.fields) <= maxFields {
			f.fields = append(f.fields, x)
		}
	})
	f.decoder.SetMaxStringLength(h.conn.policy.MaxHeader)
	return f
}

func (f *h2side) close() {
	c := f.h.conn
	c.give(cap(f.buf) + cap(f.block))
	f.buf, f.block = nil, nil
	if f.h.open--; f.h.open > 0 {
		return
	}
	for id := range f.h.streams {
		f.h.remove(id)
	}
	c.give(f.h.cost)
	c.h2 = nil
}

func (h *h2) remove(id uint32) {
	s := h.streams[id]
	if s == nil {
		return
	}
	closeSink(s.sinks[Client])
	closeSink(s.sinks[Server])
	delete(h.streams, id)
	h.conn.give(s.cost)
}

func (f *h2side) feed(data []byte) (int, error) {
	if f.preface != "" {
		n := min(len(data), len(f.preface))
		if string(data[:n]) != f.preface[:n] {
			return n, malformed("HTTP/2 preface")
		}
		f.preface = f.preface[n:]
		return n, nil
	}
	if !f.inside {
		n := min(len(data), frameHeader-len(f.header))
		f.header = append(f.header, data[:n]...)
		if len(f.header) < frameHeader {
			return n, nil
		}
		return n, f.begin()
	}
	n := min(len(data), f.left)
	f.left -= n
	var err error
	switch f.kind {
	case dataFrame:
		err = f.data(data[:n])
	default:
		f.buf, err = f.keep(f.buf, data[:n])
	}
	if err == nil && f.left == 0 {
		err = f.end()
	}
	return n, err
}

// begin of a frame.
func (f *h2side) begin() error {
	b := f.header
	f.header = f.header[:0]
	f.left, f.kind, f.flags = int(b[0])<<16|int(b[1])<<8|int(b[2]), b[3], b[4]
	f.id = binary.BigEndian.Uint32(b[5:]) &^ (1 << 31)
	f.pad, f.padRead = 0, false
	if !f.frames && (f.kind != settingsFrame || f.flags&1 != 0 || f.id != 0) {
		return malformed("HTTP/2 without settings")
	}
	f.frames = true
	if f.blockOf != 0 && (f.kind != continuation || f.id != f.blockOf) {
		return malformed("HTTP/2 header that breaks off")
	}
	switch f.kind {
	case headersFrame, pushFrame, continuation:
		if f.kind == continuation && f.blockOf == 0 || f.kind == pushFrame && f.side == Client || f.id == 0 {
			return malformed("HTTP/2 frame of type %d out of place", f.kind)
		}
		if f.left > f.h.conn.policy.MaxHeader {
			return malformed("HTTP/2 header of more than %d bytes", f.h.conn.policy.MaxHeader)
		}
	case dataFrame:
		if s := f.h.streams[f.id]; f.flags&padded == 0 && (s == nil || s.sinks[f.side] == nil) {
			f.ignore()
			return f.end()
		}
	case resetFrame:
		f.h.remove(f.id)
		f.ignore()
	default:
		f.ignore()
	}
	f.inside = f.left > 0
	if f.left == 0 && (f.kind == dataFrame || f.kind == headersFrame || f.kind == pushFrame || f.kind == continuation) {
		return f.end()
	}
	return nil
}

// ignore the frame's payload.
func (f *h2side) ignore() {
	f.h.conn.skip[f.side] = uint64(f.left)
	f.left = 0
}

func (f *h2side) keep(to, data []byte) ([]byte, error) {
	c := f.h.conn
	if len(to)+len(data) > c.policy.MaxHeader {
		return to, malformed("HTTP/2 header of more than %d bytes", c.policy.MaxHeader)
	}
	to, ok := c.room(to, len(data))
	if !ok {
		return to, c.full()
	}
	return append(to, data...), nil
}

// data of a stream.
func (f *h2side) data(p []byte) error {
	if f.flags&padded != 0 && !f.padRead {
		if len(p) == 0 {
			return nil
		}
		f.pad, f.padRead = int(p[0]), true
		p = p[1:]
		if f.pad > f.left+len(p) {
			return malformed("HTTP/2 padding")
		}
	}
	p = p[:max(0, len(p)-max(0, f.pad-f.left))]
	s := f.h.streams[f.id]
	if s == nil || s.sinks[f.side] == nil || len(p) == 0 {
		return nil
	}
	f.h.now = f.id
	return s.sinks[f.side].write(p)
}

// end of a frame.
func (f *h2side) end() error {
	f.inside = false
	if f.kind == dataFrame {
		if f.flags&endStream != 0 {
			f.ended(f.id)
		}
		return nil
	}
	b := f.buf
	f.buf = f.buf[:0]
	if f.kind != continuation {
		f.blockOf, f.pushed, f.ends = f.id, 0, f.flags&endStream != 0 && f.kind == headersFrame
		pad := 0
		if f.flags&padded != 0 {
			if len(b) == 0 {
				return malformed("HTTP/2 padding")
			}
			pad, b = int(b[0]), b[1:]
		}
		skip := 0
		if f.kind == headersFrame && f.flags&priority != 0 {
			skip = 5
		}
		if f.kind == pushFrame {
			skip = 4
		}
		if skip+pad > len(b) {
			return malformed("HTTP/2 padding")
		}
		if f.kind == pushFrame {
			f.pushed = binary.BigEndian.Uint32(b) &^ (1 << 31)
		}
		b = b[skip : len(b)-pad]
	}
	var err error
	if f.block, err = f.keep(f.block, b); err != nil || f.flags&endHeaders == 0 {
		return err
	}
	id := f.blockOf
	f.blockOf = 0
	f.fields, f.size = f.fields[:0], 0
	if err = f.enlarge(); err != nil {
		return err
	}
	_, err = f.decoder.Write(f.block)
	f.block = f.block[:0]
	if err == nil {
		err = f.decoder.Close()
	}
	if err != nil {
		return malformed("HTTP/2 header: %v", err)
	}
	if f.size > 4*f.h.conn.policy.MaxHeader {
		return malformed("HTTP/2 header of more than %d bytes when unpacked", 4*f.h.conn.policy.MaxHeader)
	}
	if len(f.fields) > maxFields {
		return malformed("HTTP/2 header of more than %d fields", maxFields)
	}
	switch {
	case f.pushed != 0:
		err = f.request(f.pushed)
	case f.side == Client:
		err = f.request(id)
	default:
		err = f.response(id)
	}
	clear(f.fields)
	if cap(f.fields) > keptFields {
		f.fields = nil
	}
	if err == nil && f.ends {
		f.ended(id)
	}
	return err
}

// enlarge the table as the begin of the block asks for (RFC 7541, sections 4.2 and 6.3).
func (f *h2side) enlarge() error {
	size := 0
	for b := f.block; len(b) > 0 && b[0]>>5 == 1; {
		n, shift, more := int(b[0]&31), 0, b[0]&31 == 31
		for b = b[1:]; more && len(b) > 0 && shift < 28; b = b[1:] {
			n, shift, more = n+int(b[0]&127)<<shift, shift+7, b[0]&128 != 0
		}
		size = max(size, n)
	}
	if size <= f.table || size > mostTable { // the decoder refuses this one
		return nil
	}
	cost := tableCost * (size - f.table)
	if !f.h.conn.take(cost) {
		return f.h.conn.full()
	}
	f.h.cost += cost
	f.table = size
	f.decoder.SetAllowedMaxDynamicTableSize(uint32(size))
	return nil
}

func (f *h2side) ended(id uint32) {
	s := f.h.streams[id]
	if s == nil {
		return
	}
	s.ended[f.side] = true
	closeSink(s.sinks[f.side])
	s.sinks[f.side] = nil
	if s.ended[Client] && s.ended[Server] {
		f.h.remove(id)
	}
}

// request begins a stream; that of an open one is a trailer.
func (f *h2side) request(id uint32) error {
	h, c := f.h, f.h.conn
	if s := h.streams[id]; s != nil && s.seen[Client] {
		return nil
	}
	if f.side == Client {
		if id <= h.last { // closed already
			return nil
		}
		h.last = id
	}
	var q request
	var authority []string
	seen := map[string]bool{}
	var coded []string
	for _, x := range f.fields {
		if strings.HasPrefix(x.Name, ":") {
			if seen[x.Name] {
				return malformed("HTTP/2 header with %s twice", quoted(x.Name))
			}
			seen[x.Name] = true
		}
		switch x.Name {
		case ":method":
			q.method = x.Value
		case ":path":
			q.target = x.Value
		case ":authority":
			authority = append([]string{x.Value}, authority...)
		case "host":
			authority = append(authority, x.Value)
		case "content-encoding":
			coded = append(coded, strings.Split(x.Value, ",")...)
		}
	}
	if host, path, ok := absolute(q.target); ok {
		authority, q.target = append(authority, host), path
	}
	if len(authority) == 0 {
		authority = []string{c.server.String()}
	}
	h.now = id
	var err error
	if q.hosts, err = named(authority); err != nil {
		return err
	}
	if len(q.method) > maxMethod {
		return malformed("method of more than %d bytes", maxMethod)
	}
	if q.method == "CONNECT" && !seen[":protocol"] { // with it: RFC 8441
		return malformed("HTTP/2 tunnel")
	}
	if len(q.target) > maxTarget {
		return malformed("address of more than %d bytes", maxTarget)
	}
	requests, responses, rule, hit := c.policy.judge(&q)
	if rule != nil {
		return c.block(rule, hit, 0)
	}
	if len(h.streams) >= maxStreams {
		return malformed("more than %d HTTP/2 streams", maxStreams)
	}
	cost := streamSize + 8*len(responses)
	if !c.take(cost) {
		return c.full()
	}
	s := &stream{hit: hit, responses: responses, cost: cost, seen: [2]bool{Client: true}, ended: [2]bool{Client: f.pushed != 0}}
	h.streams[id] = s
	s.sinks[Client], err = c.newContent(requests, hit, false, coded)
	return err
}

func (f *h2side) response(id uint32) error {
	s := f.h.streams[id]
	if s == nil || s.seen[Server] {
		return nil
	}
	var coded []string
	for _, x := range f.fields {
		switch x.Name {
		case ":status":
			if strings.HasPrefix(x.Value, "1") && !f.ends {
				return nil // another one follows
			}
		case "content-encoding":
			coded = append(coded, strings.Split(x.Value, ",")...)
		}
	}
	s.seen[Server] = true
	var err error
	if !f.ends {
		s.sinks[Server], err = f.h.conn.newContent(s.responses, s.hit, true, coded)
	}
	return err
}

// page is a stream's answer, and the end of the connection. nil: there is no place for it.
func (h *h2) page(kind, text string) []byte {
	f := h.sides[Server]
	if f.inside || len(f.header) > 0 || f.blockOf != 0 || h.conn.skip[Server] > 0 || h.now == 0 {
		return nil
	}
	if s := h.streams[h.now]; s != nil && s.seen[Server] {
		return nil
	}
	var out []byte
	if !f.frames {
		out = frameOf(out, settingsFrame, 0, 0, nil)
	}
	length := fmt.Sprint(len(text))
	header := append([]byte{0x08, 3}, "403"...) // literals that no table remembers (RFC 7541, section 6.2.2)
	header = append(append(header, 0x0f, 31-15, byte(len(kind))), kind...)
	header = append(append(header, 0x0f, 28-15, byte(len(length))), length...)
	out = frameOf(out, headersFrame, endHeaders, h.now, header)
	out = frameOf(out, dataFrame, endStream, h.now, []byte(text))
	return frameOf(out, goAwayFrame, 0, 0, append(binary.BigEndian.AppendUint32(nil, h.last), 0, 0, 0, 0))
}

func frameOf(out []byte, kind, flags byte, id uint32, payload []byte) []byte {
	n := len(payload)
	out = append(out, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	return append(binary.BigEndian.AppendUint32(out, id), payload...)
}
