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
	value, baseline       string // unread: in no trial of the level
	excuse                string // why a platform has no other setting, or nothing that has it; empty: nothing says that they should differ
}

// unread stands for the value of a setting that was not read back.
const unread = "not known"

func (d difference) String() string {
	return fmt.Sprintf("%s is %s at %s, %s at %s", d.setting, d.value, d.level, d.baseline, d.against)
}

// oneSided tells that a setting was read at one level only, and at which.
func (d difference) oneSided() (known, unknown string, is bool) {
	switch unread {
	case d.value:
		return d.against, d.level, true
	case d.baseline:
		return d.level, d.against, true
	}
	return "", "", false
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

// place is a level of the compared factor in a group.
type place struct{ group, level string }

// readings are the settings of a place's trials that count.
type readings struct {
	levels experiment.Levels
	trials int                 // that read any
	values map[string][]string // by setting
	read   map[string]int      // trials, by setting
}

// value of a setting: one that some trials did not read is not known in these.
func (r readings) value(setting string) string {
	values := r.values[setting]
	if r.read[setting] < r.trials || r.read[setting] == 0 {
		values = append(slices.Clone(values), unread)
	}
	return list(values)
}

// readingsOf a part. A search that was resumed behind its last step has read nothing: it says as little of a setting as it takes away.
func readingsOf(p study.Part, records []study.Record) map[place]*readings {
	out := map[place]*readings{}
	explained := explainedBy(p)
	for _, r := range records {
		if r.Void != "" || r.Skipped != "" {
			continue
		}
		at := place{p.Group(r.Trial.Variant), p.Level(r.Trial.Variant, p.Compare)}
		have := out[at]
		if have == nil {
			have = &readings{levels: levelsOf(p, r.Trial.Variant), values: map[string][]string{}, read: map[string]int{}}
			out[at] = have
		}
		if len(r.Conditions) > 0 {
			have.trials++
		}
		for name, condition := range r.Conditions {
			if experiment.Setting(name) && !explained[name] {
				have.values[name] = append(have.values[name], values(condition)...)
				have.read[name]++
			}
		}
	}
	return out
}

// differences are the settings in which levels of a part are not alike, as they were read back in the trials that count. A setting that is known at one
// level only is one of them: nobody can say that the other one has it, too.
func differences(p study.Part, records []study.Record) (out []difference) {
	have := readingsOf(p, records)
	compared, _ := p.Factor(p.Compare)
	seen := map[string]bool{}
	for _, v := range p.Variants() {
		group := p.Group(v)
		if seen[group] {
			continue
		}
		seen[group] = true
		base := have[place{group, p.Baseline}]
		for _, level := range compared.Levels {
			theirs := have[place{group, level}]
			if base == nil || theirs == nil { // nothing is compared
				continue
			}
			names := slices.AppendSeq(slices.Collect(maps.Keys(base.values)), maps.Keys(theirs.values))
			slices.Sort(names)
			for _, name := range slices.Compact(names) {
				d := difference{group, level, p.Baseline, name, theirs.value(name), base.value(name), ""}
				if d.value == d.baseline {
					continue
				}
				d.excuse = excuse(d, theirs.levels, base.levels)
				out = append(out, d)
			}
		}
	}
	return out
}

// excuse for a difference: a platform that has no other setting, or, where it was not read, nothing that has it.
func excuse(d difference, theirs, base experiment.Levels) string {
	if _, unknown, is := d.oneSided(); is {
		if unknown == d.level {
			return experiment.Absent(theirs, d.setting)
		}
		return experiment.Absent(base, d.setting)
	}
	if strings.Contains(d.value+d.baseline, unread) { // nobody knows whether it is what the platform cannot have otherwise
		return ""
	}
	kind := strings.TrimSuffix(d.setting, ofPorts)
	return cmp.Or(experiment.Inherent(theirs)[kind], experiment.Inherent(base)[kind])
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

// judgeFairness takes the verdicts back of levels that did not have the settings of their baseline, or of which nobody knows whether they had, and says
// why. What a platform cannot have otherwise, or does not have at all, stays in the figures: it is told.
func (r *PartResult) judgeFairness(records []study.Record) (unfair []Distrust, told []string) {
	reasons := map[string][]string{} // groups, by what is told
	var order []string
	note := func(text, group string) {
		if reasons[text] == nil {
			order = append(order, text)
		}
		reasons[text] = append(reasons[text], group)
	}
	type sides struct{ group, known, unknown string }
	unknown := map[sides][]string{} // settings
	var unknowns []sides
	levels := map[string]string{}
	excused := map[string][]string{} // settings
	for _, d := range differences(r.Part, records) {
		at, elsewhere, one := d.oneSided()
		if d.excuse != "" {
			if !one {
				at, elsewhere = d.level, d.against
			}
			text := fmt.Sprintf("at %s, not at %s: %s", at, elsewhere, d.excuse)
			if !slices.Contains(excused[text], d.setting) {
				excused[text] = append(excused[text], d.setting)
			}
			continue
		}
		if one {
			s := sides{d.group, at, elsewhere}
			if unknown[s] == nil {
				unknowns = append(unknowns, s)
			}
			unknown[s] = append(unknown[s], d.setting)
		} else {
			note(d.String(), d.group)
		}
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
	for _, s := range unknowns { // there may be many settings: one line
		note(fmt.Sprintf("known at %s, not at %s: %s", s.known, s.unknown, strings.Join(unknown[s], ", ")), s.group)
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
	for _, text := range slices.Sorted(maps.Keys(excused)) {
		told = append(told, fmt.Sprintf("Part %s: %s %s.", r.Part.Name, strings.Join(excused[text], ", "), text))
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
