package report

import (
	"fmt"
	"slices"
	"testing"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/study"
)

// twinPart has rates and throughputs of two platforms, 64 and 1514 bytes, one of which was not measured at 8 wires.
func twinPart() lab.PartResult {
	p := lab.PartResult{Part: study.Part{
		Name: "single", Compare: "platform", Baseline: "ovs",
		Metrics: []study.Metric{{Name: "rate", Unit: "Mpps", Better: "higher"}, {Name: "throughput", Unit: "Gb/s", Better: "higher"}},
		Factors: []study.Factor{{Name: "platform", Levels: []string{"ovs", "ebpf"}}, {Name: "wires", Levels: []string{"1", "4", "8"}}, {Name: "size", Levels: []string{"64", "1514"}}},
	}}
	for i, wires := range []string{"1", "4", "8"} {
		for _, size := range []string{"64", "1514"} {
			g := lab.Group{Name: fmt.Sprintf("wires=%s,size=%s", wires, size), Levels: map[string]string{"wires": wires, "size": size}, Metrics: make([]lab.MetricResult, 2)}
			for k, platform := range []string{"ovs", "ovs", "ebpf"} {
				rate := float64(1+k) / float64(1+i)
				bits := rate * map[string]float64{"64": 0.48, "1514": 12.1}[size]
				a, b := lab.Value{Level: platform, Duplicate: k == 1, Median: &rate}, lab.Value{Level: platform, Duplicate: k == 1, Median: &bits}
				if platform == "ebpf" && wires == "8" {
					a.Median, b.Median = nil, nil
				}
				g.Metrics[0].Values, g.Metrics[1].Values = append(g.Metrics[0].Values, a), append(g.Metrics[1].Values, b)
			}
			p.Groups = append(p.Groups, g)
		}
	}
	return p
}

// Rates are bars on the left axis and throughputs points on the right one, a figure for each platform, with the sizes of frames side by side.
func TestRatesAndThroughputsHaveAnAxisEach(t *testing.T) {
	figures := twinFigures(twinPart())
	if len(figures) != 2 {
		t.Fatalf("%d figures: want one for each platform", len(figures))
	}
	for i, cells := range []int{6, 4} {
		f := figures[i]
		if len(f.Table.Rows) != cells || f.Table.Rows[1][2] != "1514" {
			t.Errorf("%s: %v: want %d rows", f.Title, f.Table.Rows, cells)
		}
		for _, width := range []float64{narrow, wide} {
			c := f.draw(width)
			var bars, points []mark
			for _, m := range c.marks {
				switch {
				case m.kind == kindLine && m.hint != "":
					bars = append(bars, m)
				case m.kind == kindMarker && m.hint != "":
					points = append(points, m)
				}
			}
			if len(bars) != cells || len(points) != cells {
				t.Fatalf("%s: %d bars and %d points: want %d", f.Title, len(bars), len(points), cells)
			}
			// The same rate has the same height whatever the size; the throughput of small frames is lower than that of large ones.
			if bars[0].y2 != bars[1].y2 || points[0].y <= points[1].y || bars[0].y2 >= bars[2].y2 {
				t.Errorf("%s: bars %+v, points %+v", f.Title, bars, points)
			}
			if outside := slices.IndexFunc(c.marks, func(m mark) bool { return m.x < -1 || m.x > width+1 || m.y < 0 || m.y > c.h }); outside >= 0 {
				t.Errorf("%s at %.0f px: outside of the drawing: %+v", f.Title, width, c.marks[outside])
			}
		}
	}
	p := twinPart()
	p.Part.Metrics[1].Unit = "us"
	if figures := twinFigures(p); len(figures) > 0 {
		t.Errorf("without a throughput: %d figures", len(figures))
	}
}
