package intent

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The cases of RFC 7386, appendix A.
func TestMergePatch(t *testing.T) {
	for _, x := range []struct{ target, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, `null`},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		target, patch, want := tree(t, x.target), tree(t, x.patch), tree(t, x.want)
		if d := cmp.Diff(want, mergePatch(target, patch)); d != "" {
			t.Errorf("%s patched with %s: %s", x.target, x.patch, d)
		}
	}
}

func tree(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestDifferences(t *testing.T) {
	got := differences(
		json.RawMessage(`{"image":"wire","memory":"64M","config":{"allow":["tcp/80"],"log":true},"cpus":"1"}`),
		json.RawMessage(`{"image":"wire","memory":"128M","config":{"allow":["tcp/80","icmp"]},"restart":2}`))
	want := []string{
		`config.allow: ["tcp/80"] -> ["tcp/80","icmp"]`,
		"config.log: true -> (unset)",
		"cpus: 1 -> (unset)",
		"memory: 64M -> 128M",
		"restart: (unset) -> 2",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
