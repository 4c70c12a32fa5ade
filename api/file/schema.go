package file

import (
	_ "embed"
	"slices"
)

//go:embed weir.schema.json
var schema []byte

// Schema is the published JSON Schema (draft 2020-12) of the file. It checks form; the API's validation checks the rest.
func Schema() []byte { return slices.Clone(schema) }
