package manager

import (
	"fmt"
	"time"

	"weir.dev/weir/api"
)

// turnHost writes a host's state down, for all who watch, with an event.
func (st *state) turnHost(name string, state api.HostState) {
	o := st.get(api.KindHost, name)
	if o == nil {
		return // removed meanwhile
	}
	var spec api.HostSpec
	var s api.HostStatus
	if o.into(&spec, &s) != nil || s.State == state {
		return
	}
	st.touch(api.KindHost, name)
	next := *o // Updated stays: when it reported last
	silent := st.m.silence(name, o.Updated)
	s.State = state
	s.Conditions = hostConditions(name, &s).Dated(s.Conditions, st.m.Now().UTC())
	next.Status = marshal(s)
	st.objects[api.KindHost][name] = &next
	if state == api.HostLost {
		st.tell(api.Event{Severity: api.Error, Reason: "HostLost", Kind: api.KindHost, Object: name, Host: name,
			Message: fmt.Sprintf("host %s is lost: its agent has been silent for %v; what it forwards goes on", name, silent.Round(100*time.Millisecond))})
		return
	}
	st.tell(hostBack(name, st.m.Now().Sub(o.Updated)))
}
