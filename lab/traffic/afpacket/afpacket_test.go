package afpacket

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/xdp"
	"weir.dev/weir/netns"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "afpacket: these tests make network namespaces: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func newGenerator(t testing.TB) *Generator {
	t.Helper()
	space := filepath.Join(t.TempDir(), "ns")
	if err := netns.Create(space, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(space); err != nil {
			t.Error(err)
		}
	})
	if _, err := netns.Veth(space, space, netns.VethOptions{HostName: "a", PeerName: "b", Alias: "weir:test:a", Quiet: true}); err != nil {
		t.Fatal(err)
	}
	g, err := New(Options{Out: xdp.Place{Space: space, Link: "a"}, Sink: xdp.Place{Space: space, Link: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func spec(rate float64, d time.Duration, sizes ...int) traffic.Spec {
	f := func(i uint16, src, dst string) traffic.Flow {
		return traffic.Flow{SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: [6]byte{2, 0, 0, 0, 0, 2}, Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), SrcPort: i, DstPort: 9}
	}
	return traffic.Spec{Flows: []traffic.Flow{f(1, "10.9.0.1", "10.9.0.2"), f(2, "fd00::1", "fd00::2")}, Sizes: sizes, Rate: rate, Duration: d}
}

// run does one whole run. One in which the generator did not get to run, on a machine that is busy with other things, shows nothing: another is
// made.
func run(t testing.TB, g *Generator, s traffic.Spec) traffic.Count {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		if c := once(t, g, s); c.Sent > 0 || time.Now().After(end) {
			return c
		}
	}
}

func once(t testing.TB, g *Generator, s traffic.Spec) traffic.Count {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.Duration+30*time.Second)
	defer cancel()
	err := g.Arm(ctx, s)
	if err == nil {
		err = g.Start(ctx, time.Now().Add(5*time.Millisecond))
	}
	if err == nil {
		err = g.Drain(ctx, 50*time.Millisecond, 5*time.Second)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := g.Read()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	c.Latency.Buckets = nil
	return c
}

func TestFramesArriveAsTheyLeft(t *testing.T) {
	g := newGenerator(t)
	for _, sizes := range [][]int{{82}, {777, 1518}, {1518}} {
		s := spec(20_000, 200*time.Millisecond, sizes...)
		s.Strict = true
		if c := run(t, g, s); c.Sent == 0 || c.Unique != c.Sent || c.Intended != 4000 || c.Corrupted+c.Duplicated+c.Reordered != 0 {
			t.Errorf("%v: %+v", sizes, c)
		}
	}
}

func BenchmarkCeiling(b *testing.B) {
	g := newGenerator(b)
	for b.Loop() {
		c := run(b, g, spec(0, time.Second, 82))
		b.ReportMetric(c.Rate()/1e6, "Mpps")
		b.ReportMetric(float64(c.Lost)/float64(c.Sent), "lost")
	}
}
