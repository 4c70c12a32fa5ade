package inspect

import "encoding/binary"

// handshake reads the names in a client's TLS handshake: of its first hello, and of a second one.
type handshake struct {
	conn   *Conn
	record []byte // the record's header as far as it is there
	left   int    // of the record
	kind   byte
	msg    []byte // the handshake message so far
	plain  bool   // a hello was judged
	early  bool   // the hello announced early data: a server that asks for a second hello passes over it
	cipher bool   // the client has changed its cipher: what follows is encrypted, or a second hello
}

const (
	recordHeader  = 5
	maxHello      = 4 + 131396 // what OpenSSL takes; others take less
	maxNames      = 8          // in a hello: the standard allows one
	maxServerName = 255        // bytes of one, as in OpenSSL
	earlyData     = 42         // extension (RFC 8446, section 4.2.10)
	helloType     = 1
	changeCipher  = 20
	alertRecord   = 21
	handshakeType = 22
	dataRecord    = 23
	heartbeat     = 24
	maxRecord     = 1<<14 + 2048
)

func (h *handshake) close() { h.conn.give(cap(h.msg)); h.msg = nil }

func (h *handshake) feed(data []byte) (n int, err error) {
	if h.left == 0 {
		n = min(len(data), recordHeader-len(h.record))
		h.record = append(h.record, data[:n]...)
		if len(h.record) < recordHeader {
			return n, nil
		}
		h.kind, h.left = h.record[0], int(binary.BigEndian.Uint16(h.record[3:]))
		version := h.record[1]
		h.record = h.record[:0]
		switch {
		case version != 3 || h.left > maxRecord:
			return n, malformed("TLS record")
		case h.kind == handshakeType:
			return n, nil
		case h.kind == changeCipher:
			h.cipher = true
		case h.kind == alertRecord:
		case !h.plain:
			return n, malformed("TLS record of type %d before a hello", h.kind)
		case h.kind == dataRecord && !h.early: // encrypted from here on
			h.conn.end(Client)
			return n, nil
		}
		h.conn.skip[Client] = uint64(h.left)
		h.left = 0
		return n, nil
	}
	n = min(len(data), h.left)
	h.left -= n
	var ok bool
	if h.msg, ok = h.conn.room(h.msg, n); !ok { // less than maxHello, and a record
		return 0, h.conn.full()
	}
	h.msg = append(h.msg, data[:n]...)
	return n, h.messages()
}

// messages judges those that are whole.
func (h *handshake) messages() error {
	at := 0
	for !h.conn.done[Client] && len(h.msg)-at >= 4 {
		n, err := h.message(h.msg[at:])
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		at += n
	}
	if at > 0 && !h.conn.done[Client] {
		h.msg = append(h.msg[:0], h.msg[at:]...)
	}
	return nil
}

// message judges the first one and returns its length; 0: it is not whole.
func (h *handshake) message(b []byte) (int, error) {
	length := 4 + int(b[1])<<16 + int(b[2])<<8 + int(b[3])
	switch {
	case b[0] != helloType && !h.plain:
		return 0, malformed("TLS handshake without a hello")
	case h.plain && h.cipher && (b[0] != helloType || length > maxHello): // ciphertext
		h.conn.end(Client)
		return len(b), nil
	case length > maxHello:
		return 0, malformed("TLS handshake message of more than %d bytes", maxHello)
	case len(b) < length:
		return 0, nil
	case b[0] != helloType:
		return length, nil
	}
	hello, ok := readHello(b[4:length])
	if !ok {
		return 0, malformed("TLS hello that cannot be read")
	}
	if err := h.conn.judgeHello(hello); err != nil {
		return 0, err
	}
	if h.plain { // no server takes a third one
		h.conn.end(Client)
	}
	h.plain, h.early = true, hello.early
	return length, nil
}

func (c *Conn) judgeHello(h hello) error {
	if h.encrypted && c.policy.Encrypted == Reset {
		return &Block{Hit: Hit{Why: "TLS with an encrypted server name"}}
	}
	if len(h.names) == 0 {
		return c.noName()
	}
	for _, name := range h.names {
		if r, hit := c.policy.judgeName(name); r != nil {
			return &Block{Hit: hit}
		}
	}
	return nil
}

func (c *Conn) noName() error {
	if r, hit := c.policy.judgeName(c.server.String()); r != nil {
		return &Block{Hit: hit}
	}
	if c.policy.named && c.policy.NoName == Reset {
		return &Block{Hit: Hit{Why: "TLS without a server name"}}
	}
	return nil
}

// hello is what is read of one.
type hello struct {
	names     []string
	encrypted bool
	early     bool
}

// reader takes pieces off a message; ok turns false when it ends too soon.
type reader struct {
	b  []byte
	ok bool
}

func (r *reader) take(n int) []byte {
	if !r.ok || n > len(r.b) {
		r.ok = false
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

// vector with a length of so many bytes before it.
func (r *reader) vector(size int) []byte {
	n := 0
	for _, b := range r.take(size) {
		n = n<<8 | int(b)
	}
	return r.take(n)
}

// readHello reads a ClientHello (RFC 8446, section 4.1.2): server_name (RFC 6066), encrypted_client_hello (RFC 9849).
func readHello(b []byte) (h hello, ok bool) {
	r := reader{b, true}
	r.take(2 + 32)
	r.vector(1)
	r.vector(2)
	r.vector(1)
	if r.ok && len(r.b) == 0 {
		return h, true // without extensions
	}
	extensions := reader{r.vector(2), r.ok}
	if !r.ok || len(r.b) > 0 {
		return h, false
	}
	for len(extensions.b) > 0 {
		kind, body := extensions.take(2), extensions.vector(2)
		if !extensions.ok {
			return h, false
		}
		switch binary.BigEndian.Uint16(kind) {
		case 0:
			list := reader{body, true}
			names := reader{list.vector(2), list.ok}
			for names.ok && len(names.b) > 0 {
				t, name := names.take(1), names.vector(2)
				names.ok = names.ok && len(name) <= maxServerName
				if names.ok && t[0] == 0 {
					h.names = append(h.names, string(name))
				}
			}
			if !list.ok || !names.ok || len(list.b) > 0 || len(h.names) > maxNames {
				return h, false
			}
		case earlyData:
			h.early = true
		case 0xfe0d, 0xffce: // and its draft
			h.encrypted = true
		}
	}
	return h, true
}
