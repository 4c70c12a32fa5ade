// Package control is the router's shell: it speaks OpenFlow 1.3 to the fabric's switches, finds their links, hosts and stations, follows the
// intent at the API, has package fabric compute the rules, and brings them into force make-before-break. What the rules are is
// decided in fabric; what a switch is in openflow.
//
// One goroutine owns all state (see loop); a switch's connection, the API's watches and the reports are goroutines around it, joined by
// bounded queues, so that none of them can hold it up. What decides the order of changes is a pure function (package rollout). DESIGN.md has the steps.
//
// # Cookies
//
// Every entry of Weir bears a cookie whose upper octet is 0x57; entries with another one belong to other controllers, and are neither
// read, changed nor removed. The next octet is the round: the life of the router that wrote the entry, one more (modulo 256) than the
// highest that is found in the switch. The lower 48 bits say what the entry is for, by names: they stay equal over restarts. An entry that
// is found as it should be is left alone, whatever its round, with its counters.
//
// # What a failure does
//
// A switch without its controller goes on forwarding with the entries that it has; its links stay in use as the last way (see lostCost). A link is
// lost when a port goes down, or when three discovery frames are missing. A host's uplink is kept without its agent as long as the port
// is up. After a start, the network is taken to be as it was reported last, so that nothing changes in switches where nothing has changed.
package control
