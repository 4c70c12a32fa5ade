package ovs

import (
	"context"
	"errors"

	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/lifecycle"
	"weir.dev/weir/datapath/internal/record"
)

// joining makes links of functions ports, those of many functions together.
type joining struct {
	gate       *lifecycle.Gate
	work       *lifecycle.Work
	home       *home.Home
	ports      *ports
	bridge     *bridge
	connection *connection
	rules      *rules
	queue      []*joiner // wait for becoming ports
	busy       bool      // somebody sees to them
}

// joiner is a function whose links are about to become ports.
type joiner struct {
	fn   *function
	done chan error // takes one
}

// errRemoved says that a function was removed, or added anew, while its links were becoming ports.
var errRemoved = errors.New("removed or added anew meanwhile")

// add makes a function's links ports, together with those of all functions that come while ovs-vswitchd is busy: each change of its ports costs
// it a look at all of them, so that many functions one by one take a time that grows with their number's square. Under the lock; what
// becomes of it is told later, when the lock is not held.
func (s *joining) add(fn *function) <-chan error {
	j := &joiner{fn, make(chan error, 1)}
	fn.joining = true
	s.queue = append(s.queue, j)
	if !s.busy {
		s.busy = true
		s.work.Go(s.run)
	}
	return j.done
}

// run works until nobody wants to join any more.
func (s *joining) run(ctx context.Context) {
	for {
		s.gate.Lock()
		batch := s.queue
		s.queue = nil
		s.busy = len(batch) > 0
		s.gate.Unlock()
		if len(batch) == 0 {
			return
		}
		if err := s.batch(ctx, batch); err == nil || len(batch) == 1 {
			tell(batch, err)
			continue
		}
		for i := range batch { // one's trouble is not the others'
			tell(batch[i:i+1], s.batch(ctx, batch[i:i+1]))
		}
	}
}

func tell(batch []*joiner, err error) {
	for _, j := range batch {
		j.done <- err
	}
}

// batch makes the links of functions ports, by one bundle of entries and one change of the database. Of two or more: all, or an error.
func (s *joining) batch(ctx context.Context, batch []*joiner) error {
	leave, err := s.connection.enter(ctx)
	if err != nil {
		return err
	}
	ports, wait, err := s.begin(ctx, batch)
	leave()
	if err != nil {
		return err
	}
	if err := wait(ctx); err != nil {
		return err
	}
	if leave, err = s.gate.Enter(ctx); err != nil {
		return err
	}
	defer leave()
	if err := s.bridge.plugged(ctx, ports); err != nil {
		return err
	}
	for _, j := range batch {
		if s.ports.fns[j.fn.F.Name] != j.fn {
			return errRemoved
		}
		if err := s.home.Store.Write(record.File("function", j.fn.F.Name), j.fn); err != nil {
			return err
		}
		j.fn.joining = false
	}
	return nil
}

// begin does what needs the lock; wait does not.
func (s *joining) begin(ctx context.Context, batch []*joiner) (ports []*port, wait func(context.Context) error, err error) {
	for _, j := range batch {
		if s.ports.fns[j.fn.F.Name] != j.fn {
			return nil, nil, errRemoved
		}
		ports = append(ports, j.fn.Ports...)
	}
	if err := s.rules.refresh(ctx); err != nil { // the entries first: no frame of a port without
		return nil, nil, err
	}
	wait, err = s.bridge.beginPlug(ctx, ports)
	return ports, wait, err
}
