package lab

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api/file"
	"weir.dev/weir/api/schematest"
	"weir.dev/weir/lab/study"
)

// Every field of a study is in the schema with a description, and the reverse.
func TestSchemaHasTheFieldsOfAStudy(t *testing.T) {
	var s struct {
		Properties object `json:"properties"`
		Defs       map[string]struct {
			Properties map[string]object `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	same := func(what string, of reflect.Type, have []string) {
		var want []string
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			want = append(want, name)
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%s (-type +schema):\n%s", what, diff)
		}
	}
	same("study", reflect.TypeFor[study.Study](), slices.Sorted(maps.Keys(s.Properties)))
	for def, of := range map[string]reflect.Type{"part": reflect.TypeFor[study.Part](), "plan": reflect.TypeFor[study.Plan](), "claim": reflect.TypeFor[study.Claim]()} {
		same(def, of, slices.Sorted(maps.Keys(s.Defs[def].Properties)))
		for name, p := range s.Defs[def].Properties {
			if p["description"] == nil {
				t.Errorf("%s.%s has no description", def, name)
			}
		}
	}
	for name, of := range map[string]reflect.Type{"metrics": reflect.TypeFor[study.Metric](), "factors": reflect.TypeFor[study.Factor]()} {
		items := s.Defs["part"].Properties[name]["items"].(object)["properties"].(object)
		same(name, of, slices.Sorted(maps.Keys(items)))
	}
}

// conforms tells what the schema says of a study's text.
func conforms(t *testing.T, valid func([]byte) error, text string) error {
	t.Helper()
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return valid(b)
}

// What the schema refuses, loading refuses too; what comes along is right by both.
func TestSchemaAgreesWithLoading(t *testing.T) {
	s, form := schematest.Of(t, Schema()), schematest.Of(t, studySchema)
	for _, name := range Studies() {
		text, err := fs.ReadFile(studies, "studies/"+name+".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []func([]byte) error{s, form} {
			if err := conforms(t, s, string(text)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	examples, err := filepath.Glob("../examples/study/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range examples {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := conforms(t, s, string(text)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := Load(path, nil); err != nil {
			t.Error(err)
		}
	}
	for name, c := range map[string]struct {
		old, new string
		good     bool
	}{
		"as it is":                       {"name: mine", "name: mine", true},
		"an anchor":                      {"name: mine", "x-here: 3\nname: mine", true},
		"a claim":                        {"    compare:", "    claims: [{id: a, text: b, source: c, metric: rate, value: 3}]\n    compare:", true},
		"a claim of two figures":         {"    compare:", "    claims: [{id: a, text: b, source: c, metric: rate, value: 3, at_most: 4}]\n    compare:", false},
		"no title":                       {"title: A study of mine\n", "", false},
		"an unknown key":                 {"question:", "questions:", false},
		"an unknown experiment":          {"experiment: tcp", "experiment: tpc", false},
		"an unknown factor":              {"name: wires", "name: wirse", false},
		"another experiment's factor":    {"congestion: reno", "connections: \"3\"", false},
		"another experiment's metric":    {"name: rate, unit: Gb/s", "name: rtt, unit: us", false},
		"another unit":                   {"Gb/s", "Mb/s", false},
		"a level that is empty":          {`"9"]`, `""]`, false},
		"a level twice":                  {`"9"]`, `"1"]`, false},
		"a level with a comma":           {`"9"]`, `"9,10"]`, false},
		"no blocks":                      {"blocks: 6", "blocks: 0", false},
		"a duration without a unit":      {"duration: 1s", "duration: \"1\"", false},
		"better is neither":              {"better: higher", "better: bigger", false},
		"a name with capitals":           {"name: mine", "name: Mine", false},
		"no parts":                       {goodStudy[strings.Index(goodStudy, "parts:"):], "parts: []\n", false},
		"a claim on systems":             {"    compare:", "    claims: [{id: a, text: b, source: c, metric: rate, systems: [bridges], instead: [ebpf], against: {wires: \"9\"}, value: 3, tolerance: 0.5}]\n    compare:", true},
		"a tolerance of all":             {"    compare:", "    claims: [{id: a, text: b, source: c, metric: rate, at_most: 3, tolerance: 1}]\n    compare:", false},
		"a system twice":                 {"    compare:", "    claims: [{id: a, text: b, source: c, metric: rate, systems: [ebpf, ebpf], at_most: 3}]\n    compare:", false},
		"a shape that does not go along": {"    compare:", "    claims: [{id: a, text: b, source: c, metric: rate, shape: linear}]\n    compare:", false},
	} {
		text := strings.Replace(goodStudy, c.old, c.new, 1)
		says := conforms(t, s, text)
		_, loads := Load(file.Stdin, strings.NewReader(text))
		if (says == nil) != c.good || (loads == nil) != c.good {
			t.Errorf("%s: want good %t\nschema: %v\nloading: %v", name, c.good, says, loads)
		}
	}
}
