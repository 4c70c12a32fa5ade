// Package ask gets answers that only hosts or the router have now: counters, logs, exec, the ports on a way, switches' tables. Hosts elsewhere are asked
// over the connection that their agent keeps open.
package ask
