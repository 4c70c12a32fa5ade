package experiment

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/lab/guest"
)

const factorBlock = "block"

// Bounds of a block: 256 bits, which are read or written at a time, and what a machine may have.
const (
	leastBlock = 32
	mostBlock  = 1 << 33
)

// memoryExperiment is how fast a block of memory is read and written.
func memoryExperiment() Experiment {
	return &inside{
		name: "memory", about: "a block of memory inside a guest, read and written from its beginning to its end and at random places, 256 bits at a time, on one processor",
		metrics: map[string]string{"read": "MB/s", "write": "MB/s", "random-read": "MB/s", "random-write": "MB/s"}, check: checkMemory, measure: measureMemory,
		guests: func(ctx context.Context, s *guest.Site, l Levels) ([]*guest.Guest, error) {
			return one(ctx, s, l, guest.Spec{Memory: memoryOf(l, defaultMemory)})
		},
		more: []Factor{
			{Name: factorBlock, About: "bytes, a power of two", Default: "1048576", Check: func(level string) error {
				n, err := strconv.Atoi(level)
				if err != nil || n < leastBlock || n > mostBlock || n&(n-1) != 0 {
					return fmt.Errorf("%q: want a power of two, %d to %d bytes", level, leastBlock, mostBlock)
				}
				return nil
			}},
			memoryFactor(defaultMemory, "containers and machines"),
		},
	}
}

// systemMemory is what a machine's kernel and the lab's program need beside a block, in MiB.
const systemMemory = 128

func checkMemory(l Levels) string {
	block, have := l.number(factorBlock, "1048576")>>20, l.number(factorMemory, defaultMemory)
	if block+systemMemory > have {
		return fmt.Sprintf("a block of %d MiB: a guest of %d MiB holds at most %d", block, have, have-systemMemory)
	}
	return ""
}

func measureMemory(ctx context.Context, h *hosted, length time.Duration) (Measurement, error) {
	each := max(1, (length / 4).Milliseconds())
	out, err := h.guests[0].Run(ctx, guest.Probe, "memory", h.levels.or(factorBlock, "1048576"), strconv.FormatInt(each, 10))
	if err != nil {
		return Measurement{}, err
	}
	m := Measurement{Values: map[string]float64{}, Raw: out}
	for line := range strings.Lines(out) {
		var name string
		var bytes, ns float64
		if _, err := fmt.Sscanf(line, "%s %g %g", &name, &bytes, &ns); err != nil || ns <= 0 {
			return m, misread(guest.Probe, out)
		}
		m.Values[name] = bytes / ns * 1e3
	}
	if len(m.Values) != 4 {
		return m, misread(guest.Probe, out)
	}
	return m, nil
}
