package testpmd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/xdp"
	"weir.dev/weir/netns"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "testpmd: these tests make network namespaces: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Frames of testpmd reach the lab's sink, which counts them as foreign; it ends when it is told to and leaves nothing.
func TestSendsToTheSink(t *testing.T) {
	space := filepath.Join(t.TempDir(), "ns")
	if err := netns.Create(space, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(space); err != nil {
			t.Error(err)
		}
	})
	pair, err := netns.Veth(space, space, netns.VethOptions{HostName: "a", PeerName: "b", Alias: "weir:test:a", Quiet: true})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Space: space, Link: "a", Port: 9, Size: 64, Main: 0, Send: 1, DstMAC: pair.Peer.MAC}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	sink, err := xdp.NewSink(xdp.Place{Space: space, Link: "b"}, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	})
	a := netip.IPv4Unspecified()
	if err := sink.Arm(traffic.Spec{Flows: []traffic.Flow{{Src: a, Dst: a, DstPort: 9}}, Sizes: []int{64}, Duration: time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	r, err := Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	for n := uint64(0); n < 1000; {
		if n, err = sink.Foreign(); err == nil {
			err = errors.Join(r.Ended(), ctx.Err())
		}
		if err != nil {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	out, stopped := r.Stop()
	if err := errors.Join(err, stopped); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(out, "TX-packets") {
		t.Errorf("it did not tell its counts:\n%s", out)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestTellsHowToGetIt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := Start(t.Context(), Options{Main: 0, Send: 1, Size: 64}); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "apt-get") {
		t.Error(err)
	}
}

func TestRefusesWhatCannotBe(t *testing.T) {
	for name, o := range map[string]Options{
		"one CPU":   {Main: 1, Send: 1, Size: 64},
		"too small": {Main: 0, Send: 1, Size: 60},
		"too large": {Main: 0, Send: 1, Size: 9000},
	} {
		if _, err := Start(t.Context(), o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
