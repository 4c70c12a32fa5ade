package object

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
)

func TestNounsAreComplete(t *testing.T) {
	var kinds []api.Kind
	for _, n := range Nouns() {
		kinds = append(kinds, n.Kind)
		if n.Spec != nil && (n.status == nil || n.Body == nil) {
			t.Errorf("%s has a spec, but no status or body", n.Kind)
		}
	}
	if d := cmp.Diff(api.Kinds(), kinds); d != "" {
		t.Error(d)
	}
}

// Whatever an agent says, an object has a few conditions, one of each type, with words and texts of some length.
func TestConditionsAreBounded(t *testing.T) {
	long, now := strings.Repeat("x", 1<<20), time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	before := api.Conditions{{Type: "b", Reason: "r", Since: now.Add(-time.Hour)}}
	next := api.Conditions{{Type: "a", Reason: api.Reason(long), Message: long}, {Type: "b", Reason: "r", Message: "first"}, {Type: "b", Reason: "other"},
		{Type: api.ConditionType(long)}, {Type: api.ConditionType(long + "y")}}
	o := &Object{Status: Marshal(map[string]any{"conditions": before})}
	got := DatedAfter(o, append(next, make(api.Conditions, 100)...), now)
	if raw, _ := json.Marshal(got); len(got) != 4 || len(raw) > 2*MaxConditionText {
		t.Fatalf("%d conditions of %d bytes", len(got), len(raw))
	}
	if b := got.Get("b"); b.Message != "first" || !b.Since.Equal(now.Add(-time.Hour)) || !got.Get("a").Since.Equal(now) {
		t.Errorf("%+v", got)
	}
}
