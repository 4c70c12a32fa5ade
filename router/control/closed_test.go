package control

import (
	"fmt"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/openflow/fake"
)

// A policy that was in force drops its frames while its function is stopped, also by the word of a router that was started meanwhile.
func TestAPolicyWhoseFunctionIsStoppedStaysClosedThroughARestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1", 2: "s2"}})
	s1, _, h := fig2(t, r, fake.Config{})
	if _, err := r.client.Policies().Put(t.Context(), "p", api.PolicySpec{From: "vm1", Chain: "c"}); err != nil {
		t.Fatal(err)
	}
	r.waitPolicy("p", "active")
	h.report(api.StatusReport{Host: "h1", Functions: map[string]api.FunctionStatus{"fw": {ObservedGeneration: 1, State: api.FunctionStopped, Host: "h1"}}})
	closed := func() string {
		var all []string
		for _, f := range s1.Flows() {
			if text := f.String(); strings.Contains(text, "nw_src=10.0.0.1") {
				if strings.HasSuffix(text, "actions=drop") {
					return ""
				}
				all = append(all, text)
			}
		}
		return fmt.Sprintf("%v", all)
	}
	eventually(t, "the frames of p are dropped", closed)
	r.waitPolicy("p", "pending")
	r.stop()
	r.start()
	h.function("other") // what is active only now, the second life has put in force
	if _, err := r.client.Chains().Put(t.Context(), "d", api.ChainSpec{Path: "other"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.Policies().Put(t.Context(), "q", api.PolicySpec{From: "vm2", To: "vm1", Match: []string{"udp/53"}, Chain: "d"}); err != nil {
		t.Fatal(err)
	}
	r.waitPolicy("q", "active")
	if p := r.waitPolicy("p", "pending"); !p.Status.InForce {
		t.Errorf("%+v", p.Status)
	}
	if open := closed(); open != "" {
		t.Errorf("frames of p are let past: %s", open)
	}
}

// A policy that never was in force drops its frames from the first computation on, while its function is not ready, unless that says bypass.
func TestANewPolicyIsClosed(t *testing.T) {
	t.Parallel()
	for _, onFail := range []api.OnFail{api.OnFailDrop, api.OnFailBypass} {
		t.Run(string(onFail), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{Names: map[uint64]string{1: "s1", 2: "s2"}})
			s1, _, _ := fig2(t, r, fake.Config{})
			if _, err := r.client.Functions().Put(t.Context(), "late", api.FunctionSpec{Image: "wire", OnFail: onFail}); err != nil {
				t.Fatal(err)
			}
			if _, err := r.client.Chains().Put(t.Context(), "l", api.ChainSpec{Path: "late"}); err != nil {
				t.Fatal(err)
			}
			if _, err := r.client.Policies().Put(t.Context(), "p", api.PolicySpec{From: "vm1", Chain: "l"}); err != nil {
				t.Fatal(err)
			}
			closed := func() string {
				var all []string
				for _, f := range s1.Flows() {
					if text := f.String(); strings.Contains(text, "nw_src=10.0.0.1") {
						if strings.HasSuffix(text, "actions=drop") {
							return ""
						}
						all = append(all, text)
					}
				}
				return fmt.Sprintf("no entry drops them: %v", all)
			}
			if onFail == api.OnFailDrop {
				eventually(t, "the frames of p are dropped", closed)
			}
			p := r.waitPolicy("p", "pending")
			eventually(t, "the status tells what becomes of its frames", func() string {
				if p = r.waitPolicy("p", "pending"); p.Status.Conditions.Get(api.ConditionOpen) != nil {
					return p.Status.Message
				}
				return ""
			})
			if told := p.Status.Conditions.Get(api.ConditionClosed) != nil; told != (onFail == api.OnFailDrop) || p.Status.InForce {
				t.Errorf("%+v", p.Status)
			}
			if onFail == api.OnFailBypass && closed() == "" {
				t.Error("its function says bypass, but its frames are dropped")
			}
		})
	}
}
