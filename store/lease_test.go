package store_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"weir.dev/weir/store"
)

// A process that is killed leaves its lease behind. The next one with the same embedded etcd does not wait for its end.
func TestLeadershipAfterARestart(t *testing.T) {
	dir := shortDir(t)
	s := open(t, options(dir))
	if _, err := s.Lead(t.Context(), "place", "before"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // ends no lease at the server
		t.Fatal(err)
	}
	again := open(t, options(dir))
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), store.LeaseTTL-time.Second/2) // the old one would live for LeaseTTL
	defer cancel()
	l, err := again.Lead(ctx, "place", "after")
	if err != nil {
		t.Fatalf("after %v: %v", time.Since(began), err)
	}
	if err := l.Resign(t.Context()); err != nil {
		t.Error(err)
	}
}

// A lease that the server takes away ends leadership, and the next in line gets it.
func TestALostLeaseEndsLeadership(t *testing.T) {
	dir := shortDir(t)
	s := open(t, options(dir))
	l, err := s.Lead(t.Context(), "place", "m1")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(dir, "run", "etcd", "client")}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	leases, err := raw.Leases(t.Context())
	if err != nil || len(leases.Leases) != 1 {
		t.Fatalf("leases %v, %v", leases, err)
	}
	next := make(chan error, 1)
	go func() {
		l, err := s.Lead(t.Context(), "place", "m2")
		if err == nil {
			err = l.Resign(t.Context())
		}
		next <- err
	}()
	if _, err := raw.Revoke(t.Context(), leases.Leases[0].ID); err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.Lost:
	case <-time.After(2 * store.LeaseTTL):
		t.Fatal("leadership goes on without its lease")
	}
	if _, err := s.Txn(t.Context(), []store.Cond{l.Fence}, []store.Op{{Key: "host/h1", Value: []byte("{}")}}); err == nil {
		t.Error("who has lost its lease writes through its fence")
	}
	select {
	case err := <-next:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(2 * store.LeaseTTL):
		t.Fatal("nobody takes over")
	}
	if err := l.Resign(t.Context()); err != nil {
		t.Errorf("resign after the end: %v", err)
	}
}
