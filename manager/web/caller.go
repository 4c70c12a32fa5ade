package web

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
)

// Caller is who asks. Who is what the audit log says of it.
type Caller struct {
	Who  string
	Role api.Role
	From string
	Self bool // this very process: its own agent
	// Token is the name of the token that it bears, "" none; Proof tells that token from later ones of the name.
	Token, Proof string
	Session      bool // of the web UI, for whoever that is
}

type callerKey struct{}

// CallerOf is who asks; an agent has its certificate's host and no role of its own: see mayAgent.
func CallerOf(r *http.Request) Caller {
	if who, ok := AgentOf(r.Context()); ok {
		return Caller{Who: "host " + who.Host, Role: api.RoleAgent, From: PeerOf(r)}
	}
	if c, ok := r.Context().Value(callerKey{}).(Caller); ok {
		return c
	}
	return Caller{Who: "nobody", From: PeerOf(r)}
}

// WithCaller is the context of a request of c.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// local is who calls this process's own handler.
var local = Caller{Who: "this process", Role: api.RoleAdmin}

// mayCall refuses what the caller's role does not allow.
func mayCall(r *http.Request, need api.Role) error {
	if need == Anybody {
		return nil
	}
	c := CallerOf(r)
	if c.Role == api.RoleAgent { // mayAgent has decided
		return nil
	}
	if c.Role.May(need) {
		return nil
	}
	if c.Role == "" {
		return api.Refuse(http.StatusForbidden, fmt.Sprintf("%s %s is not for %s", r.Method, r.URL.Path, c.Who))
	}
	return api.Refuse(http.StatusForbidden, fmt.Sprintf("%s %s needs the role %s; %s has the role %s", r.Method, r.URL.Path, need, c.Who, c.Role))
}

// Anybody is the role of routes that ask nobody who they are.
const Anybody api.Role = "anybody"

// socketCaller is who opened a Unix socket: root, or the user of this process, is an administrator.
func socketCaller(c net.Conn) (Caller, bool) {
	cred, err := peerCredentials(c)
	if err != nil {
		return Caller{Who: "nobody", From: "unix socket"}, true
	}
	if cred == nil {
		return Caller{}, false
	}
	out := Caller{Who: "user " + userName(cred.Uid), From: fmt.Sprintf("process %d", cred.Pid)}
	if by := loginOf(cred.Pid); by != "" && by != strconv.FormatUint(uint64(cred.Uid), 10) {
		out.Who += ", logged in as " + by
	}
	out.Self = int(cred.Pid) == os.Getpid()
	if cred.Uid == 0 || int(cred.Uid) == os.Geteuid() {
		out.Role = api.RoleAdmin
	}
	return out, true
}

// peerCredentials asks the kernel who opened a Unix socket; nil: it is none.
func peerCredentials(c net.Conn) (*unix.Ucred, error) {
	for {
		inner, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = inner.NetConn()
	}
	s, ok := c.(*net.UnixConn)
	if !ok {
		return nil, nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var got error
	if err := raw.Control(func(fd uintptr) { cred, got = unix.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return nil, err
	}
	return cred, got
}

func userName(uid uint32) string {
	if uid == 0 {
		return "root"
	}
	return strconv.FormatUint(uint64(uid), 10)
}

// loginOf is who logged in before becoming root, by the kernel's audit id; "" not known.
func loginOf(pid int32) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", pid))
	id := strings.TrimSpace(string(b))
	if err != nil || id == "" || id == "4294967295" {
		return ""
	}
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// JoinPath is the one path of the agents' listener that needs no certificate.
const JoinPath = "/v1/join"

// mayAgent says what the agent of a host may ask for: to read images, specs, its own assignment and what concerns all hosts; to write its own
// news. Everything else is an administrator's, who comes by the Unix socket or with the token.
func mayAgent(r *http.Request, host string) error {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	if isImages(r) && read {
		return nil
	}
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
		ok = read && (len(parts) == 2 && parts[1] == "config" || len(parts) == 3 && (parts[1] == "secrets" || parts[1] == "state"))
	case "status", "certificates": // whose news they are is checked where they are read
		ok = r.Method == http.MethodPost && len(parts) == 1
	}
	if !ok || !strings.HasPrefix(r.URL.Path, "/v1/") {
		return api.Refuse(http.StatusForbidden, fmt.Sprintf("%s %s is not for agents: host %s may read specs and its own assignment, and report its own status", r.Method, r.URL.Path, host))
	}
	return nil
}
