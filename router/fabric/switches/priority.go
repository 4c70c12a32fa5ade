package switches

import (
	"weir.dev/weir/router/fabric"
)

// Priorities of entries and of host rules.
const (
	PrioLLDP    = 65000
	PrioGuard   = 64000 // user frames that carry a tag
	PrioTag     = 63000
	PrioStray   = 62000 // tags that nothing else takes
	PrioSource  = 30000 // + level + 1 for forward: frames of a known source, and everywhere
	PrioInside  = 10000 // + policy priority * insideScale + stepRanks for forward: at ports of functions and into the fabric
	PrioReturn  = 5000  // at hosts: frames of their own endpoints come back
	PrioDest    = 1000  // + level + 1 at the port to the chain: frames for a known destination
	PrioStation = fabric.StationPriority
	PrioNeigh   = 800
	PrioFlood   = 700 // special floods above the common one
	PrioHop     = 1

	StepRanks   = 8 // a step's rank is less
	InsideScale = 2 * StepRanks
)
