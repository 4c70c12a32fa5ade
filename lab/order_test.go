package lab

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/claim"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// ordered is a run whose trials were made in the order that change gives to those of each block, and that began, by their clock, in the order of began.
func ordered(t *testing.T, change, began func(block []study.Trial)) Results {
	t.Helper()
	j := fakeRun(t, &fake{value: known}, filepath.Join(t.TempDir(), "run")).Journal
	defer j.Close()
	n := 0
	for left := j.Left(); len(left) > 0; {
		trials := slices.Clone(block(left))
		left = left[len(trials):]
		change(trials)
		clock := slices.Clone(trials)
		began(clock)
		for _, tr := range trials {
			n++
			m, err := known(experiment.Levels{"platform": tr.Variant[0], "wires": tr.Variant[1]}, n)
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(clock, func(o study.Trial) bool { return o.Key() == tr.Key() })
			r := study.Record{Trial: tr, Values: m.Values, Begun: time.Unix(int64(1000*tr.Block+at), 0), Took: time.Second}
			if err := j.Add(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	return Summarise(j)
}

// first puts the trials of one level before the others, the duplicate behind them.
func first(level string) func([]study.Trial) {
	return func(block []study.Trial) {
		slices.SortStableFunc(block, func(a, b study.Trial) int {
			rank := func(t study.Trial) int {
				if t.Variant[0] == level && !t.Duplicate {
					return 0
				}
				return 1
			}
			return rank(a) - rank(b)
		})
	}
}

// A run in which one variant is measured first in each block claims nothing, and says why: whether the trials were made out of their turn, or the turns
// themselves were not random. A run as it has to be is not suspected.
func TestAnOrderThatIsNotRandomIsCaught(t *testing.T) {
	asIs := func([]study.Trial) {}
	for name, c := range map[string]struct {
		made, began func([]study.Trial)
		want        string
	}{
		"as it has to be":                 {asIs, asIs, ""},
		"the baseline first, out of turn": {first("theirs"), first("theirs"), "was not made when the seed wanted it"},
		"the baseline first":              {asIs, first("theirs"), "theirs was not measured in random order: in 24 blocks and groups its mean position is 1.00, where 2.50 is the middle"},
		"a variant first":                 {asIs, first("ours"), "ours was not measured in random order"},
	} {
		r := ordered(t, c.made, c.began)
		var text strings.Builder
		if err := Text(&text, r); err != nil {
			t.Fatal(err)
		}
		if c.want == "" {
			if len(r.Distrusted) != 0 || r.Parts[0].Groups[0].Metrics[0].Comparison.Variants["ours"].Verdict != stats.Higher {
				t.Errorf("%s: %+v", name, r.Distrusted)
			}
			continue
		}
		if len(r.Distrusted) != 1 || !strings.Contains(r.Distrusted[0].Reason, c.want) || !strings.Contains(text.String(), "DO NOT TRUST part one: ") {
			t.Errorf("%s: %+v: want %q", name, r.Distrusted, c.want)
		}
		for _, g := range r.Parts[0].Groups {
			for level, v := range g.Metrics[0].Comparison.Variants {
				if v.Verdict != stats.NotClaimed || v.Ratio == 0 || v.Claimed() {
					t.Errorf("%s: %s of %s: %+v", name, level, g.Name, v)
				}
			}
			if v := g.Metrics[0].Comparison.Duplicate.Verdict; v != stats.NotClaimed {
				t.Errorf("%s: duplicate of %s: %s", name, g.Name, v)
			}
		}
		for _, c := range r.Parts[0].Claims {
			if c.Verdict != claim.NotTestable || !strings.Contains(c.Headline().Why, "nothing is claimed of this part") {
				t.Errorf("%s: claim %s: %s (%s)", name, c.Claim.ID, c.Verdict, c.Headline().Why)
			}
		}
	}
}

// Blocks whose trials do not all stand on one set-up are told, and runs that were set up once.
func TestSetupsAreTold(t *testing.T) {
	record := func(block int, setup string, duplicate bool) study.Record {
		return study.Record{Trial: study.Trial{Block: block, Duplicate: duplicate}, Setup: setup}
	}
	records := []study.Record{
		record(0, "lab-a/1", false), record(0, "lab-b/1", true), record(0, "lab-a/1", false),
		record(1, "lab-b/2", true), record(1, "lab-a/2", false), record(1, "lab-c/1", false), record(1, "lab-c/1", false),
		record(2, "lab-d/2,lab-e/1", true), record(2, "lab-c/2", false),
		record(3, "lab-c/3,lab-e/1", false),
	}
	p := PartResult{Setups: severalSetups(records)}
	if text := p.SetupsText(); !strings.HasSuffix(text, ": 2, 3, 4.") || setUpOnce(records) {
		t.Errorf("%q", text)
	}
	if p := (PartResult{Setups: severalSetups(records[:3])}); p.SetupsText() != "" {
		t.Error(p.SetupsText())
	}
	old := append(records[:1:1], study.Record{Values: map[string]float64{"rate": 1}})
	if !setUpOnce(old) || setUpOnce([]study.Record{{Skipped: "there is none"}, {Void: "failed: set up: there is no memory"}}) {
		t.Error("a run that was set up once is not told")
	}
}
