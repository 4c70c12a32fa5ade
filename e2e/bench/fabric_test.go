package main

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"weir.dev/weir/router/control"
	"weir.dev/weir/router/fabric/steering"
)

// The sink must get all that Weir installs, and answer as a switch does, or a rate into it means nothing.
func TestSinkCountsWhatIsInstalled(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var got atomic.Int64
	var wg sync.WaitGroup
	for i := range installSwitches {
		wg.Go(func() {
			if err := sinkSwitch(t.Context(), l.Addr().String(), uint64(i+1), &got); err != nil {
				t.Error(err)
			}
		})
	}
	in := leafSpine(installSpines, installLeaves, 16, 40)
	mods, err := control.FlowMods(steering.Compile(in))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{ctx: t.Context()}
	r, err := b.weirInstalls(l, in)
	if err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if want := count(mods); r.mods != want || got.Load() != int64(want) || want < 400 {
		t.Errorf("%d flow-mods compiled, %d installed, %d arrived", want, r.mods, got.Load())
	}
	for _, ms := range mods {
		for _, m := range ms {
			if _, err := oskenEntry(m); err != nil {
				t.Errorf("the peer cannot say %v: %v", m, err)
			}
		}
	}
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[99-i] = float64(i + 1)
	}
	for _, c := range []struct {
		of   []float64
		p    int
		want float64
	}{{hundred, 99, 99}, {hundred, 50, 50}, {[]float64{3}, 99, 3}, {[]float64{2, 1}, 50, 1}, {[]float64{2, 1}, 99, 2}} {
		if got := percentile(c.of, c.p); got != c.want {
			t.Errorf("percentile %d of %d values is %g, want %g", c.p, len(c.of), got, c.want)
		}
	}
}
