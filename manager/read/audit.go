package read

import (
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
)

// auditNoun is the audit log as lists and watches see it.
var auditNoun = object.Noun{Kind: api.KindAudit, Object: api.AuditRecord{}}

// audits lists the audit log, or watches it.
func (rd *Reader) audits(w http.ResponseWriter, r *http.Request) error {
	rd.Audit.Settled(r.Context())
	return rd.list(auditNoun, w, r)
}
