package router

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
)

// wayText is a way in short: the policies, then the ports.
func wayText(w api.TraceWay) string {
	var b strings.Builder
	b.WriteString(w.Packet)
	for _, p := range w.Policies {
		fmt.Fprintf(&b, "; %s %s", p.Policy, p.Verdict)
		if p.Reply {
			b.WriteString(" (reply)")
		}
	}
	b.WriteString(":")
	for _, s := range w.Steps {
		fmt.Fprintf(&b, " %s@%s", s.Event, strings.NewReplacer("function/", "", "endpoint/", "").Replace(s.Port))
		if s.Branch > 0 {
			fmt.Fprintf(&b, "#%d", s.Branch)
		}
		if s.Why != "" {
			fmt.Fprintf(&b, " (%s)", s.Why)
		}
	}
	if w.Delivered {
		b.WriteString(" .")
	}
	return b.String()
}

func TestTrace(t *testing.T) {
	no := false
	const through = "steered@fw/in emerged@fw/out steered@w1/in emerged@w1/out copied@mon/tap#1 steered@mon/tap#1 delivered@bob ."
	const back = "copied@mon/tap#1 steered@mon/tap#1 steered@w1/out emerged@w1/in steered@fw/out emerged@fw/in delivered@alice ."
	web := api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}
	tests := []struct {
		name           string
		policies       map[string]api.PolicySpec
		query          api.TraceQuery
		down           []string
		change         func(*api.Document)
		request, reply string
	}{
		{name: "no policy", query: api.TraceQuery{},
			request: "icmp 10.9.0.1 -> 10.9.0.2: entered@alice delivered@bob .", reply: "icmp 10.9.0.2 -> 10.9.0.1: entered@bob delivered@alice ."},
		{name: "through a chain and back", policies: map[string]api.PolicySpec{"p": web}, query: api.TraceQuery{Match: "tcp/80"},
			request: "tcp 10.9.0.1:49152 -> 10.9.0.2:80; p decides: entered@alice " + through,
			reply:   "tcp 10.9.0.2:80 -> 10.9.0.1:49152; p decides (reply): entered@bob " + back},
		{name: "other packets", policies: map[string]api.PolicySpec{"p": web}, query: api.TraceQuery{Match: "tcp/81", SourcePort: 9},
			request: "tcp 10.9.0.1:9 -> 10.9.0.2:81; p others: entered@alice delivered@bob .",
			reply:   "tcp 10.9.0.2:81 -> 10.9.0.1:9; p others (reply): entered@bob delivered@alice ."},
		{name: "outranked, and one way only", policies: map[string]api.PolicySpec{
			"p": web, "q": {To: "bob", Match: []string{"tcp"}, Chain: "alt", Priority: 200, Symmetric: &no}}, query: api.TraceQuery{Match: "tcp/80"},
			request: "tcp 10.9.0.1:49152 -> 10.9.0.2:80; q decides; p outranked: entered@alice steered@w2/in emerged@w2/out delivered@bob .",
			reply:   "tcp 10.9.0.2:80 -> 10.9.0.1:49152; p decides (reply): entered@bob " + back},
		{name: "a function that is down", policies: map[string]api.PolicySpec{"p": web}, query: api.TraceQuery{Match: "tcp/80"}, down: []string{"w1"},
			request: "tcp 10.9.0.1:49152 -> 10.9.0.2:80; p decides: entered@alice steered@fw/in emerged@fw/out dropped@w1/in (function w1 is down)",
			reply:   "tcp 10.9.0.2:80 -> 10.9.0.1:49152; p decides (reply): entered@bob copied@mon/tap#1 steered@mon/tap#1 dropped@w1/out (function w1 is down)"},
		{name: "one that is bypassed", policies: map[string]api.PolicySpec{"p": web}, query: api.TraceQuery{Match: "tcp/80"}, down: []string{"w1", "mon"},
			change:  func(d *api.Document) { d.Functions["w1"] = api.FunctionSpec{Image: "wire", OnFail: api.OnFailBypass} },
			request: "tcp 10.9.0.1:49152 -> 10.9.0.2:80; p decides: entered@alice steered@fw/in emerged@fw/out bypassed@w1/in copied@mon/tap#1 dropped@mon/tap#1 (function mon is down) delivered@bob .",
			reply:   "tcp 10.9.0.2:80 -> 10.9.0.1:49152; p decides (reply): entered@bob copied@mon/tap#1 dropped@mon/tap#1 (function mon is down) bypassed@w1/out steered@fw/out emerged@fw/in delivered@alice ."},
		{name: "a copy", policies: map[string]api.PolicySpec{"p": {From: "alice", Match: []string{"icmp"}, Mode: api.ModeReplica, Chain: "alt"}}, query: api.TraceQuery{},
			request: "icmp 10.9.0.1 -> 10.9.0.2; p decides: entered@alice copied@w2/in#1 steered@w2/in#1 emerged@w2/out#1 dropped@w2/out#1 (by rule) delivered@bob .",
			reply:   "icmp 10.9.0.2 -> 10.9.0.1; p decides (reply): entered@bob copied@w2/out#1 steered@w2/out#1 emerged@w2/in#1 dropped@w2/in#1 (by rule) delivered@alice ."},
		{name: "an address beyond an endpoint", policies: map[string]api.PolicySpec{"p": {From: "10.9.0.0/24", To: "8.8.0.0/16", Match: []string{"udp/53"}, Chain: "alt"}},
			query:   api.TraceQuery{Match: "udp/53", Destination: "8.8.4.4"},
			request: "udp 10.9.0.1:49152 -> 8.8.4.4:53; p decides: entered@alice steered@w2/in emerged@w2/out resumed@alice delivered@bob .",
			reply:   "udp 8.8.4.4:53 -> 10.9.0.1:49152; p decides (reply): entered@bob steered@w2/out emerged@w2/in resumed@bob delivered@alice ."},
		{name: "ARP", policies: map[string]api.PolicySpec{"p": {From: "alice", To: "bob", Mode: api.ModeExhaustive, Chain: "alt"}}, query: api.TraceQuery{Match: "arp"},
			request: "arp 02:00:00:00:00:01 -> 02:00:00:00:00:0b; p decides: entered@alice steered@w2/in emerged@w2/out delivered@bob .",
			reply:   "arp 02:00:00:00:00:0b -> 02:00:00:00:00:01; p decides (reply): entered@bob steered@w2/out emerged@w2/in delivered@alice ."},
		{name: "a tag and IPv6", query: api.TraceQuery{Match: "sctp/7", VLAN: 7, SourcePort: 7}, policies: map[string]api.PolicySpec{"p": {From: "alice", To: "bob", Match: []string{"sctp/7"}, Chain: "alt"}},
			change: func(d *api.Document) {
				for i, name := range []string{"alice", "bob"} {
					d.Endpoints[name] = api.EndpointSpec{Netns: name, Interface: "eth0", Address: fmt.Sprintf("10.%d.0.1/24", i), Addresses: []string{fmt.Sprintf("fd00::%d/64", i+1)}}
				}
				d.Endpoints["alice"] = api.EndpointSpec{Netns: "alice", Interface: "eth0", Address: "fd00::1/64"}
			},
			request: "vlan 7 sctp [fd00::1]:7 -> [fd00::2]:7; p decides: entered@alice steered@w2/in emerged@w2/out delivered@bob .",
			reply:   "vlan 7 sctp [fd00::2]:7 -> [fd00::1]:7; p decides (reply): entered@bob steered@w2/out emerged@w2/in delivered@alice ."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := document()
			if tt.change != nil {
				tt.change(&d)
			}
			for name, p := range tt.policies {
				d.Policies[name] = p
			}
			down := map[string]bool{}
			for _, f := range tt.down {
				down[f] = true
			}
			tt.query.From, tt.query.To = "alice", "bob"
			got, err := Trace(d, tt.query, map[string]string{"bob": "02:00:00:00:00:0b"}, down)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{tt.request, tt.reply}, []string{wayText(got.Request), wayText(got.Reply)}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTraceRefuses(t *testing.T) {
	for want, q := range map[string]api.TraceQuery{
		`query.from: endpoint "alise" is not there (did you mean "alice"?)`:               {From: "alise", To: "bob"},
		`query.to: "alice" is where the packet comes from`:                                {From: "alice", To: "alice"},
		`query.match: match "tpc/80": unknown protocol`:                                   {From: "alice", To: "bob", Match: "tpc/80"},
		`query.match: "tcp/80-90" is more than one packet (want tcp, udp or sctp with a `: {From: "alice", To: "bob", Match: "tcp/80-90"},
		`query.match: "udp" is more than one packet`:                                      {From: "alice", To: "bob", Match: "udp"},
		`query.match: "all" is more than one packet`:                                      {From: "alice", To: "bob", Match: "all"},
		`query.source: is "nowhere" (want an IPv4 or IPv6 address)`:                       {From: "alice", To: "bob", Source: "nowhere"},
		`query.match: ARP has no IP header`:                                               {From: "alice", To: "bob", Match: "arp", Source: "10.9.0.1"},
		`query.destination: endpoint "bob" has no address of that family`:                 {From: "alice", To: "bob", Source: "fd00::1"},
		`query.source_port: is 65536`:                                                     {From: "alice", To: "bob", Match: "tcp/80", SourcePort: 65536},
		`query.vlan: is 4095`:                                                             {From: "alice", To: "bob", VLAN: 4095},
	} {
		if _, err := Trace(document(), q, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", q, err, want)
		}
	}
}
