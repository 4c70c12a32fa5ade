package main

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

var allowUnexported = cmp.Options{cmp.AllowUnexported(service{}, config{}, entry{}, limit{}, span{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}

func TestParseConfig(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want config
		err  string
	}{
		"nothing":      {text: "", want: config{Default: "drop"}},
		"empty object": {text: "{}", want: config{Default: "drop"}},
		"a port":       {text: `{"allow":["tcp/80"]}`, want: config{Default: "drop", Allow: []entry{{service: service{"tcp", 80, 80}}}}},
		"a range":      {text: `{"deny":["udp/1-65535"],"default":"accept"}`, want: config{Default: "accept", Deny: []entry{{service: service{"udp", 1, 65535}}}}},
		"a protocol":   {text: `{"allow":["all"],"reject":true}`, want: config{Default: "drop", Reject: true, Allow: []entry{{service: service{"all", 0, 0}}}}},
		"addresses": {text: `{"sets": {"a": ["10.1.0.0/16 10.0.0.1", "10.0.0.2,fd00::/64"]}, "deny": [{"service": "all", "from": "@a", "to": ["10.9.0.1-10.9.0.3", "@a"]}]}`, want: config{Default: "drop",
			Sets: map[string]places{"a": {"10.1.0.0/16 10.0.0.1", "10.0.0.2,fd00::/64"}}, Deny: []entry{{
				service: service{"all", 0, 0}, From: places{"@a"}, To: places{"10.9.0.1-10.9.0.3", "@a"}, fromText: "@a", toText: "10.9.0.1-10.9.0.3 @a",
				sources: spans("10.0.0.1", "10.0.0.2", "10.1.0.0", "10.1.255.255", "fd00::", "fd00::ffff:ffff:ffff:ffff"),
				targets: spans("10.0.0.1", "10.0.0.2", "10.1.0.0", "10.1.255.255", "10.9.0.1", "10.9.0.3", "fd00::", "fd00::ffff:ffff:ffff:ffff")}}}},
		"a limit": {text: `{"allow": [{"service": "tcp/22", "limit": {"rate": "30/m", "per_source": true}}]}`, want: config{Default: "drop",
			Allow: []entry{{service: service{"tcp", 22, 22}, Limit: &limit{Rate: "30/m", Burst: 1, PerSource: true, n: 30, unit: expr.LimitTimeMinute}}}}},
		"a prefix with bits behind":  {text: `{"deny": [{"service": "all", "from": "10.0.0.1/8"}]}`, err: "deny: all: from: \"10.0.0.1/8\": the address has bits behind the prefix: want 10.0.0.0/8"},
		"a range of both families":   {text: `{"deny": [{"service": "all", "to": "10.0.0.1-fd00::1"}]}`, err: "want an address as 10.0.0.1"},
		"a range backwards":          {text: `{"sets": {"a": "10.0.0.9-10.0.0.1"}}`, err: "set a: \"10.0.0.9-10.0.0.1\" goes backwards"},
		"a mapped address":           {text: `{"sets": {"a": "::ffff:10.0.0.1"}}`, err: "want an address"},
		"a set that is not there":    {text: `{"allow": [{"service": "tcp", "to": "@b"}]}`, err: "\"@b\": there is no set of this name"},
		"a set with a strange name":  {text: `{"sets": {"a b": "10.0.0.1"}}`, err: "want a name of letters"},
		"an empty text":              {text: `{"allow": [{"service": "tcp", "to": " "}]}`, err: "there are no addresses in it"},
		"no addresses":               {text: `{"allow": [{"service": "tcp", "to": []}]}`, err: "want addresses"},
		"addresses of ARP":           {text: `{"deny": [{"service": "arp", "from": "10.0.0.1"}]}`, err: "ARP has no addresses"},
		"a limit of what is denied":  {text: `{"deny": [{"service": "tcp", "limit": {"rate": "1/s"}}]}`, err: "what is denied has none"},
		"a limit without a unit":     {text: `{"allow": [{"service": "tcp", "limit": {"rate": "10"}}]}`, err: "as 10/s"},
		"a limit of nothing":         {text: `{"allow": [{"service": "tcp", "limit": {"rate": "0/s"}}]}`, err: "as 10/s"},
		"an unknown key of an entry": {text: `{"allow": [{"service": "tcp", "form": "10.0.0.1"}]}`, err: "unknown field \"form\""},
		"port zero":                  {text: `{"allow":["tcp/0"]}`, err: "want ports from 1 to 65535"},
		"range backwards":            {text: `{"allow":["tcp/9-8"]}`, err: "goes backwards: want tcp/8-9"},
		"port too big":               {text: `{"allow":["tcp/65536"]}`, err: "want ports from 1 to 65535"},
		"empty port":                 {text: `{"allow":["tcp/"]}`, err: "want ports from 1 to 65535"},
		"ports of icmp":              {text: `{"allow":["icmp/8"]}`, err: "icmp has no ports"},
		"unknown protocol":           {text: `{"allow":["gre"]}`, err: "want one of all, arp"},
		"no text":                    {text: `{"allow":[80]}`, err: "want a text"},
		"unknown key":                {text: `{"permit":[]}`, err: `unknown field "permit"`},
		"two values":                 {text: `{}{}`, err: "more than one"},
		"a bracket behind":           {text: `{"default":"accept"}]`, err: "more than one"},
		"bad default":                {text: `{"default":"reject"}`, err: "want drop or accept"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseConfig([]byte(tt.text))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got error %v, want %q in it", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, allowUnexported); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func spans(ends ...string) (out addresses) {
	for i := 0; i < len(ends); i += 2 {
		out = append(out, span{netip.MustParseAddr(ends[i]), netip.MustParseAddr(ends[i+1])})
	}
	return out
}

// The program and the schema that the platform checks accept the same, but for ranges that go backwards: no schema can tell them.
func FuzzConfigAndSchemaAgree(f *testing.F) {
	for _, s := range []string{"tcp/80", "udp/1-2", "icmp", "all", "sctp/9", "arp/1", "tcp/x", "tcp/0", "ip", "tcp/1-", "", "tcp/65535", "tcp/65536", "tcp/99999", "udp/1-70000", "udp/0080-09999"} {
		f.Add(s)
	}
	schema := schemaOf(f)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseService(text)
		if err != nil {
			if accepts(t, schema, text) && !strings.Contains(text, "-") {
				t.Errorf("%q is refused by the program (%v), not by the schema", text, err)
			}
			return
		}
		again, err := parseService(s.String())
		if err != nil || again != s {
			t.Errorf("%q: written %q, read %v (%v)", text, s, again, err)
		}
		if !accepts(t, schema, text) {
			t.Errorf("%q is accepted by the program, not by the schema", text)
		}
	})
}

func schemaOf(t testing.TB) *jsonschema.Schema {
	t.Helper()
	raw, err := os.ReadFile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	return c.MustCompile("schema.json")
}

func accepts(t *testing.T, schema *jsonschema.Schema, text string) bool {
	t.Helper()
	return schema.Validate(map[string]any{"allow": []any{text}}) == nil
}

func TestTheSchemaRefusesPortsThatThereAreNot(t *testing.T) {
	schema := schemaOf(t)
	for text, want := range map[string]bool{
		"tcp/1": true, "tcp/80": true, "tcp/9999": true, "tcp/59999": true, "tcp/65535": true, "udp/1-65535": true, "sctp/65529-65530": true,
		"tcp/0": false, "tcp/65536": false, "tcp/65540": false, "tcp/65600": false, "tcp/66000": false, "tcp/70000": false, "tcp/99999": false,
		"tcp/100000": false, "tcp/80-65536": false, "tcp/0-80": false, "icmp/8": false,
	} {
		if accepts(t, schema, text) != want {
			t.Errorf("%q: accepted is %v, want %v", text, !want, want)
		}
	}
}
