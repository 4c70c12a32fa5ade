package socket

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// Conversations are connections of one function at a socket, each with a goroutine of its own.
type Conversations struct {
	ctx   context.Context
	stop  context.CancelFunc
	l     *net.UnixListener
	path  string
	serve func(context.Context, *net.UnixConn)
	done  sync.WaitGroup

	slots chan struct{} // taken by connections
	mu    sync.Mutex
	open  map[*net.UnixConn]bool
}

// Converse listens at path, which is made at fresh, in the same file system, and has serve speak with at most so many at a time; further ones wait in the kernel. serve
// ends soon after its context, and its connection is closed then.
func Converse(fresh, path string, most int, serve func(context.Context, *net.UnixConn)) (*Conversations, error) {
	l, err := Listen(fresh, path)
	if err != nil {
		return nil, err
	}
	s := &Conversations{l: l, path: path, serve: serve, slots: make(chan struct{}, most), open: map[*net.UnixConn]bool{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.done.Go(s.accept)
	return s, nil
}

// Close ends them all, and waits for that.
func (s *Conversations) Close() {
	s.stop()
	_ = s.l.Close()
	s.mu.Lock()
	for c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.done.Wait()
	_ = os.Remove(s.path)
}

func (s *Conversations) accept() {
	for {
		select {
		case s.slots <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		c, err := s.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-s.slots
			select { // no descriptor is left: the connections that there are may end
			case <-s.ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		s.mu.Lock()
		s.open[c] = true
		s.mu.Unlock()
		s.done.Go(func() {
			if s.ctx.Err() == nil {
				s.serve(s.ctx, c)
			}
			_ = c.Close()
			s.mu.Lock()
			delete(s.open, c)
			s.mu.Unlock()
			<-s.slots
		})
	}
}
