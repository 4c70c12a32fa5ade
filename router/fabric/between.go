package fabric

import (
	"maps"
	"slices"

	"weir.dev/weir/api"
)

// Variant is another form of a policy, of which rules are in force beside those of the input, or will be.
type Variant struct {
	Absent    bool // the form is that there is no such policy
	Coming    bool // its rules are not in force yet
	Policy    api.PolicySpec
	Chain     api.ChainSpec
	Functions map[string]Function // of the chain
}

// Between gives the policies that have another form in b than in a, with that form.
func Between(a, b Input, coming bool) map[string][]Variant {
	// Functions that moved change their chains; changed chains change their policies.
	moved := map[string]bool{}
	if !AtOnePlace(a.Functions, b.Functions) {
		for name, f := range a.Functions {
			if g, there := b.Functions[name]; !there || f != g {
				moved[name] = true
			}
		}
		for name := range b.Functions {
			if _, there := a.Functions[name]; !there {
				moved[name] = true
			}
		}
	}
	changed := map[string]bool{}
	alike := len(moved) == 0 && AtOnePlace(a.Chains, b.Chains)
	for name, c := range a.Chains {
		if alike {
			break
		}
		d, there := b.Chains[name]
		if !there || c.Path != d.Path {
			changed[name] = true
		}
		if len(moved) > 0 && slices.ContainsFunc(c.Functions(), func(f string) bool { return moved[f] }) {
			changed[name] = true
		}
	}
	out := map[string][]Variant{}
	compare := func(name string) {
		p, was := a.Policies[name]
		switch q, is := b.Policies[name]; {
		case !is && was:
			out[name] = []Variant{{Absent: true, Coming: coming}}
		case is && (!was || !SamePolicy(p, q) || changed[p.Chain]):
			out[name] = []Variant{variant(b, q, coming)}
		}
	}
	// Usually few policies were edited: the others are not looked at.
	if names, few := Edited(&a, &b); few && len(changed) == 0 {
		for _, name := range names {
			compare(name)
		}
		return out
	}
	for name := range a.Policies {
		compare(name)
	}
	for name := range b.Policies {
		if _, there := a.Policies[name]; !there {
			compare(name)
		}
	}
	return out
}

func variant(in Input, p api.PolicySpec, coming bool) Variant {
	v := Variant{Coming: coming, Policy: p, Chain: in.Chains[p.Chain], Functions: map[string]Function{}}
	for _, name := range v.Chain.Functions() {
		if f, there := in.Functions[name]; there {
			v.Functions[name] = f
		}
	}
	return v
}

// SameVariants tells whether two lists of forms are the same.
func SameVariants(a, b []Variant) bool {
	return slices.EqualFunc(a, b, func(x, y Variant) bool {
		return x.Absent == y.Absent && x.Coming == y.Coming && SamePolicy(x.Policy, y.Policy) && x.Policy.ModeOrDefault() == y.Policy.ModeOrDefault() &&
			x.Chain.Path == y.Chain.Path && maps.Equal(x.Functions, y.Functions)
	})
}
