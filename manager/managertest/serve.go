// Package managertest serves a manager's API for tests.
package managertest

import (
	"context"
	"sync"
	"testing"

	"weir.dev/weir/manager"
	"weir.dev/weir/manager/web"
)

// Serve listens and serves until the test ends or stop is called, which waits for the end of the server and is safe to call twice.
func Serve(t testing.TB, m *manager.Manager, o manager.ServeOptions) (s *web.Server, stop func()) {
	t.Helper()
	s, err := m.Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return s, stop
}
