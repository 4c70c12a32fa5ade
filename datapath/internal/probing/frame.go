// Package probing makes the frames by which a switch finds out whether a function hands frames on, sends them, and waits for them.
//
// A probe frame has two secrets. Its addresses are the function's own (datapath.Function.Probe): only the switch and the function know
// them, so a switch and a function can tell a probe from any frame that a station makes. Its nonce is new in each probe and counts once:
// a frame that was seen earlier proves nothing.
package probing

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
)

const (
	EtherType = 0x88b5      // IEEE 802 local experimental EtherType 1
	Wait      = time.Second // of a probe without a deadline in its ctx
	length    = 60          // the least that Ethernet allows
)

// Nonce of a probe, never zero.
type Nonce [16]byte

// Frame makes a probe.
func Frame(a datapath.ProbeAddresses) ([]byte, Nonce, error) {
	var n Nonce
	if _, err := rand.Read(n[:]); err != nil {
		return nil, n, fmt.Errorf("draw a nonce: %w", err)
	}
	n[0] |= 1
	b := make([]byte, length)
	copy(b[copy(b, Head(a)):], n[:])
	return b, n, nil
}

// Head is how all probes of a function begin.
func Head(a datapath.ProbeAddresses) []byte {
	return binary.BigEndian.AppendUint16(append(a.Dst[:], a.Src[:]...), EtherType)
}

// Draw gives a function addresses that nobody knows, if it has none yet: known is the same function as the switch has it, nil if it has
// not.
func Draw(f, known *datapath.Function) error {
	if f.Probe != (datapath.ProbeAddresses{}) {
		return nil
	}
	if known != nil && known.Probe != f.Probe {
		f.Probe = known.Probe
		return nil
	}
	for _, m := range []*[6]byte{(*[6]byte)(&f.Probe.Dst), (*[6]byte)(&f.Probe.Src)} {
		if _, err := rand.Read(m[:]); err != nil {
			return fmt.Errorf("draw addresses for probes: %w", err)
		}
		m[0] = 6 // one station's, administered locally
	}
	return nil
}

// A link whose queue is full gets a frame a moment later: otherwise a flood would make a function look dead.
const (
	sendTries = 5
	sendAgain = 200 * time.Microsecond
)

// Send puts a frame out of a link of the namespace in which the packet socket was opened.
func Send(socket *os.File, frame []byte, index int) error {
	c, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		var sent error
		if err := c.Control(func(fd uintptr) { sent = unix.Sendto(int(fd), frame, 0, &unix.SockaddrLinklayer{Ifindex: index}) }); err != nil {
			return err
		}
		if try == sendTries || !errors.Is(sent, unix.ENOBUFS) && !errors.Is(sent, unix.EAGAIN) {
			return sent
		}
		time.Sleep(sendAgain)
	}
}
