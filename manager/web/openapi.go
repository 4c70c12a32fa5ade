package web

import (
	"cmp"
	"encoding/json"
	"math"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/strict"
)

// Bodies that are no type of their own.
type (
	ListOf  struct{ Item any }
	SpecOf  struct{ Spec any }
	MergeOf struct{ Spec any }
)

// OpenAPI is the document (OpenAPI 3.1) of what this manager serves.
func (a *API) OpenAPI() ([]byte, error) {
	d := &document{registry: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)}
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "Weir", Version: "v1",
			Description: "Every change of an object has a revision. A list carries the revision to watch from; a watch resumes from it."},
		Components: &huma.Components{
			Schemas:         d.registry,
			SecuritySchemes: map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer", Description: "on TCP; the Unix socket needs none"}},
		},
		Security: []map[string][]string{{"token": {}}, {}},
	}
	for _, rt := range a.table {
		doc.AddOperation(d.operation(rt))
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(b, &tree); err != nil { // sorts the members: the same document every time
		return nil, err
	}
	b, err = json.MarshalIndent(tree, "", "  ")
	return append(b, '\n'), err
}

// document makes schemas of types.
type document struct{ registry huma.Registry }

func (d *document) operation(rt Route) *huma.Operation {
	op := &huma.Operation{
		OperationID: rt.ID, Method: rt.Method, Path: rt.Path, Summary: rt.Summary,
		Responses: map[string]*huma.Response{},
	}
	if strings.Contains(rt.Path, "{name}") {
		op.Parameters = append(op.Parameters, &huma.Param{Name: "name", In: "path", Required: true, Schema: &huma.Schema{Type: "string"}})
	}
	for _, q := range rt.Query {
		op.Parameters = append(op.Parameters, queryParameter(q))
	}
	if rt.Method == "PUT" || rt.Method == "PATCH" || rt.Method == "DELETE" {
		op.Parameters = append(op.Parameters,
			&huma.Param{Name: "If-Match", In: "header", Description: "only if the object is at this revision, as its ETag says", Schema: &huma.Schema{Type: "string"}})
	}
	if rt.Method == "PUT" {
		op.Parameters = append(op.Parameters,
			&huma.Param{Name: "If-None-Match", In: "header", Description: "*: only if there is no such object", Schema: &huma.Schema{Type: "string"}})
	}
	if kind, stream := rt.Body.(Text); stream {
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{string(kind): {Schema: &huma.Schema{}}}}
	} else if rt.Body != nil {
		kind := "application/json"
		if rt.Method == "PATCH" {
			kind = "application/merge-patch+json"
		}
		body := d.schema(rt.Body)
		switch rt.Body.(type) {
		case api.StatusReport, api.FabricReport:
			body = d.loose(body)
		}
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{kind: {Schema: body}}}
	}
	for status, body := range rt.Answers {
		op.Responses[strconv.Itoa(status)] = d.answer(rt, status, body)
	}
	rt.Problems = append(rt.Problems, http.StatusBadRequest)
	if rt.Body != nil {
		rt.Problems = append(rt.Problems, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusServiceUnavailable)
	}
	problem := map[string]*huma.MediaType{"application/problem+json": {Schema: d.schema(api.ProblemError{})}}
	for _, status := range append(rt.Problems, http.StatusUnauthorized, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable) {
		op.Responses[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status), Content: problem}
	}
	return op
}

func (d *document) answer(rt Route, status int, body any) *huma.Response {
	r := &huma.Response{Description: http.StatusText(status)}
	header := func(name, what string) {
		if r.Headers == nil {
			r.Headers = map[string]*huma.Param{}
		}
		r.Headers[name] = &huma.Param{Description: what, Schema: &huma.Schema{Type: "string"}}
	}
	switch body := body.(type) {
	case nil:
		return r
	case Text:
		r.Content = map[string]*huma.MediaType{string(body): {Schema: &huma.Schema{}}}
		return r
	case ListOf:
		header("Weir-Revision", "the revision to watch from")
		r.Content = map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{
			Description: "with watch: events put and delete with the object as data; an id is the revision to resume from"}}}
	default:
		if strings.HasSuffix(rt.Path, "/{name}") && status != http.StatusAccepted {
			header("ETag", "the object's revision")
		}
	}
	if status == http.StatusAccepted || status == http.StatusCreated {
		header("Location", "the path of what was made")
	}
	if r.Content == nil {
		r.Content = map[string]*huma.MediaType{}
	}
	r.Content["application/json"] = &huma.MediaType{Schema: d.schema(body)}
	return r
}

func (d *document) schema(v any) *huma.Schema {
	no := false
	switch v := v.(type) {
	case ListOf:
		return &huma.Schema{Type: "object", Required: []string{"items", "revision"}, AdditionalProperties: no, Properties: map[string]*huma.Schema{
			"items":    {Type: "array", Items: d.schema(v.Item)},
			"revision": {Type: "integer", Format: "int64"},
		}}
	case SpecOf:
		s := d.written(d.schema(v.Spec))
		s.Properties["status"] = &huma.Schema{}
		s.Properties["placement"] = d.loose(d.schema(api.Placement{}))
		s.Description = "the object as GET shows it will do: its other members are not read"
		return s
	case MergeOf:
		spec := d.registry.Schema(reflect.TypeOf(v.Spec), false, "")
		d.optional()
		members := map[string]*huma.Schema{}
		for name, p := range spec.Properties {
			members[name] = &huma.Schema{AnyOf: []*huma.Schema{p, {Type: "null"}}}
		}
		return d.written(&huma.Schema{Type: "object", AdditionalProperties: no, Properties: members, Description: "members to change; null removes one"})
	}
	t := reflect.TypeOf(v)
	s := d.registry.Schema(t, true, t.Name())
	d.optional()
	return s
}

// written is an object as it may be sent: its spec, and what GET shows besides.
func (d *document) written(spec *huma.Schema) *huma.Schema {
	s := &huma.Schema{Type: "object", AdditionalProperties: false, Properties: map[string]*huma.Schema{"spec": spec}}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[api.Meta]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		p := ranged(d.registry.Schema(f.Type, true, f.Name), f.Type)
		p.Nullable = false // see nullable
		s.Properties[name] = p
	}
	return s
}

// loose is a schema of which no member has to be there: reports of agents of other versions have more or fewer of them, and what is shown of an object is not
// read when it is written.
func (d *document) loose(s *huma.Schema) *huma.Schema {
	if s.Ref != "" {
		s = d.registry.SchemaFromRef(s.Ref)
	}
	out := *s
	out.Required = nil
	out.Properties = make(map[string]*huma.Schema, len(s.Properties))
	for name, p := range s.Properties {
		out.Properties[name] = d.loose(p)
	}
	if s.Items != nil {
		out.Items = d.loose(s.Items)
	}
	if more, ok := s.AdditionalProperties.(*huma.Schema); ok {
		out.AdditionalProperties = d.loose(more)
	}
	return &out
}

// ranged says what a whole number of Go can be: huma leaves that to the format, which many do not read.
func ranged(s *huma.Schema, t reflect.Type) *huma.Schema {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if s.Type != "integer" || t.Kind() < reflect.Int || t.Kind() > reflect.Uint64 {
		return s
	}
	least, most := float64(0), math.Exp2(float64(t.Bits()))-1
	if t.Kind() <= reflect.Int64 {
		least, most = -math.Exp2(float64(t.Bits()-1)), math.Exp2(float64(t.Bits()-1))-1
	}
	if t.Bits() == 64 {
		least, most = max(least, -strict.MostInt64), strict.MostInt64
	}
	s.Minimum, s.Maximum = &least, &most
	if s.Format = "int64"; most <= math.MaxInt32 {
		s.Format = "int32" // which has a sign: huma says so of uint32, too
	}
	return s
}

// base64Text is what Go writes of bytes, and reads.
const base64Text = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

// optional takes from the required fields those that Go leaves out when they are zero: huma knows omitempty only.
func (d *document) optional() {
	for name, s := range d.registry.Map() {
		t := d.registry.TypeFromRef("#/components/schemas/" + name)
		if t == nil || t.Kind() != reflect.Struct {
			continue
		}
		for _, f := range reflect.VisibleFields(t) {
			tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if p := s.Properties[tag]; p != nil {
				ranged(p, f.Type)
				if p.Enum = nil; f.Type.Kind() == reflect.String {
					for _, state := range strict.States(f.Type) {
						p.Enum = append(p.Enum, state)
					}
				}
				if f.Type == reflect.TypeFor[[]byte]() {
					p.Pattern = base64Text
				}
			}
			if strings.Contains(options, "omitzero") {
				s.Required = without(s.Required, tag)
			}
		}
	}
}

func without(list []string, drop string) []string {
	out := list[:0]
	for _, s := range list {
		if s != drop {
			out = append(out, s)
		}
	}
	return out
}

func number(least, most float64) *huma.Schema {
	return &huma.Schema{Type: "integer", Format: "int64", Minimum: &least, Maximum: &most}
}

// queryParameters are those of all routes.
func queryParameters() []*huma.Param {
	boolean, list := &huma.Schema{Type: "boolean"}, &huma.Schema{Type: "array", Items: &huma.Schema{Type: "string"}}
	return []*huma.Param{
		{Name: "name", Description: "only the object of this name"},
		{Name: "watch", Description: "stream changes as server-sent events", Schema: boolean, AllowEmptyValue: true},
		{Name: "revision", Description: "watch changes after this revision; without it the watch begins with what is there", Schema: number(0, 1<<53)},
		{Name: "kinds", Description: "objects of these kinds, one each: function", Required: true, Schema: list},
		{Name: "kind", Description: "only what is about objects of this kind"},
		{Name: "object", Description: "only what is about the object of this name"},
		{Name: "raised_by", Description: "events that this one raised: manager, router, host/NAME or function/NAME"},
		{Name: "severity", Description: "at least this severe", Schema: &huma.Schema{Type: "string", Enum: []any{"info", "warning", "error"}}},
		{Name: "limit", Description: "at most this many, the newest", Schema: number(1, math.MaxInt32)},
		{Name: "who", Description: "only what this one did, as in \"token ci\""},
		{Name: "verb", Description: "only this action, as in exec"},
		{Name: "tail", Description: "only the last lines; 0 all", Schema: number(0, math.MaxInt32)},
		{Name: "follow", Description: "go on as more is written", Schema: boolean, AllowEmptyValue: true},
		{Name: "from", Description: "the endpoint that sends the packet", Required: true},
		{Name: "to", Description: "the endpoint that it is for", Required: true},
		{Name: "match", Description: "what it is: tcp, udp or sctp with a port, as in tcp/80, or icmp (the default) or arp"},
		{Name: "source", Description: "its source address, if it is not the sender's first one"},
		{Name: "destination", Description: "its destination address, if it is not the receiver's first one"},
		{Name: "source_port", Description: "its source port, default 49152", Schema: number(1, 65535)},
		{Name: "vlan", Description: "the VLAN id of its tag; without it the packet is untagged", Schema: number(1, 4094)},
		{Name: "arg", Description: "the program and its arguments, one each", Required: true, Schema: list},
		{Name: "env", Description: "NAME=value, one each", Schema: list},
		{Name: "host", Description: "the host whose agent asks; default the manager's own. An agent can ask for its own only"},
		{Name: "a", Description: "the first run", Required: true},
		{Name: "b", Description: "the other run", Required: true},
		{Name: "image", Description: "the name of an image, as the list has it", Required: true},
		{Name: "as", Description: "the name of the archive's only image, NAME:TAG; without it images keep the names that they have there"},
		{Name: "underlay", Description: "only hosts and switches, and the cables and tunnels between them", Schema: boolean, AllowEmptyValue: true},
		{Name: "tty", Description: "give the process a terminal", Schema: boolean},
	}
}

func queryParameter(name string) *huma.Param {
	p := &huma.Param{Name: name}
	for _, known := range queryParameters() {
		if known.Name == name {
			p = known
		}
	}
	p.In, p.Schema = "query", cmp.Or(p.Schema, &huma.Schema{Type: "string"})
	return p
}
