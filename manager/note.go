package manager

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"weir.dev/weir/api"
)

// noted is what a handler says of its request for the audit log.
type noted struct {
	who        string // of who joins: there is no caller
	kind       api.Kind
	object     string
	generation int64
	objects    []string
	idle       bool             // nothing was changed: there is nothing to record, unless it was refused
	began      func(status int) // of streams: writes the record at their beginning
}

type notedKey struct{}

// note is where a handler says what it does; there is always one.
func note(r *http.Request) *noted {
	if n, ok := r.Context().Value(notedKey{}).(*noted); ok {
		return n
	}
	return &noted{}
}

// auditRequest records what became of a request.
func (m *Manager) auditRequest(r *http.Request, rt route, n *noted, status int, err error) {
	c := callerOf(r)
	kind := cmp.Or(n.kind, rt.kind)
	rec := api.AuditRecord{Who: cmp.Or(n.who, c.who), Role: c.role, From: c.from, Verb: rt.verb(r), Kind: kind,
		Object: cmp.Or(n.object, r.PathValue("name")), Generation: n.generation, Objects: n.objects, Status: status}
	if err != nil {
		p := problemOf(err)
		rec.Status, rec.Problem = p.Status, outline(p)
	}
	m.audit.tell(rec, rec.Status == http.StatusUnauthorized || rec.Status == http.StatusForbidden || rec.Status == http.StatusTooManyRequests)
}

// outline says what is wrong and where, without the values that were sent: they may be secret.
func outline(p *api.ProblemError) string {
	text := cmp.Or(p.Detail, p.Title)
	var at []string
	for _, x := range p.Problems[:min(len(p.Problems), maxOutline)] {
		at = append(at, x.Path)
	}
	if len(at) > 0 {
		text += ": " + strings.Join(at, ", ")
	}
	return text
}

// verb is what the audit log calls a request.
func (rt route) verb(r *http.Request) string {
	if rt.does != "" {
		return rt.does
	}
	return strings.ToLower(r.Method)
}

// applied notes what an apply changed.
func (n *noted) applied(changes []api.Change) {
	for _, c := range changes {
		if c.Action == "unchanged" {
			continue
		}
		if len(n.objects) == maxAuditObject {
			n.objects = append(n.objects, "...")
			return
		}
		n.objects = append(n.objects, fmt.Sprintf("%s %s/%s", c.Action, c.Kind, c.Name))
	}
}

// Bounds of a record.
const (
	maxAuditObject = 100 // of an apply
	maxOutline     = 10  // problems
)
