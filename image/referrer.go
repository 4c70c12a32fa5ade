package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
	"weir.dev/weir/sbom"
)

// What refers to an image (OCI 1.1: a manifest with a subject) is kept in the layout's blobs. A file beside the index lists it, so that the index names
// images alone: many programs read an archive without a name only if its index has one manifest.
const (
	referrersFile     = "referrers.json" // an OCI index
	subjectAnnotation = "weir.subject"   // in it: the digest that a manifest is about
	outsideAnnotation = "weir.outside"   // "true": the subject is in another layout
)

// Artifact types of what is kept of an image: signatures as cosign makes them, and bills of materials.
const (
	signatureArtifact = "application/vnd.dev.cosign.artifact.sig.v1+json"
	emptyConfig       = "application/vnd.oci.empty.v1+json"
)

var sbomArtifacts = []string{sbom.MediaType, "application/spdx+json", "text/spdx+json"}

// Bounds of what refers to one image.
const (
	maxReferrers   = 8        // manifests that are kept
	maxSignatures  = 64       // of all of them
	maxListed      = 64       // manifests that a registry may list before the rest is left out
	maxSigned      = 64 << 10 // bytes of a signature's payload
	maxAnnotations = 32 << 10 // bytes, of a signature
	maxSBOM        = maxDocument
	maxAbout       = 32 << 20 // bytes that are fetched of what a registry has about a digest
)

// referrer is a manifest about an image, in a layout.
type referrer struct {
	layout  string
	subject v1.Hash
	desc    v1.Descriptor // with its artifact type
}

// artifactType of a manifest, as registries tell it.
func artifactType(m *v1.Manifest) string {
	if m.ArtifactType != "" {
		return m.ArtifactType
	}
	return string(m.Config.MediaType)
}

func isSBOM(kind string) bool { return slices.Contains(sbomArtifacts, kind) }

// readReferrers lists what a layout has about images.
func readReferrers(dir string) (out []referrer, err error) {
	raw, err := readBounded(filepath.Join(dir, referrersFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what refers to images: %w", err)
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil || len(index.Manifests) > maxIndexEntries {
		return nil, fmt.Errorf("%w: %s: want an OCI index with at most %d manifests: remove the file, then sign or pull anew: %v", ErrCorrupt, filepath.Join(dir, referrersFile), maxIndexEntries, err)
	}
	for _, d := range index.Manifests {
		subject, err := v1.NewHash(d.Annotations[subjectAnnotation])
		if err == nil && d.Digest.Algorithm == "sha256" {
			out = append(out, referrer{dir, subject, d})
		}
	}
	return out, nil
}

// referrers of an image, in all layouts: what is about one of some digests.
func (s *Store) referrers(of ...v1.Hash) (out []referrer, err error) {
	seen := map[v1.Hash]bool{}
	for _, dir := range s.dirs {
		all, err := readReferrers(dir)
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			if slices.Contains(of, r.subject) && !seen[r.desc.Digest] {
				seen[r.desc.Digest] = true
				out = append(out, r)
			}
		}
	}
	return out, nil
}

// artifact is a manifest about an image with its small blobs.
type artifact struct {
	subject v1.Descriptor
	raw     []byte
	parsed  *v1.Manifest
	blobs   map[v1.Hash][]byte
}

// descriptor of an artifact, as lists of them have it.
func (a artifact) descriptor() (v1.Descriptor, error) {
	h, size, err := v1.SHA256(bytes.NewReader(a.raw))
	return v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: h, Size: size, ArtifactType: artifactType(a.parsed),
		Annotations: map[string]string{subjectAnnotation: a.subject.Digest.String()}}, err
}

// newArtifact makes a manifest about an image.
func newArtifact(subject v1.Descriptor, kind string, config []byte, configType types.MediaType, layers []v1.Descriptor, blobs map[v1.Hash][]byte) (artifact, error) {
	hash, size, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return artifact{}, err
	}
	blobs[hash] = config
	subject.Annotations, subject.ArtifactType, subject.Platform = nil, "", nil
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: kind, Config: v1.Descriptor{MediaType: configType, Digest: hash, Size: size}, Layers: layers, Subject: &subject}
	raw, err := json.Marshal(m)
	if err == nil && len(raw) > maxDocument {
		err = fmt.Errorf("%w: it has %d bytes, at most %d", errArtifact, len(raw), maxDocument)
	}
	return artifact{subject, raw, &m, blobs}, err
}

// attach keeps artifacts of images in the layout, beside those that it has: signatures are added, a bill of materials replaces one of its type.
func (w writable) attach(ctx context.Context, outside bool, all ...artifact) error {
	if len(all) == 0 {
		return nil
	}
	here := &Store{dirs: []string{string(w)}}
	return w.changeReferrers(ctx, func(old []referrer) ([]referrer, error) {
		var had []artifact
		var subjects []v1.Hash
		for _, a := range all {
			if slices.Contains(subjects, a.subject.Digest) {
				continue
			}
			subjects = append(subjects, a.subject.Digest)
			if more, err := here.artifacts(a.subject.Digest); err == nil { // what is damaged is replaced
				had = append(had, more...)
			}
		}
		all, err := tidy(append(had, all...))
		if err != nil {
			return nil, err
		}
		old = slices.DeleteFunc(old, func(r referrer) bool { return slices.Contains(subjects, r.subject) })
		for _, a := range all {
			d, err := a.descriptor()
			if err != nil {
				return nil, err
			}
			a.blobs[d.Digest] = a.raw
			for h, content := range a.blobs {
				if err := w.write(h, content); err != nil {
					return nil, err
				}
			}
			if outside {
				d.Annotations[outsideAnnotation] = "true"
			}
			old = append(old, referrer{subject: a.subject.Digest, desc: d})
		}
		if len(old) > maxIndexEntries {
			return nil, fmt.Errorf("%s has %d manifests about images, at most %d: delete some images", w, len(old), maxIndexEntries)
		}
		return old, nil
	})
}

// changeReferrers rewrites the list, in one step.
func (w writable) changeReferrers(ctx context.Context, f func([]referrer) ([]referrer, error)) error {
	lock, err := w.hold(ctx, indexFile, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	all, err := readReferrers(string(w))
	if err == nil {
		all, err = f(all)
	}
	if err != nil {
		return err
	}
	descriptors := make([]v1.Descriptor, len(all))
	for i, r := range all {
		descriptors[i] = r.desc
	}
	raw, err := indexOf(descriptors, func(d v1.Descriptor) string { return d.Annotations[subjectAnnotation] + d.Digest.String() })
	if err != nil {
		return err
	}
	if len(raw) > maxDocument {
		return fmt.Errorf("%s has too much about images: delete some", w)
	}
	path := filepath.Join(string(w), referrersFile)
	if len(all) == 0 {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return instance.WriteShared(path, raw)
}

// artifacts about some digests, read whole from the layouts, in bounds: what is damaged or too large is an error.
func (s *Store) artifacts(of ...v1.Hash) (out []artifact, err error) {
	refs, err := s.referrers(of...)
	if err != nil {
		return nil, err
	}
	for _, r := range refs {
		raw, err := readBlob(r.layout, r.desc.Digest)
		if err != nil {
			return nil, err
		}
		a, err := readArtifact(v1.Descriptor{Digest: r.subject}, raw, func(d v1.Descriptor) ([]byte, error) { return readBlob(r.layout, d.Digest) })
		if err != nil {
			return nil, fmt.Errorf("manifest %s about %s: %w", r.desc.Digest, r.subject, err)
		}
		out = append(out, a)
	}
	return out, nil
}

// aboutStored is what there is about the manifest of an image that leaves, or comes with further manifests of its layout.
func (s *Store) aboutStored(img *stored, beside []v1.Descriptor) ([]artifact, error) {
	h, err := img.Digest()
	if err != nil {
		return nil, err
	}
	all, err := s.artifacts(h)
	if err != nil {
		return nil, err
	}
	subject := v1.Descriptor{MediaType: img.parsed.MediaType, Digest: h, Size: int64(len(img.manifest))}
	for _, d := range beside {
		raw, err := readBlob(img.entry.layout, d.Digest)
		if err != nil {
			return nil, err
		}
		a, err := readArtifact(subject, raw, func(d v1.Descriptor) ([]byte, error) { return readBlob(img.entry.layout, d.Digest) })
		if errors.Is(err, errArtifact) {
			continue // about another image, or of another kind
		}
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return tidy(all)
}

// isAbout tells a manifest that is about an image from one of an image, in the index of a layout that others wrote.
func isAbout(layout string, d v1.Descriptor) bool {
	if d.ArtifactType != "" {
		return true
	}
	if d.MediaType.IsIndex() {
		return false
	}
	raw, err := readBlob(layout, d.Digest)
	if err != nil {
		return false // which is told where the image is read
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	return err == nil && (m.Subject != nil || m.ArtifactType != "")
}

// errArtifact is about a manifest that is not kept.
var errArtifact = errors.New("it is not kept")

// readArtifact checks a manifest about an image before it reads its blobs.
func readArtifact(subject v1.Descriptor, raw []byte, blob func(v1.Descriptor) ([]byte, error)) (artifact, error) {
	refuse := func(format string, args ...any) (artifact, error) {
		return artifact{}, fmt.Errorf("%w: %s", errArtifact, fmt.Sprintf(format, args...))
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return refuse("%v", err)
	}
	if m.Subject != nil {
		if m.Subject.Digest != subject.Digest {
			return refuse("it is about %s", m.Subject.Digest)
		}
		subject = *m.Subject
	}
	most, size := 1, int64(maxSBOM)
	if !isSBOM(artifactType(m)) {
		most, size = maxSignatures, maxSigned
	}
	if n := len(m.Layers); n == 0 || n > most {
		return refuse("it has %d parts, want 1 to %d", n, most)
	}
	if !isSBOM(artifactType(m)) && !slices.ContainsFunc(m.Layers, func(d v1.Descriptor) bool { return d.MediaType == simpleSigning }) {
		return refuse("it is of the type %s", clipped(artifactType(m)))
	}
	a := artifact{subject, raw, m, map[v1.Hash][]byte{}}
	for i, d := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		if d.Digest.Algorithm != "sha256" || d.Size < 0 || d.Size > size {
			return refuse("part %d has %d bytes, at most %d, and needs a sha256 digest", i, d.Size, size)
		}
		n := 0
		for k, v := range d.Annotations {
			n += len(k) + len(v)
		}
		if n > maxAnnotations {
			return refuse("part %d has %d bytes of annotations, at most %d", i, n, maxAnnotations)
		}
		if a.blobs[d.Digest] == nil {
			if a.blobs[d.Digest], err = blob(d); err != nil {
				return a, err
			}
		}
	}
	return a, nil
}

// tidy what artifacts are: of each image one manifest with all signatures, and the last bill of materials of each type, in one order.
func tidy(all []artifact) (out []artifact, err error) {
	type key struct {
		subject v1.Hash
		kind    string
	}
	signed, boms := map[v1.Hash][]artifact{}, map[key]artifact{}
	for _, a := range all {
		if kind := artifactType(a.parsed); isSBOM(kind) {
			boms[key{a.subject.Digest, kind}] = a
		} else {
			signed[a.subject.Digest] = append(signed[a.subject.Digest], a)
		}
	}
	for _, a := range boms {
		out = append(out, a)
	}
	for _, of := range signed {
		one, err := mergeSignatures(of[0].subject, of)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b artifact) int {
		return cmp.Or(strings.Compare(a.subject.Digest.Hex, b.subject.Digest.Hex), strings.Compare(artifactType(a.parsed), artifactType(b.parsed)))
	})
	return out, nil
}

// subjects are the digests by which an image is signed: that of its manifest, and that of the index which a name stands for.
func (e *entry) subjects() []v1.Hash {
	out := []v1.Hash{e.top.Digest}
	if h, err := v1.NewHash(e.image.Digest); err == nil && h != e.top.Digest {
		out = append(out, h)
	}
	return out
}

// SBOM is an image's bill of materials and its media type, as it came with it.
func (s *Store) SBOM(ref string) (content []byte, mediaType string, err error) {
	e, err := s.resolve(ref)
	if err != nil {
		return nil, "", fmt.Errorf("image %s: %w", ref, err)
	}
	all, err := s.artifacts(e.subjects()...)
	if err != nil {
		return nil, "", fmt.Errorf("image %s: %w", ref, err)
	}
	for _, a := range all {
		if kind := artifactType(a.parsed); isSBOM(kind) {
			return a.blobs[a.parsed.Layers[0].Digest], kind, nil
		}
	}
	return nil, "", fmt.Errorf("image %s: %w: it came without a bill of materials; `weir image build` makes one", ref, ErrNotFound)
}

// About is what is known about an image beside what it is.
type About struct {
	Signatures []Signature
	SBOMs      []string // their media types
}

// About lists an image's signatures, unchecked, and its bills of materials.
func (s *Store) About(ref string) (About, error) {
	e, err := s.resolve(ref)
	if err != nil {
		return About{}, fmt.Errorf("image %s: %w", ref, err)
	}
	all, err := s.artifacts(e.subjects()...)
	if err != nil {
		return About{}, fmt.Errorf("image %s: %w", ref, err)
	}
	out := About{Signatures: signaturesOf(all)}
	for _, a := range all {
		if kind := artifactType(a.parsed); isSBOM(kind) {
			out.SBOMs = append(out.SBOMs, kind)
		}
	}
	return out, nil
}
