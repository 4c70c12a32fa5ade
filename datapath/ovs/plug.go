package ovs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
	"weir.dev/weir/ovsdb"
)

// joiner is a function whose links are about to become ports.
type joiner struct {
	fn   *function
	done chan error // takes one
}

// errRemoved says that a function was removed, or added anew, while its links were becoming ports.
var errRemoved = errors.New("removed or added anew meanwhile")

// join makes a function's links ports, together with those of all functions that come while ovs-vswitchd is busy: each change of its ports costs
// it a look at all of them, so that many functions one by one take a time that grows with their number's square. Under the lock; what
// becomes of it is told later, when the lock is not held.
func (s *Switch) join(fn *function) <-chan error {
	j := &joiner{fn, make(chan error, 1)}
	fn.joining = true
	s.joiners = append(s.joiners, j)
	if !s.joining {
		s.joining = true
		s.done.Go(s.joinAll)
	}
	return j.done
}

// joinAll works until nobody wants to join any more.
func (s *Switch) joinAll() {
	for {
		s.mu.Lock()
		batch := s.joiners
		s.joiners = nil
		s.joining = len(batch) > 0
		s.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		if err := s.joinBatch(batch); err == nil || len(batch) == 1 {
			tell(batch, err)
			continue
		}
		for i := range batch { // one's trouble is not the others'
			tell(batch[i:i+1], s.joinBatch(batch[i:i+1]))
		}
	}
}

func tell(batch []*joiner, err error) {
	for _, j := range batch {
		j.done <- err
	}
}

// joinBatch makes the links of functions ports, by one bundle of entries and one change of the database. Of two or more: all, or an error.
func (s *Switch) joinBatch(batch []*joiner) error {
	leave, err := s.enterReady(s.work)
	if err != nil {
		return err
	}
	ports, wait, err := s.beginJoin(s.work, batch)
	leave()
	if err != nil {
		return err
	}
	if err := wait(s.work); err != nil {
		return err
	}
	if leave, err = s.enter(s.work); err != nil {
		return err
	}
	defer leave()
	if err := s.plugged(s.work, ports); err != nil {
		return err
	}
	for _, j := range batch {
		if s.fns[j.fn.F.Name] != j.fn {
			return errRemoved
		}
		if err := s.store.Write(record.File("function", j.fn.F.Name), j.fn); err != nil {
			return err
		}
		j.fn.joining = false
	}
	return nil
}

// beginJoin does what needs the lock; wait does not.
func (s *Switch) beginJoin(ctx context.Context, batch []*joiner) (ports []*port, wait func(context.Context) error, err error) {
	for _, j := range batch {
		if s.fns[j.fn.F.Name] != j.fn {
			return nil, nil, errRemoved
		}
		ports = append(ports, j.fn.Ports...)
	}
	if err := s.refresh(ctx); err != nil { // the entries first: no frame of a port without
		return nil, nil, err
	}
	wait, err = s.beginPlug(ctx, ports)
	return ports, wait, err
}

// plug makes links ports of the bridge under their numbers.
func (s *Switch) plug(ctx context.Context, ports ...*port) error {
	wait, err := s.beginPlug(ctx, ports)
	if err != nil {
		return err
	}
	if err := wait(ctx); err != nil {
		return err
	}
	return s.plugged(ctx, ports)
}

// beginPlug changes the database; wait, which needs no lock, returns when ovs-vswitchd has carried it out.
func (s *Switch) beginPlug(ctx context.Context, ports []*port) (wait func(context.Context) error, err error) {
	have, err := s.interfaces(ctx, ports)
	if err != nil {
		return nil, err
	}
	var ops []ovsdb.Op
	for i, p := range ports {
		if r := have[i]; r != nil {
			if !s.ours(r) {
				return nil, fmt.Errorf("interface %s belongs to a bridge of Open vSwitch: take it out there first (ovs-vsctl del-port %s)", p.Link, p.Link)
			}
			if n, ok := r.Int("ofport"); ok && flow.Port(n) == p.Number && r.Texts("external_ids")[markObject] == p.Name {
				continue
			}
			if err := s.unplug(ctx, p.Link); err != nil {
				return nil, err
			}
		}
		iface, id := fmt.Sprint("i", p.Number), fmt.Sprint("p", p.Number)
		ops = append(ops,
			ovsdb.Insert{Table: "Interface", Name: iface, Row: ovsdb.Row{"name": p.Link, "ofport_request": int64(p.Number), "external_ids": s.marks(p.Name)}},
			ovsdb.Insert{Table: "Port", Name: id, Row: ovsdb.Row{"name": p.Link, "interfaces": ovsdb.NamedUUID(iface), "external_ids": s.marks(p.Name)}},
			ovsdb.Mutate{Table: "Bridge", Where: named(s.opts.Instance.Bridge()), Mutations: []ovsdb.Mutation{{Column: "ports", Mutator: ovsdb.Put, Value: ovsdb.NamedUUID(id)}}})
	}
	if len(ops) == 0 {
		return func(context.Context) error { return nil }, nil
	}
	if _, wait, err = s.begin(ctx, ops...); err != nil {
		return nil, fmt.Errorf("make %s and %d more ports of %s: %w", ports[0].Link, len(ports)-1, s.opts.Instance.Bridge(), err)
	}
	return wait, nil
}

// interfaces are the database's rows of ports' links, nil where there is none.
func (s *Switch) interfaces(ctx context.Context, ports []*port) ([]ovsdb.Row, error) {
	db, err := s.database(ctx)
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

// plugged: Open vSwitch has given every port its number. Ports that have another are taken out again.
func (s *Switch) plugged(ctx context.Context, ports []*port) error {
	have, err := s.interfaces(ctx, ports)
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
			p.Link, s.opts.Instance.Bridge(), n, p.Number, have[i].Text("error")), s.unplug(ctx, p.Link))
	}
	s.widen()
	return errors.Join(errs...)
}

// queue is the receive buffer of a port of a user-space switch, in bytes: some 20,000 small frames, 2 s of 10,000 a second. It bounds
// how long the switch may wait for a processor without losing any.
const queue = 8 << 20

// widen the receive queues of the ports of private processes; the host's own Open vSwitch is its owner's affair. Without, more frames are lost
// on a busy machine, so trouble with it is only told.
func (s *Switch) widen() {
	if s.procs == nil || s.state.Datapath != netdev {
		return
	}
	if err := s.procs.Widen(queue); err != nil {
		s.log.Warn("receive queues of Open vSwitch stay short: a busy machine will lose frames", "error", err)
	}
}

// unplug takes links out of the bridge. Unknown, or not ours: nil.
func (s *Switch) unplug(ctx context.Context, links ...string) error {
	wait, err := s.beginUnplug(ctx, links...)
	if err != nil {
		return err
	}
	return wait(ctx)
}

// beginUnplug changes the database; wait, which needs no lock, returns when ovs-vswitchd has carried it out.
func (s *Switch) beginUnplug(ctx context.Context, links ...string) (wait func(context.Context) error, err error) {
	var ids []ovsdb.UUID
	for _, link := range links {
		have, err := s.row(ctx, "Port", link)
		if err != nil {
			return nil, err
		}
		if s.ours(have) {
			ids = append(ids, have.UUIDs("_uuid")...)
		}
	}
	if len(ids) == 0 {
		return func(context.Context) error { return nil }, nil
	}
	_, wait, err = s.begin(ctx, ovsdb.Mutate{Table: "Bridge", Where: named(s.opts.Instance.Bridge()),
		Mutations: []ovsdb.Mutation{{Column: "ports", Mutator: ovsdb.Take, Value: ids}}})
	if err != nil {
		return nil, fmt.Errorf("take %s out of %s: %w", strings.Join(links, ", "), s.opts.Instance.Bridge(), err)
	}
	return wait, nil
}
