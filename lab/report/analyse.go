package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// Trust says what the duplicates of the baseline (A/A) found: no more than chance does, if the run is sound.
type Trust struct {
	Comparisons int     `json:"comparisons"` // A/A, of all parts, groups and metrics
	Same        int     `json:"same"`        // not told apart
	Different   int     `json:"different"`   // told apart by the test, within the margin too
	TooFew      int     `json:"too_few"`
	Apart       float64 `json:"apart,omitempty"` // median of how far off they are, a ratio above 1
	WorstApart  float64 `json:"worst_apart,omitempty"`
	LeastBlocks int     `json:"least_blocks"` // of a comparison
	MostBlocks  int     `json:"most_blocks"`
	Sound       bool    `json:"sound"` // no more differences than chance explains
	Sentence    string  `json:"sentence"`
}

// chance of so many false alarms or more under which the run is not trusted. Comparisons of one run share trials, so that their alarms come together.
const chance = 0.001

func trust(r lab.Results) Trust {
	t := Trust{LeastBlocks: math.MaxInt}
	var apart []float64
	for _, p := range r.Parts {
		for _, g := range p.Groups {
			for _, m := range g.Metrics {
				d := m.Comparison.Duplicate
				if b := base(m, p.Part.Baseline); b.Skipped != "" && d.Blocks == 0 {
					continue
				}
				t.Comparisons++
				t.LeastBlocks, t.MostBlocks = min(t.LeastBlocks, d.Blocks), max(t.MostBlocks, d.Blocks)
				switch {
				case !d.Decided(), d.Bounds > 0: // of bounds no difference can be found
					t.TooFew++
					continue
				case d.Apart():
					t.Different++
				default:
					t.Same++
				}
				apart = append(apart, max(d.Ratio, 1/d.Ratio))
			}
		}
	}
	if t.Comparisons == 0 {
		t.LeastBlocks = 0
	}
	if len(apart) > 0 {
		t.Apart, t.WorstApart = stats.Median(apart), slices.Max(apart)
	}
	told := t.Same + t.Different
	t.Sound = told > 0 && atLeast(t.Different, told, stats.Alpha) >= chance
	expected := fmt.Sprintf("%.0f of %d by chance", stats.Alpha*float64(told), told)
	switch {
	case told == 0:
		t.Sentence = fmt.Sprintf("No comparison has the %d complete blocks that a verdict needs: nothing can be claimed yet.", stats.MinBlocks)
	case t.Sound:
		t.Sentence = fmt.Sprintf("The baseline was told from its own duplicate (A/A) in %d of %d comparisons; expected are %s.", t.Different, told, expected)
	default:
		t.Sentence = fmt.Sprintf("The baseline was told from its own duplicate (A/A) in %d of %d comparisons, more than chance explains (%s): do not trust this run.", t.Different, told, expected)
	}
	if len(r.Refused) > 0 {
		t.Sound = false
		t.Sentence = fmt.Sprintf("Values contradict the raw counts: do not trust this run (%s). %s", strings.Join(r.Refused, "; "), t.Sentence)
	}
	return t
}

func allSkipped(m lab.MetricResult) bool {
	return !slices.ContainsFunc(m.Values, func(v lab.Value) bool { return v.Skipped == "" || v.N > 0 })
}

// atLeast is the probability of k or more of n at probability p each.
func atLeast(k, n int, p float64) float64 {
	below := 0.0
	for i := range k {
		lg := func(x int) float64 { v, _ := math.Lgamma(float64(x) + 1); return v }
		below += math.Exp(lg(n) - lg(i) - lg(n-i) + float64(i)*math.Log(p) + float64(n-i)*math.Log(1-p))
	}
	return 1 - below
}

// Sense of a level beside the baseline.
type Sense string

const (
	Better  Sense = "better"
	Worse   Sense = "worse"
	Same    Sense = "equivalent"
	Unknown Sense = "too few blocks"
	// Open is neither: see stats.Inconclusive.
	Open    Sense = "inconclusive"
	NoRatio Sense = "no ratio"
	Skipped Sense = "skipped"
	// Unclaimed: see stats.NotClaimed.
	Unclaimed Sense = "not claimed"
)

// Finding answers a part's question with its first metric.
type Finding struct {
	Part     string         `json:"part"`
	Question string         `json:"question"`
	Metric   study.Metric   `json:"metric"`
	Baseline string         `json:"baseline"`
	Group    string         `json:"group,omitempty"` // to which the sentence belongs: what was published, or the middle one
	Trusted  bool           `json:"trusted"`         // its baseline is not told from its duplicate
	Levels   []LevelFinding `json:"levels"`
	Sentence string         `json:"sentence"`
	More     []string       `json:"more,omitempty"` // the other groups

	lines []string // the sentence in pieces: its lead, then its clauses
}

// LevelFinding is one level of the compared factor.
type LevelFinding struct {
	Level string      `json:"level"`
	Sense Sense       `json:"sense"`
	Ratio stats.Ratio `json:"ratio"`
	Why   string      `json:"why,omitempty"` // of skipped
}

func findings(r lab.Results) []Finding {
	out := []Finding{}
	for _, p := range r.Parts {
		if len(p.Groups) > 0 && len(p.Groups[0].Metrics) > 0 {
			out = append(out, finding(p))
		}
	}
	return out
}

func finding(p lab.PartResult) Finding {
	at := headline(p)
	g := p.Groups[at]
	m := g.Metrics[0]
	f := Finding{
		Part: p.Part.Name, Question: p.Part.Question, Metric: m.Metric, Baseline: p.Part.Baseline, Group: g.Name,
		Trusted: trusted(m.Comparison.Duplicate), Levels: []LevelFinding{},
	}
	var clauses []string
	skipped := map[string][]string{} // levels, by reason
	for _, v := range m.Values {
		if v.Duplicate || v.Level == p.Part.Baseline {
			continue
		}
		l := LevelFinding{Level: v.Level, Ratio: m.Comparison.Variants[v.Level], Why: v.Skipped}
		l.Sense = sense(m.Metric, l.Ratio)
		if v.Skipped != "" && v.N == 0 {
			l.Sense = Skipped
		}
		f.Levels = append(f.Levels, l)
		if l.Sense == Skipped {
			if others := skipped[l.Why]; len(others) > 0 {
				i := slices.Index(clauses, skipClause(l.Why, others))
				clauses[i] = skipClause(l.Why, append(others, l.Level))
			} else {
				clauses = append(clauses, skipClause(l.Why, []string{l.Level}))
			}
			skipped[l.Why] = append(skipped[l.Why], l.Level)
			continue
		}
		clauses = append(clauses, clause(l, v, m.Metric))
	}
	f.lines = append([]string{f.lead(base(m, p.Part.Baseline))}, clauses...)
	f.Sentence = sentence(f.lines[0], clauses)
	if m.Comparison.Duplicate.Claimed() {
		f.More = append(f.More, "Its baseline differs from its own duplicate: this comparison is not to be trusted.")
	}
	for _, b := range p.Bounds {
		f.More = append(f.More, b.String()+".")
	}
	f.More = append(f.More, ranges(p, f)...)
	return f
}

// trusted unless the baseline differs from its duplicate by more than the margin, or nothing is claimed.
func trusted(d stats.Ratio) bool { return d.Decided() && !d.Claimed() && d.Verdict != stats.NotClaimed }

// headline chooses the group of the sentence: that of the first published figure, otherwise the middle of those with most verdicts. It knows
// nothing of the results' sizes.
func headline(p lab.PartResult) int {
	told := func(g lab.Group) (n int) {
		for _, r := range g.Metrics[0].Comparison.Variants {
			if r.Decided() {
				n++
			}
		}
		return n
	}
	for _, c := range p.Part.Claims {
		var fit []int
		named := false
		for i, g := range p.Groups {
			fits := told(g) > 0
			for factor, level := range g.Levels {
				if want, ok := c.At[factor]; ok {
					fits, named = fits && want == level, true
				}
			}
			if fits {
				fit = append(fit, i)
			}
		}
		if named && len(fit) > 0 {
			return fit[len(fit)/2]
		}
	}
	most := 0
	var best []int
	for i, g := range p.Groups {
		switch n := told(g); {
		case n > most:
			most, best = n, []int{i}
		case n == most:
			best = append(best, i)
		}
	}
	return best[len(best)/2]
}

func sense(m study.Metric, r stats.Ratio) Sense {
	switch r.Verdict {
	case stats.Equivalent:
		return Same
	case stats.Inconclusive:
		return Open
	case stats.NoRatio:
		return NoRatio
	case stats.NotClaimed:
		return Unclaimed
	case stats.Higher, stats.Lower:
		if (r.Verdict == stats.Higher) == (m.Better == "higher") {
			return Better
		}
		return Worse
	default:
		return Unknown
	}
}

func base(m lab.MetricResult, level string) lab.Value {
	for _, v := range m.Values {
		if v.Level == level && !v.Duplicate {
			return v
		}
	}
	return lab.Value{Level: level}
}

func clause(l LevelFinding, v lab.Value, m study.Metric) string {
	switch l.Sense {
	case Unknown:
		return fmt.Sprintf("%s has too few blocks (%d of %d)", l.Level, l.Ratio.Blocks, stats.MinBlocks)
	case NoRatio:
		if l.Ratio.Bounds > 0 {
			return fmt.Sprintf("%s has no ratio: it or the baseline is only a bound in %d of %d blocks%s", l.Level, l.Ratio.Bounds, l.Ratio.Blocks, found(v))
		}
		return fmt.Sprintf("%s has no ratio: it or the baseline, not both, was 0 in %d of %d blocks", l.Level, l.Ratio.Zeros, l.Ratio.Blocks)
	case Unclaimed:
		return fmt.Sprintf("nothing is claimed of %s, %s%s", l.Level, ratioText(l.Ratio), found(v))
	case Same:
		return fmt.Sprintf("%s is equivalent within %s, %s", l.Level, offText(l.Ratio.Margin), ratioText(l.Ratio))
	case Open:
		if l.Ratio.Bounds > 0 {
			return fmt.Sprintf("%s is inconclusive, %s, with bounds in %d of %d blocks%s", l.Level, ratioText(l.Ratio), l.Ratio.Bounds, l.Ratio.Blocks, found(v))
		}
		if l.Ratio.Detectable == 0 {
			return fmt.Sprintf("%s is inconclusive, %s, with too few blocks (%d) for the test (p %s)", l.Level, ratioText(l.Ratio), l.Ratio.Blocks, pText(l.Ratio.P))
		}
		return fmt.Sprintf("%s is inconclusive, %s; %s would have shown four times in five", l.Level, ratioText(l.Ratio), times(l.Ratio.Detectable))
	}
	text := fmt.Sprintf("%s is %s, %s", l.Level, l.Sense, ratioText(l.Ratio))
	if v.Median != nil {
		text += ", at " + lab.OpenSign(v.Open) + quantity(*v.Median, m.Unit)
	}
	return text + found(v)
}

// found is what FoundText says of a level, behind a comma.
func found(v lab.Value) string {
	if text := v.FoundText(); text != "" {
		return ", " + text
	}
	return ""
}

// skipClause says a reason once for all levels that have it.
func skipClause(why string, levels []string) string {
	if len(levels) == 1 {
		return levels[0] + " was skipped (" + why + ")"
	}
	last := len(levels) - 1
	return strings.Join(levels[:last], ", ") + " and " + levels[last] + " were skipped (" + why + ")"
}

const intervalWord = "95 % interval "

// ratioText is "3.10× (95 % interval 2.95× to 3.28×)".
func ratioText(r stats.Ratio) string {
	return lab.OpenSign(r.Open) + times(r.Ratio) + " (" + intervalWord + span(times, r.Interval) + ")"
}

// lead of a sentence: what is compared with what.
func (f Finding) lead(b lab.Value) string {
	var s strings.Builder
	if f.Group != "" {
		fmt.Fprintf(&s, "At %s: ", spaced(f.Group))
	}
	fmt.Fprintf(&s, "%s against %s", f.Metric.Name, f.Baseline)
	switch {
	case b.Median != nil:
		fmt.Fprintf(&s, " (%s%s%s)", lab.OpenSign(b.Open), quantity(*b.Median, f.Metric.Unit), found(b))
	case b.Skipped != "":
		fmt.Fprintf(&s, " (skipped: %s)", b.Skipped)
	}
	return s.String()
}

// sentence says once what the brackets hold.
func sentence(lead string, clauses []string) string {
	if len(clauses) == 0 {
		return lead + ": nothing else was measured."
	}
	first, rest, more := strings.Cut(lead+": "+strings.Join(clauses, "; ")+".", intervalWord)
	if more {
		first += intervalWord
	}
	return first + strings.ReplaceAll(rest, intervalWord, "")
}

// ranges tell each level over all groups.
func ranges(p lab.PartResult, f Finding) (out []string) {
	if len(p.Groups) < 2 {
		return nil
	}
	for _, l := range f.Levels {
		low, high := math.Inf(1), math.Inf(-1)
		var lowAt, highAt string
		counts := map[Sense]int{}
		told := 0
		for _, g := range p.Groups {
			r, ok := g.Metrics[0].Comparison.Variants[l.Level]
			if !ok || !r.Decided() {
				continue
			}
			told++
			counts[sense(f.Metric, r)]++
			if r.Ratio < low {
				low, lowAt = r.Ratio, g.Name
			}
			if r.Ratio > high {
				high, highAt = r.Ratio, g.Name
			}
		}
		if told < 2 {
			continue
		}
		var parts []string
		for _, s := range []Sense{Better, Worse, Open, Same} {
			if counts[s] > 0 {
				parts = append(parts, fmt.Sprintf("%s in %d", s, counts[s]))
			}
		}
		out = append(out, fmt.Sprintf("Over all: %s is %s of %d comparisons, from %s (%s) to %s (%s).", l.Level, strings.Join(parts, ", "), told,
			times(low), spaced(lowAt), times(high), spaced(highAt)))
	}
	return out
}

// Distribution of the samples of a variant, pooled over its valid trials. Percentiles are null where too few samples lie beyond them.
type Distribution struct {
	Part   string            `json:"part"`
	Metric study.Metric      `json:"metric"`
	Levels map[string]string `json:"levels"`
	Name   string            `json:"name"`
	N      int               `json:"n"`
	Min    float64           `json:"min"`
	P50    *float64          `json:"p50"`
	P90    *float64          `json:"p90"`
	P99    *float64          `json:"p99"`
	P999   *float64          `json:"p99_9"`
	Max    float64           `json:"max"`
	X      []float64         `json:"x"` // quantiles
	Q      []float64         `json:"q"` // at these shares
}

// cdfPoints bounds how many quantiles of a distribution are kept.
const cdfPoints = 120

func distributions(r lab.Results, trials []study.Record) []Distribution {
	out := []Distribution{}
	for _, p := range r.Study.Parts {
		pooled := map[string][]float64{}
		for _, t := range trials {
			if t.Trial.Part == p.Name && t.Void == "" && !t.Trial.Duplicate {
				k := strings.Join(t.Trial.Variant, ",")
				pooled[k] = append(pooled[k], slices.DeleteFunc(slices.Clone(t.Samples), func(v float64) bool { return !finite(v) })...)
			}
		}
		for _, v := range p.Variants() {
			s := pooled[strings.Join(v, ",")]
			if len(s) < 2*stats.MinBeyond {
				continue
			}
			slices.Sort(s)
			d := Distribution{Part: p.Name, Metric: p.Metrics[0], Levels: map[string]string{}, N: len(s), Min: s[0], Max: s[len(s)-1]}
			var name []string
			for i, f := range p.Factors {
				d.Levels[f.Name] = v[i]
				if f.Name == p.Compare {
					name = slices.Insert(name, 0, v[i])
				} else {
					name = append(name, f.Name+"="+v[i])
				}
			}
			d.Name = strings.Join(name, " ")
			for q, to := range map[float64]**float64{0.5: &d.P50, 0.9: &d.P90, 0.99: &d.P99, 0.999: &d.P999} {
				if x, ok := stats.Percentile(s, q); ok {
					*to = &x
				}
			}
			n := min(cdfPoints, len(s))
			for i := range n {
				q := float64(i) / float64(n-1)
				d.Q, d.X = append(d.Q, q), append(d.X, stats.Quantile(s, q))
			}
			out = append(out, d)
		}
	}
	return out
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func numbers(levels []string) (x []float64, ok bool) {
	for _, l := range levels {
		v, err := strconv.ParseFloat(l, 64)
		if err != nil || !finite(v) {
			return nil, false
		}
		x = append(x, v)
	}
	return x, len(x) > 0
}
