// Package router turns policies into rules: pure computation, no I/O, no clock. It owns what a policy means in terms of
// flow.Rule, and the checks that need more than one object. It does not install rules, and leaves reading policies to package policy.
//
// A direction of a policy starts with entry rules: at the Egress stage of the endpoint that its destination names, else at the Ingress
// stage of the endpoint that its source names, else at the Ingress stage of every endpoint. They lead into the chain. Each port
// of a function in a chain has one rule that says where a frame that comes out of it goes next; these belong to the chain and
// serve all its policies. The last one leads to the destination (Output) or back to where the frame had entered (Resume).
//
// Replica policies copy, whatever else happens to the frame: where one overlaps a steering policy the router adds a rule for the
// frames of both, so neither hides the other. Among themselves, and among steering policies, the highest priority wins.
//
// A policy whose chain cannot work yet fails closed: its frames are dropped rather than let past a firewall. That includes policies that were
// accepted and never were in force (Input.Closed), but for those that fail open.
package router
