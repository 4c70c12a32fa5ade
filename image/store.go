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
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"weir.dev/weir/instance"
)

const (
	refAnnotation   = "org.opencontainers.image.ref.name"
	maxDocument     = 4 << 20 // bytes of an index, manifest or config
	maxIndexEntries = 10_000
	maxLayers       = 127 // of an image: what Docker builds at most
	remedy          = "`make build` builds the catalogue's images anew, `weir image pull` fetches one of a registry anew"
)

// packaged are the images of the catalogue that `make build` leaves out.
var packaged = []string{"cache", "ids", "ids-tap", "udp-forward-socat"}

// Store resolves images in OCI layouts and mounts them for one instance. Its methods may be called from several goroutines.
type Store struct {
	inst instance.Instance
	dirs []string // layouts, in search order
	own  string   // the instance's own layout, the last of dirs

	mu     sync.Mutex // one unpack or mount at a time
	parsed sync.Map   // manifest digest -> *entry; content-addressed, so never stale

	verified sync.Map // path of a layer's file -> seen

	policy   Policy
	admitted signedNames
}

// entry is an image with what is needed to unpack it.
type entry struct {
	image  Image
	top    v1.Descriptor // that a name stands for: of the manifest, or of an index with it
	layout string
	layers []v1.Descriptor // beside image.Layers
}

// OwnLayout is the layout of an instance that Pull, Import and Delete change.
func OwnLayout(i instance.Instance) string { return filepath.Join(i.Root, "images", "layout") }

// Open makes a store that searches the given layouts in order, then the instance's own. A layout that does not exist (yet) is empty.
func Open(inst instance.Instance, dirs ...string) *Store {
	own := OwnLayout(inst)
	return &Store{inst: inst, dirs: append(slices.Clone(dirs), own), own: own}
}

// Resolve finds an image by "name", "name:tag" or "sha256:..." (also "name@sha256:..."). A bare name means its tag "latest" or,
// without one, its highest tag.
func (s *Store) Resolve(ref string) (Image, error) {
	e, err := s.usable(ref)
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", ref, err)
	}
	img := e.image
	img.Ref = ref
	return img, nil
}

// List reports every image of every layout, named ones by their annotation, in search order.
func (s *Store) List() ([]Image, error) {
	var out []Image
	seen := map[string]bool{}
	var errs []error
	for _, dir := range s.dirs {
		refs, err := readIndex(dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, r := range refs {
			if seen[r.name] {
				continue // hidden by an earlier layout
			}
			seen[r.name] = true
			e, err := s.load(dir, r.desc)
			if err != nil {
				errs = append(errs, fmt.Errorf("image %s: %w", r.name, err))
				continue
			}
			img := e.image
			img.Ref = r.name
			out = append(out, img)
		}
	}
	return out, errors.Join(errs...)
}

// In lists what the images of one layout are called there.
func In(layout string) (names []string, err error) {
	refs, err := readIndex(layout)
	for _, r := range refs {
		names = append(names, r.name)
	}
	return names, err
}

// Holds tells whether one of some layouts has the image with a digest, for this machine's platform. What cannot be read has none.
func Holds(digest string, layouts ...string) bool {
	s := &Store{dirs: layouts}
	for _, dir := range layouts {
		refs, err := readIndex(dir)
		if err != nil {
			continue
		}
		for _, r := range refs {
			if e, err := s.load(dir, r.desc); err == nil && e.image.Digest == digest {
				return true
			}
		}
	}
	return false
}

// Offers is empty: a store by itself fetches nothing.
func (s *Store) Offers() []string { return nil }

func (s *Store) resolve(ref string) (*entry, error) {
	name, tag, digest, err := splitRef(ref)
	if err != nil {
		return nil, err
	}
	var have []string
	for _, dir := range s.dirs {
		refs, err := readIndex(dir)
		if err != nil {
			return nil, err
		}
		if d, ok := pick(refs, name, tag, digest); ok {
			e, err := s.load(dir, d)
			if err != nil {
				return nil, err
			}
			named := *e
			named.top = d
			return &named, nil
		}
		if digest != "" {
			// the digest of one platform's manifest, inside an index
			if e, ok := s.parsed.Load(digest); ok {
				return e.(*entry), nil
			}
		}
		for _, r := range refs {
			have = append(have, r.name)
		}
	}
	if _, err := ParseRemote(ref, RemoteOptions{}); err == nil {
		return nil, fmt.Errorf("%w on this host: `weir image pull %s` fetches it, as the host itself does from a registry that its --registry names", ErrNotFound, ref)
	}
	if slices.Contains(packaged, name) && digest == "" {
		return nil, fmt.Errorf("%w in %s: it is of Debian packages, which take minutes to build: `weir image build catalogue/%s --into bin/images` in Weir's clone", ErrNotFound,
			strings.Join(s.dirs, ", "), name)
	}
	if len(have) == 0 {
		return nil, fmt.Errorf("%w: no image in %s; %s", ErrNotFound, strings.Join(s.dirs, ", "), remedy)
	}
	slices.Sort(have)
	return nil, fmt.Errorf("%w: there are %s (in %s)", ErrNotFound, strings.Join(slices.Compact(have), ", "), strings.Join(s.dirs, ", "))
}

func splitRef(ref string) (name, tag, digest string, err error) {
	name = ref
	if before, d, ok := strings.Cut(ref, "@"); ok {
		name, digest = before, d
	} else if strings.HasPrefix(ref, "sha256:") {
		name, digest = "", ref
	}
	if digest != "" {
		if _, err := v1.NewHash(digest); err != nil {
			return "", "", "", fmt.Errorf("%w: bad digest, want sha256: and 64 hexadecimal digits", ErrNotFound)
		}
		return name, "", digest, nil
	}
	if n, t, tagged := cutTag(name); tagged {
		name, tag = n, t
		if tag == "" {
			return "", "", "", fmt.Errorf("%w: nothing after ':', want NAME, NAME:TAG or sha256:DIGEST", ErrNotFound)
		}
	}
	if name == "" {
		return "", "", "", fmt.Errorf("%w: no name, want NAME, NAME:TAG or sha256:DIGEST", ErrNotFound)
	}
	return name, tag, "", nil
}

// Name is a reference without its tag or digest.
func Name(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	name, _, _ := cutTag(ref)
	return name
}

// cutTag cuts a name at its tag. A colon before a slash is that of a port.
func cutTag(ref string) (name, tag string, tagged bool) {
	if i := strings.LastIndex(ref, ":"); i > strings.LastIndex(ref, "/") {
		return ref[:i], ref[i+1:], true
	}
	return ref, "", false
}

type namedDescriptor struct {
	name string // annotation, or the digest
	desc v1.Descriptor
}

func pick(refs []namedDescriptor, name, tag, digest string) (v1.Descriptor, bool) {
	best, bestTag := -1, ""
	for i, r := range refs {
		if digest != "" {
			if r.desc.Digest.String() == digest {
				return r.desc, true
			}
			continue
		}
		n, t, tagged := cutTag(r.name)
		if !tagged {
			t = "latest"
		}
		switch {
		case n != name:
		case t == tag || tag == "" && t == "latest":
			return r.desc, true
		case tag == "" && (best < 0 || compareTags(t, bestTag) > 0):
			best, bestTag = i, t
		}
	}
	if best < 0 {
		return v1.Descriptor{}, false
	}
	return refs[best].desc, true
}

// compareTags orders tags so that 1.10 is above 1.9: runs of digits compare as numbers.
func compareTags(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			na, nb := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if len(na) != len(nb) {
				return len(na) - len(nb)
			}
			if c := strings.Compare(na, nb); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

func readIndex(dir string) ([]namedDescriptor, error) {
	path := filepath.Join(dir, "index.json")
	raw, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read image index: %w", err)
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %v; %s", ErrCorrupt, path, err, remedy)
	}
	if len(index.Manifests) > maxIndexEntries {
		return nil, fmt.Errorf("%w: %s names %d images, at most %d", ErrCorrupt, path, len(index.Manifests), maxIndexEntries)
	}
	out := make([]namedDescriptor, 0, len(index.Manifests))
	for _, d := range index.Manifests {
		name := d.Annotations[refAnnotation]
		if name == "" {
			name = d.Digest.String()
		}
		out = append(out, namedDescriptor{name, d})
	}
	return out, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxDocument {
		return nil, fmt.Errorf("%w: %s has more than %d bytes; %s", ErrCorrupt, path, maxDocument, remedy)
	}
	return raw, nil
}

// Bounds of JSON from a stranger: two bytes of it can become hundreds in memory.
const (
	maxObjects = 1 << 15
	maxValues  = 1 << 18
)

// parsable refuses JSON that would take much more memory than it has bytes.
func parsable(raw []byte) error {
	if bytes.Count(raw, []byte{'{'}) > maxObjects || bytes.Count(raw, []byte{','}) > maxValues {
		return fmt.Errorf("%w: a document has more than %d objects or %d values", ErrCorrupt, maxObjects, maxValues)
	}
	return nil
}

func blobPath(layout string, h v1.Hash) string {
	return filepath.Join(layout, "blobs", h.Algorithm, h.Hex)
}

// readBlob reads a small blob and checks its digest.
func readBlob(layout string, h v1.Hash) ([]byte, error) {
	if h == (v1.Hash{}) {
		return nil, fmt.Errorf("%w: %s: a document names a part without its digest; %s", ErrCorrupt, layout, remedy)
	}
	path := blobPath(layout, h)
	raw, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is missing; %s", ErrCorrupt, path, remedy)
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)
	if got := hex.EncodeToString(sum[:]); got != h.Hex {
		return nil, corrupt(path, h.Hex, got)
	}
	return raw, nil
}

func corrupt(path, want, got string) error {
	return fmt.Errorf("%w: %s: expected sha256:%s, got sha256:%s; %s", ErrCorrupt, path, want, got, remedy)
}

// load reads and checks the manifest and config of a descriptor; of an index it takes this machine's platform.
func (s *Store) load(layout string, d v1.Descriptor) (*entry, error) {
	if e, ok := s.parsed.Load(d.Digest.String()); ok {
		return e.(*entry), nil
	}
	// The manifest, and the config that it names.
	raw, err := readBlob(layout, d.Digest)
	if err != nil {
		return nil, err
	}
	if err := oneKind(raw, ""); err != nil {
		return nil, fmt.Errorf("%w: manifest %s: %w", ErrCorrupt, d.Digest, err)
	}
	digest := d.Digest
	if d.MediaType.IsIndex() {
		if digest, raw, err = choosePlatform(layout, raw); err != nil {
			return nil, err
		}
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("%w: manifest %s: %v; %s", ErrCorrupt, blobPath(layout, digest), err, remedy)
	}
	rawConfig, err := readBlob(layout, manifest.Config.Digest)
	if err != nil {
		return nil, err
	}
	e, err := newEntry(layout, d, digest, manifest, rawConfig)
	if err != nil {
		return nil, err
	}
	s.parsed.Store(d.Digest.String(), e)
	s.parsed.Store(digest.String(), e)
	return e, nil
}

// newEntry checks that an image's manifest and config fit together, and this machine.
func newEntry(layout string, top v1.Descriptor, digest v1.Hash, manifest *v1.Manifest, rawConfig []byte) (*entry, error) {
	if err := parsable(rawConfig); err != nil {
		return nil, fmt.Errorf("config %s: %w", manifest.Config.Digest, err)
	}
	var config v1.ConfigFile
	if err := json.Unmarshal(rawConfig, &config); err != nil {
		return nil, fmt.Errorf("%w: config %s: %v; %s", ErrCorrupt, blobPath(layout, manifest.Config.Digest), err, remedy)
	}
	if len(config.RootFS.DiffIDs) != len(manifest.Layers) || len(manifest.Layers) == 0 {
		return nil, fmt.Errorf("%w: manifest %s has %d layers, its config %d", ErrCorrupt, digest, len(manifest.Layers), len(config.RootFS.DiffIDs))
	}
	if n := len(manifest.Layers); n > maxLayers {
		return nil, fmt.Errorf("manifest %s has %d layers, at most %d: build it with fewer steps, or squash it", digest, n, maxLayers)
	}
	if config.Architecture != "" && config.Architecture != runtime.GOARCH {
		return nil, fmt.Errorf("built for %s, this machine is %s", config.Architecture, runtime.GOARCH)
	}
	for i, l := range manifest.Layers {
		if l.Digest == (v1.Hash{}) || config.RootFS.DiffIDs[i] == (v1.Hash{}) {
			return nil, fmt.Errorf("%w: manifest %s: layer %d is without its digests; %s", ErrCorrupt, digest, i+1, remedy)
		}
	}
	// What the image asks for, and what its containers get.
	contract, err := ParseContract(config.Config.Labels)
	if err != nil {
		return nil, err
	}
	e := &entry{layout: layout, top: top, layers: manifest.Layers, image: Image{
		Digest: digest.String(), Args: append(slices.Clone(config.Config.Entrypoint), config.Config.Cmd...), Env: config.Config.Env,
		Dir: config.Config.WorkingDir, User: config.Config.User, Contract: contract,
	}}
	for i, l := range manifest.Layers {
		e.image.Layers = append(e.image.Layers, config.RootFS.DiffIDs[i].String())
		e.image.Size += l.Size
	}
	return e, nil
}

func choosePlatform(layout string, raw []byte) (v1.Hash, []byte, error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return v1.Hash{}, nil, fmt.Errorf("%w: image index: %v", ErrCorrupt, err)
	}
	d, err := platformOf(index)
	if err != nil {
		return v1.Hash{}, nil, err
	}
	raw, err = readBlob(layout, d.Digest)
	return d.Digest, raw, err
}

// platformOf is what an index has for this machine.
func platformOf(index *v1.IndexManifest) (v1.Descriptor, error) {
	var have []string
	for _, d := range index.Manifests {
		if p := d.Platform; p != nil {
			if p.OS == "linux" && p.Architecture == runtime.GOARCH {
				return d, nil
			}
			have = append(have, p.OS+"/"+p.Architecture)
		}
	}
	return v1.Descriptor{}, fmt.Errorf("%w for linux/%s: there are %s", ErrNotFound, runtime.GOARCH, strings.Join(have, ", "))
}

// Destroy unmounts everything that Mount mounted. The unpacked layers stay: they are a cache in the instance's root.
func (s *Store) Destroy(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unmountAll(ctx)
}
