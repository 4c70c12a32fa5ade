// Package members knows the hosts that have joined: their certificates' keys, signs of life, health and capacity, and their requests, which end with
// the membership.
package members
