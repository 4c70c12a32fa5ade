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
		c, err := newNDRCourse(100*time.Millisecond, 0)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const limit = 300_000
	c := newCourse()
	whats := tell(t, c, limit, 2e6, 1e6)
	want := []string{StepNDR, StepTryPDR, StepPDR, StepPDR, StepPDR, "delay at 1 %", "delay at 10 %", "delay at 50 %", "delay at 90 %"}
	if diff := cmp.Diff(want, whats[len(whats)-len(want):]); whats[0] != StepCeiling || diff != "" {
		t.Errorf("first %s, last:\n%s", whats[0], diff)
	}
	m := c.Result()
	if m.Void != "" || math.Abs(m.Values[MetricNDR]/0.3-1) > SearchWidth || math.Abs(m.Values[MetricPDR]/(0.3/(1-PDRLoss))-1) > SearchWidth || m.Values[ValueCeiling] != 1 || m.Values[ValueLimited] != 0 {
		t.Errorf("%+v", m)
	}
	pdr := m.Raw.(NDRRaw).Verification[1].Load
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
	if m := c.Result(); m.Values[ValueLimited] != 1 || !m.Raw.(NDRRaw).Limited {
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
	m = c.Result()
	raw, _ := m.Raw.(NDRRaw)
	r, ok := raw.Range(GoalNDR)
	if v, has := m.Values[MetricNDR]; m.Void != "" || !has || v != 0 || !ok || r.Low != 0 || r.High != 8000 || !strings.Contains(raw.Verification[0].Why, "not even 8000 frames") {
		t.Errorf("nothing passes: %+v, %+v", m, r)
	}
	c = newCourse()
	tell(t, c, 10, 100, 100)
	if m := c.Result(); !strings.Contains(m.Void, "the generator sends 100 frames") {
		t.Errorf("nothing is sent: %+v", m)
	}
	if _, err := newNDRCourse(0, 0); err == nil {
		t.Error("trials without a length are accepted")
	}
}

// through tells a course what outcome says of its steps, to the end.
func through(t *testing.T, c *ndrCourse, outcome func(n Next) map[string]float64) (whats map[string]int) {
	t.Helper()
	whats = map[string]int{}
	for n, ok := c.Next(); ok; n, ok = c.Next() {
		if whats[n.What]++; whats[n.What] > 500 {
			t.Fatal("does not end")
		}
		if n.What == StepCeiling {
			c.Tell(map[string]float64{ValueSent: 2e6, ValueArrived: 2e6})
			continue
		}
		c.Tell(outcome(n))
	}
	return whats
}

// TestResultsAreVerified: long trials lose more than short ones. What they lose nothing at is the result; where there is none, none is told, and the
// bounds are.
func TestResultsAreVerified(t *testing.T) {
	const limit, long = 300_000, 200_000
	path := func(n Next) map[string]float64 {
		most := float64(limit)
		if n.What == StepNDR || n.What == StepPDR {
			most = long
			if n.Length != 4*time.Second {
				t.Errorf("a trial that verifies takes %s: want 40 times 100ms", n.Length)
			}
		}
		return map[string]float64{ValueLoss: max(0, 1-most/n.Load), ValueOffered: 1, ValueTypical: 1}
	}
	c, err := newNDRCourse(100*time.Millisecond, 0)
	if err != nil {
		t.Fatal(err)
	}
	through(t, c, path)
	m := c.Result()
	for _, v := range m.Raw.(NDRRaw).Verification {
		if v.Load > long/(1-PDRLoss) || v.Load < 0.9*long || v.Upper <= v.Load {
			t.Errorf("%+v: want a load near %d", v, long)
		}
	}
	if m.Values[MetricNDR] <= 0 || m.Values[MetricNDR] > long/1e6 || m.Void != "" {
		t.Errorf("%+v", m)
	}
	// A frame is lost at any load: no NDR.
	c, _ = newNDRCourse(100*time.Millisecond, time.Second)
	through(t, c, func(n Next) map[string]float64 {
		v := path(Next{What: StepSearch, Load: n.Load})
		if n.What == StepNDR {
			v[ValueLoss] = 1e-6
		}
		return v
	})
	m = c.Result()
	ndr := m.Raw.(NDRRaw).Verification[0]
	r, known := m.Raw.(NDRRaw).Range(GoalNDR)
	if v, ok := m.Values[MetricNDR]; !ok || v != 0 || !known || r.Low != 0 || r.High != ndr.Upper || ndr.Goal != GoalNDR || !strings.Contains(ndr.Why, "not found between") || ndr.Upper <= 0 || m.Values[MetricPDR] <= 0 || m.Void != "" {
		t.Errorf("%+v, %+v", ndr, m)
	}
	// A machine that stalls whenever something is verified gives no result, and says why.
	c, _ = newNDRCourse(100*time.Millisecond, time.Second)
	through(t, c, func(n Next) map[string]float64 {
		v := path(Next{What: StepSearch, Load: n.Load})
		if n.What != StepSearch {
			v[ValueStalled] = 2 * MostStalled
		}
		return v
	})
	if m := c.Result(); !strings.Contains(m.Void, "the machine stalls") {
		t.Errorf("%+v", m)
	}
	if _, err := newNDRCourse(100*time.Millisecond, time.Millisecond); err == nil {
		t.Error("a result is verified by less than it stands on")
	}
}

// TestLoadThatWasNotOffered: the generator cannot send more than some load to this path, which takes all of it. The result is a lower bound.
func TestLoadThatWasNotOffered(t *testing.T) {
	const most = 500_000
	c, err := newNDRCourse(100*time.Millisecond, 0)
	if err != nil {
		t.Fatal(err)
	}
	through(t, c, func(n Next) map[string]float64 {
		return map[string]float64{ValueLoss: 0, ValueOffered: min(1, most/n.Load)}
	})
	m := c.Result()
	if off := m.Values[MetricNDR]*1e6/most - 1; math.Abs(off) > 2*SearchWidth || m.Values[ValueLimited] != 1 || m.Raw.(NDRRaw).Denied == 0 {
		t.Errorf("%+v", m)
	}
}
