package experiment

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/api/file"
	"weir.dev/weir/cpuset"
	"weir.dev/weir/lab/platform"
)

// Factor is what an experiment can vary. A study names it as a factor, with levels, or as a setting, the same for all variants of a part.
type Factor struct {
	Name    string
	About   string
	Default string // its level if a study does not name it
	// Check tells what is wrong with a level on any machine; nil: every level is right. What this machine lacks is Experiment.Check's.
	Check func(level string) error
	// Sets names the conditions that a level decides. They may differ where the factor is compared, as may one of the factor's own name.
	Sets []string
}

// Factored is an experiment that says what it can vary. What it does not know is then refused before anything is measured.
type Factored interface{ Factors() []Factor }

// FactorLabel changes nothing: levels under two names are the same. It is for A/A studies, and known to every experiment.
const FactorLabel = "label"

func labels() Factor {
	return Factor{Name: FactorLabel, About: "a name that changes nothing, to compare a thing with itself", Default: "none"}
}

// platformFactors choose a platform: by its name, or by its parts.
func platformFactors() []Factor {
	parts := func(names []string, about string) Factor {
		return Factor{About: about + ", in the place of the platform's: " + strings.Join(names, ", "), Check: oneOf(names...)}
	}
	out := []Factor{
		{Name: FactorPlatform, Default: defaultPlatform, About: "what carries the packets: " + strings.Join(platform.ShortNames(), ", ") + ", or runtime+network+function", Check: oneOf(platform.Names()...)},
		parts(platform.Runtimes(), "what a function runs in"), parts(platform.Networks(), "what joins functions and stations"), parts(platform.Functions(), "what forwards in a function"),
	}
	out[1].Name, out[2].Name, out[3].Name = factorRuntime, FactorNetwork, factorFunction
	return out
}

// Inherent settings of the platform that levels choose, with the reason; see platform.Kind.
func Inherent(l Levels) map[string]string {
	if _, runs := l[factorFunctions]; runs { // functions without a network
		return nil
	}
	if _, runs := l[factorProcessors]; runs { // on hosts
		return nil
	}
	if network, ok := pairedNetwork(l); ok {
		return platform.SegmentInherent(network)
	}
	k, err := platformOf(l)
	if err != nil {
		return nil
	}
	return k.Inherent
}

// Absent tells why there is nothing at levels that could have a setting; empty: there is. See platform.Kind.
func Absent(l Levels, setting string) string {
	if network, ok := pairedNetwork(l); ok {
		return platform.SegmentAbsent(network, setting)
	}
	k, err := platformOf(l)
	if err != nil {
		return ""
	}
	layout, _ := layoutOf(l, k) // it was measured
	return k.Absent(layout, setting)
}

const defaultPlatform = "ebpf"

// platformOf levels is the platform that they choose.
func platformOf(l Levels) (platform.Kind, error) {
	name := l.or(FactorPlatform, defaultPlatform)
	k, ok := platform.Find(name)
	if !ok {
		return k, fmt.Errorf("there is no platform %q: %s", name, file.Choose(name, platform.Names()))
	}
	return k.With(platform.Point{Runtime: l[factorRuntime], Network: l[FactorNetwork], Function: l[factorFunction]})
}

// layoutOf levels on a kind of platform; why says what it cannot have. Without the factor wires it is the fewest that do its work.
func layoutOf(l Levels, k platform.Kind) (out platform.Layout, why string) {
	out = platform.Layout{Chain: max(k.Least, min(1, k.Most)), Placement: l[factorPlacement], Stations: l[factorStations]}
	if text, ok := l[factorWires]; ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return out, fmt.Sprintf("wires %q: want a number", text)
		}
		out.Chain = n
	}
	if out.Chain < k.Least || out.Chain > k.Most {
		return out, fmt.Sprintf("%s has %d to %d wires", k.Name, k.Least, k.Most)
	}
	if n := l.number(factorParallel, "1"); n > 1 {
		out.Parallel = n
	}
	switch {
	case out.Parallel > 1 && !k.Splits:
		return out, fmt.Sprintf("platform %s does not split traffic by source MAC: it has one chain, not %d side by side", k.Name, out.Parallel)
	case out.Parallel > 1 && (out.Chain == 0 || out.Parallel*out.Chain > k.Most):
		return out, fmt.Sprintf("%d chains of %d functions: want 1 to %d functions in all", out.Parallel, out.Chain, k.Most)
	}
	return out, ""
}

// Levels of the factor crowding.
const (
	factorCrowding = "crowding"
	crowdingAny    = "any"
	crowdingNone   = "none"
)

// crowding is the factor of threads that poll beside processors.
func crowding() Factor {
	return Factor{Name: factorCrowding, About: "none: only where each thread that polls has a processor of its own, beside the sender's; any: also where they share", Default: crowdingAny,
		Check: oneOf(crowdingAny, crowdingNone)}
}

// crowded tells why the threads that poll on a path would share processors although levels forbid it.
func crowded(l Levels, k platform.Kind, layout platform.Layout) string {
	if l.or(factorCrowding, crowdingAny) == crowdingAny || k.Polls == nil {
		return ""
	}
	own, err := cpuset.Allowed()
	if err != nil {
		return err.Error()
	}
	if n, have := k.Polls(layout)+1, len(own); n > have {
		return fmt.Sprintf("%d threads poll, and the sender wants a CPU, too: this process has %d CPUs, want %d", n-1, have, n)
	}
	return ""
}

// parallel is the factor of chains side by side.
func parallel() Factor {
	return Factor{Name: factorParallel, About: "chains side by side, each of so many functions; what is sent is split among them by its source MAC", Default: "1",
		Check: between(1, platform.MostParallel, "a number of chains")}
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
		return fmt.Errorf("%q: %s", level, file.Choose(level, words))
	}
}
