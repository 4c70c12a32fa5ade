package ovsdb

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
)

// MonitorTable says what of a table is told (4.1.5). No columns: all.
type MonitorTable struct {
	Columns                       []string
	NoInitial, NoInsert, NoDelete bool
	NoModify                      bool
}

// RowUpdate is what happened to a row: Old alone: deleted; New alone: inserted, or there from the start; both: modified, Old with
// the former values of the columns that changed.
type RowUpdate struct{ Old, New Row }

// Changes is what one transaction changed: by table and row.
type Changes map[string]map[UUID]RowUpdate

// Monitor tells of changes until it is stopped or the connection ends.
type Monitor struct {
	c       *Client
	id      string
	initial Changes
	updates chan Changes
	once    sync.Once
}

// Initial is what the tables held when the monitor began.
func (m *Monitor) Initial() Changes { return m.initial }

// Updates is closed when the connection has ended, or after Stop. Whoever does not read it loses the connection (ErrOverflow), rather
// than an update.
func (m *Monitor) Updates() <-chan Changes { return m.updates }

func (m *Monitor) finish() { m.once.Do(func() { close(m.updates) }) }

// Monitor asks to be told of changes of tables (4.1.5).
func (c *Client) Monitor(ctx context.Context, db string, tables map[string]MonitorTable) (*Monitor, error) {
	requests := map[string]any{}
	for name, t := range tables {
		r := map[string]any{"select": map[string]bool{"initial": !t.NoInitial, "insert": !t.NoInsert, "delete": !t.NoDelete, "modify": !t.NoModify}}
		if len(t.Columns) > 0 {
			r["columns"] = t.Columns
		}
		requests[name] = r
	}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, c.err
	}
	c.next++
	m := &Monitor{c: c, id: fmt.Sprint("m", c.next), updates: make(chan Changes, c.opts.Updates)}
	c.monitors[m.id] = m // an update may follow the reply at once
	c.mu.Unlock()
	if err := c.Call(ctx, "monitor", []any{db, m.id, requests}, &m.initial); err != nil {
		c.forget(m)
		return nil, err
	}
	return m, nil
}

func (c *Client) forget(m *Monitor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.monitors, m.id)
	m.finish()
}

// Stop ends the monitor (4.1.7).
func (m *Monitor) Stop(ctx context.Context) error {
	err := m.c.Call(ctx, "monitor_cancel", []string{m.id}, nil)
	m.c.forget(m)
	return err
}

// update is a notification (4.1.6).
func (c *Client) update(params json.RawMessage) error {
	var pair []json.RawMessage
	var id string
	var u Changes
	if err := json.Unmarshal(params, &pair); err != nil || len(pair) != 2 {
		return fmt.Errorf("%w: update with the parameters %s", ErrMalformed, clip(params))
	}
	if err := json.Unmarshal(pair[0], &id); err != nil {
		return fmt.Errorf("%w: update for the monitor %s", ErrMalformed, clip(pair[0]))
	}
	if err := json.Unmarshal(pair[1], &u); err != nil {
		return fmt.Errorf("%w: update: %w", ErrMalformed, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.monitors[id]
	if m == nil {
		return nil // cancelled meanwhile
	}
	select {
	case m.updates <- u:
		return nil
	default:
		return fmt.Errorf("%w: %d of them wait", ErrOverflow, cap(m.updates))
	}
}
