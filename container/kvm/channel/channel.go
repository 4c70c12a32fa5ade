// Package channel is what a virtual machine and the driver that made it say to each other, over a serial port of the machine.
//
// Frames are delimited as SLIP does (RFC 1055) and end with a checksum, so that a reader that comes in the middle, as a driver does that was started
// anew, finds the next one. Neither side believes the other: a frame is at most MaxPayload long, and whoever sends data of a stream waits for the
// reader's credit. What does not parse is passed over.
package channel

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
)

// Kind of a frame.
type Kind uint8

// Frames of the driver.
const (
	Sync     Kind = 1 + iota // payload: bytes that Synced repeats
	Start                    // the program
	Signal                   // to the program: one byte
	Exec                     // begins a stream: Process as JSON
	Resize                   // of the stream's terminal: columns, rows, 16 bits each, big endian
	CopyFile                 // begins a stream: Copy as JSON; a regular file's text follows as Data, then EOF
)

// Frames of the machine.
const (
	Synced  Kind = 64 + iota // payload: Sync's, then State as JSON
	Started                  // the program; payload: why not, "" it has
	Exited                   // the stream's process: Exit as JSON
	Failed                   // the stream's process could not be started; payload: why
	Open                     // begins a stream: a connection to the socket of this number, one byte
	Stdout
	Stderr
	Copied // the stream's file; payload: why not, "" it is
)

// Frames of both, within a stream.
const (
	Data   Kind = 128 + iota // to a process's standard input; of a connection both ways
	EOF                      // no more Data
	Credit                   // so many bytes more may be sent: 32 bits, big endian
	Close                    // it is over; a process of Exec is killed
)

// Bounds.
const (
	MaxPayload = 16 << 10 // of a frame
	Window     = 64 << 10 // that a sender has at the beginning of a stream, in each direction
	MaxStreams = 32       // at a time, of each side
)

// Streams that the driver begins have even numbers, those of the machine odd ones. 0 is the machine itself.

// State of a machine.
type State struct {
	Phase string // Waiting, Running
	Error string // why it cannot start the program
	// Copies: it takes CopyFile. A machine that an earlier Weir has made does not.
	Copies bool `json:",omitempty"`
}

// Phases.
const (
	Waiting = "waiting"
	Running = "running"
)

// Process to run. Exec has no Dir and no rights of its own: they are those of the machine's program.
type Process struct {
	Args []string
	Env  []string `json:",omitempty"`
	TTY  bool     `json:",omitempty"`
	Cols uint16   `json:",omitempty"`
	Rows uint16   `json:",omitempty"`
}

// Copy is a file, a directory or a symbolic link in a mount that Follows, as it is outside now.
type Copy struct {
	Path     string // the number of the mount, then the path below it
	Mode     fs.FileMode
	UID, GID uint32
	Target   string `json:",omitempty"` // of a symbolic link
	Gone     bool   `json:",omitempty"` // there is none any more
}

// Exit of a process.
type Exit struct {
	Code   int // 128+n: Signal n
	Signal int
	OOM    bool   `json:",omitempty"`
	Error  string `json:",omitempty"` // of the machine's own, such as a root file system that it cannot mount
}

// Frame is one message.
type Frame struct {
	Kind    Kind
	Stream  uint32
	Payload []byte
}

const (
	end, esc, escEnd, escEsc = 0xc0, 0xdb, 0xdc, 0xdd

	header = 5 // kind, stream
	most   = header + MaxPayload + crc32.Size
)

// ErrTooLong is for a payload above MaxPayload.
var ErrTooLong = errors.New("frame is too long")

// Append encodes a frame.
func Append(b []byte, f Frame) ([]byte, error) {
	if len(f.Payload) > MaxPayload {
		return b, ErrTooLong
	}
	var head [header]byte
	head[0] = byte(f.Kind)
	binary.BigEndian.PutUint32(head[1:], f.Stream)
	sum := crc32.Update(crc32.ChecksumIEEE(head[:]), crc32.IEEETable, f.Payload)
	b = append(b, end) // whatever came before is over
	b = escape(b, head[:])
	b = escape(b, f.Payload)
	b = escape(b, binary.BigEndian.AppendUint32(nil, sum))
	return append(b, end), nil
}

func escape(b, raw []byte) []byte {
	for _, c := range raw {
		switch c {
		case end:
			b = append(b, esc, escEnd)
		case esc:
			b = append(b, esc, escEsc)
		default:
			b = append(b, c)
		}
	}
	return b
}

// Reader finds frames.
type Reader struct {
	r   *bufio.Reader
	buf []byte
}

// NewReader reads frames from r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, 8<<10), buf: make([]byte, 0, 512)}
}

// Next is the next frame that is whole; its payload is valid until the next call. An error is the underlying reader's.
func (r *Reader) Next() (Frame, error) {
	for {
		raw, err := r.between()
		if err != nil {
			return Frame{}, err
		}
		if f, ok := parse(raw); ok {
			return f, nil
		}
	}
}

// between is what stands up to the next delimiter, unescaped; nothing if it is longer than any frame.
func (r *Reader) between() ([]byte, error) {
	r.buf = r.buf[:0]
	escaped, long := false, false
	for {
		c, err := r.r.ReadByte()
		if err != nil {
			return nil, err
		}
		switch {
		case c == end:
			if long {
				return nil, nil
			}
			return r.buf, nil
		case escaped && c == escEnd:
			c = end
		case escaped && c == escEsc:
			c = esc
		case c == esc:
			escaped = true
			continue
		}
		escaped = false
		if long = long || len(r.buf) == most; !long {
			r.buf = append(r.buf, c)
		}
	}
}

func parse(raw []byte) (Frame, bool) {
	n := len(raw) - crc32.Size
	if n < header || binary.BigEndian.Uint32(raw[n:]) != crc32.ChecksumIEEE(raw[:n]) {
		return Frame{}, false
	}
	return Frame{Kind: Kind(raw[0]), Stream: binary.BigEndian.Uint32(raw[1:]), Payload: raw[header:n]}, true
}
