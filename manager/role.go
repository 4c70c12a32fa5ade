package manager

import (
	"fmt"
	"net/http"
	"strings"

	"weir.dev/weir/api"
)

// joinPath is the one path of the agents' listener that needs no certificate.
const joinPath = "/v1/join"

// mayAgent says what the agent of a host may ask for: to read specs, its own assignment and what concerns all hosts; to write its own
// news. Everything else is an administrator's, who comes by the Unix socket or with the token.
func mayAgent(r *http.Request, host string) error {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	own := len(parts) >= 2 && parts[1] == host
	ok := false
	switch parts[0] {
	case "endpoints", "functions", "chains", "policies":
		ok = read && len(parts) <= 2
	case "assignments":
		ok = read && (len(parts) == 2 && own || len(parts) == 1 && r.URL.Query().Get("name") == host)
	case "hosts":
		switch {
		case len(parts) == 3 && parts[2] == "beat":
			ok = own && r.Method == http.MethodPost
		case len(parts) == 3 && parts[2] == "connect":
			ok = own && r.Method == http.MethodGet
		default:
			ok = read && (len(parts) == 2 && own || len(parts) == 1 && r.URL.Query().Get("name") == host)
		}
	case "agent":
		ok = read && (len(parts) == 2 && parts[1] == "config" || len(parts) == 3 && parts[1] == "secrets")
	case "status", "certificates": // whose news they are is checked where they are read
		ok = r.Method == http.MethodPost && len(parts) == 1
	}
	if !ok || !strings.HasPrefix(r.URL.Path, "/v1/") {
		return api.Refuse(http.StatusForbidden, fmt.Sprintf("%s %s is not for agents: host %s may read specs and its own assignment, and report its own status", r.Method, r.URL.Path, host))
	}
	return nil
}

// maxStatus bounds what an agent may say of one object, in bytes: all agents share the state.
const maxStatus = 1 << 20

// mayReport refuses news that are not the reporter's own, and what nobody needs to say.
func mayReport(r *http.Request, req api.StatusReport) error {
	who, ok := agentOf(r.Context())
	if !ok {
		return nil
	}
	var problems []api.Problem
	add := func(path, host string) {
		problems = append(problems, api.Problem{Path: path, Message: fmt.Sprintf("is of host %q", host), Hint: fmt.Sprintf("the agent of host %s reports its own", who.host)})
	}
	if req.Host != who.host {
		add("host", req.Host)
	}
	long := func(path string, status any) {
		if n := len(marshal(status)); n > maxStatus {
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
		if s.Host != "" && s.Host != who.host {
			add("endpoints."+name+".host", s.Host)
		}
	}
	for name, s := range req.Functions {
		long("functions."+name, s)
		if s.Host != "" && s.Host != who.host {
			add("functions."+name+".host", s.Host)
		}
	}
	for i, e := range req.Events {
		if e.Host != "" && e.Host != who.host {
			add(fmt.Sprintf("events[%d].host", i), e.Host)
		}
	}
	if len(problems) > 0 {
		return api.Refuse(http.StatusForbidden, "the report is not this host's own, or too long", problems...)
	}
	return nil
}
