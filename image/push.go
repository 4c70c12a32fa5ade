package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Push sends this machine's platform of an image to a registry, under target, then its signatures and bill of materials. What the registry has already is not
// sent again; signatures that it has stay.
func (s *Store) Push(ctx context.Context, ref, target string, o RemoteOptions) (digest string, err error) {
	r, err := ParseRemote(target, o)
	if err != nil {
		return "", err
	}
	img, err := s.stored(ctx, ref)
	if err != nil {
		return "", err
	}
	o.named = img.named
	options := o.remote(ctx)
	if o.Progress != nil {
		updates, over := make(chan v1.Update, 16), make(chan struct{})
		go func() {
			defer close(over)
			for u := range updates {
				if u.Error == nil {
					o.Progress(u.Complete, u.Total)
				}
			}
		}()
		defer func() { <-over }()
		options = append(options, remote.WithProgress(updates)) // it closes the channel
	}
	if err := remote.Write(r, img, options...); err != nil {
		return "", fmt.Errorf("push %s to %s: %w", ref, target, explain(ctx, err, r))
	}
	if err := s.pushAbout(ctx, img, r, o); err != nil {
		return "", fmt.Errorf("push what is about %s to %s: %w", ref, target, explain(ctx, err, r))
	}
	return img.entry.image.Digest, nil
}

// pushAbout sends what is about an image: signatures under the tag where cosign looks for them, and all as referrers.
func (s *Store) pushAbout(ctx context.Context, img *stored, to name.Reference, o RemoteOptions) error {
	all, err := s.aboutStored(img, nil)
	if err != nil || len(all) == 0 {
		return err
	}
	theirs := &puller{into: writable(s.own), o: o}
	if _, err := theirs.into.first(ctx); err != nil {
		return err
	}
	if err := theirs.connect(ctx, to.Context()); err != nil {
		return err
	}
	there, err := theirs.about(ctx, all[0].subject)
	if err != nil {
		return err
	}
	if all, err = tidy(append(there, all...)); err != nil {
		return err
	}
	for _, a := range all {
		d, err := a.descriptor()
		if err != nil {
			return err
		}
		var at name.Reference = to.Context().Digest(d.Digest.String())
		if d.ArtifactType == signatureArtifact {
			at = to.Context().Tag("sha256-" + a.subject.Digest.Hex + ".sig")
		}
		i, err := partial.CompressedToImage(a)
		if err != nil {
			return err
		}
		if err := remote.Write(at, i, o.remote(ctx)...); err != nil {
			return err
		}
	}
	return nil
}

// RawManifest and the methods below make an artifact an image, by partial.CompressedToImage.
func (a artifact) RawManifest() ([]byte, error)        { return a.raw, nil }
func (a artifact) MediaType() (types.MediaType, error) { return a.parsed.MediaType, nil }
func (a artifact) RawConfigFile() ([]byte, error)      { return a.blobs[a.parsed.Config.Digest], nil }

// LayerByDigest is a blob.
func (a artifact) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	for _, d := range a.parsed.Layers {
		if d.Digest == h {
			return smallLayer{d, a.blobs[h]}, nil
		}
	}
	return nil, fmt.Errorf("%w: no blob %s", ErrNotFound, h)
}

// smallLayer is a layer in memory.
type smallLayer struct {
	d       v1.Descriptor
	content []byte
}

func (l smallLayer) Digest() (v1.Hash, error)            { return l.d.Digest, nil }
func (l smallLayer) Size() (int64, error)                { return l.d.Size, nil }
func (l smallLayer) MediaType() (types.MediaType, error) { return l.d.MediaType, nil }
func (l smallLayer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.content)), nil
}

// stored is an image of a layout, whose blobs are read as they are.
type stored struct {
	entry    *entry
	manifest []byte
	parsed   *v1.Manifest
}

// stored gives an image whose blobs were verified.
func (s *Store) stored(ctx context.Context, ref string) (*stored, error) {
	e, err := s.resolve(ref)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	for _, d := range e.layers {
		if err := s.verifyBlob(ctx, blobPath(e.layout, d.Digest), d); err != nil {
			return nil, fmt.Errorf("image %s: %w", ref, err)
		}
	}
	h, err := v1.NewHash(e.image.Digest)
	if err != nil {
		return nil, err
	}
	raw, err := readBlob(e.layout, h)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("image %s: %w: %v", ref, ErrCorrupt, err)
	}
	return &stored{e, raw, m}, nil
}

// named tells which parts of the image have a size. Requests to a registry do not say what they send.
func (i *stored) named(size int64) string {
	var of []string
	for _, d := range append([]v1.Descriptor{i.parsed.Config}, i.parsed.Layers...) {
		if d.Size == size {
			of = append(of, d.Digest.String())
		}
	}
	if size == int64(len(i.manifest)) {
		of = append(of, "the manifest "+i.entry.image.Digest)
	}
	return strings.Join(of, " or ")
}

// RawManifest and the methods below make it a v1.Image, by partial.CompressedToImage.
func (i *stored) RawManifest() ([]byte, error)        { return i.manifest, nil }
func (i *stored) MediaType() (types.MediaType, error) { return i.parsed.MediaType, nil }
func (i *stored) RawConfigFile() ([]byte, error) {
	return readBlob(i.entry.layout, i.parsed.Config.Digest)
}
func (i *stored) Size() (int64, error)                { return int64(len(i.manifest)), nil }
func (i *stored) Digest() (v1.Hash, error)            { return partial.Digest(i) }
func (i *stored) ConfigName() (v1.Hash, error)        { return i.parsed.Config.Digest, nil }
func (i *stored) ConfigFile() (*v1.ConfigFile, error) { return partial.ConfigFile(i) }
func (i *stored) Manifest() (*v1.Manifest, error)     { return i.parsed, nil }
func (i *stored) Layers() (out []v1.Layer, err error) {
	for _, d := range i.parsed.Layers {
		l, err := i.LayerByDigest(d.Digest)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// LayerByDigest is the layer with a digest, or the config.
func (i *stored) LayerByDigest(h v1.Hash) (v1.Layer, error) {
	if h == i.parsed.Config.Digest {
		return partial.ConfigLayer(i)
	}
	for _, d := range i.parsed.Layers {
		if d.Digest == h {
			return partial.CompressedToLayer(blobLayer{i.entry.layout, d})
		}
	}
	return nil, fmt.Errorf("%w: no layer %s", ErrNotFound, h)
}

// LayerByDiffID is the layer that unpacks to a digest.
func (i *stored) LayerByDiffID(h v1.Hash) (v1.Layer, error) {
	d, err := partial.DiffIDToBlob(i, h)
	if err != nil {
		return nil, err
	}
	return i.LayerByDigest(d)
}

// blobLayer is a layer as it lies in a layout.
type blobLayer struct {
	layout string
	d      v1.Descriptor
}

func (l blobLayer) Digest() (v1.Hash, error)            { return l.d.Digest, nil }
func (l blobLayer) Size() (int64, error)                { return l.d.Size, nil }
func (l blobLayer) MediaType() (types.MediaType, error) { return l.d.MediaType, nil }
func (l blobLayer) Compressed() (io.ReadCloser, error) {
	return openLayer(blobPath(l.layout, l.d.Digest))
}
