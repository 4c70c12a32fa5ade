package tools

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/netns"
)

// Flows of netcat start together, and each is over when its last byte is there.
func TestNetcatSendsFlows(t *testing.T) {
	a, b := pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o := NetcatOptions{From: a, To: b, Address: netip.MustParseAddr("10.7.0.2"), Sizes: []int64{1, 200_000, 20_000_000}}
	for range 2 { // ports are free again
		flows, raw, err := RunNetcat(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range flows {
			if f.Bytes != o.Sizes[i] || f.Done <= 0 || f.Done > time.Minute {
				t.Errorf("flow of %d bytes: %+v", o.Sizes[i], f)
			}
		}
		if len(raw.Argv) == 0 || !strings.Contains(raw.Version, "netcat") {
			t.Errorf("%+v", raw)
		}
	}
}

func TestNetcatSaysWhatFailed(t *testing.T) {
	a, b := pair(t)
	to := netip.MustParseAddr("10.7.0.2")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, n := range []int{0, MaxNetcats + 1} {
		if _, _, err := RunNetcat(ctx, NetcatOptions{From: a, To: b, Address: to, Sizes: make([]int64, n)}); err == nil || !strings.Contains(err.Error(), "want 1 to") {
			t.Errorf("%d flows: %v", n, err)
		}
	}
	nobody := NetcatOptions{From: a, To: b, Address: netip.MustParseAddr("10.7.0.9"), Sizes: []int64{10}}
	short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	begun := time.Now()
	if _, _, err := RunNetcat(short, nobody); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an address that nobody has, cut short: %v", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %s to stop", took)
	}
	var taken net.Listener
	err := netns.Do(b, func() (err error) {
		taken, err = net.Listen("tcp4", "0.0.0.0:20000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, _, err := RunNetcat(ctx, NetcatOptions{From: a, To: b, Address: to, Sizes: []int64{10}}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a port that is taken: %v", err)
	}
}
