package ovsdb

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
)

// Value is a column's value (5.1): string, int64, float64, bool, UUID, NamedUUID, Set or Map. JSON does not tell 1.0 from 1: a whole number
// is an int64, also in a column of reals. In what is sent, int and []string, []UUID,
// map[string]string may stand for int64, Set and Map.
type Value any

// UUID of a row.
type UUID string

// NamedUUID stands for the row that an Insert of the same transaction makes under this name.
type NamedUUID string

// Set is a set of atoms. The protocol writes a set of one atom like the atom itself; SetOf takes both.
type Set []Value

// Map is a map of atoms.
type Map map[Value]Value

// Row is a row, or the columns of it that were asked for.
type Row map[string]Value

// MarshalJSON writes ["uuid", ...].
func (u UUID) MarshalJSON() ([]byte, error) { return json.Marshal([2]string{"uuid", string(u)}) }

// MarshalJSON writes ["named-uuid", ...].
func (u NamedUUID) MarshalJSON() ([]byte, error) {
	return json.Marshal([2]string{"named-uuid", string(u)})
}

// MarshalJSON writes ["set", [...]].
func (s Set) MarshalJSON() ([]byte, error) {
	atoms := []Value(s)
	if atoms == nil {
		atoms = []Value{}
	}
	return json.Marshal([2]any{"set", atoms})
}

// MarshalJSON writes ["map", [[key, value], ...]], sorted.
func (m Map) MarshalJSON() ([]byte, error) {
	pairs := make([][2]json.RawMessage, 0, len(m))
	for k, v := range m {
		key, err := json.Marshal(k)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, [2]json.RawMessage{key, value})
	}
	slices.SortFunc(pairs, func(a, b [2]json.RawMessage) int { return bytes.Compare(a[0], b[0]) })
	return json.Marshal([2]any{"map", pairs})
}

// UnmarshalJSON reads a row.
func (r *Row) UnmarshalJSON(b []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	row := make(Row, len(raw))
	for name, text := range raw {
		v, err := DecodeValue(text)
		if err != nil {
			return fmt.Errorf("column %s: %w", name, err)
		}
		row[name] = v
	}
	*r = row
	return nil
}

// MarshalJSON writes a row, its values in wire form.
func (r Row) MarshalJSON() ([]byte, error) {
	out := make(map[string]Value, len(r))
	for name, v := range r {
		out[name] = wire(v)
	}
	return json.Marshal(out)
}

// wire turns Go's own collections into the protocol's.
func wire(v Value) Value {
	switch v := v.(type) {
	case []string:
		return setOf(v)
	case []UUID:
		return setOf(v)
	case []int:
		return setOf(v)
	case map[string]string:
		m := make(Map, len(v))
		for k, s := range v {
			m[k] = s
		}
		return m
	}
	return v
}

func setOf[T any](atoms []T) Set {
	s := make(Set, len(atoms))
	for i, a := range atoms {
		s[i] = a
	}
	return s
}

// ErrValue says that a value is not one of the protocol's.
var ErrValue = errors.New("not a value of the database protocol")

// DecodeValue reads a value in wire form.
func DecodeValue(b []byte) (Value, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var raw any
	if err := d.Decode(&raw); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrValue, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows it", ErrValue)
	}
	list, ok := raw.([]any)
	if !ok {
		return atom(raw)
	}
	if len(list) != 2 {
		return nil, fmt.Errorf("%w: an array of %d elements, want 2", ErrValue, len(list))
	}
	switch list[0] {
	case "set":
		return decodeSet(list[1])
	case "map":
		return decodeMap(list[1])
	}
	return atom(raw)
}

func decodeSet(raw any) (Value, error) {
	list, ok := raw.([]any)
	if !ok {
		return nil, fmt.Errorf("%w: a set without an array", ErrValue)
	}
	s := make(Set, len(list))
	for i, e := range list {
		var err error
		if s[i], err = atom(e); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func decodeMap(raw any) (Value, error) {
	list, ok := raw.([]any)
	if !ok {
		return nil, fmt.Errorf("%w: a map without an array", ErrValue)
	}
	m := make(Map, len(list))
	for _, e := range list {
		pair, ok := e.([]any)
		if !ok || len(pair) != 2 {
			return nil, fmt.Errorf("%w: a map's element is no pair", ErrValue)
		}
		k, err := atom(pair[0])
		if err != nil {
			return nil, err
		}
		if _, twice := m[k]; twice {
			return nil, fmt.Errorf("%w: the key %v is twice in a map", ErrValue, k)
		}
		if m[k], err = atom(pair[1]); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// atom: what is not a set or map. All of them are comparable.
func atom(raw any) (Value, error) {
	switch v := raw.(type) {
	case string, bool:
		return v, nil
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i, nil
		}
		f, err := v.Float64()
		if err != nil {
			return nil, fmt.Errorf("%w: number %s", ErrValue, v)
		}
		if f == math.Trunc(f) && f >= math.MinInt64 && f < -math.MinInt64 { // written as 1.0 or 1e3: the same number as 1 or 1000
			return int64(f), nil
		}
		return f, nil
	case []any:
		if len(v) == 2 {
			id, ok := v[1].(string)
			switch {
			case ok && v[0] == "uuid":
				return UUID(id), nil
			case ok && v[0] == "named-uuid":
				return NamedUUID(id), nil
			}
		}
	}
	return nil, fmt.Errorf("%w: want a string, number, boolean or uuid", ErrValue)
}

// SetOf is a column's value as a set, whichever way the protocol wrote it. A missing column is the empty set.
func SetOf(v Value) Set {
	switch v := wire(v).(type) {
	case nil:
		return nil
	case Set:
		return v
	default:
		return Set{v}
	}
}

// UUIDs of a column of references.
func (r Row) UUIDs(column string) []UUID {
	var ids []UUID
	for _, v := range SetOf(r[column]) {
		if id, ok := v.(UUID); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// Text is a column of an optional or plain string, "" if it is empty.
func (r Row) Text(column string) string {
	for _, v := range SetOf(r[column]) {
		if s, ok := v.(string); ok {
			return s
		}
	}
	return ""
}

// Int is a column of an optional or plain integer; ok is false if it is empty.
func (r Row) Int(column string) (n int64, ok bool) {
	for _, v := range SetOf(r[column]) {
		if n, ok := v.(int64); ok {
			return n, true
		}
	}
	return 0, false
}

// Texts is a column of a map of strings; never nil.
func (r Row) Texts(column string) map[string]string {
	out := map[string]string{}
	m, _ := wire(r[column]).(Map)
	for k, v := range maps.All(m) {
		key, a := k.(string)
		text, b := v.(string)
		if a && b {
			out[key] = text
		}
	}
	return out
}
