package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

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
	bridge, _ := f.a.Kernel.LearningBridge(f.netns(), flow.In.String(), flow.Out.String()) // not known: none
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
