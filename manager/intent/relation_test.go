package intent

import (
	"fmt"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
)

// Many policies over one chain, from and to the same, are related in a moment: who applies or deletes anything waits for it.
func TestManyPoliciesAreRelatedAtOnce(t *testing.T) {
	const many = 20_000
	policies := map[string]*object.Object{}
	for i := range many {
		name := fmt.Sprintf("p%05d", i)
		policies[name] = &object.Object{Meta: api.Meta{Name: name}, Spec: object.Marshal(api.PolicySpec{From: "alice", To: "alice", Chain: "web"})}
	}
	objects := map[api.Kind]map[string]*object.Object{
		api.KindPolicy: policies, api.KindEndpoint: {"alice": {Meta: api.Meta{Name: "alice"}}},
		api.KindChain: {"web": {Meta: api.Meta{Name: "web"}, Spec: object.Marshal(api.ChainSpec{Path: "fw"})}},
	}
	begin := time.Now()
	r := relate(objects, objects) // as it was and will be
	for _, c := range []struct {
		of   object.Ref
		want int
	}{
		{object.Ref{Kind: api.KindEndpoint, Name: "alice"}, many}, {object.Ref{Kind: api.KindChain, Name: "web"}, many + 1},
		{object.Ref{Kind: api.KindFunction, Name: "fw"}, many + 1}, {object.Ref{Kind: api.KindPolicy, Name: "p00000"}, 2},
	} {
		if got := r.affects(c.of, objects[api.KindEndpoint]); len(got) != c.want {
			t.Errorf("%s affects %d, want %d", c.of, len(got), c.want)
		}
	}
	if took := time.Since(begin); took > 5*time.Second { // 0.1 s; each compared with each, 7 s
		t.Errorf("it took %v", took)
	}
}
