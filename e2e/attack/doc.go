// Package attack sends the API what nobody should: requests that schemathesis makes from the OpenAPI document. It needs what `./peers.sh attack` installs, and
// runs in `make attack` only.
package attack
