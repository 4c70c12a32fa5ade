package experiment

import (
	"maps"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/traffic"
)

// frames of a step: of 1,000 that were due apart from stalls 10 were not sent and 9 lost; near two stalls, 200 were due.
func frames() Frames {
	c := traffic.Count{Intended: 1200, Sent: 1150, Skipped: 50, Received: 1041, Unique: 1041, Lost: 109, Took: time.Second, Stalled: traffic.Stalled{Due: 200, Lost: 100, Skipped: 40}}
	ms := time.Millisecond
	return framesOf(c, traffic.Stalls{List: []traffic.Stall{{Begin: 100 * ms, End: 120 * ms}, {CPU: 1, Begin: 110 * ms, End: 150 * ms}}}, false)
}

func TestLossOfFrames(t *testing.T) {
	v := frames().Values()
	want := map[string]float64{ValueLost: 9, ValueLoss: 9. / 990, ValueLostIn: 100, ValueOffered: 0.99, ValueStalled: 200. / 1200, ValueAway: 0.05}
	for name, x := range want {
		if v[name] < x*(1-1e-9) || v[name] > x*(1+1e-9) {
			t.Errorf("%s is %v: want %v", name, v[name], x)
		}
	}
	shared := frames()
	shared.Shared = true
	if v := shared.Values(); v[ValueLost] != 19 || v[ValueLoss] != 0.019 || v[ValueOffered] != 0 {
		t.Errorf("on a shared CPU: %v", v)
	}
	// Stalls that nobody knows where they were make the whole step one.
	f := framesOf(traffic.Count{Intended: 100, Sent: 90, Skipped: 10, Unique: 80, Lost: 10}, traffic.Stalls{Unlisted: 1}, false)
	if v := f.Values(); v[ValueStalled] != 1 || v[ValueLost] != 0 || f.Stalls != 1 {
		t.Errorf("%v", v)
	}
}

// TestHiddenLossIsFound: whatever is changed to hide lost frames contradicts something else.
func TestHiddenLossIsFound(t *testing.T) {
	values := frames().Values()
	if err := frames().Check(values); err != nil {
		t.Fatal(err)
	}
	for what, forge := range map[string]func(f *Frames, v map[string]float64){
		"no loss in the value":      func(_ *Frames, v map[string]float64) { v[ValueLoss] = 0 },
		"no lost frames":            func(_ *Frames, v map[string]float64) { v[ValueLost] = 0 },
		"a value is left out":       func(_ *Frames, v map[string]float64) { delete(v, ValueLoss) },
		"Lost is 0":                 func(f *Frames, _ map[string]float64) { f.Lost, f.Stalled.Lost = 0, 0 },
		"all of it was near stalls": func(f *Frames, _ map[string]float64) { f.Stalled.Lost = f.Lost },
		"more near stalls than due": func(f *Frames, v map[string]float64) {
			f.Stalled = traffic.Stalled{Due: 100, Lost: 109, Skipped: 50}
			maps.Copy(v, f.Values())
		},
		"stalls without a stall": func(f *Frames, _ map[string]float64) { f.Stalls = 0 },
		"skipped, not lost": func(f *Frames, v map[string]float64) {
			f.Sent, f.Skipped = f.Unique, f.Intended-f.Unique
			maps.Copy(v, f.Values())
		},
	} {
		f, v := frames(), maps.Clone(values)
		forge(&f, v)
		if err := f.Check(v); err == nil {
			t.Errorf("%s: not found", what)
		} else if !strings.Contains(err.Error(), "frames") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
