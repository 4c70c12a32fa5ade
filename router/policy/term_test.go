package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

func TestMatches(t *testing.T) {
	web := flow.PortRange{First: 80, Last: 90}
	v4, v6 := flow.EtherTypeIPv4, flow.EtherTypeIPv6
	for text, want := range map[string][2][]flow.Match{
		"all":       {{{}}, {{}}},
		"ip":        {{{EtherType: v4}, {EtherType: v6}}, {{EtherType: v4}, {EtherType: v6}}},
		"arp":       {{{EtherType: flow.EtherTypeARP}}, {{EtherType: flow.EtherTypeARP}}},
		"icmp":      {{{EtherType: v4, Proto: 1}, {EtherType: v6, Proto: 58}}, {{EtherType: v4, Proto: 1}, {EtherType: v6, Proto: 58}}},
		"tcp/80-90": {{{Proto: 6, DstPorts: web}}, {{Proto: 6, SrcPorts: web}}},
		"udp/80-90": {{{Proto: 17, DstPorts: web}}, {{Proto: 17, SrcPorts: web}}},
		"sctp":      {{{Proto: 132}}, {{Proto: 132}}},
	} {
		term, err := api.ParseMatch(text)
		if err != nil {
			t.Fatal(err)
		}
		got := [2][]flow.Match{Matches(nil, term, Forward), Matches(nil, term, Reverse)}
		if d := cmp.Diff(want, got, cmpopts.EquateComparable(flow.Match{})); d != "" {
			t.Errorf("%s: %s", text, d)
		}
	}
}
