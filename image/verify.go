package image

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// seen is a blob file as it was when its digest was right.
type seen struct {
	size     int64
	modified time.Time
}

// Verify is Resolve for an image that is to be used: it also reads the layers that are not unpacked yet, so that a damaged one is
// told before anything depends on it. A file that was right is not read again until it changes.
func (s *Store) Verify(ctx context.Context, ref string) (Image, error) {
	e, err := s.usable(ref)
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", ref, err)
	}
	for i, d := range e.layers {
		if _, err := os.Stat(s.layerDir(e.image.Layers[i])); err == nil {
			continue // was verified when it was unpacked
		}
		if err := s.verifyBlob(ctx, blobPath(e.layout, d.Digest), d); err != nil {
			return Image{}, fmt.Errorf("image %s: %w", ref, err)
		}
	}
	img := e.image
	img.Ref = ref
	return img, nil
}

func (s *Store) verifyBlob(ctx context.Context, path string, d v1.Descriptor) error {
	f, err := openLayer(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("layer %s: %w", path, err)
	}
	if info.Size() != d.Size {
		return fmt.Errorf("%w: layer %s has %d bytes, want %d; %s", ErrCorrupt, path, info.Size(), d.Size, remedy)
	}
	now := seen{info.Size(), info.ModTime()}
	if before, ok := s.verified.Load(path); ok && before == now {
		return nil
	}
	h := &hashReader{ctx: ctx, r: f, h: sha256.New()}
	if _, err := io.Copy(io.Discard, h); err != nil {
		return fmt.Errorf("read layer %s: %w", path, err)
	}
	if got := h.sum(); got != d.Digest.Hex {
		return corrupt(path, d.Digest.Hex, got)
	}
	s.verified.Store(path, now)
	return nil
}
