package image

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
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
	Warn     func(text string)  // told what is left out of what a registry has about an image; nil: nobody is
	named    func(int64) string // of what is sent, by its size in bytes; "": it has no name
	known    func(Image)        // told what an image is, before its layers are there
	idle     time.Duration      // for which a registry may say nothing; 0: the constant of this name
}

func (o RemoteOptions) within() time.Duration { return cmp.Or(o.idle, idle) }

const (
	pulls      = 3                // blobs at a time
	tries      = 4                // of a blob or a document
	idle       = 30 * time.Second // without a byte
	dialWithin = 15 * time.Second
	slowest    = 10 * time.Minute // that a document may take, however it comes
)

// ParseRemote checks a reference to an image in a registry: REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST. The registry is always named: what has none is a
// name of an image here.
func ParseRemote(ref string, o RemoteOptions) (name.Reference, error) {
	host, _, slash := strings.Cut(ref, "/")
	if !slash || strings.Contains(ref, "://") || host != "localhost" && !strings.ContainsAny(host, ".:") {
		return nil, fmt.Errorf("image %s: want REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST, for example docker.io/library/debian:13", ref)
	}
	var options []name.Option
	if o.PlainHTTP {
		options = append(options, name.Insecure)
	}
	r, err := name.ParseReference(ref, options...)
	switch {
	case err == nil:
		err = checkPath(r.Context().RepositoryStr())
	case strings.Contains(ref, "@"): // its error does not say what is wrong
		if _, why := name.NewDigest(ref); why != nil {
			err = why
		}
	default:
		if _, why := name.NewTag(ref); why != nil {
			err = why
		}
	}
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	return r, nil
}

// checkPath refuses a name whose path a server could read as another one: a prefix of the name would say nothing about what is fetched.
func checkPath(name string) error {
	for _, element := range strings.Split(name, "/") {
		if element == "" || element == "." || element == ".." {
			return fmt.Errorf("its path %s has the element %q: want none that is empty or made of dots", clipped(name), element)
		}
	}
	return nil
}

func (o RemoteOptions) agent() string { return "weir/" + o.Version }

func (o RemoteOptions) remote(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent(o.agent()), remote.WithTransport(o.base()), remote.WithJobs(pulls)}
}

// base is a transport that does not wait for ever.
func (o RemoteOptions) base() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: dialWithin, KeepAlive: 30 * time.Second}).DialContext
	t.TLSHandshakeTimeout, t.ResponseHeaderTimeout = min(dialWithin, o.within()), o.within()
	return sender{t, o.within(), o.named}
}

// Pull fetches an image from a registry into the instance's own layout, where it has the reference as its name, with its signatures and bill of materials. Of an
// image for several platforms it fetches this machine's. What is there already is not fetched again; what was half there is gone on with. Several may pull at
// once, also the same.
func (s *Store) Pull(ctx context.Context, ref string, o RemoteOptions) (Image, error) {
	r, err := ParseRemote(ref, o)
	if err != nil {
		return Image{}, err
	}
	p := &puller{into: writable(s.own), id: r.Identifier(), o: o, allowed: func(e *entry) error { return s.allowed(ref, e) }}
	err = p.connect(ctx, r.Context())
	if err == nil {
		err = p.into.add(ctx, ref, func() (v1.Descriptor, error) { return p.fetch(ctx) })
	}
	if err != nil {
		return Image{}, fmt.Errorf("pull %s: %w", ref, explain(ctx, err, r))
	}
	return s.Verify(ctx, ref)
}

// Peer is the store of another Weir, as Handler serves it: its address and a client that is let in.
type Peer struct {
	URL    string // without a path
	Name   string // for messages: "the manager"
	Client *http.Client
}

// PullFrom is Pull of an image by the name that a peer has for it, in any form that Resolve takes.
func (s *Store) PullFrom(ctx context.Context, ref string, from Peer, o RemoteOptions) (Image, error) {
	name, tag, digest, err := splitRef(ref)
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", ref, err)
	}
	if name == "" {
		name = "images" // a digest is enough
	}
	if err := checkPath(name); err != nil {
		return Image{}, fmt.Errorf("image %s: %w", ref, err)
	}
	p := &puller{into: writable(s.own), id: cmp.Or(digest, tag), o: o, where: from.Name, url: from.URL + (&url.URL{Path: "/v2/" + name}).EscapedPath(), http: from.Client,
		allowed: func(e *entry) error { return s.allowed(ref, e) }}
	as := ref
	err = nil
	if p.id == "" {
		p.id, err = p.highest(ctx)
		as = name + ":" + p.id
	}
	if err == nil {
		err = p.into.add(ctx, as, func() (v1.Descriptor, error) { return p.fetch(ctx) })
	}
	var said *transport.Error
	if errors.As(err, &said) && said.StatusCode == http.StatusNotFound {
		err = fmt.Errorf("%w: %s has no image %s", ErrNotFound, from.Name, ref)
	}
	if err != nil {
		return Image{}, fmt.Errorf("pull %s from %s: %w", ref, from.Name, err)
	}
	return s.Verify(ctx, ref)
}

// highest is the tag that a name without one means.
func (p *puller) highest(ctx context.Context) (string, error) {
	raw, _, err := p.document(ctx, "tags/list", "application/json")
	if err != nil {
		return "", err
	}
	var list struct{ Tags []string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return "", fmt.Errorf("tags: %w", err)
	}
	best := ""
	for _, t := range list.Tags {
		if t == "latest" {
			return t, nil
		}
		if compareTags(t, best) > 0 {
			best = t
		}
	}
	if best == "" || len(best) > maxTag {
		return "", fmt.Errorf("%w: %s has no tag of it", ErrNotFound, p.where)
	}
	return best, nil
}

// maxTag is how long a tag may be, in the OCI's specification.
const maxTag = 128

// explain what a registry said.
func explain(ctx context.Context, err error, r name.Reference) error {
	registry := r.Context().RegistryStr()
	var said *transport.Error
	switch {
	case errors.As(err, &said) && (said.StatusCode == http.StatusUnauthorized || said.StatusCode == http.StatusForbidden):
		return fmt.Errorf("%w: %s wants other credentials than it got: `docker login %s` or `podman login %s` stores them", err, registry, registry, registry)
	case errors.As(err, &said) && said.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%w: %w: %s has no %s", ErrNotFound, err, registry, strings.TrimPrefix(r.Name(), registry+"/"))
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w: nobody answers at %s", err, registry)
	case errors.Is(err, errStuck):
		return fmt.Errorf("%w: %s has stopped reading: see whether it works and has room", err, registry)
	case ctx.Err() == nil && timedOut(err): // not a byte came in idle
		return fmt.Errorf("%w: %s does not answer in time: see whether it works and can be reached from here", err, registry)
	case strings.Contains(err.Error(), "certificate signed by unknown authority"):
		return fmt.Errorf("%s: this machine knows no authority of %s's certificate: put that authority's into /usr/local/share/ca-certificates (NAME.crt) and run update-ca-certificates",
			strings.Join(strings.Fields(err.Error()), " "), registry)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%w: %s does not speak TLS: --plain-http if that is right", err, registry)
	}
	return err
}

// timedOut tells whether somebody did not answer in time. Where both HTTP and TLS were tried, one of them is enough.
func timedOut(err error) bool {
	return errors.Is(err, errSilent) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || strings.Contains(err.Error(), "TLS handshake timeout")
}

// puller fetches one image. Make it with where it fetches from, or connect.
type puller struct {
	into  writable
	where string // the registry, for messages
	url   string // of the repository
	http  *http.Client
	id    string // tag or digest
	o     RemoteOptions
	// allowed refuses an image, once what is about it is there and before its layers are fetched.
	allowed func(*entry) error
	done    atomic.Int64
	all     int64
}

// manifestTypes that are asked for.
var manifestTypes = strings.Join([]string{string(types.OCIManifestSchema1), string(types.OCIImageIndex), string(types.DockerManifestSchema2), string(types.DockerManifestList)}, ", ")

// fetch every blob, and give what to name in the index.
func (p *puller) fetch(ctx context.Context) (d v1.Descriptor, err error) {
	top, topRaw, err := p.manifest(ctx, p.id)
	if err != nil {
		return d, err
	}
	own, raw := top, topRaw
	if top.MediaType.IsIndex() {
		index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
		if err != nil {
			return d, fmt.Errorf("%w: index: %v", ErrCorrupt, err)
		}
		if own, err = platformOf(index); err != nil {
			return d, err
		}
		if own, raw, err = p.manifest(ctx, own.Digest.String()); err != nil {
			return d, err
		}
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return d, fmt.Errorf("%w: manifest %s: %v", ErrCorrupt, own.Digest, err)
	}
	e, err := p.admit(ctx, top, own.Digest, m)
	if err != nil {
		return d, err
	}
	about, err := p.about(ctx, top, own)
	if err == nil {
		err = p.into.attach(ctx, false, about...)
	}
	if err == nil {
		err = p.allowed(e)
	}
	if err != nil {
		return d, err
	}
	if p.o.known != nil {
		p.o.known(e.image)
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
	if err := p.into.write(own.Digest, raw); err != nil {
		return d, err
	}
	return top, p.into.write(top.Digest, topRaw)
}

// manifest by a tag or a digest, checked against the latter.
func (p *puller) manifest(ctx context.Context, id string) (d v1.Descriptor, raw []byte, err error) {
	raw, kind, err := p.document(ctx, "manifests/"+id, manifestTypes)
	if err != nil {
		return d, nil, err
	}
	d = v1.Descriptor{MediaType: types.MediaType(kind), Size: int64(len(raw))}
	if d.Digest, _, err = v1.SHA256(bytes.NewReader(raw)); err != nil {
		return d, nil, err
	}
	if want, err := v1.NewHash(id); err == nil && want != d.Digest {
		return d, nil, fmt.Errorf("%w: manifest digest: %s came as %s", ErrCorrupt, want, d.Digest)
	}
	if !d.MediaType.IsIndex() && !d.MediaType.IsImage() {
		return d, nil, fmt.Errorf("%w: manifest %s has the type %s, want one of %s", ErrCorrupt, id, clipped(kind), manifestTypes)
	}
	if err := oneKind(raw, kind); err != nil {
		return d, nil, fmt.Errorf("%w: manifest %s: %w", ErrCorrupt, id, err)
	}
	return d, raw, nil
}

// oneKind refuses a document that one reader takes for an image and another for an index (CVE-2021-41190): what was signed would not be what runs. kind is what it
// came as; "": nobody said.
func oneKind(raw []byte, kind string) error {
	var is struct {
		MediaType         string          `json:"mediaType"`
		Manifests, Layers json.RawMessage // a null is none
	}
	if json.Unmarshal(raw, &is) != nil {
		return nil // which is told where it is parsed
	}
	some := func(part json.RawMessage) bool { return len(part) > 0 && string(part) != "null" }
	switch {
	case some(is.Manifests) && some(is.Layers):
		return errors.New("it has both manifests and layers: want an index or an image")
	case kind != "" && is.MediaType != "" && is.MediaType != kind:
		return fmt.Errorf("it came as %s and says that it is %s", clipped(kind), clipped(is.MediaType))
	}
	return nil
}

// document of the repository, of bounded size, and its type. It is asked for again where that may help.
func (p *puller) document(ctx context.Context, path, accept string) (raw []byte, kind string, err error) {
	for try := range tries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return nil, "", ctx.Err()
			case <-time.After(time.Second << (try - 1)):
			}
		}
		if raw, kind, err = p.once(ctx, path, accept); err == nil || ctx.Err() != nil || !mayHelp(err) {
			return raw, kind, err
		}
	}
	return nil, "", err
}

// errSilent is about a registry that has sent nothing for a time.
var errSilent = errors.New("not a byte")

// listen gives a context that ends when the registry sends nothing for too long. heard is called when something has come.
func (p *puller) listen(ctx context.Context) (_ context.Context, heard, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	within := p.o.within()
	watch := time.AfterFunc(within, func() { cancel(fmt.Errorf("%s: %w in %s", p.where, errSilent, within)) })
	return ctx, func() { watch.Reset(within) }, func() { watch.Stop(); cancel(nil) }
}

// hearing calls heard for each piece that is read.
type hearing struct {
	io.Reader
	heard func()
}

func (h hearing) Read(b []byte) (int, error) {
	n, err := h.Reader.Read(b)
	if n > 0 {
		h.heard()
	}
	return n, err
}

func (p *puller) once(ctx context.Context, path, accept string) (raw []byte, kind string, err error) {
	ctx, cancel := context.WithTimeout(ctx, slowest)
	defer cancel()
	ctx, heard, stop := p.listen(ctx)
	defer stop()
	defer func() {
		if err != nil {
			err = orCause(ctx, err)
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/"+path, nil)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Accept", accept)
	resp, err := p.http.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		return nil, "", err
	}
	raw, err = io.ReadAll(io.LimitReader(hearing{resp.Body, heard}, maxDocument+1))
	if err == nil && len(raw) > maxDocument {
		err = fmt.Errorf("%w: %s has more than %d bytes", ErrCorrupt, path, maxDocument)
	}
	if err == nil {
		err = parsable(raw)
	}
	kind, _, _ = strings.Cut(resp.Header.Get("Content-Type"), ";")
	return raw, strings.TrimSpace(kind), err
}

// mayHelp tells whether an error may be over at another try: one of the network, or of a server that is busy or broken. One that says nothing has had its time.
func mayHelp(err error) bool {
	var said *transport.Error
	if errors.As(err, &said) {
		return said.StatusCode >= http.StatusInternalServerError || said.StatusCode == http.StatusTooManyRequests
	}
	return !errors.Is(err, ErrCorrupt) && !timedOut(err) && !errors.Is(err, unix.ECONNREFUSED) && !strings.Contains(err.Error(), "HTTP response to HTTPS client")
}

// about is what the registry has about the image: signatures and bills of materials, as referrers or under cosign's tag. What is not as it should be, or too
// much, is left out with a warning.
func (p *puller) about(ctx context.Context, subjects ...v1.Descriptor) ([]artifact, error) {
	var all []artifact
	quiet := &puller{into: p.into, where: p.where, url: p.url, http: p.http, o: RemoteOptions{Reserve: p.o.Reserve, idle: p.o.idle}, all: p.all}
	seen := map[v1.Hash]bool{}
	for _, subject := range subjects {
		if seen[subject.Digest] {
			continue
		}
		seen[subject.Digest] = true
		of, err := quiet.aboutOne(ctx, subject, p.warn)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

// aboutOne is what the registry has about one digest. It is tidied as it comes, and no more than maxAbout bytes are fetched of it.
func (p *puller) aboutOne(ctx context.Context, subject v1.Descriptor, warn func(string, ...any)) (of []artifact, err error) {
	ids, err := p.listed(ctx, subject.Digest)
	if err != nil {
		return nil, err
	}
	left := int64(maxAbout)
	for _, id := range append([]string{"sha256-" + subject.Digest.Hex + ".sig"}, ids...) { // signatures first: they are small, and count
		a, err := p.artifact(ctx, subject, id, &left)
		var said *transport.Error
		switch {
		case err == nil:
		case left < 0:
			warn("what %s has about %s is more than %d MiB: the rest is left out", p.where, subject.Digest, maxAbout>>20)
			return of, nil
		case errors.As(err, &said) && said.StatusCode < http.StatusInternalServerError: // it has none
			continue
		case errors.Is(err, errArtifact), errors.Is(err, ErrCorrupt):
			warn("%s about %s is left out: %v", id, subject.Digest, err)
			continue
		default:
			return nil, err
		}
		if of, err = tidy(append(of, a)); err != nil {
			warn("what %s has about %s is left out: %v", p.where, subject.Digest, err)
			return nil, nil
		}
	}
	return of, nil
}

func (p *puller) warn(format string, args ...any) {
	if p.o.Warn != nil {
		p.o.Warn(fmt.Sprintf(format, args...))
	}
}

// listed are the digests of manifests about an image that may be kept: by the API of referrers, or by its substitute, a tag.
func (p *puller) listed(ctx context.Context, subject v1.Hash) (ids []string, err error) {
	var raw []byte
	for _, path := range []string{"referrers/" + subject.String(), "manifests/sha256-" + subject.Hex} {
		raw, _, err = p.document(ctx, path, string(types.OCIImageIndex))
		var said *transport.Error
		if errors.As(err, &said) && said.StatusCode < http.StatusInternalServerError || errors.Is(err, ErrCorrupt) {
			continue
		}
		if err != nil {
			return nil, err
		}
		index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
		if err != nil {
			continue
		}
		for _, d := range index.Manifests {
			id := d.Digest.String()
			if (isSBOM(d.ArtifactType) || d.ArtifactType == signatureArtifact) && d.Digest.Algorithm == "sha256" && len(ids) < maxListed && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		break
	}
	return ids, nil
}

// artifact by its digest or tag, with its blobs: no more than left bytes, which becomes less, or negative if it has more.
func (p *puller) artifact(ctx context.Context, subject v1.Descriptor, id string, left *int64) (artifact, error) {
	_, raw, err := p.manifest(ctx, id)
	if err != nil {
		return artifact{}, err
	}
	if *left -= int64(len(raw)); *left < 0 {
		return artifact{}, errArtifact
	}
	subject.Annotations = nil
	return readArtifact(subject, raw, func(d v1.Descriptor) ([]byte, error) {
		if *left -= d.Size; *left < 0 {
			return nil, errArtifact
		}
		if err := p.room(d.Size); err != nil {
			return nil, err
		}
		if err := p.blob(ctx, d); err != nil {
			return nil, err
		}
		return readBlob(string(p.into), d.Digest)
	})
}

// connect gives a client that is let in.
func (p *puller) connect(ctx context.Context, repo name.Repository) error {
	who, err := authn.DefaultKeychain.Resolve(repo.Registry)
	if err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	t, err := transport.NewWithContext(ctx, repo.Registry, who, transport.NewUserAgent(p.o.base(), p.o.agent()), []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return err
	}
	p.where, p.url = repo.RegistryStr(), fmt.Sprintf("%s://%s/v2/%s", repo.Scheme(), repo.RegistryStr(), repo.RepositoryStr())
	p.http = &http.Client{Transport: t, CheckRedirect: checkRedirect}
	return nil
}

// checkRedirect keeps a registry from leading who pulls to what only this machine reaches, or from TLS to plain HTTP. A registry of this machine may lead to others of it.
func checkRedirect(to *http.Request, via []*http.Request) error {
	from := via[0].URL
	switch {
	case len(via) >= redirects:
		return redirectError(fmt.Sprintf("registry %s leads from one address to the next, more than %d times: tell who runs it", from.Host, redirects))
	case from.Scheme == "https" && to.URL.Scheme != "https":
		return redirectError(fmt.Sprintf("registry %s leads to %s, which does not speak TLS: tell who runs it", from.Host, clipped(to.URL.Host)))
	case reach(to.URL.Hostname()) > reach(from.Hostname()):
		return redirectError(fmt.Sprintf("registry %s leads to %s, an address of this machine or its link: it is not followed there", from.Host, clipped(to.URL.Host)))
	}
	return nil
}

const redirects = 10

// redirectError is about a redirect that is not followed. Like what is corrupt it is not tried again.
type redirectError string

func (e redirectError) Error() string      { return string(e) }
func (redirectError) Is(target error) bool { return target == ErrCorrupt } //nolint:errorlint // this is what errors.Is asks

// reach of a host's name or address: 0 for everybody, 1 for this machine, 2 for its link, where clouds keep what is for the machine alone.
func reach(host string) int {
	at, err := netip.ParseAddr(host)
	switch at = at.Unmap(); {
	case err != nil && (host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") || !strings.ContainsFunc(host, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefx.", unicode.ToLower(r)) })):
		return 1 // also what only resolvers take for an address, as 127.1
	case err != nil:
		return 0
	case at.IsLinkLocalUnicast(), at.IsLinkLocalMulticast():
		return 2
	case at.IsLoopback(), at.IsUnspecified():
		return 1
	}
	return 0
}

// admit refuses, before any layer is fetched, what this machine could not run, and what there is no room for.
func (p *puller) admit(ctx context.Context, top v1.Descriptor, digest v1.Hash, m *v1.Manifest) (*entry, error) {
	if n := len(m.Layers); n == 0 || n > maxLayers {
		return nil, fmt.Errorf("it has %d layers: want 1 to %d", n, maxLayers)
	}
	if m.Config.Size > maxDocument {
		return nil, fmt.Errorf("%w: its config has %d bytes, at most %d", ErrCorrupt, m.Config.Size, maxDocument)
	}
	p.all = m.Config.Size
	for _, l := range m.Layers {
		if _, err := decompress(l.MediaType, bytes.NewReader(nil)); err != nil && strings.HasPrefix(err.Error(), "layer media type") {
			return nil, err
		}
		if l.Size < 0 || l.Size > maxUnpacked || l.Digest == (v1.Hash{}) {
			return nil, fmt.Errorf("%w: a layer of %d bytes: want at most %d GiB, and a digest", ErrCorrupt, l.Size, maxUnpacked>>30)
		}
		p.all += l.Size
	}
	if err := p.blob(ctx, m.Config); err != nil {
		return nil, err
	}
	raw, err := readBlob(string(p.into), m.Config.Digest)
	if err != nil {
		return nil, err
	}
	e, err := newEntry(string(p.into), top, digest, m, raw)
	if err != nil {
		return nil, err
	}
	return e, p.room(0)
}

// room refuses what the disk cannot hold beside the image.
func (p *puller) room(beside int64) error {
	there, _, err := free(string(p.into))
	if err != nil {
		return err
	}
	const mib = 1 << 20
	if room := there - p.o.Reserve; p.all+beside > room {
		return fmt.Errorf("it has %d MiB, and %s has room for %d MiB: free some space there or choose another --root: %w", (p.all+beside+mib-1)/mib, p.into, max(room, 0)/mib, unix.ENOSPC)
	}
	return nil
}

// left refuses to go on when what has to stay free would be written: others fill the disk, too.
func (p *puller) left() error {
	if p.o.Reserve <= 0 {
		return nil
	}
	there, _, err := free(string(p.into))
	if err == nil && there < p.o.Reserve {
		err = fmt.Errorf("%s has %d MiB free, and %d stay free: free some space there, then pull it again, which goes on where it was: %w", p.into, there>>20, p.o.Reserve>>20, unix.ENOSPC)
	}
	return err
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
	ctx, heard, stop := p.listen(ctx)
	defer stop()
	counted, came := int64(0), false
	count := func(n int64) { counted += n; p.count(n) }
	defer func() {
		if err != nil { // it is counted again
			p.count(-counted)
		}
	}()
	if at < d.Size {
		resp, gerr := p.get(ctx, d, at)
		if gerr != nil {
			gerr = orCause(ctx, gerr)
			return mayHelp(gerr), gerr
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK && at > 0 { // it cannot go on in the middle
			sum.Reset()
			at = 0
		}
		count(at)
		body, buf := io.LimitReader(hearing{resp.Body, heard}, d.Size-at+1), make([]byte, 256<<10)
		for {
			n, rerr := body.Read(buf)
			if n > 0 {
				came = true
				if err := p.left(); err != nil {
					return false, err
				}
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
				rerr = orCause(ctx, rerr)
				return came || mayHelp(rerr), rerr
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
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/blobs/"+d.Digest.String(), nil)
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
