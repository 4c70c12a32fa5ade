package api

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Errors that callers tell apart with errors.Is. A *ProblemError matches the one of its status.
var (
	ErrBadRequest   = errors.New("bad request")                 // 400: not JSON, unknown field, bad parameter
	ErrUnauthorized = errors.New("unauthorized")                // 401, 403
	ErrNotFound     = errors.New("not found")                   // 404
	ErrDeleting     = errors.New("being deleted")               // 409 that ends by itself: try again when the object is gone
	ErrConflict     = errors.New("conflict")                    // 409: in use, being deleted, wrong state
	ErrGone         = errors.New("revision is compacted")       // 410: list again, then watch from the list's revision
	ErrPrecondition = errors.New("changed by someone else")     // 412: If-Match or If-None-Match did not hold
	ErrTooLarge     = errors.New("request too large")           // 413
	ErrInvalid      = errors.New("invalid")                     // 422: understood, and refused with all its problems
	ErrBusy         = errors.New("busy")                        // 429, 503: try again later
	ErrFull         = errors.New("no space left for the state") // 507: nothing was changed; free disk space, or make the folder writable
	ErrUnreachable  = errors.New("weir is not reachable")       // no connection at all
)

// Problem is one thing that is wrong in a request or a file: where, what, and what would be accepted.
type Problem struct {
	Path    string `json:"path,omitempty"` // policies.guests.match[0]; empty for the whole
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to do or write instead
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"` // from 1; 0 when the text has no place
	Column  int    `json:"column,omitempty"`
}

// String gives the problem in one line: "file:line:column: path: message (hint)".
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
	}
	if p.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", p.Line, p.Column)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString(" (" + p.Hint + ")")
	}
	return b.String()
}

// ProblemError is an RFC 9457 problem: the body of every answer that is no success, and the error of the client.
type ProblemError struct {
	Type     string    `json:"type,omitempty"` // "about:blank": the status says it all
	Title    string    `json:"title"`
	Status   int       `json:"status"`
	Detail   string    `json:"detail,omitempty"`
	Instance string    `json:"instance,omitempty"` // the request's path
	Problems []Problem `json:"errors,omitempty"`   // extension member: everything that is wrong, at once
}

// TypeDeleting is the Type of a problem that is ErrDeleting.
const TypeDeleting = "urn:weir:problem:being-deleted"

// Refuse makes the problem of an HTTP status.
func Refuse(status int, detail string, problems ...Problem) *ProblemError {
	return &ProblemError{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail, Problems: problems}
}

// Error gives the detail, then one line for each problem.
func (e *ProblemError) Error() string {
	text := e.Detail
	if text == "" {
		text = strings.ToLower(e.Title)
	}
	if text == "" {
		text = fmt.Sprintf("HTTP status %d", e.Status)
	}
	if len(e.Problems) == 1 && (e.Detail == "" || e.Detail == e.Problems[0].Message) {
		return e.Problems[0].String()
	}
	for _, p := range e.Problems {
		text += "\n  " + p.String()
	}
	return text
}

// Is tells the sentinel of the problem's status.
func (e *ProblemError) Is(target error) bool {
	if target == ErrDeleting {
		return e.Type == TypeDeleting
	}
	switch e.Status {
	case http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusMethodNotAllowed:
		return target == ErrBadRequest
	case http.StatusUnauthorized, http.StatusForbidden:
		return target == ErrUnauthorized
	case http.StatusNotFound:
		return target == ErrNotFound
	case http.StatusConflict:
		return target == ErrConflict
	case http.StatusGone:
		return target == ErrGone
	case http.StatusPreconditionFailed:
		return target == ErrPrecondition
	case http.StatusRequestEntityTooLarge:
		return target == ErrTooLarge
	case http.StatusUnprocessableEntity:
		return target == ErrInvalid
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return target == ErrBusy
	case http.StatusInsufficientStorage:
		return target == ErrFull
	}
	return false
}
