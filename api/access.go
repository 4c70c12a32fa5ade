package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Role is what its bearer may do; each may do what the one before may.
type Role string

const (
	RoleViewer   Role = "viewer"   // read objects, traces and counters; no logs, no exec, no tokens, no audit log
	RoleOperator Role = "operator" // also write what is declared, run and stop functions, read logs, exec
	RoleAdmin    Role = "admin"    // also tokens, the audit log, removal of hosts: everything
	RoleAgent    Role = "agent"    // a host's: its certificate's, not a token's; in lists, of tokens to join with
)

// Roles are those that a token can have.
func Roles() []Role { return []Role{RoleViewer, RoleOperator, RoleAdmin} }

// May tells whether a role includes another. The role "" may nothing.
func (r Role) May(need Role) bool {
	rank := map[Role]int{RoleViewer: 1, RoleOperator: 2, RoleAdmin: 3}
	return rank[r] > 0 && rank[need] > 0 && rank[r] >= rank[need]
}

// KindAudit is what the audit log holds.
const KindAudit Kind = "audit"

// AuditRecord says who did, or tried to do, what. It never holds a secret or a body.
type AuditRecord struct {
	Meta
	Time       time.Time `json:"time"`
	Last       time.Time `json:"last,omitzero"`   // of several that are counted here
	Count      int       `json:"count,omitempty"` // at least so many like this one, where that is more than one
	Who        string    `json:"who"`             // "token ci", "user root", "host h1", "nobody"
	Role       Role      `json:"role,omitempty"`
	From       string    `json:"from,omitempty"` // address, or the process at the Unix socket
	Verb       string    `json:"verb"`           // put, patch, delete, apply, start, stop, restart, exec, logs, create, rotate, join, renew, authenticate, ...
	Kind       Kind      `json:"kind,omitempty"`
	Object     string    `json:"object,omitempty"`
	Generation int64     `json:"generation,omitempty"` // of the object afterwards
	Objects    []string  `json:"objects,omitempty"`    // of an apply: "update function/fw"; the first 100
	Status     int       `json:"status"`               // of the answer, as in HTTP
	Problem    string    `json:"problem,omitempty"`    // why it was refused
}

// Audit reads the audit log, the oldest first.
func (c *Client) Audit() Reader[AuditRecord] { return Reader[AuditRecord]{c, KindAudit} }

// RotateToken gives a named token a new secret and a new life; the former one is worth nothing at once.
func (c *Client) RotateToken(ctx context.Context, name string) (Token, error) {
	var out Token
	_, err := c.call(ctx, http.MethodPost, "/v1/tokens/"+url.PathEscape(name)+"/rotate", nil, &out)
	return out, err
}
