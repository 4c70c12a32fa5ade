package object

import (
	"testing"

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
