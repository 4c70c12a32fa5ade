package lab

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// Text writes results as tables for a terminal.
func Text(w io.Writer, r Results) error {
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fmt.Fprintf(t, "%s (%s, seed %d, %s)\n", r.Study.Title, r.Mode, r.Seed, r.Started.Format(time.RFC3339))
	fmt.Fprintf(t, "%d trials: %d measured, %d void, %d skipped, %d left; %d times one was made again, since the machine had disturbed it\n", r.Planned, r.Measured, r.Void, r.Skipped, r.Left, r.Again)
	for _, text := range r.Refused {
		fmt.Fprintf(t, "DO NOT TRUST THIS RUN: %s\n", text)
	}
	if r.Left > 0 {
		fmt.Fprintln(t, "This is a partial result: weir lab resume goes on with it.")
	}
	for _, text := range r.ResumedText() {
		fmt.Fprintf(t, "This run %s\n", text)
	}
	for _, d := range r.Distrusted {
		fmt.Fprintf(t, "DO NOT TRUST %s\n", d)
	}
	for _, p := range r.Parts {
		fmt.Fprintf(t, "\n%s: %s\n", p.Part.Name, p.Part.Question)
		for _, g := range p.Groups {
			for _, m := range g.Metrics {
				metricTable(t, g.Name, m, p.Part.Baseline)
			}
		}
		partNotes(t, p)
	}
	fmt.Fprintf(t, "\nThe lab itself used %.2f cores while it measured (worst trial %.2f; the making of traffic is not counted) and %.0f MiB.\n", r.Overhead.CPU, r.Overhead.MaxCPU, r.Overhead.RSS)
	for _, l := range r.Limits {
		fmt.Fprintln(t, l)
	}
	return t.Flush()
}

func partNotes(w io.Writer, p PartResult) {
	if len(p.Conditions) > 0 {
		fmt.Fprintf(w, "measured with: %s\n", ConditionsText(p.Conditions))
	}
	for _, f := range p.Fits {
		slope := ""
		if f.Interval != nil {
			slope = " (" + span(f.Interval) + ")"
		}
		fmt.Fprintf(w, "line: %s of %s%s = %s + %s%s %s per %s, R2 %.3f\n", f.Metric.Name, f.Level, where(f.At), Figure(f.A), Figure(f.B), slope, f.Metric.Unit, study.One(f.Along), f.R2)
		if text := f.Text(); text != "" {
			fmt.Fprintf(w, "  %s of %s%s %s\n", f.Metric.Name, f.Level, where(f.At), text)
		}
	}
	for _, b := range p.Bounds {
		fmt.Fprintln(w, b)
	}
	for _, text := range []string{p.SetupsText(), p.EmulatedText()} {
		if text != "" {
			fmt.Fprintln(w, text)
		}
	}
	for _, c := range p.Claims {
		claimText(w, c)
	}
	reasons := map[string][]string{}
	for _, s := range p.Skips {
		reasons[s.Reason] = append(reasons[s.Reason], strings.Join(s.Variant, " "))
	}
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(w, "skipped: %s: %s\n", why, named(reasons[why]))
	}
	voids := map[string]int{}
	for _, v := range p.Voids {
		word, _, _ := strings.Cut(v.Reason, " ")
		voids[strings.TrimSuffix(word, ":")]++
	}
	for _, why := range slices.Sorted(maps.Keys(voids)) {
		fmt.Fprintf(w, "void: %d by %s\n", voids[why], why)
	}
}

// mostNamed variants that were skipped for one reason are named; results.json has all.
const mostNamed = 24

func named(variants []string) string {
	if more := len(variants) - mostNamed; more > 0 {
		return fmt.Sprintf("%s; and %d more (all in results.json)", strings.Join(variants[:mostNamed], "; "), more)
	}
	return strings.Join(variants, "; ")
}

// claimText says the rule before what was seen.
func claimText(w io.Writer, c ClaimResult) {
	fmt.Fprintf(w, "claim %s: %s [%s]: %s\n", c.Claim.ID, c.Claim.Text, c.Claim.Source, c.Verdict)
	for _, line := range c.Rule.Lines(c.Claim.IsTarget()) {
		fmt.Fprintf(w, "  %s\n", line)
	}
	for _, on := range c.Systems {
		ours := "nothing"
		if on.Ours != nil {
			ours = strings.TrimRight(Figure(*on.Ours)+" "+on.Unit, " ")
		}
		if on.Interval != nil {
			ours += " (" + span(on.Interval) + ")"
		}
		fmt.Fprintf(w, "  on %s we see %s: %s (%s)\n", c.SystemText(on), ours, on.Verdict, on.Why)
	}
}

func where(at map[string]string) string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(at)) {
		fmt.Fprintf(&out, " %s=%s", name, at[name])
	}
	return out.String()
}

// metricTable leaves out what was skipped: the part's notes say why.
func metricTable(w io.Writer, group string, m MetricResult, baseline string) {
	if !slices.ContainsFunc(m.Values, func(v Value) bool { return v.Skipped == "" || v.N > 0 }) {
		return
	}
	fmt.Fprintf(w, "%s\t%s\t95 %%\tCV\tn\tby %s\t95 %%\tverdict\n", strings.TrimSpace(group+" "+m.Metric.Name), m.Metric.Unit, baseline)
	for _, v := range m.Values {
		name := v.Level
		ratio, known := m.Comparison.Variants[v.Level]
		switch {
		case v.Duplicate:
			name, ratio, known = name+" again", m.Comparison.Duplicate, true
		case v.Level == baseline:
			known = false
		}
		if v.Skipped != "" && v.N == 0 {
			continue
		}
		cv := "-"
		if v.CV != nil {
			cv = fmt.Sprintf("%.1f %%", *v.CV*100)
		}
		median := "-"
		if v.Median != nil {
			median = OpenSign(v.Open) + Figure(*v.Median)
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%d", name, median, span(v.Interval), cv, v.N)
		switch {
		case !known:
			fmt.Fprint(w, "\t\t\tbaseline")
		case !ratio.Decided():
			fmt.Fprintf(w, "\t-\t\t%s", ratio.Verdict)
		default:
			fmt.Fprintf(w, "\t%s%.3f\t%.3f to %s\t%s", OpenSign(ratio.Open), ratio.Ratio, ratio.Interval.Low, upTo("%.3f", ratio.Interval.High), ratio.Verdict)
			switch {
			case ratio.Verdict == stats.Equivalent:
				fmt.Fprintf(w, " within %.0f %%", (ratio.Margin-1)*100)
			case ratio.Verdict == stats.Inconclusive && ratio.Bounds > 0:
				fmt.Fprintf(w, " (a bound in %d of %d blocks, p %.3f)", ratio.Bounds, ratio.Blocks, ratio.P)
			case ratio.Verdict == stats.Inconclusive && ratio.Detectable == 0:
				fmt.Fprintf(w, " (%d blocks are too few, p %.3f)", ratio.Blocks, ratio.P)
			case ratio.Verdict == stats.Inconclusive:
				fmt.Fprintf(w, " (%.1f %% would have shown)", (ratio.Detectable-1)*100)
			}
		}
		if known && ratio.Zeros > 0 {
			fmt.Fprintf(w, ", one of both 0 in %d of %d blocks", ratio.Zeros, ratio.Blocks)
		}
		if text := v.FoundText(); text != "" {
			fmt.Fprint(w, ", ", text)
		}
		fmt.Fprintln(w)
	}
}

func span(i *stats.Interval) string {
	if i == nil {
		return ""
	}
	return Figure(i.Low) + " to " + upTo("%s", i.High)
}

// upTo is the upper end of an interval; of one without it "∞".
func upTo(format string, high float64) string {
	switch {
	case math.IsInf(high, 1):
		return "∞"
	case format == "%s":
		return Figure(high)
	}
	return fmt.Sprintf(format, high)
}
