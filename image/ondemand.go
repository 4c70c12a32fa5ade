package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// OnDemand is a store that pulls what it lacks, from registries that the operator names.
type OnDemand struct {
	*Store
	Registries []string // or repositories of them: "ghcr.io", "registry.example.org/nf"
	Remote     RemoteOptions
	Log        *slog.Logger

	mu    sync.Mutex
	pulls map[string]*pulling // by reference; those that run
}

// pulling is a pull that somebody may wait for.
type pulling struct {
	over      chan struct{}
	err       error
	done, all atomic.Int64
}

const (
	pullsAtOnce  = 4
	pullWithin   = time.Hour
	pullReserve  = 1 << 30         // bytes of the disk that stay free
	pullPatience = 8 * time.Second // for which Verify waits
)

// Verify is the Store's. What is not there, and may be pulled, is: for a while it waits for that, and then says how far it is.
func (o *OnDemand) Verify(ctx context.Context, ref string) (Image, error) {
	img, err := o.Store.Verify(ctx, ref)
	if !errors.Is(err, ErrNotFound) || !o.may(ref) {
		return img, err
	}
	p, err := o.begin(ref)
	if err != nil {
		return Image{}, err
	}
	wait := time.NewTimer(pullPatience)
	defer wait.Stop()
	select {
	case <-p.over:
		if p.err != nil {
			return Image{}, p.err
		}
		return o.Store.Verify(ctx, ref)
	case <-ctx.Done():
	case <-wait.C:
	}
	const mib = 1 << 20
	return Image{}, fmt.Errorf("image %s: it is being pulled, %d of %d MiB so far: apply again in a while", ref, p.done.Load()/mib, max(p.all.Load(), mib)/mib)
}

// may tells whether a reference is of a registry that the operator named.
func (o *OnDemand) may(ref string) bool {
	if _, err := ParseRemote(ref, o.Remote); err != nil {
		return false
	}
	for _, r := range o.Registries {
		if strings.HasPrefix(ref, strings.TrimSuffix(r, "/")+"/") {
			return true
		}
	}
	return false
}

// begin a pull, unless one of the reference runs.
func (o *OnDemand) begin(ref string) (*pulling, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p, ok := o.pulls[ref]; ok {
		return p, nil
	}
	if len(o.pulls) >= pullsAtOnce {
		return nil, fmt.Errorf("image %s: %d others are being pulled: apply again in a while", ref, len(o.pulls))
	}
	p := &pulling{over: make(chan struct{})}
	if o.pulls == nil {
		o.pulls = map[string]*pulling{}
	}
	o.pulls[ref] = p
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), pullWithin)
		defer cancel()
		with := o.Remote
		with.Reserve = pullReserve
		with.Progress = func(done, all int64) { p.done.Store(done); p.all.Store(all) }
		o.Log.Info("pull image", "image", ref)
		img, err := o.Pull(ctx, ref, with)
		if p.err = err; err != nil {
			o.Log.Warn("pull image", "image", ref, "error", err)
		} else {
			o.Log.Info("image pulled", "image", ref, "digest", img.Digest, "bytes", img.Size)
		}
		o.mu.Lock()
		delete(o.pulls, ref)
		o.mu.Unlock()
		close(p.over)
	}()
	return p, nil
}
