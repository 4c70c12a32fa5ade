package api

import (
	"testing"

	"weir.dev/weir/portkind"
)

// What a host says of a function's runtime, also a host whose agent is of a former version.
func TestRuntimeOfAHost(t *testing.T) {
	now := HostStatus{Runtime: "oci", Runtimes: []HostRuntime{{Name: "docker", Why: "no engine"}, {Name: "oci", Available: true, Default: true, Version: "1.1"}}}
	former := HostStatus{Runtime: "oci", RuntimePorts: []portkind.Kind{portkind.Veth}}
	for name, x := range map[string]struct {
		host      HostStatus
		spec      string
		want      string
		ok, there bool
	}{
		"the default":                      {now, "", "oci", true, true},
		"the default by its name":          {now, "oci", "oci", true, true},
		"one that is not available":        {now, "docker", "docker", true, false},
		"one that nobody knows there":      {now, "kvm", "kvm", false, false},
		"former version, the default":      {former, "", "oci", true, true},
		"former version, its only one":     {former, "oci", "oci", true, true},
		"former version, another":          {former, "docker", "docker", false, false},
		"a host of which nothing is known": {HostStatus{}, "", "", true, true},
	} {
		r, ok := x.host.RuntimeOf(x.spec)
		if r.Name != x.want || ok != x.ok || r.Available != x.there {
			t.Errorf("%s: %+v, %v", name, r, ok)
		}
	}
	if r, _ := former.RuntimeOf(""); len(r.Ports) != 1 || r.Ports[0] != portkind.Veth {
		t.Errorf("former version: ports %v", r.Ports)
	}
}
