package lab

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"weir.dev/weir/lab/claim"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// chainPart compares three systems along five lengths; "absent" was skipped.
func chainPart(claims ...study.Claim) study.Part {
	for i := range claims {
		claims[i].ID, claims[i].Metric = fmt.Sprint(i), "rtt"
	}
	return study.Part{
		Name: "one", Metrics: []study.Metric{{Name: "rtt", Unit: "us", Better: "lower"}}, Compare: "platform", Baseline: "bridges",
		Factors: []study.Factor{{Name: "platform", Levels: []string{"ebpf", "bridges", "ovs-chain", "absent"}}, {Name: "wires", Levels: []string{"1", "2", "5", "10", "20"}}},
		Claims:  claims,
	}
}

// chainRecords of 8 blocks: a line on bridges, a parabola on ebpf, and on ovs-chain something that does not depend on the length, in the first two lengths only.
func chainRecords(p study.Part) (records []study.Record) {
	for b := range 8 {
		for i, v := range p.Variants() {
			r := study.Record{Trial: study.Trial{Part: p.Name, Block: b, Variant: v}}
			var x float64
			fmt.Sscan(v[1], &x)
			noise := math.Exp(0.01 * float64((b*7+i*5)%9-4))
			switch {
			case v[0] == "absent":
				r.Skipped = "there is none"
			case v[0] == "ovs-chain" && x > 2:
				r.Skipped = "takes too long"
			default:
				r.Values = map[string]float64{"rtt": noise * map[string]float64{"bridges": 10 + 2*x, "ebpf": 5 + 0.1*x*x, "ovs-chain": 100}[v[0]]}
			}
			records = append(records, r)
		}
	}
	return records
}

func judged(t *testing.T, c study.Claim) ClaimResult {
	t.Helper()
	p := chainPart(c)
	return summarisePart(p, 8, chainRecords(p), 1).Claims[0]
}

// TestTheNearestSystemHasTheVerdict: what Weir offers instead stands beside it and does not count.
func TestTheNearestSystemHasTheVerdict(t *testing.T) {
	short := map[string]string{"wires": "1"}
	r := judged(t, study.Claim{At: map[string]string{"wires": "20"}, Against: short, Systems: []string{"bridges"}, Instead: []string{"ebpf"}, AtMost: 5})
	if len(r.Systems) != 2 || r.Verdict != claim.Reproduced || r.Systems[1].Verdict != claim.Contradicted || !r.Systems[1].Instead || r.Systems[0].Instead {
		t.Errorf("%+v", r)
	}
	if v := *r.Headline().Ours; v < 4 || v > 4.4 { // 50 : 12
		t.Errorf("ours is %v: it is related to another system", v)
	}
	if got := r.SystemText(r.Systems[0]) + "; " + r.SystemText(r.Systems[1]); got != "bridges, nearest to the published system; ebpf, Weir instead" {
		t.Error(got)
	}
	r = judged(t, study.Claim{At: short, Systems: []string{"absent", "bridges"}, Instead: []string{"ebpf"}, AtMost: 100})
	if r.Verdict != claim.NotTestable || r.Headline().Why != "there is none" || r.Systems[1].Verdict != claim.Reproduced {
		t.Errorf("the nearest system was skipped: %+v", r)
	}
	r = judged(t, study.Claim{At: map[string]string{"platform": "ebpf", "wires": "1"}, AtMost: 100})
	if r.Verdict != claim.Reproduced || r.Named() || !strings.Contains(r.SystemText(r.Headline()), "no nearer system is named") {
		t.Errorf("%+v", r)
	}
}

// A claim about every system holds as far as on the worst of those that could be judged.
func TestAClaimAboutEverySystem(t *testing.T) {
	at, short := map[string]string{"wires": "20"}, map[string]string{"wires": "1"}
	both := study.Claim{At: at, Against: short, Systems: []string{"absent", "bridges", "ebpf"}, Every: true, AtMost: 5}
	r := judged(t, both)
	if r.Verdict != claim.Contradicted || r.Headline().System != "ebpf" || r.SystemText(r.Systems[1]) != "bridges, one of which all are claimed" {
		t.Errorf("%s on %s", r.Verdict, r.Headline().System)
	}
	both.AtMost = 50
	if r = judged(t, both); r.Verdict != claim.Reproduced || r.Headline().System != "bridges" {
		t.Errorf("%s on %s", r.Verdict, r.Headline().System)
	}
	both.Systems, both.Instead = []string{"absent", "bridges"}, []string{"ebpf"}
	if both.AtMost = 5; judged(t, both).Verdict != claim.Reproduced {
		t.Error("what stands beside it counts")
	}
	both.Systems, both.Instead = []string{"absent", "gone"}, nil
	if r = judged(t, both); r.Verdict != claim.NotTestable {
		t.Errorf("nothing was measured: %s", r.Verdict)
	}
}

// TestAFigureOfOtherHardwareIsShown, not judged.
func TestAFigureOfOtherHardwareIsShown(t *testing.T) {
	for _, value := range []float64{12, 1, 1000} {
		r := judged(t, study.Claim{At: map[string]string{"wires": "1"}, Systems: []string{"bridges"}, Value: value})
		if r.Verdict != claim.NotTestable || r.Headline().Ours == nil || r.Headline().Interval == nil {
			t.Errorf("%v: %+v", value, r)
		}
	}
}

func TestMarginsAreThoseOfTheTests(t *testing.T) {
	if got := (study.Metric{}).Band(); got != stats.Margin {
		t.Errorf("a metric without a margin: %v, want %v", got, stats.Margin)
	}
}

func TestShapesAreJudged(t *testing.T) {
	linear := study.Claim{Shape: study.Linear, Along: "wires"}
	for system, want := range map[string]claim.Verdict{"bridges": claim.Reproduced, "ebpf": claim.SameDirection, "ovs-chain": claim.NotTestable, "absent": claim.NotTestable} {
		c := linear
		c.Systems = []string{system}
		r := judged(t, c)
		if r.Verdict != want || r.Headline().Why == "" {
			t.Errorf("%s: %s (%s): want %s", system, r.Verdict, r.Headline().Why, want)
		}
		if s := r.Headline().Shape; (s != nil) != (want != claim.NotTestable) || s != nil && system == "ebpf" && !(s.Behind["quadratic"].High < 0) {
			t.Errorf("%s: %+v", system, s)
		}
		if system == "ovs-chain" && r.Headline().Why != "2 levels of wires are in this run: a shape stands on at least 5" {
			t.Error(r.Headline().Why)
		}
	}
	falls := study.Claim{Shape: study.Inverse, Along: "wires", Systems: []string{"bridges"}}
	if r := judged(t, falls); r.Verdict != claim.Contradicted {
		t.Errorf("what grows does not fall: %+v", r)
	}
}

// TestShapesStandOnWhatWasMeasured: a curve is not called a line, nor is anything said of blocks that are not complete or of a 0.
func TestShapesStandOnWhatWasMeasured(t *testing.T) {
	judged := func(at func(x float64, block int) float64) ClaimResult {
		p := chainPart(study.Claim{Shape: study.Linear, Along: "wires", Systems: []string{"bridges"}})
		var records []study.Record
		for b := range 8 {
			for i, v := range p.Variants() {
				var x float64
				fmt.Sscan(v[1], &x)
				r := study.Record{Trial: study.Trial{Part: p.Name, Block: b, Variant: v}}
				if y := at(x, b); y >= 0 {
					r.Values = map[string]float64{"rtt": y * math.Exp(0.01*float64((b*7+i*5)%9-4))}
				} else {
					r.Void = "as it is wanted"
				}
				records = append(records, r)
			}
		}
		return summarisePart(p, 8, records, 1).Claims[0]
	}
	line := func(x float64) float64 { return 10 + 2*x }
	for name, c := range map[string]struct {
		at   func(x float64, block int) float64
		want claim.Verdict
		why  string
	}{
		"a line":                         {func(x float64, _ int) float64 { return line(x) }, claim.Reproduced, "the nearest other law (exponential) is worse by"},
		"exponential growth to 2.5-fold": {func(x float64, _ int) float64 { return 10 * math.Pow(2.5, (x-1)/19) }, claim.SameDirection, "exponential is better by"},
		"a step":                         {func(x float64, _ int) float64 { return 10 + 10*min(1, math.Floor(x/5)) }, claim.SameDirection, "off, noise apart"},
		"two blocks without a level each": {func(x float64, b int) float64 {
			if b == 1 && x == 2 || b == 2 && x == 20 {
				return -1
			}
			return line(x)
		}, claim.Reproduced, "is worse by"},
		"three blocks without a level each": {func(x float64, b int) float64 {
			if b < 3 && x == []float64{1, 5, 20}[b] {
				return -1
			}
			return line(x)
		}, claim.Inconclusive, "5 complete blocks: want at least 6"},
		"a 0": {func(x float64, b int) float64 { return line(x) * min(1, math.Abs(x-5)+float64(b)) }, claim.NotTestable, "a value is not above 0"},
	} {
		r := judged(c.at)
		if on := r.Headline(); r.Verdict != c.want || !strings.Contains(on.Why, c.why) {
			t.Errorf("%s: %s (%s): want %s (%s)", name, r.Verdict, on.Why, c.want, c.why)
		}
	}
}

// TestStudiesMeasureTheLevelsOfTheirShapes in both modes: on the nearest system at least five.
func TestStudiesMeasureTheLevelsOfTheirShapes(t *testing.T) {
	shapes := 0
	for _, name := range Studies() {
		s, err := Load(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range s.Parts {
			for _, c := range p.Claims {
				if c.Shape == "" {
					continue
				}
				shapes++
				for _, mode := range []study.Mode{study.Quick, study.Full} {
					for _, system := range append(c.Systems, c.Instead...) {
						at, _ := c.Places(p.Compare, system)
						along, _ := p.Factor(c.Along)
						n := 0
						for _, level := range along.Levels {
							at[c.Along] = level
							v, why := variantAt(p, at)
							if why != "" {
								t.Fatal(why)
							}
							if !p.Leaves(p.Plan(mode), v) {
								n++
							}
						}
						if n < study.MinLevels {
							t.Errorf("%s %s %s: %s of --%s leaves %d levels of %s on %s", name, p.Name, c.ID, c.Shape, mode, n, c.Along, system)
						}
					}
				}
			}
		}
	}
	if shapes == 0 {
		t.Error("no study has a shape")
	}
}
