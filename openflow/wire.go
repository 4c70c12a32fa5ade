package openflow

import (
	"encoding/binary"
	"fmt"
)

var be = binary.BigEndian

const (
	noBuffer  = 0xffffffff         // OFP_NO_BUFFER
	anyOutput = 0xffffffffffffffff // OFPP_ANY and OFPG_ANY: entries are never filtered by where they output
)

// Append writes a message to b and returns the longer slice. b may be nil. It does not allocate if b has room.
func Append(b []byte, xid uint32, m Message) ([]byte, error) {
	version := uint8(Version13)
	if h, ok := m.(*Hello); ok && h.Highest != 0 {
		version = h.Highest
	}
	return appendVersion(b, version, xid, m)
}

func appendVersion(b []byte, version uint8, xid uint32, m Message) ([]byte, error) {
	start := len(b)
	b = append(b, version, byte(m.Type()), 0, 0)
	b = be.AppendUint32(b, xid)
	out, err := m.appendBody(b, xid)
	if err != nil {
		return b[:start], fmt.Errorf("openflow: encode %s: %w", m.Type(), err)
	}
	n := len(out) - start
	if n > MaxMessage {
		return out[:start], fmt.Errorf("openflow: encode %s: %d bytes, at most %d fit", m.Type(), n, MaxMessage)
	}
	be.PutUint16(out[start+2:], uint16(n))
	return out, nil
}

// Decode reads one whole message, header included. The message shares no memory with b. Errors are *DecodeError.
// A message of another version than 1.3 is an error, except hello and error.
func Decode(b []byte) (xid uint32, m Message, err error) {
	if len(b) < headerLen {
		return 0, nil, &DecodeError{Reason: fmt.Sprintf("%d bytes are shorter than a header", len(b)), Code: BadLen}
	}
	t := Type(b[1])
	xid = be.Uint32(b[4:])
	if n := int(be.Uint16(b[2:])); n != len(b) {
		return xid, nil, &DecodeError{Type: t, XID: xid, Code: BadLen, Reason: fmt.Sprintf("header says %d bytes, there are %d", n, len(b))}
	}
	if b[0] == 0 || b[0] != Version13 && t != TypeHello && t != TypeError {
		return xid, nil, &DecodeError{Type: t, XID: xid, Code: BadVersion, Reason: fmt.Sprintf("version %d, want %d", b[0], Version13)}
	}
	r := reader{b: b[headerLen:]}
	m = decodeBody(&r, b[0], t, xid)
	if r.bad == "" && len(r.b) > 0 {
		r.fail(BadLen, "%d bytes too many", len(r.b))
	}
	if r.bad != "" {
		return xid, nil, &DecodeError{Type: t, XID: xid, Code: r.code, Reason: r.bad}
	}
	return xid, m, nil
}

func decodeBody(r *reader, version uint8, t Type, xid uint32) Message {
	switch t {
	case TypeHello:
		return decodeHello(r, version)
	case TypeError:
		return decodeError(r)
	case TypeEchoRequest:
		return &EchoRequest{r.copy(len(r.b))}
	case TypeEchoReply:
		return &EchoReply{r.copy(len(r.b))}
	case TypeExperimenter:
		return decodeExperimenter(r, xid)
	case TypeFeaturesRequest:
		return &FeaturesRequest{}
	case TypeFeaturesReply:
		m := &FeaturesReply{DatapathID: r.u64(), Buffers: r.u32(), Tables: r.u8(), AuxiliaryID: r.u8()}
		r.skip(2)
		m.Capabilities = Capabilities(r.u32())
		r.skip(4)
		return m
	case TypeSetConfig:
		return &SetConfig{r.u16(), r.u16()}
	case TypePacketIn:
		return decodePacketIn(r)
	case TypeFlowRemoved:
		return decodeFlowRemoved(r)
	case TypePortStatus:
		m := &PortStatus{Reason: PortReason(r.u8())}
		r.skip(7)
		m.Desc = decodePort(r)
		return m
	case TypePacketOut:
		return decodePacketOut(r)
	case TypeFlowMod:
		return decodeFlowMod(r)
	case TypeMultipartRequest:
		more, body := decodeMultipart(r, true)
		return &MultipartRequest{more, body}
	case TypeMultipartReply:
		more, body := decodeMultipart(r, false)
		return &MultipartReply{more, body}
	case TypeBarrierRequest:
		return &BarrierRequest{}
	case TypeBarrierReply:
		return &BarrierReply{}
	case TypeRoleRequest, TypeRoleReply:
		role := Role(r.u32())
		r.skip(4)
		if t == TypeRoleReply {
			return &RoleReply{role, r.u64()}
		}
		return &RoleRequest{role, r.u64()}
	case TypeSetAsync:
		return &SetAsync{decodeAsync(r)}
	}
	return &Raw{t, r.copy(len(r.b))}
}

// reader takes fields off the front of b. After the first failure it is empty and yields zeros.
type reader struct {
	b     []byte
	bad   string
	code  ErrorCode
	depth int // of nested actions
}

func (r *reader) fail(c ErrorCode, format string, args ...any) {
	if r.bad == "" {
		r.bad, r.code = fmt.Sprintf(format, args...), c
	}
	r.b = nil
}

func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.fail(BadLen, "truncated: %d bytes where %d are needed", len(r.b), n)
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) skip(n int) { r.take(n) }

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return be.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return be.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return be.Uint64(b)
	}
	return 0
}

// copy is the next n bytes, nil if n is 0.
func (r *reader) copy(n int) []byte {
	b := r.take(n)
	if len(b) == 0 {
		return nil
	}
	return append([]byte(nil), b...)
}

func (r *reader) mac() (m MAC) {
	copy(m[:], r.take(6))
	return m
}

// name is a string in a field of n bytes, padded with zeros.
func (r *reader) name(n int) string {
	b := r.take(n)
	for i, c := range b {
		if c == 0 {
			b = b[:i]
			break
		}
	}
	return string(b)
}

// sub is a reader of the next n bytes; its failure is the outer's, by join.
func (r *reader) sub(n int) reader {
	return reader{b: r.take(n), depth: r.depth}
}

func (r *reader) join(in *reader) {
	if in.bad != "" {
		r.fail(in.code, "%s", in.bad)
	}
}

// element is a reader of the next list element, whose length (16 bits, at offset at, whole element) is at least min.
func (r *reader) element(at, min int) (in reader, ok bool) {
	if len(r.b) < at+2 {
		r.fail(BadLen, "truncated list: %d bytes left", len(r.b))
		return in, false
	}
	n := int(be.Uint16(r.b[at:]))
	if n < min || n > len(r.b) {
		r.fail(BadLen, "element of %d bytes where at least %d are needed and %d are left", n, min, len(r.b))
		return in, false
	}
	return r.sub(n), true
}

func zeros(b []byte, n int) []byte {
	for range n {
		b = append(b, 0)
	}
	return b
}

// pad8 fills up with zeros so that what begins at start has a length divisible by 8.
func pad8(b []byte, start int) []byte { return zeros(b, (8-(len(b)-start)%8)%8) }

func appendName(b []byte, s string, n int) ([]byte, error) {
	if len(s) >= n {
		return b, fmt.Errorf("name %q has %d bytes, at most %d fit", s, len(s), n-1)
	}
	return zeros(append(b, s...), n-len(s)), nil
}
