package ask

import (
	"cmp"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
)

// flows answers with those that a function has settled. What no host may answer is left out.
func (a *Asker) flows(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	o, err := api.ParseFlows(r.URL.Query())
	if err != nil {
		return err
	}
	f, err := object.Find[api.Function](r.Context(), a.Store, api.KindFunction, name)
	if err != nil {
		return err
	}
	host := cmp.Or(f.At(), f.Status.Host)
	n, err := a.node(r.Context(), host)
	if err != nil {
		return err
	}
	said, err := n.Flows(r.Context(), name, o)
	if err != nil {
		return live(err)
	}
	out := api.SettledFlows{Function: name, Host: host, Time: said.Time, Total: max(said.Total, 0), Flows: []api.SettledFlow{}}
	for _, flow := range said.Flows {
		if len(out.Flows) < o.Limit && flow.Check() == "" {
			out.Flows = append(out.Flows, flow)
		}
	}
	return web.Answer(w, http.StatusOK, out)
}
