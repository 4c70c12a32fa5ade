package ask

import (
	"errors"
	"fmt"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// switchRules answers with a switch's entries, read live.
func (a *Asker) switchRules(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	s, err := store.Get[api.Switch](r.Context(), a.Store, api.KindSwitch, name)
	if errors.Is(err, store.ErrNotFound) {
		return object.NotFound(api.KindSwitch, name)
	}
	if err != nil {
		return err
	}
	if a.Fabric == nil {
		return api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("switch %s cannot be asked from here: this manager controls no switches (start it with --openflow)", name))
	}
	rules, err := a.Fabric.SwitchRules(r.Context(), name)
	if errors.Is(err, ErrElsewhere) {
		where := a.Lead.Leader(r.Context())
		if where == "" || a.Lead.Leads() {
			return api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("switch %s cannot be asked now: the router is about to start, try again", name))
		}
		return api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("switch %s cannot be asked from here: the router runs at the manager that leads, %s: ask there", name, where))
	}
	if err != nil {
		return api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("switch %s (%s): %s", name, s.Status.State, err))
	}
	if rules.Tables == nil {
		rules.Tables = []api.SwitchTable{}
	}
	if rules.Rules == nil {
		rules.Rules = []api.SwitchRule{}
	}
	return web.Answer(w, http.StatusOK, rules)
}
