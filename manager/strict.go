package manager

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"weir.dev/weir/api"
)

// decodeStrict reads JSON into v and refuses (400) what v has no place for, all of it at once, each named with its path.
func decodeStrict(raw []byte, v any, path string) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return badJSON(raw, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return api.Refuse(http.StatusBadRequest, "more than one JSON value in the body: want one")
	}
	if problems := unknownFields(reflect.TypeOf(v), tree, path, nil); len(problems) > 0 {
		return api.Refuse(http.StatusBadRequest, "the body has unknown fields", problems...)
	}
	err := json.Unmarshal(raw, v)
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return api.Refuse(http.StatusBadRequest, "the body has a value of the wrong type", api.Problem{
			Path: join(path, kind.Field), Message: fmt.Sprintf("is a JSON %s: want %s", kind.Value, jsonType(kind.Type))})
	}
	if err != nil {
		return api.Refuse(http.StatusBadRequest, "the body is refused", api.Problem{Path: path, Message: err.Error()})
	}
	return nil
}

func badJSON(raw []byte, err error) error {
	p := api.Problem{Message: err.Error()}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		before := raw[:min(max(syntax.Offset-1, 0), int64(len(raw)))]
		p.Line = 1 + bytes.Count(before, []byte("\n"))
		p.Column = len(before) - bytes.LastIndexByte(before, '\n')
	} else if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		p.Message = "the body ends too early"
	}
	return api.Refuse(http.StatusBadRequest, "the body is not JSON", p)
}

func join(path, field string) string {
	if path == "" || field == "" {
		return path + field
	}
	return path + "." + field
}

func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Pointer:
		return jsonType(t.Elem())
	}
	return "a number (" + t.Kind().String() + ")"
}

// unknownFields walks a decoded value along a type. Types that decode themselves, and interfaces, take anything.
func unknownFields(t reflect.Type, v any, path string, out []api.Problem) []api.Problem {
	for t.Kind() == reflect.Pointer {
		if decodesItself(t) {
			return out
		}
		t = t.Elem()
	}
	if decodesItself(reflect.PointerTo(t)) {
		return out
	}
	switch v := v.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i, e := range v {
				out = unknownFields(t.Elem(), e, fmt.Sprintf("%s[%d]", path, i), out)
			}
		}
	case map[string]any:
		switch t.Kind() {
		case reflect.Map:
			for _, k := range sortedKeys(v) {
				out = unknownFields(t.Elem(), v[k], join(path, k), out)
			}
		case reflect.Struct:
			fields := jsonFields(t)
			for _, k := range sortedKeys(v) {
				f, ok := fields[k]
				if !ok {
					out = append(out, unknownField(join(path, k), k, fields))
					continue
				}
				out = unknownFields(f, v[k], join(path, k), out)
			}
		}
	}
	return out
}

func decodesItself(t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[json.Unmarshaler]()) || t.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

func unknownField(path, name string, fields map[string]reflect.Type) api.Problem {
	known := sortedKeys(fields)
	best, distance := "", 3
	for _, k := range known {
		if d := api.EditDistance(name, k); d < distance {
			best, distance = k, d
		}
	}
	p := api.Problem{Path: path, Message: "unknown field", Hint: "known are " + strings.Join(known, ", ")}
	if best != "" {
		p.Hint = fmt.Sprintf("did you mean %q?", best)
	}
	return p
}

// jsonFields are a struct's fields by their JSON names, those of embedded structs included.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || (f.Anonymous && name == "") {
			continue
		}
		if name == "" {
			name = f.Name
		}
		out[name] = f.Type
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
