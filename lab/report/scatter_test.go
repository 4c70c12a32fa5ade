package report

import (
	"encoding/json"
	"testing"
	"time"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
	"weir.dev/weir/lab/traffic/tools"
)

const pairsStudy = `name: crowd
title: Pairs
parts:
  - name: many
    question: Who sends again?
    experiment: tcp-pairs
    metrics: [{name: client, unit: Gb/s, better: higher}, {name: retransmits, unit: segments, better: lower}]
    factors:
      - {name: network, levels: [bridge, macvlan, ovs-kernel]}
      - {name: pairs, levels: ["1", "4"]}
    compare: network
    baseline: bridge
    quick: {blocks: 2, duration: 1s}
    full: {blocks: 6, duration: 1s}
`

// Segments sent again stand against rates, a point a client, as far as trials count.
func TestScatterOfClients(t *testing.T) {
	f, err := study.Parse("crowd.yaml", []byte(pairsStudy), []string{"tcp-pairs"})
	if err != nil {
		t.Fatal(err)
	}
	j, err := study.Create(t.TempDir(), study.Header{Study: f.Study, Mode: study.Quick, Seed: 1, Started: time.Unix(0, 0).UTC(), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	raw, err := json.Marshal(tools.PairResult{Pairs: []tools.PairCount{
		{Bytes: 1e9, Window: time.Second, Retransmits: 9}, {Bytes: 2e9, Window: time.Second, Retransmits: 1}, {Bytes: 3e9, Window: time.Second}, {Bytes: 4e9, Window: time.Second},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, tr := range j.Left() {
		r := study.Record{Trial: tr, Begun: time.Unix(int64(i), 0).UTC(), Took: time.Second, Values: map[string]float64{"client": 20}, Raw: raw}
		switch {
		case tr.Variant[0] == "ovs-kernel":
			r.Skipped, r.Raw, r.Values = "this kernel lacks it", nil, nil
		case tr.Variant[0] == "macvlan" && tr.Block == 1:
			r.Void = "steal 21 %"
		}
		if err := j.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	report := Of(j)
	got, ok := report.scatter(report.Results.Parts[0])
	if !ok || got.Title != "Segments sent again against rate, by client at pairs=4" || len(got.Table.Rows) != 2 {
		t.Fatalf("%t, %s, %v", ok, got.Title, got.Table.Rows)
	}
	for i, want := range [][]string{{"bridge", "8", "20.0", "0"}, {"macvlan", "4", "10.0", "0"}} {
		for k := range want {
			if got.Table.Rows[i][k] != want[k] {
				t.Errorf("row %v: want %v", got.Table.Rows[i], want)
			}
		}
	}
	for _, width := range []float64{360, wide} {
		points := 0
		for _, m := range got.draw(width).marks {
			if m.kind == kindMarker && m.hint != "" {
				points++
			}
		}
		if points != 12 {
			t.Errorf("%d points: want one for each client", points)
		}
	}
	if _, ok := Of(synthetic(t, 30)).scatter(Of(synthetic(t, 30)).Results.Parts[0]); ok {
		t.Error("streams of one path have a scatter of clients")
	}
}

// A metric of pairs has a cluster of bars for each group, with what was published, as far as anything was measured.
func TestBarsOfPairs(t *testing.T) {
	p := lab.PartResult{Part: study.Part{
		Name: "many", Experiment: "tcp-pairs", Compare: "network", Baseline: "bridge", Metrics: []study.Metric{{Name: "rate", Unit: "Gb/s", Better: "higher"}},
		Factors: []study.Factor{{Name: "network", Levels: []string{"bridge", "ovs"}}, {Name: "pairs", Levels: []string{"1", "50", "100"}}},
		Claims: []study.Claim{
			{Metric: "rate", At: map[string]string{"pairs": "50"}, Systems: []string{"ovs", "bridge"}, Value: 70},
			{Metric: "rate", At: map[string]string{"pairs": "50"}, Systems: []string{"bridge"}, Value: 2, Against: map[string]string{"pairs": "1"}},
		},
	}}
	v := 10.0
	for _, n := range []string{"1", "50", "100"} {
		g := lab.Group{Name: "pairs=" + n, Levels: map[string]string{"pairs": n}, Metrics: []lab.MetricResult{{Metric: p.Part.Metrics[0], Values: []lab.Value{
			{Level: "bridge", Median: &v, Interval: &stats.Interval{Low: 9, High: 12}}, {Level: "bridge", Duplicate: true, Median: &v}, {Level: "ovs", Skipped: "this kernel lacks it"},
		}}}}
		if n == "100" { // left to another mode
			g.Metrics[0].Values = g.Metrics[0].Values[2:]
		}
		p.Groups = append(p.Groups, g)
	}
	f, ok := barFigure(p, 0, "many-rate-bars")
	if !ok {
		t.Fatal("no bars")
	}
	for _, width := range []float64{360, wide} {
		drawn, marks := 0, 0
		for _, m := range f.draw(width).marks {
			switch {
			case m.kind == kindLine && m.hint != "":
				drawn++
			case m.kind == kindMarker && m.hint != "":
				marks++
			}
		}
		if drawn != 2 || marks != 1 {
			t.Errorf("%d bars, %d published: want 2 and 1", drawn, marks)
		}
	}
	p.Part.Experiment = "tcp"
	if _, ok := barFigure(p, 0, "x"); ok {
		t.Error("streams of one path have bars")
	}
}
