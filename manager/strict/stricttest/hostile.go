// Package stricttest has bodies that a decoder of the API must survive.
package stricttest

import (
	"fmt"
	"strings"
)

// Hostile are bodies that small means make large.
func Hostile(size int) map[string]string {
	fill := func(before, element, between, after string) string {
		n := (size - len(before) - len(after)) / (len(element) + len(between))
		return before + strings.Repeat(element+between, n-1) + element + after
	}
	many := func(before, format, after string) string {
		var b strings.Builder
		b.WriteString(before)
		for i := 0; b.Len() < size; i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, format, i)
		}
		return b.String() + after
	}
	half := size / 2
	return map[string]string{
		"a list of {}":                   fill(`{"host":"h","events":[`, `{}`, `,`, `]}`),
		"a list of {} where none is":     fill(`[`, `{}`, `,`, `]`),
		"a list of {} in a config":       fill(`{"document":{"functions":{"f":{"image":"x","config":{"a":[`, `{}`, `,`, `]}}}}}`),
		"a list of small objects":        fill(`{"document":{"functions":{"f":{"image":"x","config":{"a":[`, `{"a":1}`, `,`, `]}}}}}`),
		"a list of [] in a config":       fill(`{"document":{"functions":{"f":{"image":"x","config":{"a":[`, `[]`, `,`, `]}}}}}`),
		"a list of numbers in a config":  fill(`{"document":{"functions":{"f":{"image":"x","config":{"a":[`, `1`, `,`, `]}}}}}`),
		"a list of empty strings":        fill(`{"document":{"policies":{"p":{"chain":"c","match":[`, `""`, `,`, `]}}}}`),
		"nested lists":                   strings.Repeat("[", half) + strings.Repeat("]", half),
		"nested objects":                 strings.Repeat(`{"a":`, size/6) + "1" + strings.Repeat("}", size/6),
		"nested in a config":             `{"document":{"functions":{"f":{"image":"x","config":{"a":` + strings.Repeat("[", half) + strings.Repeat("]", half) + `}}}}}`,
		"unknown names":                  many(`{`, `"x%d":0`, `}`),
		"unknown names with objects":     many(`{`, `"x%d":{}`, `}`),
		"objects with unknown names":     many(`{"functions":{`, `"x%d":{"y":0}`, `}}`),
		"empty statuses":                 many(`{"host":"h","functions":{`, `"%d":{}`, `}}`),
		"empty specs":                    many(`{"document":{"endpoints":{`, `"%d":{}`, `}}}`),
		"names in a config":              many(`{"document":{"functions":{"f":{"image":"x","config":{`, `"%d":0`, `}}}}}`),
		"one long string":                `{"host":"` + strings.Repeat("x", size) + `"}`,
		"one long string of escapes":     `{"host":"` + strings.Repeat(`\u0041`, size/6) + `"}`,
		"one long unknown name":          `{"` + strings.Repeat("x", size) + `":1}`,
		"one name again and again":       fill(`{`, `"host":"h"`, `,`, `}`),
		"one object again and again":     fill(`{`, `"host_status":{}`, `,`, `}`),
		"a name of a map again":          fill(`{"functions":{`, `"f":{}`, `,`, `}}`),
		"a name of a config again":       fill(`{"document":{"functions":{"f":{"config":{`, `"a":{}`, `,`, `}}}}}`),
		"a big number":                   `{"functions":{"f":{"pid":` + strings.Repeat("9", size) + `}}}`,
		"a big number in a config":       `{"document":{"functions":{"f":{"config":{"a":` + strings.Repeat("9", size) + `}}}}}`,
		"a big number where a string is": `{"host":` + strings.Repeat("9", size) + `}`,
		"wrong types":                    many(`{"functions":{`, `"x%d":[]`, `}}`),
		"blanks":                         `{` + strings.Repeat(" ", size) + `}`,
		"no end":                         fill(`{"events":[`, `{}`, `,`, ``),
	}
}
