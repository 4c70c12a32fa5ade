package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"weir.dev/weir/e2e/rig"
)

const (
	beforeTurns  = 7  // measurements of each figure and side in a round
	beforeStarts = 10 // starts of one function in a round
	beforeMany   = 5  // starts of many functions in a round
)

// before measures this Weir beside the one that was built in the clone `-before`: what a change costs. Both run at once, idle but for the one
// whose turn it is; the figures are rates and round trips through 0, 1 and 9 wires, and how long functions take to come up.
func (b *bench) before() error {
	return b.withWeir(func(now *weir) error {
		return b.withWeirOf(b.former, func(then *weir) error {
			both := []*weir{now, then}
			for _, n := range []int{0, 1, 9} {
				for _, w := range both {
					if n > 0 {
						if _, err := w.wires(n); err != nil {
							return err
						}
					}
					if err := w.settle(b); err != nil {
						return err
					}
				}
				if err := b.beforePackets(both, n); err != nil {
					return fmt.Errorf("%d wires: %w", n, err)
				}
				if err := b.beforeTrips(both, n); err != nil {
					return fmt.Errorf("%d wires: %w", n, err)
				}
			}
			if err := b.beforeStarts(both); err != nil {
				return err
			}
			return b.beforeMany(both)
		})
	})
}

const formerWeir = "the former Weir"

func (b *bench) beforePackets(both []*weir, n int) error {
	var sides []*side
	for _, w := range both {
		s, err := w.side(b)
		if err != nil {
			return err
		}
		sides = append(sides, s)
	}
	for turn := range beforeTurns * b.Rounds {
		if err := b.rates(sides, turn); err != nil {
			return err
		}
	}
	b.add(fmt.Sprintf("udp 64 B, %d wires", n), "Mpps", sides[0].got, sides[1].got, formerWeir, true, 0.97)
	return nil
}

func (b *bench) beforeTrips(both []*weir, n int) error {
	var us [2][]float64
	for turn := range beforeTurns * b.Rounds {
		for i := range both {
			k := (i + turn) % 2
			d, err := both[k].Ping(b.ctx, both[k].alice(), "10.9.0.2", 1000, "0", "-U")
			if err != nil {
				return err
			}
			us[k] = append(us[k], float64(d.Nanoseconds())/1e3)
		}
	}
	b.add(fmt.Sprintf("ping back to back -U, %d wires", n), "us", us[0], us[1], formerWeir, false, 0.97)
	return nil
}

// beforeStarts: one function more beside those that run, applied until it is ready, and deleted again.
func (b *bench) beforeStarts(both []*weir) error {
	for _, f := range []struct{ name, doc string }{
		{"wire", "functions:\n  one-more: {image: wire}\n"},
		{"firewall", "functions:\n  one-more: {image: firewall}\n"},
	} {
		var ms [2][]float64
		for turn := range beforeStarts * b.Rounds {
			for i := range both {
				k := (i + turn) % 2
				begin := time.Now()
				if _, err := both[k].Apply(b.ctx, f.doc); err != nil {
					return err
				}
				ms[k] = append(ms[k], float64(time.Since(begin).Microseconds())/1e3)
				if _, err := both[k].Weir(b.ctx, "delete", "function", "one-more"); err != nil {
					return err
				}
			}
		}
		b.add("apply of one more "+f.name, "ms", ms[0], ms[1], formerWeir, false, 1/1.2)
	}
	return nil
}

// beforeMany: a chain of 100 functions where there was one of 1, applied until it carries.
func (b *bench) beforeMany(both []*weir) error {
	const few, many = 1, 100
	var s [2][]float64
	var rest []string
	for i := few + 1; i <= many; i++ {
		rest = append(rest, fmt.Sprintf("w%d", i))
	}
	for _, w := range both {
		if _, err := w.wires(many); err != nil {
			return err
		}
	}
	for turn := range beforeMany * b.Rounds {
		for i := range both {
			k := (i + turn) % 2
			if _, err := both[k].wires(few); err != nil {
				return err
			}
			if _, err := both[k].Weir(b.ctx, append([]string{"delete", "function"}, rest...)...); err != nil {
				return err
			}
			if err := both[k].settle(b); err != nil {
				return err
			}
			took, err := both[k].wires(many)
			if err != nil {
				return err
			}
			s[k] = append(s[k], took.Seconds())
		}
	}
	b.add(fmt.Sprintf("apply of a chain of %d functions", many), "s", s[0], s[1], formerWeir, false, 1/1.2)
	return nil
}

// withWeirOf is withWeir for the binary and the images of another clone.
func (b *bench) withWeirOf(clone string, f func(w *weir) error) error {
	if clone == "" {
		return errors.New("-before DIR is missing: a clone of another version in which `make build` ran")
	}
	bin, err := filepath.Abs(filepath.Join(clone, "bin"))
	if err != nil {
		return err
	}
	return b.withRig(func(r *rig.Rig) { r.Bin, r.Images = filepath.Join(bin, "weir"), filepath.Join(bin, "images") }, f)
}
