package router

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/cases"
)

// world is the reference switch with a case's objects in it.
type world struct {
	*flow.Switch
	in Input
}

func newWorld(t fataler, endpoints, functions []string, down map[string]api.OnFail) world {
	w := world{flow.New(), Input{Endpoints: map[string]flow.Port{}, Functions: map[string]Function{}}}
	next := flow.Port(0)
	port := func() flow.Port { next++; return next }
	for _, name := range endpoints {
		w.in.Endpoints[name] = port()
		must(t, w.AddEndpoint(w.in.Endpoints[name], name))
	}
	for _, name := range functions {
		f, onFail := Function{}, api.OnFailDrop
		short, isTap := strings.CutPrefix(name, "tap:")
		if o, ok := down[short]; ok {
			onFail = o
		}
		if f.OnFail = onFail; isTap {
			f.Tap = port()
		} else {
			f.In, f.Out = port(), port()
		}
		_, isDown := down[short]
		w.in.Functions[short] = f
		must(t, w.AddFunction(flow.Function{Name: short, In: f.In, Out: f.Out, Tap: f.Tap, Down: isDown, Bypass: onFail == api.OnFailBypass}))
	}
	for _, name := range endpoints {
		_, err := w.Inject(w.in.Endpoints[name], cases.Prime(name))
		must(t, err)
	}
	return w
}

type fataler interface{ Fatal(args ...any) }

func must(t fataler, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

func TestCases(t *testing.T) {
	for _, c := range cases.All() {
		t.Run(c.Name, func(t *testing.T) {
			w := newWorld(t, c.Endpoints, c.Functions, c.Down)
			w.in.Chains, w.in.Policies = c.Chains, c.Policies
			out := Compile(w.in)
			for p, err := range out.Errors {
				t.Errorf("policy %s: %v", p, err)
			}
			must(t, w.Commit(out.Rules))
			for _, f := range c.Frames {
				t.Run(f.Name, func(t *testing.T) {
					r, err := w.Inject(w.in.Endpoints[f.At], f.Bytes)
					must(t, err)
					got := seen(r)
					got.Name, got.At, got.Bytes = f.Name, f.At, f.Bytes
					if diff := cmp.Diff(f, got, cmpopts.EquateEmpty()); diff != "" {
						t.Errorf("%s\n%v", diff, r.Trail)
					}
					for _, d := range append(r.Deliveries, r.Taps...) {
						if string(d.Frame) != string(f.Bytes) {
							t.Errorf("changed on the way:\n% x\n% x", f.Bytes, d.Frame)
						}
					}
				})
			}
		})
	}
}

// seen sorts a result into what a case tells of.
func seen(r flow.Result) cases.Frame {
	var f cases.Frame
	copied := map[int]bool{} // branches that are copies
	for _, s := range r.Trail {
		switch {
		case s.Event == flow.Copied:
			copied[s.Branch] = true
		case s.Event == flow.Steered && copied[s.Branch]:
			f.Copies = append(f.Copies, s.Name)
		case s.Event == flow.Steered:
			f.Meets = append(f.Meets, s.Name)
		case s.Event == flow.Delivered:
			f.Arrives = append(f.Arrives, strings.TrimPrefix(s.Name, "endpoint/"))
		}
	}
	slices.Sort(f.Arrives)
	return f
}
