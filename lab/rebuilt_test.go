package lab

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/study"
	"weir.dev/weir/netns"
)

const rebuiltStudy = `name: rebuilt
title: What a trial stands on
parts:
  - name: one
    question: Is it another one?
    experiment: looked-at
    metrics: [{name: cookie, unit: number, better: higher}]
    factors: [{name: platform, levels: [bridges, veth]}]
    compare: platform
    baseline: bridges
    quick: {blocks: 3}
    full: {blocks: 6}
`

// lookedAt notes on which station each trial of a real platform is made, by the cookie of its namespace.
type lookedAt struct{ trial func() }

func (lookedAt) Name() string                                                       { return "looked-at" }
func (lookedAt) About() string                                                      { return "what a trial stands on" }
func (lookedAt) Metrics() map[string]string                                         { return map[string]string{"cookie": "number"} }
func (lookedAt) Check(context.Context, *experiment.Bench, experiment.Levels) string { return "" }
func (x lookedAt) Setup(ctx context.Context, b *experiment.Bench, l experiment.Levels) (experiment.Arrangement, error) {
	p, err := b.Platform(ctx, l["platform"])
	if err != nil {
		return nil, err
	}
	wires := map[string]int{"bridges": 2}[l["platform"]]
	path, err := p.Path(ctx, platform.Layout{Chain: wires})
	return lookedAtPath{x, path}, err
}

type lookedAtPath struct {
	x    lookedAt
	path platform.Path
}

func (p lookedAtPath) Close() error { return nil }
func (p lookedAtPath) Measure(ctx context.Context, _ time.Duration) (experiment.Measurement, error) {
	if p.x.trial != nil {
		p.x.trial()
	}
	n, err := cookie(p.path.From)
	if err != nil {
		return experiment.Measurement{}, err
	}
	return experiment.Measurement{Values: map[string]float64{"cookie": float64(n)}, Conditions: map[string]string{"station": p.path.From}}, p.path.Try(ctx)
}

// cookie is the number of a network namespace, which no other ever has until the machine is started again.
func cookie(space string) (n uint64, err error) {
	err = netns.Do(space, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		n, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return n, err
}

// rebuilt makes the trials of a journal that are left on benches of their own, and gives the benches' names.
func rebuilt(t *testing.T, ctx context.Context, j *study.Journal, x lookedAt) (names []string, err error) {
	t.Helper()
	both, err := Options{}.benches(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := runner(nil, j)
	r.Experiments, r.Bench, r.Twin = map[string]experiment.Experiment{"looked-at": x}, both[0], both[1]
	err = r.Run(ctx)
	if err := both.close(); err != nil {
		t.Error(err)
	}
	return []string{both[0].Name, both[1].Name}, err
}

// Every block stands on what was made for it, the duplicate of the baseline on a bench of its own. So does the rest of a block in which a run was cut
// off, and the journal says so. Nothing is left.
func TestEveryBlockIsRebuilt(t *testing.T) {
	f, err := study.Parse("rebuilt.yaml", []byte(rebuiltStudy), []string{"looked-at"})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "run")
	j, err := study.Create(dir, study.Header{Study: f.Study, Mode: study.Quick, Seed: 5, Started: time.Unix(0, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	trials := 0
	first, err := rebuilt(t, ctx, j, lookedAt{func() {
		if trials++; trials == 5 { // the second of the second block
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if j, err = study.Open(dir); err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	second, err := rebuilt(t, t.Context(), j, lookedAt{})
	if err != nil {
		t.Fatal(err)
	}
	type place struct {
		block int
		setup string
		level string
	}
	stations := map[float64]place{} // by cookie
	cut := map[string]bool{}
	for _, r := range j.Records {
		at := place{r.Trial.Block, r.Setup, r.Trial.Variant[0]}
		if other, ok := stations[r.Values["cookie"]]; ok && r.Values["cookie"] > 0 {
			t.Errorf("%s stands on what %+v stood on", r.Trial.Key(), other)
		}
		stations[r.Values["cookie"]] = at
		bench, n, ok := strings.Cut(r.Setup, "/")
		want := first
		if r.Trial.Block == 2 || slices.Contains(second, bench) && r.Trial.Block == 1 {
			want = second
		}
		if r.Trial.Block == 1 {
			cut[n+bench] = true
		}
		twin := want[1] == bench
		if !ok || !slices.Contains(want, bench) || twin != r.Trial.Duplicate || !strings.Contains(r.Conditions["station"], bench) || r.Void != "" {
			t.Errorf("%s: set up on %q, station %s, void %q: the benches are %v and %v", r.Trial.Key(), r.Setup, r.Conditions["station"], r.Void, first, second)
		}
	}
	if len(j.Records) != 9 || len(stations) != 9 {
		t.Errorf("%d trials on %d stations: want 9", len(j.Records), len(stations))
	}
	if len(cut) < 2 {
		t.Errorf("the block that was cut off: %v", cut)
	}
	left, err := experiment.Leftovers()
	for _, name := range slices.Concat(first, second) {
		if err != nil || slices.Contains(left, name) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}
