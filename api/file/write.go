package file

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir.dev/weir/api"
)

// Section is a part of a document as a file has it: all objects of a kind, or as many of them as a file may hold.
type Section struct {
	Name string // endpoints, functions-2
	Text []byte
}

// Write gives a document in sections that Parse reads, sorted by names. There is one of each kind, also without objects.
func Write(d api.Document) ([]Section, error) {
	chains := make(map[string]any, len(d.Chains))
	for name, c := range d.Chains {
		if chains[name] = c.Path; strings.ContainsAny(c.Path, "\r\n") { // no short form has several lines
			chains[name] = c
		}
	}
	var out []Section
	for _, write := range []func() ([]Section, error){
		func() ([]Section, error) { return section("endpoints", d.Endpoints) },
		func() ([]Section, error) { return section("functions", d.Functions) },
		func() ([]Section, error) { return section("chains", chains) },
		func() ([]Section, error) { return section("policies", d.Policies) },
	} {
		parts, err := write()
		if err != nil {
			return nil, err
		}
		out = append(out, parts...)
	}
	return out, nil
}

// section writes objects of a kind, in more than one part if they are too large for one file.
func section[T any](kind string, objects map[string]T) ([]Section, error) {
	head := []byte(kind + ":\n")
	parts := []Section{{Name: kind}}
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		b, err := json.Marshal(map[string]map[string]T{kind: {name: objects[name]}})
		if err == nil {
			b, err = yamlOf(b)
		}
		if err != nil {
			return nil, fmt.Errorf("write %s.%s: %w", kind, name, err)
		}
		b = bytes.TrimPrefix(b, head)
		last := &parts[len(parts)-1]
		if len(last.Text)+len(b) > maxSection {
			parts = append(parts, Section{Name: fmt.Sprintf("%s-%d", kind, len(parts)+1)})
			last = &parts[len(parts)-1]
		}
		if len(last.Text) == 0 {
			last.Text = slices.Clone(head)
		}
		last.Text = append(last.Text, b...)
	}
	if len(objects) == 0 {
		parts[0].Text = []byte(kind + ": {}\n")
	}
	return parts, nil
}

// maxSection leaves room for a comment.
const maxSection = MaxBytes - 64<<10
