package catalogue_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/image"
)

// Few people can read a pattern: what a config's text is to be like stands beside it, with an example, and is what they are shown.
func TestPatternsAreDescribed(t *testing.T) {
	files, err := filepath.Glob("*/schema.json")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d schemas, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var schema any
		if err := json.Unmarshal(text, &schema); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var look func(at string, v any)
		look = func(at string, v any) {
			switch v := v.(type) {
			case map[string]any:
				if p, ok := v["pattern"].(string); ok && v["description"] == nil {
					t.Errorf("%s: the pattern %s has no description", at, p)
				}
				for key, e := range v {
					look(at+"/"+key, e)
				}
			case []any:
				for i, e := range v {
					look(fmt.Sprint(at, "/", i), e)
				}
			}
		}
		look(file, schema)
	}
}

// Addresses that are none are refused where they stand, before a function gets them.
func TestAddressesInConfigs(t *testing.T) {
	for _, x := range []struct{ function, config, right, wrong string }{
		{"dns-lb", `{"names": {"a.example": {"targets": [{"address": %q}]}}}`, "10.0.0.5 255.0.10.199 2001:db8::5 ::", "10.0.0.299 10.0.0 10.0.0.5/24 a.example"},
		{"dns-lb", `{"names": {"a.example": {"targets": [{"address": "10.0.0.5"}]}}, "health": {"addresses": [%q]}}`, "10.0.0.5/24 2001:db8::5/64", "10.0.0.5 10.0.0.256/24"},
		{"load-balancer", `{"services": {"web": {"address": %q, "protocol": "tcp", "port": 80, "targets": [{"address": "10.0.0.5"}]}}}`, "10.0.0.5", "10.0.0.5:80 10.0.0.05"},
		{"udp-forward", `{"addresses": ["10.0.0.9/24"], "gateways": [%q], "relays": [{"port": 7000, "to": "10.0.0.2:7000"}]}`, "10.0.0.1 2001:db8::1", "10.0.0.1/24"},
	} {
		r, err := image.LoadRecipe(x.function)
		if err != nil {
			t.Fatal(err)
		}
		contract, err := image.ParseContract(r.Labels)
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]bool{x.right: true, x.wrong: false} {
			for _, address := range strings.Fields(text) {
				var config map[string]any
				if err := json.Unmarshal(fmt.Appendf(nil, x.config, address), &config); err != nil {
					t.Fatal(err)
				}
				problems := contract.CheckConfig(config)
				if (len(problems) == 0) != want || !want && !strings.Contains(problems[0].String(), "want an address") {
					t.Errorf("%s: %q: %v", x.function, address, problems)
				}
			}
		}
	}
}
