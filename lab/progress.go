package lab

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// Silent is progress that nobody sees.
type Silent struct{}

func (Silent) Begin(int, int)                     {}
func (Silent) Part(study.Part, int)               {}
func (Silent) Block(study.Part, int, int)         {}
func (Silent) Setup(study.Part, study.Variant)    {}
func (Silent) Trial(study.Trial)                  {}
func (Silent) Done(study.Part, study.Record, int) {}
func (Silent) End()                               {}

// Lines is progress as plain lines, one a trial: for files and pipes.
type Lines struct {
	W io.Writer

	planned int
	skipped map[string]bool
}

func (l *Lines) Begin(planned, done int) {
	l.planned, l.skipped = planned, map[string]bool{}
	fmt.Fprintf(l.W, "%d trials, %d of them made before\n", planned, done)
}

func (l *Lines) Part(p study.Part, trials int) {
	fmt.Fprintf(l.W, "part %s: %s (%d trials)\n", p.Name, p.Question, trials)
}

func (l *Lines) Block(p study.Part, n, of int) {
	fmt.Fprintf(l.W, "part %s: set up block %d of %d\n", p.Name, n, of)
}

func (l *Lines) Setup(study.Part, study.Variant) {}

func (l *Lines) Trial(study.Trial) {}

func (l *Lines) Done(p study.Part, r study.Record, left int) {
	if r.Skipped == "" {
		fmt.Fprintf(l.W, "%d/%d %s: %s\n", l.planned-left, l.planned, r.Trial.Key(), told(p, r))
		return
	}
	if k := p.Name + " " + strings.Join(r.Trial.Variant, " "); !l.skipped[k] {
		l.skipped[k] = true
		fmt.Fprintf(l.W, "skipped %s: %s\n", k, r.Skipped)
	}
}

func (l *Lines) End() {}

func told(p study.Part, r study.Record) string {
	again := ""
	for _, t := range r.Tries {
		again += ", again after " + t.Void
	}
	if r.Void != "" {
		return "void: " + r.Void + again
	}
	m := p.Metrics[0]
	return fmt.Sprintf("%s %s%s", Figure(r.Values[m.Name]), m.Unit, again)
}

// Figure writes a number with the three or four digits that count.
func Figure(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "-"
	case a >= 1000:
		return fmt.Sprintf("%.0f", v)
	case a >= 100:
		return fmt.Sprintf("%.1f", v)
	case a >= 10:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// timeLeft of a part is estimated by those of its blocks that are over: all are alike, and in each the set-up is a good part of the time.
type timeLeft struct {
	begun time.Time // the block that goes on
	took  []float64 // seconds, of those before it
	left  int       // blocks, with the one that goes on
}

// block n of so many begins.
func (t *timeLeft) block(n, of int) {
	if !t.begun.IsZero() {
		t.took = append(t.took, time.Since(t.begun).Seconds())
	}
	t.begun, t.left = time.Now(), of-n+1
}

// now is what is left; 0 if unknown.
func (t *timeLeft) now() time.Duration {
	if len(t.took) == 0 {
		return 0
	}
	whole := time.Duration(stats.Mean(t.took) * float64(t.left) * float64(time.Second))
	return max(0, whole-time.Since(t.begun)).Round(time.Second)
}

// tally is what progress knows of a run.
type tally struct {
	planned, done int
	part          study.Part
	values        map[string][]float64
	voids         map[string]int
	order         []string
	now           string
	left          timeLeft
	began         time.Time
}

func (l *tally) begin(planned, done int) { l.planned, l.done, l.began = planned, done, time.Now() }

func (l *tally) next(p study.Part) {
	l.part, l.left, l.now = p, timeLeft{}, ""
	l.values, l.voids, l.order = map[string][]float64{}, map[string]int{}, nil
	for _, v := range p.Variants() { // in the order of the study
		l.order = append(l.order, key(v, false))
		if p.Level(v, p.Compare) == p.Baseline {
			l.order = append(l.order, key(v, true))
		}
	}
}

func (l *tally) block(n, of int) {
	l.left.block(n, of)
	l.now = fmt.Sprintf("block %d of %d: taking down the one before", n, of)
}

func (l *tally) setup(v study.Variant) { l.now = "setting up " + strings.Join(v, " ") }

func (l *tally) trial(t study.Trial) { l.now = strings.TrimPrefix(t.Key(), t.Part+"/") }

// record counts a finished trial, and tells whether it was made.
func (l *tally) record(p study.Part, r study.Record, left int) bool {
	l.done = l.planned - left
	k := key(r.Trial.Variant, r.Trial.Duplicate)
	switch {
	case r.Skipped != "":
		l.order = slices.DeleteFunc(l.order, func(o string) bool { return o == k }) // the report says why
		return false
	case r.Void != "":
		l.voids[k]++
	default:
		l.values[k] = append(l.values[k], r.Values[p.Metrics[0].Name])
	}
	return true
}

// known are the variants of which there is something to say.
func (l *tally) known() (keys []string) {
	for _, k := range l.order {
		if len(l.values[k]) > 0 || l.voids[k] > 0 {
			keys = append(keys, k)
		}
	}
	return keys
}

// Live is progress on a terminal: a line for every variant of the part, and a bar with the time that is left, drawn anew in place.
type Live struct {
	W             io.Writer
	Columns, Rows int // of the terminal

	tally
	drawn int // lines on the screen
}

func (l *Live) Begin(planned, done int) { l.begin(planned, done) }

// Part leaves the former part's lines on the screen.
func (l *Live) Part(p study.Part, _ int) {
	l.draw()
	l.drawn = 0
	l.next(p)
	fmt.Fprintf(l.W, "\n%s: %s\n", p.Name, p.Question)
}

func (l *Live) Block(_ study.Part, n, of int) {
	l.block(n, of)
	l.draw()
}

func (l *Live) Setup(_ study.Part, v study.Variant) {
	l.setup(v)
	l.draw()
}

func (l *Live) Trial(t study.Trial) {
	l.trial(t)
	l.draw()
}

func (l *Live) Done(p study.Part, r study.Record, left int) {
	if l.record(p, r, left) {
		l.draw()
	}
}

func (l *Live) End() { l.draw() }

// draw everything anew over what is there.
func (l *Live) draw() {
	if l.part.Name == "" {
		return
	}
	var b strings.Builder
	if l.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r\x1b[J", l.drawn)
	}
	lines := l.lines()
	for _, line := range lines {
		if r := []rune(line); l.Columns > 0 && len(r) >= l.Columns {
			line = string(r[:l.Columns-1])
		}
		b.WriteString(line + "\n")
	}
	l.drawn = len(lines)
	_, _ = io.WriteString(l.W, b.String())
}

func (l *Live) lines() (out []string) {
	const (
		others = 4  // lines beside those of variants
		width  = 30 // of the bar
	)
	known := l.known()
	room := max(l.Rows-others, others)
	for i, k := range known {
		if i == room {
			out = append(out, fmt.Sprintf("  ... and %d more", len(known)-i))
			break
		}
		text := fmt.Sprintf("%10s %s", "-", l.part.Metrics[0].Unit)
		if x := l.values[k]; len(x) > 0 {
			text = fmt.Sprintf("%10s %s  last %s  n=%d", Figure(stats.Median(x)), l.part.Metrics[0].Unit, Figure(x[len(x)-1]), len(x))
		}
		if l.voids[k] > 0 {
			text += fmt.Sprintf("  void %d", l.voids[k])
		}
		out = append(out, fmt.Sprintf("  %-24s %s", strings.ReplaceAll(k, ",", " "), text))
	}
	full := 0
	if l.planned > 0 {
		full = width * l.done / l.planned
	}
	state := fmt.Sprintf("[%s%s] %d/%d, %s", strings.Repeat("#", full), strings.Repeat(".", width-full), l.done, l.planned, time.Since(l.began).Round(time.Second))
	if d := l.left.now(); d > 0 {
		state += fmt.Sprintf(", this part takes %s more", d)
	}
	return append(out, state+"  "+l.now)
}
