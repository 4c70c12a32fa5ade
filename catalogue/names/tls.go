package names

import (
	"encoding/binary"
	"strings"
)

const (
	maxNames      = 8   // in a hello: the standard allows one
	maxServerName = 255 // bytes of one, as in OpenSSL
	earlyData     = 42  // extension (RFC 8446, section 4.2.10)

	recordHeader  = 5
	messageHeader = 4
	handshakeType = 22
	helloType     = 1
)

// Hello is what is read of a ClientHello of TLS.
type Hello struct {
	Names     []string // of the server, as the client wants it
	Encrypted bool     // another name may be encrypted
	Early     bool     // early data follow
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

// ReadHello reads a ClientHello (RFC 8446, section 4.1.2): server_name (RFC 6066), encrypted_client_hello (RFC 9849). b begins behind the
// header of the handshake message. If it is cut, ok is false, and the names up to there are given.
func ReadHello(b []byte) (h Hello, ok bool) {
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
					h.Names = append(h.Names, string(name))
				}
			}
			if !list.ok || !names.ok || len(list.b) > 0 || len(h.Names) > maxNames {
				return h, false
			}
		case earlyData:
			h.Early = true
		case 0xfe0d, 0xffce: // and its draft
			h.Encrypted = true
		}
	}
	return h, true
}

// ServerName is the name in the first segment of a TLS connection; "": there is none. The segment may have the begin of the hello only.
func ServerName(segment []byte) string {
	const head = recordHeader + messageHeader
	if len(segment) < head || segment[0] != handshakeType || segment[1] != 3 || segment[recordHeader] != helloType {
		return ""
	}
	length := int(segment[6])<<16 | int(segment[7])<<8 | int(segment[8])
	b := segment[head:]
	if len(b) < length {
		b = append(append(make([]byte, 0, min(length, maxCut)), b...), make([]byte, max(0, min(length, maxCut)-len(b)))...)
	}
	if h, _ := ReadHello(b[:min(length, len(b))]); len(h.Names) > 0 && strings.IndexByte(h.Names[0], 0) < 0 { // zeros stand for what is not there
		return h.Names[0]
	}
	return ""
}

const maxCut = 16 << 10 // bytes of a hello whose end is not there
