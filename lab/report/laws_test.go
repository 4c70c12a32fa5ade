package report

import (
	"fmt"
	"math"
	"testing"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/study"
)

// A search for the highest load gives the chain law, too: what a hop costs where the chain has a CPU of its own. Delays beside it do not take its
// place; a cost that is measured does.
func TestSearchesHaveAChainLaw(t *testing.T) {
	part := func(metrics ...study.Metric) lab.PartResult {
		p := lab.PartResult{Part: study.Part{
			Name: "limits", Metrics: metrics, Compare: "platform", Baseline: "bridges",
			Factors: []study.Factor{{Name: "platform", Levels: []string{"bridges"}}, {Name: "wires", Levels: []string{"1", "9", "50"}}},
		}}
		for _, wires := range []float64{1, 9, 50} {
			g := lab.Group{Name: fmt.Sprintf("wires=%v", wires), Levels: map[string]string{"wires": fmt.Sprint(wires)}}
			for i, m := range metrics {
				v := lab.Value{Level: "bridges"}
				for block := range 8 { // 1000 ns and 200 a hop at NDR, 10 % less at PDR; a percent of drift
					rate := 1e3 / (1000 + 200*wires) * (1 + 0.1*float64(i)) * (1 + 0.01*float64(block%3-1))
					v.Blocks, v.N = append(v.Blocks, &rate), v.N+1
				}
				g.Metrics = append(g.Metrics, lab.MetricResult{Metric: m, Values: []lab.Value{v}})
			}
			p.Groups = append(p.Groups, g)
		}
		return p
	}
	ndr, pdr := study.Metric{Name: "ndr", Unit: "Mpps", Better: "higher"}, study.Metric{Name: "pdr", Unit: "Mpps", Better: "higher"}
	got := laws(lab.Results{Parts: []lab.PartResult{part(ndr, pdr, study.Metric{Name: "typical-0", Unit: "us", Better: "lower"})}})
	if len(got) != 2 {
		t.Fatalf("%+v: want a law of NDR and one of PDR", got)
	}
	for name, want := range map[string]float64{"time of a packet at NDR": 200, "time of a packet at PDR": 200 / 1.1} {
		l := got[0]
		if l.Metric != name {
			l = got[1]
		}
		if l.Metric != name || l.Unit != "ns" || l.Along != "wires" || math.Abs(l.B/want-1) > 0.03 || l.Interval == nil || !l.Interval.Contains(want) {
			t.Errorf("%+v: want %s, %v ns a hop", l, name, want)
		}
	}
	if got := laws(lab.Results{Parts: []lab.PartResult{part(ndr, study.Metric{Name: "cost", Unit: "ns", Better: "lower"})}}); len(got) != 0 {
		t.Errorf("the cost is measured: %+v", got)
	}
}
