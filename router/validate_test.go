package router

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
)

// document: alice, bob and carol, three functions in two chains, no policies.
func document() api.Document {
	d := api.Document{
		Endpoints: map[string]api.EndpointSpec{},
		Functions: map[string]api.FunctionSpec{"fw": {Image: "firewall"}, "w1": {Image: "wire"}, "w2": {Image: "wire"}, "mon": {Image: "monitor"}},
		Chains:    map[string]api.ChainSpec{"web": {Path: "fw | w1 | tap:mon"}, "alt": {Path: "w2"}},
		Policies:  map[string]api.PolicySpec{},
	}
	for i, name := range []string{"alice", "bob", "carol"} {
		d.Endpoints[name] = api.EndpointSpec{Netns: name, Interface: "eth0", Address: fmt.Sprintf("10.9.0.%d/24", i+1)}
	}
	return d
}

func TestValidate(t *testing.T) {
	no := false
	policy := func(p api.PolicySpec, more ...api.PolicySpec) func(*api.Document) {
		return func(d *api.Document) {
			for i, p := range append([]api.PolicySpec{p}, more...) {
				d.Policies[fmt.Sprintf("p%d", i+1)] = p
			}
		}
	}
	tests := []struct {
		name   string
		change func(*api.Document)
		want   []string // "path: part of the message (part of the hint"
	}{
		{"sound", policy(api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}), nil},
		{"unknown endpoint", policy(api.PolicySpec{From: "alise", Chain: "web"}), []string{`policies.p1.from: endpoint "alise" is not there|did you mean "alice"?`}},
		{"unknown chain", policy(api.PolicySpec{From: "alice", Chain: "wob"}), []string{`policies.p1.chain: chain "wob" is not there|did you mean "web"?`}},
		{"unknown function", func(d *api.Document) { d.Chains["x"] = api.ChainSpec{Path: "proxy"} }, []string{`chains.x.path: function "proxy" is not there|define the function`}},
		{"function in two chains", func(d *api.Document) { d.Chains["x"] = api.ChainSpec{Path: "w1"} }, []string{`chains.x.path: function "w1" is in chain "web" already|second function`}},
		{"loop", func(d *api.Document) { d.Chains["web"] = api.ChainSpec{Path: "fw | w1 | fw"} }, []string{`chains.web.path: function "fw" stands`}},
		{"one interface twice", func(d *api.Document) {
			d.Endpoints["dave"] = api.EndpointSpec{Netns: "/run/netns/bob", Interface: "eth0"}
		}, []string{`endpoints.dave.interface: interface eth0 in netns bob is that of endpoint "bob" already`}},
		{"one host interface twice", func(d *api.Document) {
			d.Endpoints["x"], d.Endpoints["y"] = api.EndpointSpec{Interface: "eth1"}, api.EndpointSpec{Interface: "eth1"}
		}, []string{`endpoints.y.interface: interface eth1 is that of endpoint "x" already`}},
		{"one interface name at two hosts, and stations of the fabric", func(d *api.Document) {
			d.Endpoints["x"], d.Endpoints["y"] = api.EndpointSpec{Interface: "eth1", Host: "h1"}, api.EndpointSpec{Interface: "eth1", Host: "h2"}
			d.Endpoints["s1"], d.Endpoints["s2"] = api.EndpointSpec{Address: "10.9.0.77/24"}, api.EndpointSpec{Address: "10.9.0.78/24"}
		}, nil},
		{"one address twice", func(d *api.Document) {
			d.Endpoints["dave"] = api.EndpointSpec{Netns: "dave", Interface: "eth0", Addresses: []string{"10.9.0.2/16"}}
		}, []string{`endpoints.dave.addresses[0]: address 10.9.0.2 is that of endpoint "bob" already`}},
		{"a shared address", func(d *api.Document) {
			for _, n := range []string{"alice", "bob"} {
				e := d.Endpoints[n]
				e.PortSecurity = &api.PortSecurity{Shared: []string{"10.9.0.100"}}
				d.Endpoints[n] = e
			}
		}, nil},
		{"an address that is owned and shared", func(d *api.Document) {
			d.Endpoints["dave"] = api.EndpointSpec{Netns: "dave", Interface: "eth0", PortSecurity: &api.PortSecurity{Shared: []string{"10.9.0.2"}}}
		}, []string{`endpoints.dave.port_security.shared[0]: address 10.9.0.2 is that of endpoint "bob"|belongs to no endpoint`}},
		{"an address that is shared, and that another may tell of", func(d *api.Document) {
			d.Endpoints["dave"] = api.EndpointSpec{Netns: "dave", Interface: "eth0", PortSecurity: &api.PortSecurity{Addresses: []string{"10.9.0.77"}}}
			d.Endpoints["erin"] = api.EndpointSpec{Netns: "erin", Interface: "eth0", PortSecurity: &api.PortSecurity{Shared: []string{"10.9.0.78", "10.9.0.77"}}}
		}, []string{`endpoints.erin.port_security.shared[1]: address 10.9.0.77 is also in port_security.addresses of endpoint "dave"|belongs to no endpoint`}},
		{"one MAC twice", func(d *api.Document) {
			for _, n := range []string{"x", "y"} {
				d.Endpoints[n] = api.EndpointSpec{Netns: n, Interface: "e", MAC: "02:00:00:00:00:0a"}
			}
		}, []string{`endpoints.y.mac: MAC 02:00:00:00:00:0a is that of endpoint "x" already`}},
		{"conflict", policy(api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/80-90"}, Chain: "web"}, api.PolicySpec{To: "bob", Match: []string{"tcp/85"}, Chain: "alt"}),
			[]string{`policies.p2: conflicts with policy "p1": both have the priority 100 and select this packet: tcp 10.9.0.1:1024 -> 10.9.0.2:85, entering at endpoint/alice, leaving at endpoint/bob|another priority`}},
		{"conflict where frames enter a fabric", func(d *api.Document) {
			fabric(d)
			policy(api.PolicySpec{From: "s1", To: "s2", Match: []string{"tcp/80"}, Chain: "web"}, api.PolicySpec{To: "10.9.0.0/25", Match: []string{"ip"}, Chain: "alt", Symmetric: &no})(d)
		}, []string{`policies.p2: conflicts with policy "p1": both have the priority 100 and select this packet: tcp 10.9.0.77:1024 -> 10.9.0.78:80, entering at endpoint/s1|another priority`}},
		{"conflict of a reply, where it enters a fabric", func(d *api.Document) {
			fabric(d)
			policy(api.PolicySpec{From: "alice", To: "s2", Match: []string{"tcp/80"}, Chain: "web"}, api.PolicySpec{From: "s2", To: "any", Match: []string{"tcp"}, Chain: "alt", Symmetric: &no})(d)
		}, []string{`policies.p2: conflicts with policy "p1": both have the priority 100 and select this packet: tcp 10.9.0.78:80 -> 10.9.0.1:80, entering at endpoint/s2`}},
		{"other addresses in a fabric", func(d *api.Document) {
			fabric(d)
			policy(api.PolicySpec{From: "s1", To: "s2", Match: []string{"tcp/80"}, Chain: "web"}, api.PolicySpec{To: "10.8.0.0/16", Match: []string{"ip"}, Chain: "alt", Symmetric: &no})(d)
		}, nil},
		{"other priority in a fabric", func(d *api.Document) {
			fabric(d)
			policy(api.PolicySpec{From: "s1", To: "s2", Match: []string{"tcp/80"}, Chain: "web"}, api.PolicySpec{To: "10.9.0.0/25", Match: []string{"ip"}, Chain: "alt", Symmetric: &no, Priority: 7})(d)
		}, nil},
		{"where it enters and where it leaves, of one host", func(d *api.Document) {
			fabric(d)
			policy(api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}, api.PolicySpec{From: "alice", To: "any", Match: []string{"tcp"}, Chain: "alt", Symmetric: &no})(d)
		}, nil},
		{"where it enters and where it leaves", policy(api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}, api.PolicySpec{From: "alice", To: "any", Match: []string{"tcp"}, Chain: "alt", Symmetric: &no}), nil},
		{"other priority", policy(api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/80-90"}, Chain: "web"}, api.PolicySpec{To: "bob", Match: []string{"tcp/85"}, Chain: "alt", Priority: 99}), nil},
		{"other service", policy(api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/80-90"}, Chain: "web"}, api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/91"}, Chain: "alt"}), nil},
		{"conflict of CIDRs", policy(api.PolicySpec{From: "10.0.0.0/8", To: "any", Chain: "web", Symmetric: &no}, api.PolicySpec{From: "10.9.0.0/16", Match: []string{"udp"}, Chain: "alt", Symmetric: &no}),
			[]string{`policies.p2: conflicts with policy "p1": both have the priority 100 and select this packet: udp 10.9.0.1:1024 -> 10.0.0.2:80, entering anywhere`}},
		{"conflict of exhaustive and selective", policy(api.PolicySpec{From: "alice", Mode: api.ModeExhaustive, Chain: "web"}, api.PolicySpec{From: "bob", To: "alice", Match: []string{"arp"}, Chain: "alt"}),
			[]string{`policies.p2: conflicts with policy "p1": both have the priority 100 and select this packet: arp 02:00:00:00:00:01 -> 02:00:00:00:00:02, entering at endpoint/bob, leaving at endpoint/alice`}},
		{"conflict of a reply and a request", policy(api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}, api.PolicySpec{From: "bob", To: "alice", Match: []string{"tcp/8080"}, Chain: "alt"}),
			[]string{`policies.p2: conflicts with policy "p1": both have the priority 100 and select this packet: tcp 10.9.0.1:8080 -> 10.9.0.2:80, entering at endpoint/alice, leaving at endpoint/bob`}}, // and the other way round: one report is enough
		{"conflict of a MAC", policy(api.PolicySpec{From: "02:00:00:00:00:99", Match: []string{"tcp"}, Chain: "web", Symmetric: &no}, api.PolicySpec{From: "alice", To: "10.1.0.0/16", Match: []string{"tcp"}, Chain: "alt"}),
			[]string{`policies.p2: conflicts with policy "p1": both have the priority 100 and select this packet: tcp 10.9.0.1:1024 -> 10.1.0.1:80 (02:00:00:00:00:99 -> 02:00:00:00:00:02), entering at endpoint/alice`}},
		{"replica beside selective", policy(api.PolicySpec{From: "alice", To: "bob", Chain: "web"}, api.PolicySpec{From: "alice", To: "bob", Mode: api.ModeReplica, Chain: "alt"}), nil},
		{"replica in a steering chain", policy(api.PolicySpec{From: "alice", To: "bob", Chain: "web"}, api.PolicySpec{From: "carol", To: "bob", Mode: api.ModeReplica, Chain: "web"}),
			[]string{`policies.p2: chain web is used by the selective policy p1 and by the replica policy p2`}},
		{"shared, exits of two kinds", policy(api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp"}, Chain: "web"}, api.PolicySpec{From: "carol", To: "10.1.0.0/16", Match: []string{"tcp"}, Chain: "web"}),
			[]string{`policies.p2: chain web cannot be shared by the policies p1 and p2: forward, frames leave it to endpoint/bob for one and back to where they entered (endpoint/carol) for the other`}},
		{"shared, may be multicast", policy(api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp"}, Chain: "web"}, api.PolicySpec{From: "alice", To: "carol", Match: []string{"tcp", "udp/53"}, Chain: "web"}),
			[]string{`policies.p2: chain web cannot be shared by the policies p1 and p2: forward, it ends at several endpoints`}},
		{"shared, one exit each way", policy(api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp"}, Chain: "web"}, api.PolicySpec{From: "alice", To: "bob", Match: []string{"udp"}, Chain: "web"}), nil},
		{"shared, tcp to several", policy(api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp"}, Chain: "web"}, api.PolicySpec{From: "alice", To: "carol", Match: []string{"tcp"}, Chain: "web"}), nil},
		{"request and reply alike", policy(api.PolicySpec{Match: []string{"tcp"}, Chain: "web"}),
			[]string{`policies.p1: from any to any, frames and their replies (tcp) look the same|symmetric: false`}},
		{"overlapping CIDRs", policy(api.PolicySpec{From: "10.0.0.0/8", To: "10.9.0.0/16", Match: []string{"tcp/80", "icmp"}, Chain: "web"}),
			[]string{`policies.p1: from 10.0.0.0/8 to 10.9.0.0/16, frames and their replies (icmp) look the same between two addresses of 10.9.0.0/16, so the chain's direction cannot be told|no address in common`}},
		{"a CIDR to any", policy(api.PolicySpec{From: "10.0.0.0/8", Match: []string{"udp"}, Chain: "web"}),
			[]string{`policies.p1: from 10.0.0.0/8 to any, frames and their replies (udp) look the same between two addresses of 10.0.0.0/8`}},
		{"overlapping CIDRs one way", policy(api.PolicySpec{From: "10.0.0.0/8", To: "10.9.0.0/16", Chain: "web", Symmetric: &no}), nil},
		{"overlapping CIDRs by service", policy(api.PolicySpec{From: "10.0.0.0/8", To: "10.9.0.0/16", Match: []string{"tcp/80"}, Chain: "web"}), nil},
		{"other CIDRs", policy(api.PolicySpec{From: "10.8.0.0/16", To: "10.9.0.0/16", Chain: "web"}), nil},
		{"one address to any", policy(api.PolicySpec{From: "10.9.0.3", Chain: "web"}), nil},
		{"one MAC to any", policy(api.PolicySpec{From: "02:00:00:00:00:99", Chain: "web"}), nil},
		{"an endpoint to a CIDR", policy(api.PolicySpec{From: "alice", To: "10.9.0.0/16", Chain: "web"}), nil},
		{"any to any one way", policy(api.PolicySpec{Match: []string{"tcp"}, Chain: "web", Symmetric: &no}), nil},
		{"any to any by service", policy(api.PolicySpec{Match: []string{"tcp/80"}, Chain: "web"}), nil},
		{"ARP by address", policy(api.PolicySpec{From: "10.0.0.0/8", Match: []string{"arp"}, Chain: "web"}), []string{`policies.p1: match "arp" can never meet from 10.0.0.0/8 to any: ARP has no IP header`}},
		{"all at once", func(d *api.Document) {
			d.Functions["fw"] = api.FunctionSpec{}
			d.Policies["p"] = api.PolicySpec{From: "alice", Chain: "none", Match: []string{"x"}}
		}, []string{`functions.fw.image: `, `policies.p.match[0]: `, `policies.p.chain: `}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := document()
			tt.change(&d)
			got := Validate(d)
			ok := len(got) == len(tt.want)
			for i := 0; ok && i < len(got); i++ {
				message, hint, _ := strings.Cut(tt.want[i], "|")
				ok = strings.HasPrefix(got[i].Path+": "+got[i].Message, message) && strings.Contains(got[i].Hint, hint)
			}
			if !ok {
				t.Errorf("got %v\nwant %q", got, tt.want)
			}
			if diff := cmp.Diff(got, Validate(d)); diff != "" {
				t.Errorf("not the same again: %s", diff)
			}
		})
	}
}

// Of two that do not go together the new one is to blame, also if it is the first in the alphabet.
func TestWhatIsNewIsToBlame(t *testing.T) {
	d := document()
	d.Policies["guests"] = api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}
	if got := Validate(d); len(got) > 0 {
		t.Fatal(got)
	}
	for name, x := range map[string]struct {
		add  api.Document
		want []string
	}{
		"two policies of one priority": {api.Document{Policies: map[string]api.PolicySpec{"a": {To: "bob", Match: []string{"tcp"}, Chain: "alt"}}},
			[]string{`policies.a: conflicts with policy "guests"`}},
		"two new ones": {api.Document{Policies: map[string]api.PolicySpec{"a": {To: "carol", Match: []string{"tcp"}, Chain: "alt"}, "z": {To: "carol", Match: []string{"tcp/80"}, Chain: "alt"}}},
			[]string{`policies.z: conflicts with policy "a"`}},
		"a new one twice": {api.Document{Policies: map[string]api.PolicySpec{"a": {To: "bob", Match: []string{"tcp"}, Chain: "alt"}, "z": {From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}}},
			[]string{`policies.a: conflicts with policy "guests"`, `policies.z: conflicts with policy "a"`, `policies.z: conflicts with policy "guests"`}},
		"policies that cannot share a chain": {api.Document{Policies: map[string]api.PolicySpec{"a": {From: "carol", To: "bob", Mode: api.ModeReplica, Chain: "web"}}},
			[]string{`policies.a: chain web is used by the selective policy guests and by the replica policy a`}},
		"an interface that is a port": {api.Document{Endpoints: map[string]api.EndpointSpec{"aaron": {Netns: "bob", Interface: "eth0"}}},
			[]string{`endpoints.aaron.interface: interface eth0 in netns bob is that of endpoint "bob" already`}},
		"an address that is taken": {api.Document{Endpoints: map[string]api.EndpointSpec{"aaron": {Netns: "aaron", Interface: "eth0", Address: "10.9.0.2/24"}}},
			[]string{`endpoints.aaron.address: address 10.9.0.2 is that of endpoint "bob" already`}},
	} {
		t.Run(name, func(t *testing.T) {
			d := document()
			d.Policies["guests"] = api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}
			maps.Copy(d.Policies, x.add.Policies)
			maps.Copy(d.Endpoints, x.add.Endpoints)
			var got []string
			for _, p := range ValidateChange(d, x.add) {
				got = append(got, p.Path+": "+p.Message)
			}
			slices.Sort(got)
			if len(got) != len(x.want) {
				t.Fatalf("%q, want %q", got, x.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], x.want[i]) {
					t.Errorf("%q, want %q", got[i], x.want[i])
				}
			}
		})
	}
}

// fabric puts all that a document has at one host and adds two stations of switches.
func fabric(d *api.Document) {
	for name, e := range d.Endpoints {
		e.Host = "h1"
		d.Endpoints[name] = e
	}
	for name, f := range d.Functions {
		f.Host = "h1"
		d.Functions[name] = f
	}
	d.Endpoints["s1"], d.Endpoints["s2"] = api.EndpointSpec{Address: "10.9.0.77/24"}, api.EndpointSpec{Address: "10.9.0.78/24"}
}

func TestManyConflictsAreBounded(t *testing.T) {
	d := document()
	for i := range 50 {
		d.Policies[fmt.Sprint("p", i)] = api.PolicySpec{From: "alice", To: "bob", Chain: "web"}
	}
	if n := len(Validate(d)); n != maxConflicts {
		t.Errorf("%d problems, want %d", n, maxConflicts)
	}
}

// many makes n policies of one priority: distinct CIDRs, ten chains, twenty endpoints.
func many(n int) api.Document {
	d := document()
	for i := range 20 {
		d.Endpoints[fmt.Sprint("e", i)] = api.EndpointSpec{Netns: fmt.Sprint("n", i), Interface: "eth0"}
	}
	for i := range 10 {
		d.Functions[fmt.Sprint("f", i)] = api.FunctionSpec{Image: "wire"}
		d.Chains[fmt.Sprint("c", i)] = api.ChainSpec{Path: fmt.Sprint("f", i)}
	}
	for i := range n {
		d.Policies[fmt.Sprint("p", i)] = api.PolicySpec{From: fmt.Sprintf("10.%d.%d.0/24", i/250, i%250), To: fmt.Sprintf("172.16.%d.0/24", i%16), Match: []string{"tcp/80", "udp/53"}, Chain: fmt.Sprint("c", i%10)}
	}
	return d
}

func BenchmarkValidate(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d := many(n)
			for b.Loop() {
				if p := Validate(d); len(p) != 0 {
					b.Fatal(p[0])
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d := many(n)
			in := Input{Chains: d.Chains, Policies: d.Policies, Functions: map[string]Function{}}
			for i := range 10 {
				in.Functions[fmt.Sprint("f", i)] = Function{In: 100 + 2*portOf(i), Out: 101 + 2*portOf(i)}
			}
			for b.Loop() {
				if out := Compile(in); len(out.Errors) > 0 || len(out.Rules) < 4*n {
					b.Fatal(out.Errors, len(out.Rules))
				}
			}
		})
	}
}
