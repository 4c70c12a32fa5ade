package fabric

import (
	"maps"
	"reflect"
	"slices"

	"weir.dev/weir/api"
)

// Share makes what an input has in common with one before it the same in memory: those who compare the two look at that first.
func (in *Input) Share(before *Input) {
	share(&in.Switches, before.Switches, sameSwitch)
	share(&in.Endpoints, before.Endpoints, sameEndpoint)
	share(&in.Functions, before.Functions, sameFunction)
	share(&in.Chains, before.Chains, sameChain)
	if names, few := Edited(before, in); few {
		if !slices.ContainsFunc(names, func(name string) bool {
			p, is := in.Policies[name]
			q, was := before.Policies[name]
			return is != was || !SamePolicy(p, q)
		}) {
			in.Policies, in.Before, in.Edited = before.Policies, before.Policies, nil
		}
	} else {
		share(&in.Policies, before.Policies, SamePolicy)
	}
	if slices.Equal(in.Links, before.Links) {
		in.Links = before.Links
	}
	if slices.EqualFunc(in.Stations, before.Stations, sameStation) {
		in.Stations = before.Stations
	}
}

func share[K comparable, V any](m *map[K]V, before map[K]V, same func(a, b V) bool) {
	if sameMap(*m, before, same) {
		*m = before
	}
}

// Edited are the only policies in which two inputs may differ, in either order; ok is false where that is not known.
func Edited(a, b *Input) (names []string, ok bool) {
	switch {
	case (a.Before != nil || b.Before != nil) && AtOnePlace(a.Policies, b.Policies):
		return nil, true
	case b.Before != nil && AtOnePlace(a.Policies, b.Before):
		return b.Edited, true
	case a.Before != nil && AtOnePlace(b.Policies, a.Before):
		return a.Edited, true
	}
	return nil, false
}

// SamePlaces tells whether chains, functions and endpoints of two inputs are the same in memory.
func SamePlaces(a, b *Input) bool {
	return AtOnePlace(a.Chains, b.Chains) && AtOnePlace(a.Functions, b.Functions) && AtOnePlace(a.Endpoints, b.Endpoints)
}

// SameWorld tells whether all but the policies is the same.
func SameWorld(a, b *Input) bool {
	return a.Reserve == b.Reserve && sameMap(a.Switches, b.Switches, sameSwitch) && sameMap(a.Endpoints, b.Endpoints, sameEndpoint) &&
		sameMap(a.Functions, b.Functions, sameFunction) && sameMap(a.Chains, b.Chains, sameChain) && sameSlice(a.Links, b.Links, equal) &&
		sameSlice(a.Stations, b.Stations, sameStation)
}

// AtOnePlace tells whether two maps are one in memory.
func AtOnePlace[K comparable, V any](a, b map[K]V) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

func sameMap[K comparable, V any](a, b map[K]V, same func(a, b V) bool) bool {
	return AtOnePlace(a, b) || maps.EqualFunc(a, b, same)
}

func sameSlice[V any](a, b []V, same func(a, b V) bool) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.EqualFunc(a, b, same))
}

func equal[V comparable](a, b V) bool { return a == b }

func sameSwitch(a, b Switch) bool {
	return a.Name == b.Name && a.Host == b.Host && a.OneTree == b.OneTree && a.Fragments == b.Fragments && slices.Equal(a.Ports, b.Ports) && slices.Equal(a.Tables, b.Tables)
}

func sameEndpoint(a, b Endpoint) bool {
	return a.At == b.At && slices.Equal(a.MACs, b.MACs) && slices.Equal(a.Prefixes, b.Prefixes)
}

func sameStation(a, b Station) bool {
	return a.MAC == b.MAC && a.At == b.At && a.Endpoint == b.Endpoint && slices.Equal(a.IPs, b.IPs)
}

func sameFunction(a, b Function) bool { return a == b }

func sameChain(a, b api.ChainSpec) bool { return a.Path == b.Path }

// SamePolicy tells whether two policies mean the same.
func SamePolicy(a, b api.PolicySpec) bool {
	return a.From == b.From && a.To == b.To && a.Mode == b.Mode && a.Chain == b.Chain && a.Priority == b.Priority && a.MatchBy == b.MatchBy &&
		a.IsSymmetric() == b.IsSymmetric() && slices.Equal(a.Match, b.Match)
}
