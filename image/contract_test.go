package image

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"pgregory.net/rapid"
)

func withConfig(img v1.Image, cf *v1.ConfigFile) (v1.Image, error) { return mutate.ConfigFile(img, cf) }

func TestParseContract(t *testing.T) {
	for name, tt := range map[string]struct {
		labels map[string]string
		want   Contract
		err    string
	}{
		"an ordinary image": {labels: map[string]string{"maintainer": "x"}, want: Contract{Foreign: true}},
		"everything": {
			labels: map[string]string{
				LabelPorts: "in,out", LabelForwarder: "wire", LabelProbe: "true", LabelRewrites: "src-ip, src-port", LabelSpeaks: "true",
				LabelCapabilities: "CAP_NET_ADMIN,CAP_NET_RAW", LabelDescription: "does it all",
			},
			want: Contract{
				Forwarder: "wire", Probe: true, Rewrites: []string{"src-ip", "src-port"}, Speaks: true,
				Capabilities: []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}, Description: "does it all",
			},
		},
		"a tap":              {labels: map[string]string{LabelPorts: "tap"}, want: Contract{Tap: true}},
		"bad ports":          {labels: map[string]string{LabelPorts: "left,right"}, err: `want "in,out" or "tap"`},
		"bad forwarder":      {labels: map[string]string{LabelForwarder: "Magic?"}, err: `such as "wire"`},
		"another forwarder":  {labels: map[string]string{LabelForwarder: "l2-reflect"}, want: Contract{Forwarder: "l2-reflect"}},
		"a tap forwards":     {labels: map[string]string{LabelPorts: "tap", LabelForwarder: "wire"}, err: "a tap forwards nothing"},
		"exports flows":      {labels: map[string]string{LabelPorts: "tap", LabelIPFIX: "true"}, want: Contract{Tap: true, IPFIX: true}},
		"exports, perhaps":   {labels: map[string]string{LabelIPFIX: "perhaps"}, err: LabelIPFIX},
		"settles flows":      {labels: map[string]string{LabelSettles: "true"}, want: Contract{Settles: true}},
		"settles, rewrites":  {labels: map[string]string{LabelSettles: "true", LabelRewrites: "src-ip"}, want: Contract{Settles: true, Rewrites: []string{"src-ip"}}},
		"settles, forwarder": {labels: map[string]string{LabelSettles: "true", LabelForwarder: "wire"}, err: "nothing to settle"},
		"by AF_XDP":          {labels: map[string]string{LabelXDP: "true", LabelCapabilities: "CAP_NET_RAW"}, want: Contract{Finished: true, XDP: true, Capabilities: []string{"CAP_NET_RAW"}}},
		"a tap by AF_XDP":    {labels: map[string]string{LabelXDP: "true", LabelPorts: "tap", LabelCapabilities: "CAP_NET_RAW"}, want: Contract{Tap: true, Finished: true, XDP: true, Capabilities: []string{"CAP_NET_RAW"}}},
		"AF_XDP, no rights":  {labels: map[string]string{LabelXDP: "true", LabelCapabilities: "CAP_NET_ADMIN"}, err: "want CAP_NET_RAW"},
		"AF_XDP, forwarder":  {labels: map[string]string{LabelXDP: "true", LabelForwarder: "wire", LabelCapabilities: "CAP_NET_RAW"}, err: "none comes to a socket"},
		"finished":           {labels: map[string]string{LabelOffloads: "none"}, want: Contract{Finished: true}},
		"any offloads":       {labels: map[string]string{LabelOffloads: "any"}, want: Contract{}},
		"some offloads":      {labels: map[string]string{LabelOffloads: "gso"}, err: "want any or none, not \"gso\""},
		"finished, wire":     {labels: map[string]string{LabelOffloads: "none", LabelForwarder: "wire"}, err: "hands them on as they are"},
		"AF_XDP, any":        {labels: map[string]string{LabelXDP: "true", LabelOffloads: "any", LabelCapabilities: "CAP_NET_RAW"}, err: "leave it out"},
		"AF_XDP, perhaps":    {labels: map[string]string{LabelXDP: "1"}, err: LabelXDP},
		"takes a config, hands over": {
			labels: map[string]string{LabelReload: "/bin/f reload", LabelExport: " /bin/f  export ", LabelImport: "/bin/f import"},
			want:   Contract{Reload: []string{"/bin/f", "reload"}, Export: []string{"/bin/f", "export"}, Import: []string{"/bin/f", "import"}},
		},
		"no path":            {labels: map[string]string{LabelReload: "nft -f"}, err: "want the path of a program"},
		"two lines":          {labels: map[string]string{LabelReload: "/bin/f\nx"}, err: "in one line"},
		"too long a command": {labels: map[string]string{LabelReload: "/" + strings.Repeat("x", maxCommand)}, err: "at most 1024"},
		"exports only":       {labels: map[string]string{LabelExport: "/bin/f export"}, err: "want both"},
		"bad truth":          {labels: map[string]string{LabelProbe: "yes"}, err: `want "true" or "false"`},
		"bad rewrite":        {labels: map[string]string{LabelRewrites: "colour"}, err: "unknown field"},
		"unknown label":      {labels: map[string]string{"weir.magic": "1"}, err: "label weir.magic is not known"},
		"bad capability":     {labels: map[string]string{LabelCapabilities: "CAP_SYS_ADMIN"}, err: "cannot be granted"},
		"schema is no JSON":  {labels: map[string]string{LabelConfigSchema: "{"}, err: "no JSON"},
		"schema is bad":      {labels: map[string]string{LabelConfigSchema: `{"type": "thing"}`}, err: LabelConfigSchema},
		"schema reads files": {labels: map[string]string{LabelConfigSchema: `{"$ref": "file:///etc/passwd"}`}, err: "stands alone"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseContract(tt.labels)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got error %v, want %q in it", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What an image that does not know Weir gets, the operator says; one that does says it itself.
func TestNeeds(t *testing.T) {
	allow := []string{"CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_NET_RAW"}
	if got := (Contract{Foreign: true}).Needs(allow); !slices.Equal(got, []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}) {
		t.Errorf("of an image without labels: %v", got)
	}
	if got := (Contract{Capabilities: []string{"CAP_NET_RAW"}}).Needs(allow); !slices.Equal(got, []string{"CAP_NET_RAW"}) {
		t.Errorf("of an image that asks: %v", got)
	}
	if got := (Contract{Probe: true}).Needs(allow); got != nil {
		t.Errorf("of an image that asks for nothing: %v", got)
	}
}

func TestCheckConfig(t *testing.T) {
	schema := `{"type":"object","additionalProperties":false,"properties":{"allow":{"type":"array","items":{"type":"string","pattern":"^tcp/"}},
		"deny":{"type":"array","items":{"$ref":"#/$defs/a~1b"}},
		"limit":{"type":"object","additionalProperties":false,"properties":{"rate":{"type":"string","description":"as 10Mbit"},"burst":{}}},
		"names":{"type":"object","propertyNames":{"pattern":"^[a-z]+$","description":"a word"}}},"$defs":{"a/b":{"type":"string","pattern":"^tcp/","description":"tcp/PORT"}}}`
	with, err := ParseContract(map[string]string{LabelConfigSchema: schema})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		contract Contract
		config   map[string]any
		err      string
	}{
		"none, none wanted":     {Contract{}, nil, ""},
		"one, none wanted":      {Contract{}, map[string]any{"a": 1}, "takes none (found a)"},
		"none where it may":     {with, nil, ""},
		"a good one":            {with, map[string]any{"allow": []any{"tcp/80"}}, ""},
		"an unknown key":        {with, map[string]any{"alow": 1}, "alow: unknown key (known are allow, deny, limit, names)"},
		"an unknown key within": {with, map[string]any{"limit": map[string]any{"rte": 1}}, "limit.rte: unknown key (known are burst, rate)"},
		"another type":          {with, map[string]any{"limit": map[string]any{"rate": 10}}, "limit.rate: got number, want string (as 10Mbit)"},
		"a bad name":            {with, map[string]any{"names": map[string]any{"A1": 1}}, `names: is "A1" (want a word)`},
		"a bad item, located":   {with, map[string]any{"allow": []any{"tcp/80", "http"}}, "allow[1]: 'http' does not match pattern"},
		"a bad item, described": {with, map[string]any{"deny": []any{"http"}}, `deny[0]: is "http" (want tcp/PORT)`},
	} {
		t.Run(name, func(t *testing.T) {
			found := tt.contract.CheckConfig(tt.config)
			if (len(found) == 0) != (tt.err == "") || len(found) > 0 && !strings.Contains(found[0].String(), tt.err) {
				t.Errorf("got %v, want %q", found, tt.err)
			}
		})
	}
}

func TestLoadRecipe(t *testing.T) {
	good := "name: a\ntag: \"1\"\nentrypoint: [/a]\n"
	for name, tt := range map[string]struct{ text, err string }{
		"unknown key":       {good + "filez: []\n", "[4:1]"},
		"no files":          {good, "files: want at least one"},
		"two sources":       {good + "files: [{to: /a, go: ., from: b}]\n", "exactly one of go, c, from"},
		"relative target":   {good + "files: [{to: a, go: .}]\n", "want an absolute path"},
		"escaping target":   {good + "files: [{to: /../a, go: .}]\n", "want an absolute path"},
		"bad name":          {"name: A\ntag: \"1\"\n", `name "A"`},
		"no entrypoint":     {"name: a\ntag: \"1\"\n", "entrypoint: want"},
		"bad contract":      {good + "files: [{to: /a, go: .}]\nlabels: {weir.ports: x}\n", LabelPorts},
		"no schema file":    {good + "config_schema: nope.json\n", "nope.json"},
		"no such base":      {good + "base: alpine\nfiles: [{to: /a, go: .}]\n", "want busybox, debian"},
		"packages of none":  {good + "packages: [tini]\n", "want base: debian"},
		"bad package":       {good + "base: debian\npackages: [\"--x\"]\n", "packages[0]"},
		"into a link":       {good + "base: debian\nfiles: [{to: /bin/a, go: .}]\n", "want /usr/bin/a"},
		"mode out of range": {good + "files: [{to: /a, go: ., mode: 4095}]\n", "at most 0777"},
		"a decimal mode":    {good + "files: [{to: /a, go: ., mode: 755}]\n", "mode 755: want an octal number"},
		"not to be run":     {good + "files: [{to: /a, from: a.sh}]\n", "files[0]: /a is the entrypoint and not executable: want mode: 0755"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, RecipeFile), []byte(tt.text), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := LoadRecipe(dir); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q in it", err, tt.err)
			}
		})
	}
}

func TestCompareTagsIsAnOrder(t *testing.T) {
	tag := rapid.StringMatching(`[0-9a-c.]{0,6}`)
	sign := func(n int) int { return min(1, max(-1, n)) }
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := tag.Draw(t, "a"), tag.Draw(t, "b"), tag.Draw(t, "c")
		if sign(compareTags(a, b)) != -sign(compareTags(b, a)) {
			t.Fatalf("%q and %q", a, b)
		}
		if compareTags(a, b) <= 0 && compareTags(b, c) <= 0 && compareTags(a, c) > 0 {
			t.Fatalf("%q <= %q <= %q, yet not %q <= %q", a, b, c, a, c)
		}
	})
	for _, pair := range [][2]string{{"1.9", "1.10"}, {"1", "2"}, {"1", "1.1"}, {"9", "10"}} {
		if compareTags(pair[0], pair[1]) >= 0 {
			t.Errorf("%s is not below %s", pair[0], pair[1])
		}
	}
}

func TestAnExampleIsForPeople(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	const example = "functions:\n  f: {image: x}\npolicies:\n  p: {chain: c}\n"
	write("prog", "x")
	for name, c := range map[string]struct{ file, text, want, wrong string }{
		"a file":             {"example.yaml", example, example, ""},
		"a page":             {"README.md", "# x\n```yaml\nfunctions:\n  f: {image: x}\n```\n```sh\npolicies:\n```\n```yaml\n" + example + "```\n", example, ""},
		"a page without one": {"README.md", "# x\n```yaml\nfunctions:\n```\n", "", "want a block of YAML (```yaml) that has policies"},
		"too long":           {"example.yaml", strings.Repeat("x", 20_000), "", "it has 20000 bytes, want at most 16384"},
		"no text":            {"example.yaml", "\xff", "", "want text in UTF-8"},
		"no file":            {"none.yaml", "", "", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.text != "" {
				write(c.file, c.text)
			}
			write(RecipeFile, "name: x\ntag: '1'\nentrypoint: [/prog]\nexample: "+c.file+"\nfiles: [{to: /prog, from: prog, mode: 0755}]\n")
			r, err := LoadRecipe(dir)
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("%v: want %q", err, c.wrong)
				}
				return
			}
			must(t, err)
			got, err := ParseContract(r.labels())
			if err != nil || got.Example != c.want || !got.Foreign {
				t.Errorf("example %q, foreign %t, %v", got.Example, got.Foreign, err)
			}
		})
	}
	// Of images that others made, too.
	if got, err := ParseContract(map[string]string{LabelExample: strings.Repeat("x", 20_000)}); err != nil || got.Example != "" {
		t.Errorf("%d bytes, %v", len(got.Example), err)
	}
}
