package openflow_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	. "weir.dev/weir/openflow"
	"weir.dev/weir/openflow/fake"
)

// steering is the entry that the router installs most: in_port and source address to a port.
func steering(n int) []FlowMod {
	fs := make([]FlowMod, n)
	for i := range fs {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		fs[i] = FlowMod{Priority: 100, Cookie: uint64(i), Match: Match{InPort(2), EthType(0x0800), IPSrc(netip.PrefixFrom(addr, 32))},
			Instructions: []Instruction{ApplyActions{Output{Port: 1}}}}
	}
	return fs
}

func perSecond(b *testing.B, n int) {
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "flow-mods/s")
}

func BenchmarkEncode(b *testing.B) {
	fs := steering(1000)
	var buf []byte
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		buf = buf[:0]
		for i := range fs {
			buf, _ = Append(buf, uint32(i), &fs[i])
		}
		n += len(fs)
	}
	perSecond(b, n)
}

func BenchmarkDecode(b *testing.B) {
	m, err := Append(nil, 1, &steering(1)[0])
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Decode(m); err != nil {
			b.Fatal(err)
		}
		n++
	}
	perSecond(b, n)
}

// BenchmarkFake installs entries in the fake switch, up to a barrier.
func BenchmarkFake(b *testing.B) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := fake.New(fake.Config{DatapathID: 1})
	c, err := Controller(ctx, s.Pipe(ctx), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	fs := steering(10000)
	n := 0
	for b.Loop() {
		if err := c.TransactAll(ctx, len(fs), func(i int) Message { return &fs[i] }); err != nil {
			b.Fatal(err)
		}
		n += len(fs)
	}
	perSecond(b, n)
}
