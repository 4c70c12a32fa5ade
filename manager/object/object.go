package object

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/strict"
	"weir.dev/weir/store"
)

// Object is a noun with spec and status, whatever its kind. Its JSON is that of the noun's own struct.
type Object struct {
	api.Meta
	Spec      json.RawMessage   `json:"spec"`
	Placement *api.Placement    `json:"placement,omitempty"` // of endpoints and functions
	Secrets   map[string]string `json:"secrets,omitempty"`   // of functions, see bindSecrets
	Status    json.RawMessage   `json:"status"`
}

// Noun says what the manager has to know of a kind.
type Noun struct {
	Kind     api.Kind
	Object   any        // zero values of the noun, its spec and its status; spec nil: written by the manager only
	Spec     any        //
	status   any        //
	Body     func() any // what PUT and PATCH are decoded into, to find what is wrong
	Declared bool       // part of a Document
	TwoPhase bool       // the agent takes it down before it disappears
}

// Nouns are all kinds that the API lists.
func Nouns() []Noun {
	return []Noun{
		{Kind: api.KindEndpoint, Object: api.Endpoint{}, Spec: api.EndpointSpec{}, status: api.EndpointStatus{}, Body: bodyOf[api.EndpointSpec], Declared: true, TwoPhase: true},
		{Kind: api.KindFunction, Object: api.Function{}, Spec: api.FunctionSpec{}, status: api.FunctionStatus{}, Body: bodyOf[api.FunctionSpec], Declared: true, TwoPhase: true},
		{Kind: api.KindChain, Object: api.Chain{}, Spec: api.ChainSpec{}, status: api.ChainStatus{}, Body: bodyOf[api.ChainSpec], Declared: true},
		{Kind: api.KindPolicy, Object: api.Policy{}, Spec: api.PolicySpec{}, status: api.PolicyStatus{}, Body: bodyOf[api.PolicySpec], Declared: true, TwoPhase: true},
		{Kind: api.KindHost, Object: api.Host{}, Spec: api.HostSpec{}, status: api.HostStatus{}, Body: bodyOf[api.HostSpec]},
		{Kind: api.KindSwitch, Object: api.Switch{}},
		{Kind: api.KindAssignment, Object: api.Assignment{}},
		{Kind: api.KindEvent, Object: api.Event{}},
		{Kind: api.KindOperation, Object: api.Operation{}},
	}
}

// bodyOf is an object as GET shows it, which PUT takes as well.
func bodyOf[S any]() any {
	return &struct {
		api.Meta
		Spec      S                 `json:"spec"`
		Placement *api.Placement    `json:"placement,omitempty"`
		Secrets   map[string]string `json:"secrets,omitempty"`
		Status    json.RawMessage   `json:"status,omitempty"`
	}{}
}

// NounOf is the noun of a kind; the zero Noun if there is none.
func NounOf(k api.Kind) Noun {
	for _, n := range Nouns() {
		if n.Kind == k {
			return n
		}
	}
	return Noun{}
}

// DecodeSpec reads a spec strictly and gives it back in the one form in which it is stored and compared.
func (n Noun) DecodeSpec(raw json.RawMessage, path string) (json.RawMessage, error) {
	v := reflect.New(reflect.TypeOf(n.Spec))
	if len(bytes.TrimSpace(raw)) == 0 || string(raw) == "null" {
		raw = json.RawMessage("{}")
	}
	if err := strict.Decode(raw, v.Interface(), path); err != nil {
		return nil, err
	}
	return Marshal(v.Interface()), nil
}

// NewMeta is of something that is not stored yet.
func NewMeta(name string, now time.Time) api.Meta {
	now = now.UTC()
	return api.Meta{Name: name, UID: NewUID(), Generation: 1, Created: now, Updated: now}
}

// New makes an object that is not stored yet.
func New(n Noun, name string, spec json.RawMessage, now time.Time) *Object {
	return &Object{Meta: NewMeta(name, now), Spec: spec, Status: Marshal(n.status)}
}

// NewUID tells an object from others that had its name.
func NewUID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Marshal is for the project's own types, which always can be.
func Marshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("marshal %T: %v", v, err))
	}
	return b
}

// Wire gives a stored value as the API shows it: with its revision. Stored values are objects that begin with the name.
func Wire(i store.Item) json.RawMessage { return WithRevision(i.Value, i.Revision) }

// WithRevision adds the revision to a stored value.
func WithRevision(value []byte, revision int64) json.RawMessage {
	if len(value) < 3 || value[0] != '{' {
		return value
	}
	out := make([]byte, 0, len(value)+32)
	out = append(out, `{"revision":`...)
	out = strconv.AppendInt(out, revision, 10)
	out = append(out, ',')
	return append(out, value[1:]...)
}

// Into decodes an object's parts; nil: not that one.
func (o *Object) Into(spec, status any) error {
	var err1, err2 error
	if spec != nil {
		err1 = json.Unmarshal(o.Spec, spec)
	}
	if status != nil && len(o.Status) > 0 {
		err2 = json.Unmarshal(o.Status, status)
	}
	if err := cmp.Or(err1, err2); err != nil {
		return fmt.Errorf("stored %s: %w", o.Name, err)
	}
	return nil
}

// At is the host where an endpoint or function is placed; "" if nowhere.
func (o *Object) At() string {
	if o.Placement == nil {
		return ""
	}
	return o.Placement.Host
}

// NotFound refuses a name that no object has.
func NotFound(kind api.Kind, name string) error {
	return api.Refuse(http.StatusNotFound, fmt.Sprintf("%s %q not found", kind, name))
}

// ETagIn tells whether a header of preconditions names a revision.
func ETagIn(header string, revision int64) bool {
	for tag := range strings.SplitSeq(header, ",") {
		tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
		if tag == "*" || tag == api.ETag(revision) {
			return true
		}
	}
	return false
}

// CheckName refuses what cannot stand in a path, a key or a host's names.
func CheckName(kind api.Kind, name string) error {
	if kind == api.KindHost && name != "" && len(name) <= 253 && !strings.ContainsAny(name, "/ ") {
		return nil // as the machine calls itself
	}
	if err := api.CheckName(name); err != nil {
		return api.Refuse(http.StatusUnprocessableEntity, fmt.Sprintf("%s %s", kind, err), api.Problem{Path: "name", Message: err.Error()})
	}
	return nil
}

// Ref names an object.
type Ref struct {
	Kind api.Kind
	Name string
}

func (r Ref) String() string { return string(r.Kind) + "/" + r.Name }

// Same compares by what is stored.
func Same(a, b any) bool { return string(Marshal(a)) == string(Marshal(b)) }

// Bounds of what agents say in conditions.
const (
	maxConditions    = 16 // of an object; there are fewer types
	maxConditionWord = 64
	MaxConditionText = 8 << 10 // bytes of a message
)

// DatedAfter gives an object's new conditions, one of each type, the times since when they hold.
func DatedAfter(o *Object, next api.Conditions, now time.Time) api.Conditions {
	var before struct {
		Conditions api.Conditions `json:"conditions"`
	}
	_ = json.Unmarshal(o.Status, &before) // what cannot be read held never
	var some api.Conditions
	for _, c := range next[:min(len(next), maxConditions)] {
		c.Type, c.Reason = api.ConditionType(strict.Clip(string(c.Type), maxConditionWord)), api.Reason(strict.Clip(string(c.Reason), maxConditionWord))
		if c.Message = strict.Clip(c.Message, MaxConditionText); some.Get(c.Type) == nil {
			some = append(some, c)
		}
	}
	return some.Dated(before.Conditions, now)
}

// Find reads an object; if there is none, the error says so to a client.
func Find[T any, P store.Object[T]](ctx context.Context, s store.Store, kind api.Kind, name string) (T, error) {
	v, err := store.Get[T, P](ctx, s, kind, name)
	if errors.Is(err, store.ErrNotFound) {
		err = NotFound(kind, name)
	}
	return v, err
}
