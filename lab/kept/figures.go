package kept

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/claim"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// tableRuns is the table of all runs. It is not selected, but always there.
const tableRuns = "runs"

// figures are made of runs that are kept.
type figures struct {
	dir       string
	index     Index
	selection Selection
	runs      map[string]*run
}

func newFigures(dir string) (*figures, error) {
	x, err := ReadIndex(dir)
	if err != nil {
		return nil, err
	}
	s, err := readSelection(dir)
	return &figures{dir, x, s, map[string]*run{}}, err
}

func (f *figures) run(name string) (*run, error) {
	if r := f.runs[name]; r != nil {
		return r, nil
	}
	row, err := f.index.Row(name)
	if err != nil {
		return nil, err
	}
	r, err := readRun(f.dir, row)
	if err != nil {
		return nil, err
	}
	f.runs[name] = r
	return r, nil
}

// table in Markdown; link makes the address of a file of the directory of runs as the page reaches it.
func (f *figures) table(name string, link func(string) string) (string, error) {
	if name == tableRuns {
		return f.allRuns(link), nil
	}
	i := slices.IndexFunc(f.selection.Tables, func(t Table) bool { return t.Name == name })
	if i < 0 {
		return "", fmt.Errorf("%s has no table %q", selectionName, name)
	}
	t := f.selection.Tables[i]
	var rows [][]string
	var of []string // runs
	for _, l := range t.Lines {
		from := orElse(l.Run, t.Run)
		of = append(of, from)
		var row []string
		var err error
		if t.Again != "" {
			row, err = f.agree(l, from, t.Again)
			of = append(of, t.Again)
		} else {
			row, err = f.line(l, from, t.Peer != "")
		}
		if err != nil {
			return "", fmt.Errorf("table %s, %q: %w", name, l.What, err)
		}
		rows = append(rows, row)
	}
	for _, id := range t.Claims {
		from := orElse(id.Run, t.Run)
		row, err := f.claim(id.ID, from)
		if err != nil {
			return "", fmt.Errorf("table %s, claim %s: %w", name, id.ID, err)
		}
		rows, of = append(rows, row), append(of, from)
	}
	heads := []string{"", t.Ours, orElse(t.Peer, "peer"), "ratio (95 % interval, or quartiles)", "lost: " + t.Ours + ", " + orElse(t.Peer, "peer"), "n", "verdict"}
	switch {
	case len(t.Claims) > 0:
		heads = []string{"", t.Ours + " (95 % interval)", "verdict"}
	case t.Again != "":
		heads = []string{"", t.Run + " (95 % interval)", t.Again + " (95 % interval)", "verdict"}
	}
	var b strings.Builder
	b.WriteString(markdown(heads, rows))
	told, err := f.about(slices.Concat(of, t.Tell), link)
	return b.String() + told, err
}

// about the runs of a table, each once.
func (f *figures) about(of []string, link func(string) string) (string, error) {
	var b strings.Builder
	seen := map[string]bool{}
	for _, name := range of {
		if seen[name] {
			continue
		}
		seen[name] = true
		r, err := f.run(name)
		if err != nil {
			return "", err
		}
		if len(seen) == 1 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "- %s", r.about(link(name)))
		if len(r.row.Wrong) > 0 {
			fmt.Fprintf(&b, " [Known mistakes](%s): %s.", link("runs.md#mistakes"), f.wrong(r.row))
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}

// markdown leaves columns out that are empty in all rows.
func markdown(heads []string, rows [][]string) string {
	var b strings.Builder
	write := func(cells []string) {
		for i, c := range cells {
			if i == 0 || slices.ContainsFunc(rows, func(r []string) bool { return r[i] != "" }) {
				fmt.Fprintf(&b, "| %s ", c)
			}
		}
		b.WriteString("|\n")
	}
	write(heads)
	rule := make([]string, len(heads))
	for i := range rule {
		rule[i] = "---"
	}
	write(rule)
	for _, r := range rows {
		write(r)
	}
	return strings.ReplaceAll(strings.ReplaceAll(b.String(), "|  |", "| |"), "|  |", "| |")
}

// line of a table: what, ours, the peer's, ratio, losses, blocks, verdict.
func (f *figures) line(l Line, from string, named bool) ([]string, error) {
	r, err := f.run(from)
	switch {
	case err != nil:
		return nil, err
	case l.Bench != "" && r.bench != nil:
		return r.benchLine(l, named)
	case l.Bench == "" && r.journal != nil:
		return r.labLine(l, named)
	}
	return nil, fmt.Errorf("run %s has no such results", from)
}

func (r *run) benchLine(l Line, named bool) ([]string, error) {
	b, ok := r.bench[l.Bench]
	if !ok {
		return nil, fmt.Errorf("run %s has no result %q", r.row.Run, l.Bench)
	}
	unit, times := orElse(l.Unit, b.Unit), scale(l.Times)
	cells := []string{l.What, quantity(b.Weir*times, unit), "", "", "", fmt.Sprint(len(b.Runs)), ""}
	low, high := b.Weir*times, b.Weir*times
	if b.PeerIs != "" && !l.Alone {
		cells[2] = beside(b.Peer*times, orElse(l.Peer, b.PeerIs), named)
		cells[3], low, high = number(b.Ratio), b.Ratio, b.Ratio
		if len(b.Quartiles) == 2 {
			cells[3] += fmt.Sprintf(" (quartiles %s to %s)", number(b.Quartiles[0]), number(b.Quartiles[1]))
		}
	}
	if isRate(unit) {
		cells[4] = "not recorded"
	}
	return cells, aim(cells, l.Target, low, high)
}

// aim puts a target and whether it is met behind the verdict.
func aim(cells []string, text string, low, high float64) error {
	if text == "" {
		return nil
	}
	t, err := parseTarget(text)
	last := len(cells) - 1
	if cells[last] != "" {
		cells[last] += "; "
	}
	cells[last] += t.judge(low, high)
	return err
}

func quantity(v float64, unit string) string {
	if unit == "" {
		return number(v)
	}
	return number(v) + " " + unit
}

func beside(v float64, peer string, named bool) string {
	if named || peer == "" {
		return number(v)
	}
	return number(v) + ", " + peer
}

// isRate tells whether a figure of the unit stands only beside what was lost.
func isRate(unit string) bool { return unit == "Gb/s" || unit == "Mpps" }

func (r *run) labLine(l Line, named bool) ([]string, error) {
	p, err := r.part(l.Part)
	if err != nil {
		return nil, err
	}
	v, err := variant(p.Part, l.At)
	if err != nil {
		return nil, err
	}
	value, m, err := valueOf(p, l.Metric, v)
	if err != nil {
		return nil, err
	}
	x := pick{run: r, line: l, part: p, metric: m, ours: v, value: value}
	unit := orElse(l.Unit, m.Metric.Unit)
	if isRate(unit) && l.Lost == nil {
		return nil, fmt.Errorf("%s is a rate: want what was lost beside it", l.Metric)
	}
	cells := []string{l.What, "", "", "", "", "", ""}
	if l.Alone {
		err = x.alone(cells, unit)
	} else {
		err = x.compared(cells, unit, named)
	}
	if err != nil {
		return nil, err
	}
	for _, name := range l.Says {
		said, err := r.conditions(l.Part, append([]study.Variant{v}, x.peer...), name)
		if err != nil {
			return nil, err
		}
		cells[0] += ", " + strings.Join(said, " and ")
	}
	return cells, nil
}

// pick is a line of a run of the lab.
type pick struct {
	run    *run
	line   Line
	part   lab.PartResult
	metric lab.MetricResult // of the group of ours
	ours   study.Variant
	value  lab.Value       // of ours
	peer   []study.Variant // none or one
}

func (x *pick) alone(cells []string, unit string) error {
	if x.value.N < stats.MinBlocks {
		return fmt.Errorf("%d valid blocks: want at least %d", x.value.N, stats.MinBlocks)
	}
	times, i := scale(x.line.Times), x.value.Interval
	cells[1] = fmt.Sprintf("%s (%s to %s)", quantity(median(x.value, times), unit), number(i.Low*times), number(i.High*times))
	cells[1] = lab.OpenSign(x.value.Open) + cells[1]
	cells[5] = fmt.Sprint(x.value.N)
	x.found(cells, x.value, "")
	if err := x.losses(cells); err != nil {
		return err
	}
	return aim(cells, x.line.Target, i.Low*times, i.High*times)
}

// peerLevels are those in which the peer differs.
func (x *pick) peerLevels() map[string]string {
	if x.line.Against != nil {
		return x.line.Against
	}
	return map[string]string{x.part.Part.Compare: x.part.Part.Baseline}
}

// against are all levels of the peer.
func (x *pick) against() map[string]string {
	at := map[string]string{}
	for i, f := range x.part.Part.Factors {
		at[f.Name] = x.ours[i]
	}
	maps.Copy(at, x.peerLevels())
	return at
}

func (x *pick) compared(cells []string, unit string, named bool) error {
	levels := x.peerLevels()
	v, err := variant(x.part.Part, x.against())
	if err != nil {
		return err
	}
	x.peer = []study.Variant{v}
	theirs, _, err := valueOf(x.part, x.line.Metric, v)
	if err != nil {
		return err
	}
	ratio, verdict, err := x.ratio(v, theirs)
	if err != nil {
		return err
	}
	times := scale(x.line.Times)
	cells[1] = lab.OpenSign(x.value.Open) + quantity(median(x.value, times), unit)
	cells[2] = lab.OpenSign(theirs.Open) + beside(median(theirs, times), orElse(x.line.Peer, texts(levels)), named)
	x.found(cells, x.value, "")
	x.found(cells, theirs, "the peer: ")
	low, high := ratio.Interval.Low, ratio.Interval.High
	words := ""
	if x.line.Spread == spreadQuartiles {
		low, high = quartiles(floats(x.value), floats(theirs))
		words = "quartiles "
	}
	cells[3] = lab.OpenSign(ratio.Open) + fmt.Sprintf("%s (%s%s to %s)", number(ratio.Ratio), words, number(low), number(high))
	cells[5], cells[6] = fmt.Sprint(ratio.Blocks), verdict
	if err := x.losses(cells); err != nil {
		return err
	}
	return aim(cells, x.line.Target, ratio.Interval.Low, ratio.Interval.High)
}

// median of a value, or what bounds it; NaN if nothing is known of it.
func median(v lab.Value, times float64) float64 {
	if v.Median == nil {
		return math.NaN()
	}
	return *v.Median * times
}

// found says in the first cell in how many blocks there is a result, and in how many it is a bound.
func (*pick) found(cells []string, v lab.Value, whose string) {
	if text := v.FoundText(); text != "" {
		cells[0] += "; " + whose + text
	}
}

// texts of levels, in the order of their factors' names.
func texts(levels map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(levels)) {
		all = append(all, levels[name])
	}
	return strings.Join(all, ", ")
}

// ratio to a peer; the verdict is empty where the part itself does not compare the two.
func (x *pick) ratio(peer study.Variant, theirs lab.Value) (stats.Ratio, string, error) {
	p := x.part.Part
	level := p.Level(x.ours, p.Compare)
	var ratio stats.Ratio
	verdict := ""
	if p.Group(peer) == p.Group(x.ours) && p.Level(peer, p.Compare) == p.Baseline && level != p.Baseline {
		ratio = x.metric.Comparison.Variants[level]
		verdict = string(ratio.Verdict)
	} else {
		ratio = stats.CompareRanges(theirs.Ranges(), theirs.Ranges(), map[string][]stats.Interval{"ours": x.value.Ranges()}, stats.Margin, 1).Variants["ours"]
	}
	if !ratio.Decided() {
		return ratio, "", fmt.Errorf("no ratio: %s, %d blocks", ratio.Verdict, ratio.Blocks)
	}
	return ratio, verdict, nil
}

// quartiles of the ratios of the blocks in which both have a value.
func quartiles(ours, theirs []float64) (low, high float64) {
	var all []float64
	for i := range ours {
		if r := ours[i] / theirs[i]; !math.IsNaN(r) && !math.IsInf(r, 0) {
			all = append(all, r)
		}
	}
	return stats.Quantile(all, 0.25), stats.Quantile(all, 0.75)
}

func (x *pick) losses(cells []string) error {
	l := x.line.Lost
	if l == nil {
		return nil
	}
	if l.No != "" {
		cells[4] = l.No
		return nil
	}
	var all, near, void []string
	voids := 0
	for _, v := range append([]study.Variant{x.ours}, x.peer...) {
		value, _, err := valueOf(x.part, x.line.Metric, v)
		if err != nil {
			return err
		}
		lost, stalled, n, of, err := x.run.lost(x.line.Part, v, *l, floats(value))
		if err != nil {
			return err
		}
		all, near, void = append(all, number(lost)), append(near, number(stalled)), append(void, fmt.Sprintf("%d of %d", n, of))
		voids += n
	}
	cells[4] = strings.Join(all, ", ") + " " + l.Unit
	if l.Stalls != "" {
		cells[4] += "; near stalls " + strings.Join(near, ", ")
	}
	if voids > 0 { // in the mode cost a trial that loses anything is void: the loss beside what is left says nothing
		cells[4] += "; void trials " + strings.Join(void, ", ")
	}
	return nil
}

// claim of a run: its text, our figure, and what comes of it.
func (f *figures) claim(id, from string) ([]string, error) {
	r, err := f.run(from)
	if err != nil {
		return nil, err
	}
	for _, p := range r.report.Results.Parts {
		for _, c := range p.Claims {
			if c.Claim.ID != id {
				continue
			}
			ours := "not measured"
			on := c.Headline()
			if on.Ours != nil && on.Interval != nil {
				ours = fmt.Sprintf("%s (%s to %s)", quantity(*on.Ours, on.Unit), number(on.Interval.Low), number(on.Interval.High))
			}
			verdict := string(on.Verdict)
			if on.Verdict == claim.Missed || on.Verdict == claim.Contradicted {
				verdict = "**" + verdict + "**"
			}
			return []string{c.Claim.Text + " (" + c.Claim.Source + ")", ours, verdict + ": " + on.Why}, nil
		}
	}
	return nil, fmt.Errorf("run %s has no such claim", from)
}

// allRuns is the table of the index.
func (f *figures) allRuns(link func(string) string) string {
	var rows [][]string
	for _, r := range slices.Backward(f.index.Runs) {
		what := r.Study
		if r.Mode != "" {
			what += ", " + r.Mode
		}
		why := r.Why
		if r.AddsTo != "" {
			why += " (after " + r.AddsTo + ")"
		}
		rows = append(rows, []string{fmt.Sprintf("[%s](%s)", r.Run, link(r.Run)), what, r.Started.Format("2006-01-02 15:04"), orElse(r.Version, "not said"), r.Machine.String(), why, f.wrong(r)})
	}
	return markdown([]string{"run", "study", "begun, UTC", "Weir", "machine", "why", "wrong"}, rows) + "\n" + f.wrongs()
}

// wrongs are all the mistakes, each with its number.
func (f *figures) wrongs() string {
	var b strings.Builder
	b.WriteString("### Mistakes\n")
	for i, w := range f.mistakes() {
		fmt.Fprintf(&b, "%d. %s\n", i+1, w)
	}
	return b.String()
}

func (f *figures) mistakes() (all []string) {
	for _, r := range f.index.Runs {
		for _, w := range r.Wrong {
			if !slices.Contains(all, w) {
				all = append(all, w)
			}
		}
	}
	return all
}

func (f *figures) wrong(r Row) string {
	var numbers []string
	for i, w := range f.mistakes() {
		if slices.Contains(r.Wrong, w) {
			numbers = append(numbers, strconv.Itoa(i+1))
		}
	}
	return strings.Join(numbers, ", ")
}

// ErrPages says that a page does not show what it should.
var ErrPages = errors.New("figures of the pages")
