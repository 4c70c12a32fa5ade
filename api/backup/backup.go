// Package backup is the file of `weir backup`: all that a store holds at one revision, and a checksum over everything.
//
// The file is JSON lines: a header, a line for each value, and a last line with the SHA-256 of all before it.
package backup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
)

// Format is that of the files that Write makes.
const Format = "weir-backup-1"

// Bounds of what Read takes: the store's own.
const (
	maxValues = 2_000_000
	maxBytes  = 2 << 30
	maxLine   = 128 << 20

	maxRevision = 1 << 62 // there is room above for those that follow a restore
)

// ErrDamaged is of a file that was changed or cut short.
var ErrDamaged = errors.New("the backup is damaged")

// Header says what a backup holds.
type Header struct {
	Format   string    `json:"format"`
	Version  string    `json:"version"` // of the Weir that made it
	Made     time.Time `json:"made"`
	Revision int64     `json:"revision"` // at which the store was so
	Values   int       `json:"values"`
	// SecretsKey is the content of ROOT/secrets.key; "": there is none, or the key is that of --secret-key, which is not in the backup.
	SecretsKey string `json:"secrets_key,omitempty"`
}

// Value is one value of the store.
type Value struct {
	Key  string `json:"key"`
	Text []byte `json:"text"`
}

type end struct {
	SHA256 string `json:"sha256"`
}

// Write writes a backup. The header's Format and Values are filled in.
func Write(w io.Writer, h Header, values []Value) error {
	h.Format, h.Values = Format, len(values)
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<16)
	e := json.NewEncoder(out)
	if err := e.Encode(h); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	for _, v := range values {
		if err := e.Encode(v); err != nil {
			return fmt.Errorf("write the backup: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	if err := json.NewEncoder(w).Encode(end{hex.EncodeToString(sum.Sum(nil))}); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}

// reader reads lines, and what they are hashed to.
type reader struct {
	in    *bufio.Reader
	sum   hash.Hash
	bytes int
}

// Read reads a whole backup and checks it: ErrDamaged, or an error that says what the file is.
func Read(r io.Reader) (Header, []Value, error) {
	in := &reader{in: bufio.NewReaderSize(r, 1<<16), sum: sha256.New()}
	var h Header
	line, err := in.line()
	if err != nil || json.Unmarshal(line, &h) != nil || h.Format == "" {
		return h, nil, errors.New("this is no backup of Weir's, or its first line is damaged")
	}
	if h.Format != Format {
		return h, nil, fmt.Errorf("the backup has the format %.40q, and this version reads %s: restore it with Weir %.40q", h.Format, Format, h.Version)
	}
	if h.Values < 0 || h.Values > maxValues {
		return h, nil, fmt.Errorf("%w: %d values", ErrDamaged, h.Values)
	}
	if h.Revision < 0 || h.Revision > maxRevision {
		return h, nil, fmt.Errorf("%w: revision %d", ErrDamaged, h.Revision)
	}
	in.sum.Write(line)
	var values []Value
	for n := range h.Values {
		line, err := in.line()
		var v Value
		if err == nil {
			err = json.Unmarshal(line, &v)
		}
		if err != nil {
			return h, nil, fmt.Errorf("%w: value %d of %d: %w", ErrDamaged, n+1, h.Values, err)
		}
		in.sum.Write(line)
		values = append(values, v)
	}
	line, err = in.line()
	var last end
	if err == nil {
		err = json.Unmarshal(line, &last)
	}
	if err != nil || last.SHA256 != hex.EncodeToString(in.sum.Sum(nil)) {
		return h, nil, fmt.Errorf("%w: its checksum is wrong, or missing since it was cut short", ErrDamaged)
	}
	if _, err := in.in.ReadByte(); !errors.Is(err, io.EOF) {
		return h, nil, fmt.Errorf("%w: something follows its last line", ErrDamaged)
	}
	return h, values, nil
}

// line reads a line with its end.
func (r *reader) line() ([]byte, error) {
	var out []byte
	for {
		part, err := r.in.ReadSlice('\n')
		r.bytes += len(part)
		if len(out)+len(part) > maxLine || r.bytes > maxBytes {
			return nil, errors.New("too large")
		}
		out = append(out, bytes.Clone(part)...)
		switch {
		case err == nil:
			return out, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}
