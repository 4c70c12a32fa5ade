package ovsdb

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Ends of a connection.
var (
	ErrClosed    = errors.New("ovsdb: connection closed")
	ErrMalformed = errors.New("ovsdb: malformed message") // the connection has ended: where the next message begins is unknown
)

// RPCError is a refused request.
type RPCError struct {
	Method  string
	Code    string
	Details string
}

func (e *RPCError) Error() string {
	return fmt.Sprintf("ovsdb: %s: %s", e.Method, codeAndDetails(e.Code, e.Details))
}

// OpError says which operation of a transaction failed; nothing of the transaction is in force then.
type OpError struct {
	Index   int    // of the operation; as many as there are operations: the commit itself
	Op      string // "insert", ..., "commit"
	Table   string
	Code    string
	Details string
}

func (e *OpError) Error() string {
	what := fmt.Sprintf("operation %d (%s %s)", e.Index, e.Op, e.Table)
	if e.Op == "commit" {
		what = "commit"
	}
	return fmt.Sprintf("ovsdb: transact: %s: %s", what, codeAndDetails(e.Code, e.Details))
}

func codeAndDetails(code, details string) string {
	if details == "" {
		return code
	}
	return code + ": " + details
}

// remoteError reads the error of a reply: an object, or, of an ovs-vswitchd's control socket, a string.
func remoteError(method string, raw json.RawMessage) error {
	e := &RPCError{Method: method}
	var object struct{ Error, Details string }
	var text string
	switch {
	case json.Unmarshal(raw, &text) == nil:
		e.Code = text
	case json.Unmarshal(raw, &object) == nil && object.Error != "":
		e.Code, e.Details = object.Error, object.Details
	default:
		e.Code = string(raw)
	}
	return e
}
