package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// List is the answer of GET /v1/KINDS. A watch from Revision misses nothing.
type List[T any] struct {
	Items    []T   `json:"items"`
	Revision int64 `json:"revision"`
}

// ListOptions select what is listed or watched. The zero value is everything.
type ListOptions struct {
	Name     string   // the object of this name only
	Limit    int      // at most this many, of events and operations the newest; not for watches
	Kind     Kind     // events and operations: about objects of this kind
	Object   string   // events and operations: about the object of this name
	Severity Severity // events: at least this severe
	Source   string   // events: that this one raised
	Who      string   // audit records: of this one
	Verb     string   // audit records: about this action
}

func (o ListOptions) query() url.Values {
	q := url.Values{}
	set := func(k, v string) {
		if v != "" {
			q.Set(k, v)
		}
	}
	set("name", o.Name)
	set("kind", string(o.Kind))
	set("object", o.Object)
	set("severity", string(o.Severity))
	set("raised_by", o.Source)
	set("who", o.Who)
	set("verb", o.Verb)
	if o.Limit > 0 {
		set("limit", strconv.Itoa(o.Limit))
	}
	return q
}

// Cond is a condition of a write; where it does not hold the error is ErrPrecondition.
type Cond struct{ header, value string }

// IfRevision lets the write happen only if the object is still at this revision.
func IfRevision(revision int64) Cond { return Cond{"If-Match", ETag(revision)} }

// IfAbsent lets the write happen only if there is no such object.
func IfAbsent() Cond { return Cond{"If-None-Match", "*"} }

// ETag is a revision as HTTP has it.
func ETag(revision int64) string { return `"` + strconv.FormatInt(revision, 10) + `"` }

// Reader reads one kind.
type Reader[T any] struct {
	c    *Client
	kind Kind
}

// Resource reads and writes one kind.
type Resource[T, S any] struct{ Reader[T] }

func resource[T, S any](c *Client, k Kind) Resource[T, S] { return Resource[T, S]{Reader[T]{c, k}} }

func (r Reader[T]) path(name string) string {
	p := "/v1/" + r.kind.Plural()
	if name != "" {
		p += "/" + url.PathEscape(name)
	}
	return p
}

// Get reads one object. The name "" is not found.
func (r Reader[T]) Get(ctx context.Context, name string) (T, error) {
	var out T
	if name == "" {
		return out, Refuse(http.StatusNotFound, string(r.kind)+` "" not found`)
	}
	_, err := r.c.call(ctx, http.MethodGet, r.path(name), nil, &out)
	return out, err
}

// List reads all objects, sorted by name, and the revision to watch from.
func (r Reader[T]) List(ctx context.Context, o ListOptions) (List[T], error) {
	var out List[T]
	path := r.path("")
	if q := o.query().Encode(); q != "" {
		path += "?" + q
	}
	_, err := r.c.call(ctx, http.MethodGet, path, nil, &out)
	return out, err
}

// Put makes an object, or replaces its spec. An equal spec changes nothing. A function's State and Restart, when they are
// left out, stay as they are.
func (r Resource[T, S]) Put(ctx context.Context, name string, spec S, conds ...Cond) (T, error) {
	var out T
	_, err := r.c.call(ctx, http.MethodPut, r.path(name), struct {
		Spec S `json:"spec"`
	}{spec}, &out, conds...)
	return out, err
}

// Patch merges into the spec (RFC 7386): a member that is null is removed.
func (r Resource[T, S]) Patch(ctx context.Context, name string, spec map[string]any, conds ...Cond) (T, error) {
	var out T
	_, err := r.c.call(ctx, http.MethodPatch, r.path(name), map[string]any{"spec": spec}, &out, conds...)
	return out, err
}

// Delete removes an object. Functions and endpoints are taken down by the agent first: then the operation is returned, and the
// object disappears when the agent is done. Otherwise the operation is nil.
func (r Resource[T, S]) Delete(ctx context.Context, name string, conds ...Cond) (*Operation, error) {
	var op Operation
	resp, err := r.c.call(ctx, http.MethodDelete, r.path(name), nil, &op, conds...)
	if err != nil || resp.StatusCode != http.StatusAccepted {
		return nil, err
	}
	return &op, nil
}
