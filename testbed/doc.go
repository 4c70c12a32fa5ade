// Package testbed runs emulated networks on one machine: OpenFlow switches (bridges of a private Open vSwitch), stations, hosts with an
// agent, a manager, and the cables between them, each node in a network namespace of its own, as a file describes it.
//
// It owns the file (Spec, Load), everything that it makes under /run/weir-testbed/NAME and /var/lib/weir-testbed/NAME, and its removal, which
// needs no more than the name, whatever died before. It runs managers and agents as the ordinary program; it does not know what they do.
//
// The namespaces reach each other only by the cables of the file and by a management network that joins the manager, the agents and the
// switches' control connections. Nothing leaves them.
package testbed
