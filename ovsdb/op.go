package ovsdb

import "encoding/json"

// Op is an operation of a transaction (5.2): Insert, Select, Update or Mutate.
type Op interface {
	fields() map[string]any // on the wire; "op" and "table" are strings
}

// Condition is a clause of a Where (5.1): all of them must hold.
type Condition struct {
	Column string
	Test   Test
	Value  Value
}

// Test compares a column with a value.
type Test string

const (
	Equal    Test = "=="
	Includes Test = "includes"
)

// MarshalJSON writes [column, test, value].
func (c Condition) MarshalJSON() ([]byte, error) {
	return json.Marshal([3]any{c.Column, c.Test, wire(c.Value)})
}

// Mutation changes a column relative to its value (5.1).
type Mutation struct {
	Column  string
	Mutator Mutator
	Value   Value
}

// Mutator is what a mutation does.
type Mutator string

const (
	Add  Mutator = "+="
	Put  Mutator = "insert" // into a set or map; keys that a map has already keep their values
	Take Mutator = "delete" // from a set or map; of a map also by a Set of keys
)

// MarshalJSON writes [column, mutator, value].
func (m Mutation) MarshalJSON() ([]byte, error) {
	return json.Marshal([3]any{m.Column, m.Mutator, wire(m.Value)})
}

// Insert makes a row (5.2.1). Its Result has the UUID.
type Insert struct {
	Table string
	Row   Row
	Name  string // other operations can refer to the row by NamedUUID(Name); an identifier; may be empty
}

// Select reads rows (5.2.2). Its Result has Rows; no columns named: all.
type Select struct {
	Table   string
	Where   []Condition
	Columns []string
}

// Update overwrites columns (5.2.3). Its Result has Count.
type Update struct {
	Table string
	Where []Condition
	Row   Row
}

// Mutate changes columns relative to their values (5.2.4). Its Result has Count.
type Mutate struct {
	Table     string
	Where     []Condition
	Mutations []Mutation
}

func where(c []Condition) []Condition {
	if c == nil {
		return []Condition{}
	}
	return c
}

func (o Insert) fields() map[string]any {
	f := map[string]any{"op": "insert", "table": o.Table, "row": o.Row}
	if o.Name != "" {
		f["uuid-name"] = o.Name
	}
	return f
}

func (o Select) fields() map[string]any {
	f := map[string]any{"op": "select", "table": o.Table, "where": where(o.Where)}
	if len(o.Columns) > 0 {
		f["columns"] = o.Columns
	}
	return f
}

func (o Update) fields() map[string]any {
	return map[string]any{"op": "update", "table": o.Table, "where": where(o.Where), "row": o.Row}
}

func (o Mutate) fields() map[string]any {
	return map[string]any{"op": "mutate", "table": o.Table, "where": where(o.Where), "mutations": o.Mutations}
}

// Result of an operation.
type Result struct {
	UUID  UUID
	Rows  []Row
	Count int
}
