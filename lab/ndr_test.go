package lab

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/peers"
	"weir.dev/weir/lab/study"
	"weir.dev/weir/lab/traffic/xdp"
	"weir.dev/weir/netns"
)

const limitStudy = `name: limits
title: Limits that are known
parts:
  - name: limits
    question: Are they found?
    experiment: ndr
    metrics: [{name: ndr, unit: Mpps, better: higher}, {name: pdr, unit: Mpps, better: higher}, {name: typical-50, unit: us, better: lower}]
    factors:
      - {name: limit, levels: ["40000", "100000"]}
    compare: limit
    baseline: "40000"
    quick: {blocks: %d, duration: 50ms}
    full: {blocks: 6, duration: 50ms}
`

const limitTrial = 50 * time.Millisecond

// limitJournal is a run of so many blocks, each of three searches: of both limits, and of the first again.
func limitJournal(t testing.TB, dir string, blocks int) *study.Journal {
	t.Helper()
	f, err := study.Parse("limits.yaml", fmt.Appendf(nil, limitStudy, blocks), []string{"ndr"})
	if err != nil {
		t.Fatal(err)
	}
	j, err := study.Create(dir, study.Header{Study: f.Study, Mode: study.Quick, Seed: 5, Started: time.Unix(0, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func limitRunner(x Experiment, j *study.Journal) *Runner {
	r := runner(nil, j)
	r.Experiments, r.Rules.Offered = map[string]Experiment{"ndr": x}, 0
	return r
}

// shaped is the experiment with a BPF program for a path that passes a known number of frames a second.
type shaped struct {
	*ndr
	space string
	limit *xdp.Limit
	rig   rig
}

// The limit's burst is a share of the frames of a trial, half of what the search tells apart; the generator sends fewer at once when it was late.
const (
	limitBurst = searchWidth / 2
	limitBatch = 16
)

func newShaped(t *testing.T) *shaped {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("this test makes a network namespace and loads BPF programs: run it as root")
	}
	s := &shaped{ndr: ndrExperiment().(*ndr), space: filepath.Join(t.TempDir(), "ns")}
	if err := netns.Create(s.space, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(s.space); err != nil {
			t.Error(err)
		}
	})
	for _, pair := range [][2]string{{"in0", "in1"}, {"out0", peers.Station}} {
		if _, err := netns.Veth(s.space, s.space, netns.VethOptions{HostName: pair[0], PeerName: pair[1], Alias: "weir:test:" + pair[0], Quiet: true}); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if s.limit, err = xdp.NewLimit(xdp.Place{Space: s.space, Link: "in0"}, "out0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.limit.Close(); err != nil {
			t.Error(err)
		}
	})
	s.rig = rig{mode: modeCost, representation: asSkb}
	if s.rig.sender, s.rig.chain, err = twoCPUs(); err != nil {
		t.Fatalf("a busy second CPU: %v", err)
	}
	s.rig.first = true
	return s
}

func (s *shaped) Needs() string                                { return "" }
func (s *shaped) Check(context.Context, *Bench, Levels) string { return "" }

func (s *shaped) Setup(_ context.Context, _ *Bench, l Levels) (Arrangement, error) {
	rate, err := strconv.Atoi(l["limit"])
	if err != nil {
		return nil, err
	}
	frames, err := loadOf(Levels{})
	if err != nil {
		return nil, err
	}
	where := func(link string) func(context.Context) (site, error) {
		p := peers.Path{From: s.space, To: s.space, Space: s.space, Link: link}
		return func(context.Context) (site, error) {
			return site{s.rig, p, limitBatch, generatorXDP}, s.limit.Set(rate, int(limitBurst*float64(rate)*limitTrial.Seconds()))
		}
	}
	return s.arrange(frames, where("in0"), where(peers.Station)), nil
}

// busy keeps a CPU busy until the test ends.
func busy(t *testing.T, cpu int) {
	var over atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		var one unix.CPUSet
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Error(err)
		}
		for !over.Load() {
			canary()
		}
	})
	t.Cleanup(func() { over.Store(true); all.Wait() })
}

var tries = flag.Int("tries", 3, "searches of TestKnownLimitsAreFound, three at a time")

// TestKnownLimitsAreFound: a program passes N frames a second. The search finds that within its width, although the second CPU is busy.
func TestKnownLimitsAreFound(t *testing.T) {
	s := newShaped(t)
	busy(t, s.rig.chain)
	j := limitJournal(t, filepath.Join(t.TempDir(), "run"), (*tries+2)/3)
	begun := time.Now()
	if err := limitRunner(s, j).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range j.Records {
		if r.Void != "" || r.Skipped != "" {
			t.Fatalf("%s: %s%s", r.Trial.Key(), r.Void, r.Skipped)
		}
		var raw ndrRaw
		if err := json.Unmarshal(r.Raw, &raw); err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseFloat(r.Trial.Variant[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range raw.Results {
			if off := found.Lower/n - 1; !found.Settled || math.Abs(off) > searchWidth || (found.Upper-found.Lower)/found.Upper > searchWidth {
				t.Errorf("%s of a limit of %.0f is off by %.2f %%: %+v; %d trials", found.Goal, n, off*100, found, raw.Trials)
			}
		}
		if raw.Limited || raw.Ceiling < n {
			t.Errorf("a ceiling of %.0f limits %.0f", raw.Ceiling, n)
		}
		t.Logf("%s: %d steps, %d trials of the search, ceiling %.2f Mpps, %+v", r.Trial.Key(), len(j.StepsOf(r.Trial)), raw.Trials, raw.Ceiling/1e6, raw.Results)
	}
	t.Logf("%d searches in %s", len(j.Records), time.Since(begun).Round(time.Millisecond))
}

// tell a course what a path of so many frames a second makes of its steps.
func tell(t *testing.T, c *ndrCourse, limit, sent, arrived float64) (whats []string) {
	t.Helper()
	for n, ok := c.Next(); ok; n, ok = c.Next() {
		if whats = append(whats, n.What); len(whats) > 500 {
			t.Fatal("does not end")
		}
		if n.What == StepCeiling {
			c.Tell(map[string]float64{valueSent: sent, valueArrived: arrived})
			continue
		}
		c.Tell(map[string]float64{ValueLoss: max(0, 1-limit/n.Load), valueTypical: n.Load})
	}
	return whats
}

func TestCourse(t *testing.T) {
	newCourse := func() *ndrCourse {
		c, err := newNDRCourse(100 * time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const limit = 300_000
	c := newCourse()
	whats := tell(t, c, limit, 2e6, 1e6)
	want := []string{StepNDR, StepPDR, "delay at 1 %", "delay at 10 %", "delay at 50 %", "delay at 90 %"}
	if diff := cmp.Diff(want, whats[len(whats)-len(want):]); whats[0] != StepCeiling || diff != "" {
		t.Errorf("first %s, last:\n%s", whats[0], diff)
	}
	m := c.Result()
	if m.Void != "" || math.Abs(m.Values[metricNDR]/0.3-1) > searchWidth || math.Abs(m.Values[metricPDR]/(0.3/(1-pdrLoss))-1) > searchWidth || m.Values[ValueCeiling] != 1 || m.Values[ValueLimited] != 0 {
		t.Errorf("%+v", m)
	}
	pdr := m.Raw.(ndrRaw).Results[1].Lower
	for _, share := range DelayShares() {
		name, load := DelayName(valueTypical, share), pdr*float64(share)/100
		if got := m.Values[name]; math.Abs(got/load-1) > 1e-9 {
			t.Errorf("%s was taken at %v frames a second: want %v", name, got, load)
		}
	}
	if _, ok := m.Values[DelayName(valueWorst, 50)]; ok {
		t.Error("a worst delay of too few frames is told")
	}
	for name := range m.Values {
		if _, ok := ndrMetrics()[name]; !ok && name != ValueLimited {
			t.Errorf("%s is not among the metrics", name)
		}
	}
	// A ceiling near the result may be what limits it.
	c = newCourse()
	tell(t, c, limit, 2e6, limit*1.25)
	if m := c.Result(); m.Values[ValueLimited] != 1 || !m.Raw.(ndrRaw).Limited {
		t.Errorf("a ceiling of 1.25 times the result: %+v", m)
	}
	// Everything passes.
	c = newCourse()
	tell(t, c, 1e9, 2e6, 2e6)
	if m := c.Result(); m.Values[metricNDR] != 2 || m.Values[ValueLimited] != 1 {
		t.Errorf("everything passes: %+v", m)
	}
	// Nothing does, or too little to be told.
	c = newCourse()
	tell(t, c, 10, 2e6, 2e6)
	if m := c.Result(); !strings.Contains(m.Void, "not even 8000 frames") {
		t.Errorf("nothing passes: %+v", m)
	}
	c = newCourse()
	tell(t, c, 10, 100, 100)
	if m := c.Result(); !strings.Contains(m.Void, "the generator sends 100 frames") {
		t.Errorf("nothing is sent: %+v", m)
	}
	if _, err := newNDRCourse(0); err == nil {
		t.Error("trials without a length are accepted")
	}
}
