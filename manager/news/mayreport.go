package news

import (
	"fmt"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
)

// maxStatus bounds what an agent may say of one object, in bytes: all agents share the state.
const maxStatus = 1 << 20

// mayReport refuses news that are not the reporter's own, and what nobody needs to say.
func mayReport(r *http.Request, req api.StatusReport) error {
	who, ok := web.AgentOf(r.Context())
	if !ok {
		return nil
	}
	var problems []api.Problem
	add := func(path, host string) {
		problems = append(problems, api.Problem{Path: path, Message: fmt.Sprintf("is of host %q", host), Hint: fmt.Sprintf("the agent of host %s reports its own", who.Host)})
	}
	if req.Host != who.Host {
		add("host", req.Host)
	}
	long := func(path string, status any) {
		if n := len(object.Marshal(status)); n > maxStatus {
			problems = append(problems, api.Problem{Path: path, Message: fmt.Sprintf("has %d bytes: want at most %d", n, maxStatus)})
		}
	}
	long("host_status", req.HostState)
	long("assignment_status", req.Assigned)
	for name, s := range req.Chains {
		long("chains."+name, s)
	}
	for name, s := range req.Policies {
		long("policies."+name, s)
	}
	for name, s := range req.Endpoints {
		long("endpoints."+name, s)
		if s.Host != "" && s.Host != who.Host {
			add("endpoints."+name+".host", s.Host)
		}
	}
	for name, s := range req.Functions {
		long("functions."+name, s)
		if s.Host != "" && s.Host != who.Host {
			add("functions."+name+".host", s.Host)
		}
	}
	for i, e := range req.Events {
		if e.Host != "" && e.Host != who.Host {
			add(fmt.Sprintf("events[%d].host", i), e.Host)
		}
	}
	if len(problems) > 0 {
		return api.Refuse(http.StatusForbidden, "the report is not this host's own, or too long", problems...)
	}
	return nil
}
