package ovs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/flow"
	"weir.dev/weir/ovsdb"
)

// bridge is the switch's bridge, with its ports, in Open vSwitch's configuration.
type bridge struct {
	home      *home.Home
	opts      *Options
	state     *state
	config    *config
	processes *processes
}

// make the bridge, or find it. It says nothing for itself: its own port is never up.
func (b *bridge) make(ctx context.Context) error {
	name := b.home.Instance.Bridge()
	have, err := b.config.row(ctx, "Bridge", name)
	if err != nil {
		return err
	}
	if have != nil {
		if !b.config.ours(have) {
			return fmt.Errorf("bridge %s is in the way: Open vSwitch has one of that name that is not this Weir's; rename it, or use another instance name", name)
		}
		if have.Text("fail_mode") == "secure" && have.Text("datapath_type") == b.state.Datapath {
			return nil
		}
		_, err := b.config.change(ctx, ovsdb.Update{Table: "Bridge", Where: named(name), Row: ovsdb.Row{"fail_mode": "secure", "datapath_type": b.state.Datapath}})
		return err
	}
	if l, err := b.home.NL.LinkByName(name); err == nil {
		return fmt.Errorf("interface %s (%s, alias %q) is in the way of the switch's bridge; rename it, or use another instance name", name, l.Type(), l.Attrs().Alias)
	} else if !hostlink.Missing(err) {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if _, err := b.config.change(ctx, b.ops(name)...); err != nil {
		return fmt.Errorf("make bridge %s: %w", name, err)
	}
	return nil
}

// ops that make the bridge.
func (b *bridge) ops(name string) []ovsdb.Op {
	mac := flow.MAC(b.home.Instance.MAC("bridge"))
	limits := ovsdb.Map{}
	var ops []ovsdb.Op
	for _, table := range []uint8{tableMACs, tableSources, tableExits} {
		id := fmt.Sprint("t", table)
		ops = append(ops, ovsdb.Insert{Table: "Flow_Table", Name: id, Row: ovsdb.Row{"name": tableNames[table], "flow_limit": int64(b.opts.Learned), "overflow_policy": "evict"}})
		limits[int64(table)] = ovsdb.NamedUUID(id)
	}
	ops = append(ops,
		ovsdb.Insert{Table: "Interface", Name: "i", Row: ovsdb.Row{"name": name, "type": "internal"}},
		ovsdb.Insert{Table: "Port", Name: "p", Row: ovsdb.Row{"name": name, "interfaces": ovsdb.NamedUUID("i")}},
		ovsdb.Insert{Table: "Bridge", Name: "b", Row: ovsdb.Row{"name": name, "ports": ovsdb.NamedUUID("p"), "datapath_type": b.state.Datapath, "fail_mode": "secure",
			"protocols": []string{"OpenFlow10", "OpenFlow13", "OpenFlow14", "OpenFlow15"}, "external_ids": b.config.marks("bridge"), "flow_tables": limits,
			"other_config": map[string]string{"hwaddr": mac.String(), "disable-in-band": "true"}}},
		ovsdb.Mutate{Table: "Open_vSwitch", Mutations: []ovsdb.Mutation{{Column: "bridges", Mutator: ovsdb.Put, Value: ovsdb.NamedUUID("b")}}})
	if b.processes.own != nil { // of the host's own these are its owner's affair
		ops = append(ops, ovsdb.Mutate{Table: "Open_vSwitch", Mutations: []ovsdb.Mutation{{Column: "other_config", Mutator: ovsdb.Put,
			Value: map[string]string{"vlan-limit": "2", "n-handler-threads": "1", "n-revalidator-threads": "1"}}}})
	}
	return ops
}

var tableNames = map[uint8]string{tableMACs: "weir-macs", tableSources: "weir-sources", tableExits: "weir-exits"}

// plug makes links ports of the bridge under their numbers.
func (b *bridge) plug(ctx context.Context, ports ...*port) error {
	wait, err := b.beginPlug(ctx, ports)
	if err != nil {
		return err
	}
	if err := wait(ctx); err != nil {
		return err
	}
	return b.plugged(ctx, ports)
}

// beginPlug changes the database; wait, which needs no lock, returns when ovs-vswitchd has carried it out.
func (b *bridge) beginPlug(ctx context.Context, ports []*port) (wait func(context.Context) error, err error) {
	have, err := b.config.interfaces(ctx, ports)
	if err != nil {
		return nil, err
	}
	var ops []ovsdb.Op
	for i, p := range ports {
		if r := have[i]; r != nil {
			if !b.config.ours(r) {
				return nil, fmt.Errorf("interface %s belongs to a bridge of Open vSwitch: take it out there first (ovs-vsctl del-port %s)", p.Link, p.Link)
			}
			if n, ok := r.Int("ofport"); ok && flow.Port(n) == p.Number && r.Texts("external_ids")[markObject] == p.Name {
				continue
			}
			if err := b.unplug(ctx, p.Link); err != nil {
				return nil, err
			}
		}
		iface, id := fmt.Sprint("i", p.Number), fmt.Sprint("p", p.Number)
		ops = append(ops,
			ovsdb.Insert{Table: "Interface", Name: iface, Row: ovsdb.Row{"name": p.Link, "ofport_request": int64(p.Number), "external_ids": b.config.marks(p.Name)}},
			ovsdb.Insert{Table: "Port", Name: id, Row: ovsdb.Row{"name": p.Link, "interfaces": ovsdb.NamedUUID(iface), "external_ids": b.config.marks(p.Name)}},
			ovsdb.Mutate{Table: "Bridge", Where: named(b.home.Instance.Bridge()), Mutations: []ovsdb.Mutation{{Column: "ports", Mutator: ovsdb.Put, Value: ovsdb.NamedUUID(id)}}})
	}
	if len(ops) == 0 {
		return func(context.Context) error { return nil }, nil
	}
	if _, wait, err = b.config.begin(ctx, ops...); err != nil {
		return nil, fmt.Errorf("make %s and %d more ports of %s: %w", ports[0].Link, len(ports)-1, b.home.Instance.Bridge(), err)
	}
	return wait, nil
}

// plugged: Open vSwitch has given every port its number. Ports that have another are taken out again.
func (b *bridge) plugged(ctx context.Context, ports []*port) error {
	have, err := b.config.interfaces(ctx, ports)
	if err != nil {
		return err
	}
	var errs []error
	for i, p := range ports {
		n, ok := have[i].Int("ofport")
		if ok && flow.Port(n) == p.Number {
			continue
		}
		errs = append(errs, fmt.Errorf("make %s a port of %s: Open vSwitch gave it number %d, not %d: %s",
			p.Link, b.home.Instance.Bridge(), n, p.Number, have[i].Text("error")), b.unplug(ctx, p.Link))
	}
	b.processes.widen()
	return errors.Join(errs...)
}

// unplug takes links out of the bridge. Unknown, or not ours: nil.
func (b *bridge) unplug(ctx context.Context, links ...string) error {
	wait, err := b.beginUnplug(ctx, links...)
	if err != nil {
		return err
	}
	return wait(ctx)
}

// beginUnplug changes the database; wait, which needs no lock, returns when ovs-vswitchd has carried it out.
func (b *bridge) beginUnplug(ctx context.Context, links ...string) (wait func(context.Context) error, err error) {
	var ids []ovsdb.UUID
	for _, link := range links {
		have, err := b.config.row(ctx, "Port", link)
		if err != nil {
			return nil, err
		}
		if b.config.ours(have) {
			ids = append(ids, have.UUIDs("_uuid")...)
		}
	}
	if len(ids) == 0 {
		return func(context.Context) error { return nil }, nil
	}
	_, wait, err = b.config.begin(ctx, ovsdb.Mutate{Table: "Bridge", Where: named(b.home.Instance.Bridge()),
		Mutations: []ovsdb.Mutation{{Column: "ports", Mutator: ovsdb.Take, Value: ids}}})
	if err != nil {
		return nil, fmt.Errorf("take %s out of %s: %w", strings.Join(links, ", "), b.home.Instance.Bridge(), err)
	}
	return wait, nil
}

// remove the bridge from the host's Open vSwitch, if it is this Weir's. One that runs no more has to be started to be rid of it.
func (b *bridge) remove(ctx context.Context) error {
	if path := b.state.OVSDB[len("unix:"):]; b.state.Datapath == "" {
		if _, err := os.Stat(path); err != nil {
			return nil // no record of a bridge, and no Open vSwitch
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	have, err := b.config.row(ctx, "Bridge", b.home.Instance.Bridge())
	if err != nil || !b.config.ours(have) {
		return err
	}
	_, err = b.config.change(ctx, ovsdb.Mutate{Table: "Open_vSwitch", Mutations: []ovsdb.Mutation{{Column: "bridges", Mutator: ovsdb.Take, Value: have.UUIDs("_uuid")}}})
	if err != nil {
		return fmt.Errorf("remove bridge %s: %w", b.home.Instance.Bridge(), err)
	}
	return nil
}
