package report

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/claim"
)

const keptRun = "../../docs/results/wires-quick-2026-11-25"

// A summary has every claim that a study of a paper makes, and says of each what the report of its run says.
func TestSummaryHasEveryClaim(t *testing.T) {
	s, err := Summarise(keptRun)
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, name := range papers {
		of, err := lab.Load(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range of.Parts {
			for _, c := range p.Claims {
				if !c.IsTarget() {
					want++
				}
			}
		}
	}
	all := s.total()
	counted := 0
	for _, n := range all.Verdicts {
		counted += n
	}
	if want < 100 || len(all.Claims) != want || counted != want {
		t.Errorf("%d claims, %d counted, want %d", len(all.Claims), counted, want)
	}
	r, err := Build(keptRun)
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, p := range r.Results.Parts {
		for _, c := range p.Claims {
			for _, one := range all.Claims {
				if one.Name == p.Part.Name && one.Claim.ID == c.Claim.ID && len(one.Runs) > 0 {
					compared++
					if one.Verdict != c.Verdict || one.Runs[0].Says.Headline().Why != c.Headline().Why {
						t.Errorf("%s/%s: %s, and its report says %s", one.Name, one.Claim.ID, one.Verdict, c.Verdict)
					}
				}
			}
		}
	}
	if compared == 0 {
		t.Error("no claim of the run is in the summary")
	}
	if all.Verdicts[NotRun] == 0 || all.Verdicts[NotRun] == want {
		t.Errorf("%v: some are run, and some are not", all.Verdicts)
	}
}

// The pages' links lead to the trials, from wherever the pages are.
func TestSummaryPages(t *testing.T) {
	s, err := Summarise(keptRun)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "a b")
	paths, err := s.Write(dir)
	if err != nil || len(paths) != 3 {
		t.Fatal(paths, err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "summary.html"))
	if err != nil {
		t.Fatal(err)
	}
	links := regexp.MustCompile(`href="([^#"][^"]*)"`).FindAllStringSubmatch(string(page), -1)
	if len(links) == 0 {
		t.Error("the page has no link to trials")
	}
	for _, l := range links {
		if _, err := os.Stat(filepath.Join(dir, l[1])); err != nil {
			t.Errorf("a link leads nowhere: %v", err)
		}
	}
	for _, want := range []string{"“reaching 200 000 pps”", "not run", "weir lab run hosts --only part="} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	var back Summary
	if err == nil {
		err = json.Unmarshal(raw, &back)
	}
	if err != nil || len(back.Papers) != len(papers) || back.Runs[0].Study != "wires" {
		t.Errorf("%v: %d papers", err, len(back.Papers))
	}
	if text, err := os.ReadFile(filepath.Join(dir, "summary.md")); err != nil || !strings.Contains(string(text), "## hosts: ") {
		t.Errorf("summary.md: %v", err)
	}
}

// What says more comes first: a verdict before none, a full run before a quick one.
func TestSummaryOrder(t *testing.T) {
	order := []SummaryRun{{Mode: "full", Sound: true}, {Mode: "quick", Sound: true}, {Mode: "full", Sound: true, Left: 1}, {Mode: "full"}}
	for i := range order[1:] {
		if before(order[i], order[i+1]) >= 0 {
			t.Errorf("%+v comes before %+v", order[i+1], order[i])
		}
	}
	one := lab.ClaimResult{Systems: []lab.ClaimOn{{}}}
	rank := map[claim.Verdict]int{}
	for _, v := range []claim.Verdict{claim.NotTestable, claim.Inconclusive, claim.Contradicted} {
		one.Verdict = v
		rank[v] = told(one)
	}
	if rank[claim.NotTestable] >= rank[claim.Inconclusive] || rank[claim.Inconclusive] >= rank[claim.Contradicted] {
		t.Errorf("%v", rank)
	}
}

// One verdict of several runs.
func TestVerdictOfRuns(t *testing.T) {
	of := func(all ...claim.Verdict) (out []ClaimOfRun) {
		for _, v := range all {
			out = append(out, ClaimOfRun{Says: lab.ClaimResult{Verdict: v}})
		}
		return out
	}
	for _, tt := range []struct {
		runs []ClaimOfRun
		want claim.Verdict
	}{
		{nil, NotRun},
		{of(claim.Reproduced, claim.Inconclusive), claim.Reproduced},
		{of(claim.SameDirection, claim.Reproduced), claim.SameDirection},
		{of(claim.Inconclusive, claim.Reproduced, claim.Contradicted), Disagree},
		{of(claim.NotTestable), claim.NotTestable},
	} {
		if got := verdict(tt.runs); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.runs, got, tt.want)
		}
	}
}

// A run of a study that only has the name of a paper's says nothing of the paper, and neither does one with other settings.
func TestOnlyTheSameStudyIsCounted(t *testing.T) {
	x, err := lab.Load("wires", nil)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := runOf(keptRun)
	if err != nil {
		t.Fatal(err)
	}
	if !ofStudy(kept, x) {
		t.Error("a run of wires is none of wires")
	}
	x.Source = "somebody else"
	if ofStudy(kept, x) {
		t.Error("a study of another source is the same")
	}
	of := kept.results.Study
	if !samePart(kept, 0, of, 0, of.Parts[0].Metrics[0].Name) {
		t.Error("a part is not like itself")
	}
	of.Parts = slices.Clone(of.Parts)
	of.Parts[0].Settings = map[string]string{"tool": "another"}
	if samePart(kept, 0, of, 0, of.Parts[0].Metrics[0].Name) {
		t.Error("a part with other settings is the same")
	}
}

func TestBadSummaries(t *testing.T) {
	for _, tt := range []struct {
		dirs []string
		is   error
		want string
	}{
		{[]string{keptRun, keptRun + "/"}, ErrSummary, "is given twice"},
		{[]string{"../../docs/results/aa-2026-11-22", "../../docs/results/aa-2026-11-22/003"}, ErrSummary, "003 is given twice"},
		{[]string{t.TempDir()}, fs.ErrNotExist, "no directory of results"},
	} {
		if _, err := Summarise(tt.dirs...); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", tt.dirs, err, tt.want)
		}
	}
}
