package image

import (
	"fmt"
	"strings"
	"testing"
)

// A config is checked in bounded time, whatever an image's schema is.
func TestSchemasThatMultiplyAreRefused(t *testing.T) {
	doubled := func(levels int, ref string) string {
		var d strings.Builder
		for i := range levels {
			to := fmt.Sprintf(ref, i+1)
			fmt.Fprintf(&d, `"d%d":{"$anchor":"a%d","allOf":[{"$ref":%q},{"$ref":%q}]},`, i, i, to, to)
		}
		return fmt.Sprintf(`{"$defs":{%s"d%d":{"$anchor":"a%[2]d","type":"object"}},"$ref":%q}`, d.String(), levels, fmt.Sprintf(ref, 0))
	}
	for name, x := range map[string]struct{ schema, err string }{
		"a few levels":            {doubled(5, "#/$defs/d%d"), ""},
		"many levels":             {doubled(60, "#/$defs/d%d"), "multiply"},
		"many levels, escaped":    {doubled(60, "#/%%24defs/d%d"), "multiply"},
		"many levels, by anchors": {doubled(60, "#a%d"), "multiply"},
		"a tree of itself":        {`{"type":"object","properties":{"left":{"$ref":"#"},"right":{"$ref":"#"}}}`, ""},
		"into a list":             {`{"allOf":[{"type":"object"},{"$ref":"#/allOf/0"}]}`, ""},
		"a schema in the schema":  {`{"$defs":{"a":{"$id":"x","type":"object"}},"$ref":"x"}`, "below the top"},
		"another's schema":        {`{"$ref":"file:///etc/shadow"}`, "stands alone"},
		"nowhere":                 {`{"$ref":"#/$defs/none"}`, "stands alone"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := ParseContract(map[string]string{LabelConfigSchema: x.schema})
			if x.err != "" {
				if err == nil || !strings.Contains(err.Error(), x.err) {
					t.Errorf("got %v, want %s", err, x.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p := c.CheckConfig(map[string]any{}); p != nil {
				t.Error(p)
			}
		})
	}
}
