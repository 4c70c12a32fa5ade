package experiment

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic/xdp"
	"weir.dev/weir/netns"
)

// LimitTrial is how long a trial of a known limit takes.
const LimitTrial = 50 * time.Millisecond

// shaped is the experiment with a BPF program for a path that passes a known number of frames a second.
type shaped struct {
	*ndr
	space string
	limit *limiter
	rig   rig
}

// The limit's burst is a share of the frames of a trial, half of what the search tells apart; the generator sends fewer at once when it was late.
const (
	limitBurst = SearchWidth / 2
	limitBatch = 16
)

// NewShaped is the experiment ndr over such a path, and the second CPU, where the chain works.
func NewShaped(t *testing.T) (x Experiment, chain int) {
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
	for _, pair := range [][2]string{{"in0", "in1"}, {"out0", platform.Station}} {
		if _, err := netns.Veth(s.space, s.space, netns.VethOptions{HostName: pair[0], PeerName: pair[1], Alias: "weir:test:" + pair[0], Quiet: true}); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if s.limit, err = newLimiter(xdp.Place{Space: s.space, Link: "in0"}, "out0"); err != nil {
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
	return s, s.rig.chain
}

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
		p := platform.Path{From: s.space, To: s.space, Space: s.space, Link: link}
		return func(context.Context) (site, error) {
			return site{s.rig, p, limitBatch, generatorXDP}, s.limit.Set(rate, int(limitBurst*float64(rate)*LimitTrial.Seconds()))
		}
	}
	return s.arrange(s.rig, frames, where("in0"), where(platform.Station))
}
