package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

var allowUnexported = cmp.AllowUnexported(service{})

func TestParseConfig(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want config
		err  string
	}{
		"nothing":          {text: "", want: config{Default: "drop"}},
		"empty object":     {text: "{}", want: config{Default: "drop"}},
		"a port":           {text: `{"allow":["tcp/80"]}`, want: config{Default: "drop", Allow: []service{{"tcp", 80, 80}}}},
		"a range":          {text: `{"deny":["udp/1-65535"],"default":"accept"}`, want: config{Default: "accept", Deny: []service{{"udp", 1, 65535}}}},
		"a protocol":       {text: `{"allow":["all"],"reject":true}`, want: config{Default: "drop", Reject: true, Allow: []service{{"all", 0, 0}}}},
		"port zero":        {text: `{"allow":["tcp/0"]}`, err: "want ports from 1 to 65535"},
		"range backwards":  {text: `{"allow":["tcp/9-8"]}`, err: "want ports from 1 to 65535"},
		"port too big":     {text: `{"allow":["tcp/65536"]}`, err: "want ports from 1 to 65535"},
		"empty port":       {text: `{"allow":["tcp/"]}`, err: "want ports from 1 to 65535"},
		"ports of icmp":    {text: `{"allow":["icmp/8"]}`, err: "icmp has no ports"},
		"unknown protocol": {text: `{"allow":["gre"]}`, err: "want one of all, arp"},
		"no text":          {text: `{"allow":[80]}`, err: "want a text"},
		"unknown key":      {text: `{"permit":[]}`, err: `unknown field "permit"`},
		"two values":       {text: `{}{}`, err: "more than one"},
		"bad default":      {text: `{"default":"reject"}`, err: "want drop or accept"},
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

// What the program accepts, the schema that the platform checks accepts too.
func FuzzConfigAndSchemaAgree(f *testing.F) {
	for _, s := range []string{"tcp/80", "udp/1-2", "icmp", "all", "sctp/9", "arp/1", "tcp/x", "tcp/0", "ip", "tcp/1-", ""} {
		f.Add(s)
	}
	raw, err := os.ReadFile("schema.json")
	if err != nil {
		f.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(raw)))
	if err != nil {
		f.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		f.Fatal(err)
	}
	schema := c.MustCompile("schema.json")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseService(text)
		if err != nil {
			return
		}
		again, err := parseService(s.String())
		if err != nil || again != s {
			t.Errorf("%q: written %q, read %v (%v)", text, s, again, err)
		}
		raw, err := json.Marshal(map[string]any{"allow": []string{text}})
		if err != nil {
			t.Fatal(err)
		}
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(string(raw)))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(v); err != nil {
			t.Errorf("%q is accepted by the program, not by the schema: %v", text, err)
		}
	})
}
