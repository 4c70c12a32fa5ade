package ovs

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
)

// BenchmarkAddFunction adds an inline function, sets it up and removes it while others are there: these cost nothing but their share of
// what Open vSwitch does for all ports.
func BenchmarkAddFunction(b *testing.B) {
	for _, there := range []int{0, 50, 100} {
		b.Run(fmt.Sprintf("there=%d", there), func(b *testing.B) {
			r := suite.NewRig(b, factory)
			for i := range there {
				r.Wire(fmt.Sprintf("w%d", i))
			}
			fn := r.Links(datapath.Function{Name: "new", Forwarder: "wire"}, false)
			ctx := context.Background()
			for b.Loop() {
				r.Plug(fn)
				if err := r.Switch.SetState(ctx, "new", datapath.Up, 0); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := r.Switch.Remove(ctx, "function/new"); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkHundredFunctions adds a hundred inline functions at once, as an agent does that starts, and removes them.
func BenchmarkHundredFunctions(b *testing.B) {
	r := suite.NewRig(b, factory)
	var fns []*suite.Function
	for i := range 100 {
		fns = append(fns, r.Links(datapath.Function{Name: fmt.Sprintf("w%d", i), Forwarder: "wire"}, false))
	}
	ctx := context.Background()
	var removing time.Duration
	each := func(f func(name string, fn datapath.Function) error) {
		var wg sync.WaitGroup
		for _, fn := range fns {
			wg.Go(func() {
				if err := f(fn.Name, fn.F); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	}
	for b.Loop() {
		each(func(name string, fn datapath.Function) error {
			if _, err := r.Switch.AddFunction(ctx, fn); err != nil {
				return err
			}
			return r.Switch.SetState(ctx, name, datapath.Up, 0)
		})
		b.StopTimer()
		begin := time.Now()
		each(func(name string, _ datapath.Function) error { return r.Switch.Remove(ctx, "function/"+name) })
		removing += time.Since(begin)
		b.StartTimer()
	}
	b.ReportMetric(removing.Seconds()/float64(b.N), "s/removal")
}
