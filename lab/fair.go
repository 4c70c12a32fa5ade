package lab

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

// difference of a setting between a level of the compared factor and the baseline.
type difference struct {
	group, level, against string // against: the baseline
	setting               string
	value, baseline       string
	inherent              string // why a platform has no other setting; empty: nothing says that they should differ
}

func (d difference) String() string {
	return fmt.Sprintf("%s is %s at %s, %s at %s", d.setting, d.value, d.level, d.baseline, d.against)
}

// counts of values, as platform.Path.Conditions tells them: how many links there are is no setting.
var counts = regexp.MustCompile(` \(\d+\)`)

// values that a setting has in a condition.
func values(condition string) []string {
	plain := counts.ReplaceAllString(condition, "")
	if plain == condition {
		return []string{condition}
	}
	return strings.Split(plain, ", ")
}

// differences are the settings in which levels of a part are not alike, as they were read back in the trials that count.
func differences(p study.Part, records []study.Record) (out []difference) {
	type place struct{ group, level string }
	have := map[place]map[string][]string{} // values by setting
	inherent := map[place]map[string]string{}
	explained := explainedBy(p)
	for _, r := range records {
		if r.Void != "" || r.Skipped != "" {
			continue
		}
		at := place{p.Group(r.Trial.Variant), p.Level(r.Trial.Variant, p.Compare)}
		if have[at] == nil {
			have[at], inherent[at] = map[string][]string{}, experiment.Inherent(levelsOf(p, r.Trial.Variant))
		}
		for name, condition := range r.Conditions {
			if experiment.Setting(name) && !explained[name] {
				have[at][name] = append(have[at][name], values(condition)...)
			}
		}
	}
	compared, _ := p.Factor(p.Compare)
	seen := map[string]bool{}
	for _, v := range p.Variants() {
		group := p.Group(v)
		if seen[group] {
			continue
		}
		seen[group] = true
		base := place{group, p.Baseline}
		for _, level := range compared.Levels {
			at := place{group, level}
			for _, name := range slices.Sorted(maps.Keys(have[at])) {
				theirs, known := have[base][name]
				if d := (difference{group, level, p.Baseline, name, list(have[at][name]), list(theirs), ""}); known && d.value != d.baseline {
					kind := strings.TrimSuffix(name, ofPorts)
					if d.inherent = inherent[at][kind]; d.inherent == "" {
						d.inherent = inherent[base][kind]
					}
					out = append(out, d)
				}
			}
		}
	}
	return out
}

// ofPorts ends the name of a setting of what is between the stations.
const ofPorts = " of ports"

// list has each value once.
func list(values []string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(values))), " and ")
}

// explainedBy are the conditions about which the compared factor is.
func explainedBy(p study.Part) map[string]bool {
	out := map[string]bool{p.Compare: true}
	x, ok := experiment.All()[p.Experiment]
	if !ok {
		return out
	}
	known, _ := experiment.Factors(x)
	for _, f := range known {
		if f.Name == p.Compare {
			for _, name := range f.Sets {
				out[name] = true
			}
		}
	}
	return out
}

// judgeFairness takes the verdicts back of levels that did not have the settings of their baseline, and says why. What a platform cannot have otherwise
// stays in the figures: it is told.
func (r *PartResult) judgeFairness(records []study.Record) (unfair []Distrust, told []string) {
	reasons := map[string][]string{} // groups, by what is told
	var order []string
	note := func(text, group string) {
		if reasons[text] == nil {
			order = append(order, text)
		}
		reasons[text] = append(reasons[text], group)
	}
	levels := map[string]string{}
	inherent := map[string][]string{} // settings
	for _, d := range differences(r.Part, records) {
		if d.inherent != "" {
			text := fmt.Sprintf("at %s, not at %s: %s", d.level, r.Part.Baseline, d.inherent)
			if !slices.Contains(inherent[text], d.setting) {
				inherent[text] = append(inherent[text], d.setting)
			}
			continue
		}
		note(d.String(), d.group)
		levels[d.level] = d.String()
		for _, g := range r.Groups {
			if g.Name != d.group {
				continue
			}
			for i := range g.Metrics {
				g.Metrics[i].Comparison.Disown(d.level)
			}
		}
	}
	for i := range r.Claims {
		r.Claims[i] = r.Claims[i].onlyFair(r.Part.Compare, levels)
	}
	for _, text := range order {
		groups := slices.DeleteFunc(reasons[text], func(g string) bool { return g == "" })
		if len(groups) > 0 {
			text += " (" + strings.Join(groups, "; ") + ")"
		}
		unfair = append(unfair, Distrust{r.Part.Name, "unfair: " + text})
	}
	for _, text := range slices.Sorted(maps.Keys(inherent)) {
		told = append(told, fmt.Sprintf("Part %s: %s %s.", r.Part.Name, strings.Join(inherent[text], ", "), text))
	}
	return unfair, told
}

// onlyFair takes a claim's verdict back where it relates two levels of which one is unfair; unfair says why, by level.
func (r ClaimResult) onlyFair(compared string, unfair map[string]string) ClaimResult {
	for i, on := range r.Systems {
		at, against := r.Claim.Places(compared, on.System)
		if against == nil || at[compared] == against[compared] {
			continue
		}
		if why := cmp.Or(unfair[at[compared]], unfair[against[compared]]); why != "" {
			r.Systems[i] = on.untestable("unfair: %s", why)
		}
	}
	if len(r.Systems) > 0 {
		r.Verdict = r.Headline().Verdict
	}
	return r
}
