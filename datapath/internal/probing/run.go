package probing

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Turn lets one probe of a function be outstanding at a time.
type Turn struct{ mu sync.Mutex }

// Take the turn. False: another probe has it, and this one does not wait for it.
func (t *Turn) Take(wait bool) bool {
	if wait {
		t.mu.Lock()
		return true
	}
	return t.mu.TryLock()
}

// Give the turn back.
func (t *Turn) Give() { t.mu.Unlock() }

// Way is a function through which a probe goes.
type Way interface {
	Function() string
	Take(wait bool) bool                  // the function's turn
	Send() error                          // the frame, in at one port
	Back() (rtt time.Duration, err error) // 0: it has not come out of the other port yet
	Done()                                // gives the turn back
}

// Run sends a probe each way and waits until all are out or ctx ends. It tells how long each took, 0 of one that is not out. A single way that is in
// trouble is an error; among many its probe just does not come out.
func Run[W Way](ctx context.Context, ways []W, single bool) (map[string]time.Duration, error) {
	took := make(map[string]time.Duration, len(ways))
	var out []W // on their way
	for _, w := range ways {
		took[w.Function()] = 0
		if !w.Take(single) { // somebody looks closely at this one just now
			continue
		}
		defer w.Done()
		if err := w.Send(); err != nil && single {
			return nil, fmt.Errorf("send: %w", err)
		}
		out = append(out, w)
	}
	err := Await(ctx, len(out), func(i int) (bool, error) {
		rtt, err := out[i].Back()
		if rtt > 0 {
			took[out[i].Function()] = rtt
		}
		if !single {
			err = nil
		}
		return rtt > 0, err
	})
	if err != nil && ctx.Err() == nil {
		return nil, err
	}
	return took, nil
}
