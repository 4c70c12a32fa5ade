package join

import (
	"sync"
	"time"
)

// Bounds of failed attempts from one address: failBurst at once, then one each failRefill.
const (
	failBurst  = 10
	failRefill = 3 * time.Second
	maxPeers   = 4096
)

// limiter counts failures by address: a bucket for each that empties with time.
type limiter struct {
	mu sync.Mutex
	by map[string]bucket
}

type bucket struct {
	failures float64
	at       time.Time
}

func (b bucket) now(now time.Time) float64 {
	return max(0, b.failures-float64(max(0, now.Sub(b.at)))/float64(failRefill)) // a clock may be set back
}

// wait is how long an address has to wait; 0: it may try.
func (l *limiter) wait(peer string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := l.by[peer].now(now) - (failBurst - 1)
	return max(0, time.Duration(over*float64(failRefill)))
}

// fail counts a failure.
func (l *limiter) fail(peer string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[string]bucket{}
	}
	if _, known := l.by[peer]; !known && len(l.by) >= maxPeers {
		for p, b := range l.by {
			if b.now(now) == 0 {
				delete(l.by, p)
			}
		}
		if len(l.by) >= maxPeers { // an attack from everywhere: secrets of 192 bits bear it
			return
		}
	}
	l.by[peer] = bucket{l.by[peer].now(now) + 1, now}
}
