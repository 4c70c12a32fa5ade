package file

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// plain is text that no version of YAML takes for anything else; wordsOfYAML are the exceptions. All other text is quoted, as in JSON.
var (
	plain       = regexp.MustCompile(`^([A-Za-z_/][A-Za-z0-9_/.@+=-]*|[0-9]+[0-9.]*/[0-9]+)( \| [A-Za-z_/][A-Za-z0-9_/.-]*|:[A-Za-z_/][A-Za-z0-9_/.-]*)*$`)
	wordsOfYAML = []string{"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"}
)

// member of an object, in the order of its JSON.
type member struct {
	key   string
	value any
}

// yamlOf writes JSON as YAML in block style, members in their order.
func yamlOf(text []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := ordered(d)
	if err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	var b bytes.Buffer
	block(&b, v, "")
	return b.Bytes(), nil
}

// ordered reads a value: a scalar, []any or []member.
func ordered(d *json.Decoder) (any, error) {
	t, err := d.Token()
	open, nested := t.(json.Delim)
	if err != nil || !nested {
		return t, err
	}
	list, object := []any{}, []member{}
	for d.More() {
		var m member
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			m.key, _ = key.(string)
		}
		if m.value, err = ordered(d); err != nil {
			return nil, err
		}
		list, object = append(list, m.value), append(object, m)
	}
	if _, err := d.Token(); err != nil { // the end
		return nil, err
	}
	if open == '{' {
		return object, nil
	}
	return list, nil
}

// block writes a value in lines of its own.
func block(b *bytes.Buffer, v any, indent string) {
	switch v := v.(type) {
	case []member:
		for _, m := range v {
			b.WriteString(indent + scalar(m.key) + ":")
			if short, ok := short(m.value); ok {
				b.WriteString(" " + short + "\n")
				continue
			}
			b.WriteByte('\n')
			block(b, m.value, indent+"  ")
		}
	case []any:
		for _, item := range v {
			b.WriteString(indent + "- ")
			if short, ok := short(item); ok {
				b.WriteString(short + "\n")
				continue
			}
			var inner bytes.Buffer
			block(&inner, item, indent+"  ")
			b.Write(bytes.TrimPrefix(inner.Bytes(), []byte(indent+"  ")))
		}
	default:
		b.WriteString(indent + scalar(v) + "\n")
	}
}

// short is a value in one line, if it goes there: a scalar, what is empty, and a list of a few scalars.
func short(v any) (string, bool) {
	switch v := v.(type) {
	case []member:
		return "{}", len(v) == 0
	case []any:
		parts := make([]string, len(v))
		for i, item := range v {
			switch item.(type) {
			case []member, []any:
				return "", false
			}
			parts[i] = scalar(item)
		}
		text := "[" + strings.Join(parts, ", ") + "]"
		return text, len(text) <= 80
	}
	return scalar(v), true
}

func scalar(v any) string {
	s, text := v.(string)
	switch {
	case v == nil:
		return "null"
	case !text:
		return fmt.Sprint(v) // a number as it was written, true or false
	case plain.MatchString(s) && !slices.Contains(wordsOfYAML, strings.ToLower(s)):
		return s
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // text can be encoded
	return strings.TrimSuffix(b.String(), "\n")
}
