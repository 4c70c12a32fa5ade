package fabric

import "maps"

// Paths by the names of policies. An output's are never changed.
type Paths map[string]*Path

// Without are all paths but those of some policies.
func (p Paths) Without(names map[string]error) Paths {
	if len(names) == 0 {
		return p
	}
	left := maps.Clone(p)
	for name := range names {
		delete(left, name)
	}
	return left
}

// Changed are the names of paths that only one of the two has, or that are not the same in memory.
func (p Paths) Changed(before Paths) (names []string) {
	if AtOnePlace(p, before) {
		return nil
	}
	for name, path := range p {
		if before[name] != path {
			names = append(names, name)
		}
	}
	for name := range before {
		if p[name] == nil {
			names = append(names, name)
		}
	}
	return names
}

// Same tells whether both are of the same policies.
func (p Paths) Same(o Paths) bool {
	return AtOnePlace(p, o) || maps.EqualFunc(p, o, func(a, b *Path) bool { return true })
}
