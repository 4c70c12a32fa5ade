package intent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/strict"
)

// relations tells who notices a change of an object.
type relations struct {
	functions map[string][]string // of a chain
	chainsOf  map[string][]string // with a function
	policies  map[string][]string // over a chain
	at        map[string][]string // policies from or to an endpoint
	policy    map[string]api.PolicySpec
}

// relate reads the relations of both what was and what will be.
func relate(sets ...map[api.Kind]map[string]*object.Object) relations {
	r := relations{map[string][]string{}, map[string][]string{}, map[string][]string{}, map[string][]string{}, map[string]api.PolicySpec{}}
	add := func(m map[string][]string, k, v string) { m[k] = append(m[k], v) } // twice, where a name comes twice: lists are long, and sorted later
	for _, set := range sets {
		for name, o := range set[api.KindChain] {
			var spec api.ChainSpec
			if o == nil || json.Unmarshal(o.Spec, &spec) != nil {
				continue
			}
			for _, f := range spec.Functions() {
				add(r.functions, name, f)
				add(r.chainsOf, f, name)
			}
		}
		for name, o := range set[api.KindPolicy] {
			var spec api.PolicySpec
			if o == nil || o.Deleting != nil || json.Unmarshal(o.Spec, &spec) != nil {
				continue
			}
			r.policy[name] = spec
			add(r.policies, spec.Chain, name)
			add(r.at, spec.From, name)
			add(r.at, spec.To, name)
		}
	}
	return r
}

// affects are the objects that notice a change of this one, as kind/name, sorted.
func (r relations) affects(c object.Ref, endpoints map[string]*object.Object) []string {
	var out []string
	add := func(kind api.Kind, names ...string) {
		for _, n := range names {
			out = append(out, object.Ref{Kind: kind, Name: n}.String())
		}
	}
	switch c.Kind {
	case api.KindEndpoint:
		add(api.KindPolicy, r.at[c.Name]...)
	case api.KindFunction:
		for _, chain := range r.chainsOf[c.Name] {
			add(api.KindChain, chain)
			add(api.KindPolicy, r.policies[chain]...)
		}
	case api.KindChain:
		add(api.KindFunction, r.functions[c.Name]...)
		add(api.KindPolicy, r.policies[c.Name]...)
	case api.KindPolicy:
		spec := r.policy[c.Name]
		add(api.KindFunction, r.functions[spec.Chain]...)
		for _, end := range []string{spec.From, spec.To} {
			if endpoints[end] != nil {
				add(api.KindEndpoint, end)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// maxUses bounds the problems in which inUse lists who uses what.
const maxUses = 100

// inUse refuses to delete what others name.
func (st *state) inUse(removed ...object.Ref) error {
	r := relate(st.objects)
	var problems []api.Problem
	var detail string
	used := 0
	for _, c := range removed {
		var users []string
		switch c.Kind {
		case api.KindEndpoint:
			users = prefixed(api.KindPolicy, r.at[c.Name])
		case api.KindFunction:
			users = prefixed(api.KindChain, r.chainsOf[c.Name])
		case api.KindChain:
			users = prefixed(api.KindPolicy, r.policies[c.Name])
		}
		if len(users) == 0 {
			continue
		}
		slices.Sort(users)
		users = slices.Compact(users)
		if used++; used == 1 {
			detail = fmt.Sprintf("%s %s is in use by %s: nothing was changed", c.Kind, c.Name, strings.Join(users, ", "))
		}
		for _, u := range users[:min(len(users), maxUses-len(problems))] {
			problems = append(problems, api.Problem{Path: u, Message: "uses " + c.String(), Hint: "delete or change it first"})
		}
	}
	switch used {
	case 0:
		return nil
	case 1:
	default:
		detail = fmt.Sprintf("%d objects are in use by others: nothing was changed", used)
	}
	return api.Refuse(http.StatusConflict, detail, problems...)
}

func prefixed(kind api.Kind, names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = object.Ref{Kind: kind, Name: n}.String()
	}
	return out
}

// differences lists the fields in which two specs differ: "memory: 64M -> 128M".
func differences(old, spec json.RawMessage) []string {
	a, b := map[string]string{}, map[string]string{}
	flatten("", old, a)
	flatten("", spec, b)
	var out []string
	for _, k := range slices.Sorted(maps.Keys(a)) {
		if v, ok := b[k]; !ok {
			out = append(out, k+": "+a[k]+" -> (unset)")
		} else if v != a[k] {
			out = append(out, k+": "+a[k]+" -> "+v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(b)) {
		if _, ok := a[k]; !ok {
			out = append(out, k+": (unset) -> "+b[k])
		}
	}
	return out
}

// flatten puts every scalar and list of a JSON object under its dotted path.
func flatten(path string, raw json.RawMessage, out map[string]string) {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) == nil && members != nil {
		for k, v := range members {
			flatten(strict.Join(path, k), v, out)
		}
		return
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		out[path] = text
		return
	}
	out[path] = string(raw)
}
