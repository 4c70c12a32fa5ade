package lab

import (
	"strings"
	"testing"

	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// What is said beforehand is what the statistics do: with one block less no difference is found, however clear, and with as many it is.
func TestLeastBlocksAreWhatTheTestNeeds(t *testing.T) {
	for comparisons := 1; comparisons <= 12; comparisons++ {
		need := stats.LeastBlocks(comparisons)
		for _, n := range []int{need - 1, need} {
			base, clear := make([]float64, n), map[string][]float64{}
			for i := range base {
				base[i] = 1
			}
			for c := range comparisons {
				values := make([]float64, n)
				for i := range values {
					values[i] = 10 + float64(i+c)
				}
				clear[string(rune('a'+c))] = values
			}
			found := 0
			for _, r := range stats.Compare(base, base, clear, stats.Margin, 1).Variants {
				if r.Verdict == stats.Higher {
					found++
				}
			}
			if want := map[bool]int{true: comparisons}[n == need]; found != want {
				t.Errorf("%d comparisons, %d blocks: %d differences are found: want %d", comparisons, n, found, want)
			}
		}
	}
}

// A part with too few blocks for its comparisons is named, one that leaves levels out has fewer comparisons.
func TestFewBlocksAreSaid(t *testing.T) {
	p := study.Part{Name: "x", Compare: "platform", Baseline: "a", Factors: []study.Factor{{Name: "platform", Levels: []string{"a", "b", "c"}}}, Quick: study.Plan{Blocks: 6}, Full: study.Plan{Blocks: 7}}
	s := study.Study{Parts: []study.Part{p}}
	if got := FewBlocks(s, study.Quick, nil); len(got) != 1 || !strings.Contains(got[0], "blocks: 6, too few to find a difference in 2 comparisons with a: want 7") {
		t.Error(got)
	}
	if got := FewBlocks(s, study.Full, nil); len(got) != 0 {
		t.Error(got)
	}
	if got := FewBlocks(s, study.Quick, func(p study.Part, v study.Variant) bool { return p.Level(v, "platform") != "c" }); len(got) != 0 {
		t.Error(got)
	}
}

// The study of Weir's own targets can find what it looks for on a machine that has all of its variants. Where other studies cannot, with --quick, it is for
// the time that their blocks take; the part boot of wires has more runtimes than most machines.
func TestStudiesHaveBlocksEnough(t *testing.T) {
	for name, but := range map[string]string{"bench": "none", "wires": "boot", "before": "none", "generator": "none"} {
		s, err := Load(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []study.Mode{study.Quick, study.Full} {
			for _, text := range FewBlocks(s, m, nil) {
				if !strings.HasPrefix(text, "part "+but+",") {
					t.Errorf("%s: %s", name, text)
				}
			}
		}
	}
}
