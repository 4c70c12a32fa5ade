package placement

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"weir.dev/weir/api"
)

// Strategy ranks a host for a function that fits there. Hosts of equal rank are taken by name.
type Strategy func(v *View, f *api.Function, h *Candidate) Rank

// Rank of a host: the least wins, key by key.
type Rank struct {
	Keys   [4]float64
	Reason func() string // what to tell if it wins
}

// Default is the strategy of who names none.
const Default = "most-available"

// named are the strategies by the names that users write.
func named() map[string]Strategy {
	return map[string]Strategy{Default: MostAvailable, "pack": Pack, "spread": Spread, "nearest": Nearest}
}

// Names are the strategies that Named knows.
func Names() []string { return []string{Default, "pack", "spread", "nearest"} }

// Named finds a strategy; "" is Default.
func Named(name string) (Strategy, error) {
	if name == "" {
		name = Default
	}
	if s := named()[name]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("placement %q: want one of %s", name, strings.Join(Names(), ", "))
}

// MostAvailable takes the host with the most free resources, as GLANF does: cores neither requested nor loaded, and memory, each as
// a share of the largest host's. Differences of less than a tenth decide nothing; then functions of one chain go together (the fewest
// crossings), then the host with the fewest functions is taken.
func MostAvailable(v *View, f *api.Function, h *Candidate) Rank {
	return Rank{
		Keys:   [4]float64{-tenths(v.available(h)), -v.neighbours(f, h), float64(h.Functions)},
		Reason: func() string { return "most-available: " + free(h) },
	}
}

// Pack takes the host with the least free resources that suffice, so that others stay empty; then functions of one chain go together.
func Pack(v *View, f *api.Function, h *Candidate) Rank {
	empty := 0.0
	if h.Functions == 0 {
		empty = 1
	}
	return Rank{
		Keys:   [4]float64{empty, tenths(v.available(h)), -v.neighbours(f, h), -float64(h.Functions)},
		Reason: func() string { return "pack: " + free(h) },
	}
}

// Spread keeps functions of one chain apart, then those of one image, then the number of functions even.
func Spread(v *View, f *api.Function, h *Candidate) Rank {
	same := h.images[f.Spec.Image]
	return Rank{
		Keys: [4]float64{v.neighbours(f, h), float64(same), float64(h.Functions), -tenths(v.available(h))},
		Reason: func() string {
			return fmt.Sprintf("spread: %s of its chain here, %d of its image, %d in all", short(v.neighbours(f, h)), same, h.Functions)
		},
	}
}

// Nearest takes the host for which the traffic of the function's policies makes the fewest extra hops; then as MostAvailable, functions
// of one chain together first.
func Nearest(v *View, f *api.Function, h *Candidate) Rank {
	extra := v.extraHops(f, h.Host.Name)
	return Rank{
		Keys: [4]float64{extra, -v.neighbours(f, h), -tenths(v.available(h)), float64(h.Functions)},
		Reason: func() string {
			if math.IsInf(extra, 1) {
				return "nearest: no way to it is known; " + free(h)
			}
			return fmt.Sprintf("nearest: %s extra hops; %s", short(extra), free(h))
		},
	}
}

func free(h *Candidate) string {
	if h.Host.Status.Cores == 0 {
		return "its resources are not known"
	}
	return fmt.Sprintf("%s of %d cores and %s of %s free", short(h.freeCPUs()), h.Host.Status.Cores, size(h.freeMemory()), size(h.Host.Status.Memory))
}

// available is 0 to 1: the mean of a host's free cores and memory, of the largest host's.
func (v *View) available(h *Candidate) float64 {
	var cpu, memory float64
	if v.cores > 0 {
		cpu = h.freeCPUs() / float64(v.cores)
	}
	if v.memory > 0 {
		memory = float64(h.freeMemory()) / float64(v.memory)
	}
	return (cpu + memory) / 2
}

func tenths(share float64) float64 { return math.Round(share * 10) }

// neighbours is how many functions of the same chain are on a host.
func (v *View) neighbours(f *api.Function, h *Candidate) float64 {
	chain := v.chainOf[f.Name]
	if chain == "" {
		return 0
	}
	n := h.chains[chain]
	if v.at[f.Name] == h.Host.Name {
		n-- // itself
	}
	return float64(n)
}

// extraHops is how much longer the ways of the function's policies are with the function on a host, compared to without it, on
// average. Neighbours in the chain that have no place yet count as not there.
func (v *View) extraHops(f *api.Function, host string) float64 {
	chain := v.chainOf[f.Name]
	members := v.members[chain]
	i := slices.Index(members, f.Name)
	if i < 0 {
		return 0
	}
	before := v.nearestPlaced(f, members[:i], true)
	after := v.nearestPlaced(f, members[i+1:], false)
	sum, n := 0.0, 0
	for _, p := range v.Policies {
		if p.Chain != chain {
			continue
		}
		a, b := before, after
		if a == "" {
			a = v.Endpoints[p.From]
		}
		if b == "" {
			b = v.Endpoints[p.To]
		}
		if a == "" {
			a = b // from anywhere: the way there and back counts
		}
		if b == "" {
			b = a
		}
		if a == "" {
			continue
		}
		sum += v.detour(a, host, b)
		n++
	}
	switch {
	case n > 0:
		return sum / float64(n)
	case before != "" || after != "": // no policy yet: stay with the chain
		a, b := before, after
		if a == "" {
			a = b
		}
		if b == "" {
			b = a
		}
		return v.detour(a, host, b)
	}
	return 0
}

func (v *View) detour(a, host, b string) float64 {
	to, ok1 := v.Distance(a, host)
	from, ok2 := v.Distance(host, b)
	if !ok1 || !ok2 {
		return math.Inf(1)
	}
	direct, ok := v.Distance(a, b)
	if !ok {
		direct = 0
	}
	return float64(to + from - direct)
}

// nearestPlaced is the host of the function nearest in the chain on one side that has one which is not lost.
func (v *View) nearestPlaced(f *api.Function, side []string, fromEnd bool) string {
	for i := range side {
		name := side[i]
		if fromEnd {
			name = side[len(side)-1-i]
		}
		if h := v.byName[v.at[name]]; h != nil && h.Host.Status.State != lost {
			return h.Host.Name
		}
	}
	return ""
}
