package nf

import "slices"

// Between runs a function between two frames, as Frames.Do does. What takes long is done in several, so that frames go on in between.
type Between func(func())

// AtOnce is how many entries of a table are copied, or taken in, between two frames: a millisecond, or less.
const AtOnce = 256

// Copies are the entries of a table as they are. list gives them all, and wanted says which are still of the table and to be copied; both are asked between two
// frames. Entries that come or go meanwhile may be among the copies or not.
func Copies[T any](do Between, list func() []*T, wanted func(*T) bool) []T {
	n := 0
	do(func() { n = len(list()) })
	all, out := make([]*T, n), make([]T, 0, n) // made here: that takes time
	do(func() { all = all[:copy(all, list())] })
	for some := range slices.Chunk(all, AtOnce) {
		do(func() {
			for _, x := range some {
				if wanted(x) {
					out = append(out, *x)
				}
			}
		})
	}
	return out
}
