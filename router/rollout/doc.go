// Package rollout decides in which order rules come into force at switches and hosts: make before break. It is pure: what is wanted, what is
// known to be in force and the time give what may be sent now (see Plan). It owns the steps from one input to the next (Stage), the form of entries
// that OpenFlow switches take (Rule), and how far each policy is (Progress).
//
// It does not compute rules (package fabric) and sends nothing (package control, whose DESIGN.md describes the steps).
package rollout
