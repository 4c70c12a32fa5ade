package store

import (
	"fmt"
	"hash/crc32"
)

// A stored value is the JSON text, then trailerLen bytes of white space: trailerMark, and the CRC-32C of key and text, two bits a byte. To JSON this
// is nothing, so managers of former versions, which share a store during an upgrade, read it, and so does a version that came back. They write
// values without a trailer; those are read too. JSON text of ours never ends in white space, which tells the two apart although one bit is wrong.
const (
	trailerMark = "\n\t\r\n"
	trailerLen  = len(trailerMark) + 16
	digits      = " \t\n\r"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(key string, text []byte) uint32 {
	sum := crc32.Update(0, castagnoli, []byte(key))
	sum = crc32.Update(sum, castagnoli, []byte{0})
	return crc32.Update(sum, castagnoli, text)
}

// seal adds the checksum to a value.
func seal(key string, text []byte) string {
	out := make([]byte, 0, len(text)+trailerLen)
	out = append(append(out, text...), trailerMark...)
	sum := checksum(key, text)
	for shift := 30; shift >= 0; shift -= 2 {
		out = append(out, digits[sum>>shift&3])
	}
	return string(out)
}

// unseal checks a value that was read, and takes its checksum off.
func unseal(key string, stored []byte) ([]byte, error) {
	n := len(stored)
	if n == 0 {
		return nil, damaged(key)
	}
	if !isSpace(stored[n-1]) && (n < 2 || !isSpace(stored[n-2])) {
		return stored, nil // of a former version
	}
	text := stored[:max(n-trailerLen, 0)]
	if n < trailerLen || seal(key, text)[len(text):] != string(stored[len(text):]) {
		return nil, damaged(key)
	}
	return text, nil
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\n' || b == '\r' }

func damaged(key string) error {
	return fmt.Errorf("the value of %s does not match its checksum, and is not used", key)
}
