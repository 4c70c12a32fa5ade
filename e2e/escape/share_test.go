package escape

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// Functions whose specs name no limit have those of the host, which everybody can see. Three that burn processors, print without end and read the disk at
// the same time leave a neighbour's forwarding and the API what these need.
func TestNobodyTakesTheRest(t *testing.T) {
	r, ctx := world(t, of("native"), options{})
	r.MustApply(ctx, t, "functions:\n  evil: {image: hostile, on_fail: drop}\n  evil2: {image: hostile, on_fail: drop}\n  evil3: {image: hostile, on_fail: drop, cpus: 0.5, memory: 96M}\n")
	var f api.Function
	if err := r.Get(ctx, &f, "function", "evil"); err != nil {
		t.Fatal(err)
	}
	l := f.Status.Limits
	if l.CPUs <= 0 || l.MemoryBytes != 512<<20 || l.Processes != 512 || l.DiskBytesPerS != 256<<20 && !strings.Contains(l.Missing, "disk") {
		t.Errorf("limits of a function whose spec names none: %+v", l)
	}
	if err := r.Get(ctx, &f, "function", "evil3"); err != nil {
		t.Fatal(err)
	}
	if l := f.Status.Limits; l.CPUs != 0.5 || l.MemoryBytes != 96<<20 {
		t.Errorf("limits of a function whose spec names some: %+v", l)
	}
	wide, err := r.Weir(ctx, "get", "functions", "-o", "wide")
	if err != nil || !strings.Contains(wide, "PROCESSES") || !strings.Contains(wide, "512M") || !strings.Contains(wide, "96M") {
		t.Errorf("%v\n%s", err, wide)
	}

	type sample struct{ forwarding, api time.Duration }
	measure := func() sample {
		t.Helper()
		out, err := r.Ping(ctx, carol(r), daveAddr, 100, "0.02")
		if err != nil {
			t.Fatal(err)
		}
		var calls []time.Duration
		for range 15 {
			begin := time.Now()
			if _, err := r.Weir(ctx, "status"); err != nil {
				t.Fatal(err)
			}
			calls = append(calls, time.Since(begin))
		}
		slices.Sort(calls)
		return sample{out, calls[len(calls)/2]}
	}
	quiet := measure()
	hungry, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, name := range []string{"evil", "evil2", "evil3"} {
		for _, what := range []string{"cpu", "log", "read"} {
			wg.Go(func() {
				for hungry.Err() == nil { // an abuse that is over begins again
					_, _ = r.Weir(hungry, "function", "exec", name, "--", "/usr/bin/hostile", "abuse", what)
				}
			})
		}
	}
	rig.Eventually(ctx, t, "they are at it", func() (bool, string) {
		out, err := r.Run(ctx, "", "sh", "-c", "ps -eo args | grep -c '[h]ostile abuse'")
		return err == nil && strings.TrimSpace(out) != "0", out
	})
	busy := measure()
	unharmed(ctx, t, r, "three hungry functions")
	cancel()
	wg.Wait()
	fmt.Printf("a neighbour's round trip %v, beside three hungry functions %v; weir status %v, %v\n", quiet.forwarding, busy.forwarding, quiet.api, busy.api)
	if busy.forwarding > quiet.forwarding+20*time.Millisecond {
		t.Errorf("a neighbour's round trip takes %v, %v without", busy.forwarding, quiet.forwarding)
	}
	if most := 5*quiet.api + 500*time.Millisecond; busy.api > most {
		t.Errorf("weir status takes %v, want at most %v (%v without)", busy.api, most, quiet.api)
	}
}
