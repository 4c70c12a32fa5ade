package control

import "runtime"

const calmBytes = 32 << 20

// Calm makes the process collect garbage no more often than at every 64 MB of memory, until it is ended. Computing and sending the rules of a
// thousand policies leaves some 20 MB, and while little else is in memory (the runtime begins at 4 MB) the collector would go through
// all that there is several times over meanwhile. What Calm takes up is never written to, so it costs addresses, not memory.
func Calm() (end func()) {
	b := make([]byte, calmBytes)
	return func() { runtime.KeepAlive(b) }
}
