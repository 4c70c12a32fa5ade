// Package schematest holds JSON documents against a JSON schema, for tests.
package schematest

import (
	"bytes"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Of compiles a schema. What it returns tells what the schema says of a document.
func Of(t *testing.T, schema []byte) func(document []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return func(document []byte) error {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
		if err != nil { // not what the schema refuses
			t.Errorf("no JSON: %v", err)
			return err
		}
		return s.Validate(v)
	}
}
