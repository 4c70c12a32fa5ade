package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

// awaited is what `weir apply` waits for: every object as the document has it, and those that it deletes gone.
type awaited struct {
	all      map[string]bool   // "function/fw"
	open     map[string]string // those that are not there yet: what they still are
	messages map[string]string // of functions' status
	warnings map[string]string // of policies that are in force, and lack something that time does not bring
}

// verdict says why an object is not there yet; empty when it is.
type verdict func(item any) string

func await(d api.Document, changes []api.Change) *awaited {
	w := &awaited{all: map[string]bool{}, open: map[string]string{}, messages: map[string]string{}, warnings: map[string]string{}}
	for name := range d.Endpoints {
		w.set("endpoint/"+name, "not seen")
	}
	for name := range d.Functions {
		w.set("function/"+name, "not seen")
	}
	for name := range d.Chains {
		w.set("chain/"+name, "not seen")
	}
	for name := range d.Policies {
		w.set("policy/"+name, "not seen")
	}
	for _, c := range changes {
		if c.Action == "delete" && c.Kind != api.KindSecret { // they are gone at once
			w.set(string(c.Kind)+"/"+c.Name, "being deleted")
		}
	}
	return w
}

// set says what an object still is; "" that it is as wanted.
func (w *awaited) set(key, why string) {
	w.all[key] = true
	if why == "" {
		delete(w.open, key)
		return
	}
	w.open[key] = why
}

// note takes in a step of a kind's watch.
func (w *awaited) note(n noun, step change, deleted map[string]bool, judge verdict) {
	prefix := string(n.kind()) + "/"
	seen := map[string]bool{}
	for _, item := range step.items {
		key := prefix + n.meta(item).Name
		seen[key] = true
		if step.kind == api.DeltaDelete {
			w.gone(key, deleted)
			continue
		}
		if deleted[key] {
			w.set(key, "being deleted")
			continue
		}
		if w.all[key] {
			w.set(key, judge(item))
			switch x := item.(type) {
			case api.Function:
				w.messages[key] = x.Status.Message
			case api.Policy:
				delete(w.warnings, key)
				if c := x.Status.Conditions.Get(api.ConditionUnselected); c != nil {
					w.warnings[key] = "policy " + x.Name + ": " + c.Message
				}
			}
		}
	}
	if step.kind != api.DeltaReset {
		return
	}
	for key := range w.all {
		if strings.HasPrefix(key, prefix) && !seen[key] {
			w.gone(key, deleted)
		}
	}
}

func (w *awaited) gone(key string, deleted map[string]bool) {
	delete(w.messages, key)
	switch {
	case deleted[key]:
		w.set(key, "")
	case w.all[key]:
		w.set(key, "is gone: someone else deleted it")
	}
}

func (w *awaited) missing() []string {
	var missing []string
	for key, why := range w.open {
		missing = append(missing, key+": "+why)
	}
	slices.Sort(missing)
	return missing
}

// one of those that are missing, rather a function than what waits for it; name is the function's, "" of something else.
func (w *awaited) one() (key, name string) {
	for k := range w.open {
		n, function := strings.CutPrefix(k, "function/")
		switch {
		case function && (name == "" || k < key):
			key, name = k, n
		case !function && name == "" && (key == "" || k < key):
			key = k
		}
	}
	return key, name
}

// ready is the verdict on each kind.
func ready(item any) string {
	if o, ok := item.(interface{ Ready() api.Readiness }); ok {
		return o.Ready().String()
	}
	return ""
}

// readyIn is the verdict on the objects of a document: there a policy is not in force as it is wanted while a tap, or a function that may be
// gone round, is left out because it is about to start; nor while it leads where its chain led before: that of a chain across hosts is ready
// with its functions, and its policies' rules come a moment later.
func readyIn(d api.Document) verdict {
	starts := true
	for _, f := range d.Functions {
		starts = starts && (f.State == "" || f.State == api.FunctionStarted)
	}
	return func(item any) string {
		why := ready(item)
		if p, ok := item.(api.Policy); ok && why == "" && starts {
			if c := p.Status.Conditions.Get(api.ConditionPartial); c != nil && c.Reason == api.ReasonWaiting {
				return "in force without " + c.Message
			}
		}
		if p, ok := item.(api.Policy); ok && why == "" && starts && plain(p.Status) && !renders(p.Status.RenderedPath, d.Chains[p.Spec.Chain].Path) {
			return "in force as its chain was before"
		}
		return why
	}
}

// plain tells of a policy in force that nothing is left out of its way.
func plain(s api.PolicyStatus) bool {
	return s.Message == "" || s.Conditions.Get(api.ConditionUnselected) != nil
}

// renders tells whether a rendered path meets a chain's functions. One of which nothing is known does.
func renders(rendered []string, chain string) bool {
	hops, err := api.ParsePath(chain)
	if err != nil || len(rendered) == 0 {
		return true
	}
	var in, taps, wantIn, wantTaps []string
	for _, port := range rendered {
		f, ok := strings.CutPrefix(port, "function/")
		name, side, _ := strings.Cut(f, "/")
		switch {
		case ok && side == "in":
			in = append(in, name)
		case ok && side == "tap":
			taps = append(taps, name)
		}
	}
	for _, h := range hops {
		if h.Tap {
			wantTaps = append(wantTaps, h.Function)
		} else {
			wantIn = append(wantIn, h.Function)
		}
	}
	slices.Sort(taps) // copies have no order
	slices.Sort(wantTaps)
	return slices.Equal(in, wantIn) && slices.Equal(taps, wantTaps)
}

// waitFor watches until everything is as the document has it.
func (a *app) waitFor(ctx context.Context, c *api.Client, d api.Document, changes []api.Change) error {
	w := await(d, changes)
	deleted := map[string]bool{}
	for _, ch := range changes {
		if ch.Action == "delete" && ch.Kind != api.KindSecret {
			deleted[string(ch.Kind)+"/"+ch.Name] = true
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type news struct {
		n    noun
		step change
	}
	steps := make(chan news)
	for _, n := range []noun{endpoints(), functions(), chains(), policies()} {
		go func() {
			for step := range n.watch(ctx, c, api.ListOptions{}) {
				select {
				case steps <- news{n, step}:
				case <-ctx.Done():
				}
			}
		}()
	}
	p := a.Progress()
	defer p.Clear()
	tick := time.NewTicker(command.ShowEvery)
	defer tick.Stop()
	show := true
	back := a.returns(c, p)
	for len(w.open) > 0 {
		if show { // not at each of thousands of steps
			key, _ := w.one()
			p.Show("%d of %d ready; waiting for %s: %s", len(w.all)-len(w.open), len(w.all), key, w.open[key])
			p.Tell(key, w.messages[key])
			show = false
		}
		select {
		case <-ctx.Done():
			return w.notReady(context.Cause(ctx))
		case <-tick.C:
			show = true
		case s := <-steps:
			if s.step.kind == api.DeltaError {
				if permanent(s.step.err) {
					return s.step.err
				}
				if _, err := back(ctx); err != nil {
					return w.notReady(err)
				}
				continue
			}
			w.note(s.n, s.step, deleted, readyIn(d))
		}
	}
	p.Clear()
	for _, key := range slices.Sorted(maps.Keys(w.warnings)) {
		fmt.Fprintf(a.Stderr, "weir: warning: %s\n", command.Printable(w.warnings[key]))
	}
	return nil
}

const maxMissing = 10

// notReady says what was still being waited for.
func (w *awaited) notReady(cause error) error {
	missing, more, hint := w.missing(), "", "`weir events` and `weir describe`"
	if _, name := w.one(); name != "" {
		hint = fmt.Sprintf("`weir describe function %s`, %s", name, functionHint(name))
	}
	if n := len(missing) - maxMissing; n > 0 {
		missing, more = missing[:maxMissing], fmt.Sprintf("\n  and %d more", n)
	}
	return fmt.Errorf("%w; not ready:\n  %s%s\nlook at %s", cause, strings.Join(missing, "\n  "), more, hint)
}
