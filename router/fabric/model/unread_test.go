package model

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric/oracle"
)

// form is a frame in another form that a receiver may take for the same. plain is the one that policies are asked about.
type form struct{ frame, plain []byte }

// hidden are forms of a frame that some switch or host does not read to the end.
func hidden(frame []byte) map[string]form {
	tags := func(n int) []byte {
		return slices.Concat(frame[:12], bytes.Repeat([]byte{0x81, 0, 0, 0}, n), frame[12:])
	}
	two := tags(2)
	all := map[string]form{"three priority tags": {tags(3), frame}, "two priority tags": {two, two}}
	if binary.BigEndian.Uint16(frame[12:]) != flow.EtherTypeIPv6 {
		return all
	}
	with := func(headers ...[]byte) []byte {
		b := bytes.Clone(frame[:54])
		next := b[20]
		b[20] = headers[0][0]
		for i, h := range headers {
			n := next
			if i+1 < len(headers) {
				n = headers[i+1][0]
			}
			b = append(append(b, n), h[1:]...)
		}
		b = append(b, frame[54:]...)
		binary.BigEndian.PutUint16(b[18:], uint16(len(b)-54))
		return b
	}
	options := []byte{60, 0, 1, 4, 0, 0, 0, 0}
	all["seven extension headers"] = form{with(slices.Repeat([][]byte{options}, 7)...), frame}
	later := with([]byte{44, 0, 0, 8, 0, 0, 0, 1})
	all["a later fragment"] = form{later, later}
	return all
}

// A frame that policies would steer if it could be read meets the same functions when a switch or host on its way cannot read it to the
// end, or it does not arrive.
func TestNothingUnreadPassesAPolicyBy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, in, out := drawn(t)
		n := up(t, in, nil)
		if err := n.Install(in, out); err != nil {
			t.Fatal(err, describe(in, out))
		}
		for range 8 {
			from, frame := b.drawFrame(t)
			k, _ := flow.Decode(frame)
			if k.DstMAC.Multicast() || k.VLAN != flow.VLANNone {
				continue
			}
			for how, f := range hidden(frame) {
				want := oracle.Predict(in, from, f.plain, nil)
				r, err := n.Send(from, f.frame)
				if err != nil {
					t.Fatal(how, err, strings.Join(r.Trail, "\n"), describe(in, out))
				}
				got := seen(in, r, false)
				if len(got.Arrives) > 0 && !inOrderWithin(want.Meets, got.Meets) {
					t.Fatalf("%v from %s with %s: met %v, want %v\n%s\n%s", k, from, how, got.Meets, want.Meets, strings.Join(r.Trail, "\n"), describe(in, out))
				}
			}
		}
	})
}

func inOrderWithin(part, all []string) bool {
	for _, s := range all {
		if len(part) > 0 && part[0] == s {
			part = part[1:]
		}
	}
	return len(part) == 0
}
