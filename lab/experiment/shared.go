package experiment

import (
	"fmt"
	"io"
	"slices"
)

// common is what experiments of a bench share under a name.
type common struct {
	name string
	x    io.Closer
}

// shared is what the experiments of a bench have in common under a name: it is opened once, and closed when the bench is cleared.
func shared[T io.Closer](b *Bench, name string, open func() (T, error)) (T, error) {
	for _, c := range b.shared {
		if x, ok := c.x.(T); ok && c.name == name {
			return x, nil
		}
	}
	x, err := open()
	if err != nil {
		return x, err
	}
	b.shared = append(b.shared, common{name, x})
	return x, nil
}

// unshare closes one of them: what needs it opens it anew.
func (b *Bench) unshare(name string) error {
	i := slices.IndexFunc(b.shared, func(c common) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	x := b.shared[i].x
	b.shared = slices.Delete(b.shared, i, i+1)
	return x.Close()
}

// closeShared closes them all, the last one first: it may stand on the others.
func (b *Bench) closeShared() (errs []error) {
	for _, c := range slices.Backward(b.shared) {
		if err := c.x.Close(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
		}
	}
	b.shared = nil
	return errs
}
