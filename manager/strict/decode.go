package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"weir.dev/weir/api"
)

// Bounds of what is said about a body that is refused.
const (
	MaxProblems  = 100
	MaxText      = 256 // bytes of a path or a name in a problem
	maxLookAlike = 64  // bytes of a name that is compared with the known ones
)

// Decode reads JSON into v and refuses (400) what v has no place for, all of it at once, each named with its path. What decoding would take is known
// before: see scanner.
func Decode(raw []byte, v any, path string) error {
	_, err := Scan(raw, reflect.TypeOf(v), path, false)
	if err != nil {
		return err
	}
	return Scanned(raw, v, path)
}

// Scan looks at a body without decoding it, and returns the bytes of memory that decoding takes at most. In a patch anything can be null.
func Scan(raw []byte, t reflect.Type, path string, patch bool) (int64, error) {
	if err := json.Unmarshal(raw, &nothing{}); err != nil {
		return 0, BadJSON(raw, err)
	}
	if target := t.Elem().Kind(); target == reflect.Struct && raw[len(raw)-len(bytes.TrimLeft(raw, " \t\r\n"))] != '{' {
		return 0, api.Refuse(http.StatusBadRequest, "the body has a value of the wrong type", api.Problem{Path: path, Message: "want an object"})
	}
	s := &scanner{raw: raw, root: path, patch: patch, budget: memoryFloor + memoryFactor*int64(len(raw))}
	s.value(t)
	switch {
	case s.err != nil:
		return 0, s.err
	case len(s.problems) > 0:
		if s.more {
			s.problems = append(s.problems, api.Problem{Message: "and more of them"})
		}
		return 0, api.Refuse(http.StatusBadRequest, "the body has fields that are unknown, twice, null, or too large", s.problems...)
	}
	return s.cost, nil
}

// Scanned decodes what scan has let pass.
func Scanned(raw []byte, v any, path string) error {
	err := json.Unmarshal(raw, v)
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return api.Refuse(http.StatusBadRequest, "the body has a value of the wrong type", api.Problem{
			Path: Clip(Join(path, kind.Field), MaxText), Message: fmt.Sprintf("is a JSON %s: want %s", Clip(kind.Value, MaxText), jsonType(kind.Type))})
	}
	if err != nil {
		return api.Refuse(http.StatusBadRequest, "the body is refused", api.Problem{Path: path, Message: Clip(err.Error(), MaxText)})
	}
	return nil
}

// nothing takes any JSON value and keeps none of it.
type nothing struct{}

// UnmarshalJSON implements json.Unmarshaler.
func (*nothing) UnmarshalJSON([]byte) error { return nil }

// BadJSON refuses what is not JSON, with the line and the column.
func BadJSON(raw []byte, err error) error {
	p := api.Problem{Message: err.Error()}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		switch message := syntax.Error(); {
		case strings.HasSuffix(message, "after top-level value"):
			return api.Refuse(http.StatusBadRequest, "more than one JSON value in the body: want one")
		case message == "unexpected end of JSON input":
			p.Message = "the body ends too early"
		}
		before := raw[:min(max(syntax.Offset-1, 0), int64(len(raw)))]
		p.Line = 1 + bytes.Count(before, []byte("\n"))
		p.Column = len(before) - bytes.LastIndexByte(before, '\n')
	}
	return api.Refuse(http.StatusBadRequest, "the body is not JSON", p)
}

// Join is the path of a field.
func Join(path, field string) string {
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

func unknownField(name []byte, known []string) api.Problem {
	best, distance := "", 3
	for _, k := range known {
		if len(name) > maxLookAlike {
			break
		}
		if d := api.EditDistance(string(name), k); d < distance {
			best, distance = k, d
		}
	}
	p := api.Problem{Message: "unknown field", Hint: "known are " + strings.Join(known, ", ")}
	if best != "" {
		p.Hint = fmt.Sprintf("did you mean %q?", best)
	}
	return p
}

// Clip is a text of at most so many bytes.
func Clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-len("…")], "") + "…"
}

// Whole numbers that Go and JSON both have, and that are written the same by everybody: many read JSON's numbers as float64, and print those shortly.
const MostInt64 = 9_000_000_000_000_000_000
