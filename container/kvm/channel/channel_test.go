package channel

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func encode(t testing.TB, frames ...Frame) []byte {
	t.Helper()
	var b []byte
	for _, f := range frames {
		var err error
		if b, err = Append(b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func decode(t testing.TB, b []byte) (out []Frame) {
	t.Helper()
	r := NewReader(bytes.NewReader(b))
	for {
		f, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Payload = bytes.Clone(f.Payload)
		out = append(out, f)
	}
}

// all bytes, twice, so that the bytes that mean something are there.
func all() []byte {
	b := make([]byte, 512)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func TestFramesComeBack(t *testing.T) {
	want := []Frame{{Sync, 0, []byte("x")}, {Data, 0xc0dbdcdd, all()}, {EOF, 3, []byte{}}, {Stdout, 1, bytes.Repeat([]byte{end, esc}, MaxPayload/2)}}
	if diff := cmp.Diff(want, decode(t, encode(t, want...))); diff != "" {
		t.Error(diff)
	}
	if _, err := Append(nil, Frame{Payload: make([]byte, MaxPayload+1)}); !errors.Is(err, ErrTooLong) {
		t.Errorf("a long one: %v", err)
	}
}

// A reader that comes in the middle of a frame, or to one of which a part is lost, has all that follow.
func TestReadersFindTheNextFrame(t *testing.T) {
	first, second := encode(t, Frame{Data, 1, all()}), encode(t, Frame{Exited, 2, []byte("{}")})
	want := []Frame{{Exited, 2, []byte("{}")}}
	for cut := 2; cut < len(first)-1; cut++ { // the delimiters alone are no loss
		if got := decode(t, append(bytes.Clone(first[cut:]), second...)); !cmp.Equal(want, got) {
			t.Fatalf("from %d on: %v", cut, got)
		}
		if got := decode(t, append(bytes.Clone(first[:cut]), second...)); !cmp.Equal(want, got) {
			t.Fatalf("up to %d: %v", cut, got)
		}
	}
	if got := decode(t, append(bytes.Repeat([]byte("x"), 10*most), second...)); !cmp.Equal(want, got) {
		t.Errorf("after what is too long: %v", got)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(encode(f, Frame{Data, 1, all()}))
	f.Add([]byte{end, esc, end, esc, esc})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for {
			frame, err := r.Next()
			if err != nil {
				break
			}
			if len(frame.Payload) > MaxPayload {
				t.Fatalf("%d bytes", len(frame.Payload))
			}
		}
		if cap(r.buf) > 4*most {
			t.Fatalf("it holds %d bytes", cap(r.buf))
		}
	})
}
