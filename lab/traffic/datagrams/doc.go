// Package datagrams sends UDP datagrams at a rate, receives them behind whatever forwards their payloads, and counts exactly what became of them: lost,
// doubled, reordered, damaged, or of another run. A payload says which datagram it is and when it was sent, so that it is known behind a processor, which
// makes a new datagram of it. Forward is a processor: it sends on each payload that it receives.
package datagrams
