package manager

import (
	"net/http"

	"weir.dev/weir/api"
)

// auditNoun is the audit log as lists and watches see it.
var auditNoun = noun{kind: api.KindAudit, object: api.AuditRecord{}}

// audits lists the audit log, or watches it.
func (m *Manager) audits(w http.ResponseWriter, r *http.Request) error {
	m.audit.settled(r.Context())
	return m.list(auditNoun, w, r)
}
