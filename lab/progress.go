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

func (l *Lines) Setup(p study.Part, v study.Variant) {
	fmt.Fprintf(l.W, "set up %s %s\n", p.Name, strings.Join(v, " "))
}

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

// timeLeft estimates by the trials of the part that were made.
type timeLeft struct {
	begun time.Time
	took  []float64 // seconds
}

func (t *timeLeft) begin() {
	if t.begun.IsZero() {
		t.begun = time.Now()
	}
}

func (t *timeLeft) end() {
	if !t.begun.IsZero() {
		t.took = append(t.took, time.Since(t.begun).Seconds())
		t.begun = time.Time{}
	}
}

// of n trials; 0 if unknown.
func (t *timeLeft) of(n int) time.Duration {
	if len(t.took) == 0 {
		return 0
	}
	return time.Duration(stats.Mean(t.took) * float64(n) * float64(time.Second)).Round(time.Second)
}

// Live is progress on a terminal: a line for every variant of the part, and a bar with the time that is left, drawn anew in place.
type Live struct {
	W             io.Writer
	Columns, Rows int // of the terminal

	planned, done int
	part          study.Part
	ofPart        int // trials of it that are left
	values        map[string][]float64
	voids         map[string]int
	order         []string
	now           string
	left          timeLeft
	began         time.Time
	drawn         int // lines on the screen
}

func (l *Live) Begin(planned, done int) { l.planned, l.done, l.began = planned, done, time.Now() }

// Part leaves the former part's lines on the screen.
func (l *Live) Part(p study.Part, trials int) {
	l.draw()
	l.drawn = 0
	l.part, l.ofPart, l.left, l.now = p, trials, timeLeft{}, ""
	l.values, l.voids, l.order = map[string][]float64{}, map[string]int{}, nil
	for _, v := range p.Variants() { // in the order of the study
		l.order = append(l.order, key(v, false))
		if p.Level(v, p.Compare) == p.Baseline {
			l.order = append(l.order, key(v, true))
		}
	}
	fmt.Fprintf(l.W, "\n%s: %s\n", p.Name, p.Question)
}

func (l *Live) Setup(_ study.Part, v study.Variant) {
	l.now = "setting up " + strings.Join(v, " ")
	l.draw()
}

func (l *Live) Trial(t study.Trial) {
	l.left.begin()
	l.now = strings.TrimPrefix(t.Key(), t.Part+"/")
	l.draw()
}

func (l *Live) Done(p study.Part, r study.Record, left int) {
	l.done, l.ofPart = l.planned-left, l.ofPart-1
	k := key(r.Trial.Variant, r.Trial.Duplicate)
	switch {
	case r.Skipped != "":
		l.order = slices.DeleteFunc(l.order, func(o string) bool { return o == k }) // the report says why
		return
	case r.Void != "":
		l.voids[k]++
	default:
		l.values[k] = append(l.values[k], r.Values[p.Metrics[0].Name])
	}
	l.left.end()
	l.draw()
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
	var known []string
	for _, k := range l.order {
		if len(l.values[k]) > 0 || l.voids[k] > 0 {
			known = append(known, k)
		}
	}
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
	if d := l.left.of(l.ofPart); d > 0 {
		state += fmt.Sprintf(", this part takes %s more", d)
	}
	return append(out, state+"  "+l.now)
}
