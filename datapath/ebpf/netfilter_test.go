package ebpf

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
)

// Who looks at bridged frames may be a question without an answer, from the start on: then all cross the bridge, and that is said, once.
func TestWhatNetfilterDoesNotTellIsSaidOnce(t *testing.T) {
	var log bytes.Buffer
	h := newHost(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	h.Commit() // nobody looks around by himself
	s := h.Switch.(*Switch)
	heed := func(by string, err error) {
		t.Helper()
		s.gate.Lock()
		defer s.gate.Unlock()
		if err := s.onlookers.heed(by, err); err != nil {
			t.Fatal(err)
		}
		if want := by == "" && err == nil; s.control.past != want {
			t.Errorf("seen by %q, %v: frames may pass the bridge by: %v, want %v", by, err, s.control.past, want)
		}
	}
	heed("somebody", nil)
	for range 3 {
		heed("", errors.New("no answer"))
	}
	heed("", nil)
	heed("", errors.New("no answer"))
	h.Close()
	if n := strings.Count(log.String(), "no answer"); n != 2 {
		t.Errorf("said %d times, want 2: %s", n, log.String())
	}
}

// What `weir check` says of bridge-nf-call-*: without any rule the kernel then cuts padding off bridged packets and drops those with a wrong header.
func TestWhatNetfilterTakesFromBridgedFrames(t *testing.T) {
	h := newHost(t, Options{})
	h.Commit() // ordinary switching
	whole := flow.MAC{255, 255, 255, 255, 255, 255}
	frame, _, _ := flow.Witness(flow.Match{SrcMAC: h.alice.MAC, SrcMACMask: whole, DstMAC: h.bob.MAC, DstMACMask: whole, EtherType: flow.EtherTypeIPv4, Proto: flow.ProtoUDP})
	wrong := slices.Clone(frame)
	wrong[24]++ // the checksum
	n := 0
	arrives := func(frame []byte) bool {
		t.Helper()
		n += 2
		mark, last := fmt.Appendf(nil, "weir-frame-%08d.", n), fmt.Appendf(nil, "weir-frame-%08d.", n+1)
		h.alice.Send(t, append(slices.Clone(frame), mark...))
		h.alice.Send(t, append(slices.Concat(h.bob.MAC[:], h.alice.MAC[:], []byte{0x12, 0x34}), last...))
		suite.Until(t, "the last frame", func() bool { return len(h.bob.Socket.Frames(last)) == 1 })
		return len(h.bob.Socket.Frames(mark)) == 1
	}
	for _, shown := range []bool{false, true} {
		h.shown(t, shown)
		if padded := arrives(frame); padded == shown {
			t.Errorf("bridge-nf-call-iptables %t: padding arrives: %t", shown, padded)
		}
		if odd := arrives(wrong); odd == shown {
			t.Errorf("bridge-nf-call-iptables %t: a wrong checksum arrives: %t", shown, odd)
		}
	}
}
