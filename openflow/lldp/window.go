package lldp

import (
	"fmt"
	"sync"
	"time"
)

// Sequence gives the sequence numbers of one sender's frames: the time in nanoseconds since 1970, and more than the last one in any
// case, so that they grow over restarts without being stored. The zero value is ready; safe for use by several goroutines.
type Sequence struct {
	mu   sync.Mutex
	last uint64
}

// Next is the next number.
func (s *Sequence) Next(now time.Time) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last+1, uint64(max(0, now.UnixNano())))
	return s.last
}

const (
	// Forget is how long a Window remembers a port that is silent. A sender that was started again with its clock set back is heard
	// again after this time.
	Forget = 15 * time.Second
	// MaxPorts is how many ports a Window remembers.
	MaxPorts = 65536
)

// Window refuses frames that have been seen: a frame is new if its sequence number is higher than all of its chassis and port
// before. Only what Verify has accepted may be shown to it, else anybody could fill it. The zero value is ready; not safe for use by
// several goroutines.
type Window struct {
	ports map[sender]mark
	swept time.Time
}

type sender struct{ chassis, port string }

type mark struct {
	sequence uint64
	at       time.Time
}

// Accept tells whether the frame is new, and remembers it then.
func (w *Window) Accept(f Frame, now time.Time) error {
	if w.ports == nil {
		w.ports = map[sender]mark{}
	}
	w.sweep(now)
	k := sender{f.Chassis, f.Port}
	last, known := w.ports[k]
	switch {
	case known && now.Sub(last.at) < Forget && f.Sequence <= last.sequence:
		return fmt.Errorf("from chassis %q port %q, sequence %d after %d: %w", f.Chassis, f.Port, f.Sequence, last.sequence, ErrReplay)
	case !known && len(w.ports) >= MaxPorts:
		return fmt.Errorf("from chassis %q port %q: %d ports are known already, more are not watched", f.Chassis, f.Port, MaxPorts)
	}
	w.ports[k] = mark{f.Sequence, now}
	return nil
}

func (w *Window) sweep(now time.Time) {
	if now.Sub(w.swept) < Forget {
		return
	}
	w.swept = now
	for k, m := range w.ports {
		if now.Sub(m.at) >= Forget {
			delete(w.ports, k)
		}
	}
}
