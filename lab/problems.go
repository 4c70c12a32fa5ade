package lab

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

// levelsOf a variant: those of its part's settings, and its own.
func levelsOf(p study.Part, v study.Variant) experiment.Levels {
	l := experiment.Levels{}
	maps.Copy(l, p.Settings)
	for i, f := range p.Factors {
		l[f.Name] = v[i]
	}
	return l
}

// problems of a study that only the experiments know: factors, levels and metrics that they do not have.
func problems(s study.Study, experiments map[string]experiment.Experiment) (out []api.Problem) {
	for i, p := range s.Parts {
		x, ok := experiments[p.Experiment]
		if !ok {
			continue // said already
		}
		at := fmt.Sprintf("parts[%d]", i)
		out = append(out, metricProblems(at, p, x)...)
		known, ok := experiment.Factors(x)
		if !ok {
			continue
		}
		check := func(where string, place func(level int) string, name string, levels ...string) {
			k := slices.IndexFunc(known, func(f experiment.Factor) bool { return f.Name == name })
			if k < 0 {
				out = append(out, api.Problem{Path: where, Message: fmt.Sprintf("experiment %s has no factor %q", p.Experiment, name), Hint: file.Choose(name, names(known))})
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
		for where, settings := range p.AllSettings() {
			for name, level := range settings {
				here := at + "." + where + "." + name
				check(here, func(int) string { return here }, name, level)
			}
		}
	}
	return out
}

func names(factors []experiment.Factor) (out []string) {
	for _, f := range factors {
		out = append(out, f.Name)
	}
	return out
}

// metricProblems are metrics that an experiment does not give, or in another unit.
func metricProblems(at string, p study.Part, x experiment.Experiment) (out []api.Problem) {
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
