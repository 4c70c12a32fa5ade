package lab

import (
	_ "embed"
	"encoding/json"
	"maps"
	"slices"

	"weir.dev/weir/lab/experiment"
)

//go:embed study.schema.json
var studySchema []byte

// Schema is the published JSON Schema (draft 2020-12) of a study's file: study.schema.json, and what each experiment measures and can vary. It
// checks form; Load checks the rest.
func Schema() []byte {
	var s object
	if err := json.Unmarshal(studySchema, &s); err != nil {
		panic(err) // embedded, and tested
	}
	part := s["$defs"].(object)["part"].(object)
	which := part["properties"].(object)["experiment"].(object)
	names, rules := []any{}, []any{}
	for _, name := range experiment.Names() {
		names = append(names, name)
		rules = append(rules, object{
			"if": object{"properties": object{"experiment": object{"const": name}}}, "then": experimentSchema(experiment.All()[name]),
		})
	}
	which["enum"], part["allOf"] = names, rules
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // as it was read
	}
	return append(b, '\n')
}

type object = map[string]any

// experimentSchema is what a part may say with an experiment.
func experimentSchema(x experiment.Experiment) object {
	var metrics []any
	for _, name := range slices.Sorted(maps.Keys(x.Metrics())) {
		metrics = append(metrics, object{"properties": object{"name": object{"const": name}, "unit": object{"const": x.Metrics()[name]}}})
	}
	out := object{"metrics": object{"items": object{"anyOf": metrics}}}
	if factors, ok := experiment.Factors(x); ok {
		var known []any
		settings := object{}
		for _, f := range factors {
			known = append(known, f.Name)
			about := f.About
			if f.Default != "" {
				about += "; default " + f.Default
			}
			settings[f.Name] = object{"description": about}
		}
		out["factors"] = object{"items": object{"properties": object{"name": object{"enum": known}}}}
		out["settings"] = object{"properties": settings, "propertyNames": object{"enum": known}}
	}
	return object{"description": x.About(), "properties": out}
}
