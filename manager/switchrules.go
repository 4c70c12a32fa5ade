package manager

import (
	"errors"
	"fmt"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/store"
)

// switchRules answers with a switch's entries, read live.
func (m *Manager) switchRules(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	s, err := store.Get[api.Switch](r.Context(), m.Store, api.KindSwitch, name)
	if errors.Is(err, store.ErrNotFound) {
		return notFound(api.KindSwitch, name)
	}
	if err != nil {
		return err
	}
	if m.Fabric == nil {
		return api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("switch %s cannot be asked from here: this manager controls no switches (start it with --openflow)", name))
	}
	rules, err := m.Fabric.SwitchRules(r.Context(), name)
	if errors.Is(err, ErrElsewhere) {
		where := m.leader(r.Context())
		if where == "" || m.Leads() {
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
	return answer(w, http.StatusOK, rules)
}
