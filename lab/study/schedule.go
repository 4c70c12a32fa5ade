package study

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Mode of a run.
type Mode string

const (
	Quick Mode = "quick"
	Full  Mode = "full"
)

// Variant is one level of each factor, in the order of the part's factors.
type Variant []string

// Trial is one measurement to make. Its Key is unique in a run and the same in every schedule of the same study, mode, selection and seed.
type Trial struct {
	Part      string        `json:"part"`
	Block     int           `json:"block"`
	Variant   Variant       `json:"variant"`
	Duplicate bool          `json:"duplicate,omitempty"` // the baseline again
	Duration  time.Duration `json:"duration_ns,omitempty"`
}

// Key of a trial: "chain/3/ebpf,9" and, for a duplicate, a prime behind it.
func (t Trial) Key() string {
	prime := ""
	if t.Duplicate {
		prime = "'"
	}
	return fmt.Sprintf("%s/%d/%s%s", t.Part, t.Block, strings.Join(t.Variant, ","), prime)
}

// Selection keeps only some levels: factor -> levels. The factor "part" chooses parts.
type Selection map[string][]string

// ParseSelection reads "factor=level,factor=level"; a factor may come several times.
func ParseSelection(text string) (Selection, error) {
	s := Selection{}
	if text == "" {
		return s, nil
	}
	for _, pair := range strings.Split(text, ",") {
		name, level, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || name == "" || level == "" {
			return nil, fmt.Errorf("selection %q: want factor=level, several separated by commas", pair)
		}
		s[name] = append(s[name], level)
	}
	return s, nil
}

// Select takes the levels out that are not wanted. The baseline must stay: without it there is nothing to compare with.
func (s Study) Select(sel Selection) (Study, error) {
	out := s
	out.Parts = nil
	used := map[string]bool{}
	for _, p := range s.Parts {
		if parts, ok := sel["part"]; ok {
			used["part"] = true
			if !slices.Contains(parts, p.Name) {
				continue
			}
		}
		q := p
		q.Factors = nil
		for _, f := range p.Factors {
			g := f
			if want, ok := sel[f.Name]; ok {
				used[f.Name] = true
				g.Levels = nil
				for _, l := range f.Levels {
					if slices.Contains(want, l) || f.Name == p.Compare && l == p.Baseline {
						g.Levels = append(g.Levels, l)
					}
				}
				for _, l := range want {
					if !slices.Contains(f.Levels, l) && !s.hasLevel(f.Name, l) {
						return s, fmt.Errorf("factor %s has no level %q: want one of %s", f.Name, l, strings.Join(f.Levels, ", "))
					}
				}
				if len(g.Levels) == 0 {
					break // another part has them
				}
			}
			q.Factors = append(q.Factors, g)
		}
		if len(q.Factors) == len(p.Factors) {
			out.Parts = append(out.Parts, q)
		}
	}
	for name := range sel {
		if !used[name] {
			return s, fmt.Errorf("study %s has no factor %q: want one of %s", s.Name, name, strings.Join(s.allFactors(), ", "))
		}
	}
	if len(out.Parts) == 0 {
		return s, fmt.Errorf("nothing of study %s is left by the selection", s.Name)
	}
	return out, nil
}

func (s Study) hasLevel(factor, level string) bool {
	return slices.ContainsFunc(s.Parts, func(p Part) bool {
		f, ok := p.Factor(factor)
		return ok && slices.Contains(f.Levels, level)
	})
}

func (s Study) allFactors() []string {
	names := []string{"part"}
	for _, p := range s.Parts {
		names = append(names, p.factorNames()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Variants of a part, in the order of its levels.
func (p Part) Variants() []Variant {
	out := []Variant{{}}
	for _, f := range p.Factors {
		var next []Variant
		for _, v := range out {
			for _, l := range f.Levels {
				next = append(next, append(slices.Clone(v), l))
			}
		}
		out = next
	}
	return out
}

// Level of a factor in a variant.
func (p Part) Level(v Variant, factor string) string {
	for i, f := range p.Factors {
		if f.Name == factor {
			return v[i]
		}
	}
	return ""
}

// Group is a variant without the compared factor: what is compared with each other has the same group.
func (p Part) Group(v Variant) string {
	var rest []string
	for i, f := range p.Factors {
		if f.Name != p.Compare {
			rest = append(rest, f.Name+"="+v[i])
		}
	}
	return strings.Join(rest, ",")
}

// Schedule is every trial of a run in its order. The order within a block depends on the seed, the part's name and the block only, so that
// adding a block or a part leaves the others as they are.
func (s Study) Schedule(m Mode, seed uint64) []Trial {
	var all []Trial
	for _, p := range s.Parts {
		plan := p.Quick
		if m == Full {
			plan = p.Full
		}
		length, _ := plan.Length() // checked
		for b := range plan.Blocks {
			var block []Trial
			for _, v := range p.Variants() {
				t := Trial{Part: p.Name, Block: b, Variant: v, Duration: length}
				block = append(block, t)
				if p.Level(v, p.Compare) == p.Baseline {
					t.Duplicate = true
					block = append(block, t)
				}
			}
			h := fnv.New64a()
			fmt.Fprintf(h, "%s/%d", p.Name, b)
			rand.New(rand.NewPCG(seed, h.Sum64())).Shuffle(len(block), func(i, j int) { block[i], block[j] = block[j], block[i] })
			all = append(all, block...)
		}
	}
	return all
}
