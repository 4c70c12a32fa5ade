package main

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

const (
	headerLength = 12
	maxName      = 253                            // characters, without the dot at the end
	maxQuestion  = headerLength + maxName + 2 + 4 // bytes in which the first question ends, if it is one
)

// question is the beginning of a message: enough to say whose the name is.
type question struct {
	response bool
	kind     uint16
	name     [maxName]byte // lower case, dots between labels
	length   int
}

// read the first question of a message. false: it is none that a name of ours can be in, so the message is nothing to us: not exactly one question,
// not a query or its answer, not of the class IN, a compressed or otherwise odd name. It allocates nothing, as every message to port 53 comes here.
func (q *question) read(msg []byte) bool {
	if len(msg) < headerLength {
		return false
	}
	flags := binary.BigEndian.Uint16(msg[2:])
	if flags>>11&15 != dns.OpcodeQuery || binary.BigEndian.Uint16(msg[4:]) != 1 {
		return false
	}
	q.response, q.length = flags&0x8000 != 0, 0
	for at := headerLength; at < len(msg); {
		n := int(msg[at])
		at++
		if n == 0 {
			if q.length == 0 || at+4 > len(msg) || binary.BigEndian.Uint16(msg[at+2:]) != dns.ClassINET {
				return false
			}
			q.kind = binary.BigEndian.Uint16(msg[at:])
			return true
		}
		if n > 63 || at+n > len(msg) || q.length+n+1 > maxName {
			return false
		}
		if q.length > 0 {
			q.name[q.length] = '.'
			q.length++
		}
		for _, c := range msg[at : at+n] {
			if c == '.' { // in a label: no name of ours, and not to be taken for the border of two
				return false
			}
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

func (q *question) text() []byte { return q.name[:q.length] }
