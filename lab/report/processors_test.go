package report

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// processorPart is a part on processors: bare metal and LXC on two networks, rkt nowhere.
func processorPart() lab.PartResult {
	p := lab.PartResult{Part: study.Part{
		Name: "one", Experiment: "processors", Compare: "runtime", Baseline: "bare", Settings: map[string]string{"hosts": "1", "processors": "1"},
		Metrics: []study.Metric{{Name: "received", Unit: "pps", Better: "higher"}, {Name: "mean", Unit: "us", Better: "lower"},
			{Name: "min", Unit: "us", Better: "lower"}, {Name: "max", Unit: "us", Better: "lower"}},
		Factors: []study.Factor{{Name: "runtime", Levels: []string{"bare", "lxc", "rkt"}}, {Name: "network", Levels: []string{"host", "nat"}}, {Name: "payload", Levels: []string{"28"}}},
		Claims: []study.Claim{
			{Metric: "received", At: map[string]string{"runtime": "bare", "network": "host"}, Value: 200000},
			{Metric: "mean", At: map[string]string{"runtime": "bare", "network": "host"}, Value: 1200},
		},
	}}
	for network, rates := range map[string][2]float64{"host": {1000, 700}, "nat": {900, 450}} {
		g := lab.Group{Name: "network=" + network + " payload=28", Levels: map[string]string{"network": network, "payload": "28"}}
		for _, m := range p.Part.Metrics {
			scale := map[string]float64{"received": 1, "min": 0.01, "mean": 0.1, "max": 10}[m.Name]
			bare, lxc := rates[0]*scale, rates[1]*scale
			g.Metrics = append(g.Metrics, lab.MetricResult{Metric: m, Values: []lab.Value{
				{Level: "bare", Median: &bare, Interval: &stats.Interval{Low: bare * 0.9, High: bare * 1.1}}, {Level: "bare", Duplicate: true, Median: &lxc},
				{Level: "lxc", Median: &lxc}, {Level: "rkt", Skipped: "rkt: not installed"},
			}})
		}
		p.Groups = append(p.Groups, g)
	}
	return p
}

// Losses are against bare metal on the host's own network, from the least to the greatest over the networks; what was not measured says so.
func TestTableOfLosses(t *testing.T) {
	f, ok := tableOfLosses(processorPart())
	if !ok {
		t.Fatal("no table")
	}
	var got []string
	for _, r := range f.Table.Rows {
		if r[2] == "28" && r[1] == "1" {
			got = append(got, strings.Join(r[3:], "|"))
		}
	}
	want := []string{"docker|" + none + "|0|47 % to 60 %", "rkt|" + none + "|0|65 % to 71 %", "lxc|30 % to 55 %|2|31 % to 35 %"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, width := range []float64{360, wide} {
		if len(f.draw(width).marks) == 0 {
			t.Error("nothing is drawn")
		}
	}
	p := processorPart()
	for i := range p.Groups { // without bare metal there is nothing to compare with
		p.Groups[i].Metrics[0].Values = p.Groups[i].Metrics[0].Values[2:]
	}
	if _, ok := tableOfLosses(p); ok {
		t.Error("losses against nothing")
	}
}

func TestPublishedLossesAreRead(t *testing.T) {
	all, err := publishedLosses()
	if err != nil || len(all) != 18 {
		t.Fatalf("%d losses, %v: want those of 6 rows and 3 runtimes", len(all), err)
	}
	for _, l := range all {
		if l.least > l.most || l.most >= 100 {
			t.Errorf("%+v", l)
		}
	}
}

// Rates have bars with a line of bare metal; latency has bars from the least to the greatest, on a logarithmic axis.
func TestFiguresOfProcessors(t *testing.T) {
	p := processorPart()
	for metric, want := range []struct {
		figures, bars, published int
		title                    string
	}{{1, 4, 1, "received, bars, 28 bytes"}, {1, 4, 1, "latency, bars, 28 bytes"}, {}, {}} {
		figures, drawn := processorFigures(p, metric, "x")
		if !drawn || len(figures) != want.figures {
			t.Fatalf("metric %d: %d figures, %t", metric, len(figures), drawn)
		}
		for _, f := range figures {
			bars, published := 0, 0
			for _, m := range f.draw(wide).marks {
				switch {
				case m.kind == kindLine && m.hint != "":
					bars++
				case m.kind == kindMarker && m.hint != "":
					published++
				}
			}
			if f.Title != want.title || bars != want.bars || published != want.published {
				t.Errorf("%s: %d bars, %d published: want %+v", f.Title, bars, published, want)
			}
		}
	}
	for _, c := range processorClusters(p, 0, "28") {
		if c.line != 1000 {
			t.Errorf("%s: the line is at %v: want bare metal's 1000 on the host's network", c.label, c.line)
		}
	}
	for _, c := range processorClusters(p, 1, "28") {
		if b := c.bars[1]; b.low >= b.value || b.high <= b.value {
			t.Errorf("%s: latency %v (%v to %v)", c.label, b.value, b.low, b.high)
		}
	}
	p.Part.Experiment = "tcp"
	if _, drawn := processorFigures(p, 0, "x"); drawn {
		t.Error("streams have the figures of processors")
	}
}
