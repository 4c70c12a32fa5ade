package ovsdb

import "encoding/json"

// Op is an operation of a transaction (5.2): Insert, Select, Update, Mutate, Delete, Wait, Commit, Abort, Comment or Assert.
type Op interface {
	op() string
	fields() map[string]any
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
	Equal        Test = "=="
	NotEqual     Test = "!="
	Less         Test = "<"
	LessEqual    Test = "<="
	Greater      Test = ">"
	GreaterEqual Test = ">="
	Includes     Test = "includes"
	Excludes     Test = "excludes"
)

// MarshalJSON writes [column, test, value].
func (c Condition) MarshalJSON() ([]byte, error) {
	return json.Marshal([3]any{c.Column, c.Test, wire(c.Value)})
}

// ByUUID selects one row.
func ByUUID(id UUID) []Condition { return []Condition{{"_uuid", Equal, id}} }

// Mutation changes a column relative to its value (5.1).
type Mutation struct {
	Column  string
	Mutator Mutator
	Value   Value
}

// Mutator is what a mutation does.
type Mutator string

const (
	Add      Mutator = "+="
	Subtract Mutator = "-="
	Multiply Mutator = "*="
	Divide   Mutator = "/="
	Modulo   Mutator = "%="
	Put      Mutator = "insert" // into a set or map; keys that a map has already keep their values
	Take     Mutator = "delete" // from a set or map; of a map also by a Set of keys
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

// Delete removes rows (5.2.5). Its Result has Count.
type Delete struct {
	Table string
	Where []Condition
}

// Wait aborts the transaction unless Columns of the rows that Where selects are equal (or, with Unequal, not equal) to Rows, now or
// within TimeoutMS milliseconds (5.2.6).
type Wait struct {
	TimeoutMS int
	Table     string
	Where     []Condition
	Columns   []string
	Unequal   bool
	Rows      []Row
}

// Commit waits, if Durable, until the transaction is on disk (5.2.7).
type Commit struct{ Durable bool }

// Abort aborts the transaction (5.2.8): for trying operations.
type Abort struct{}

// Comment goes into the database's log (5.2.9).
type Comment struct{ Text string }

// Assert aborts the transaction unless this client holds the lock (5.2.10).
type Assert struct{ Lock string }

func (Insert) op() string  { return "insert" }
func (Select) op() string  { return "select" }
func (Update) op() string  { return "update" }
func (Mutate) op() string  { return "mutate" }
func (Delete) op() string  { return "delete" }
func (Wait) op() string    { return "wait" }
func (Commit) op() string  { return "commit" }
func (Abort) op() string   { return "abort" }
func (Comment) op() string { return "comment" }
func (Assert) op() string  { return "assert" }

func where(c []Condition) []Condition {
	if c == nil {
		return []Condition{}
	}
	return c
}

func row(r Row) Row {
	if r == nil {
		return Row{}
	}
	return r
}

func (o Insert) fields() map[string]any {
	f := map[string]any{"table": o.Table, "row": row(o.Row)}
	if o.Name != "" {
		f["uuid-name"] = o.Name
	}
	return f
}

func (o Select) fields() map[string]any {
	f := map[string]any{"table": o.Table, "where": where(o.Where)}
	if len(o.Columns) > 0 {
		f["columns"] = o.Columns
	}
	return f
}

func (o Update) fields() map[string]any {
	return map[string]any{"table": o.Table, "where": where(o.Where), "row": row(o.Row)}
}

func (o Mutate) fields() map[string]any {
	return map[string]any{"table": o.Table, "where": where(o.Where), "mutations": o.Mutations}
}

func (o Delete) fields() map[string]any {
	return map[string]any{"table": o.Table, "where": where(o.Where)}
}

func (o Wait) fields() map[string]any {
	until, rows := "==", o.Rows
	if o.Unequal {
		until = "!="
	}
	if rows == nil {
		rows = []Row{}
	}
	f := map[string]any{"timeout": o.TimeoutMS, "table": o.Table, "where": where(o.Where), "until": until, "rows": rows}
	if len(o.Columns) > 0 {
		f["columns"] = o.Columns
	}
	return f
}

func (o Commit) fields() map[string]any  { return map[string]any{"durable": o.Durable} }
func (o Abort) fields() map[string]any   { return map[string]any{} }
func (o Comment) fields() map[string]any { return map[string]any{"comment": o.Text} }
func (o Assert) fields() map[string]any  { return map[string]any{"lock": o.Lock} }

// Result of an operation.
type Result struct {
	UUID  UUID
	Rows  []Row
	Count int
}
