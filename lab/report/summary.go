package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/instance"
	"weir.dev/weir/lab"
	"weir.dev/weir/lab/claim"
	"weir.dev/weir/lab/study"
)

// Summary is what others published beside what runs of several studies say of it. It marshals to JSON.
type Summary struct {
	Runs   []SummaryRun `json:"runs"`   // the complete and full ones first, then the newer
	Papers []Paper      `json:"papers"` // a study each, in the order of papers, then those of others
}

// SummaryRun is a run of which the summary tells.
type SummaryRun struct {
	Dir      string     `json:"dir"`
	Data     string     `json:"data"` // path of its trials
	Study    string     `json:"study"`
	Mode     study.Mode `json:"mode"`
	Version  string     `json:"version"`
	Started  time.Time  `json:"started"`
	Planned  int        `json:"planned"`
	Measured int        `json:"measured"`
	Void     int        `json:"void"`
	Left     int        `json:"left"`
	Outdated int        `json:"outdated"` // claims of it that are others by now, or none: they are left out
	Sound    bool       `json:"sound"`    // the baseline is like itself
	Trust    string     `json:"trust"`
	Findings []Finding  `json:"findings"`

	results lab.Results
}

// Paper is a study with all that its source claims.
type Paper struct {
	Study    string                `json:"study"`
	Title    string                `json:"title"`
	Source   string                `json:"source"`
	Verdicts map[claim.Verdict]int `json:"verdicts"` // of the claims; NotRun among them
	Claims   []SummaryClaim        `json:"claims"`
}

// NotRun stands for a verdict where no run has judged a claim.
const NotRun claim.Verdict = "not run"

// SummaryClaim is a claim with what each run says of it.
type SummaryClaim struct {
	Part    study.Part    `json:"-"`
	Name    string        `json:"part"`
	Claim   study.Claim   `json:"claim"`
	Verdict claim.Verdict `json:"verdict"` // of the first run
	Runs    []ClaimOfRun  `json:"runs"`    // in the order of the summary's runs
}

// ClaimOfRun is a claim as one run judges it.
type ClaimOfRun struct {
	Dir  string          `json:"dir"`
	Data string          `json:"data"`
	Says lab.ClaimResult `json:"says"`
}

// papers are the studies of published papers, in the order in which a summary has them.
var papers = []string{"forwarders", "vswitches", "wires", "density", "hosts"}

// ErrSummary says that runs cannot be summed up.
var ErrSummary = errors.New("no summary")

// Summarise reads the journals of runs. Studies of which no run is given are in the summary, too: their claims have not been run.
func Summarise(dirs ...string) (Summary, error) {
	var s Summary
	seen := map[string]bool{}
	for _, dir := range dirs {
		if dir = filepath.Clean(dir); seen[dir] {
			return s, fmt.Errorf("%w: %s is given twice", ErrSummary, dir)
		}
		seen[dir] = true
		if lab.Repeated(dir) {
			return s, fmt.Errorf("%w: %s has several runs: give the directories in it that you want, such as %s", ErrSummary, dir, filepath.Join(dir, "001"))
		}
		r, err := Build(dir)
		if err != nil {
			return s, err
		}
		raw, name, err := study.OpenRaw(dir)
		if err != nil {
			return s, fmt.Errorf("results: %w", err)
		}
		raw.Close()
		x := r.Results
		s.Runs = append(s.Runs, SummaryRun{
			Dir: dir, Data: name, Study: x.Study.Name, Mode: x.Mode, Version: x.Version, Started: x.Started, Planned: x.Planned, Measured: x.Measured, Void: x.Void,
			Left: x.Left, Sound: r.Trust.Sound, Trust: r.Trust.Sentence, Findings: r.Findings, results: x,
		})
	}
	slices.SortStableFunc(s.Runs, before)
	return s, s.claims()
}

// before puts the run that says more first.
func before(a, b SummaryRun) int {
	rank := func(r SummaryRun) int {
		n := 0
		if r.Left > 0 {
			n += 2
		}
		if r.Mode != study.Full {
			n++
		}
		return n
	}
	if d := rank(a) - rank(b); d != 0 {
		return d
	}
	return b.Started.Compare(a.Started)
}

// claims are those of today's studies. What an older run says of a claim that has become another is left out.
func (s *Summary) claims() error {
	for _, name := range papers {
		today, err := lab.Load(name, nil)
		if err != nil {
			return err
		}
		s.Papers = append(s.Papers, s.paper(today, true))
		for i := range s.Runs {
			if s.Runs[i].Study == name {
				s.Runs[i].Outdated = outdated(s.Runs[i].results, today)
			}
		}
	}
	for _, r := range s.Runs { // studies of others
		if !slices.ContainsFunc(s.Papers, func(p Paper) bool { return p.Study == r.Study }) && !slices.Contains(lab.Studies(), r.Study) {
			if p := s.paper(r.results.Study, false); len(p.Claims) > 0 {
				s.Papers = append(s.Papers, p)
			}
		}
	}
	return nil
}

func (s *Summary) paper(of study.Study, exact bool) Paper {
	p := Paper{Study: of.Name, Title: of.Title, Source: of.Source, Verdicts: map[claim.Verdict]int{}}
	for _, part := range of.Parts {
		for _, c := range part.Claims {
			if c.IsTarget() {
				continue
			}
			one := SummaryClaim{Part: part, Name: part.Name, Claim: c, Verdict: NotRun, Runs: s.judged(of.Name, part.Name, c, exact)}
			if len(one.Runs) > 0 {
				one.Verdict = one.Runs[0].Says.Verdict
			}
			p.Verdicts[one.Verdict]++
			p.Claims = append(p.Claims, one)
		}
	}
	return p
}

// judged is what each run says of a claim. A run that measured nothing for it says nothing, unless no run could.
func (s *Summary) judged(name, part string, c study.Claim, exact bool) (out []ClaimOfRun) {
	for _, r := range s.Runs {
		for _, p := range r.results.Parts {
			if r.Study != name || p.Part.Name != part {
				continue
			}
			for _, says := range p.Claims {
				if says.Claim.ID == c.ID && (!exact || reflect.DeepEqual(says.Claim, c)) {
					out = append(out, ClaimOfRun{r.Dir, r.Data, says})
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b ClaimOfRun) int { return told(b.Says) - told(a.Says) })
	return out
}

// outdated counts the claims of others in a run that today's study does not have.
func outdated(r lab.Results, today study.Study) (n int) {
	for _, p := range r.Parts {
		for _, says := range p.Claims {
			same := func(c study.Claim) bool { return reflect.DeepEqual(c, says.Claim) }
			if !says.Claim.IsTarget() && !slices.ContainsFunc(today.Parts, func(t study.Part) bool { return t.Name == p.Part.Name && slices.ContainsFunc(t.Claims, same) }) {
				n++
			}
		}
	}
	return n
}

// told is how much a verdict says: that a run was too short or could not tell gives way to one that tells.
func told(r lab.ClaimResult) int {
	switch r.Verdict {
	case claim.NotTestable:
		return 0
	case claim.Inconclusive:
		if r.Headline().Interval == nil {
			return 1
		}
	}
	return 2
}

// Write puts summary.html, summary.md and summary.json into a directory, and gives the files' paths. A file is replaced as a whole or not at all.
func (s Summary) Write(dir string) (paths []string, err error) {
	page, err := s.html(dir)
	if err != nil {
		return nil, err
	}
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("summary: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("summary: %w", err)
	}
	for name, content := range map[string][]byte{"summary.html": page, "summary.md": s.markdown(dir), "summary.json": append(raw, '\n')} {
		path := filepath.Join(dir, name)
		paths = append(paths, path)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
			continue
		}
		if err := instance.Replace(path, content, 0o644); err != nil {
			return nil, fmt.Errorf("summary: %w", err)
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// VerdictsText is "3 reproduced, 1 not run", in the order in which verdicts are counted.
func (p Paper) VerdictsText() string {
	var parts []string
	for _, v := range append(claim.Published(), NotRun) {
		if n := p.Verdicts[v]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	if len(parts) == 0 {
		return "no claims"
	}
	return strings.Join(parts, ", ")
}

// total counts verdicts over all papers.
func (s Summary) total() Paper {
	all := Paper{Verdicts: map[claim.Verdict]int{}}
	for _, p := range s.Papers {
		for v, n := range maps.All(p.Verdicts) {
			all.Verdicts[v] += n
		}
		all.Claims = append(all.Claims, p.Claims...)
	}
	return all
}
