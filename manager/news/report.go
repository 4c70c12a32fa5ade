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
	"weir.dev/weir/manager/bounded"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// Options are what an Intake needs.
type Options struct {
	*tx.Writer
	Host     string                          // whose agent runs in this process, "" none
	Resettle func(ctx context.Context) error // looks at all placements anew
}

// Intake takes the news of agents and of the router.
type Intake struct {
	Options
	rates eventRates
}

// New makes an Intake.
func New(o Options) *Intake {
	return &Intake{Options: o, rates: eventRates{
		Rates: bounded.Rates[rateKey]{Burst: eventBurst, Refill: eventRefill, Max: maxRates}, own: bounded.Rates[rateKey]{Burst: ownBurst, Refill: ownRefill, Max: maxRates}, dropped: map[rateKey]drops{},
	}}
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
	events, dropped := in.rates.admit(req.Host, remote, req.Events, func(function string) bool { return !remote || in.placedAt(r.Context(), req.Host, function) }, in.Now())
	err := in.tell(r.Context(), len(req.Events), func(n *news) error {
		n.reporter = req.Host
		err := errors.Join(in.agentNews(r.Context(), n, req), n.hostEvents(r.Context(), req.Host, remote, events))
		n.Events = append(n.Events, dropped...)
		return err
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// placedAt tells whether a function is a host's.
func (in *Intake) placedAt(ctx context.Context, host, function string) bool {
	o, err := store.Get[object.Object](ctx, in.Store, api.KindFunction, function)
	return err == nil && o.At() == host
}

// tell gathers news and commits them; when someone else was faster, all over again. Then placements are looked at anew, if the news make that necessary.
func (in *Intake) tell(ctx context.Context, events int, gather func(*news) error) error {
	if events > maxReportEvents {
		return api.Refuse(http.StatusUnprocessableEntity, fmt.Sprintf("%d events in one report: want at most %d", events, maxReportEvents))
	}
	var n *news
	_, err := in.Loop(ctx, "objects", func() (tx.Change, error) {
		n = in.begin()
		if err := gather(n); err != nil {
			return tx.Change{}, err
		}
		return n.change(ctx)
	})
	if err == nil && n.placeAll {
		err = in.Resettle(ctx)
	}
	return err
}

// news is a report on its way into a transaction.
type news struct {
	tx.Change
	in      *Intake
	known   map[api.Kind]map[string]*object.Object // as they are in the store, each read once; nil: there is none
	all     map[api.Kind]bool                      // kinds of which all are known
	changed map[object.Ref]*object.Object          // nil: removed
	// reporter is the host whose news these are; what is not its own is left out. "": nobody checks.
	reporter string
	router   bool     // these are the router's
	many     bool     // of them: objects are read a kind at a time
	several  bool     // there are several hosts: what concerns more than one of them is not one agent's to tell
	turned   []string // functions whose health or state is another now
	placeAll bool     // a host is new, or back; a switch is new, or gone: look at all placements
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
	n.many = len(req.Policies)+len(req.Chains)+len(req.Events) >= manyStatuses
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

func (in *Intake) begin() *news {
	return &news{in: in, known: map[api.Kind]map[string]*object.Object{}, all: map[api.Kind]bool{}, changed: map[object.Ref]*object.Object{}}
}

// change is what the news come to, the operations that they move on included.
func (n *news) change(ctx context.Context) (tx.Change, error) {
	if len(n.changed) == 0 {
		return n.Change, nil
	}
	conds, ops, err := object.FollowUp(ctx, n.in.Store, n.changed, n.in.Now().UTC())
	n.Conds, n.Ops = append(n.Conds, conds...), append(n.Ops, ops...)
	return n.Change, err
}

// statuses adds the statuses that differ. gone tells whether an object that is being deleted is down.
func statuses[S any](ctx context.Context, n *news, kind api.Kind, in map[string]S, gone func(S) bool) error {
	// Many objects are read at once, few one by one.
	if len(in) >= manyStatuses {
		if err := n.readAll(ctx, kind); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in)) {
		s := in[name]
		o, err := n.find(ctx, kind, name)
		if err != nil {
			return err
		}
		// Objects that are gone, or another host's, are left out: news may be late.
		if o == nil {
			continue
		}
		if mine, err := n.owns(ctx, kind, o); err != nil {
			return err
		} else if !mine {
			continue
		}
		switch now := any(&s).(type) {
		case *api.FunctionStatus:
			n.note(o, *now)
			if now.Healthy && o.Placement != nil && o.Placement.FormerHost != "" { // it is up where it has moved to, with the state of before or without
				p := *o.Placement
				p.FormerHost = ""
				o.Placement = &p
			}
			now.Conditions = n.dated(o, now.Conditions)
		case *api.ChainStatus:
			now.Conditions = n.dated(o, now.Conditions)
		case *api.EndpointStatus:
			now.Conditions = n.dated(o, now.Conditions)
		case *api.PolicyStatus:
			now.Conditions = n.dated(o, now.Conditions)
		}
		// An object goes when its agent has taken it down.
		if o.Deleting != nil && gone != nil && gone(s) {
			n.Remove(kind, name, o.Revision)
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

// manyStatuses is from how many objects on a kind is read at once instead of one by one.
const manyStatuses = 8

// find reads an object; nil: there is none.
func (n *news) find(ctx context.Context, kind api.Kind, name string) (*object.Object, error) {
	if n.many && !n.all[kind] {
		if err := n.readAll(ctx, kind); err != nil {
			return nil, err
		}
	}
	if o, known := n.known[kind][name]; known || n.all[kind] {
		return o, nil
	}
	o, err := store.Get[object.Object](ctx, n.in.Store, kind, name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	if n.known[kind] == nil {
		n.known[kind] = map[string]*object.Object{}
	}
	n.known[kind][name] = nil
	if err == nil {
		n.known[kind][name] = &o
	}
	return n.known[kind][name], nil
}

// readAll reads all objects of a kind.
func (n *news) readAll(ctx context.Context, kind api.Kind) error {
	list, _, err := store.List[object.Object](ctx, n.in.Store, kind)
	n.known[kind], n.all[kind] = make(map[string]*object.Object, len(list)), err == nil
	for i := range list {
		n.known[kind][list[i].Name] = &list[i]
	}
	return err
}

// put adds an object's new status, if it differs.
func (n *news) put(kind api.Kind, o *object.Object, status json.RawMessage) error {
	if string(o.Status) == string(status) {
		return nil
	}
	o.Status = status
	o.Updated = n.in.Now().UTC()
	tx.Add(&n.Change, kind, o, o.Revision)
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
		n.placeAll = true
		n.Tell(members.HostBack(name, n.in.Now().Sub(o.Updated)))
	}
	n.placeAll = n.placeAll || o.Revision == 0
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
		n.Tell(members.ClaimsMore(name, &counted))
	}
	if counted.State == api.HostStarting { // its agent does not know yet what runs there
		counted.Functions = old.Functions
	}
	if counted.Drain = old.Drain; counted.Drain != nil {
		if e := members.Drained(name, spec, old.Drain.Stays, &counted); e != nil {
			n.Tell(*e)
		}
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

// maxStatus bounds what an agent may say of one object, in bytes: all agents share the state.
const maxStatus = 1 << 20

// mayReport refuses news that are not the reporter's own, and what nobody needs to say.
func mayReport(r *http.Request, req api.StatusReport) error {
	who, ok := web.AgentOf(r.Context())
	if !ok {
		return nil
	}
	var problems []api.Problem
	add := func(path, host string) {
		problems = append(problems, api.Problem{Path: path, Message: fmt.Sprintf("is of host %q", host), Hint: fmt.Sprintf("the agent of host %s reports its own", who.Host)})
	}
	// An agent may name no host but its own, and not fill the state.
	if req.Host != who.Host {
		add("host", req.Host)
	}
	long := func(path string, status any) {
		if n := len(object.Marshal(status)); n > maxStatus {
			problems = append(problems, api.Problem{Path: path, Message: fmt.Sprintf("has %d bytes: want at most %d", n, maxStatus)})
		}
	}
	long("host_status", req.HostState)
	long("assignment_status", req.Assigned)
	for name, s := range req.Chains {
		long("chains."+name, s)
	}
	for name, s := range req.Policies {
		long("policies."+name, s)
	}
	for name, s := range req.Endpoints {
		long("endpoints."+name, s)
		if s.Host != "" && s.Host != who.Host {
			add("endpoints."+name+".host", s.Host)
		}
	}
	for name, s := range req.Functions {
		long("functions."+name, s)
		if s.Host != "" && s.Host != who.Host {
			add("functions."+name+".host", s.Host)
		}
	}
	for i, e := range req.Events {
		if e.Host != "" && e.Host != who.Host {
			add(fmt.Sprintf("events[%d].host", i), e.Host)
		}
	}
	if len(problems) > 0 {
		return api.Refuse(http.StatusForbidden, "the report is not this host's own, or too long", problems...)
	}
	return nil
}
