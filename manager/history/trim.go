package history

import (
	"context"
	"maps"
	"slices"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/store"
)

// ForgetAtOnce is how many objects one transaction clears or removes: few enough for any etcd.
const ForgetAtOnce = 100

// Events that are kept, and how many more there may be until the next time that room is made.
const (
	MaxEvents  = 10_000
	EventSlack = 500
)

// Trim removes the oldest of a kind, if there are more than most, so that at most limit stay: those of the source that has most of them. What one
// raises never drives out what others did.
func Trim(ctx context.Context, s store.Store, kind api.Kind, most, limit int) error {
	n, err := s.Count(ctx, store.Prefix(kind))
	if err != nil || n <= most {
		return err
	}
	items, _, err := s.List(ctx, store.Prefix(kind), store.ListOptions{KeysOnly: true})
	if err != nil {
		return err
	}
	keys := make([]string, len(items))
	for i := range items {
		keys[i] = items[i].Key
	}
	for gone := range slices.Chunk(excess(keys, limit), ForgetAtOnce) {
		var ops []store.Op
		for _, key := range gone {
			ops = append(ops, store.Op{Key: key})
		}
		if _, err := s.Txn(ctx, nil, ops); err != nil {
			return err
		}
	}
	return nil
}

// excess are the keys, sorted by time, that go so that at most so many stay: the oldest of the source that has the most, again and again.
func excess(keys []string, limit int) (gone []string) {
	by := map[string][]string{}
	for _, key := range keys {
		source := "" // events of former versions have none
		if parts := strings.SplitN(key, ".", 3); len(parts) == 3 {
			source = parts[2]
		}
		by[source] = append(by[source], key)
	}
	shares := make([]int, 0, len(by))
	for _, list := range by {
		shares = append(shares, len(list))
	}
	slices.Sort(shares)
	left, share := limit, 0
	for i, n := range shares { // the largest share that fits, when small ones leave theirs
		if share = left / (len(shares) - i); n > share {
			break
		}
		left -= n
		share = n
	}
	for _, source := range slices.Sorted(maps.Keys(by)) {
		if list := by[source]; len(list) > share {
			gone = append(gone, list[:len(list)-share]...)
		}
	}
	return gone
}
