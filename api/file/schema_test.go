package file

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/api/schematest"
)

// Every field of the API's specs is in the schema with its type and a description, and the reverse.
func TestSchemaHasTheFieldsOfTheSpecs(t *testing.T) {
	var s struct {
		Properties map[string]any `json:"properties"`
		Defs       map[string]struct {
			Properties           map[string]map[string]any `json:"properties"`
			AdditionalProperties any                       `json:"additionalProperties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(append(fields(reflect.TypeFor[api.Document]()), "secrets"), slices.Sorted(maps.Keys(s.Properties))); d != "" {
		t.Errorf("sections (-api +schema)\n%s", d)
	}
	for def, spec := range map[string]reflect.Type{"endpoint": reflect.TypeFor[api.EndpointSpec](), "function": reflect.TypeFor[api.FunctionSpec](),
		"chain": reflect.TypeFor[api.ChainSpec](), "policy": reflect.TypeFor[api.PolicySpec](),
		"secret": reflect.TypeFor[SecretSource]()} {
		got := s.Defs[def]
		if d := cmp.Diff(fields(spec), slices.Sorted(maps.Keys(got.Properties))); d != "" {
			t.Errorf("%s (-api +schema)\n%s", def, d)
		}
		if got.AdditionalProperties != false {
			t.Errorf("%s takes additional properties", def)
		}
		for name, p := range got.Properties {
			if p["description"] == nil && p["$ref"] == nil {
				t.Errorf("%s.%s has no description", def, name)
			}
			want := jsonType(spec, name)
			types, _ := json.Marshal(p["type"])
			if p["type"] != nil && !strings.Contains(string(types), `"`+want+`"`) {
				t.Errorf("%s.%s: type %s in the schema, %s in the API", def, name, types, want)
			}
		}
	}
}

// A function may name the same runtimes in a file and by the API.
func TestSchemaHasTheRuntimes(t *testing.T) {
	var s struct {
		Defs map[string]struct {
			Properties map[string]struct{ Enum []string } `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(api.Runtimes(), s.Defs["function"].Properties["runtime"].Enum); d != "" {
		t.Errorf("(-api +schema)\n%s", d)
	}
}

func fields(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func jsonType(spec reflect.Type, name string) string {
	for i := range spec.NumField() {
		f := spec.Field(i)
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != name {
			continue
		}
		t := f.Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch t.Kind() {
		case reflect.Bool:
			return "boolean"
		case reflect.Int, reflect.Int64:
			return "integer"
		case reflect.Slice:
			return "array"
		case reflect.Map, reflect.Struct:
			return "object"
		}
		return "string"
	}
	return ""
}

func instance(t *testing.T, text []byte) []byte {
	t.Helper()
	b, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestExamplesAreValid(t *testing.T) {
	valid := schematest.Of(t, Schema())
	paths, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(paths) < 3 {
		t.Fatalf("examples: %v, %v", paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(text, []byte("\nagents:")) {
				return // a testbed's file, which package testbed reads
			}
			if err := valid(instance(t, text)); err != nil {
				t.Errorf("schema: %v", err)
			}
			f, err := Parse(path, text)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Explain(f.Document.Validate()); err != nil {
				t.Error(err)
			}
		})
	}
}

// docs/file.md names every key, and its samples are valid.
func TestDocsNameEveryKey(t *testing.T) {
	text, err := os.ReadFile("../../docs/file.md")
	if err != nil {
		t.Fatal(err)
	}
	for section, spec := range map[string]reflect.Type{"endpoints": reflect.TypeFor[api.EndpointSpec](), "functions": reflect.TypeFor[api.FunctionSpec](),
		"chains": reflect.TypeFor[api.ChainSpec](), "policies": reflect.TypeFor[api.PolicySpec]()} {
		_, part, found := strings.Cut(string(text), "\n## "+section+"\n")
		if !found {
			t.Errorf("no section %s", section)
		}
		part, _, _ = strings.Cut(part, "\n## ")
		for _, key := range fields(spec) {
			if !strings.Contains(part, "| `"+key+"` |") {
				t.Errorf("section %s has no row for %s", section, key)
			}
		}
	}
	samples := strings.Split(string(text), "```yaml\n")[1:]
	if len(samples) == 0 {
		t.Error("no samples")
	}
	valid := schematest.Of(t, Schema())
	for _, sample := range samples {
		sample, _, _ = strings.Cut(sample, "```")
		if err := valid(instance(t, []byte(sample))); err != nil {
			t.Errorf("schema: %v\n%s", err, sample)
		}
		f, err := Parse("docs/file.md", []byte(sample))
		if err == nil {
			err = f.Explain(f.Document.Validate())
		}
		if err != nil {
			t.Errorf("%v\n%s", err, sample)
		}
	}
}

// Schema and decoder refuse and take the same forms.
func TestSchemaAgreesWithTheDecoder(t *testing.T) {
	valid := schematest.Of(t, Schema())
	for text, ok := range map[string]bool{
		"chains: {web: fw | w1}":    true,
		"chains: {web: {path: fw}}": true,
		"chains: {web: [fw]}":       false,
		"chains: {web: {}}":         false,
		"chains: {Web: fw}":         false,
		"x-anything: [1, 2]":        true,
		"endpoints:":                true,
		"polices: {}":               false,
		"functions: {f: {image: w, cpus: 0.5, memory: 1048576}}":                    true,
		"functions: {f: {image: w, env: {A: 1}}}":                                   true,
		"functions: {f: {image: w, on_fail: pass}}":                                 false,
		"functions: {f: {}}":                                                        false,
		"functions: {f: {image: w, memry: 64M}}":                                    false,
		"endpoints: {e: {interface: eth0}}":                                         true,
		"endpoints: {e: {netns: e}}":                                                false,
		"endpoints: {e: {interface: eth0, netns: e, mac: hello}}":                   false,
		"endpoints: {e: {interface: eth0, netns: e, address: 10.9}}":                false,
		"endpoints: {e: {}}":                                                        false,
		"endpoints: {e: {switch: s1, switch_port: 2}}":                              true,
		"endpoints: {e: {switch: s1, switch_port: eth2, mac: '02:00:00:00:00:01'}}": true,
		"endpoints: {e: {switch: s1}}":                                              false,
		"endpoints: {e: {switch_port: 2, address: 10.0.0.1/24}}":                    false,
		"endpoints: {e: {address: 10.0.0.1/24}}":                                    true,
		"endpoints: {e: {addresses: [10.0.0.1/24]}}":                                true,
		"endpoints: {e: {mac: '02:00:00:00:00:01'}}":                                true,
		"endpoints: {e: {netns: e, mac: '02:00:00:00:00:01'}}":                      false,
		"endpoints: {e: {interface: eth0, switch: s1, switch_port: 2}}":             false,
		"endpoints: {e: {mac: '02:00:00:00:00:01', host: h1}}":                      false,
		"endpoints: {e: {mac: '02:00:00:00:00:01', mtu: 1500}}":                     false,
		"policies: {p: {chain: c, match_by: mac}}":                                  true,
		"policies: {p: {chain: c, match_by: name}}":                                 false,
		"policies: {p: {chain: c, match: [tcp/80-90, icmp, ip]}}":                   true,
		"policies: {p: {chain: c, match: [icmp/80]}}":                               false,
		"policies: {p: {chain: c, match: tcp/80}}":                                  false,
		"policies: {p: {chain: c, symmetric: 'yes'}}":                               false,
		"policies: {p: {chain: c, priority: 1001}}":                                 false,
		"policies: {p: {chain: c, mode: some}}":                                     false,
		"policies: {p: {}}":                                                         false,
	} {
		bySchema := valid(instance(t, []byte(text)))
		f, err := Parse("in.yaml", []byte(text))
		if err == nil {
			err = f.Explain(f.Document.Validate())
		}
		if (bySchema == nil) != ok || (err == nil) != ok {
			t.Errorf("%s: want valid %v\nschema: %v\ndecoder: %v", text, ok, bySchema, err)
		}
	}
}
