package read

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/graph"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// maxGraphs bounds how many are made at a time.
const maxGraphs = 4

// graph answers with all objects as a graph, or with underlay only with what joins hosts and switches.
func (rd *Reader) graph(w http.ResponseWriter, r *http.Request) error {
	release, err := rd.graphs.Take("graphs")
	if err != nil {
		return err
	}
	defer release()
	var o graph.Objects
	ctx := r.Context()
	err = cmp.Or(all(ctx, rd, api.KindHost, &o.Hosts), all(ctx, rd, api.KindSwitch, &o.Switches), all(ctx, rd, api.KindAssignment, &o.Assignments))
	if err == nil && !web.Flag(r, "underlay") {
		err = cmp.Or(all(ctx, rd, api.KindEndpoint, &o.Endpoints), all(ctx, rd, api.KindFunction, &o.Functions), all(ctx, rd, api.KindChain, &o.Chains),
			all(ctx, rd, api.KindPolicy, &o.Policies))
	}
	if err != nil {
		return err
	}
	return web.Answer(w, http.StatusOK, graph.Of(o))
}

// all reads the objects of a kind as clients see them.
func all[T any](ctx context.Context, rd *Reader, kind api.Kind, into *[]T) error {
	items, _, err := rd.Store.List(ctx, store.Prefix(kind), store.ListOptions{})
	if err != nil {
		return err
	}
	for _, i := range items {
		value, _ := rd.Hosts.WithHealth(object.Noun{Kind: kind}, i)
		i.Value = value
		var x T
		if err := json.Unmarshal(object.Wire(i), &x); err != nil {
			return err
		}
		*into = append(*into, x)
	}
	return nil
}
