package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// LeaseTTL is how long a leader that was cut off or has died still counts as one.
const LeaseTTL = 5 * time.Second

// LeasePrefix is where leaders are written, with their holders: lease/NAME or below it. Who waits to lead is there, too, at a later revision.
const LeasePrefix = "lease/"

// Lease is leadership under one name. It ends when it is resigned, or could not be renewed for LeaseTTL.
type Lease struct {
	Lost   <-chan struct{}                 // closed when it has ended
	Fence  Cond                            // holds until another may lead: for transactions that only the leader may do
	Resign func(ctx context.Context) error // lets the next one lead at once; safe to call twice, and after Lost
}

// Lead implements Store.
func (s *Etcd) Lead(ctx context.Context, name, holder string) (Lease, error) {
	key := LeasePrefix + name
	grant, cancel, err := s.begin(ctx)
	if err != nil {
		return Lease{}, err
	}
	defer cancel()
	done, err := s.admit(grant, []Op{{Key: key, Value: []byte(holder)}})
	if err != nil {
		return Lease{}, err
	}
	defer done()
	g, err := s.client.Grant(grant, int64(LeaseTTL/time.Second))
	if err != nil {
		return Lease{}, fmt.Errorf("lead %s: %w", name, s.fault(grant, err))
	}
	session, err := concurrency.NewSession(s.client, concurrency.WithLease(g.ID), concurrency.WithTTL(int(LeaseTTL/time.Second)))
	if err != nil {
		return Lease{}, fmt.Errorf("lead %s: %w", name, s.fault(ctx, err))
	}
	wait, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // a lease that runs out meanwhile would let the campaign wait for ever
		select {
		case <-session.Done():
			stop()
		case <-wait.Done():
		}
	}()
	e := concurrency.NewElection(session, s.prefix+key)
	if err := e.Campaign(wait, seal(fmt.Sprintf("%s/%x", key, g.ID), []byte(holder))); err != nil { // the key that it takes
		closeErr := session.Close()
		if ctx.Err() != nil {
			return Lease{}, fmt.Errorf("lead %s: %w", name, ctx.Err())
		}
		return Lease{}, fmt.Errorf("lead %s: %w", name, errors.Join(s.fault(ctx, err), closeErr))
	}
	return Lease{
		Lost:  session.Done(),
		Fence: Cond{Key: strings.TrimPrefix(e.Key(), s.prefix), Revision: e.Rev()},
		Resign: func(ctx context.Context) error {
			session.Orphan()
			if _, err := s.client.Revoke(ctx, g.ID); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return fmt.Errorf("resign %s: %w", name, s.fault(ctx, err))
			}
			return nil
		},
	}, nil
}

// endOldLeases ends what the last process with this embedded etcd has held: it is dead, since this one has the directory.
func (s *Etcd) endOldLeases(ctx context.Context) error {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	l, err := s.client.Leases(ctx)
	if err != nil {
		return fmt.Errorf("old leases: %w", s.fault(ctx, err))
	}
	for _, x := range l.Leases {
		if _, err := s.client.Revoke(ctx, x.ID); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return fmt.Errorf("old leases: %w", s.fault(ctx, err))
		}
	}
	return nil
}
