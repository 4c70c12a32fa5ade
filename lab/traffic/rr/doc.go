// Package rr makes TCP traffic of our own between two network namespaces, over real sockets: requests and responses one at a time (Requests),
// and flows of known sizes that all start together and end when the receiver has the last byte (Flows). It tells what was sent, what was
// served and what came back; what does not balance is said by Check, and never taken as a result.
//
// A connection's two ends are blocking sockets, each with a thread of its own, so that a wake-up is the kernel's and nothing else's. A socket
// stays in the namespace in which it was made, whichever thread uses it.
package rr
