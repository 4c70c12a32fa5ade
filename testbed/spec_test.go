package testbed

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api/file"
	"weir.dev/weir/api/schematest"
)

// good is a file that bad ones differ from in one line.
const good = `name: net
manager: {}
switches:
  s1: {dpid: 1}
  s2: {dpid: 2}
hosts:
  vm1: {address: 10.0.0.1/24}
  vm2: {address: 10.0.0.2/24}
  in1: {agent: nfv1}
agents:
  nfv1: {switch: ebpf}
links:
  - {a: "s1:1", b: "s2:1"}
  - {a: s1:2, b: vm1}
  - {a: s2:2, b: vm2}
  - {a: s2:3, b: nfv1}
`

func load(text string) error {
	_, err := Load(file.Stdin, strings.NewReader(text))
	return err
}

func TestLoadRefusesWithLineAndColumn(t *testing.T) {
	if err := load(good); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct{ old, new, want string }{
		"unknown node":                   {"b: vm1}", "b: vm3}", `<stdin>:14:18: links[1].b: there is no node "vm3" (did you mean "vm1"?)`},
		"unknown node, nothing like it":  {"b: vm1}", "b: printer}", `<stdin>:14:18: links[1].b: there is no node "printer"`},
		"the same port twice":            {"a: s2:2", "a: s2:1", `<stdin>:15:9: links[2].a: port 1 of s2 is taken by links[0] already`},
		"port zero":                      {"a: s1:2", "a: s1:0", `<stdin>:14:9: links[1].a: port "0": want a number from 1 to 65279`},
		"port too high":                  {"a: s1:2", "a: s1:65280", `<stdin>:14:9: links[1].a: port "65280": want a number from 1 to 65279`},
		"port with a leading zero":       {"a: s1:2", `a: "s1:02"`, `<stdin>:14:9: links[1].a: port "02": want a number from 1 to 65279`},
		"port that is a word":            {"a: s1:2", "a: s1:eth0", `<stdin>:14:9: links[1].a: port "eth0": want a number from 1 to 65279`},
		"switch without a port":          {"a: s1:2", "a: s1", `<stdin>:14:9: links[1].a: s1 is a switch: want its port, such as s1:1`},
		"cable from a switch to itself":  {`b: "s2:1"`, `b: "s1:5"`, `<stdin>:13:20: links[0].b: is a cable from s1 to itself`},
		"both ends the same":             {`b: "s2:1"`, `b: "s1:1"`, `<stdin>:13:20: links[0].b: both ends are s1:1`},
		"station with two cables":        {"b: vm2}", "b: vm1}", `<stdin>:15:18: links[2].b: vm1 is connected by links[1] already (a station or agent has one cable)`},
		"station with a port":            {"b: vm2}", "b: vm2:1}", `<stdin>:15:18: links[2].b: vm2 is a host and has one port (write vm2)`},
		"agent with a port":              {"b: nfv1}", "b: nfv1:1}", `<stdin>:16:18: links[3].b: nfv1 is an agent and has one port (write nfv1)`},
		"two stations on one cable":      {"a: s2:2", "a: vm1", `links[2].b: want a switch at one end at least, found vm1 and vm2`},
		"no second end":                  {"{a: s1:2, b: vm1}", "{a: s1:2}", `<stdin>:14:5: links[1]: b is missing: a cable has two ends, a and b`},
		"station without a cable":        {"  - {a: s2:2, b: vm2}\n", "", `<stdin>:8:3: hosts.vm2: is not connected (add {a: "SWITCH:PORT", b: vm2} to links)`},
		"station with cable and agent":   {"b: vm2}", "b: in1}", `<stdin>:9:16: hosts.in1.agent: is on the machine of agent nfv1 and has a cable, too`},
		"station of an unknown agent":    {"agent: nfv1", "agent: nfv2", `<stdin>:9:16: hosts.in1.agent: there is no agent "nfv2" (did you mean "nfv1"?)`},
		"address of an agent's station":  {"{agent: nfv1}", "{agent: nfv1, address: 10.0.0.3/24}", `<stdin>:9:31: hosts.in1.address: the endpoint that takes a host of an agent sets its address`},
		"duplicate datapath id":          {"dpid: 2", "dpid: 1", `<stdin>:5:14: switches.s2.dpid: 1 is the datapath id of s1 already`},
		"negative datapath id":           {"dpid: 2", "dpid: -2", `<stdin>:5:14: switches.s2.dpid: -2: want a datapath id from 1 to 9223372036854775807`},
		"table of no size":               {"dpid: 2", "table_size: -1", `<stdin>:5:20: switches.s2.table_size: -1: want 1 to 1000000 entries`},
		"duplicate address":              {"10.0.0.2/24", "10.0.0.1/24", `<stdin>:8:18: hosts.vm2.address: 10.0.0.1 is the address of vm1 already`},
		"address without a length":       {"10.0.0.2/24", "10.0.0.2", `<stdin>:8:18: hosts.vm2.address: "10.0.0.2": want an address with its prefix's length, such as 10.0.0.1/24`},
		"a network for an address":       {"10.0.0.2/24", "10.0.0.0/24", `<stdin>:8:18: hosts.vm2.address: 10.0.0.0/24 is no address that a station can have`},
		"address of the management":      {"10.0.0.2/24", "100.64.0.9/24", `<stdin>:8:18: hosts.vm2.address: 100.64.0.9/24 is in the management network, 100.64.0.0/16`},
		"multicast MAC":                  {"{address: 10.0.0.2/24}", `{mac: "01:00:00:00:00:01"}`, `<stdin>:8:14: hosts.vm2.mac: "01:00:00:00:00:01": want a unicast MAC address such as 02:57:00:00:00:01`},
		"unknown switch of an agent":     {"switch: ebpf", "switch: vpp", `<stdin>:11:18: agents.nfv1.switch: "vpp": want ebpf or ovs`},
		"agents without a manager":       {"manager: {}\n", "", `<stdin>:9:1: agents: agents need a manager to join (add manager: {})`},
		"unknown underlay":               {"manager: {}", "manager: {underlay: gre}", `<stdin>:2:21: manager.underlay: "gre": want none or vxlan`},
		"name of two nodes":              {"  vm2: {address", "  s2: {address", `<stdin>:8:3: hosts.s2: is the name of a switch, too (choose another name)`},
		"name of the testbed's own node": {"  in1: {agent", "  manager: {agent", `<stdin>:9:3: hosts.manager: manager is taken by the testbed itself (choose another name)`},
		"name too long":                  {"  in1: {agent", "  verylongname: {agent", `<stdin>:9:3: hosts.verylongname: name of a node: want a letter, then at most 8 of a-z, 0-9 and '-'`},
		"unknown key":                    {"{dpid: 2}", "{dpdi: 2}", `<stdin>:5:8: switches.s2.dpdi: unknown key (did you mean "dpid"?)`},
		"unknown section":                {"manager:", "manger:", `<stdin>:2:1: manger: unknown key (did you mean "manager"?)`},
		"text for a datapath id":         {"dpid: 2", "dpid: two", `<stdin>:5:14: switches.s2.dpid: want a whole number, found the text "two"`},
		"bad rate":                       {"b: vm1}", "b: vm1, rate: 10Mbps}", `<stdin>:14:29: links[1].rate: "10Mbps": want bits per second from 1k to 100G, such as 10M`},
		"bad delay":                      {"b: vm1}", "b: vm1, delay: -1ms}", `links[1].delay: "-1ms": want a time up to 1m0s, such as 5ms`},
		"bad loss":                       {"b: vm1}", `b: vm1, loss: "101%"}`, `links[1].loss: "101%": want a share of frames, such as 1%`},
		"bad name":                       {"name: net", "name: My_Net", `<stdin>:1:7: name: "My_Net": want 1 to 10 characters of a-z, 0-9 and inner '-'`},
		"no name":                        {"name: net\n", "", `<stdin>: name: is missing: a testbed needs a name`},
		"a list for nodes":               {"  nfv1: {switch: ebpf}", "  - nfv1", `<stdin>:11:3: agents: want a mapping, found a list`},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(good, x.old) {
				t.Fatalf("the good file has no %q", x.old)
			}
			err := load(strings.Replace(good, x.old, x.new, 1))
			var bad *file.Error
			if !errors.As(err, &bad) {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(err.Error(), x.want) {
				t.Errorf("got\n%v\nwant\n%s", err, x.want)
			}
		})
	}
	if err := load("name: x\n"); err == nil || !strings.Contains(err.Error(), "there is no node") {
		t.Errorf("a file without nodes: %v", err)
	}
	if err := load(""); err == nil || !strings.Contains(err.Error(), "is empty (want a mapping with name, switches, hosts, agents and links)") {
		t.Errorf("an empty file: %v", err)
	}
}

func TestPlanNamesEverythingOnce(t *testing.T) {
	f, err := Load(file.Stdin, strings.NewReader(strings.NewReplacer("s1: {dpid: 1}", "s1: {}", "{address: 10.0.0.1/24}", `{address: 10.0.0.1/24, mac: "02:57:00:00:00:02"}`).Replace(good)))
	if err != nil {
		t.Fatal(err)
	}
	p := newPlan(f.Spec)
	if d := cmp.Diff(map[string]uint64{"s1": 1, "s2": 2}, p.dpids()); d != "" {
		t.Error(d)
	}
	var macs []string
	for _, h := range sorted(p.Hosts) {
		macs = append(macs, h+" "+p.macs()[h].String())
	}
	if d := cmp.Diff([]string{"in1 02:57:00:00:00:01", "vm1 02:57:00:00:00:02", "vm2 02:57:00:00:00:03"}, macs); d != "" {
		t.Error(d)
	}
	var ends []string
	for _, c := range p.cables() {
		ends = append(ends, fmt.Sprintf("%s:%s %s:%s", c.sides[0].space, c.sides[0].Interface, c.sides[1].space, c.sides[1].Interface))
	}
	if d := cmp.Diff([]string{"ovs:s1-1 ovs:s2-1", "ovs:s1-2 vm1:eth0", "ovs:s2-2 vm2:eth0", "ovs:s2-3 nfv1:eth1"}, ends); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"manager", "ovs", "nfv1", "in1", "vm1", "vm2"}, p.namespaces()); d != "" {
		t.Error(d)
	}
	if p.instance("nfv1") == p.instance("nfv2") || p.instance(NodeManager) != "net" {
		t.Errorf("instances %s, %s, %s", p.instance("nfv1"), p.instance("nfv2"), p.instance(NodeManager))
	}
}

func TestSchemaTakesTheExamplesAndRefusesUnknownKeys(t *testing.T) {
	valid := schematest.Of(t, Schema())
	check := func(text string) error {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			return err
		}
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return valid(b)
	}
	if err := check(good); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"dpdi: 2", "dpid: two", "dpid: -2"} {
		if err := check(strings.Replace(good, "dpid: 2", bad, 1)); err == nil {
			t.Errorf("the schema takes %s", bad)
		}
	}
}

// Every field of the file is in the schema with a description, and the reverse.
func TestSchemaHasTheFieldsOfTheSpec(t *testing.T) {
	type object struct {
		Properties           map[string]map[string]any `json:"properties"`
		AdditionalProperties json.RawMessage           `json:"additionalProperties"`
		Items                json.RawMessage           `json:"items"`
	}
	parse := func(b []byte) (o object) {
		t.Helper()
		if err := json.Unmarshal(b, &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	raw := func(v any) []byte { b, _ := json.Marshal(v); return b }
	top := parse(Schema())
	section := func(name string) object { return parse(raw(top.Properties[name])) }
	for name, x := range map[string]struct {
		of  reflect.Type
		got object
	}{
		"testbed":  {reflect.TypeFor[Spec](), top},
		"manager":  {reflect.TypeFor[Manager](), section("manager")},
		"switches": {reflect.TypeFor[Switch](), parse(section("switches").AdditionalProperties)},
		"hosts":    {reflect.TypeFor[Host](), parse(section("hosts").AdditionalProperties)},
		"agents":   {reflect.TypeFor[Agent](), parse(section("agents").AdditionalProperties)},
		"links":    {reflect.TypeFor[Link](), parse(section("links").Items)},
	} {
		var want []string
		for i := range x.of.NumField() {
			n, _, _ := strings.Cut(x.of.Field(i).Tag.Get("json"), ",")
			want = append(want, n)
		}
		slices.Sort(want)
		if d := cmp.Diff(want, slices.Sorted(maps.Keys(x.got.Properties))); d != "" {
			t.Errorf("%s (-spec +schema)\n%s", name, d)
		}
		for n, p := range x.got.Properties {
			if p["description"] == nil && p["$ref"] == nil {
				t.Errorf("%s.%s has no description", name, n)
			}
		}
	}
}

func TestExamplesAreFiles(t *testing.T) {
	for _, name := range []string{"fig2", "leaf-spine", "ring", "vxlan"} {
		f, err := Load("../examples/"+name+".yaml", nil)
		if err != nil {
			t.Error(err)
		} else if f.Spec.Name != name {
			t.Errorf("%s.yaml describes %s", name, f.Spec.Name)
		}
	}
}
