// Package store keeps Weir's objects: one JSON value each, under KIND/NAME, in etcd (embedded or external).
//
// It owns revisions, atomic transactions with preconditions, watches that resume from a revision, and what goes wrong with a
// disk. It knows nothing of what objects mean. Only this package imports etcd; store/mem is the fake that passes the same
// suite (store/suite).
package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"weir.dev/weir/api"
)

// Errors that callers tell apart.
var (
	ErrNotFound  = errors.New("not found")
	ErrConflict  = errors.New("changed meanwhile")
	ErrCompacted = errors.New("revision is not known any more") // list, and watch from the list's revision
	ErrLagging   = errors.New("watcher too slow")               // watch again from the last revision that was read
	ErrFull      = api.ErrFull                                  // nothing was changed (an external cluster may have done it); free space
	ErrAway      = errors.New("the store does not answer")      // an external one; a change may or may not have happened
	ErrReadOnly  = errors.New("the state cannot be written")    // nothing was changed; make its folder writable
	ErrTooLarge  = errors.New("transaction too large")          // nothing was changed
	ErrStopped   = errors.New("the store has stopped")          // until the process starts again
	ErrLocked    = errors.New("state directory is in use")
	ErrDamaged   = errors.New("the state is damaged")
)

// WatchBuffer is how many batches a watcher may be behind before it ends with ErrLagging.
const WatchBuffer = 256

// Item is a stored value.
type Item struct {
	Key      string // KIND/NAME
	Value    []byte
	Revision int64 // of its last change
}

// Cond is a precondition of a transaction: the key's last change has this revision, or with 0 there is no such key.
type Cond struct {
	Key      string
	Revision int64
}

// Op puts a value, or removes the key if Value is nil. A transaction has at most one Op a key.
type Op struct {
	Key   string
	Value []byte
}

// Event is one change. For a removal Value is nil. Last is what was there before: nil if there was nothing, or if it is no longer known.
type Event struct {
	Key   string
	Value []byte
	Last  []byte
}

// Batch holds all changes of one revision under the watched prefix. Without events it only tells that the revision
// has passed.
type Batch struct {
	Revision int64
	Events   []Event
}

// ListOptions select what is listed. The zero value is everything.
type ListOptions struct {
	Limit    int  // the first N by key; 0 all
	KeysOnly bool // leave values out
}

// Store is what keeps the objects. Its methods are safe for use by several goroutines.
type Store interface {
	// Get reads one value or ErrNotFound.
	Get(ctx context.Context, key string) (Item, error)
	// List reads all values whose key begins with prefix, sorted by key, as they are at the revision that it returns.
	List(ctx context.Context, prefix string, o ListOptions) ([]Item, int64, error)
	// Count tells how many keys begin with prefix.
	Count(ctx context.Context, prefix string) (int, error)
	// Txn does all of ops in one step and returns the revision, or does nothing: *ConflictError if a precondition does not
	// hold. After other errors of the connection it may or may not have happened; preconditions make a repetition safe.
	Txn(ctx context.Context, conds []Cond, ops []Op) (int64, error)
	// Watch tells every change after a revision under prefix. ErrCompacted if that revision is too old, or was never
	// reached (another store). The channel closes when ctx ends or the watch breaks; then Err says why.
	Watch(ctx context.Context, prefix string, after int64) (Watch, error)
	// Compact forgets history before a revision; watches from before it fail.
	Compact(ctx context.Context, revision int64) error
	// Lead waits until nobody leads under this name, then leads. Holder tells people who it is.
	Lead(ctx context.Context, name, holder string) (Lease, error)
	// Close ends all watches and leases.
	Close() error
}

// Watch is a running watch.
type Watch struct {
	C   <-chan Batch
	Err func() error // once C is closed: nil if ctx ended it
}

// ConflictError names the first precondition that did not hold.
type ConflictError struct {
	Key        string
	Want, Have int64 // revisions; 0: absent
}

func (e *ConflictError) Error() string {
	switch {
	case e.Want == 0:
		return e.Key + " exists already"
	case e.Have == 0:
		return e.Key + " does not exist any more"
	}
	return fmt.Sprintf("%s changed meanwhile: at revision %d, not %d", e.Key, e.Have, e.Want)
}

// Is makes it an ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// Key is where an object is kept.
func Key(kind api.Kind, name string) string { return string(kind) + "/" + name }

// Prefix is where the objects of a kind are kept.
func Prefix(kind api.Kind) string { return string(kind) + "/" }

// NameOf is the name in a key.
func NameOf(key string) string {
	_, name, _ := strings.Cut(key, "/")
	return name
}

// Object is a pointer to a noun of package api.
type Object[T any] interface {
	*T
	Metadata() *api.Meta
}

// Decode reads an item as an object; its revision is the item's.
func Decode[T any, P Object[T]](i Item) (T, error) {
	var v T
	if err := json.Unmarshal(i.Value, P(&v)); err != nil {
		return v, fmt.Errorf("stored %s: %w", i.Key, err)
	}
	P(&v).Metadata().Revision = i.Revision
	return v, nil
}

// Put is the Op that stores an object under its name. The revision is not part of the value. Every one of the project's types can be marshalled.
func Put[T any, P Object[T]](kind api.Kind, v P) Op {
	c := *v
	c2 := P(&c)
	c2.Metadata().Revision = 0
	b, err := json.Marshal(c2)
	if err != nil {
		panic(fmt.Sprintf("store %s %s: %v", kind, v.Metadata().Name, err))
	}
	return Op{Key: Key(kind, v.Metadata().Name), Value: b}
}

// Delete is the Op that removes an object.
func Delete(kind api.Kind, name string) Op { return Op{Key: Key(kind, name)} }

// Get reads one object or ErrNotFound.
func Get[T any, P Object[T]](ctx context.Context, s Store, kind api.Kind, name string) (T, error) {
	i, err := s.Get(ctx, Key(kind, name))
	if err != nil {
		var zero T
		return zero, err
	}
	return Decode[T, P](i)
}

// List reads all objects of a kind, sorted by name, and the revision at which they are so.
func List[T any, P Object[T]](ctx context.Context, s Store, kind api.Kind) ([]T, int64, error) {
	items, rev, err := s.List(ctx, Prefix(kind), ListOptions{})
	if err != nil {
		return nil, 0, err
	}
	out := make([]T, len(items))
	for n, i := range items {
		if out[n], err = Decode[T, P](i); err != nil {
			return nil, 0, err
		}
	}
	return out, rev, nil
}
