package ask

import (
	"cmp"
	"context"
	"net/http"
	"strconv"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/intent"
	"weir.dev/weir/manager/web"
)

// trace answers what becomes of a packet.
func (a *Asker) trace(w http.ResponseWriter, r *http.Request) error {
	v := r.URL.Query()
	q := api.TraceQuery{From: v.Get("from"), To: v.Get("to"), Match: v.Get("match"), Source: v.Get("source"), Destination: v.Get("destination")}
	q.SourcePort, _ = strconv.Atoi(v.Get("source_port"))
	q.VLAN, _ = strconv.Atoi(v.Get("vlan"))
	d, now, err := a.Intent.Standing(r.Context())
	if err != nil {
		return err
	}
	t, err := a.Trace(d, q, now.MACs, now.Down)
	if err != nil {
		return err
	}
	a.liven(r.Context(), &t, now)
	return web.Answer(w, http.StatusOK, t)
}

// liven adds the policies' states and the ports' counters. A host that does not answer takes only its own counters away.
func (a *Asker) liven(ctx context.Context, t *api.Trace, now intent.Standing) {
	var names []string
	for _, way := range []*api.TraceWay{&t.Request, &t.Reply} {
		for _, s := range way.Steps {
			names = append(names, s.Port)
		}
		for i, p := range way.Policies {
			status := now.Policies[p.Policy]
			way.Policies[i].State, way.Policies[i].Message = cmp.Or(status.State, api.PolicyPending), status.Message
		}
	}
	ports, err := a.portsOf(ctx, names)
	if err != nil {
		a.Log.Debug("trace: counters", "error", err)
	}
	for _, way := range []*api.TraceWay{&t.Request, &t.Reply} {
		for i := range way.Steps {
			way.Steps[i].Hop = hops([]string{way.Steps[i].Port}, ports)[0]
		}
	}
}
