// Package inspect judges the two byte streams of a connection: HTTP/1, HTTP/2 without TLS, and the names in TLS handshakes. It knows rules, not packets: a
// stream's bytes are fed in order, and the first bytes that complete what a rule forbids give a Block.
//
// What two receivers could read in two ways (two lengths, a bare CR, a header's name with a space) is a Block, too. All that it keeps is bounded and counted
// in a Budget.
package inspect
