package web

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"weir.dev/weir/api"
)

// One client has its share, and waits; another does not.
func TestMemoryIsShared(t *testing.T) {
	b := memory{total: 100, share: 40}
	take := func(client string, n int64) (func(), error) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return b.take(ctx, client, n)
	}
	giveA, err := take("a", 60) // alone it may have more than its share
	if err != nil {
		t.Fatal(err)
	}
	var p *api.ProblemError
	if _, err := take("a", 1); !errors.As(err, &p) || p.Status != http.StatusServiceUnavailable {
		t.Errorf("beyond its share: %v", err)
	}
	if _, err := take("b", 30); err != nil {
		t.Error(err)
	}
	if _, err := take(operators, 30); err == nil {
		t.Error("more than there is in total")
	}
	got := make(chan error, 1)
	go func() {
		_, err := b.take(t.Context(), operators, 1000) // all there is, once nobody else has some
		got <- err
	}()
	giveA()
	giveA() // twice counts once
	b.give("b", 30)
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(memoryPatience):
		t.Error("it still waits")
	}
	if b.held != 100 {
		t.Errorf("%d bytes are held", b.held)
	}
}
