package manager

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"

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

// newObject makes an object that has not been stored yet.
func (m *Manager) newObject(n noun, name string, spec json.RawMessage) *object {
	now := m.Now().UTC()
	return &object{
		Meta:   api.Meta{Name: name, UID: newUID(), Generation: 1, Created: now, Updated: now},
		Spec:   spec,
		Status: marshal(n.status),
	}
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

// decodeExact reads a JSON value with numbers as they are written.
func decodeExact(raw []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return d.Decode(v)
}

// mergePatch applies an RFC 7386 merge patch.
func mergePatch(target, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	t, ok := target.(map[string]any)
	if !ok {
		t = map[string]any{}
	}
	for k, v := range p {
		if v == nil {
			delete(t, k)
			continue
		}
		t[k] = mergePatch(t[k], v)
	}
	return t
}
