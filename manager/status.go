package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/store"
)

// newsRoutes are the paths of news.
func (m *Manager) newsRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/status", limit: maxReport, id: "report", quiet: true, summary: "an agent's news of many objects, in one transaction",
			body: api.StatusReport{}, answers: map[int]any{204: nil}, problems: []int{400, 403, 413, 415, 422, 507}, handler: m.report},
		{method: "POST", path: "/v1/fabric", limit: maxBody, id: "fabric", quiet: true, summary: "the router's news of switches, assignments, and what crosses hosts, in one transaction",
			body: api.FabricReport{}, answers: map[int]any{204: nil}, problems: []int{400, 403, 422, 507}, handler: m.fabric},
	}
}

// maxReportEvents bounds the events of one report.
const maxReportEvents = 1000

// report takes an agent's news. Only what differs is written, in one transaction.
func (m *Manager) report(w http.ResponseWriter, r *http.Request) error {
	var req api.StatusReport
	if err := readBody(w, r, &req); err != nil {
		return err
	}
	if req.Host == "" && (req.HostState != nil || req.Assigned != nil) {
		return api.Refuse(http.StatusUnprocessableEntity, "a host's status without its name", api.Problem{Path: "host", Message: "is empty"})
	}
	if err := mayReport(r, req); err != nil {
		return err
	}
	_, remote := agentOf(r.Context())
	events, dropped := m.rates.admit(req.Host, remote, req.Events, m.Now())
	err := m.tell(r.Context(), len(req.Events), func(n *news) error {
		n.reporter = req.Host
		err := errors.Join(m.agentNews(r.Context(), n, req), n.hostEvents(req.Host, remote, events))
		n.told = append(n.told, dropped...)
		return err
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// tell gathers news and commits them; when someone else was faster, all over again. Then placements are looked at anew, if the news make that necessary.
func (m *Manager) tell(ctx context.Context, events int, gather func(*news) error) error {
	if events > maxReportEvents {
		return api.Refuse(http.StatusUnprocessableEntity, fmt.Sprintf("%d events in one report: want at most %d", events, maxReportEvents))
	}
	var n *news
	_, err := m.writer.loop(ctx, "objects", func() (change, error) {
		n = &news{m: m, changed: map[ref]*object{}}
		if err := gather(n); err != nil {
			return change{}, err
		}
		return n.change(ctx)
	})
	if err == nil && n.unsettle {
		err = m.resettle(ctx)
	}
	return err
}

// news is a report on its way into a transaction.
type news struct {
	m       *Manager
	conds   []store.Cond
	ops     []store.Op
	told    []api.Event
	changed map[ref]*object // nil: removed
	// reporter is the host whose news these are; what is not its own is left out. "": nobody checks.
	reporter string
	router   bool // these are the router's
	where    *whereabouts
	several  bool     // there are several hosts: what concerns more than one of them is not one agent's to tell
	turned   []string // functions whose health or state is another now
	unsettle bool     // a host is new, or back; a switch is new, or gone: look at all placements
}

func endpointGone(s api.EndpointStatus) bool { return s.State == api.EndpointDeleted }
func functionGone(s api.FunctionStatus) bool { return s.State == api.FunctionDeleted }
func policyGone(s api.PolicyStatus) bool     { return s.State == api.PolicyDeleted }

func (m *Manager) agentNews(ctx context.Context, n *news, req api.StatusReport) error {
	hosts, err := m.Store.Count(ctx, store.Prefix(api.KindHost))
	if err != nil {
		return err
	}
	n.several = hosts > 1
	n.where = n.lookup(ctx, len(req.Policies)+len(req.Chains)+len(req.Events))
	return errors.Join(
		statuses(ctx, n, api.KindEndpoint, req.Endpoints, endpointGone),
		statuses(ctx, n, api.KindFunction, req.Functions, functionGone),
		statuses(ctx, n, api.KindChain, req.Chains, nil),
		statuses(ctx, n, api.KindPolicy, req.Policies, policyGone),
		n.crossing(ctx),
		n.host(ctx, req.Host, req.HostState),
		n.assigned(ctx, req.Host, req.Assigned),
	)
}

// change is what the news come to, the operations that they move on included.
func (n *news) change(ctx context.Context) (change, error) {
	c := change{conds: n.conds, ops: n.ops, events: n.told}
	if len(n.changed) == 0 {
		return c, nil
	}
	conds, ops, err := followUp(ctx, n.m.Store, n.changed, n.m.Now().UTC())
	c.conds, c.ops = append(c.conds, conds...), append(c.ops, ops...)
	return c, err
}

// statuses adds the statuses that differ. gone tells whether an object that is being deleted is down.
func statuses[S any](ctx context.Context, n *news, kind api.Kind, in map[string]S, gone func(S) bool) error {
	cur, err := n.read(ctx, kind, slices.Sorted(maps.Keys(in)))
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(in)) {
		o, s := cur[name], in[name]
		if o == nil {
			continue
		}
		mine, err := n.owns(kind, o)
		if err != nil {
			return err
		}
		if !mine {
			continue
		}
		switch now := any(&s).(type) {
		case *api.FunctionStatus:
			n.note(o, *now)
			now.Conditions = n.dated(o, now.Conditions)
		case *api.ChainStatus:
			now.Conditions = n.dated(o, now.Conditions)
		case *api.EndpointStatus:
			now.Conditions = n.dated(o, now.Conditions)
		case *api.PolicyStatus:
			now.Conditions = n.dated(o, now.Conditions)
		}
		if o.Deleting != nil && gone != nil && gone(s) {
			n.conds = append(n.conds, store.Cond{Key: store.Key(kind, name), Revision: o.Revision})
			n.ops = append(n.ops, store.Delete(kind, name))
			n.changed[ref{kind, name}] = nil
			continue
		}
		if err := n.put(kind, o, marshal(s)); err != nil {
			return err
		}
	}
	return nil
}

// maxConditions of an object. There are fewer types.
const maxConditions = 16

// dated gives conditions the times since when they hold.
func (n *news) dated(o *object, now api.Conditions) api.Conditions {
	return datedAfter(o, now, n.m.Now().UTC())
}

func (n *news) read(ctx context.Context, kind api.Kind, names []string) (map[string]*object, error) {
	out := make(map[string]*object, len(names))
	if len(names) >= manyStatuses {
		list, _, err := store.List[object](ctx, n.m.Store, kind)
		for i := range list {
			out[list[i].Name] = &list[i]
		}
		return out, err
	}
	for _, name := range names {
		o, err := store.Get[object](ctx, n.m.Store, kind, name)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out[name] = &o
	}
	return out, nil
}

// put adds an object's new status, if it differs.
func (n *news) put(kind api.Kind, o *object, status json.RawMessage) error {
	if string(o.Status) == string(status) {
		return nil
	}
	o.Status = status
	o.Updated = n.m.Now().UTC()
	op, err := store.Put(kind, o)
	if err != nil {
		return err
	}
	n.conds = append(n.conds, store.Cond{Key: op.Key, Revision: o.Revision})
	n.ops = append(n.ops, op)
	n.changed[ref{kind, o.Name}] = o
	return nil
}

// host adds a host's status; the host appears with its first.
func (n *news) host(ctx context.Context, name string, s *api.HostStatus) error {
	if s == nil {
		return nil
	}
	if err := checkName(api.KindHost, name); err != nil {
		return err
	}
	o, err := store.Get[object](ctx, n.m.Store, api.KindHost, name)
	if errors.Is(err, store.ErrNotFound) {
		o = *newObject(nounOf(api.KindHost), name, marshal(api.HostSpec{}), n.m.Now())
	} else if err != nil {
		return err
	}
	var old api.HostStatus
	if json.Unmarshal(o.Status, &old) == nil && old.State == api.HostLost && s.State != api.HostLost {
		n.unsettle = true
		n.told = append(n.told, hostBack(name, n.m.Now().Sub(o.Updated)))
	}
	n.unsettle = n.unsettle || o.Revision == 0
	_, remote := agentOf(ctx)
	if remote && o.Revision == 0 {
		if err := n.declared(ctx, &o); err != nil {
			return err
		}
	}
	var spec api.HostSpec
	if err := json.Unmarshal(o.Spec, &spec); err != nil {
		return fmt.Errorf("stored host %s: %w", name, err)
	}
	counted := *s
	if count(spec, old, &counted, remote) {
		n.told = append(n.told, claimsMore(name, &counted))
	}
	counted.Conditions = hostConditions(name, &counted).Dated(old.Conditions, n.m.Now().UTC())
	return n.put(api.KindHost, &o, marshal(counted))
}

// declared gives a new host the capacity that its join token named.
func (n *news) declared(ctx context.Context, o *object) error {
	rec, err := store.Get[member](ctx, n.m.Store, kindMember, o.Name)
	if err == nil && rec.Declared != (api.HostSpec{}) {
		o.Spec = marshal(rec.Declared)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
