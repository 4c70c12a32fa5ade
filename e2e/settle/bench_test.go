package settle

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/instance"
	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/xdp"
	"weir.dev/weir/netns"
)

// BenchmarkFive measures TCP and packets of 64 bytes between two stations: without a chain, through five functions that look at every packet, and
// through the same five when they have settled the flow.
func BenchmarkFive(b *testing.B) {
	for _, mode := range []string{"none", "judged", "settled"} {
		b.Run(mode, func(b *testing.B) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			r := weir(ctx, b, mode)
			g := generator(b, r)
			var bits, rate float64
			for b.Loop() {
				v, err := r.Iperf(ctx, r.Alice(), r.Bob(), rig.BobAddr, 5201, 3)
				if err != nil {
					b.Fatal(err)
				}
				bits += v
				flood(ctx, b, r, g, 1000, time.Second) // settles it
				rate += flood(ctx, b, r, g, 0, 3*time.Second)
			}
			b.ReportMetric(bits/float64(b.N)/1e9, "Gbit/s")
			b.ReportMetric(rate/float64(b.N)/1e6, "Mpps")
			var c api.Counters
			if err := r.Get(ctx, &c, "ports"); err != nil {
				b.Fatal(err)
			}
			for _, p := range c.Ports {
				if p.Name == "function/f5/in" && (p.Settled.Packets > 0) != (mode == "settled") {
					b.Errorf("%s: %+v", mode, p)
				}
			}
		})
	}
}

func weir(ctx context.Context, b *testing.B, mode string) *rig.Rig {
	b.Helper()
	r, err := rig.New(rig.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := r.Close(); err != nil {
			b.Error(err)
		}
	})
	build(ctx, b, r)
	for _, s := range []string{r.Alice(), r.Bob()} {
		if err := r.Namespace(s); err != nil {
			b.Fatal(err)
		}
	}
	if err := r.Up(ctx); err != nil {
		b.Fatal(err)
	}
	text := r.Endpoints()
	if mode != "none" {
		text = strings.ReplaceAll(document(r, nil), "match: [tcp, icmp]", "match: [tcp, udp]")
		text = strings.ReplaceAll(text, "block: 0", fmt.Sprintf("settle: %t", mode == "settled"))
	}
	if _, err := r.Apply(ctx, text); err != nil {
		b.Fatal(err)
	}
	return r
}

// generator of frames that enter the switch as if alice had sent them.
func generator(b *testing.B, r *rig.Rig) *xdp.Generator {
	b.Helper()
	i, err := instance.New(r.Name, r.Root)
	if err != nil {
		b.Fatal(err)
	}
	g, err := xdp.New(xdp.Options{In: xdp.Place{Space: r.Netns, Link: i.Link("endpoint/alice")}, Sink: xdp.Place{Space: r.Bob(), Link: "eth0"}, CPU: -1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := g.Close(); err != nil {
			b.Error(err)
		}
	})
	return g
}

// flood returns how many frames arrived in a second.
func flood(ctx context.Context, b *testing.B, r *rig.Rig, g *xdp.Generator, rate float64, d time.Duration) float64 {
	b.Helper()
	spec := traffic.Spec{Sizes: []int{64}, Rate: rate, Duration: d, Flows: []traffic.Flow{{SrcMAC: mac(b, r.Alice()), DstMAC: mac(b, r.Bob()),
		Src: netip.MustParseAddr(rig.AliceAddr), Dst: netip.MustParseAddr(rig.BobAddr), SrcPort: 4000, DstPort: 9}}}
	err := g.Arm(ctx, spec)
	if err == nil {
		err = g.Start(ctx, time.Now().Add(5*time.Millisecond))
	}
	if err == nil {
		err = g.Drain(ctx, 100*time.Millisecond, 10*time.Second)
	}
	if err != nil {
		b.Fatal(err)
	}
	c, err := g.Read()
	if err != nil {
		b.Fatal(err)
	}
	return c.Goodput()
}

// mac of a station's interface.
func mac(b *testing.B, space string) (m [6]byte) {
	b.Helper()
	err := netns.Do(space, func() error {
		i, err := net.InterfaceByName("eth0")
		if err == nil {
			copy(m[:], i.HardwareAddr)
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return m
}
