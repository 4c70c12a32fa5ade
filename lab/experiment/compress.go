package experiment

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"weir.dev/weir/lab/guest"
	"weir.dev/weir/lab/stats"
)

// Factors of compression.
const (
	factorCores     = "cores"
	factorInstances = "instances"
	factorCorpus    = "corpus"
	coresHalf       = "half" // of the machine's processors
	defaultCorpus   = "1000"
	mostInstances   = 64
)

// compressExperiment is wall time of parallel LZMA.
func compressExperiment() Experiment {
	return &inside{
		name: "compress", about: "wall time of `xz -T` inside guests over the same corpus, of which each guest has a copy; with several guests the mean, all begin together",
		metrics: map[string]string{"time": "s", "slowest": "s", "rate": "MB/s"}, programs: []string{"xz"}, check: checkCompress, guests: compressGuests, measure: measureCompress,
		more: []Factor{
			{Name: factorCores, About: "threads of xz, and processors of a container or a machine: a number, or " + coresHalf + " of what this machine has", Default: "1", Check: checkCores},
			{Name: factorInstances, About: "guests at once", Default: "1", Check: between(1, mostInstances, "guests")},
			{Name: factorCorpus, About: "MiB of the corpus, which a seeded generator writes", Default: defaultCorpus, Check: between(1, guest.MaxCorpus, "MiB")},
			memoryFactor("2048", "containers and machines"),
		},
	}
}

func checkCores(level string) error {
	if level == coresHalf {
		return nil
	}
	return between(1, 1024, "cores, or "+coresHalf)(level)
}

func cores(l Levels) int {
	if l[factorCores] == coresHalf {
		return max(1, runtime.NumCPU()/2)
	}
	return l.number(factorCores, "1")
}

func checkCompress(l Levels) string {
	if n := cores(l); n > runtime.NumCPU() {
		return fmt.Sprintf("%d cores: this machine has %d processors", n, runtime.NumCPU())
	}
	return ""
}

func compressGuests(ctx context.Context, s *guest.Site, l Levels) (all []*guest.Guest, err error) {
	if _, err := s.Corpus(l.number(factorCorpus, defaultCorpus)); err != nil {
		return nil, err
	}
	for i := range l.number(factorInstances, "1") {
		g, err := one(ctx, s, l, guest.Spec{N: i, CPUs: cores(l), Memory: memoryOf(l, "2048")})
		if err != nil {
			return nil, err
		}
		all = append(all, g...)
	}
	return all, nil
}

// Blocks of xz: its own size for level 6, three times the dictionary, or less where the corpus has too few of them for many threads.
const (
	xzBlock     = 24 << 20
	leastBlocks = 16
)

func measureCompress(ctx context.Context, h *hosted, _ time.Duration) (Measurement, error) {
	corpus, err := h.site.Corpus(h.levels.number(factorCorpus, defaultCorpus))
	if err != nil {
		return Measurement{}, err
	}
	size := h.levels.number(factorCorpus, defaultCorpus) << 20
	argv := []string{guest.Program("xz"), "-6", "-T" + strconv.Itoa(cores(h.levels)), "--block-size=" + strconv.Itoa(min(xzBlock, size/leastBlocks)),
		"--keep", "--stdout", corpus}
	all, err := guest.Together(ctx, h.guests, argv...)
	if err != nil {
		return Measurement{}, err
	}
	took := make([]float64, len(all))
	for i, d := range all {
		took[i] = d.Seconds()
	}
	m := Measurement{Values: map[string]float64{"time": stats.Mean(took)}, Raw: map[string]any{"argv": argv, "seconds": took}}
	for _, t := range took {
		m.Values["slowest"] = max(m.Values["slowest"], t)
	}
	m.Values["rate"] = float64(size) * float64(len(took)) / 1e6 / m.Values["slowest"]
	return m, nil
}
