package names

import "encoding/binary"

const (
	HeaderLength = 12
	opcodeQuery  = 0
	classINET    = 1
	MaxName      = 253                            // characters, without the dot at the end
	MaxQuestion  = HeaderLength + MaxName + 2 + 4 // bytes in which the first question ends, if it is one
)

// Question is the beginning of a message: enough to say whose the name is.
type Question struct {
	Response    bool
	Kind, Class uint16
	name        [MaxName]byte // lower case, dots between labels
	length      int
}

// Read the first question of a message. false: it is none that a name of ours can be in, so the message is nothing to us: not exactly one question,
// not a query or its answer, not of the class IN, a compressed or otherwise odd name. It allocates nothing, as every message to port 53 comes here.
func (q *Question) Read(msg []byte) bool {
	if len(msg) < HeaderLength {
		return false
	}
	flags := binary.BigEndian.Uint16(msg[2:])
	return flags>>11&15 == opcodeQuery && binary.BigEndian.Uint16(msg[4:]) == 1 && q.ReadFirst(msg) && q.length > 0 && q.Class == classINET
}

// ReadFirst reads the first question of a message of any operation. Its Text is empty if no name of ours can be so: the root, or a name with a dot in a label. false: the name is cut, too
// long or compressed, so another may read another one there.
func (q *Question) ReadFirst(msg []byte) bool {
	if len(msg) < HeaderLength {
		return false
	}
	q.Response, q.length = msg[2]&0x80 != 0, 0
	odd := false
	for at := HeaderLength; at < len(msg); {
		n := int(msg[at])
		at++
		if n == 0 {
			if at+4 > len(msg) {
				return false
			}
			if odd {
				q.length = 0
			}
			q.Kind, q.Class = binary.BigEndian.Uint16(msg[at:]), binary.BigEndian.Uint16(msg[at+2:])
			return true
		}
		if n > 63 || at+n > len(msg) || q.length+n+1 > MaxName {
			return false
		}
		if q.length > 0 {
			q.name[q.length] = '.'
			q.length++
		}
		for _, c := range msg[at : at+n] {
			odd = odd || c == '.' // in a label: not to be taken for the border of two
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			q.name[q.length] = c
			q.length++
		}
		at += n
	}
	return false
}

// Text of the name, in lower case; valid until the next Read.
func (q *Question) Text() []byte { return q.name[:q.length] }
