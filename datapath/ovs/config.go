package ovs

import (
	"context"
	"fmt"
	"os"
	"time"

	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/ovsdb"
)

const (
	database = "Open_vSwitch"

	markInstance = "weir-instance" // ownership, in external_ids
	markObject   = "weir-object"
)

// config is the database in which Open vSwitch's configuration is.
type config struct {
	home      *home.Home
	state     *state
	processes *processes
	db        *ovsdb.Client // nil: not connected
}

func (c *config) close() {
	if c.db != nil {
		c.db.Close()
	}
}

func (c *config) address() string {
	if c.processes.own != nil {
		return c.processes.own.DB()
	}
	return c.state.OVSDB
}

// client is the connection, made anew if it was lost.
func (c *config) client(ctx context.Context) (*ovsdb.Client, error) {
	if c.db != nil && c.db.Err() == nil {
		return c.db, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for wait := retryFirst; ; wait = min(2*wait, retryLast) {
		db, err := ovsdb.Dial(ctx, c.address(), ovsdb.Options{})
		if err == nil {
			c.db = db
			return db, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(wait):
		}
	}
}

// change the configuration, and wait until ovs-vswitchd has carried it out.
func (c *config) change(ctx context.Context, ops ...ovsdb.Op) ([]ovsdb.Result, error) {
	res, wait, err := c.begin(ctx, ops...)
	if err != nil {
		return nil, err
	}
	return res, wait(ctx)
}

// begin changes the configuration; wait, which needs no lock, returns when ovs-vswitchd has carried it out.
func (c *config) begin(ctx context.Context, ops ...ovsdb.Op) (res []ovsdb.Result, wait func(context.Context) error, err error) {
	db, err := c.client(ctx)
	if err != nil {
		return nil, nil, err
	}
	ops = append(ops,
		ovsdb.Mutate{Table: "Open_vSwitch", Mutations: []ovsdb.Mutation{{Column: "next_cfg", Mutator: ovsdb.Add, Value: 1}}},
		ovsdb.Select{Table: "Open_vSwitch", Columns: []string{"next_cfg"}})
	if res, err = db.Transact(ctx, database, ops...); err != nil {
		return nil, nil, err
	}
	rows := res[len(res)-1].Rows
	if len(rows) != 1 {
		return nil, nil, fmt.Errorf("the database has %d rows in Open_vSwitch: want one (ovs-vsctl init)", len(rows))
	}
	want, _ := rows[0].Int("next_cfg")
	return res, func(ctx context.Context) error { return carriedOut(ctx, db, want) }, nil
}

// carriedOut waits until ovs-vswitchd has carried out that configuration.
func carriedOut(ctx context.Context, db *ovsdb.Client, want int64) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for wait := 500 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		r, err := db.Transact(ctx, database, ovsdb.Select{Table: "Open_vSwitch", Columns: []string{"cur_cfg"}})
		if err != nil {
			return err
		}
		if len(r[0].Rows) == 1 {
			if n, _ := r[0].Rows[0].Int("cur_cfg"); n >= want {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("ovs-vswitchd does not carry out the configuration: %w", ctx.Err())
		case <-time.After(wait):
		}
	}
}

func named(name string) []ovsdb.Condition {
	return []ovsdb.Condition{{Column: "name", Test: ovsdb.Equal, Value: name}}
}

func (c *config) marks(object string) map[string]string {
	return map[string]string{markInstance: c.home.Instance.Name, markObject: object}
}

// row is the one row of that name, nil if there is none.
func (c *config) row(ctx context.Context, table, name string) (ovsdb.Row, error) {
	db, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	res, err := db.Transact(ctx, database, ovsdb.Select{Table: table, Where: named(name)})
	if err != nil || len(res[0].Rows) == 0 {
		return nil, err
	}
	return res[0].Rows[0], nil
}

func (c *config) ours(r ovsdb.Row) bool {
	return r != nil && r.Texts("external_ids")[markInstance] == c.home.Instance.Name
}

// interfaces are the database's rows of ports' links, nil where there is none.
func (c *config) interfaces(ctx context.Context, ports []*port) ([]ovsdb.Row, error) {
	db, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	ops := make([]ovsdb.Op, len(ports))
	for i, p := range ports {
		ops[i] = ovsdb.Select{Table: "Interface", Where: named(p.Link)}
	}
	rows := make([]ovsdb.Row, len(ports))
	res, err := db.Transact(ctx, database, ops...)
	if err != nil {
		return nil, err
	}
	for i := range ports {
		if len(res[i].Rows) > 0 {
			rows[i] = res[i].Rows[0]
		}
	}
	return rows, nil
}

// hasKernelDatapath: this Open vSwitch forwards in the kernel, if asked to.
func (c *config) hasKernelDatapath(ctx context.Context) (bool, error) {
	db, err := c.client(ctx)
	if err != nil {
		return false, err
	}
	res, err := db.Transact(ctx, database, ovsdb.Select{Table: "Open_vSwitch", Columns: []string{"datapath_types"}})
	if err != nil || len(res[0].Rows) != 1 || !kernelDatapath() {
		return false, err
	}
	for _, t := range ovsdb.SetOf(res[0].Rows[0]["datapath_types"]) {
		if t == system {
			return true, nil
		}
	}
	return false, nil
}

// kernelDatapath: the module is there, loaded or built in.
func kernelDatapath() bool {
	_, err := os.Stat("/sys/module/openvswitch")
	return err == nil
}
