// Package pki is the built-in certificate authority by which hosts and managers know each other: ECDSA P-256 keys, X.509 certificates
// (RFC 5280), join tokens.
//
// An agent joins once with a token: the token proves the agent to the manager, and pins the authority by the hash of its public key
// (RFC 7469 has the same), so that the agent knows the manager before it has any certificate. Afterwards both use certificates of the
// authority. The package is pure: no network, no clock of its own; keeping keys is its callers' affair, but for an agent's Identity file.
package pki

import "time"

// What certificates and clocks are held to.
const (
	AuthorityLife = 10 * 365 * 24 * time.Hour
	ManagerLife   = 30 * 24 * time.Hour // of a manager's listener; it makes itself a new one in time
	AgentLife     = 30 * 24 * time.Hour

	// Backdate is by how much certificates are valid before they are made, for hosts whose clocks are behind, and for a manager whose clock is set back by an
	// hour (daylight saving done by hand): it would refuse those that it has just made. It is more than an hour and MaxSkew.
	Backdate = 70 * time.Minute
	// MaxSkew is how far a host's clock may be from the manager's when it joins.
	MaxSkew = 5 * time.Minute

	// ManagerName is the DNS name in every manager's certificate. Agents ask for it whatever the address is by which they reach a
	// manager: that it is a manager of this Weir is what matters, not where it is.
	ManagerName = "manager.weir.internal"

	agentOrganisation   = "weir:agent"
	managerOrganisation = "weir:manager"
	hostPrefix          = "host:"
)

// RenewAt is when a certificate is to be replaced: at two thirds of its life.
func RenewAt(notBefore, notAfter time.Time) time.Time {
	life := notAfter.Sub(notBefore.Add(Backdate))
	if life <= 0 { // of a manager that backdated less
		life = notAfter.Sub(notBefore)
	}
	return notAfter.Add(-life / 3)
}
