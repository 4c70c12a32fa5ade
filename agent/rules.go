package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/agent/health"
	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router"
)

// draining is a hop that no wanted rule needs any more and that forwards what is in flight until its time is over.
type draining struct {
	rule  flow.Rule
	until time.Time
}

// syncRules decides which chains and policies can be in force, compiles them and commits the result.
// It returns when to look again, and why the rules could not be put in force.
func (a *Agent) syncRules(ctx context.Context, want share) (time.Duration, error) {
	views := a.views()
	next := choose(want, views, a.joined(), choice{chains: a.chains, policies: a.policies})
	a.chains, a.policies = next.chains, next.policies
	// The host's own rules and those of the assignment go into one commit, so that no frame meets half of either.
	in := a.routerInput(views)
	in.Closed = next.closed
	var fromRouter assigned
	if want.assignment != nil {
		fromRouter = resolve(want.assignment.Spec, a.portNames(views))
	}
	out, c, rules, drain, err := a.commit(ctx, in, fromRouter.rules, views)
	a.reportAssignment(want, fromRouter, err)
	if err != nil {
		a.Log.Error("commit rules", "error", err)
		for name, w := range want.policies {
			a.report.Policy(name, w.UID, api.PolicyStatus{ObservedGeneration: w.Generation, State: api.PolicyError, Message: err.Error()})
		}
		return retryAfter, err
	}
	if c.Added+c.Changed+c.Removed > 0 {
		a.Log.Info("rules committed", "version", c.Version, "added", c.Added, "changed", c.Changed, "removed", c.Removed, "unchanged", c.Unchanged)
	}
	// What is in force now: for the next pass, for counters and for a restart.
	a.installed, a.committed = rules, true
	a.noteSteered(rules)
	both := health.BothWays(a.chains, a.policies)
	a.both.Store(&both)
	a.fitted = maps.Clone(a.policies)
	maps.DeleteFunc(a.fitted, func(name string, _ api.PolicySpec) bool { return a.full != nil && a.full.left[name] != nil })
	// The switch keeps cookies only; live questions need texts and owners.
	n := &notes{version: c.Version, text: make(map[uint64]string, len(rules)), owners: out.Owners}
	for cookie, name := range fromRouter.policies {
		if name == "-" {
			continue
		}
		n.owners[cookie] = router.OwnedBy(name, fromRouter.catches[cookie])
	}
	for _, r := range rules {
		n.text[r.Cookie] = r.Note
	}
	a.notes.Store(n)
	if c.Added+c.Changed+c.Removed > 0 {
		if err := a.saveInForce(); err != nil {
			a.Log.Error("record what is in force", "error", err)
		}
	}
	a.reportChains(want, views, next.waitingChain)
	a.reportPolicies(want, views, next, out)
	return drain, nil
}

// joined are the endpoints that are ports of the switch.
func (a *Agent) joined() map[string]bool {
	out := make(map[string]bool, len(a.endpoints))
	for name := range a.endpoints {
		out[name] = true
	}
	return out
}

func (a *Agent) views() map[string]view {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[string]view, len(a.functions))
	for name, f := range a.functions {
		out[name] = f.view()
	}
	return out
}

// broken says which endpoint of a policy is in error, and why. Rules may be there for it, but no frame comes to them.
func (a *Agent) broken(want share, p api.PolicySpec) string {
	for _, end := range []string{p.From, p.To} {
		if _, ok := want.endpoints[end]; ok && a.troubles[end] != "" {
			return fmt.Sprintf("endpoint %s: %s", end, a.troubles[end])
		}
	}
	return ""
}

func (a *Agent) routerInput(views map[string]view) router.Input {
	in := router.Input{
		Endpoints: map[string]flow.Port{}, Functions: map[string]router.Function{},
		Chains: a.chains, Policies: a.policies,
	}
	for name, e := range a.endpoints {
		in.Endpoints[name] = e.port
	}
	for name, v := range views {
		in.Functions[name] = router.Function{In: v.ports.In, Out: v.ports.Out, Tap: v.ports.Tap, OnFail: v.onFail}
	}
	return in
}

// withDraining adds the hops of the last set that the new one lacks, for a while: what is inside a function when its chain changes
// comes out and goes on.
func (a *Agent) withDraining(rules []flow.Rule, views map[string]view) ([]flow.Rule, time.Duration) {
	now := time.Now()
	has := make(map[uint64]*flow.Rule, len(rules))
	serves := map[flow.Match]bool{}
	for i, r := range rules {
		has[r.Cookie] = &rules[i]
		if r.Stage == flow.Ingress {
			serves[r.Match] = true
		}
	}
	inside := map[flow.Port]time.Duration{} // how long frames may be in an instance of a function
	for _, v := range views {
		if v.placed {
			now, before := drainsIn(v.machine), drainsIn(v.wasMachine)
			inside[v.ports.In], inside[v.ports.Out], inside[v.former.In], inside[v.former.Out] = now, now, before, before
		}
	}
	delete(inside, 0)
	old := map[uint64]bool{}
	for _, d := range a.draining {
		old[d.rule.Cookie] = true
	}
	for _, r := range a.installed {
		if r.Stage != flow.Ingress || inside[r.Match.InPort] == 0 || old[r.Cookie] {
			continue
		}
		if n := has[r.Cookie]; n != nil {
			if n.Match.InPort == r.Match.InPort {
				continue
			}
			r.Action = n.Action // another instance is there now: what is in the former one goes on as from the new one
			if r.Cookie = drainCookie(r.Cookie, r.Match.InPort); old[r.Cookie] {
				continue
			}
		}
		r.Priority = 0 // whatever is wanted goes first
		a.draining = append(a.draining, draining{rule: r, until: now.Add(inside[r.Match.InPort])})
	}
	next := resync
	kept := a.draining[:0]
	for _, d := range a.draining {
		left := d.until.Sub(now)
		if left <= 0 || has[d.rule.Cookie] != nil || serves[d.rule.Match] || serves[flow.Match{InPort: d.rule.Match.InPort}] || inside[d.rule.Match.InPort] == 0 {
			continue
		}
		kept = append(kept, d)
		next = min(next, left)
	}
	a.draining = kept
	out := slices.Clone(rules)
	for _, d := range kept {
		out = append(out, d.rule)
	}
	return out, next
}

// drainsIn is how long frames may be in an instance: those in the queues of a machine whose processor is emulated come out late.
func drainsIn(machine bool) time.Duration {
	if machine {
		return drainSlow
	}
	return drainFor
}

// drainCookie is the identity of a rule of an instance that another one has replaced.
func drainCookie(cookie uint64, in flow.Port) uint64 {
	return cookie ^ (uint64(in)+1)*0x9e3779b97f4a7c15
}

func (a *Agent) reportChains(want share, views map[string]view, waiting map[string]string) {
	for name, w := range want.chains {
		if !want.tells(w.Spec) {
			continue
		}
		s := api.ChainStatus{ObservedGeneration: w.Generation, State: api.ChainReady}
		if why := waiting[name]; why != "" {
			s.State = api.ChainPending
			s.Say(api.Condition{Type: api.ConditionWaiting, Reason: api.ReasonWaiting, Message: why})
		} else {
			down := slices.DeleteFunc(w.Spec.Functions(), func(f string) bool { return want.healthy(f, views) })
			if len(down) > 0 {
				s.State = api.ChainDegraded
				s.Say(api.Condition{Type: api.ConditionImpaired, Reason: api.ReasonDown, Message: "down: " + strings.Join(down, ", ")})
			}
		}
		a.report.Chain(name, w.UID, s)
	}
}

// healthy tells whether a function is, here or elsewhere.
func (s share) healthy(function string, views map[string]view) bool {
	if _, here := s.functions[function]; here {
		return views[function].status.Healthy
	}
	return s.all.functions[function].Status.Healthy
}

// suffers tells what becomes of a policy's traffic at functions that are down; copies are nobody's traffic.
func (s share) suffers(p api.PolicySpec, views map[string]view) (string, api.Conditions) {
	if p.ModeOrDefault() == api.ModeReplica {
		return "", nil
	}
	var dropped, passed []string
	for _, h := range s.all.chains[p.Chain].Spec.Hops() {
		switch {
		case h.Tap || s.healthy(h.Function, views):
		case s.all.functions[h.Function].Spec.OnFail == api.OnFailBypass:
			passed = append(passed, h.Function)
		default:
			dropped = append(dropped, h.Function)
		}
	}
	impaired := func(r api.Reason, text string, down []string) (string, api.Conditions) {
		text += " (down: " + strings.Join(down, ", ") + ")"
		return text, api.Conditions{{Type: api.ConditionImpaired, Reason: r, Message: text}}
	}
	switch {
	case len(dropped) > 0:
		return impaired(api.ReasonDropped, "its traffic is dropped", dropped)
	case len(passed) > 0:
		return impaired(api.ReasonBypassed, "its traffic bypasses some functions", passed)
	}
	return "", nil
}

func (a *Agent) reportPolicies(want share, views map[string]view, now choice, out router.Output) {
	for name, w := range want.policies {
		if w.Deleting != nil { // the commit just done has none of its rules
			a.report.Policy(name, w.UID, api.PolicyStatus{ObservedGeneration: w.Generation, State: api.PolicyDeleted})
			continue
		}
		s := api.PolicyStatus{ObservedGeneration: w.Generation, State: api.PolicyActive}
		if p, ok := out.Paths[name]; ok {
			s.RenderedPath, s.RenderedReverse, s.Rules = p.Forward, p.Reverse, p.Rules
		}
		broken := a.broken(want, w.Spec)
		switch {
		case broken != "":
			s.State, s.Message = api.PolicyError, broken
		case now.waitingPolicy[name] != "":
			s.State, s.Message = api.PolicyPending, now.waitingPolicy[name]
			if _, is := now.closed[name]; is {
				s.Note(api.ConditionClosed, api.ReasonWaiting)
			}
		case errors.Is(out.Errors[name], router.ErrNotReady):
			s.State, s.Message = api.PolicyPending, out.Errors[name].Error()
		case out.Errors[name] != nil:
			s.State, s.Message = api.PolicyError, out.Errors[name].Error()
		default:
			s.Message, s.Conditions = want.suffers(w.Spec, views)
		}
		a.report.Policy(name, w.UID, s)
	}
}
