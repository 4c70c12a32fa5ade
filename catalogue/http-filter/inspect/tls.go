package inspect

import (
	"encoding/binary"

	"weir.dev/weir/catalogue/names"
)

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
	hello, ok := names.ReadHello(b[4:length])
	if !ok {
		return 0, malformed("TLS hello that cannot be read")
	}
	if err := h.conn.judgeHello(hello); err != nil {
		return 0, err
	}
	if h.plain { // no server takes a third one
		h.conn.end(Client)
	}
	h.plain, h.early = true, hello.Early
	return length, nil
}

func (c *Conn) judgeHello(h names.Hello) error {
	if h.Encrypted && c.policy.Encrypted == Reset {
		return &Block{Hit: Hit{Why: "TLS with an encrypted server name"}}
	}
	if len(h.Names) == 0 {
		return c.noName()
	}
	for _, name := range h.Names {
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
