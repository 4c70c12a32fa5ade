package health

import "time"

// When a function that no probe can tell about counts as silent. Some are silent rightly, such as a firewall that lets nothing through. A function that
// handed most frames on until now counts as silent much sooner.
const (
	silentFor    = 10 * time.Second
	silentSoon   = time.Second // for a function that handed on a quarter of what it got, or more
	silentShare  = 4
	silentFrames = 100
)

// Silence is what went into a function since something came out last. The zero value is ready.
type Silence struct {
	in, out uint64    // the ports' counters when it began
	Since   time.Time // when a look found nothing new that was not answered
	enough  bool      // at the last look: answers may be under way yet
	flowed  bool      // when something came out last, it was much of what had gone in
}

// Look takes in the counters of frames that went in and that came out, and tells how many went in if nothing comes back.
func (s *Silence) Look(in, out uint64, now time.Time) (frames uint64, silent bool) {
	if s.Since.IsZero() || out != s.out || in <= s.in {
		if out > s.out && in > s.in && !s.Since.IsZero() {
			s.flowed = (out-s.out)*silentShare >= in-s.in
		}
		s.in, s.out, s.Since, s.enough = in, out, now, false
		return 0, false
	}
	frames = in - s.in
	wait := silentFor
	if s.flowed {
		wait = silentSoon
	}
	silent = s.enough && now.Sub(s.Since) >= wait
	s.enough = frames >= silentFrames
	return frames, silent
}
