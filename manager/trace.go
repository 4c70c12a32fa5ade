package manager

import (
	"cmp"
	"context"
	"net/http"
	"strconv"

	"weir.dev/weir/api"
)

// trace answers what becomes of a packet.
func (m *Manager) trace(w http.ResponseWriter, r *http.Request) error {
	v := r.URL.Query()
	q := api.TraceQuery{From: v.Get("from"), To: v.Get("to"), Match: v.Get("match"), Source: v.Get("source"), Destination: v.Get("destination")}
	for name, into := range map[string]*int{"source_port": &q.SourcePort, "vlan": &q.VLAN} {
		if !v.Has(name) {
			continue
		}
		n, err := strconv.Atoi(v.Get(name))
		if err != nil || n <= 0 {
			return api.Refuse(http.StatusBadRequest, "the query is refused",
				api.Problem{Path: "query." + name, Message: "is " + strconv.Quote(v.Get(name)), Hint: "want a number from 1"})
		}
		*into = n
	}
	d, now, err := m.standing(r.Context())
	if err != nil {
		return err
	}
	t, err := m.Trace(d, q, now.macs, now.down)
	if err != nil {
		return err
	}
	m.liven(r.Context(), &t, now)
	return answer(w, http.StatusOK, t)
}

// liven adds the policies' states and the ports' counters. A host that does not answer takes only its own counters away.
func (m *Manager) liven(ctx context.Context, t *api.Trace, now standing) {
	var names []string
	for _, way := range []*api.TraceWay{&t.Request, &t.Reply} {
		for _, s := range way.Steps {
			names = append(names, s.Port)
		}
		for i, p := range way.Policies {
			status := now.policies[p.Policy]
			way.Policies[i].State, way.Policies[i].Message = cmp.Or(status.State, api.PolicyPending), status.Message
		}
	}
	ports, err := m.portsOf(ctx, names)
	if err != nil {
		m.Log.Debug("trace: counters", "error", err)
	}
	for _, way := range []*api.TraceWay{&t.Request, &t.Reply} {
		for i := range way.Steps {
			way.Steps[i].Hop = hops([]string{way.Steps[i].Port}, ports)[0]
		}
	}
}
