package intent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/placement"
	"weir.dev/weir/store"
)

// settle gives every endpoint and function its host, and every policy its owner, in the transaction that makes it necessary: specs or hosts have
// changed.
func (st *state) settle(ctx context.Context) error {
	touched := func(kinds ...api.Kind) bool {
		return slices.ContainsFunc(st.order, func(r object.Ref) bool { return slices.Contains(kinds, r.Kind) })
	}
	if !st.placeAll && !touched(api.KindEndpoint, api.KindFunction, api.KindChain, api.KindPolicy, api.KindHost) {
		return nil
	}
	hosts, err := st.hosts()
	if err != nil {
		return err
	}
	if err := st.sweep(hosts); err != nil {
		return err
	}
	if st.placeAll || touched(api.KindEndpoint, api.KindFunction, api.KindHost) {
		if err := st.settleEndpoints(hosts); err != nil {
			return err
		}
		if err := st.settleFunctions(ctx, hosts); err != nil {
			return err
		}
		if err := st.settleDrains(hosts); err != nil {
			return err
		}
	}
	return st.settlePolicies(ctx, hosts)
}

// settlePolicies decides who steers each policy. One that is being deleted stays with whoever takes it down.
func (st *state) settlePolicies(ctx context.Context, hosts []api.Host) error {
	if len(hosts) == 0 {
		return nil // nobody can tell yet
	}
	alone, err := st.alone(ctx, hosts)
	if err != nil {
		return err
	}
	d, err := st.document()
	if err != nil {
		return err
	}
	p := placement.Places{Alone: alone, Endpoints: map[string]string{}, Functions: map[string]string{}, Chains: d.Chains}
	for name, o := range st.objects[api.KindEndpoint] {
		p.Endpoints[name] = o.At()
	}
	for name, o := range st.objects[api.KindFunction] {
		p.Functions[name] = o.At()
	}
	owners := placement.Owners(p, d.Policies)
	now := st.e.Now().UTC()
	for _, name := range slices.Sorted(maps.Keys(st.objects[api.KindPolicy])) {
		o := st.objects[api.KindPolicy][name]
		if o.Deleting != nil {
			continue
		}
		owner, was := owners[name], o.Placement
		switch {
		case was == nil:
			st.place(api.KindPolicy, name, &api.Placement{Host: owner.Host, Router: owner.Host == "", Reason: owner.Reason, Since: now, Decision: unnumbered}, nil)
		case was.Host != owner.Host:
			st.place(api.KindPolicy, name, &api.Placement{Host: owner.Host, Router: owner.Host == "", Reason: owner.Reason, Since: now,
				Decision: unnumbered, FormerHost: was.Host, FormerRouter: was.Router && !st.e.NoRouter}, nil)
		case was.Reason != owner.Reason: // nobody has anything to do
			next := *was
			next.Reason = owner.Reason
			st.revise(api.KindPolicy, name).Placement = &next
		}
	}
	return nil
}

const unnumbered = -1 // a decision before its commit

// numberDecisions numbers new decisions about who steers a policy in the order in which watches tell of them.
func (st *state) numberDecisions() {
	for _, r := range st.order {
		if o := st.objects[r.Kind][r.Name]; r.Kind == api.KindPolicy && o != nil && o.Placement != nil && o.Placement.Decision == unnumbered {
			st.decision++
			p := *o.Placement
			p.Decision = st.decision
			st.revise(r.Kind, r.Name).Placement = &p
		}
	}
}

// alone tells whether there is one host and nothing besides it that a router could steer.
func (st *state) alone(ctx context.Context, hosts []api.Host) (bool, error) {
	if len(hosts) != 1 || st.e.NoRouter {
		return len(hosts) == 1, nil
	}
	switches, err := st.e.Store.Count(ctx, store.Prefix(api.KindSwitch))
	return switches == 0, err
}

// hosts are all hosts as they are now.
func (st *state) hosts() ([]api.Host, error) {
	out := make([]api.Host, 0, len(st.objects[api.KindHost]))
	for _, name := range slices.Sorted(maps.Keys(st.objects[api.KindHost])) {
		h := api.Host{Meta: st.objects[api.KindHost][name].Meta}
		if err := st.objects[api.KindHost][name].Into(&h.Spec, &h.Status); err != nil {
			return nil, err
		}
		h.Status.State = st.e.Hosts.State(h)
		out = append(out, h)
	}
	return out, nil
}

// settleEndpoints puts the hosts' endpoints where their specs say, or on the only host.
func (st *state) settleEndpoints(hosts []api.Host) error {
	for _, name := range slices.Sorted(maps.Keys(st.objects[api.KindEndpoint])) {
		o := st.objects[api.KindEndpoint][name]
		var spec api.EndpointSpec
		if err := o.Into(&spec, nil); err != nil {
			return err
		}
		if o.Deleting != nil {
			continue
		}
		host, why := spec.Host, "spec.host"
		switch {
		case !spec.OfHost():
			host = ""
		case host == "" && o.Placement != nil:
			host, why = o.Placement.Host, o.Placement.Reason
			if why == "spec.host" { // it was taken out of the spec: it stays where it is
				continue
			}
		case host == "" && len(hosts) == 1:
			host, why = hosts[0].Name, "the only host"
		}
		if host == o.At() {
			continue
		}
		var p *api.Placement
		if host != "" {
			p = &api.Placement{Host: host, Reason: why, Since: st.e.Now().UTC()}
		}
		var status any
		if o.At() != "" {
			s := api.EndpointStatus{State: api.EndpointPending}
			s.Say(st.waiting(api.ReasonMoved, "moves to "+cmp.Or(host, "the fabric")))
			status = s
		}
		st.place(api.KindEndpoint, name, p, status)
	}
	return nil
}

// place writes an object's placement. What was stored before gets a new generation, since an agent has something to do. A status says
// how it begins there; nil: what is known, if anything, is still true.
func (st *state) place(kind api.Kind, name string, p *api.Placement, status any) {
	next := st.revise(kind, name)
	next.Placement = p
	if st.before[kind][name] != nil {
		if next.Generation == st.before[kind][name].Generation {
			next.Generation++
		}
		next.Updated = st.e.Now().UTC()
		if status != nil {
			next.Status = object.Marshal(status)
		}
	}
}

// settleFunctions places functions that have no host, or have lost it.
func (st *state) settleFunctions(ctx context.Context, hosts []api.Host) error {
	functions, err := st.functions()
	if err != nil {
		return err
	}
	changed := st.runtimeChanged(functions)
	if len(placement.Unsettled(hosts, functions))+len(changed) == 0 {
		return nil
	}
	c, err := st.placementContext(ctx, hosts)
	if err != nil {
		return err
	}
	c.Changed = changed
	moved := map[string]bool{}
	st.stays = map[string]string{}
	for _, d := range placement.Place(hosts, functions, c, st.e.Now()) {
		st.decided(d)
		if d.Placement == nil {
			st.stays[d.Function] = d.Problem
		}
		moved[d.Function] = d.From != "" && d.Placement != nil
	}
	st.degrade(c.Chains, moved)
	return nil
}

// degrade takes no chain for ready whose functions begin anew elsewhere: who tells of it next knows better.
func (st *state) degrade(chains map[string]api.ChainSpec, moved map[string]bool) {
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		var down []string
		for _, f := range chains[name].Functions() {
			if moved[f] {
				down = append(down, f)
			}
		}
		if len(down) == 0 {
			continue
		}
		next := st.revise(api.KindChain, name)
		s := api.ChainStatus{ObservedGeneration: next.Generation, State: api.ChainDegraded}
		s.Say(api.Condition{Type: api.ConditionImpaired, Reason: api.ReasonMoved, Message: "moved: " + strings.Join(down, ", "), Since: st.e.Now().UTC()})
		next.Status = object.Marshal(s)
	}
}

func (st *state) functions() ([]api.Function, error) {
	out := make([]api.Function, 0, len(st.objects[api.KindFunction]))
	for _, name := range slices.Sorted(maps.Keys(st.objects[api.KindFunction])) {
		o := st.objects[api.KindFunction][name]
		f := api.Function{Meta: o.Meta, Placement: o.Placement}
		if err := o.Into(&f.Spec, nil); err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// runtimeChanged are the functions that name another runtime since this change.
func (st *state) runtimeChanged(functions []api.Function) map[string]bool {
	out := map[string]bool{}
	for _, f := range functions {
		var before api.FunctionSpec
		if old := st.before[api.KindFunction][f.Name]; old == nil || old.Into(&before, nil) != nil || before.Runtime == f.Spec.Runtime {
			continue
		}
		out[f.Name] = true
	}
	return out
}

// placementContext is what the functions are for.
func (st *state) placementContext(ctx context.Context, hosts []api.Host) (placement.Context, error) {
	d, err := st.document()
	if err != nil {
		return placement.Context{}, err
	}
	c := placement.Context{Strategy: st.e.Strategy, Chains: d.Chains, Policies: d.Policies}
	if st.e.Placement != "nearest" || len(hosts) < 2 {
		return c, nil
	}
	switches, _, err := store.List[api.Switch](ctx, st.e.Store, api.KindSwitch)
	if err != nil {
		return c, err
	}
	c.Endpoints = map[string]string{}
	for name, o := range st.objects[api.KindEndpoint] {
		e := api.Endpoint{Placement: o.Placement}
		if err := o.Into(&e.Spec, &e.Status); err != nil {
			return c, err
		}
		if node := nodeOfEndpoint(e, switches); node != "" {
			c.Endpoints[name] = node
		}
	}
	tunnelled := st.e.Underlay == "vxlan"
	if tunnelled || len(switches) > 0 {
		c.Distance = placement.NewTopology(switches, hosts, tunnelled).Distance
	}
	return c, nil
}

// nodeOfEndpoint is where in the fabric an endpoint is: its host, the switch that its spec names, or the one at whose edge port it is seen.
func nodeOfEndpoint(e api.Endpoint, switches []api.Switch) string {
	if at := e.At(); at != "" {
		return at
	}
	if e.Spec.Switch != "" {
		return placement.SwitchNode(e.Spec.Switch)
	}
	marks := []string{strings.ToLower(e.Spec.MAC)}
	for _, p := range e.Spec.Prefixes() {
		marks = append(marks, p.Addr().String())
	}
	for _, s := range switches {
		for _, p := range s.Status.Ports {
			for _, station := range p.Stations {
				if slices.ContainsFunc(strings.Fields(station), func(mark string) bool { return mark != "" && slices.Contains(marks, mark) }) {
					return placement.SwitchNode(s.Name)
				}
			}
		}
	}
	return ""
}

// decided writes a decision down, and tells what is news.
func (st *state) decided(d placement.Decision) {
	if d.Placement == nil {
		st.unplaced(d)
		return
	}
	if d.From == "" {
		var status any
		var old api.FunctionStatus
		if json.Unmarshal(st.get(api.KindFunction, d.Function).Status, &old) == nil && old.State == api.FunctionPending && old.Host == "" {
			status = api.FunctionStatus{} // it told why it was nowhere
		}
		st.place(api.KindFunction, d.Function, d.Placement, status)
		return
	}
	message := fmt.Sprintf("moved from %s to %s: %s", d.From, d.Placement.Host, d.Placement.Reason)
	d.Placement.FormerHost = formerHost(st.get(api.KindFunction, d.Function))
	s := api.FunctionStatus{State: api.FunctionPending}
	s.Say(st.waiting(api.ReasonMoved, message))
	st.place(api.KindFunction, d.Function, d.Placement, s)
	severity := api.Warning
	if h := st.get(api.KindHost, d.From); h != nil && !st.lost[d.From] {
		var spec api.HostSpec
		if h.Into(&spec, nil) == nil && spec.Drain { // someone has asked for it
			severity = api.Info
		}
	}
	st.Tell(api.Event{Severity: severity, Reason: "FunctionMoved", Kind: api.KindFunction, Object: d.Function, Host: d.Placement.Host, Message: message})
}

// formerHost is where a function that moves has its state: where it is, if it is up there, else where it came from before. That is its new host itself where it comes back
// before it was up elsewhere.
func formerHost(o *object.Object) string {
	var s api.FunctionStatus
	if json.Unmarshal(o.Status, &s) == nil && s.State == api.FunctionStarted && s.Host == o.At() {
		return o.At()
	}
	return o.Placement.FormerHost
}

// unplaced tells why a function is nowhere. One that has a host stays there, as does its status: if that host comes back, it is true.
func (st *state) unplaced(d placement.Decision) {
	o := st.get(api.KindFunction, d.Function)
	if d.From != "" {
		if st.lost[d.From] { // told once, with the loss
			st.Tell(api.Event{Severity: api.Error, Reason: "FunctionNotPlaced", Kind: api.KindFunction, Object: d.Function, Host: d.From, Message: d.Problem})
		}
		return
	}
	s := api.FunctionStatus{State: api.FunctionPending}
	s.Say(st.waiting(api.ReasonUnplaced, d.Problem))
	s.Conditions = object.DatedAfter(o, s.Conditions, st.e.Now().UTC())
	status := object.Marshal(s)
	if string(o.Status) == string(status) {
		return
	}
	st.revise(api.KindFunction, d.Function).Status = status
	if len(st.objects[api.KindHost]) == 0 {
		return // the first is about to come
	}
	st.Tell(api.Event{Severity: api.Warning, Reason: "FunctionNotPlaced", Kind: api.KindFunction, Object: d.Function, Message: d.Problem})
}

// waiting is the condition of what has no host, or not yet.
func (st *state) waiting(r api.Reason, message string) api.Condition {
	return api.Condition{Type: api.ConditionWaiting, Reason: r, Message: message, Since: st.e.Now().UTC()}
}

// checkHosts refuses what no host can give to what is new or changed: a name that no host has, an endpoint that does not say which of
// several hosts, more than any host has.
func (st *state) checkHosts(changed api.Document) ([]api.Problem, error) {
	if len(st.objects[api.KindHost]) == 0 || len(changed.Endpoints)+len(changed.Functions) == 0 {
		return nil, nil // nobody can tell yet
	}
	hosts, err := st.hosts()
	if err != nil {
		return nil, err
	}
	var out []api.Problem
	for _, name := range slices.Sorted(maps.Keys(changed.Endpoints)) {
		e, path := changed.Endpoints[name], "endpoints."+name
		out = append(out, hostProblems(hosts, path, e.Host)...)
		if o := st.get(api.KindEndpoint, name); e.OfHost() && e.Host == "" && len(hosts) > 1 && (o == nil || o.Placement == nil) {
			out = append(out, api.Problem{Path: path + ".host", Message: "there are several hosts, and the endpoint does not say which it is at", Hint: "want one of " + hostNames(hosts)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changed.Functions)) {
		f, path := changed.Functions[name], "functions."+name
		out = append(out, hostProblems(hosts, path, f.Host)...)
		if f.Host == "" && len(hosts) > 1 {
			out = append(out, tooMuch(hosts, path, f)...)
		}
	}
	return out, nil
}

func hostProblems(hosts []api.Host, path, name string) []api.Problem {
	if name == "" || slices.ContainsFunc(hosts, func(h api.Host) bool { return h.Name == name }) {
		return nil
	}
	p := api.Problem{Path: path + ".host", Message: fmt.Sprintf("no host is called %q", name), Hint: "known are " + hostNames(hosts) + "; others join with `weir agent`"}
	for _, h := range hosts {
		if api.EditDistance(name, h.Name) == 1 && len(name) > 2 {
			p.Hint = fmt.Sprintf("did you mean %q? %s", h.Name, p.Hint)
			break
		}
	}
	return []api.Problem{p}
}

func hostNames(hosts []api.Host) string {
	const enough = 10
	var names []string
	for _, h := range hosts[:min(len(hosts), enough)] {
		names = append(names, h.Name)
	}
	if len(hosts) > enough {
		names = append(names, "...")
	}
	return strings.Join(names, ", ")
}

// tooMuch refuses requests that not even an empty host could meet.
func tooMuch(hosts []api.Host, path string, f api.FunctionSpec) []api.Problem {
	var cores int
	var memory int64
	for _, h := range hosts {
		if h.Status.Cores == 0 || h.Status.Memory == 0 {
			return nil // not known
		}
		cores, memory = max(cores, h.Status.Cores), max(memory, h.Status.Memory)
	}
	var out []api.Problem
	if n, _ := api.ParseCPUs(f.CPUs); n > float64(cores) {
		out = append(out, api.Problem{Path: path + ".cpus", Message: fmt.Sprintf("no host has %s cores: the largest has %d", f.CPUs, cores)})
	}
	if n, _ := api.ParseMemory(f.Memory); n > memory {
		out = append(out, api.Problem{Path: path + ".memory", Message: fmt.Sprintf("no host has %s of memory: the largest has %dM", f.Memory, memory>>20)})
	}
	return out
}
