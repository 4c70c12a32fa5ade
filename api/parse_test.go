package api

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// says checks an error's text; "" wants none.
func says(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && err == nil:
		t.Errorf("accepted; want an error with %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("got %q, want %q in it", err, want)
	}
}

func TestParsePath(t *testing.T) {
	tests := []struct {
		text string
		want []PathHop
		says string
	}{
		{"fw", []PathHop{{"fw", false}}, ""},
		{" fw|w1 |tap:mon ", []PathHop{{"fw", false}, {"w1", false}, {"mon", true}}, ""},
		{"tap: mon", []PathHop{{"mon", true}}, ""},
		{"", nil, "empty chain"},
		{"fw || w1", nil, `place 2 of the chain: "" is no function's name`},
		{"fw | Tap:mon", nil, `place 2 of the chain: "Tap:mon"`},
		{"fw > w1", nil, `place 1 of the chain`},
		{"fw | w1 | fw", nil, `function "fw" stands at place 1 and again at place 3: a loop`},
		{"tap:a | tap:b | tap:c | tap:d | tap:e", nil, "at most 4 taps"},
		{"tap:a | tap:b | f | tap:c | tap:d | tap:e", []PathHop{{"a", true}, {"b", true}, {"f", false}, {"c", true}, {"d", true}, {"e", true}}, ""},
		{strings.Repeat("f | ", MaxHops) + "f", nil, "at most 256"},
	}
	for _, tt := range tests {
		t.Run(tt.text[:min(len(tt.text), 40)], func(t *testing.T) {
			got, err := ParsePath(tt.text)
			says(t, err, tt.says)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseSelector(t *testing.T) {
	prefix := func(text string) Selector {
		return Selector{Kind: SelectPrefix, Prefix: netip.MustParsePrefix(text)}
	}
	tests := []struct {
		text string
		want Selector
		name string // rules' cookies are made of it: another one would be other rules
		says string
	}{
		{"", Selector{}, "any", ""},
		{"any", Selector{}, "any", ""},
		{"alice", Selector{Kind: SelectEndpoint, Endpoint: "alice"}, "endpoint/alice", ""},
		{"10.9.0.0/24", prefix("10.9.0.0/24"), "10.9.0.0/24", ""},
		{"10.9.0.1", prefix("10.9.0.1/32"), "10.9.0.1/32", ""},
		{"fd00::/8", prefix("fd00::/8"), "fd00::/8", ""},
		{"fd00::1", prefix("fd00::1/128"), "fd00::1/128", ""},
		{"02:00:00:00:00:0A", Selector{Kind: SelectMAC, MAC: [6]byte{2, 0, 0, 0, 0, 10}}, "02:00:00:00:00:0a", ""},
		{"10.9.0.1/24", Selector{}, "", "write 10.9.0.0/24 for the network or 10.9.0.1 for the host"},
		{"10.9.0.300", Selector{}, "", "no address, CIDR or MAC"},
		{"10.9.0.0/33", Selector{}, "", "no address, CIDR or MAC"},
		{"02:00:00:00:00", Selector{}, "", "no address, CIDR or MAC"},
		{"02-00-00-00-00-01", Selector{Kind: SelectEndpoint, Endpoint: "02-00-00-00-00-01"}, "endpoint/02-00-00-00-00-01", ""},
		{"fe80::1%eth0", Selector{}, "", "zone"},
		{"::ffff:10.0.0.1", Selector{}, "", "inside IPv6"},
		{"Alice", Selector{}, "", `"Alice" is nothing to select by`},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			got, err := ParseSelector(tt.text)
			says(t, err, tt.says)
			if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
			if err == nil && got.String() != tt.name {
				t.Errorf("named %s, want %s", got, tt.name)
			}
		})
	}
}

func TestParseMatch(t *testing.T) {
	tests := []struct {
		text string
		want Term
		says string
	}{
		{"tcp/80", Term{ProtocolTCP, 80, 80}, ""},
		{"udp/5000-5100", Term{ProtocolUDP, 5000, 5100}, ""},
		{"sctp", Term{ProtocolSCTP, 0, 0}, ""},
		{"icmp", Term{ProtocolICMP, 0, 0}, ""},
		{"all", Term{ProtocolAll, 0, 0}, ""},
		{"icmp/8", Term{}, "icmp has no ports"},
		{"http", Term{}, `unknown protocol "http"`},
		{"TCP/80", Term{}, `unknown protocol "TCP"`},
		{"", Term{}, "unknown protocol"},
		{"tcp/", Term{}, `port ""`},
		{"tcp/0", Term{}, `port "0"`},
		{"tcp/65536", Term{}, "from 1 to 65535"},
		{"tcp/90-80", Term{}, "write tcp/80-90"},
		{"tcp/80-", Term{}, `port ""`},
		{"tcp/+80", Term{}, `port "+80"`},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			got, err := ParseMatch(tt.text)
			says(t, err, tt.says)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if err == nil && got.String() != tt.text {
				t.Errorf("prints as %q", got)
			}
		})
	}
}

func TestParseMemoryAndCPUs(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int64
		says string
	}{
		{"", 0, ""}, {"64M", 64 << 20, ""}, {"2G", 2 << 30, ""}, {"4096K", 4 << 20, ""}, {"1048576", 1 << 20, ""},
		{"64MB", 0, "optional K, M or G"}, {"-1M", 0, "optional"}, {"1K", 0, "at least 1M"}, {"M", 0, "optional"},
		{"99999999999999999999", 0, "optional"}, {"9223372036854775807G", 0, "optional"}, {"1.5G", 0, "optional"},
	} {
		got, err := ParseMemory(tt.text)
		says(t, err, tt.says)
		if got != tt.want {
			t.Errorf("%q: %d, want %d", tt.text, got, tt.want)
		}
	}
	for _, tt := range []struct {
		text string
		want float64
		says string
	}{{"", 0, ""}, {"0.5", 0.5, ""}, {"2", 2, ""}, {"0", 0, "number of cores"}, {"-1", 0, "cores"}, {"NaN", 0, "cores"}, {"1e9", 0, "cores"}, {"half", 0, "cores"}} {
		got, err := ParseCPUs(tt.text)
		says(t, err, tt.says)
		if err == nil && got != tt.want {
			t.Errorf("%q: %v, want %v", tt.text, got, tt.want)
		}
	}
}

func TestValidateSpecs(t *testing.T) {
	type problems []Problem
	tests := []struct {
		name string
		got  problems
		want string // "path: part of the message"; empty: none
	}{
		{"endpoint in a netns", EndpointSpec{Netns: "alice", Interface: "eth0", Address: "10.9.0.1/24", MAC: "02:00:00:00:00:01", MTU: 9000}.Validate(), ""},
		{"host's interface", EndpointSpec{Interface: "eth1"}.Validate(), ""},
		{"nothing", EndpointSpec{}.Validate(), "interface: an interface is needed, or where in the fabric the station is"},
		{"no interface", EndpointSpec{Netns: "alice"}.Validate(), "interface: an interface is needed"},
		{"station at a port", EndpointSpec{Switch: "s1", SwitchPort: "2", Address: "10.0.0.1/24"}.Validate(), ""},
		{"station by its address", EndpointSpec{Address: "10.0.0.1/24"}.Validate(), ""},
		{"station by its MAC", EndpointSpec{MAC: "02:00:00:00:00:01"}.Validate(), ""},
		{"switch without port", EndpointSpec{Switch: "s1"}.Validate(), `switch_port: switch "s1" without switch_port`},
		{"port without switch", EndpointSpec{SwitchPort: "2"}.Validate(), `switch: switch_port "2" without switch`},
		{"port that is none", EndpointSpec{Switch: "s1", SwitchPort: "s1:2"}.Validate(), `switch_port: switch port "s1:2"`},
		{"switch that is none", EndpointSpec{Switch: "S 1", SwitchPort: "2"}.Validate(), `switch: name "S 1"`},
		{"both host and fabric", EndpointSpec{Interface: "eth0", Switch: "s1"}.Validate(), "switch: switch is where a station of the fabric is"},
		{"station with a host", EndpointSpec{MAC: "02:00:00:00:00:01", Host: "h1"}.Validate(), "host: host is where an interface is"},
		{"station with an MTU", EndpointSpec{MAC: "02:00:00:00:00:01", MTU: 9000}.Validate(), "mtu: mtu is only for a link"},
		{"match by what there is not", PolicySpec{Chain: "c", MatchBy: "name"}.Validate(), `match_by: match_by "name": want ip or mac`},
		{"interface name too long", EndpointSpec{Interface: "sixteencharacter"}.Validate(), "interface: interface"},
		{"address on a host's interface", EndpointSpec{Interface: "eth1", Address: "10.9.0.1/24"}.Validate(), "address: address is only for a link that Weir makes"},
		{"address without length", EndpointSpec{Netns: "a", Interface: "e", Address: "10.9.0.1"}.Validate(), "address: address \"10.9.0.1\": want an address with its prefix length"},
		{"network as address", EndpointSpec{Netns: "a", Interface: "e", Addresses: []string{"10.9.0.0/24"}}.Validate(), "addresses[0]: address \"10.9.0.0/24\" is that of the network"},
		{"relative netns", EndpointSpec{Netns: "a/b", Interface: "e"}.Validate(), "netns: netns"},
		{"group MAC", EndpointSpec{Netns: "a", Interface: "e", MAC: "01:00:00:00:00:01"}.Validate(), "mac: MAC 01:00:00:00:00:01 is no station's"},
		{"bad MAC", EndpointSpec{Netns: "a", Interface: "e", MAC: "02"}.Validate(), "mac: MAC \"02\""},
		{"MTU", EndpointSpec{Netns: "a", Interface: "e", MTU: 1}.Validate(), "mtu: MTU 1"},
		{"function", FunctionSpec{Image: "wire", CPUs: "0.5", Memory: "64M", OnFail: OnFailBypass, State: FunctionCreated}.Validate(), ""},
		{"no image", FunctionSpec{}.Validate(), "image: an image is needed"},
		{"on_fail", FunctionSpec{Image: "w", OnFail: "ignore"}.Validate(), "on_fail: on_fail \"ignore\": want drop or bypass"},
		{"state", FunctionSpec{Image: "w", State: FunctionFailed}.Validate(), "state: state \"failed\""},
		{"cpus", FunctionSpec{Image: "w", CPUs: "many"}.Validate(), "cpus: cpus \"many\""},
		{"runtime", FunctionSpec{Image: "w", Runtime: "dockr"}.Validate(), "runtime: runtime \"dockr\": want native, oci, docker, lxc, nspawn, rkt, kvm or bare"},
		{"runtime in capitals", FunctionSpec{Image: "w", Runtime: "OCI"}.Validate(), "runtime: runtime \"OCI\""},
		{"cpuset", FunctionSpec{Image: "w", CPUSet: "3-1"}.Validate(), "cpuset: processors \"3-1\""},
		{"memory", FunctionSpec{Image: "w", Memory: "64 MB"}.Validate(), "memory: memory"},
		{"environment", FunctionSpec{Image: "w", Env: map[string]string{"A=B": "c"}}.Validate(), "env: environment variable \"A=B\""},
		{"chain", ChainSpec{Path: "fw | fw"}.Validate(), "path: function \"fw\" stands"},
		{"policy", PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web", Priority: 1000}.Validate(), ""},
		{"exhaustive", PolicySpec{From: "alice", Mode: ModeExhaustive, Chain: "web", Match: []string{"all"}}.Validate(), ""},
		{"exhaustive to an endpoint", PolicySpec{To: "alice", Mode: ModeExhaustive, Chain: "web"}.Validate(), ""},
		{"no chain", PolicySpec{}.Validate(), "chain: a chain is needed"},
		{"from", PolicySpec{From: "10.9.0.1/8", Chain: "c"}.Validate(), "from: \"10.9.0.1/8\""},
		{"match", PolicySpec{Match: []string{"tcp", "smtp"}, Chain: "c"}.Validate(), "match[1]: match \"smtp\""},
		{"mode", PolicySpec{Mode: "mirror", Chain: "c"}.Validate(), "mode: mode \"mirror\""},
		{"priority", PolicySpec{Priority: 1001, Chain: "c"}.Validate(), "priority: priority 1001"},
		{"exhaustive between CIDRs", PolicySpec{From: "10.0.0.0/8", Mode: ModeExhaustive, Chain: "c"}.Validate(), "mode: exhaustive takes all traffic of one endpoint, and neither"},
		{"exhaustive with both", PolicySpec{From: "alice", To: "bob", Mode: ModeExhaustive, Chain: "c"}.Validate(), "mode: exhaustive takes all traffic of one endpoint, and here both"},
		{"exhaustive with match", PolicySpec{From: "alice", Mode: ModeExhaustive, Match: []string{"tcp"}, Chain: "c"}.Validate(), "match[0]: exhaustive takes all"},
		{"from is to", PolicySpec{From: "alice", To: "alice", Chain: "c"}.Validate(), "to: from and to are both endpoint"},
		{"families", PolicySpec{From: "10.0.0.0/8", To: "fd00::/8", Chain: "c"}.Validate(), "to: from 10.0.0.0/8 and to fd00::/8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, p := range tt.got {
				got = append(got, p.Path+": "+p.Message)
			}
			if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], tt.want)) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestValidateNamesThePlace(t *testing.T) {
	d := Document{
		Endpoints: map[string]EndpointSpec{"any": {Interface: "eth0"}, "Alice": {Interface: "eth1"}},
		Functions: map[string]FunctionSpec{"fw": {}},
		Policies:  map[string]PolicySpec{"guests": {From: "x y", Chain: "web"}},
	}
	var got []string
	for _, p := range d.Validate() {
		got = append(got, p.Path)
	}
	if diff := cmp.Diff([]string{"endpoints.Alice", "endpoints.any", "functions.fw.image", "policies.guests.from"}, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"fw | tap:mon", "10.0.0.0/8", "02:00:00:00:00:01", "tcp/80-90", "64M", "0.5", "fe80::1%x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if hops, err := ParsePath(text); err == nil {
			var parts []string
			for _, h := range hops {
				parts = append(parts, h.String())
			}
			if again, err := ParsePath(strings.Join(parts, "|")); err != nil || !cmp.Equal(hops, again) {
				t.Errorf("%q: %v, again %v, %v", text, hops, again, err)
			}
		}
		if term, err := ParseMatch(text); err == nil {
			if again, err := ParseMatch(term.String()); err != nil || term != again {
				t.Errorf("%q: %v, again %v, %v", text, term, again, err)
			}
		}
		if s, err := ParseSelector(text); err == nil && s.Kind == SelectPrefix && s.Prefix.Masked() != s.Prefix {
			t.Errorf("%q: not canonical", text)
		}
		_, _ = ParseMemory(text)
		_, _ = ParseCPUs(text)
		_ = PolicySpec{From: text, To: text, Match: []string{text}, Chain: text}.Validate()
		_ = EndpointSpec{Netns: text, Interface: text, Address: text, MAC: text}.Validate()
	})
}
