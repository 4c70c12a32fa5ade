package experiment

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/lab/guest"
)

// diskExperiment is a guest's disk, beside what its memory can hide.
func diskExperiment() Experiment {
	return &inside{
		name: "disk", about: "files of twice a guest's memory: dd writes one and reads it, then sysbench fileio reads and writes another at random places for the trial's length",
		metrics:  map[string]string{"dd-write": "MB/s", "dd-read": "MB/s", "requests": "1/s", "read": "MB/s", "write": "MB/s"},
		programs: []string{"sysbench", "dd", "busybox"}, measure: measureDisk,
		check: func(l Levels) string { return guest.NoDisk(l.or(factorHost, guest.BareMetal)) },
		more:  []Factor{memoryFactor(defaultMemory, "every guest, also of processes of the host: its page cache is within the limit")},
		guests: func(ctx context.Context, s *guest.Site, l Levels) ([]*guest.Guest, error) {
			memory := l.number(factorMemory, defaultMemory)
			return one(ctx, s, l, guest.Spec{Memory: memory, Data: fileOf(memory)})
		},
	}
}

// fileOf a guest's memory, both in MiB.
func fileOf(memory int) int { return 2 * memory }

func measureDisk(ctx context.Context, h *hosted, length time.Duration) (m Measurement, err error) {
	g, size := h.guests[0], fileOf(h.levels.number(factorMemory, defaultMemory))
	m = Measurement{Values: map[string]float64{}, Raw: map[string]string{}}
	empty := func() error {
		_, err := g.Run(ctx, shell("rm -f "+guest.Data+"/*")...)
		return err
	}
	if err := empty(); err != nil { // of a trial that failed
		return m, err
	}
	defer func() { err = errors.Join(err, empty()) }()
	if err := copies(ctx, g, size, m.Values); err != nil {
		return m, err
	}
	if err := empty(); err != nil {
		return m, err
	}
	out, err := fileio(ctx, g, size, atLeast(length, time.Second))
	if err != nil {
		return m, err
	}
	m.Raw = out
	return m, parseFileio(out, m.Values)
}

// shell runs a line of a guest's shell.
func shell(line string) []string { return []string{guest.Program("busybox"), "sh", "-c", line} }

// copies by dd: a file written to the disk, and read from it.
func copies(ctx context.Context, g *guest.Guest, mebibytes int, values map[string]float64) error {
	file := guest.Data + "/dd"
	for _, step := range []struct {
		metric string
		args   []string
	}{
		{"dd-write", []string{"if=/dev/zero", "of=" + file, "bs=1M", "count=" + strconv.Itoa(mebibytes), "conv=fdatasync"}},
		{"dd-read", []string{"if=" + file, "of=/dev/null", "bs=1M"}},
	} {
		out, err := g.Run(ctx, append([]string{guest.Probe, "run", guest.Program("dd"), "status=none"}, step.args...)...)
		if err != nil {
			return err
		}
		took, err := probeTime(out)
		if err != nil {
			return err
		}
		values[step.metric] = float64(mebibytes) * (1 << 20) / 1e6 / took
	}
	return nil
}

// fileio of sysbench over one file.
func fileio(ctx context.Context, g *guest.Guest, mebibytes int, length time.Duration) (string, error) {
	line := fmt.Sprintf("cd %s && %s fileio --file-num=1 --file-total-size=%dM --file-test-mode=rndrw --time=%d --events=0 ",
		guest.Data, guest.Program("sysbench"), mebibytes, int(length.Round(time.Second)/time.Second))
	if _, err := g.Run(ctx, shell(line+"prepare")...); err != nil {
		return "", err
	}
	return g.Run(ctx, shell(line+"run")...)
}

var fileioLines = map[string]*regexp.Regexp{
	"reads": regexp.MustCompile(`reads/s: +([0-9.]+)`), "writes": regexp.MustCompile(`writes/s: +([0-9.]+)`),
	"read": regexp.MustCompile(`read, MiB/s: +([0-9.]+)`), "write": regexp.MustCompile(`written, MiB/s: +([0-9.]+)`),
}

// parseFileio reads the output of sysbench 1.0.
func parseFileio(out string, values map[string]float64) error {
	have := map[string]float64{}
	for name, pattern := range fileioLines {
		found := pattern.FindStringSubmatch(out)
		if found == nil {
			return misread("sysbench", out)
		}
		v, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			return misread("sysbench", out)
		}
		have[name] = v
	}
	const mebibyte = (1 << 20) / 1e6
	values["requests"], values["read"], values["write"] = have["reads"]+have["writes"], have["read"]*mebibyte, have["write"]*mebibyte
	return nil
}

// probeTime is the seconds that the lab's program in a guest prints as nanoseconds.
func probeTime(out string) (float64, error) {
	ns, err := strconv.ParseUint(strings.TrimSpace(out), 10, 63)
	if err != nil || ns == 0 {
		return 0, misread(guest.Probe, out)
	}
	return float64(ns) / 1e9, nil
}
