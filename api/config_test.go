package api

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConfigKeepsItsNumbers(t *testing.T) {
	const text = `{"id":9007199254740993,"ids":[18446744073709551615,-9007199254740993,9007199254740992],"in":{"big":123456789012345678901},"rate":0.5,"size":1e3}`
	var c Config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	want := Config{"id": json.Number("9007199254740993"), "ids": []any{json.Number("18446744073709551615"), json.Number("-9007199254740993"), float64(1 << 53)},
		"in": map[string]any{"big": json.Number("123456789012345678901")}, "rate": 0.5, "size": 1000.0}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	b, err := json.Marshal(c)
	if want := `{"id":9007199254740993,"ids":[18446744073709551615,-9007199254740993,9007199254740992],"in":{"big":123456789012345678901},"rate":0.5,"size":1000}`; err != nil || string(b) != want {
		t.Errorf("%s, %v, want %s", b, err, want)
	}
	for _, text := range []string{`5`, `[1]`, `"x"`, `{`} {
		if err := json.Unmarshal([]byte(text), new(Config)); err == nil {
			t.Errorf("%s is taken for a config", text)
		}
	}
	if err := json.Unmarshal([]byte(`null`), &c); err != nil || c != nil {
		t.Errorf("%v, %v, want none", c, err)
	}
}
