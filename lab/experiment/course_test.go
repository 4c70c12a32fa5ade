package experiment

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tell a course what a path of so many frames a second makes of its steps.
func tell(t *testing.T, c *ndrCourse, limit, sent, arrived float64) (whats []string) {
	t.Helper()
	for n, ok := c.Next(); ok; n, ok = c.Next() {
		if whats = append(whats, n.What); len(whats) > 500 {
			t.Fatal("does not end")
		}
		if n.What == StepCeiling {
			c.Tell(map[string]float64{ValueSent: sent, ValueArrived: arrived})
			continue
		}
		c.Tell(map[string]float64{ValueLoss: max(0, 1-limit/n.Load), ValueTypical: n.Load})
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
	if m.Void != "" || math.Abs(m.Values[MetricNDR]/0.3-1) > SearchWidth || math.Abs(m.Values[metricPDR]/(0.3/(1-pdrLoss))-1) > SearchWidth || m.Values[ValueCeiling] != 1 || m.Values[ValueLimited] != 0 {
		t.Errorf("%+v", m)
	}
	pdr := m.Raw.(ndrRaw).Results[1].Lower
	for _, share := range DelayShares() {
		name, load := DelayName(ValueTypical, share), pdr*float64(share)/100
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
	if m := c.Result(); m.Values[MetricNDR] != 2 || m.Values[ValueLimited] != 1 {
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
