package fabric

import (
	"iter"
	"maps"
	"slices"

	"weir.dev/weir/router/identity"
)

// Paths by the names of policies; nil is none. It is made of parts, never changed once an output has them, so that a changed policy does not
// cost a copy of all.
type Paths struct{ part [pathParts]map[string]*Path }

const pathParts = 64

// NewPaths takes paths over.
func NewPaths(of map[string]*Path) *Paths {
	p := &Paths{}
	for name, path := range of {
		p.put(name, path)
	}
	return p
}

func partOf(name string) int { return int(identity.LabelOf(name).Sum() % pathParts) }

func (p *Paths) put(name string, path *Path) {
	part := &p.part[partOf(name)]
	if *part == nil {
		*part = map[string]*Path{}
	}
	(*part)[name] = path
}

// Of is a policy's path, nil if it is not among them.
func (p *Paths) Of(name string) *Path {
	if p == nil {
		return nil
	}
	return p.part[partOf(name)][name]
}

// All in no order.
func (p *Paths) All() iter.Seq2[string, *Path] {
	return func(yield func(string, *Path) bool) {
		if p == nil {
			return
		}
		for _, part := range p.part {
			for name, path := range part {
				if !yield(name, path) {
					return
				}
			}
		}
	}
}

// Names are sorted.
func (p *Paths) Names() []string {
	names := make([]string, 0, p.Len())
	for name := range p.All() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Len is how many there are.
func (p *Paths) Len() (n int) {
	if p != nil {
		for _, part := range p.part {
			n += len(part)
		}
	}
	return n
}

// Without are all paths but those of some policies.
func (p *Paths) Without(names map[string]error) *Paths {
	if p == nil || len(names) == 0 {
		return p
	}
	left := maps.Collect(p.All())
	for name := range names {
		delete(left, name)
	}
	return NewPaths(left)
}

// Changed are the names of paths that only one of the two has, or that are not the same in memory.
func (p *Paths) Changed(before *Paths) (names []string) {
	if p == nil || before == nil {
		return append(p.Names(), before.Names()...)
	}
	for i := range p.part {
		now, old := p.part[i], before.part[i]
		if AtOnePlace(now, old) {
			continue
		}
		for name, path := range now {
			if old[name] != path {
				names = append(names, name)
			}
		}
		for name := range old {
			if now[name] == nil {
				names = append(names, name)
			}
		}
	}
	return names
}

// Same tells whether both are of the same policies.
func (p *Paths) Same(o *Paths) bool {
	if p == o || p == nil || o == nil {
		return p.Len() == o.Len()
	}
	for i := range p.part {
		if a, b := p.part[i], o.part[i]; len(a) != len(b) || !samePart(a, b) {
			return false
		}
	}
	return true
}

func samePart(a, b map[string]*Path) bool {
	if AtOnePlace(a, b) {
		return true
	}
	for name := range a {
		if b[name] == nil {
			return false
		}
	}
	return true
}

// PathsNow are the paths of a compiler: those of its last output, and what has changed since.
type PathsNow struct {
	*Paths
	own [pathParts]bool // parts that no output has
}

func NewPathsNow(n int) PathsNow {
	p := PathsNow{Paths: &Paths{}}
	for i := range p.part {
		p.part[i], p.own[i] = make(map[string]*Path, n/pathParts), true
	}
	return p
}

// Share gives them to an output.
func (p *PathsNow) Share() *Paths {
	p.own = [pathParts]bool{}
	return p.Paths
}

func (p *PathsNow) Set(name string, path *Path) {
	i := partOf(name)
	p.change(i)
	p.part[i][name] = path
}

func (p *PathsNow) Drop(name string) {
	i := partOf(name)
	if p.part[i][name] != nil {
		p.change(i)
		delete(p.part[i], name)
	}
}

// change makes a part one that no output has.
func (p *PathsNow) change(i int) {
	if p.own[i] {
		return
	}
	if p.own == [pathParts]bool{} {
		all := *p.Paths
		p.Paths = &all
	}
	if p.own[i] = true; p.part[i] == nil {
		p.part[i] = map[string]*Path{}
	} else {
		p.part[i] = maps.Clone(p.part[i])
	}
}
