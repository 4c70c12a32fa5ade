package report

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

const schemaName = "report.schema.json"

// json of the report.
func (r Report) json() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return nil, fmt.Errorf("json: %w", err)
	}
	return append(b, '\n'), nil
}

// SchemaJSON is the JSON schema (2020-12) of the report, made from its types.
func SchemaJSON() []byte {
	defs := map[string]any{}
	root := schemaOf(reflect.TypeFor[Report](), defs)
	b, err := json.MarshalIndent(map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Report of a lab run", "$ref": root["$ref"], "$defs": defs,
	}, "", " ")
	if err != nil {
		panic(err) // maps of strings
	}
	return append(b, '\n')
}

// JournalSchemaJSON is the JSON schema (2020-12) of a line of results.jsonl, made from its types: the first line is a header; each of the others is
// a trial, a step of one, or a resumption.
func JournalSchemaJSON() []byte {
	defs := map[string]any{}
	step := map[string]any{
		"type": "object", "properties": map[string]any{"step": schemaOf(reflect.TypeFor[study.Step](), defs)}, "required": []string{"step"}, "additionalProperties": false,
	}
	resumed := map[string]any{
		"type": "object", "properties": map[string]any{"resumed": schemaOf(reflect.TypeFor[study.Resumption](), defs)}, "required": []string{"resumed"}, "additionalProperties": false,
	}
	b, err := json.MarshalIndent(map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A line of a lab run's results.jsonl",
		"anyOf": []any{schemaOf(reflect.TypeFor[study.Header](), defs), schemaOf(reflect.TypeFor[study.Record](), defs), step, resumed}, "$defs": defs,
	}, "", " ")
	if err != nil {
		panic(err) // maps of strings
	}
	return append(b, '\n')
}

// openInterval is stats.Interval as it is written: an end that is infinite is null.
type openInterval struct {
	Low  *float64 `json:"low"`
	High *float64 `json:"high"`
}

func schemaOf(t reflect.Type, defs map[string]any) map[string]any {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage]():
		return map[string]any{}
	case t == reflect.TypeFor[study.Some]():
		one := map[string]any{"type": "string"}
		return map[string]any{"anyOf": []any{one, map[string]any{"type": "array", "items": one, "minItems": 1}}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return map[string]any{"anyOf": []any{schemaOf(t.Elem(), defs), map[string]any{"type": "null"}}}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Slice:
		return map[string]any{"type": []string{"array", "null"}, "items": schemaOf(t.Elem(), defs)}
	case reflect.Map:
		return map[string]any{"type": []string{"object", "null"}, "additionalProperties": schemaOf(t.Elem(), defs)}
	case reflect.Struct:
		path := strings.Split(t.PkgPath(), "/")
		name := path[len(path)-1] + "." + t.Name()
		if _, ok := defs[name]; !ok {
			defs[name] = nil // it may contain itself
			if t == reflect.TypeFor[stats.Interval]() {
				t = reflect.TypeFor[openInterval]()
			}
			defs[name] = object(t, defs)
		}
		return map[string]any{"$ref": "#/$defs/" + name}
	}
	panic("no schema for " + t.String())
}

func object(t reflect.Type, defs map[string]any) map[string]any {
	properties, required := map[string]any{}, []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		properties[name] = schemaOf(f.Type, defs)
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	return map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}
