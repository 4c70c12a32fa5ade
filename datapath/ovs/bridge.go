package ovs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
	"weir.dev/weir/ovsdb"
	"weir.dev/weir/ovsdb/ovsproc"
)

const (
	database = "Open_vSwitch"

	markInstance = "weir-instance" // ownership, in external_ids
	markObject   = "weir-object"
)

// choose which Open vSwitch this switch is in, and remember it.
func (s *Switch) choose(ctx context.Context) error {
	want := s.opts.OVSDB
	if s.state.OVSDB == "" {
		if want == "" {
			want = Private
			if inInitialNamespace() && answers(ctx, HostDB) {
				want = HostDB
			}
		}
		s.state.OVSDB = want
	} else if want != "" && want != s.state.OVSDB {
		return fmt.Errorf("the switch is in Open vSwitch %s, not %s: destroy it first", s.state.OVSDB, want)
	}
	if s.state.OVSDB == Private {
		dir := filepath.Dir(s.store.Dir)
		s.state.RunDir = dir
		if p := ovsproc.At(ovsproc.Options{Dir: dir}); p.SwitchPID() == 0 {
			if err := p.StopSwitch(ctx); err != nil { // one that was killed a moment ago has the tap still
				return err
			}
			if err := s.alone(); err != nil {
				return err
			}
		}
		var err error
		if s.procs, err = ovsproc.Start(ctx, ovsproc.Options{Dir: dir, Netns: fmt.Sprintf("/proc/self/fd/%d", s.home.Fd())}); err != nil {
			return err
		}
	} else {
		path, ok := strings.CutPrefix(s.state.OVSDB, "unix:")
		if !ok {
			return fmt.Errorf("database %s: want unix:PATH", s.state.OVSDB)
		}
		s.state.RunDir = s.opts.RunDir
		if s.state.RunDir == "" {
			s.state.RunDir = filepath.Dir(path)
		}
	}
	if s.state.Datapath == "" {
		kind, err := s.datapathType(ctx)
		if err != nil {
			return err
		}
		s.state.Datapath = kind
	}
	return s.store.Write("switch.json", &s.state)
}

func (s *Switch) address() string {
	if s.procs != nil {
		return s.procs.DB()
	}
	return s.state.OVSDB
}

func answers(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := ovsdb.Dial(ctx, address, ovsdb.Options{})
	if err != nil {
		return false
	}
	defer c.Close()
	return c.Echo(ctx) == nil
}

// inInitialNamespace: the thread is in the namespace of process 1.
func inInitialNamespace() bool {
	own, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return false
	}
	first, err := os.Stat("/proc/1/ns/net")
	return err == nil && os.SameFile(own, first)
}

// datapathType: what was asked for, or the kernel's where Open vSwitch has it.
func (s *Switch) datapathType(ctx context.Context) (string, error) {
	if s.opts.Datapath != "" {
		return s.opts.Datapath, nil
	}
	if s.procs != nil { // private processes leave the kernel's datapaths alone: these are one set for all of the machine
		return netdev, nil
	}
	db, err := s.database(ctx)
	if err != nil {
		return "", err
	}
	res, err := db.Transact(ctx, database, ovsdb.Select{Table: "Open_vSwitch", Columns: []string{"datapath_types"}})
	if err != nil {
		return "", err
	}
	if len(res[0].Rows) == 1 && kernelDatapath() {
		for _, t := range ovsdb.SetOf(res[0].Rows[0]["datapath_types"]) {
			if t == system {
				return system, nil
			}
		}
	}
	return netdev, nil
}

// kernelDatapath: the module is there, loaded or built in.
func kernelDatapath() bool {
	_, err := os.Stat("/sys/module/openvswitch")
	return err == nil
}

// database is the connection, made anew if it was lost.
func (s *Switch) database(ctx context.Context) (*ovsdb.Client, error) {
	if s.db != nil && s.db.Err() == nil {
		return s.db, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for wait := retryFirst; ; wait = min(2*wait, retryLast) {
		db, err := ovsdb.Dial(ctx, s.address(), ovsdb.Options{})
		if err == nil {
			s.db = db
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
func (s *Switch) change(ctx context.Context, ops ...ovsdb.Op) ([]ovsdb.Result, error) {
	res, wait, err := s.begin(ctx, ops...)
	if err != nil {
		return nil, err
	}
	return res, wait(ctx)
}

// begin changes the configuration; wait, which needs no lock, returns when ovs-vswitchd has carried it out.
func (s *Switch) begin(ctx context.Context, ops ...ovsdb.Op) (res []ovsdb.Result, wait func(context.Context) error, err error) {
	db, err := s.database(ctx)
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

func (s *Switch) marks(object string) map[string]string {
	return map[string]string{markInstance: s.opts.Instance.Name, markObject: object}
}

// row is the one row of that name, nil if there is none.
func (s *Switch) row(ctx context.Context, table, name string) (ovsdb.Row, error) {
	db, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	res, err := db.Transact(ctx, database, ovsdb.Select{Table: table, Where: named(name)})
	if err != nil || len(res[0].Rows) == 0 {
		return nil, err
	}
	return res[0].Rows[0], nil
}

func (s *Switch) ours(r ovsdb.Row) bool {
	return r != nil && r.Texts("external_ids")[markInstance] == s.opts.Instance.Name
}

// makeBridge, or find it. It says nothing for itself: its own port is never up.
func (s *Switch) makeBridge(ctx context.Context) error {
	name := s.opts.Instance.Bridge()
	have, err := s.row(ctx, "Bridge", name)
	if err != nil {
		return err
	}
	if have != nil {
		if !s.ours(have) {
			return fmt.Errorf("bridge %s is in the way: Open vSwitch has one of that name that is not this Weir's; rename it, or use another instance name", name)
		}
		if have.Text("fail_mode") == "secure" && have.Text("datapath_type") == s.state.Datapath {
			return nil
		}
		_, err := s.change(ctx, ovsdb.Update{Table: "Bridge", Where: named(name), Row: ovsdb.Row{"fail_mode": "secure", "datapath_type": s.state.Datapath}})
		return err
	}
	if l, err := s.nl.LinkByName(name); err == nil {
		return fmt.Errorf("interface %s (%s, alias %q) is in the way of the switch's bridge; rename it, or use another instance name", name, l.Type(), l.Attrs().Alias)
	} else if !hostlink.Missing(err) {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if _, err := s.change(ctx, s.bridgeOps(name)...); err != nil {
		return fmt.Errorf("make bridge %s: %w", name, err)
	}
	return nil
}

func (s *Switch) bridgeOps(name string) []ovsdb.Op {
	mac := flow.MAC(s.opts.Instance.MAC("bridge"))
	limits := ovsdb.Map{}
	var ops []ovsdb.Op
	for _, table := range []uint8{tableMACs, tableSources, tableExits} {
		id := fmt.Sprint("t", table)
		ops = append(ops, ovsdb.Insert{Table: "Flow_Table", Name: id, Row: ovsdb.Row{"name": tableNames[table], "flow_limit": int64(s.opts.Learned), "overflow_policy": "evict"}})
		limits[int64(table)] = ovsdb.NamedUUID(id)
	}
	ops = append(ops,
		ovsdb.Insert{Table: "Interface", Name: "i", Row: ovsdb.Row{"name": name, "type": "internal"}},
		ovsdb.Insert{Table: "Port", Name: "p", Row: ovsdb.Row{"name": name, "interfaces": ovsdb.NamedUUID("i")}},
		ovsdb.Insert{Table: "Bridge", Name: "b", Row: ovsdb.Row{"name": name, "ports": ovsdb.NamedUUID("p"), "datapath_type": s.state.Datapath, "fail_mode": "secure",
			"protocols": []string{"OpenFlow10", "OpenFlow13", "OpenFlow14", "OpenFlow15"}, "external_ids": s.marks("bridge"), "flow_tables": limits,
			"other_config": map[string]string{"hwaddr": mac.String(), "disable-in-band": "true"}}},
		ovsdb.Mutate{Table: "Open_vSwitch", Mutations: []ovsdb.Mutation{{Column: "bridges", Mutator: ovsdb.Put, Value: ovsdb.NamedUUID("b")}}})
	if s.procs != nil { // of the host's own these are its owner's affair
		ops = append(ops, ovsdb.Mutate{Table: "Open_vSwitch", Mutations: []ovsdb.Mutation{{Column: "other_config", Mutator: ovsdb.Put,
			Value: map[string]string{"vlan-limit": "2", "n-handler-threads": "1", "n-revalidator-threads": "1"}}}})
	}
	return ops
}

var tableNames = map[uint8]string{tableMACs: "weir-macs", tableSources: "weir-sources", tableExits: "weir-exits"}

// restorePorts compares records and database: a port without a record is taken out, a record without a port is plugged again.
func (s *Switch) restorePorts(ctx context.Context) error {
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	res, err := db.Transact(ctx, database, ovsdb.Select{Table: "Interface", Columns: []string{"name", "external_ids", "ofport"},
		Where: []ovsdb.Condition{{Column: "external_ids", Test: ovsdb.Includes, Value: ovsdb.Map{markInstance: s.opts.Instance.Name}}}})
	if err != nil {
		return err
	}
	plugged := map[string]bool{}
	for _, r := range res[0].Rows {
		name := r.Text("name")
		if p := s.byName[r.Texts("external_ids")[markObject]]; p != nil && p.Link == name {
			n, ok := r.Int("ofport")
			plugged[p.Name] = ok && flow.Port(n) == p.Number
			continue
		}
		if err := s.unplug(ctx, name); err != nil {
			return err
		}
	}
	var missing []*port
	for _, p := range s.world(&s.rules).sorted() {
		if plugged[p.Name] || p.E.Held {
			continue
		}
		if _, err := s.home.Link(p.Link); errors.Is(err, netns.ErrNoLink) {
			continue // whoever makes it again adds it again
		}
		missing = append(missing, p)
	}
	if err := s.plug(ctx, missing...); err != nil {
		return err
	}
	return s.restoreProcesses()
}

// Datapath in use, "system" or "netdev".
func (s *Switch) Datapath() string { return s.state.Datapath }
