// Package fake is a store of images without files, for tests of what runs them.
package fake

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"weir.dev/weir/image"
)

// Store holds images by their references. Their roots are Root.
type Store struct {
	Images map[string]image.Image
	Root   string
}

// Resolve finds an image by its reference.
func (s Store) Resolve(ref string) (image.Image, error) {
	img, ok := s.Images[ref]
	if !ok {
		return img, fmt.Errorf("%w: %s", image.ErrNotFound, ref)
	}
	img.Ref = ref
	if img.Digest == "" {
		img.Digest = "sha256:" + ref
	}
	return img, nil
}

// Mount returns Root.
func (s Store) Mount(_ context.Context, ref string) (string, error) {
	_, err := s.Resolve(ref)
	return s.Root, err
}

// MountFor does nothing.
func (Store) MountFor(context.Context, string, string, *os.File) error { return nil }

// CheckShift refuses: there is no user namespace to mount for.
func (Store) CheckShift(*os.File) error { return image.ErrNoShift }

// Offers is empty: there is no manager elsewhere.
func (Store) Offers() []string { return nil }

// List lists all, in order of their references.
func (s Store) List() ([]image.Image, error) {
	var out []image.Image
	for _, ref := range slices.Sorted(maps.Keys(s.Images)) {
		img, _ := s.Resolve(ref) // it is there
		out = append(out, img)
	}
	return out, nil
}
