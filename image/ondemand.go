package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// OnDemand is a store that pulls what it lacks: from a manager elsewhere, or from registries that the operator names.
type OnDemand struct {
	*Store
	Registries []string // or repositories of them: "ghcr.io", "registry.example.org/nf"
	Remote     RemoteOptions
	Log        *slog.Logger

	mu      sync.Mutex
	manager *Peer
	offers  []string            // names of images at the manager
	pulls   map[string]*pulling // by reference; those that run
	failed  map[string]failure  // by reference
}

// ErrPulling is about an image that is on its way.
var ErrPulling = errors.New("it is being pulled")

// pulling is a pull that somebody may wait for.
type pulling struct {
	known     chan struct{} // closed when img is there: its layers may not be
	img       Image
	over      chan struct{}
	err       error
	done, all atomic.Int64
}

// failure is a pull that was in vain.
type failure struct {
	err error
	at  time.Time
}

const (
	pullsAtOnce  = 4
	pullWithin   = time.Hour
	pullReserve  = 1 << 30          // bytes of the disk that stay free
	pullPatience = 2 * time.Second  // for which Verify waits; a manager that asks hosts waits longer
	pullAgain    = 10 * time.Second // after a failure, where nobody asks for it anew
	unsignedWait = 5 * time.Minute  // the same after a signature was missing: another try fetches all that is about the image
	maxFailed    = 1000
	offersEvery  = 5 * time.Second
	maxOffers    = 1000
)

// From makes a manager elsewhere the first place where images are looked for that this host lacks.
func (o *OnDemand) From(p Peer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.manager = &p
}

// Verify is the Store's. What is not there, and may be pulled, is: what is known of it by then is given back at once, while its layers are on their way.
func (o *OnDemand) Verify(ctx context.Context, ref string) (Image, error) {
	img, err := o.Store.Verify(ctx, ref)
	if !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrUnsigned) || !o.may(ref) {
		return img, err
	}
	p, err := o.begin(ref)
	if err != nil {
		return Image{}, err
	}
	wait := time.NewTimer(pullPatience)
	defer wait.Stop()
	select {
	case <-p.known:
		return p.img, nil
	case <-p.over:
		if p.err != nil {
			return Image{}, p.err
		}
		return o.Store.Verify(ctx, ref)
	case <-ctx.Done():
	case <-wait.C:
	}
	o.mu.Lock()
	f := o.failed[ref]
	o.mu.Unlock()
	if f.err != nil { // who asks again and again would never hear why
		return Image{}, fmt.Errorf("%w: apply again in a while; the try before was in vain: %v", p.progress(ref), f.err)
	}
	return Image{}, fmt.Errorf("%w: apply again in a while", p.progress(ref))
}

// Resolve is the Store's. What is not there, and may be pulled, is: until it is there the error is ErrPulling, and says how far it is.
func (o *OnDemand) Resolve(ref string) (Image, error) {
	img, err := o.Store.Resolve(ref)
	if !errors.Is(err, ErrNotFound) || !o.may(ref) {
		return img, err
	}
	o.mu.Lock()
	f, failed := o.failed[ref]
	o.mu.Unlock()
	wait := pullAgain
	if errors.Is(f.err, ErrUnsigned) {
		wait = unsignedWait
	}
	if failed && time.Since(f.at) < wait {
		return Image{}, f.err
	}
	p, err := o.begin(ref)
	if err != nil {
		return Image{}, err
	}
	return Image{}, p.progress(ref)
}

// Peek is Resolve that pulls nothing; of an image that is on its way it tells what is known.
func (o *OnDemand) Peek(ref string) (Image, error) {
	img, err := o.Store.Resolve(ref)
	if !errors.Is(err, ErrNotFound) {
		return img, err
	}
	o.mu.Lock()
	p := o.pulls[ref]
	o.mu.Unlock()
	if p == nil {
		return img, err
	}
	select {
	case <-p.known:
		return p.img, nil
	default:
		return img, err
	}
}

// progress of a pull, in steps: who writes it down does not write all the time.
func (p *pulling) progress(ref string) error {
	const mib = 1 << 20
	done, all := p.done.Load(), p.all.Load()
	if all == 0 {
		return fmt.Errorf("image %s: %w", ref, ErrPulling)
	}
	return fmt.Errorf("image %s: %w, %d %% of %d MiB so far", ref, ErrPulling, min(done*10/all*10, 100), (all+mib-1)/mib)
}

// may tells whether an image may be fetched: there is a manager elsewhere, or the reference is of a registry that the operator named.
func (o *OnDemand) may(ref string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.manager != nil || o.named(ref)
}

// named tells whether a reference is of a registry that the operator named.
func (o *OnDemand) named(ref string) bool {
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
		return nil, fmt.Errorf("image %s: %w: after %d others", ref, ErrPulling, len(o.pulls))
	}
	p := &pulling{over: make(chan struct{}), known: make(chan struct{})}
	if o.pulls == nil {
		o.pulls, o.failed = map[string]*pulling{}, map[string]failure{}
	}
	o.pulls[ref] = p
	manager := o.manager
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), pullWithin)
		defer cancel()
		img, err := o.pull(ctx, ref, manager, p)
		if p.err = err; err != nil {
			o.Log.Warn("pull image", "image", ref, "error", err)
		} else {
			o.Log.Info("image pulled", "image", ref, "digest", img.Digest, "bytes", img.Size)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.pulls, ref)
		delete(o.failed, ref)
		if err != nil {
			if len(o.failed) >= maxFailed {
				clear(o.failed)
			}
			o.failed[ref] = failure{err, time.Now()}
		}
		close(p.over)
	}()
	return p, nil
}

// pull from the manager, or else from the registry that the reference names, if that may be.
func (o *OnDemand) pull(ctx context.Context, ref string, manager *Peer, p *pulling) (img Image, err error) {
	with := o.Remote
	with.Reserve = pullReserve
	with.Progress = func(done, all int64) { p.done.Store(done); p.all.Store(all) }
	with.Warn = func(text string) { o.Log.Warn("pull image", "image", ref, "warning", text) }
	once := sync.Once{}
	with.known = func(img Image) { once.Do(func() { img.Ref = ref; p.img = img; close(p.known) }) }
	if manager != nil {
		o.Log.Info("pull image", "image", ref, "from", manager.Name)
		if img, err = o.PullFrom(ctx, ref, *manager, with); err == nil || !o.named(ref) {
			return img, err
		}
	}
	o.Log.Info("pull image", "image", ref)
	return o.Pull(ctx, ref, with)
}

// Fetch pulls an image from its registry because somebody asks for it: any registry, whatever Registries says. 1 GiB of the disk stays free.
func (o *OnDemand) Fetch(ctx context.Context, ref string, with RemoteOptions) (Image, error) {
	with.Version, with.Reserve = o.Remote.Version, pullReserve
	img, err := o.Pull(ctx, ref, with)
	if err == nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.failed, ref)
	}
	return img, err
}

// Offers are the names of images that the manager has for this host, as heard last.
func (o *OnDemand) Offers() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.offers
}

// KeepOffers asks the manager regularly what images it has, until ctx ends.
func (o *OnDemand) KeepOffers(ctx context.Context) {
	tick := time.NewTicker(offersEvery)
	defer tick.Stop()
	for {
		o.mu.Lock()
		from := o.manager
		o.mu.Unlock()
		if from != nil {
			if all, err := offersOf(ctx, *from); err == nil { // else what was heard last counts
				o.mu.Lock()
				o.offers = all
				o.mu.Unlock()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func offersOf(ctx context.Context, from Peer) ([]string, error) {
	p := &puller{url: from.URL + "/v2", http: from.Client, where: from.Name}
	raw, _, err := p.once(ctx, "_catalog", "application/json")
	if err != nil {
		return nil, err
	}
	var all catalog
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	return all.References[:min(len(all.References), maxOffers)], nil
}

// catalog is the answer to a question for all repositories; References are of Weir alone: names with their tags.
type catalog struct {
	Repositories []string `json:"repositories"`
	References   []string `json:"weir.references"`
}
