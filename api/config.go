package api

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// Config is what a function is told, as JSON says it. Whole numbers that a float64 would round are a [json.Number], others a float64.
type Config map[string]any

// UnmarshalJSON implements json.Unmarshaler.
func (c *Config) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return err
	}
	for k, v := range m {
		m[k] = plain(v)
	}
	*c = m
	return nil
}

// plain gives numbers the kind that json gives them, where that loses nothing.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = plain(e)
		}
	case []any:
		for i, e := range v {
			v[i] = plain(e)
		}
	case json.Number:
		f, err := v.Float64()
		if err != nil || math.Abs(f) >= 1<<53 && !strings.ContainsAny(v.String(), ".eE") && strconv.FormatFloat(f, 'f', -1, 64) != v.String() {
			return v
		}
		return f
	}
	return v
}
