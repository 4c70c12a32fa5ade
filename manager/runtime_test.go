package manager_test

import (
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
)

// hostWith reports a host with runtimes; "docker!" is one that it has not. None: its agent is of a former version, which knows oci alone.
func hostWith(t *testing.T, b *bench, name string, runtimes ...string) {
	t.Helper()
	s := &api.HostStatus{State: "ready", Cores: 4, Memory: 8 << 30, Free: 8 << 30, Heartbeat: time.Now(), Runtime: "oci"}
	for _, r := range runtimes {
		name, missing := strings.CutSuffix(r, "!")
		x := api.HostRuntime{Name: name, Available: !missing, Default: name == "oci"}
		if missing {
			x.Why = "no engine"
		}
		s.Runtimes = append(s.Runtimes, x)
	}
	report(t, b, api.StatusReport{Host: name, HostState: s})
}

// Functions go where their runtime is; they are moved when they name another one, and not when their host loses it.
func TestFunctionsGoWhereTheirRuntimeIs(t *testing.T) {
	b := start(t, manager.Options{})
	hostWith(t, b, "h1")
	hostWith(t, b, "h2", "docker", "oci")
	lead(t, b.m, nil)
	put := func(name, runtime string) {
		t.Helper()
		must(b.Functions().Put(ctx(t), name, api.FunctionSpec{Image: "wire", Runtime: runtime}))(t)
	}
	for _, name := range []string{"a", "b", "c"} {
		put(name, "docker")
	}
	put("d", "lxc")
	for name, want := range map[string]string{"a": "h2", "b": "h2", "c": "h2", "d": ""} {
		if got := at(t, b)[name]; got != want {
			t.Errorf("%s is at %q, want %q", name, got, want)
		}
	}
	f := must(b.Functions().Get(ctx(t), "d"))(t)
	for _, part := range []string{"h1 has no runtime lxc, as far as is known", "h2 has no runtime lxc: the program"} {
		if !strings.Contains(f.Status.Message, part) {
			t.Errorf("%q lacks %q", f.Status.Message, part)
		}
	}
	// The agent of h1 is upgraded, and has lxc: who waited for that goes there.
	hostWith(t, b, "h1", "docker!", "lxc", "oci")
	until(t, "d is at h1", func() bool { return at(t, b)["d"] == "h1" })
	// h2 loses docker.
	hostWith(t, b, "h2", "docker!", "oci")
	put("e", "docker")
	if f := must(b.Functions().Get(ctx(t), "e"))(t); f.At() != "" || !strings.Contains(f.Status.Message, "h2 has no runtime docker: no engine") {
		t.Errorf("e is at %q: %s", f.At(), f.Status.Message)
	}
	put("b", "lxc")
	put("c", "oci")
	for name, want := range map[string]string{"a": "h2", "b": "h1", "c": "h2"} {
		if got := at(t, b)[name]; got != want {
			t.Errorf("after its loss %s is at %q, want %q", name, got, want)
		}
	}
	if !has(events(t, b), "FunctionMoved b: moved from h2 to h1: h2 has no runtime lxc") {
		t.Errorf("%v", events(t, b))
	}
}
