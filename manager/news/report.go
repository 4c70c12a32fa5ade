package news

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// Intake takes the news of agents and of the router.
type Intake struct {
	*tx.Writer
	Host     string                          // whose agent runs in this process, "" none
	Resettle func(ctx context.Context) error // looks at all placements anew

	rates eventRates
}

// Routes are the paths of news.
func (in *Intake) Routes() []web.Route {
	return []web.Route{
		{Method: "POST", Path: "/v1/status", Limit: web.MaxReport, ID: "report", Quiet: true, Summary: "an agent's news of many objects, in one transaction",
			Body: api.StatusReport{}, Answers: map[int]any{204: nil}, Problems: []int{400, 403, 413, 415, 422, 507}, Handler: in.report},
		{Method: "POST", Path: "/v1/fabric", Limit: web.MaxBody, ID: "fabric", Quiet: true, Summary: "the router's news of switches, assignments, and what crosses hosts, in one transaction",
			Body: api.FabricReport{}, Answers: map[int]any{204: nil}, Problems: []int{400, 403, 422, 507}, Handler: in.fabric},
	}
}

// maxReportEvents bounds the events of one report.
const maxReportEvents = 1000

// report takes an agent's news. Only what differs is written, in one transaction.
func (in *Intake) report(w http.ResponseWriter, r *http.Request) error {
	var req api.StatusReport
	if err := web.ReadBody(w, r, &req); err != nil {
		return err
	}
	if req.Host == "" && (req.HostState != nil || req.Assigned != nil) {
		return api.Refuse(http.StatusUnprocessableEntity, "a host's status without its name", api.Problem{Path: "host", Message: "is empty"})
	}
	if err := mayReport(r, req); err != nil {
		return err
	}
	_, remote := web.AgentOf(r.Context())
	events, dropped := in.rates.admit(req.Host, remote, req.Events, in.Now())
	err := in.tell(r.Context(), len(req.Events), func(n *news) error {
		n.reporter = req.Host
		err := errors.Join(in.agentNews(r.Context(), n, req), n.hostEvents(req.Host, remote, events))
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
func (in *Intake) tell(ctx context.Context, events int, gather func(*news) error) error {
	if events > maxReportEvents {
		return api.Refuse(http.StatusUnprocessableEntity, fmt.Sprintf("%d events in one report: want at most %d", events, maxReportEvents))
	}
	var n *news
	_, err := in.Loop(ctx, "objects", func() (tx.Change, error) {
		n = &news{in: in, changed: map[object.Ref]*object.Object{}}
		if err := gather(n); err != nil {
			return tx.Change{}, err
		}
		return n.change(ctx)
	})
	if err == nil && n.unsettle {
		err = in.Resettle(ctx)
	}
	return err
}

// news is a report on its way into a transaction.
type news struct {
	in      *Intake
	conds   []store.Cond
	ops     []store.Op
	told    []api.Event
	changed map[object.Ref]*object.Object // nil: removed
	// reporter is the host whose news these are; what is not its own is left out. "": nobody checks.
	reporter string
	router   bool // these are the router's
	where    *object.Places
	several  bool     // there are several hosts: what concerns more than one of them is not one agent's to tell
	turned   []string // functions whose health or state is another now
	unsettle bool     // a host is new, or back; a switch is new, or gone: look at all placements
}

func endpointGone(s api.EndpointStatus) bool { return s.State == api.EndpointDeleted }
func functionGone(s api.FunctionStatus) bool { return s.State == api.FunctionDeleted }
func policyGone(s api.PolicyStatus) bool     { return s.State == api.PolicyDeleted }

func (in *Intake) agentNews(ctx context.Context, n *news, req api.StatusReport) error {
	hosts, err := in.Store.Count(ctx, store.Prefix(api.KindHost))
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
func (n *news) change(ctx context.Context) (tx.Change, error) {
	c := tx.Change{Conds: n.conds, Ops: n.ops, Events: n.told}
	if len(n.changed) == 0 {
		return c, nil
	}
	conds, ops, err := object.FollowUp(ctx, n.in.Store, n.changed, n.in.Now().UTC())
	c.Conds, c.Ops = append(c.Conds, conds...), append(c.Ops, ops...)
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
			n.changed[object.Ref{Kind: kind, Name: name}] = nil
			continue
		}
		if err := n.put(kind, o, object.Marshal(s)); err != nil {
			return err
		}
	}
	return nil
}

// dated gives conditions the times since when they hold.
func (n *news) dated(o *object.Object, now api.Conditions) api.Conditions {
	return object.DatedAfter(o, now, n.in.Now().UTC())
}

func (n *news) read(ctx context.Context, kind api.Kind, names []string) (map[string]*object.Object, error) {
	out := make(map[string]*object.Object, len(names))
	if len(names) >= manyStatuses {
		list, _, err := store.List[object.Object](ctx, n.in.Store, kind)
		for i := range list {
			out[list[i].Name] = &list[i]
		}
		return out, err
	}
	for _, name := range names {
		o, err := store.Get[object.Object](ctx, n.in.Store, kind, name)
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
func (n *news) put(kind api.Kind, o *object.Object, status json.RawMessage) error {
	if string(o.Status) == string(status) {
		return nil
	}
	o.Status = status
	o.Updated = n.in.Now().UTC()
	op, err := store.Put(kind, o)
	if err != nil {
		return err
	}
	n.conds = append(n.conds, store.Cond{Key: op.Key, Revision: o.Revision})
	n.ops = append(n.ops, op)
	n.changed[object.Ref{Kind: kind, Name: o.Name}] = o
	return nil
}

// host adds a host's status; the host appears with its first.
func (n *news) host(ctx context.Context, name string, s *api.HostStatus) error {
	if s == nil {
		return nil
	}
	if err := object.CheckName(api.KindHost, name); err != nil {
		return err
	}
	o, err := store.Get[object.Object](ctx, n.in.Store, api.KindHost, name)
	if errors.Is(err, store.ErrNotFound) {
		o = *object.New(object.NounOf(api.KindHost), name, object.Marshal(api.HostSpec{}), n.in.Now())
	} else if err != nil {
		return err
	}
	var old api.HostStatus
	if json.Unmarshal(o.Status, &old) == nil && old.State == api.HostLost && s.State != api.HostLost {
		n.unsettle = true
		n.told = append(n.told, members.HostBack(name, n.in.Now().Sub(o.Updated)))
	}
	n.unsettle = n.unsettle || o.Revision == 0
	_, remote := web.AgentOf(ctx)
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
	if members.Count(spec, old, &counted, remote) {
		n.told = append(n.told, members.ClaimsMore(name, &counted))
	}
	counted.Conditions = members.Conditions(name, &counted).Dated(old.Conditions, n.in.Now().UTC())
	return n.put(api.KindHost, &o, object.Marshal(counted))
}

// declared gives a new host the capacity that its join token named.
func (n *news) declared(ctx context.Context, o *object.Object) error {
	rec, err := store.Get[members.Member](ctx, n.in.Store, members.Kind, o.Name)
	if err == nil && rec.Declared != (api.HostSpec{}) {
		o.Spec = object.Marshal(rec.Declared)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
