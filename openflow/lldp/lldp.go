// Package lldp owns the link discovery frames that Weir's router and agents send: LLDP (IEEE 802.1AB-2016) with an organizationally
// specific TLV that carries a sequence number and a signature, so that no station can forge a link. It does no I/O, and it is no LLDP
// agent: frames of others are told apart and left alone.
//
// A frame has the mandatory TLVs in their order: chassis id (subtype 7, locally assigned) "of:" and 16 hexadecimal digits of a datapath id,
// or "host:" and a host's name; port id (subtype 7) a port's number in decimal or an interface's name; time to live; then the
// organizationally specific TLV (type 127) with the locally administered OUI 06-57-45, subtype 1, and 40 octets: the sequence number
// (8, big endian) and HMAC-SHA256 (32) over the text "weir lldp 1", the sequence number and the three TLVs as sent; then the end.
package lldp

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// EtherType of LLDP.
const EtherType = 0x88cc

// Destination is the nearest bridge's group address (IEEE 802.1AB-2016, table 7-1): bridges do not forward it.
var Destination = [6]byte{0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e}

// MinKey is how long a key is at least, in octets.
const MinKey = 16

// Errors that callers tell apart.
var (
	ErrForeign   = errors.New("not one of Weir's LLDP frames") // of another system: none of our business
	ErrMalformed = errors.New("malformed LLDP frame")
	ErrSignature = errors.New("the LLDP frame's signature is wrong") // forged, or signed with another Weir's key
	ErrReplay    = errors.New("the LLDP frame has been seen before")
)

const (
	maxID     = 255 // octets of a chassis or port id
	subtype   = 7   // locally assigned, of chassis and port ids
	tlvEnd    = 0
	tlvChass  = 1
	tlvPort   = 2
	tlvTTL    = 3
	tlvOrg    = 127
	orgLen    = 4 + 8 + sha256.Size
	etherLen  = 14
	signature = "weir lldp 1"
)

var oui = [4]byte{0x06, 0x57, 0x45, 1} // and the subtype

// Frame is what a frame says.
type Frame struct {
	Source   [6]byte // Ethernet address; not signed
	Chassis  string  // see SwitchChassis and HostChassis; 1 to 255 octets
	Port     string  // "3", "eth1"; 1 to 255 octets
	TTL      uint16  // seconds
	Sequence uint64  // grows with each frame of a port; see Sequence
}

// SwitchChassis is the chassis id of an OpenFlow switch.
func SwitchChassis(datapath uint64) string { return fmt.Sprintf("of:%016x", datapath) }

// HostChassis is the chassis id of a host's switch.
func HostChassis(name string) string { return "host:" + name }

// ParseChassis tells which switch a chassis id means: a host, if the name is not empty, else an OpenFlow switch.
func ParseChassis(s string) (datapath uint64, host string, err error) {
	if name, ok := strings.CutPrefix(s, "host:"); ok && name != "" {
		return 0, name, nil
	}
	if digits, ok := strings.CutPrefix(s, "of:"); ok && len(digits) == 16 {
		if id, err := strconv.ParseUint(digits, 16, 64); err == nil && SwitchChassis(id) == s {
			return id, "", nil
		}
	}
	return 0, "", fmt.Errorf("chassis id %q: want of: and 16 hexadecimal digits, or host: and a name", s)
}

// Encode gives the whole Ethernet frame, signed.
func Encode(f Frame, key []byte) ([]byte, error) {
	if len(key) < MinKey {
		return nil, fmt.Errorf("LLDP key of %d octets: want at least %d", len(key), MinKey)
	}
	for what, id := range map[string]string{"chassis": f.Chassis, "port": f.Port} {
		if id == "" || len(id) > maxID {
			return nil, fmt.Errorf("LLDP %s id of %d octets: want 1 to %d", what, len(id), maxID)
		}
	}
	b := make([]byte, 0, etherLen+2*(3+maxID)+4+2+orgLen+2)
	b = append(b, Destination[:]...)
	b = append(b, f.Source[:]...)
	b = binary.BigEndian.AppendUint16(b, EtherType)
	b = appendID(b, tlvChass, f.Chassis)
	b = appendID(b, tlvPort, f.Port)
	b = binary.BigEndian.AppendUint16(b, tlvTTL<<9|2)
	b = binary.BigEndian.AppendUint16(b, f.TTL)
	sum := sign(key, f.Sequence, b[etherLen:])
	b = binary.BigEndian.AppendUint16(b, tlvOrg<<9|orgLen)
	b = append(b, oui[:]...)
	b = binary.BigEndian.AppendUint64(b, f.Sequence)
	b = append(b, sum...)
	return binary.BigEndian.AppendUint16(b, tlvEnd), nil
}

func appendID(b []byte, kind uint16, id string) []byte {
	b = binary.BigEndian.AppendUint16(b, kind<<9|uint16(1+len(id)))
	b = append(b, subtype)
	return append(b, id...)
}

func sign(key []byte, sequence uint64, tlvs []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(signature))
	h.Write(binary.BigEndian.AppendUint64(nil, sequence))
	h.Write(tlvs)
	return h.Sum(nil)
}

// Is tells whether an Ethernet frame without VLAN tags is LLDP.
func Is(frame []byte) bool {
	return len(frame) >= etherLen && bytes.Equal(frame[:6], Destination[:]) && binary.BigEndian.Uint16(frame[12:]) == EtherType
}

// Decode reads a frame without checking who sent it. What follows the end, as padding does, is ignored.
func Decode(frame []byte) (Frame, error) {
	f, _, _, err := decode(frame)
	return f, err
}

// Verify reads a frame and checks that it was signed with the key. Whether it is new, Window tells.
func Verify(frame, key []byte) (Frame, error) {
	f, signed, sum, err := decode(frame)
	if err != nil {
		return Frame{}, err
	}
	if len(key) < MinKey || !hmac.Equal(sum, sign(key, f.Sequence, signed)) {
		return Frame{}, fmt.Errorf("from chassis %q port %q: %w", f.Chassis, f.Port, ErrSignature)
	}
	return f, nil
}

func decode(frame []byte) (f Frame, signed, sum []byte, err error) {
	if !Is(frame) {
		return f, nil, nil, ErrForeign
	}
	copy(f.Source[:], frame[6:12])
	pdu := frame[etherLen:]
	rest := pdu
	var v []byte
	if f.Chassis, rest, err = cutID(rest, tlvChass); err != nil {
		return Frame{}, nil, nil, fmt.Errorf("chassis id: %w", err)
	}
	if f.Port, rest, err = cutID(rest, tlvPort); err != nil {
		return Frame{}, nil, nil, fmt.Errorf("port id: %w", err)
	}
	if v, rest, err = cut(rest, tlvTTL); err != nil {
		return Frame{}, nil, nil, fmt.Errorf("time to live: %w", err)
	}
	if len(v) != 2 {
		return Frame{}, nil, nil, ErrForeign
	}
	f.TTL = binary.BigEndian.Uint16(v)
	signed = pdu[:len(pdu)-len(rest)]
	if v, rest, err = cut(rest, tlvOrg); err != nil {
		return Frame{}, nil, nil, fmt.Errorf("signature: %w", err)
	}
	if len(v) < 4 || !bytes.Equal(v[:4], oui[:]) {
		return Frame{}, nil, nil, ErrForeign
	}
	if len(v) != orgLen {
		return Frame{}, nil, nil, fmt.Errorf("signature of %d octets, want %d: %w", len(v), orgLen, ErrMalformed)
	}
	f.Sequence = binary.BigEndian.Uint64(v[4:])
	if v, _, err := cut(rest, tlvEnd); err != nil || len(v) != 0 {
		return Frame{}, nil, nil, fmt.Errorf("no end: %w", ErrMalformed)
	}
	return f, signed, v[12:], nil
}

// cut takes the first TLV off. One of another type means a frame of another system.
func cut(b []byte, kind uint16) (value, rest []byte, err error) {
	if len(b) < 2 {
		return nil, nil, ErrMalformed
	}
	head := binary.BigEndian.Uint16(b)
	n := int(head & 0x1ff)
	if len(b) < 2+n {
		return nil, nil, ErrMalformed
	}
	if head>>9 != kind {
		return nil, nil, ErrForeign
	}
	return b[2 : 2+n], b[2+n:], nil
}

func cutID(b []byte, kind uint16) (id string, rest []byte, err error) {
	v, rest, err := cut(b, kind)
	switch {
	case err != nil:
		return "", nil, err
	case len(v) < 2 || len(v) > 1+maxID:
		return "", nil, ErrMalformed
	case v[0] != subtype:
		return "", nil, ErrForeign
	}
	return string(v[1:]), rest, nil
}
