// Package controllers has what the experiments on OpenFlow controllers need: a network with policies, Weir's router as a controller of its switches,
// os-ken (Python) as the one beside it, and switches to install entries into: Open vSwitch, or a sink that costs nothing.
//
// os-ken is given the very same flow-mods ready-made; Weir also compiles them from policies.
package controllers
