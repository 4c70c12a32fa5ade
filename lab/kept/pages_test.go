package kept

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"weir.dev/weir/lab/claim"
	"weir.dev/weir/lab/study"
)

// The pages show what the generator makes of the raw data.
func TestPagesShowTheFiguresOfTheRuns(t *testing.T) {
	f := current(t)
	for _, name := range Pages {
		text := readPage(t, name)
		if is, err := f.page(name, text); err != nil || is != text {
			t.Errorf("%s: its figures are not those of the runs: `make generate` writes them: %v", name, err)
		}
	}
}

var currentOnce = sync.OnceValues(func() (*figures, error) { return newFigures(published) })

// current are the figures of the runs that are kept; the tests share them, since reading a run takes long.
func current(t *testing.T) *figures {
	t.Helper()
	f, err := currentOnce()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

var (
	code     = regexp.MustCompile("(?s)`[^`]*`")
	linked   = regexp.MustCompile(`\]\([^)]*\)`)
	anyDigit = regexp.MustCompile(`[0-9]+[^\s]*`)
	// a figure has a fraction, or a unit, or is a share other than those of intervals.
	typed = regexp.MustCompile(`[0-9][0-9,]*\.[0-9]+|[0-9][0-9,]* ?(?:Gb/s|Mpps|us|µs|ms|ns|s|MB|GB|MiB|times|x|×|/s)\b`)
	share = regexp.MustCompile(`[0-9][0-9,]* ?%`)
)

// figuresOf a text that stand in it outside of the generator's blocks. strict takes any number for one.
func figuresOf(text string, strict bool) (found []string) {
	text = block.ReplaceAllString(text, "")
	text = linked.ReplaceAllString(code.ReplaceAllString(text, ""), "]")
	if strict {
		return anyDigit.FindAllString(text, -1)
	}
	for _, f := range share.FindAllString(text, -1) {
		if f != "95 %" && f != "90 %" {
			found = append(found, f)
		}
	}
	return append(found, typed.FindAllString(text, -1)...)
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// section of README.md with figures.
func section(t *testing.T, text string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, "\n## Figures\n")
	if !ok {
		t.Fatal("README.md has no section of figures")
	}
	found, _, _ := strings.Cut(rest, "\n## ")
	return found
}

// No figure of these pages is typed by hand.
func TestNoFigureIsTyped(t *testing.T) {
	for _, f := range figuresOf(section(t, readPage(t, "README.md")), true) {
		t.Errorf("README.md, Figures: %q was not written by the generator", f)
	}
	for _, f := range figuresOf(readPage(t, Dir+"/README.md"), false) {
		t.Errorf("%s/README.md: %q was not written by the generator", Dir, f)
	}
}

func TestTypedFiguresAreFound(t *testing.T) {
	for text, want := range map[string]int{
		"It carries 26.3 Gb/s.":                                1,
		"It is 17 times as fast.":                              1,
		"It takes 24 us, or 1,000 ms.":                         2,
		"Two of them lose 58 %.":                               1,
		"The 95 % interval of 64-byte packets.":                0,
		"`ping -i 0.002` and [x](a-1.5s)":                      0,
		"<!-- figures x -->\n1.5 s\n<!-- end of figures -->\n": 0,
	} {
		if found := figuresOf(text, false); len(found) != want {
			t.Errorf("%q: found %q", text, found)
		}
	}
	if found := figuresOf("A ratio of 17.", true); len(found) != 1 {
		t.Errorf("found %q", found)
	}
}

// editFigure of a page: another digit in the first cell of a table that begins with what.
func editFigure(t *testing.T, text, what string) string {
	t.Helper()
	at := strings.Index(text, "| "+what)
	if at < 0 {
		t.Fatalf("the page has no line %q", what)
	}
	at += strings.Index(text[at+2:], "| ") + 4
	digit := "1"
	if text[at] == '1' {
		digit = "2"
	}
	return text[:at] + digit + text[at+1:]
}

func TestAnEditedFigureIsReplaced(t *testing.T) {
	f := current(t)
	text := readPage(t, "README.md")
	edited := editFigure(t, text, "ping through 100")
	made, err := f.page("README.md", edited)
	if err != nil || edited == text || made != text {
		t.Errorf("an edited figure stayed: %v", err)
	}
	for _, broken := range []string{
		strings.Replace(text, "<!-- end of figures -->", "", 1),
		strings.Replace(text, "<!-- figures wires -->", "", 1),
		strings.Replace(text, "<!-- figures wires -->", "<!-- figures wirez -->", 1),
	} {
		if _, err := f.page("README.md", broken); err == nil {
			t.Error("markers that do not fit were taken")
		}
	}
}

// What may not be selected, and why.
func TestBadSelectionsAreRefused(t *testing.T) {
	const wires = "wires-2026-11-22"
	f := current(t)
	rate := Line{What: "w", Run: wires, Part: "throughput", Metric: "rate", At: map[string]string{"platform": "ebpf", "wires": "9"}}
	with := func(edit func(*Line)) Line {
		l := rate
		edit(&l)
		return l
	}
	for name, x := range map[string]struct {
		line Line
		want string
	}{
		"a rate without its loss": {rate, "what was lost"},
		"no such run":             {with(func(l *Line) { l.Run = "none" }), "no run"},
		"no such part":            {with(func(l *Line) { l.Part = "none" }), "no part"},
		"no such metric":          {with(func(l *Line) { l.Metric = "none" }), "has no none"},
		"no such level":           {with(func(l *Line) { l.At = map[string]string{"platform": "ebpf", "wires": "7"} }), "want one of"},
		"a level is missing":      {with(func(l *Line) { l.At = map[string]string{"platform": "ebpf"} }), "want one of"},
		"was not measured": {with(func(l *Line) {
			l.Lost = &Loss{Value: "retransmits"}
			l.At = map[string]string{"platform": "ebpf", "wires": "10"}
		}), "no ratio"},
		"no such loss":  {with(func(l *Line) { l.Lost = &Loss{Value: "none"} }), "no trial"},
		"no such bench": {Line{What: "w", Run: "bench-2026-11-22.json", Bench: "none"}, "no result"},
	} {
		if _, err := f.line(x.line, x.line.Run, false); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
	for _, text := range []string{
		"tables: [{name: a, ours: x}]",
		"tables: [{name: runs, ours: x, claims: [{id: a}]}]",
		"tables: [{name: a, ours: x, claims: [{id: a}]}, {name: a, ours: x, claims: [{id: a}]}]",
		"tables: [{name: a, ours: x, lines: [{what: a, part: b, metric: c, target: '1.5'}]}]",
		"tables: [{name: a, ours: x, lines: [{what: a, part: b, bench: c}]}]",
		"tables: [{name: a, ours: x, lines: [{what: a, part: b, spread: wide}]}]",
		"tables: [{name: a, ours: x, lines: [{what: a, part: b, alone: true, against: {c: d}}]}]",
		"tables: [{name: a, ours: x, lins: []}]",
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, selectionName), text)
		if _, err := readSelection(dir); err == nil {
			t.Errorf("%s was taken", text)
		}
	}
}

func TestTargetsAreJudgedByTheWholeInterval(t *testing.T) {
	for text, want := range map[string][3]string{ // of 1 to 2, of 3 to 4, of 2 to 3
		">= 2.5": {"≥ 2.5: **missed**", "≥ 2.5: met", "≥ 2.5: open"},
		"<= 2.5": {"≤ 2.5: met", "≤ 2.5: **missed**", "≤ 2.5: open"},
	} {
		target, err := parseTarget(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := [3]string{target.judge(1, 2), target.judge(3, 4), target.judge(2, 3)}; got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1.00", 9.994: "9.99", 9.996: "10.0", 99.96: "100", 999.6: "1,000", 38049: "38,000", 1234567: "1,230,000", 0.00275: "0.00275", 0.0999951: "0.100", -12.34: "-12.3", -1234: "-1,230",
	} {
		if got := number(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
	if got := fmt.Sprint(number(0.1 / 3 * 3)); got != "0.100" {
		t.Error(got)
	}
}

// A target that a run of the tables missed is in a table, as the README says.
func TestMissedTargetsAreShown(t *testing.T) {
	f := current(t)
	shown := func(c study.Claim, part study.Part) bool {
		for _, table := range f.selection.Tables {
			for _, id := range table.Claims {
				if id.ID == c.ID {
					return true
				}
			}
			for _, l := range table.Lines {
				same := l.Part == part.Name && l.Metric == c.Metric && l.Target != ""
				for factor, level := range c.At {
					same = same && (factor == part.Compare || l.At[factor] == level)
				}
				if same {
					return true
				}
			}
		}
		return false
	}
	missed := 0
	for _, table := range f.selection.Tables {
		if table.Run == "" || strings.HasSuffix(table.Run, ".json") {
			continue
		}
		r, err := f.run(table.Run)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.report.Results.Parts {
			for _, c := range p.Claims {
				if c.Headline().Verdict != claim.Missed {
					continue
				}
				if missed++; !shown(c.Claim, p.Part) {
					t.Errorf("%s: target %s is missed, and no table shows it", table.Run, c.Claim.ID)
				}
			}
		}
	}
	if missed == 0 {
		t.Error("no run misses a target: this test has nothing to find")
	}
}
