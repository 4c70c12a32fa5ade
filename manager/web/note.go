package web

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"weir.dev/weir/api"
)

// noted is what a handler says of its request for the audit log.
type noted struct {
	Who        string // of who joins: there is no caller
	kind       api.Kind
	Object     string
	Generation int64
	Objects    []string
	Idle       bool             // nothing was changed: there is nothing to record, unless it was refused
	Began      func(status int) // of streams: writes the record at their beginning
}

type notedKey struct{}

// Note is where a handler says what it does; there is always one.
func Note(r *http.Request) *noted {
	if n, ok := r.Context().Value(notedKey{}).(*noted); ok {
		return n
	}
	return &noted{}
}

// record records what became of a request.
func (a *API) record(r *http.Request, rt Route, n *noted, status int, err error) {
	c := CallerOf(r)
	kind := cmp.Or(n.kind, rt.Kind)
	rec := api.AuditRecord{Who: cmp.Or(n.Who, c.Who), Role: c.Role, From: c.From, Verb: rt.verb(r), Kind: kind,
		Object: cmp.Or(n.Object, r.PathValue("name")), Generation: n.Generation, Objects: n.Objects, Status: status}
	if err != nil {
		p := ProblemOf(err)
		rec.Status, rec.Problem = p.Status, outline(p)
	}
	a.Audit.Tell(rec, rec.Status == http.StatusUnauthorized || rec.Status == http.StatusForbidden || rec.Status == http.StatusTooManyRequests)
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
func (rt Route) verb(r *http.Request) string {
	if rt.Does != "" {
		return rt.Does
	}
	return strings.ToLower(r.Method)
}

// Applied notes what an apply changed.
func (n *noted) Applied(changes []api.Change) {
	for _, c := range changes {
		if c.Action == "unchanged" {
			continue
		}
		if len(n.Objects) == maxAuditObject {
			n.Objects = append(n.Objects, "...")
			return
		}
		n.Objects = append(n.Objects, fmt.Sprintf("%s %s/%s", c.Action, c.Kind, c.Name))
	}
}

// Bounds of a record.
const (
	maxAuditObject = 100 // of an apply
	maxOutline     = 10  // problems
)
