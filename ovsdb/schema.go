package ovsdb

import (
	"context"
	"encoding/json"
	"fmt"
)

// Schema of a database (3.2).
type Schema struct {
	Name    string                 `json:"name"`
	Version string                 `json:"version"`
	Tables  map[string]TableSchema `json:"tables"`
}

// TableSchema describes a table.
type TableSchema struct {
	Columns map[string]ColumnSchema `json:"columns"`
	MaxRows int                     `json:"maxRows,omitempty"`
	IsRoot  bool                    `json:"isRoot,omitempty"`
	Indexes [][]string              `json:"indexes,omitempty"`
}

// ColumnSchema describes a column.
type ColumnSchema struct {
	Type      ColumnType `json:"type"`
	Ephemeral bool       `json:"ephemeral,omitempty"`
	Mutable   *bool      `json:"mutable,omitempty"` // nil: true
}

// ColumnType: a scalar has Min = Max = 1 and no Value; Max -1 is unlimited.
type ColumnType struct {
	Key, Value *BaseType
	Min, Max   int
}

// BaseType of atoms: "integer", "real", "boolean", "string", "uuid".
type BaseType struct {
	Type     string          `json:"type"`
	RefTable string          `json:"refTable,omitempty"`
	Enum     json.RawMessage `json:"enum,omitempty"`
}

// UnmarshalJSON takes the short form, too: a type's name alone.
func (b *BaseType) UnmarshalJSON(raw []byte) error {
	if json.Unmarshal(raw, &b.Type) == nil {
		return nil
	}
	type long BaseType
	return json.Unmarshal(raw, (*long)(b))
}

// UnmarshalJSON takes the short form, too.
func (t *ColumnType) UnmarshalJSON(raw []byte) error {
	t.Min, t.Max = 1, 1
	var name string
	if json.Unmarshal(raw, &name) == nil {
		t.Key = &BaseType{Type: name}
		return nil
	}
	var long struct {
		Key, Value *BaseType
		Min        *int
		Max        json.RawMessage
	}
	if err := json.Unmarshal(raw, &long); err != nil {
		return err
	}
	t.Key, t.Value = long.Key, long.Value
	if long.Min != nil {
		t.Min = *long.Min
	}
	if len(long.Max) > 0 {
		if string(long.Max) == `"unlimited"` {
			t.Max = -1
		} else if err := json.Unmarshal(long.Max, &t.Max); err != nil {
			return fmt.Errorf("max: %w", err)
		}
	}
	return nil
}

// Schema of a database (4.1.2).
func (c *Client) Schema(ctx context.Context, db string) (Schema, error) {
	var s Schema
	err := c.Call(ctx, "get_schema", []string{db}, &s)
	return s, err
}
