package health

import (
	"testing"
	"time"
)

// A function is said to hand nothing on only when frames enough went in for long enough and nothing at all came out.
func TestWhatHandsNothingOnIsFound(t *testing.T) {
	type look struct {
		second  int
		in, out uint64
	}
	for name, x := range map[string]struct {
		looks []look
		want  uint64 // at the last look; 0 not silent
	}{
		"it takes and hands nothing on":            {[]look{{0, 0, 0}, {5, 200, 0}, {10, 400, 0}}, 400},
		"counters that do not begin at 0":          {[]look{{0, 1000, 900}, {5, 1200, 900}, {10, 1400, 900}}, 400},
		"not long enough":                          {[]look{{0, 0, 0}, {4, 200, 0}, {8, 400, 0}}, 0},
		"too few frames":                           {[]look{{0, 0, 0}, {5, 50, 0}, {10, 99, 0}, {15, 99, 0}}, 0},
		"enough at last, answers may be under way": {[]look{{0, 0, 0}, {5, 1, 0}, {10, 101, 0}}, 0},
		"enough, and no answer at the next look":   {[]look{{0, 0, 0}, {5, 1, 0}, {10, 101, 0}, {15, 102, 0}}, 102},
		"it drops nearly all":                      {[]look{{0, 0, 0}, {5, 1000, 1}, {10, 2000, 2}, {15, 3000, 3}}, 0},
		"it answered, and no more":                 {[]look{{0, 0, 0}, {5, 200, 200}, {10, 400, 200}, {15, 600, 200}}, 400},
		"it answered until just now":               {[]look{{0, 0, 0}, {1, 200, 190}, {2, 400, 190}, {3, 600, 190}}, 400},
		"it dropped nearly all until just now":     {[]look{{0, 0, 0}, {1, 200, 2}, {2, 400, 2}, {3, 600, 2}}, 0},
		"nobody sends":                             {[]look{{0, 0, 0}, {60, 0, 0}, {120, 0, 0}}, 0},
		"nobody sent, and now many, at once":       {[]look{{0, 0, 0}, {60, 0, 0}, {65, 500, 0}}, 0},
		"the ports were made anew":                 {[]look{{0, 500, 0}, {5, 700, 0}, {10, 10, 0}, {15, 20, 0}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var s Silence
			begin := time.Now()
			var frames uint64
			var silent bool
			for _, l := range x.looks {
				frames, silent = s.Look(l.in, l.out, begin.Add(time.Duration(l.second)*time.Second))
			}
			if silent != (x.want > 0) || silent && frames != x.want {
				t.Errorf("%d frames, silent %t; want %d", frames, silent, x.want)
			}
		})
	}
}
