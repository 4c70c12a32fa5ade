package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"weir.dev/weir/catalogue/rig"
)

// Of the configuration of the benchmarks.
const (
	benchAddresses = 100_000
	benchPorts     = 999
)

// manyDenied is a configuration that denies many addresses, of which none touch, and many ports.
func manyDenied(tb testing.TB) []byte {
	tb.Helper()
	list := make([]string, benchAddresses)
	for i := range list {
		list[i] = netip.AddrFrom4([4]byte{100, byte(i >> 15), byte(i >> 7), byte(i << 1)}).String()
	}
	entries := []any{map[string]any{"service": "all", "from": "@bad"}}
	for i := range benchPorts {
		entries = append(entries, fmt.Sprintf("tcp/%d", 10000+i))
	}
	raw, err := json.Marshal(map[string]any{"default": "accept", "sets": map[string]any{"bad": list}, "deny": entries})
	must(tb, err)
	return raw
}

// BenchmarkCompile makes rules and sets of a configuration, without the kernel.
func BenchmarkCompile(b *testing.B) {
	raw := manyDenied(b)
	var f *filter
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		cfg, err := parseConfig(raw)
		must(b, err)
		f = plan(cfg, "in", "out", true)
	}
	denying := 0
	for _, r := range f.rules {
		if r.denies {
			denying++
		}
	}
	if len(f.sets) != 1 || len(f.sets[0].elements) != benchAddresses || denying < benchPorts {
		b.Fatalf("%d sets, %d rules that deny", len(f.sets), denying)
	}
}

// BenchmarkElements writes the addresses of a set as messages for the kernel.
func BenchmarkElements(b *testing.B) {
	cfg, err := parseConfig(manyDenied(b))
	must(b, err)
	all := plan(cfg, "in", "out", true).sets[0].elements
	table := &nftables.Table{Family: nftables.TableFamilyBridge, Name: tableName}
	set := &nftables.Set{Table: table, Name: "g1_0", KeyType: nftables.TypeIPAddr, Interval: true}
	messages, size := 0, 0
	c, err := nftables.New(nftables.WithTestDial(func(sent []netlink.Message) ([]netlink.Message, error) {
		for _, m := range sent {
			messages++
			size += len(m.Data)
		}
		return sent, nil
	}))
	must(b, err)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		for part := range slices.Chunk(all, elementsAtOnce) {
			must(b, c.SetAddElements(set, elements(part)))
			must(b, c.Flush())
		}
	}
	// Each range has two elements of at least an attribute of 4 bytes in two others.
	if want := n * benchAddresses / elementsAtOnce; messages < want || size < n*benchAddresses*2*16 {
		b.Fatalf("%d messages of %d bytes in all: want at least %d", messages, size, want)
	}
	b.ReportMetric(float64(size)/float64(n)/benchAddresses, "bytes/address")
}

// inKernel runs f in a namespace of its own with the ports in and out.
func inKernel(b *testing.B, f func(k *kernel) error) {
	r := rig.New(b, false)
	r.Do(r.Netns, func() error {
		k, err := newKernel("in", "out")
		if err != nil {
			return err
		}
		return f(k)
	})
}

// BenchmarkInForce puts a configuration in force in the kernel, in the place of the same one.
func BenchmarkInForce(b *testing.B) {
	cfg, err := parseConfig(manyDenied(b))
	must(b, err)
	inKernel(b, func(k *kernel) error {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := k.apply(cfg); err != nil {
				return err
			}
		}
		c, err := nftables.New()
		if err != nil {
			return err
		}
		got, err := c.GetSetElements(k.now.sets[0])
		if ends := 2 * benchAddresses; err != nil || len(k.now.sets) != 1 || len(got) != ends {
			return errors.Join(err, fmt.Errorf("%d sets, %d elements: want 1 set of %d", len(k.now.sets), len(got), ends))
		}
		return nil
	})
}

// BenchmarkLook reads the counters of 1,000 rules, as each look for denied packets does.
func BenchmarkLook(b *testing.B) {
	cfg, err := parseConfig(manyDenied(b))
	must(b, err)
	inKernel(b, func(k *kernel) error {
		if _, err := k.apply(cfg); err != nil {
			return err
		}
		f := &firewall{log: slog.New(slog.DiscardHandler), denials: &denials{}, kernel: k}
		b.ReportAllocs()
		for b.Loop() {
			f.watchDenials(b.Context())
		}
		if len(f.denied) < benchPorts+1 {
			return fmt.Errorf("counters of %d rules that deny: want %d or more", len(f.denied), benchPorts+1)
		}
		return nil
	})
}

// BenchmarkDenied decides whether what a rule has denied is worth an event: of the first packet of each rule it is, of those that follow within a while it is not.
func BenchmarkDenied(b *testing.B) {
	rules := make([]string, 1000)
	for i := range rules {
		rules[i] = fmt.Sprintf("deny tcp/%d", i+1)
	}
	d, log, n := &denials{}, slog.New(slog.DiscardHandler), 0
	b.ReportAllocs()
	for b.Loop() {
		d.denied(b.Context(), log, rules[n%len(rules)], 1)
		n++
	}
	waiting := uint64(0)
	for _, packets := range d.missed {
		waiting += packets
	}
	if want := n - min(n, len(rules)); b.Elapsed() < deniedEvery && waiting != uint64(want) {
		b.Fatalf("%d packets wait for an event: want %d", waiting, want)
	}
}

// BenchmarkSettled reads the flows that the kernel has collected in the time between two looks, as many as it collects at most, and tells which come again.
func BenchmarkSettled(b *testing.B) {
	var read []nftables.SetElement
	for i := range maxAccepted {
		key := binary.NativeEndian.AppendUint32(nil, 7)
		key = append(key, 17, 0, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2, byte(i>>8), byte(i), 0, 53)
		read = append(read, nftables.SetElement{Key: key, Expires: flowLife})
	}
	now, again, n := time.Unix(1000, 0), 0, 0
	var seen regular
	b.ReportAllocs()
	for b.Loop() {
		n++
		now = now.Add(pollEvery)
		for _, e := range read {
			f, ok := acceptedSets[0].read(e, now)
			if !ok {
				b.Fatal("an element cannot be read")
			}
			if seen.again(told{0, f.flow}, now) {
				again++
			}
		}
	}
	if want := (n - 1) * maxAccepted; again != want {
		b.Fatalf("%d flows came again: want %d", again, want)
	}
}
