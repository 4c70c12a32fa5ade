package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/router"
)

// overfull is what a switch had no room for. What is in force stays, all that fits goes on, and the rest is closed.
type overfull struct {
	policies map[string]api.PolicySpec // of which
	chains   map[string]api.ChainSpec
	left     map[string]error // these are left out, and why
	until    time.Time        // when it is tried again all the same
}

// Bounds of the search for policies that do not fit: each try compiles all rules.
const (
	fullTries = 40
	fullAgain = time.Minute
)

// commit compiles policies and puts them in force with other rules. If the switch is full, only those that do not fit are left out.
func (a *Agent) commit(ctx context.Context, in router.Input, others []flow.Rule, views map[string]view) (out router.Output, c datapath.Commit, rules []flow.Rule, drain time.Duration, err error) {
	try := func(policies map[string]api.PolicySpec, closed []flow.Rule) error {
		in := in
		in.Policies = policies
		out = router.Compile(in)
		rules, drain = a.withDraining(slices.Concat(out.Rules, closed, others), views)
		c, err = a.Switch.Commit(ctx, rules)
		return err
	}
	left, until := map[string]error{}, time.Now().Add(fullAgain)
	if f := a.full; f != nil && time.Now().Before(f.until) && reflect.DeepEqual(f.policies, in.Policies) && reflect.DeepEqual(f.chains, in.Chains) {
		left, until = f.left, f.until
	}
	if len(left) == 0 {
		if err := try(in.Policies, nil); !errors.Is(err, datapath.ErrFull) {
			a.full = nil
			return out, c, rules, drain, err
		}
		a.Log.Error("the switch is full", "error", err, "policies", len(in.Policies))
		left = misfits(in.Policies, a.fitted, func(some map[string]api.PolicySpec) error {
			others := maps.Clone(in.Policies)
			maps.DeleteFunc(others, func(name string, _ api.PolicySpec) bool { _, in := some[name]; return in })
			return try(some, closings(in, others, views, coarsest)) // there has to be room for that, too
		})
	}
	fitting := maps.Clone(in.Policies)
	misfit := map[string]api.PolicySpec{}
	for name := range left {
		misfit[name] = fitting[name]
		delete(fitting, name)
	}
	for level := range coarsest + 1 {
		if err = try(fitting, closings(in, misfit, views, level)); !errors.Is(err, datapath.ErrFull) {
			break
		}
	}
	if err != nil {
		return out, c, rules, drain, err
	}
	a.full = &overfull{policies: maps.Clone(in.Policies), chains: maps.Clone(in.Chains), left: left, until: until}
	for name, why := range left {
		what := "its traffic is dropped"
		if bypassed(in, misfit[name], views) {
			what = "its traffic passes, as its functions' on_fail says"
		}
		out.Errors[name] = fmt.Errorf("not in force, %s: %w", what, why)
	}
	return out, c, rules, min(drain, fullAgain), nil
}

// misfits are policies that the switch has no room for beside the others. Those that fitted before come first, then the others by name. They are found by
// halves; what is not decided after so many tries is left out, too.
func misfits(policies, fitted map[string]api.PolicySpec, try func(map[string]api.PolicySpec) error) map[string]error {
	// Policies that fitted before come first: a new one does not drive them out.
	var before, rest []string
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		if was, ok := fitted[name]; ok && reflect.DeepEqual(was, policies[name]) {
			before = append(before, name)
		} else {
			rest = append(rest, name)
		}
	}
	fit := map[string]api.PolicySpec{}
	left := map[string]error{}
	tries := 0
	var last error
	// Halve what does not fit until single policies are left, with a bounded number of tries.
	var add func(names []string)
	add = func(names []string) {
		if len(names) == 0 {
			return
		}
		some := maps.Clone(fit)
		for _, name := range names {
			some[name] = policies[name]
		}
		err := last
		if tries++; tries <= fullTries {
			if err = try(some); err == nil {
				fit = some
				return
			}
			last = err
		}
		if len(names) == 1 || tries >= fullTries || !errors.Is(err, datapath.ErrFull) {
			for _, name := range names {
				left[name] = err
			}
			return
		}
		add(names[:len(names)/2])
		add(names[len(names)/2:])
	}
	add(before)
	add(rest)
	return left
}

// coarsest is the last level of closings.
const coarsest = 3

// closings drop what policies that do not fit would steer. A level says how closely: 0 exactly, at their priority; then below all that is in
// force, without L4 ports, with prefixes in steps of eight bits, and at last all between their endpoints.
func closings(in router.Input, misfit map[string]api.PolicySpec, views map[string]view, level int) []flow.Rule {
	closed := map[string]api.PolicySpec{}
	for name, p := range misfit {
		if !bypassed(in, p, views) {
			closed[name] = p
		}
	}
	in.Policies, in.Closed, in.Functions = closed, nil, nil // no chain works without its functions
	rules := router.Compile(in).Rules
	if level == 0 {
		return rules
	}
	type place struct {
		stage flow.Stage
		match flow.Match
	}
	seen := map[place]bool{}
	var wide []flow.Rule
	for _, r := range rules {
		m := &r.Match
		r.Priority = 0
		if m.SrcPorts, m.DstPorts = (flow.PortRange{}), (flow.PortRange{}); level > 1 {
			m.Src, m.Dst = eight(m.Src), eight(m.Dst)
		}
		if level == coarsest {
			*m = flow.Match{InPort: m.InPort, OutPort: m.OutPort, SrcMAC: m.SrcMAC, SrcMACMask: m.SrcMACMask, DstMAC: m.DstMAC, DstMACMask: m.DstMACMask}
		}
		if at := (place{r.Stage, *m}); !seen[at] {
			seen[at] = true
			wide = append(wide, r)
		}
	}
	return wide
}

func eight(p netip.Prefix) netip.Prefix {
	if !p.IsValid() {
		return p
	}
	return netip.PrefixFrom(p.Addr(), p.Bits()/8*8).Masked()
}

// bypassed tells that a policy's traffic may pass when its chain does not work: all functions say so, or it only copies.
func bypassed(in router.Input, p api.PolicySpec, views map[string]view) bool {
	hops := in.Chains[p.Chain].Hops()
	return len(hops) > 0 && (p.ModeOrDefault() == api.ModeReplica || !slices.ContainsFunc(hops, func(h api.PathHop) bool {
		return !h.Tap && views[h.Function].onFail != api.OnFailBypass
	}))
}

// maxMisfits bounds the problems of one change.
const maxMisfits = 20

// CheckPolicies tells for which policies of a change this host's switch would have no room beside those that are not changed. Paths are the policies'
// names. Only policies that are for this host alone count: what crosses hosts is the router's.
func (a *Agent) CheckPolicies(d, changed api.Document) []api.Problem {
	in, compile := router.Rehearse(d)
	maps.DeleteFunc(in.Policies, func(_ string, p api.PolicySpec) bool {
		return slices.ContainsFunc([]string{p.From, p.To}, func(end string) bool {
			e, ok := d.Endpoints[end]
			return ok && (!e.OfHost() || e.Host != "" && e.Host != a.Host)
		})
	})
	fits := func(policies map[string]api.PolicySpec) error { return a.Switch.Fits(compile(policies)) }
	if !errors.Is(fits(in.Policies), datapath.ErrFull) {
		return nil // nor is it for this to say what else may be wrong
	}
	before := maps.Clone(in.Policies)
	maps.DeleteFunc(before, func(name string, _ api.PolicySpec) bool { _, is := changed.Policies[name]; return is })
	left := misfits(in.Policies, before, fits)
	var all []api.Problem
	for _, name := range slices.Sorted(maps.Keys(left)) {
		if len(all) == maxMisfits {
			all[0].Message += fmt.Sprintf(" (and %d more policies)", len(left)-maxMisfits)
			break
		}
		all = append(all, api.Problem{Path: name, Message: fmt.Sprintf("host %s: %s", a.Host, left[name]),
			Hint: "join policies into fewer with wider prefixes and port ranges, delete some, or spread endpoints over more hosts"})
	}
	return all
}
