// Package steering computes the rules of many switches from a topology and policies: default forwarding of the OpenFlow switches, and the
// steering of policies whose traffic or functions are not all on one host. The same input gives the same output. Policies that a host steers
// by itself are no part of it: package router compiles them there.
//
// A switch is an OpenFlow switch of the fabric or the switch of a host with an agent. Links join them: cables, or tunnels between hosts.
//
// A frame passes two stages, and at each the most important policy that steers takes it, the most important one that copies gets a copy:
// where its source is, if a policy's direction begins at an endpoint, and where its destination is, if it ends at one. A direction with
// neither is caught wherever frames enter; steering ones leave multicast alone then, which could not be kept from its sender behind the chain.
// There both directions of a policy may select a frame: NTP sends from port 123 to port 123. Forward takes it: its entries are higher,
// since OpenFlow does not say which of two entries of one priority a switch uses.
//
// Table 0 has, from the top: LLDP, users' frames that carry a fabric tag, legs with a tag, legs without and what is caught at its source.
// Table 1: what is caught on the way to its destination, stations, floods. Switches with one table have it all in that, in this order.
//
// A leg is the way of frames from where they are caught to a host of their chain, from there to the next, or home. Its entries match what
// the policy matches, at the port where frames come in, as long as no other frames may look the same there that have another way to go:
// those of the same policy that have been through the chain, those of another policy of higher priority for the same source. A hostile
// station's frames count, too: behind the chain they go to any destination MAC, whatever their IP address, even to their sender's own.
// Else the leg carries a tag, and switches look at nothing but that. Copies, legs behind a function that rewrites, and those to a
// destination's own port carry one always (but see toward.go). Behind the last function default forwarding takes frames on; hosts'
// endpoints get flooded frames back first, so that no bridge learns them at the wrong port.
package steering
