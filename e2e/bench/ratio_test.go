package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRatio(t *testing.T) {
	for _, c := range []struct {
		name          string
		weir, peer    []float64
		bigger        bool
		want          float64
		wantQuartiles []float64
	}{
		{"a machine that halves its speed", []float64{20, 10, 20, 10, 10}, []float64{10, 5, 10, 5, 5}, true, 2, []float64{2, 2}},
		{"neighbours, not medians", []float64{20, 10, 12}, []float64{10, 10, 4}, true, 2, []float64{1.5, 2.5}},
		{"less is better", []float64{1, 2, 4}, []float64{4, 4, 4}, false, 2, []float64{1.5, 3}},
		{"series of different lengths", []float64{10, 20, 30}, []float64{5}, true, 4, nil},
		{"too few for quartiles", []float64{10, 30}, []float64{10, 10}, true, 2, nil},
		{"no peer", []float64{10}, nil, true, 0, nil},
		{"a run that gave nothing", []float64{10, 0}, []float64{5, 5}, true, 2, nil},
		{"nothing", nil, nil, false, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, quartiles := ratio(c.weir, c.peer, c.bigger)
			if got != c.want {
				t.Errorf("ratio %v, want %v", got, c.want)
			}
			if d := cmp.Diff(c.wantQuartiles, quartiles); d != "" {
				t.Error(d)
			}
		})
	}
}
