package study

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
)

// Study is the file.
type Study struct {
	Name   string `json:"name"`
	Title  string `json:"title"`
	Source string `json:"source,omitempty"` // of the published figures
	About  string `json:"about,omitempty"`
	Parts  []Part `json:"parts"`
}

// Part answers one question.
type Part struct {
	Name       string   `json:"name"`
	Question   string   `json:"question"`
	Experiment string   `json:"experiment"` // that runs a trial
	Metrics    []Metric `json:"metrics"`    // the first one is what the question is about
	Factors    []Factor `json:"factors"`
	// Settings are factors of the experiment that are the same for all variants of the part. What is neither a factor nor a setting is as the
	// experiment has it by default.
	Settings map[string]string `json:"settings,omitempty"`
	Compare  string            `json:"compare"`  // the factor whose levels are compared
	Baseline string            `json:"baseline"` // its level to which the others are related
	Quick    Plan              `json:"quick"`
	Full     Plan              `json:"full"`
	Claims   []Claim           `json:"claims,omitempty"`
}

// Metric is one figure of a trial.
type Metric struct {
	Name   string `json:"name"`
	Unit   string `json:"unit"`
	Better string `json:"better"` // higher, lower
	// Margin is the share by which a variant may differ and still be equivalent, as 0.05; 0: that.
	Margin float64 `json:"margin,omitempty"`
}

// margin of a metric that sets none: stats.Margin.
const margin = 0.05

// Band is the margin as a ratio above 1.
func (m Metric) Band() float64 {
	if m.Margin == 0 {
		return 1 + margin
	}
	return 1 + m.Margin
}

// Factor has the levels in the order in which they are shown.
type Factor struct {
	Name   string   `json:"name"`
	Levels []string `json:"levels"`
}

// One of what a factor counts, as a text names it: a wire of the factor wires.
func One(factor string) string { return strings.TrimSuffix(factor, "s") }

// Plan is how much is measured.
type Plan struct {
	Blocks   int    `json:"blocks"`
	Duration string `json:"duration,omitempty"` // of a trial, for experiments that take one: 2s
	Verify   string `json:"verify,omitempty"`   // length of the trials that verify a result, for experiments that search one: 10s
	// Takes is how long the part takes, set-ups and all, as measured on a machine of two CPUs: what others can expect.
	Takes string `json:"takes,omitempty"`
	// Settings in the place of the part's: sizes that would take too long in this mode, such as that of a file. They are the same for all variants.
	Settings map[string]string `json:"settings,omitempty"`
	// Leave are combinations of levels that take too long for this plan. They stay in the schedule and are reported as skipped.
	Leave []map[string]Some `json:"leave,omitempty"`
}

// Some levels of a factor. A single one is written as a text, too.
type Some []string

func (s *Some) UnmarshalJSON(raw []byte) error {
	var one string
	if err := json.Unmarshal(raw, &one); err == nil {
		*s = Some{one}
		return nil
	}
	var list []string
	if err := json.Unmarshal(raw, &list); err != nil || len(list) == 0 {
		return fmt.Errorf("%s: want a level, or a list of levels", raw)
	}
	*s = list
	return nil
}

func (s Some) MarshalJSON() ([]byte, error) {
	if len(s) == 1 {
		return json.Marshal(s[0])
	}
	return json.Marshal([]string(s))
}

// Leaves tells whether a plan leaves a variant of the part out.
func (p Part) Leaves(plan Plan, v Variant) bool {
	return slices.ContainsFunc(plan.Leave, func(levels map[string]Some) bool {
		for name, some := range levels {
			if !slices.Contains(some, p.Level(v, name)) {
				return false
			}
		}
		return len(levels) > 0
	})
}

// Plan of a mode.
func (p Part) Plan(m Mode) Plan {
	if m == Full {
		return p.Full
	}
	return p.Quick
}

// For is the study as a mode measures it: its parts have the settings of the mode's plan.
func (s Study) For(m Mode) Study {
	s.Parts = slices.Clone(s.Parts)
	for i, p := range s.Parts {
		if more := p.Plan(m).Settings; len(more) > 0 {
			s.Parts[i].Settings = maps.Clone(p.Settings)
			if s.Parts[i].Settings == nil {
				s.Parts[i].Settings = map[string]string{}
			}
			maps.Copy(s.Parts[i].Settings, more)
		}
	}
	return s
}

// AtMost is the study with no more than so many blocks in each part's plan of a mode.
func (s Study) AtMost(blocks int, m Mode) Study {
	s.Parts = slices.Clone(s.Parts)
	for i := range s.Parts {
		plan := &s.Parts[i].Quick
		if m == Full {
			plan = &s.Parts[i].Full
		}
		plan.Blocks = min(plan.Blocks, blocks)
	}
	return s
}

// Bounds of what a study may ask for.
const (
	maxParts    = 50
	maxBlocks   = 1000
	maxVariants = 2000 // of a part
	maxTrials   = 1e6  // of a run: weeks of measuring, 1 GB of schedule
	maxDuration = time.Hour
	maxVerify   = time.Minute
	maxTakes    = 7 * 24 * time.Hour
)

const wantTop = "want a mapping with name, title and parts"

// File is a checked study with the places of its keys.
type File struct {
	Path   string
	Study  Study
	Places *file.File
}

// Load reads a study ("-" is stdin). experiments are the names that a part may use. What is wrong comes back as *file.Error, every problem
// with its line and column.
func Load(path string, stdin io.Reader, experiments []string) (File, error) {
	f := File{Path: path}
	var err error
	if f.Places, err = file.LoadInto(path, stdin, wantTop, &f.Study); err != nil {
		return f, err
	}
	return f, f.Places.Explain(f.Study.Validate(experiments))
}

// Parse is Load for a text that is at hand.
func Parse(name string, text []byte, experiments []string) (File, error) {
	f := File{Path: name}
	var err error
	if f.Places, err = file.ParseInto(name, text, wantTop, &f.Study); err != nil {
		return f, err
	}
	return f, f.Places.Explain(f.Study.Validate(experiments))
}

// check collects problems.
type check []api.Problem

func (c *check) add(path, hint, format string, args ...any) {
	*c = append(*c, api.Problem{Path: path, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// Validate says everything that is wrong with a study.
func (s Study) Validate(experiments []string) []api.Problem {
	var c check
	if err := api.CheckName(s.Name); err != nil {
		c.add("name", "", "%s", err)
	}
	if s.Title == "" {
		c.add("title", "say in a line what is studied", "is empty")
	}
	if len(s.Parts) == 0 || len(s.Parts) > maxParts {
		c.add("parts", "", "%d parts: want 1 to %d", len(s.Parts), maxParts)
	}
	seen := map[string]bool{}
	for i, p := range s.Parts {
		at := fmt.Sprintf("parts[%d]", i)
		if err := api.CheckName(p.Name); err != nil {
			c.add(at+".name", "", "%s", err)
		}
		if seen[p.Name] {
			c.add(at+".name", "", "part %q is there twice", p.Name)
		}
		seen[p.Name] = true
		p.validate(&c, at, experiments)
	}
	for _, m := range []Mode{Quick, Full} {
		if n := s.size(m); n > maxTrials {
			c.add("parts", "fewer blocks, or several studies", "%s: more than %.0f trials", m, float64(maxTrials))
		}
	}
	return c
}

// size is how many trials a run makes, duplicates apart; maxTrials+1 stands for all above.
func (s Study) size(m Mode) int {
	n := 0
	for _, p := range s.Parts {
		n = min(n+times(max(p.Plan(m).Blocks, 0), p.variants()), maxTrials+1)
	}
	return n
}

// variants is how many there are; maxTrials+1 stands for all above.
func (p Part) variants() int {
	n := 1
	for _, f := range p.Factors {
		n = times(n, len(f.Levels))
	}
	return n
}

// times multiplies what is not negative; maxTrials+1 stands for all above.
func times(a, b int) int {
	if a > 0 && b > maxTrials/a {
		return maxTrials + 1
	}
	return a * b
}

func (p Part) validate(c *check, at string, experiments []string) {
	if !slices.Contains(experiments, p.Experiment) {
		c.add(at+".experiment", file.Choose(p.Experiment, experiments), "there is no experiment %q", p.Experiment)
	}
	if p.Question == "" {
		c.add(at+".question", "ask what a reader wants to know", "is empty")
	}
	if len(p.Metrics) == 0 {
		c.add(at+".metrics", "", "want at least one")
	}
	for i, m := range p.Metrics {
		if m.Name == "" || m.Unit == "" || m.Better != "higher" && m.Better != "lower" {
			c.add(fmt.Sprintf("%s.metrics[%d]", at, i), "", "want a name, a unit, and better: higher or lower")
		}
		if !(m.Margin >= 0 && m.Margin < 1) {
			c.add(fmt.Sprintf("%s.metrics[%d].margin", at, i), "0.05 is 5 %, and what counts if none is given", "%v: want a share between 0 and 1", m.Margin)
		}
	}
	p.validateFactors(c, at)
	for name, plan := range map[string]Plan{"quick": p.Quick, "full": p.Full} {
		if plan.Blocks < 1 || plan.Blocks > maxBlocks {
			c.add(at+"."+name+".blocks", "", "%d blocks: want 1 to %d", plan.Blocks, maxBlocks)
		}
		if _, err := plan.Length(); err != nil {
			c.add(at+"."+name+".duration", "for example 2s", "%s", err)
		}
		if _, err := plan.VerifyLength(); err != nil {
			c.add(at+"."+name+".verify", "for example 10s", "%s", err)
		}
		if _, err := plan.Time(); err != nil {
			c.add(at+"."+name+".takes", "for example 4m", "%s", err)
		}
		for i, levels := range plan.Leave {
			for factor, some := range levels {
				if len(some) == 0 {
					c.add(fmt.Sprintf("%s.%s.leave[%d].%s", at, name, i, factor), "", "no level: want one, or a list of some")
				}
				for _, level := range some {
					p.validateLevels(c, fmt.Sprintf("%s.%s.leave[%d]", at, name, i), map[string]string{factor: level})
				}
			}
		}
	}
	for i, claim := range p.Claims {
		p.validateClaim(c, fmt.Sprintf("%s.claims[%d]", at, i), claim)
	}
}

// Length of a trial; 0 if the experiment takes none.
func (p Plan) Length() (time.Duration, error) { return length(p.Duration, maxDuration) }

// VerifyLength is that of a trial that verifies a result; 0 if the plan does not say it.
func (p Plan) VerifyLength() (time.Duration, error) { return length(p.Verify, maxVerify) }

// Time that the part takes; 0 if the plan does not say it.
func (p Plan) Time() (time.Duration, error) { return length(p.Takes, maxTakes) }

func length(text string, most time.Duration) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && (d <= 0 || d > most) {
		err = fmt.Errorf("%s: want more than 0 and at most %s", d, most)
	}
	return d, err
}

func (p Part) validateFactors(c *check, at string) {
	names := map[string]bool{}
	for i, f := range p.Factors {
		where := fmt.Sprintf("%s.factors[%d]", at, i)
		if err := api.CheckName(f.Name); err != nil {
			c.add(where+".name", "", "%s", err)
		}
		if names[f.Name] {
			c.add(where+".name", "", "factor %q is there twice", f.Name)
		}
		names[f.Name] = true
		if len(f.Levels) == 0 {
			c.add(where+".levels", "", "want at least one")
		}
		levels := map[string]bool{}
		for j, l := range f.Levels {
			if badLevel(l) || levels[l] {
				c.add(fmt.Sprintf("%s.levels[%d]", where, j), "", "level %q: want each once, not empty, without = , / or '", l)
			}
			levels[l] = true
		}
	}
	for where, settings := range p.AllSettings() {
		for name, level := range settings {
			where := at + "." + where + "." + name
			if err := api.CheckName(name); err != nil {
				c.add(where, "", "%s", err)
			}
			if names[name] {
				c.add(where, "leave one of them out", "%q is both a setting, the same for all, and a factor, which varies", name)
			}
			if badLevel(level) {
				c.add(where, "", "level %q: want one that is not empty, without = , / or '", level)
			}
		}
	}
	if p.variants() > maxVariants {
		c.add(at+".factors", "split the part", "too many combinations of levels: want at most %d", maxVariants)
	}
	f, ok := p.Factor(p.Compare)
	if !ok {
		c.add(at+".compare", file.Choose(p.Compare, p.factorNames()), "there is no factor %q", p.Compare)
		return
	}
	if !slices.Contains(f.Levels, p.Baseline) {
		c.add(at+".baseline", file.Choose(p.Baseline, f.Levels), "factor %s has no level %q", f.Name, p.Baseline)
	}
}

// AllSettings are the part's and those of its plans, by their place in the part.
func (p Part) AllSettings() map[string]map[string]string {
	return map[string]map[string]string{"settings": p.Settings, "quick.settings": p.Quick.Settings, "full.settings": p.Full.Settings}
}

// badLevel: levels are written in keys of trials and in selections.
func badLevel(l string) bool { return l == "" || strings.ContainsAny(l, "=,/'") }

func (p Part) validateLevels(c *check, at string, levels map[string]string) {
	for name, level := range levels {
		if f, ok := p.Factor(name); !ok {
			c.add(at+"."+name, file.Choose(name, p.factorNames()), "there is no factor %q", name)
		} else if !slices.Contains(f.Levels, level) {
			c.add(at+"."+name, file.Choose(level, f.Levels), "factor %s has no level %q", name, level)
		}
	}
}

// Factor by its name.
func (p Part) Factor(name string) (Factor, bool) {
	for _, f := range p.Factors {
		if f.Name == name {
			return f, true
		}
	}
	return Factor{}, false
}

func (p Part) factorNames() (names []string) {
	for _, f := range p.Factors {
		names = append(names, f.Name)
	}
	return names
}
