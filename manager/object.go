package manager

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
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

// object is a noun with spec and status, whatever its kind. Its JSON is that of the noun's own struct.
type object struct {
	api.Meta
	Spec      json.RawMessage   `json:"spec"`
	Placement *api.Placement    `json:"placement,omitempty"` // of endpoints and functions
	Secrets   map[string]string `json:"secrets,omitempty"`   // of functions, see bindSecrets
	Status    json.RawMessage   `json:"status"`
}

// noun says what the manager has to know of a kind.
type noun struct {
	kind     api.Kind
	object   any        // zero values of the noun, its spec and its status; spec nil: written by the manager only
	spec     any        //
	status   any        //
	body     func() any // what PUT and PATCH are decoded into, to find what is wrong
	declared bool       // part of a Document
	twoPhase bool       // the agent takes it down before it disappears
}

func nouns() []noun {
	return []noun{
		{kind: api.KindEndpoint, object: api.Endpoint{}, spec: api.EndpointSpec{}, status: api.EndpointStatus{}, body: bodyOf[api.EndpointSpec], declared: true, twoPhase: true},
		{kind: api.KindFunction, object: api.Function{}, spec: api.FunctionSpec{}, status: api.FunctionStatus{}, body: bodyOf[api.FunctionSpec], declared: true, twoPhase: true},
		{kind: api.KindChain, object: api.Chain{}, spec: api.ChainSpec{}, status: api.ChainStatus{}, body: bodyOf[api.ChainSpec], declared: true},
		{kind: api.KindPolicy, object: api.Policy{}, spec: api.PolicySpec{}, status: api.PolicyStatus{}, body: bodyOf[api.PolicySpec], declared: true, twoPhase: true},
		{kind: api.KindHost, object: api.Host{}, spec: api.HostSpec{}, status: api.HostStatus{}, body: bodyOf[api.HostSpec]},
		{kind: api.KindSwitch, object: api.Switch{}},
		{kind: api.KindAssignment, object: api.Assignment{}},
		{kind: api.KindEvent, object: api.Event{}},
		{kind: api.KindOperation, object: api.Operation{}},
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

func nounOf(k api.Kind) noun {
	for _, n := range nouns() {
		if n.kind == k {
			return n
		}
	}
	return noun{}
}

// decodeSpec reads a spec strictly and gives it back in the one form in which it is stored and compared.
func (n noun) decodeSpec(raw json.RawMessage, path string) (json.RawMessage, error) {
	v := reflect.New(reflect.TypeOf(n.spec))
	if len(bytes.TrimSpace(raw)) == 0 || string(raw) == "null" {
		raw = json.RawMessage("{}")
	}
	if err := strict.Decode(raw, v.Interface(), path); err != nil {
		return nil, err
	}
	return marshal(v.Interface()), nil
}

// newMeta is of something that is not stored yet.
func newMeta(name string, now time.Time) api.Meta {
	now = now.UTC()
	return api.Meta{Name: name, UID: newUID(), Generation: 1, Created: now, Updated: now}
}

// newObject makes an object that is not stored yet.
func newObject(n noun, name string, spec json.RawMessage, now time.Time) *object {
	return &object{Meta: newMeta(name, now), Spec: spec, Status: marshal(n.status)}
}

func newUID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// marshal is for the project's own types, which always can be.
func marshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("marshal %T: %v", v, err))
	}
	return b
}

// wire gives a stored value as the API shows it: with its revision. Stored values are objects that begin with the name.
func wire(i store.Item) json.RawMessage { return withRevision(i.Value, i.Revision) }

func withRevision(value []byte, revision int64) json.RawMessage {
	if len(value) < 3 || value[0] != '{' {
		return value
	}
	out := make([]byte, 0, len(value)+32)
	out = append(out, `{"revision":`...)
	out = strconv.AppendInt(out, revision, 10)
	out = append(out, ',')
	return append(out, value[1:]...)
}

// into decodes an object's parts.
func (o *object) into(spec, status any) error {
	if err := json.Unmarshal(o.Spec, spec); err != nil {
		return fmt.Errorf("stored %s: %w", o.Name, err)
	}
	if status == nil || len(o.Status) == 0 {
		return nil
	}
	if err := json.Unmarshal(o.Status, status); err != nil {
		return fmt.Errorf("stored %s: %w", o.Name, err)
	}
	return nil
}

// at is the host where an endpoint or function is placed; "" if nowhere.
func (o *object) at() string {
	if o.Placement == nil {
		return ""
	}
	return o.Placement.Host
}

func notFound(kind api.Kind, name string) error {
	return api.Refuse(http.StatusNotFound, fmt.Sprintf("%s %q not found", kind, name))
}

func etagIn(header string, revision int64) bool {
	for tag := range strings.SplitSeq(header, ",") {
		tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
		if tag == "*" || tag == api.ETag(revision) {
			return true
		}
	}
	return false
}

// checkName refuses what cannot stand in a path, a key or a host's names.
func checkName(kind api.Kind, name string) error {
	if kind == api.KindHost && name != "" && len(name) <= 253 && !strings.ContainsAny(name, "/ ") {
		return nil // as the machine calls itself
	}
	if err := api.CheckName(name); err != nil {
		return api.Refuse(http.StatusUnprocessableEntity, fmt.Sprintf("%s %s", kind, err), api.Problem{Path: "name", Message: err.Error()})
	}
	return nil
}

type ref struct {
	kind api.Kind
	name string
}

func (r ref) String() string { return string(r.kind) + "/" + r.name }

func same(a, b any) bool { return string(marshal(a)) == string(marshal(b)) }

// datedAfter gives an object's new conditions the times since when they hold.
func datedAfter(o *object, next api.Conditions, now time.Time) api.Conditions {
	var before struct {
		Conditions api.Conditions `json:"conditions"`
	}
	_ = json.Unmarshal(o.Status, &before) // what cannot be read held never
	return next[:min(len(next), maxConditions)].Dated(before.Conditions, now)
}
