package api

import (
	"fmt"
	"strings"
	"testing"
)

func TestPortSecurityIsChecked(t *testing.T) {
	many := func(n int, format string) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf(format, i+1))
		}
		return out
	}
	made := EndpointSpec{Netns: "a", Interface: "eth0", Address: "10.9.0.1/24"}
	for name, c := range map[string]struct {
		spec EndpointSpec
		p    PortSecurity
		want string // path: part of the message; empty: accepted
	}{
		"all of it":               {made, PortSecurity{Mode: "on", MACs: many(7, "02:00:00:00:00:%02x"), Addresses: append(many(31, "10.9.1.%d"), "fd00::/64"), DHCPServer: true, Router: true}, ""},
		"off":                     {made, PortSecurity{Mode: "off"}, ""},
		"another mode":            {made, PortSecurity{Mode: "yes"}, "port_security.mode: want auto, on or off"},
		"off, with a list":        {made, PortSecurity{Mode: "off", MACs: []string{"02:00:00:00:00:01"}}, "port_security.mode: mode off checks nothing"},
		"a MAC that is none":      {made, PortSecurity{MACs: []string{"02:00:00:00:01"}}, "port_security.macs[0]: six pairs"},
		"a group's MAC":           {made, PortSecurity{MACs: []string{"01:00:00:00:00:01"}}, "port_security.macs[0]: no station"},
		"an address that is none": {made, PortSecurity{Addresses: []string{"10.9.0"}}, "port_security.addresses[0]: no address"},
		"bits behind the length":  {made, PortSecurity{Addresses: []string{"10.9.0.1/24"}}, "port_security.addresses[0]: 10.9.0.0/24 for the network"},
		"too many MACs":           {made, PortSecurity{MACs: many(8, "02:00:00:00:00:%02x")}, "port_security.macs: at most 8"},
		"too many addresses":      {made, PortSecurity{Addresses: many(32, "10.9.1.%d")}, "port_security.addresses: at most 32"},
		"too many of IPv6":        {made, PortSecurity{Addresses: many(32, "fd00::%d")}, "port_security.addresses: at most 31"},
		"shared":                  {made, PortSecurity{Shared: []string{"10.9.0.100", "fd00::100"}}, ""},
		"shared, no address":      {EndpointSpec{Netns: "a", Interface: "eth0"}, PortSecurity{Shared: []string{"10.9.0.100"}}, ""},
		"shared, nothing known":   {EndpointSpec{Interface: "eth1"}, PortSecurity{Shared: []string{"10.9.0.100"}}, "port_security.shared: no MAC and no address is known"},
		"shared, a MAC is known":  {EndpointSpec{Interface: "eth1"}, PortSecurity{MACs: []string{"02:00:00:00:00:01"}, Shared: []string{"10.9.0.100"}}, ""},
		"off, and shared":         {made, PortSecurity{Mode: "off", Shared: []string{"10.9.0.100"}}, "port_security.mode: mode off checks nothing"},
		"shared, a network":       {made, PortSecurity{Shared: []string{"10.9.0.100/32"}}, "port_security.shared[0]: want the IPv4 or IPv6 address of a service"},
		"shared, a group":         {made, PortSecurity{Shared: []string{"ff02::1"}}, "port_security.shared[0]: want the IPv4 or IPv6 address of a service"},
		"shared twice":            {made, PortSecurity{Shared: []string{"fd00::1", "fd00:0::1"}}, "port_security.shared[1]: given twice"},
		"shared, its own":         {made, PortSecurity{Shared: []string{"10.9.0.1"}}, "port_security.shared[0]: the endpoint's own"},
		"too many with shared":    {made, PortSecurity{Addresses: many(31, "10.9.1.%d"), Shared: []string{"10.9.0.100"}}, "port_security.addresses: at most 32"},
		"too many shared alone":   {EndpointSpec{Netns: "a", Interface: "eth0"}, PortSecurity{Shared: many(33, "10.9.2.%d")}, "port_security.addresses: at most 32"},
		"a station of the fabric": {EndpointSpec{Switch: "s1", SwitchPort: "3"}, PortSecurity{Mode: "on"}, ""},
	} {
		c.spec.PortSecurity = &c.p
		problems := c.spec.Validate()
		if c.want == "" {
			if len(problems) > 0 {
				t.Errorf("%s: %v", name, problems)
			}
			continue
		}
		path, message, _ := strings.Cut(c.want, ": ")
		if len(problems) != 1 || problems[0].Path != path || !strings.Contains(problems[0].Message, message) {
			t.Errorf("%s: %+v, want %s", name, problems, c.want)
		}
	}
}
