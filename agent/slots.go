package agent

import (
	"context"
	"sync"
)

// slots bounds how many container operations are under way in each runtime. They are counted by runtime, as one may be slow: a machine boots for seconds, and an engine
// may hang. What another runtime has to start or to end does not wait for that.
type slots struct {
	most int

	mu sync.Mutex
	of map[string]chan struct{} // by the runtime's name
}

func newSlots(most int) *slots { return &slots{most: most, of: map[string]chan struct{}{}} }

// take waits for a slot of a runtime, and returns what gives it back.
func (s *slots) take(ctx context.Context, runtime string) (free func(), err error) {
	s.mu.Lock()
	places := s.of[runtime]
	if places == nil {
		places = make(chan struct{}, s.most)
		s.of[runtime] = places
	}
	s.mu.Unlock()
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
