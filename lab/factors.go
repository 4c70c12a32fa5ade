package lab

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
	"weir.dev/weir/lab/study"
)

// Factor is what an experiment can vary. A study names it as a factor, with levels, or as a setting, the same for all variants of a part.
type Factor struct {
	Name    string
	About   string
	Default string // its level if a study does not name it
	// Check tells what is wrong with a level on any machine; nil: every level is right. What this machine lacks is Experiment.Check's.
	Check func(level string) error
}

// Factored is an experiment that says what it can vary. What it does not know is then refused before anything is measured.
type Factored interface{ Factors() []Factor }

// factorLabel changes nothing: levels under two names are the same. It is for A/A studies, and known to every experiment.
const factorLabel = "label"

func labels() Factor {
	return Factor{Name: factorLabel, About: "a name that changes nothing, to compare a thing with itself", Default: "none"}
}

// Factors of an experiment; false: it does not say.
func Factors(x Experiment) ([]Factor, bool) {
	f, ok := x.(Factored)
	if !ok {
		return nil, false
	}
	list := f.Factors()
	return append(list, labels()), len(list) > 0
}

// or is the level of a factor, or what it is without one.
func (l Levels) or(name, without string) string {
	if v, ok := l[name]; ok {
		return v
	}
	return without
}

// number of a factor whose levels are whole numbers that were checked.
func (l Levels) number(name, without string) int {
	n, _ := strconv.Atoi(l.or(name, without)) // checked
	return n
}

// between checks whole numbers.
func between(least, most int, of string) func(string) error {
	return func(level string) error {
		n, err := strconv.Atoi(level)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%q: want %s, %d to %d", level, of, least, most)
		}
		return nil
	}
}

// oneOf checks words.
func oneOf(words ...string) func(string) error {
	return func(level string) error {
		if slices.Contains(words, level) {
			return nil
		}
		if hint := file.Suggest(level, words); hint != "" {
			return fmt.Errorf("%q: %s", level, hint)
		}
		return fmt.Errorf("%q: want one of %s", level, strings.Join(words, ", "))
	}
}

// levelsOf a variant: those of its part's settings, and its own.
func levelsOf(p study.Part, v study.Variant) Levels {
	l := Levels{}
	maps.Copy(l, p.Settings)
	for i, f := range p.Factors {
		l[f.Name] = v[i]
	}
	return l
}

// problems of a study that only the experiments know: factors, levels and metrics that they do not have.
func problems(s study.Study, experiments map[string]Experiment) (out []api.Problem) {
	for i, p := range s.Parts {
		x, ok := experiments[p.Experiment]
		if !ok {
			continue // said already
		}
		at := fmt.Sprintf("parts[%d]", i)
		out = append(out, metricProblems(at, p, x)...)
		known, ok := Factors(x)
		if !ok {
			continue
		}
		check := func(where string, place func(level int) string, name string, levels ...string) {
			k := slices.IndexFunc(known, func(f Factor) bool { return f.Name == name })
			if k < 0 {
				out = append(out, api.Problem{Path: where, Message: fmt.Sprintf("experiment %s has no factor %q", p.Experiment, name), Hint: hint(name, names(known))})
				return
			}
			for j, level := range levels {
				if known[k].Check == nil {
					continue
				}
				if err := known[k].Check(level); err != nil {
					out = append(out, api.Problem{Path: place(j), Message: fmt.Sprintf("level %s", err)})
				}
			}
		}
		for j, f := range p.Factors {
			here := fmt.Sprintf("%s.factors[%d]", at, j)
			check(here+".name", func(level int) string { return fmt.Sprintf("%s.levels[%d]", here, level) }, f.Name, f.Levels...)
		}
		for name, level := range p.Settings {
			here := at + ".settings." + name
			check(here, func(int) string { return here }, name, level)
		}
	}
	return out
}

func names(factors []Factor) (out []string) {
	for _, f := range factors {
		out = append(out, f.Name)
	}
	return out
}

func hint(word string, known []string) string {
	if h := file.Suggest(word, known); h != "" {
		return h
	}
	return "want one of " + strings.Join(known, ", ")
}

// metricProblems are metrics that an experiment does not give, or in another unit.
func metricProblems(at string, p study.Part, x Experiment) (out []api.Problem) {
	have := x.Metrics()
	for i, m := range p.Metrics {
		if unit, ok := have[m.Name]; ok && unit == m.Unit {
			continue
		}
		var list []string
		for _, name := range slices.Sorted(maps.Keys(have)) {
			list = append(list, name+" ("+have[name]+")")
		}
		out = append(out, api.Problem{
			Path: fmt.Sprintf("%s.metrics[%d]", at, i), Message: fmt.Sprintf("experiment %s has no metric %s (%s)", p.Experiment, m.Name, m.Unit),
			Hint: "want " + strings.Join(list, ", "),
		})
	}
	return out
}
