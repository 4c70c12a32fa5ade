package router

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

func TestGuard(t *testing.T) {
	mac := flow.MAC{2, 0, 0, 0, 0, 1}
	made := api.EndpointSpec{Netns: "a", Interface: "eth0"}
	addressed := made
	addressed.Address, addressed.Addresses = "10.9.0.1/24", []string{"fd00::1/64"}
	nic := api.EndpointSpec{Interface: "eth1"}
	station := api.EndpointSpec{Switch: "s1", SwitchPort: "2", MAC: "02:00:00:00:00:01", Address: "10.9.0.1/24"}
	with := func(s api.EndpointSpec, p api.PortSecurity) api.EndpointSpec {
		s.PortSecurity = &p
		return s
	}
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	for name, c := range map[string]struct {
		spec api.EndpointSpec
		mac  flow.MAC
		want flow.Guard
	}{
		"a link that Weir made, with addresses": {addressed, mac, flow.Guard{On: true, MACs: []flow.MAC{mac}, Bound: true,
			Addresses: prefixes("10.9.0.1/32", "fd00::1/128", "fe80::ff:fe00:1/128")}},
		"a link that Weir made, without":         {made, mac, flow.Guard{On: true, MACs: []flow.MAC{mac}}},
		"off":                                    {with(addressed, api.PortSecurity{Mode: "off"}), mac, flow.Guard{}},
		"an interface of the host":               {nic, flow.MAC{}, flow.Guard{}},
		"an interface of the host, on":           {with(nic, api.PortSecurity{Mode: "on", DHCPServer: true}), flow.MAC{}, flow.Guard{On: true, DHCPServer: true}},
		"an interface of the host, with a list":  {with(nic, api.PortSecurity{MACs: []string{"02:00:00:00:00:01"}}), flow.MAC{}, flow.Guard{On: true, MACs: []flow.MAC{mac}}},
		"a station whose port and MAC are given": {station, mac, flow.Guard{On: true, MACs: []flow.MAC{mac}, Bound: true, Addresses: prefixes("10.9.0.1/32", "fe80::ff:fe00:1/128")}},
		"a station whose port alone is given":    {api.EndpointSpec{Switch: "s1", SwitchPort: "2", Address: "10.9.0.1/24"}, mac, flow.Guard{}},
		"a station, found by its MAC":            {api.EndpointSpec{MAC: "02:00:00:00:00:01"}, mac, flow.Guard{}},
		"a station, off":                         {with(station, api.PortSecurity{Mode: "off"}), mac, flow.Guard{}},
		"an interface of the host that shares":   {with(nic, api.PortSecurity{Shared: []string{"10.9.0.100"}}), flow.MAC{}, flow.Guard{On: true, Shared: []netip.Addr{netip.MustParseAddr("10.9.0.100")}}},
		"shared addresses bind nobody": {with(made, api.PortSecurity{Shared: []string{"fd00:0::100", "10.9.0.100", "fd00::100"}}), mac,
			flow.Guard{On: true, MACs: []flow.MAC{mac}, Shared: []netip.Addr{netip.MustParseAddr("fd00::100"), netip.MustParseAddr("10.9.0.100")}}},
		"more addresses": {with(made, api.PortSecurity{Addresses: []string{"10.9.5.0/24", "10.9.0.7"}, Router: true}), mac, flow.Guard{On: true, MACs: []flow.MAC{mac},
			Bound: true, Router: true, Addresses: prefixes("10.9.5.0/24", "10.9.0.7/32", "fe80::ff:fe00:1/128")}},
	} {
		got := Guard(c.spec, c.mac)
		if d := cmp.Diff(c.want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
			t.Errorf("%s (-want +got)\n%s", name, d)
		}
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
