package agent

import (
	"fmt"
	"maps"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// endpointMAC is the address that the station behind an endpoint has, or would get; false if it is not Weir's to give.
func (a *Agent) endpointMAC(name string, s api.EndpointSpec) (flow.MAC, bool) {
	if s.MAC != "" {
		m, err := api.ParseMAC(s.MAC)
		return m, err == nil
	}
	if s.Netns == "" {
		return flow.MAC{}, false
	}
	return a.Instance.MAC("endpoint/" + name), true
}

// macTaken tells whose address an endpoint of a document would have: one that Weir derives from names counts as one that is given.
func (a *Agent) macTaken(name string, d api.Document) *api.Problem {
	mine, ok := a.endpointMAC(name, d.Endpoints[name])
	if !ok {
		return nil
	}
	owner := ""
	for _, other := range slices.Sorted(maps.Keys(d.Endpoints)) {
		if theirs, ok := a.endpointMAC(other, d.Endpoints[other]); ok && other != name && theirs == mine {
			owner = fmt.Sprintf("endpoint %q", other)
		}
		if a.Instance.MAC("endpoint/"+other+"/switch") == mine {
			owner = fmt.Sprintf("the switch's side of endpoint %q", other)
		}
	}
	for _, fn := range slices.Sorted(maps.Keys(d.Functions)) {
		for side := range flow.Sides {
			for _, end := range []string{"", "/switch"} {
				if a.Instance.MAC(side.Of(fn)+end) == mine {
					owner = fmt.Sprintf("function %q", fn)
				}
			}
		}
	}
	if a.Instance.MAC("bridge") == mine {
		owner = "the switch"
	}
	if owner == "" {
		return nil
	}
	return &api.Problem{Path: "mac", Message: fmt.Sprintf("MAC %s is that of %s already", mine, owner), Hint: "two stations of one network cannot share a MAC: choose another, or leave mac out"}
}
