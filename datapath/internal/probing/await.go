package probing

import (
	"context"
	"time"
)

const (
	looks     = 30 // at a single probe before the first sleep: sleeping and waking up costs more than looking
	firstWait = 20 * time.Microsecond
	lastWait  = time.Millisecond
)

// Await looks at each of n probes until it has come back or ctx ends. Then it returns ctx's error if some have not. An error of back ends it.
func Await(ctx context.Context, n int, back func(i int) (bool, error)) error {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	for wait, look := firstWait, 0; ; look++ {
		left := out[:0]
		for _, i := range out {
			there, err := back(i)
			if err != nil {
				return err
			}
			if !there {
				left = append(left, i)
			}
		}
		if out = left; len(out) == 0 {
			return nil
		}
		if n == 1 && look < looks { // many have been under way while the last ones were sent
			continue
		}
		t := time.NewTimer(wait)
		wait = min(2*wait, lastWait)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
}
