package main

import (
	"fmt"
	"strings"
	"testing"

	"weir.dev/weir/catalogue/rig"
)

// manyClasses is a configuration with as many classes as there may be, and about as many filters.
func manyClasses(rate string) []byte {
	var classes []string
	for i := range maxClasses {
		classes = append(classes, fmt.Sprintf(`{"name": "c%d", "share": "10%%", "match": ["udp/%d", {"dscp": %d}, {"service": "tcp/443", "clients": ["10.%d.0.0/16", "fd00:%d::/32"]}, {"service": "tcp/%d-%d"}]}`,
			i, 5000+i, 10+i, i, i, 8192+1024*i, 9215+1024*i))
	}
	return fmt.Appendf(nil, `{"up": {"rate": %q}, "down": {"rate": %q}, "classes": [%s]}`, rate, rate, strings.Join(classes, ", "))
}

// BenchmarkCompile makes filters of a configuration, without the kernel.
func BenchmarkCompile(b *testing.B) {
	raw := manyClasses("100Mbit")
	var rules, words int
	b.ReportAllocs()
	for b.Loop() {
		cfg, err := parseConfig(raw)
		must(b, err)
		rules, words = 0, 0
		for _, up := range []bool{true, false} {
			for _, c := range cfg.Classes {
				for _, m := range c.Match {
					for _, r := range m.rules(up) {
						rules++
						words += len(r)
					}
				}
			}
		}
	}
	// Of a class: a port at either end of two families, a code point of two families, a port at either end of each client, an aligned range of ports at either end of two families.
	if want := 2 * maxClasses * (4 + 2 + 4 + 4); rules != want || words < 2*want {
		b.Fatalf("%d filters of %d words: want %d", rules, words, want)
	}
	b.ReportMetric(float64(rules), "filters")
}

// inKernel runs f in a namespace of its own with the ports in and out.
func inKernel(b *testing.B, f func(k *kernel) error) {
	r := rig.New(b, false)
	r.Do(r.Netns, func() error {
		k, err := newKernel("in", "out")
		if err != nil {
			return err
		}
		defer k.h.Close()
		return f(k)
	})
}

// BenchmarkInForce puts a configuration in force in the kernel: where nothing is, another rate, and other rules.
func BenchmarkInForce(b *testing.B) {
	slow, err := parseConfig(manyClasses("100Mbit"))
	must(b, err)
	fast, err := parseConfig(manyClasses("200Mbit"))
	must(b, err)
	other, err := parseConfig([]byte(strings.ReplaceAll(string(manyClasses("100Mbit")), "tcp/443", "tcp/8443")))
	must(b, err)
	for _, c := range []struct {
		name    string
		configs []config
	}{{"first", []config{{}, slow}}, {"rate", []config{fast, slow}}, {"rules", []config{other, slow}}} {
		b.Run(c.name, func(b *testing.B) {
			inKernel(b, func(k *kernel) error {
				b.ReportAllocs()
				for b.Loop() {
					for _, cfg := range c.configs {
						if _, err := k.apply(cfg, nil); err != nil {
							return err
						}
					}
				}
				_, classes := k.sent(k.out)
				queues, err := k.h.QdiscList(k.out)
				if err != nil || len(classes) != maxClasses+1 || len(queues) < maxClasses+2 {
					return fmt.Errorf("%d classes and %d queues: %v", len(classes), len(queues), err)
				}
				return nil
			})
		})
	}
}

// BenchmarkLook reads the counters of all classes, as each look does.
func BenchmarkLook(b *testing.B) {
	cfg, err := parseConfig(manyClasses("100Mbit"))
	must(b, err)
	inKernel(b, func(k *kernel) error {
		if _, err := k.apply(cfg, nil); err != nil {
			return err
		}
		var classes []sent
		b.ReportAllocs()
		for b.Loop() {
			_, classes = k.sent(k.out)
		}
		if len(classes) != maxClasses+1 || classes[maxClasses].name != rest {
			return fmt.Errorf("counters of %d classes", len(classes))
		}
		return nil
	})
}
