package settle

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
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
			r := weir(b)
			build(ctx, b, r)
			text := r.Endpoints()
			if mode != "none" {
				text = strings.ReplaceAll(document(r, nil), "match: [tcp, icmp]", "match: [tcp, udp]")
				text = strings.ReplaceAll(text, "block: 0", fmt.Sprintf("settle: %t", mode == "settled"))
			}
			up(ctx, b, r, text)
			measure(ctx, b, r)
			if share := settledShare(ctx, b, r, "f5"); mode != "none" && (share > 0) != (mode == "settled") {
				b.Errorf("%s: %g of the packets passed f5 by", mode, share)
			}
		})
	}
}

// works are functions of the catalogue as they are used, each with work to do, and none that the stream or the packets forbid.
var works = []struct{ name, spec string }{
	{"firewall", `{image: firewall, config: {allow: [tcp, udp, icmp]}}`},
	{"http-filter", `{image: http-filter, config: {rules: [{name: leaks, words: [topsecret]}]}}`},
	{"ids", `{image: ids, config: {rules: "drop tcp any any -> any any (msg:\"bad\"; content:\"evil-word\"; sid:1;)\nalert udp any any -> any 9 (msg:\"not inspected\"; noalert; bypass; sid:2;)"}}`},
	{"dns-lb", `{image: dns-lb, config: {names: {app.example.com: {targets: [{address: 10.9.0.2}]}}}}`},
	{"nat", `{image: nat, config: {pool: [10.9.0.100], clients: [10.9.0.1/32]}}`},
}

// BenchmarkWorking measures the same without a chain, through each of works, and through all of them in a chain. It reports, for each function, the share
// of packets that passed it by.
func BenchmarkWorking(b *testing.B) {
	var all []string
	for _, f := range works {
		all = append(all, f.name)
	}
	chains := [][]string{nil}
	for _, name := range all {
		chains = append(chains, []string{name})
	}
	for _, names := range append(chains, all) {
		mode := map[int]string{0: "none", len(all): "all"}[len(names)]
		if mode == "" {
			mode = names[0]
		}
		b.Run(mode, func(b *testing.B) {
			ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
			defer cancel()
			r := weir(b)
			text := r.Endpoints()
			if len(names) > 0 {
				text += "functions:\n"
				for _, f := range works {
					if slices.Contains(names, f.name) {
						text += "  " + f.name + ": " + f.spec + "\n"
					}
				}
				text += "chains:\n  c: " + strings.Join(names, " | ") + "\npolicies:\n  p: {from: alice, to: bob, match: [all], chain: c}\n"
			}
			up(ctx, b, r, text)
			measure(ctx, b, r)
			for _, name := range names {
				b.ReportMetric(settledShare(ctx, b, r, name), name+"-settled")
			}
		})
	}
}

// measure a stream, whose first three seconds do not count, so that it is settled by then, and packets.
func measure(ctx context.Context, b *testing.B, r *rig.Rig) {
	b.Helper()
	g := generator(b, r)
	var bits, rate float64
	for b.Loop() {
		v, err := r.Iperf(ctx, r.Alice(), r.Bob(), rig.BobAddr, 5201, 3, "--omit", "3")
		if err != nil {
			b.Fatal(err)
		}
		bits += v
		flood(ctx, b, r, g, 1000, time.Second) // settles it
		rate += flood(ctx, b, r, g, 0, 3*time.Second)
	}
	b.ReportMetric(bits/float64(b.N)/1e9, "Gbit/s")
	b.ReportMetric(rate/float64(b.N)/1e6, "Mpps")
}

// settledShare of the packets that a function was to get at its port in: those that passed it by.
func settledShare(ctx context.Context, b *testing.B, r *rig.Rig, name string) float64 {
	b.Helper()
	var c api.Counters
	if err := r.Get(ctx, &c, "ports"); err != nil {
		b.Fatal(err)
	}
	for _, p := range c.Ports {
		if p.Name == "function/"+name+"/in" {
			return float64(p.Settled.Packets) / float64(max(p.Settled.Packets+p.Tx.Packets, 1))
		}
	}
	return 0
}

// weir is a rig with both stations, whose daemon does not run yet.
func weir(b *testing.B) *rig.Rig {
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
	for _, s := range []string{r.Alice(), r.Bob()} {
		if err := r.Namespace(s); err != nil {
			b.Fatal(err)
		}
	}
	return r
}

func up(ctx context.Context, b *testing.B, r *rig.Rig, text string) {
	b.Helper()
	if err := r.Up(ctx); err != nil {
		b.Fatal(err)
	}
	if _, err := r.Apply(ctx, text, "--timeout", "3m"); err != nil {
		b.Fatal(err)
	}
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
