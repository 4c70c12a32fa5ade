package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/netns"
)

// A bridge that learns addresses sends no frame back by the port where it came in. Where policies lead frames both from a station and to it into the
// same port of a function, as two one-way policies that share a chain do, such a bridge in the function drops them, and nobody else knows.

// bothWays finds the inline functions one port of which gets frames from a station and frames to it, and the policies by which it does.
func bothWays(chains map[string]api.ChainSpec, policies map[string]api.PolicySpec) map[string][]string {
	type port struct {
		function string
		out      bool
	}
	type traffic struct{ from, to, policies []string }
	at := map[port]*traffic{}
	add := func(p port, from, to, policy string) {
		t := at[p]
		if t == nil {
			t = &traffic{}
			at[p] = t
		}
		t.from, t.to, t.policies = append(t.from, from), append(t.to, to), append(t.policies, policy)
	}
	for name, p := range policies {
		hops, err := api.ParsePath(chains[p.Chain].Path)
		if err != nil || p.ModeOrDefault() == api.ModeReplica {
			continue
		}
		for _, h := range hops {
			if h.Tap {
				continue
			}
			add(port{h.Function, false}, p.From, p.To, name)
			if p.Symmetric == nil || *p.Symmetric {
				add(port{h.Function, true}, p.To, p.From, name)
			}
		}
	}
	found := map[string][]string{}
	for p, t := range at {
		for i, from := range t.from {
			for j, to := range t.to {
				if i != j && from != "" && from == to {
					found[p.function] = append(found[p.function], t.policies[i], t.policies[j])
				}
			}
		}
	}
	for f, names := range found {
		slices.Sort(names)
		found[f] = slices.Compact(names)
	}
	return found
}

// lookLearning warns of functions whose bridge drops what policies lead both ways through one port.
func (a *Agent) lookLearning(known map[*function]string) {
	both := a.both.Load()
	if both == nil || len(*both) == 0 && len(known) == 0 {
		return
	}
	a.mu.Lock()
	var all []*function
	for name, f := range a.functions {
		if _, ok := (*both)[name]; ok || known[f] != "" {
			all = append(all, f)
		}
	}
	a.mu.Unlock()
	for f := range known {
		if !slices.Contains(all, f) {
			delete(known, f)
		}
	}
	for _, f := range all {
		policies := (*both)[f.name]
		text := ""
		if bridge := f.learningBridge(); bridge != "" && len(policies) > 0 {
			text = fmt.Sprintf("its bridge %s learns addresses, and policies %s lead frames to a station and from it into the same port: it drops them. Switch learning off in the function: bridge link set dev in learning off, the same for out",
				bridge, strings.Join(policies, ", "))
		}
		f.tellLearning(known, text)
	}
}

// learningBridge in the function's namespace that joins in and out; "" none, or the function is not up.
func (f *function) learningBridge() string {
	if !f.view().status.Healthy {
		return ""
	}
	inside, err := netns.At(f.netns())
	if err != nil {
		return ""
	}
	defer inside.Close()
	bridge, err := inside.LearningBridge("in", "out")
	if err != nil {
		return ""
	}
	return bridge
}

func (f *function) tellLearning(known map[*function]string, text string) {
	before := known[f]
	if text == "" {
		delete(known, f)
	} else {
		known[f] = text
	}
	switch c := f.view().status.Conditions.Get(api.ConditionLearning); {
	case text == "" && c != nil:
		f.update(func(v *view) { v.status.Drop(api.ConditionLearning) })
	case text != "" && (c == nil || c.Message != text):
		f.update(func(v *view) {
			if v.status.Healthy {
				v.status.Note(api.Condition{Type: api.ConditionLearning, Reason: api.ReasonBridge, Message: text})
			}
		})
	}
	if text != "" && text != before {
		f.event(api.Warning, "BridgeLearns", text, 0)
	}
}

const learnsEvery = 2 * time.Second

// watchLearning looks while there are policies that may make it necessary.
func (a *Agent) watchLearning(ctx context.Context) {
	tick := time.NewTicker(learnsEvery)
	defer tick.Stop()
	known := map[*function]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.lookLearning(known)
		}
	}
}
