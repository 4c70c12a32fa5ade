package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"weir.dev/weir/api"
)

func TestParseTakesWhatTheFormatSays(t *testing.T) {
	yes := true
	for name, c := range map[string]struct {
		text string
		want api.Document
	}{
		"nothing in a section":      {"endpoints:\n", api.Document{}},
		"a chain as bare text":      {"chains: {web: fw | tap:mon}", api.Document{Chains: map[string]api.ChainSpec{"web": {Path: "fw | tap:mon"}}}},
		"a chain in long":           {"chains: {web: {path: fw}}", api.Document{Chains: map[string]api.ChainSpec{"web": {Path: "fw"}}}},
		"a chain quoted":            {`chains: {web: "fw | w1"}`, api.Document{Chains: map[string]api.ChainSpec{"web": {Path: "fw | w1"}}}},
		"JSON":                      {`{"chains": {"web": "fw"}}`, api.Document{Chains: map[string]api.ChainSpec{"web": {Path: "fw"}}}},
		"a byte order mark":         {"\ufeffchains: {web: fw}", api.Document{Chains: map[string]api.ChainSpec{"web": {Path: "fw"}}}},
		"CRLF":                      {"chains:\r\n  web: fw\r\n", api.Document{Chains: map[string]api.ChainSpec{"web": {Path: "fw"}}}},
		"a document marker":         {"---\nchains: {web: fw}\n...\n", api.Document{Chains: map[string]api.ChainSpec{"web": {Path: "fw"}}}},
		"an object with no fields":  {"functions:\n  fw:\n", api.Document{Functions: map[string]api.FunctionSpec{"fw": {}}}},
		"MACs, prefixes and ranges": {"policies: {p: {from: 06:57:01:02:03:04, to: fd00::/64, match: [tcp/1-65535, icmp], chain: c, symmetric: true, priority: 7}}", api.Document{Policies: map[string]api.PolicySpec{"p": {From: "06:57:01:02:03:04", To: "fd00::/64", Match: []string{"tcp/1-65535", "icmp"}, Chain: "c", Symmetric: &yes, Priority: 7}}}},
		"limits and variables as bare numbers": {"functions: {f: {image: w, cpus: 0.50, memory: 1048576, env: {A: 1, B: true, C: yes, D: 0x10}}}",
			api.Document{Functions: map[string]api.FunctionSpec{"f": {Image: "w", CPUs: "0.50", Memory: "1048576", Env: map[string]string{"A": "1", "B": "true", "C": "yes", "D": "0x10"}}}}},
		"a config of any shape": {"functions: {f: {image: w, config: {a: [tcp/80, icmp], b: {c: 1.5, d: null}, e: false, f: -3}}}",
			api.Document{Functions: map[string]api.FunctionSpec{"f": {Image: "w", Config: map[string]any{"a": []any{"tcp/80", "icmp"}, "b": map[string]any{"c": 1.5, "d": nil}, "e": false, "f": int64(-3)}}}}},
		"anchors, aliases and merges, the own key first": {"x-base: &base {image: wire, on_fail: bypass}\nfunctions:\n  a: *base\n  b: {<<: *base, on_fail: drop}\n  c:\n    <<: [*base, {memory: 64M}]\n",
			api.Document{Functions: map[string]api.FunctionSpec{"a": {Image: "wire", OnFail: "bypass"}, "b": {Image: "wire", OnFail: "drop"}, "c": {Image: "wire", OnFail: "bypass", Memory: "64M"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Parse("in.yaml", []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(asJSON(t, c.want), asJSON(t, f.Document)); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const sample = `endpoints:
  alice: {netns: alice, interface: eth0}
chains:
  web: fw | w1
  dns: {path: fw}
policies:
  guests:
    from: alice
    match: [tcp/80,
      icmp]
    chain: web
`

func TestLocate(t *testing.T) {
	f, err := Parse("in.yaml", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"endpoints.alice":           "in.yaml:2:3",
		"endpoints.alice.interface": "in.yaml:2:36",
		"endpoints.alice.address":   "in.yaml:2:3", // not given: the object that lacks it
		"endpoints":                 "in.yaml:1:1",
		"chains.web.path":           "in.yaml:4:8",
		"chains.dns.path":           "in.yaml:5:15",
		"policies.guests":           "in.yaml:7:3",
		"policies.guests.match[0]":  "in.yaml:9:13",
		"policies.guests.match[1]":  "in.yaml:10:7",
		"policies.guests.match[7]":  "in.yaml:9:5",
	} {
		got, ok := f.Locate(path)
		if !ok || got.String() != want {
			t.Errorf("%s: got %v (%v), want %s", path, got, ok, want)
		}
	}
	for _, path := range []string{"functions", "functions.fw", "endpoints.carol", "endpoints.carol.mac", "chains.w", ""} {
		if at, ok := f.Locate(path); ok {
			t.Errorf("%s is nowhere, got %v", path, at)
		}
	}
}

func TestExplainSortsByPlaceAndKeepsHints(t *testing.T) {
	f, err := Parse("in.yaml", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Explain(nil); err != nil {
		t.Fatal(err)
	}
	err = f.Explain([]api.Problem{
		{Path: "policies.guests.match[1]", Message: "conflict"},
		{Path: "functions", Message: "nothing here"},
		{Path: "chains.web.path", Message: `unknown function "fw"`, Hint: "add it"},
	})
	const want = `in.yaml: functions: nothing here
in.yaml:4:8: chains.web.path: unknown function "fw" (add it)
     4 |   web: fw | w1
       |        ^
in.yaml:10:7: policies.guests.match[1]: conflict
    10 |       icmp]
       |       ^`
	if d := cmp.Diff(want, err.Error()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if !errors.Is(err, api.ErrInvalid) {
		t.Error("a file's problems are not api.ErrInvalid")
	}
}

func TestLoadMergesFilesDirectoriesAndStandardInput(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"net/a.yaml": "chains: {a: fw}", "net/b.yml": "chains: {b: fw}", "net/c.json": `{"chains": {"c": "fw"}}`,
		"net/.hidden.yaml": "bogus", "net/d.txt": "bogus", "net/sub/e.yaml": "bogus", "one.yaml": "functions: {fw: {image: firewall}}"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := Load([]string{filepath.Join(dir, "one.yaml"), filepath.Join(dir, "net"), Stdin}, strings.NewReader("chains: {d: fw}"))
	if err != nil {
		t.Fatal(err)
	}
	want := api.Document{Functions: map[string]api.FunctionSpec{"fw": {Image: "firewall"}},
		Chains: map[string]api.ChainSpec{"a": {Path: "fw"}, "b": {Path: "fw"}, "c": {Path: "fw"}, "d": {Path: "fw"}}}
	if d := cmp.Diff(want, f.Document); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	at, _ := f.Locate("chains.d")
	if at.String() != "<stdin>:1:13" {
		t.Errorf("chains.d is at %v", at)
	}
}

func TestSuggest(t *testing.T) {
	known := []string{"endpoints", "functions", "chains", "policies", "memory", "mac"}
	for word, want := range map[string]string{"polices": "policies", "Function": "functions", "memroy": "memory", "xyz": "", "": "", "endpoint": "endpoints",
		"mac2": "mac", "cahins": "chains", strings.Repeat("x", 1000): ""} {
		got := Suggest(word, known)
		if want != "" {
			want = `did you mean "` + want + `"?`
		}
		if got != want {
			t.Errorf("%.20q: got %q, want %q", word, got, want)
		}
	}
}

// Whatever document the API can hold, its YAML reads back as the same.
func TestRoundTrip(t *testing.T) {
	name := rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?`)
	text := rapid.OneOf(name, rapid.SampledFrom([]string{"10.9.0.1/24", "fd00::1/64", "06:57:00:00:00:01", "yes", "null", "1", "0x1", "1.5", "1e3", "0o7", "1_000", "+1", ".inf", "12:30:45", "2026-01-01", "- a", "a: b", "#c", "*x", "&x", "|", "é\nü", " x ", "'", `"`, "{}", "[", "true", "~", "!x", "%y", "@z", "a #b", "..."}))
	some := func(t *rapid.T, label string) bool { return rapid.Bool().Draw(t, label) }
	rapid.Check(t, func(t *rapid.T) {
		d := api.Document{Endpoints: map[string]api.EndpointSpec{}, Functions: map[string]api.FunctionSpec{}, Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{}}
		for range rapid.IntRange(1, 4).Draw(t, "objects") {
			d.Endpoints[name.Draw(t, "name")] = api.EndpointSpec{Netns: text.Draw(t, "netns"), Interface: text.Draw(t, "interface"),
				Addresses: rapid.SliceOfN(text, 0, 3).Draw(t, "addresses"), MTU: rapid.IntRange(0, 9000).Draw(t, "mtu")}
			f := api.FunctionSpec{Image: text.Draw(t, "image"), CPUs: text.Draw(t, "cpus"), Restart: rapid.Int64Min(0).Draw(t, "restart"),
				Command: rapid.SliceOfN(text, 0, 3).Draw(t, "command"), Env: rapid.MapOfN(name, text, 0, 3).Draw(t, "env")}
			if some(t, "config") {
				f.Config = map[string]any{"a": text.Draw(t, "a"), "b": []any{rapid.Int64().Draw(t, "b"), some(t, "c")}, "d": map[string]any{"e": nil}}
			}
			d.Functions[name.Draw(t, "name")] = f
			d.Chains[name.Draw(t, "name")] = api.ChainSpec{Path: text.Draw(t, "path")}
			p := api.PolicySpec{From: text.Draw(t, "from"), Chain: text.Draw(t, "chain"), Match: rapid.SliceOfN(text, 0, 3).Draw(t, "match"), Priority: rapid.IntRange(0, 1000).Draw(t, "priority")}
			if some(t, "has symmetric") {
				s := some(t, "symmetric")
				p.Symmetric = &s
			}
			d.Policies[name.Draw(t, "name")] = p
		}
		b, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if some(t, "as YAML") {
			parts, err := Write(d)
			if err != nil {
				t.Fatal(err)
			}
			b = nil
			for _, p := range parts {
				b = append(b, p.Text...)
			}
		}
		got, err := Parse("in.yaml", b)
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		want, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		back, err := json.Marshal(got.Document)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(back)); diff != "" {
			t.Fatalf("(-want +got)\n%s\n%s", diff, b)
		}
	})
}

// Whatever the bytes, Parse ends with a document or with problems in places that exist.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte("a: &a [*a]\n? x\n: y\n<<: {}\n"))
	f.Add([]byte("functions: {fw: {image:x, <<: *b}}\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return // long inputs only slow the search down
		}
		parsed, err := Parse("in.yaml", data)
		if err == nil {
			_ = parsed.Document.Validate()
			return
		}
		var bad *Error
		if !errors.As(err, &bad) || len(bad.Problems) == 0 || bad.Error() == "" {
			t.Fatalf("error without problems: %v", err)
		}
		lines := len(splitLines(data))
		for _, p := range bad.Problems {
			if p.Line > lines || p.Message == "" {
				t.Fatalf("problem out of place: %+v", p)
			}
		}
	})
}

func BenchmarkParse1000Policies(b *testing.B) {
	var text strings.Builder
	text.WriteString("policies:\n")
	for i := range 1000 {
		text.WriteString("  p" + string(rune('a'+i%26)) + "-" + strings.Repeat("x", i%7) + asJSON(b, i) + ": {from: alice, to: 10.9.0.0/24, match: [tcp/80, icmp], chain: web, priority: 100}\n")
	}
	for b.Loop() {
		if _, err := Parse("in.yaml", []byte(text.String())); err != nil {
			b.Fatal(err)
		}
	}
}

// The values of secrets are read from files and the environment. What somebody writes into the document instead is refused, and not repeated.
func TestSecretsComeFromElsewhere(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("password", "from a file\n", 0o600)
	write("open", "x", 0o644)
	write("empty", "", 0o600)
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEIR_TEST_SECRET", "from the environment")
	const inline = "hunter2-inline"
	for name, c := range map[string]struct {
		text string
		want map[string]string
		says string
	}{
		"both":         {"secrets: {db: {file: password}, key: {env: WEIR_TEST_SECRET}}", map[string]string{"db": "from a file\n", "key": "from the environment"}, ""},
		"none":         {"secrets: {}", map[string]string{}, ""},
		"no section":   {"chains: {}", nil, ""},
		"a value":      {"secrets: {db: " + inline + "}", nil, "secrets.db: want a mapping (" + secretHint},
		"a value key":  {"secrets: {db: {value: " + inline + "}}", nil, "secrets.db.value: unknown key (" + secretHint},
		"a section":    {"secrets: " + inline, nil, "secrets: want a mapping"},
		"a list":       {"secrets: {db: {file: [" + inline + "]}}", nil, "secrets.db.file: want text"},
		"both sources": {"secrets: {db: {file: password, env: WEIR_TEST_SECRET}}", nil, "secrets.db: want one of file and env"},
		"no source":    {"secrets: {db: {}}", nil, "secrets.db: want one of file and env"},
		"no file":      {"secrets: {db: {file: nowhere}}", nil, "nowhere: no such file"},
		"for all":      {"secrets: {db: {file: open}}", nil, "(mode 0644): chmod o= "},
		"a quote":      {"secrets:\n  db: \"" + inline, nil, "is no valid YAML (" + secretHint},
		"an at":        {"# why\nsecrets:\n\n  db: @" + inline, nil, "is no valid YAML"},
		"a colon":      {"secrets:\n  db: " + inline + ": x", nil, "is no valid YAML"},
		"a bar":        {"secrets:\n  db: |" + inline, nil, "is no valid YAML"},
		"a tab":        {"secrets:\n\tdb: " + inline, nil, "never with tabs"},
		"JSON":         {"{\n\"chains\": {},\n\"secrets\": {\"db\": \"" + inline + "}}", nil, "is no valid YAML"},
		"braces":       {"secrets: {db: {" + inline + "}}", nil, "secrets.db....: unknown key"},
		"braces twice": {"secrets: {db: {" + inline + ": 1, " + inline + ": 2}}", nil, "is given twice"},
		"an alias":     {"secrets:\n  db: *" + inline, nil, "secrets.db: want"},
		"a tag":        {"secrets:\n  db: !" + inline + " x", nil, "secrets.db: want"},
		"empty":        {"secrets: {db: {file: empty}}", nil, "holds 0 bytes"},
		"nobody's":     {"secrets: {db: {file: fifo}}", nil, "holds 0 bytes"},
		"no variable":  {"secrets: {db: {env: WEIR_TEST_NOTHING}}", nil, "the environment has no variable WEIR_TEST_NOTHING"},
	} {
		t.Run(name, func(t *testing.T) {
			write("net.yaml", c.text, 0o644)
			f, err := Load([]string{filepath.Join(dir, "net.yaml")}, nil)
			var got map[string]api.SecretRequest
			if err == nil {
				got, err = f.Values()
			}
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Fatalf("got %v, want %q", err, c.says)
			}
			if err != nil {
				if strings.Contains(err.Error(), inline) {
					t.Errorf("it shows what may be a secret: %v", err)
				}
				return
			}
			if (got == nil) != (c.want == nil) || len(got) != len(c.want) {
				t.Errorf("got %d secrets, want %d", len(got), len(c.want))
			}
			for name, want := range c.want {
				if string(got[name].Value) != want {
					t.Errorf("%s: %q, want %q", name, got[name].Value, want)
				}
			}
		})
	}
}

// What is more than one file may hold goes into several.
func TestWriteSplitsWhatIsTooLarge(t *testing.T) {
	d := api.Document{Functions: map[string]api.FunctionSpec{}}
	for i := range 7 {
		d.Functions[fmt.Sprintf("f%d", i)] = api.FunctionSpec{Image: "wire", Env: map[string]string{"A": strings.Repeat("x", 1<<20)}}
	}
	parts, err := Write(d)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, p := range parts {
		if len(p.Text) > MaxBytes {
			t.Errorf("%s has %d bytes", p.Name, len(p.Text))
		}
		if err := os.WriteFile(filepath.Join(dir, p.Name+".yaml"), append([]byte("# a comment\n"), p.Text...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load([]string{dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d.Functions, got.Document.Functions); diff != "" || len(parts) < 5 {
		t.Errorf("%d parts; %d functions came back", len(parts), len(got.Document.Functions))
	}
}
