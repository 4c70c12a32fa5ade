// Package health decides from what was measured whether a function does its work: pure, but for the key of probe addresses. The agent measures and acts.
package health

import "time"

// Bounds of windows of probes.
const (
	limit = 3 // windows in a row without a probe until a function counts as down
	// A window that took so much longer than its probes proves nothing: this process waited for a processor, so the function may have waited, too.
	tooLate   = 50 * time.Millisecond
	lateLimit = 10
	// A window in which so many frames went in is a flood: a firewall that rightly lets nothing of it through may lose most probes, too. Then it
	// takes many more windows, some 3 s.
	floodFrames = 1500
	floodLimit  = 20
)

// Verdict about a function that was probed.
type Verdict uint8

const (
	Unknown Verdict = iota // probe again
	Well
	Hung
)

// Windows counts the windows of probes that brought nothing back. The zero value is ready.
type Windows struct {
	lost int // in a row
	late int // that proved nothing
}

// Look takes in a window: whether a probe or another frame came out, how many frames went in, and how much longer than planned it took.
func (w *Windows) Look(came bool, in uint64, late time.Duration) Verdict {
	most := limit
	if in > floodFrames {
		most = floodLimit
	}
	switch {
	case came:
		*w = Windows{}
		return Well
	case late > tooLate && w.late < lateLimit:
		w.late++
		return Unknown
	}
	if w.lost++; w.lost < most {
		return Unknown
	}
	return Hung
}
