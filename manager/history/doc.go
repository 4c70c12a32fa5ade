// Package history keeps what happened: events, of which alike ones become one with a count, and the audit log. It bounds both, so that nobody's
// records drive out those of others.
package history
