// Package discovery finds what is in the fabric: switches' ports, the links between them and to hosts (by LLDP), edge ports, and the stations there
// with their addresses. It owns that state. It is pure: a frame, a port or the time goes in, and what follows comes out (Network.Take): messages to
// switches, events, and whether rules have to be computed anew. Who has declared an address, and which endpoints have no station yet, it is told.
//
// Package control has the connections; its DESIGN.md describes how links and stations are found.
package discovery
