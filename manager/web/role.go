package web

import (
	"fmt"
	"net/http"
	"strings"

	"weir.dev/weir/api"
)

// JoinPath is the one path of the agents' listener that needs no certificate.
const JoinPath = "/v1/join"

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
