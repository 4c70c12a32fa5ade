// Package ovsdb is a client of the Open vSwitch Database protocol (RFC 7047): JSON-RPC 1.0 over a stream, and transactions with typed
// operations and typed errors.
//
// It has no policy and does not reconnect: Done and Err tell that a connection has ended, and why. Values of columns are Go's
// string, int64, float64, bool, and this package's UUID, NamedUUID, Set and Map (see Value). Section numbers are those of RFC 7047.
package ovsdb
