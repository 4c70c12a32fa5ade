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

	runs []SummaryRun
}

// What stands for a verdict where no run has judged a claim, and where one reproduces and another one contradicts it.
const (
	NotRun   claim.Verdict = "not run"
	Disagree claim.Verdict = "runs disagree"
)

// SummaryClaim is a claim with what each run says of it.
type SummaryClaim struct {
	Part    study.Part    `json:"-"`
	Name    string        `json:"part"`
	Claim   study.Claim   `json:"claim"`
	Verdict claim.Verdict `json:"verdict"` // of the first run, if no other disagrees
	Runs    []ClaimOfRun  `json:"runs"`    // in the order of the summary's runs
}

// ClaimOfRun is a claim as one run judges it.
type ClaimOfRun struct {
	Dir  string          `json:"dir"`
	Data string          `json:"data"`
	Mode study.Mode      `json:"mode"`
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
	for _, dir := range spread(dirs) {
		if dir = filepath.Clean(dir); seen[dir] {
			return s, fmt.Errorf("%w: %s is given twice", ErrSummary, dir)
		}
		seen[dir] = true
		r, err := runOf(dir)
		if err != nil {
			return s, err
		}
		s.Runs = append(s.Runs, r)
	}
	slices.SortStableFunc(s.Runs, before)
	return s, s.claims()
}

// spread puts the runs of a directory of repeated runs in its place.
func spread(dirs []string) (out []string) {
	for _, dir := range dirs {
		if some, _ := filepath.Glob(filepath.Join(dir, "[0-9][0-9][0-9]")); lab.Repeated(dir) && len(some) > 0 { // the pattern is well formed
			out = append(out, some...)
			continue
		}
		out = append(out, dir)
	}
	return out
}

func runOf(dir string) (SummaryRun, error) {
	r, err := Build(dir)
	if err != nil {
		return SummaryRun{}, err
	}
	raw, name, err := study.OpenRaw(dir)
	if err != nil {
		return SummaryRun{}, fmt.Errorf("results: %w", err)
	}
	x := r.Results
	return SummaryRun{
		Dir: dir, Data: name, Study: x.Study.Name, Mode: x.Mode, Version: x.Version, Started: x.Started, Planned: x.Planned, Measured: x.Measured, Void: x.Void,
		Left: x.Left, Sound: r.Trust.Sound, Trust: r.Trust.Sentence, Findings: r.Findings, results: x,
	}, raw.Close()
}

// before puts the run that says more first.
func before(a, b SummaryRun) int {
	rank := func(r SummaryRun) int {
		n := 0
		if !r.Sound {
			n += 4
		}
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

// claims are those of today's studies. What an older run says of a claim or a part that has become another is left out.
func (s *Summary) claims() error {
	for _, name := range papers {
		today, err := lab.Load(name, nil)
		if err != nil {
			return err
		}
		s.Papers = append(s.Papers, s.paper(today))
		for i, r := range s.Runs {
			if ofStudy(r, today) {
				s.Runs[i].Outdated = outdated(r, today)
			}
		}
	}
	for _, r := range s.Runs { // studies of others
		known := func(p Paper) bool { return p.Study == r.Study && p.Source == r.results.Study.Source }
		if !slices.ContainsFunc(s.Papers, known) {
			if p := s.paper(r.results.Study); len(p.Claims) > 0 {
				s.Papers = append(s.Papers, p)
			}
		}
	}
	return nil
}

// ofStudy tells whether a run is one of a study: another may have its name.
func ofStudy(r SummaryRun, x study.Study) bool {
	return r.Study == x.Name && r.results.Study.Source == x.Source
}

func (s *Summary) paper(of study.Study) Paper {
	p := Paper{Study: of.Name, Title: of.Title, Source: of.Source, Verdicts: map[claim.Verdict]int{}}
	for _, r := range s.Runs {
		if ofStudy(r, of) {
			p.runs = append(p.runs, r)
		}
	}
	for i, part := range of.Parts {
		for _, c := range part.Claims {
			if c.IsTarget() {
				continue
			}
			one := SummaryClaim{Part: part, Name: part.Name, Claim: c}
			one.Runs = judged(p.runs, of, i, c)
			one.Verdict = verdict(one.Runs)
			p.Verdicts[one.Verdict]++
			p.Claims = append(p.Claims, one)
		}
	}
	return p
}

// verdict of several runs.
func verdict(all []ClaimOfRun) claim.Verdict {
	if len(all) == 0 {
		return NotRun
	}
	yes, no := false, false
	for _, r := range all {
		yes = yes || r.Says.Verdict == claim.Reproduced || r.Says.Verdict == claim.SameDirection
		no = no || r.Says.Verdict == claim.Contradicted
	}
	if yes && no {
		return Disagree
	}
	return all[0].Says.Verdict
}

// judged is what each run says of a claim of a part.
func judged(runs []SummaryRun, of study.Study, part int, c study.Claim) (out []ClaimOfRun) {
	for _, r := range runs {
		for i, p := range r.results.Parts {
			if !samePart(r, i, of, part, c.Metric) {
				continue
			}
			for _, says := range p.Claims {
				if reflect.DeepEqual(says.Claim, c) {
					out = append(out, ClaimOfRun{r.Dir, r.Data, r.Mode, says})
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b ClaimOfRun) int { return told(b.Says) - told(a.Says) })
	return out
}

// samePart tells whether a run measured a metric of a part as a study has it: the same experiment, settings and baseline. It may have chosen some levels.
func samePart(r SummaryRun, i int, of study.Study, part int, metric string) bool {
	a, b := r.results.Study.For(r.Mode).Parts, of.For(r.Mode).Parts[part]
	k := slices.IndexFunc(a, func(p study.Part) bool { return p.Name == r.results.Parts[i].Part.Name })
	return k >= 0 && a[k].Name == b.Name && a[k].Experiment == b.Experiment && a[k].Compare == b.Compare && a[k].Baseline == b.Baseline &&
		maps.Equal(a[k].Settings, b.Settings) && metricOf(a[k], metric) == metricOf(b, metric)
}

func metricOf(p study.Part, name string) study.Metric {
	if i := metricIndex(p, name); i >= 0 {
		return p.Metrics[i]
	}
	return study.Metric{}
}

// outdated counts the claims of others in a run that today's study does not have.
func outdated(r SummaryRun, today study.Study) (n int) {
	for _, p := range r.results.Parts {
		for _, c := range p.Claims {
			if c.Claim.IsTarget() {
				continue
			}
			k := slices.IndexFunc(today.Parts, func(t study.Part) bool { return t.Name == p.Part.Name })
			if k < 0 || len(judged([]SummaryRun{r}, today, k, c.Claim)) == 0 || !slices.ContainsFunc(today.Parts[k].Claims, func(t study.Claim) bool { return reflect.DeepEqual(t, c.Claim) }) {
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
	for name, content := range map[string][]byte{"summary.html": page, "summary.md": s.Markdown(dir), "summary.json": append(raw, '\n')} {
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
	for _, v := range append(claim.Published(), Disagree, NotRun) {
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
