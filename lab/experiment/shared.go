package experiment

import "io"

// shared is what the experiments of a bench have in common under a name: it is opened once, and closed when the bench is cleared.
func shared[T io.Closer](b *Bench, name string, open func() (T, error)) (T, error) {
	if x, ok := b.shared[name].(T); ok {
		return x, nil
	}
	x, err := open()
	if err != nil {
		return x, err
	}
	if b.shared == nil {
		b.shared = map[string]io.Closer{}
	}
	b.shared[name] = x
	return x, nil
}

// closeShared closes them all.
func (b *Bench) closeShared() (errs []error) {
	for name, x := range b.shared {
		errs = append(errs, x.Close())
		delete(b.shared, name)
	}
	return errs
}
