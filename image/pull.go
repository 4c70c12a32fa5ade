package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// RemoteOptions say how to speak to a registry. Credentials are those of the user's configuration file of Docker or Podman.
type RemoteOptions struct {
	PlainHTTP bool // not TLS; a registry on this machine is spoken to by either
	Version   string
	Reserve   int64 // bytes of the disk that have to stay free
	// Progress is told bytes that are there, and of how many, from several goroutines; nil: nobody is.
	Progress func(done, all int64)
}

const (
	pulls      = 3                // blobs at a time
	tries      = 4                // of a blob
	idle       = 30 * time.Second // without a byte
	dialWithin = 15 * time.Second
)

// ParseRemote checks a reference to an image in a registry: REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST. The registry is always named: what has none is a
// name of an image here.
func ParseRemote(ref string, o RemoteOptions) (name.Reference, error) {
	host, _, slash := strings.Cut(ref, "/")
	if !slash || host != "localhost" && !strings.ContainsAny(host, ".:") {
		return nil, fmt.Errorf("image %s: want REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST, for example docker.io/library/debian:13", ref)
	}
	var options []name.Option
	if o.PlainHTTP {
		options = append(options, name.Insecure)
	}
	r, err := name.ParseReference(ref, options...)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	return r, nil
}

func (o RemoteOptions) agent() string { return "weir/" + o.Version }

func (o RemoteOptions) remote(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent(o.agent()), remote.WithTransport(base()), remote.WithJobs(pulls)}
}

// base is a transport that does not wait for ever.
func base() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: dialWithin, KeepAlive: 30 * time.Second}).DialContext
	t.TLSHandshakeTimeout, t.ResponseHeaderTimeout = dialWithin, idle
	return t
}

// Pull fetches an image from a registry into the instance's own layout, where it has the reference as its name. Of an image for several platforms it fetches
// this machine's. What is there already is not fetched again; what was half there is gone on with. Several may pull at once, also the same.
func (s *Store) Pull(ctx context.Context, ref string, o RemoteOptions) (Image, error) {
	r, err := ParseRemote(ref, o)
	if err != nil {
		return Image{}, err
	}
	p := &puller{into: writable(s.own), ref: r, o: o}
	if err := p.into.add(ctx, ref, func() (v1.Descriptor, error) { return p.fetch(ctx) }); err != nil {
		return Image{}, fmt.Errorf("pull %s: %w", ref, explain(err, r))
	}
	return s.Verify(ctx, ref)
}

// explain what a registry said.
func explain(err error, r name.Reference) error {
	registry := r.Context().RegistryStr()
	var said *transport.Error
	switch {
	case errors.As(err, &said) && (said.StatusCode == http.StatusUnauthorized || said.StatusCode == http.StatusForbidden):
		return fmt.Errorf("%w: %s wants other credentials than it got: `docker login %s` or `podman login %s` stores them", err, registry, registry, registry)
	case errors.As(err, &said) && said.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%w: %w: %s has no %s", ErrNotFound, err, registry, strings.TrimPrefix(r.Name(), registry+"/"))
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w: nobody answers at %s", err, registry)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%w: %s does not speak TLS: --plain-http if that is right", err, registry)
	}
	return err
}

// puller fetches one image.
type puller struct {
	into writable
	ref  name.Reference
	o    RemoteOptions
	done atomic.Int64
	all  int64
	http *http.Client
}

// fetch every blob, and give what to name in the index.
func (p *puller) fetch(ctx context.Context) (d v1.Descriptor, err error) {
	top, err := remote.Get(p.ref, p.o.remote(ctx)...)
	if err != nil {
		return d, err
	}
	raw, digest := top.Manifest, top.Digest
	if top.MediaType.IsIndex() {
		if raw, digest, err = p.ofPlatform(ctx, raw); err != nil {
			return d, err
		}
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return d, fmt.Errorf("%w: manifest %s: %v", ErrCorrupt, digest, err)
	}
	if err := p.connect(ctx); err != nil {
		return d, err
	}
	if err := p.admit(ctx, m); err != nil {
		return d, err
	}
	all, ctx2 := errgroup.WithContext(ctx)
	all.SetLimit(pulls)
	seen := map[v1.Hash]bool{}
	for _, l := range m.Layers {
		if seen[l.Digest] {
			continue
		}
		seen[l.Digest] = true
		all.Go(func() error { return p.blob(ctx2, l) })
	}
	if err := all.Wait(); err != nil {
		return d, err
	}
	// Manifests last: what they name is there.
	if err := p.into.write(digest, raw); err != nil {
		return d, err
	}
	if top.Digest != digest {
		if err := p.into.write(top.Digest, top.Manifest); err != nil {
			return d, err
		}
	}
	return v1.Descriptor{MediaType: top.MediaType, Digest: top.Digest, Size: int64(len(top.Manifest))}, nil
}

// ofPlatform is this machine's manifest of an index.
func (p *puller) ofPlatform(ctx context.Context, raw []byte) ([]byte, v1.Hash, error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, v1.Hash{}, fmt.Errorf("%w: index: %v", ErrCorrupt, err)
	}
	d, err := platformOf(index)
	if err != nil {
		return nil, v1.Hash{}, err
	}
	one, err := remote.Get(p.ref.Context().Digest(d.Digest.String()), p.o.remote(ctx)...)
	if err != nil {
		return nil, v1.Hash{}, err
	}
	return one.Manifest, one.Digest, nil
}

// connect gives a client that is let in.
func (p *puller) connect(ctx context.Context) error {
	repo := p.ref.Context()
	who, err := authn.DefaultKeychain.Resolve(repo.Registry)
	if err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	t, err := transport.NewWithContext(ctx, repo.Registry, who, transport.NewUserAgent(base(), p.o.agent()), []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return err
	}
	p.http = &http.Client{Transport: t}
	return nil
}

// admit refuses, before any layer is fetched, what this machine could not run, and what there is no room for.
func (p *puller) admit(ctx context.Context, m *v1.Manifest) error {
	if n := len(m.Layers); n == 0 || n > maxLayers {
		return fmt.Errorf("it has %d layers: want 1 to %d", n, maxLayers)
	}
	if m.Config.Size > maxDocument {
		return fmt.Errorf("%w: its config has %d bytes, at most %d", ErrCorrupt, m.Config.Size, maxDocument)
	}
	p.all = m.Config.Size
	for _, l := range m.Layers {
		if _, err := decompress(l.MediaType, bytes.NewReader(nil)); err != nil && strings.HasPrefix(err.Error(), "layer media type") {
			return err
		}
		if l.Size < 0 || l.Size > maxUnpacked || l.Digest == (v1.Hash{}) {
			return fmt.Errorf("%w: a layer of %d bytes: want at most %d GiB, and a digest", ErrCorrupt, l.Size, maxUnpacked>>30)
		}
		p.all += l.Size
	}
	if err := p.blob(ctx, m.Config); err != nil {
		return err
	}
	raw, err := readBlob(string(p.into), m.Config.Digest)
	if err != nil {
		return err
	}
	var config v1.ConfigFile
	if err := json.Unmarshal(raw, &config); err != nil {
		return fmt.Errorf("%w: its config: %v", ErrCorrupt, err)
	}
	if config.Architecture != "" && config.Architecture != runtime.GOARCH {
		return fmt.Errorf("built for %s, this machine is %s", config.Architecture, runtime.GOARCH)
	}
	if _, err := ParseContract(config.Config.Labels); err != nil {
		return err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(string(p.into), &disk); err != nil {
		return fmt.Errorf("free space of %s: %w", p.into, err)
	}
	const mib = 1 << 20
	if free := int64(disk.Bavail)*disk.Bsize - p.o.Reserve; p.all > free {
		return fmt.Errorf("it has %d MiB, and %s has room for %d MiB: free some space there or choose another --root: %w", (p.all+mib-1)/mib, p.into, max(free, 0)/mib, unix.ENOSPC)
	}
	return nil
}

// blob fetches one, once, whoever else wants it now, and goes on where an earlier try was cut.
func (p *puller) blob(ctx context.Context, d v1.Descriptor) error {
	dir := filepath.Join(string(p.into), partialsDir)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.MkdirAll(filepath.Dir(blobPath(string(p.into), d.Digest)), 0o755)); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, d.Digest.Hex), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := flock(ctx, f, unix.LOCK_EX); err != nil { // somebody fetches it
		return err
	}
	have, err := p.into.sound(d.Digest)
	if have || err != nil {
		p.count(d.Size)
		if rerr := os.Remove(f.Name()); !errors.Is(rerr, os.ErrNotExist) { // it is kept by now
			err = errors.Join(err, rerr)
		}
		return err
	}
	var last error
	for try := range tries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Second << (try - 1)):
			}
		}
		var again bool
		if again, last = p.rest(ctx, f, d); last == nil {
			return p.keep(f, d)
		}
		if !again || ctx.Err() != nil {
			return last
		}
	}
	return last
}

// rest of a blob, to the end of its file. again: it may go better another time.
func (p *puller) rest(ctx context.Context, f *os.File, d v1.Descriptor) (again bool, err error) {
	sum := sha256.New()
	at, err := io.Copy(sum, io.NewSectionReader(f, 0, d.Size))
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	counted := int64(0)
	count := func(n int64) { counted += n; p.count(n) }
	defer func() {
		if err != nil { // it is counted again
			p.count(-counted)
		}
	}()
	watch := time.AfterFunc(idle, func() { cancel(fmt.Errorf("%s: not a byte in %s", p.ref.Context().RegistryStr(), idle)) })
	defer watch.Stop()
	if at < d.Size {
		resp, gerr := p.get(ctx, d, at)
		if gerr != nil {
			var said *transport.Error
			return !errors.As(gerr, &said) || said.StatusCode >= http.StatusInternalServerError || said.StatusCode == http.StatusTooManyRequests, orCause(ctx, gerr)
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK && at > 0 { // it cannot go on in the middle
			sum.Reset()
			at = 0
		}
		count(at)
		body, buf := io.LimitReader(resp.Body, d.Size-at+1), make([]byte, 256<<10)
		for {
			n, rerr := body.Read(buf)
			if n > 0 {
				watch.Reset(idle)
				if _, err := f.WriteAt(buf[:n], at); err != nil {
					if errors.Is(err, unix.ENOSPC) {
						err = fmt.Errorf("%w: free some space in %s or choose another --root", err, p.into)
					}
					return false, err
				}
				sum.Write(buf[:n])
				at += int64(n)
				count(int64(n))
			}
			if errors.Is(rerr, io.EOF) {
				break
			}
			if rerr != nil {
				return true, orCause(ctx, rerr)
			}
		}
	} else {
		count(at)
	}
	if at < d.Size {
		return true, fmt.Errorf("blob %s: it ended after %d of %d bytes", d.Digest, at, d.Size)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); at != d.Size || got != d.Digest.Hex {
		if err := f.Truncate(0); err != nil {
			return false, err
		}
		return true, fmt.Errorf("%w: blob %s came as sha256:%s with %d bytes, want %d", ErrCorrupt, d.Digest, got, at, d.Size)
	}
	return false, nil
}

func orCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// get a blob from a byte on.
func (p *puller) get(ctx context.Context, d v1.Descriptor, from int64) (*http.Response, error) {
	repo := p.ref.Context()
	url := fmt.Sprintf("%s://%s/v2/%s/blobs/%s", repo.Scheme(), repo.RegistryStr(), repo.RepositoryStr(), d.Digest)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent); err != nil {
		return nil, errors.Join(err, resp.Body.Close())
	}
	if from > 0 && resp.StatusCode == http.StatusPartialContent && !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", from)) {
		return nil, errors.Join(fmt.Errorf("blob %s: asked for bytes from %d, got %q", d.Digest, from, resp.Header.Get("Content-Range")), resp.Body.Close())
	}
	return resp, nil
}

// keep a blob that is whole under its name.
func (p *puller) keep(f *os.File, d v1.Descriptor) error {
	if err := errors.Join(f.Truncate(d.Size), f.Chmod(0o644), f.Sync()); err != nil {
		return err
	}
	return os.Rename(f.Name(), blobPath(string(p.into), d.Digest))
}

func (p *puller) count(n int64) {
	if now := p.done.Add(n); p.o.Progress != nil {
		p.o.Progress(now, p.all)
	}
}
