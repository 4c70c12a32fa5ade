package datagrams

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"golang.org/x/sys/unix"
)

// MinPayload and MaxPayload are bytes of a payload.
const (
	MinPayload = 28 // the small one of the study of processors
	MaxPayload = 65507
)

// A payload is run, number, stamp, a checksum of all else, and filling that follows from the number.
const (
	atRun    = 0
	atNumber = 4
	atStamp  = 12
	atSum    = 20
	atFill   = 24
)

// write a payload into b.
func write(b []byte, run uint32, number uint64, stamp time.Duration) {
	binary.LittleEndian.PutUint32(b[atRun:], run)
	binary.LittleEndian.PutUint64(b[atNumber:], number)
	binary.LittleEndian.PutUint64(b[atStamp:], uint64(stamp))
	for i := atFill; i < len(b); i++ {
		b[i] = byte(number) + byte(i)
	}
	binary.LittleEndian.PutUint32(b[atSum:], sum(b))
}

func sum(b []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(b[:atSum]), crc32.IEEETable, b[atFill:])
}

// read a payload; false: it is damaged.
func read(b []byte) (run uint32, number uint64, stamp time.Duration, ok bool) {
	if len(b) < MinPayload || binary.LittleEndian.Uint32(b[atSum:]) != sum(b) {
		return 0, 0, 0, false
	}
	return binary.LittleEndian.Uint32(b[atRun:]), binary.LittleEndian.Uint64(b[atNumber:]), time.Duration(binary.LittleEndian.Uint64(b[atStamp:])), true
}

// now on a clock that is one for all namespaces.
func now() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	return time.Duration(t.Nano()), nil
}
