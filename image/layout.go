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
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
)

// Files of a layout beside those of the OCI.
const (
	useFile     = ".lock"       // shared by who adds blobs, exclusive for who removes some
	indexFile   = ".index.lock" // held by who changes the index
	partialsDir = ".partial"    // blobs that are on their way
)

// writable is a layout that this process may change, also while others do and while it is read.
type writable string

// hold a lock of the layout, which is made if it is not there.
func (w writable) hold(ctx context.Context, file string, how int) (*os.File, error) {
	// An instance's directory may not be there yet: what is in it is root's alone.
	if err := errors.Join(instance.MakeDir(filepath.Dir(string(w)), 0o700), instance.MakeDir(string(w), 0o755)); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(string(w), file), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the layout: %w", err)
	}
	if err := flock(ctx, f, how); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// put writes the blobs of an image and what is about it, then the index in one step: who reads meanwhile sees the old image or the new one.
func (w writable) put(ctx context.Context, name string, img v1.Image, about ...artifact) error {
	return w.add(ctx, name, func() (v1.Descriptor, error) {
		d, err := w.blobs(img)
		if err != nil {
			return v1.Descriptor{}, err
		}
		return d, w.attach(ctx, false, about...)
	})
}

// blobs writes those of an image.
func (w writable) blobs(img v1.Image) (v1.Descriptor, error) {
	p, err := w.open()
	if err != nil {
		return v1.Descriptor{}, err
	}
	if err := w.removeCorrupt(img); err != nil {
		return v1.Descriptor{}, err
	}
	if err := p.WriteImage(img); err != nil {
		return v1.Descriptor{}, err
	}
	d, err := partial.Descriptor(img)
	if err != nil {
		return v1.Descriptor{}, err
	}
	d.ArtifactType = ""
	return *d, nil
}

// open makes the layout if it is not there.
func (w writable) open() (layout.Path, error) {
	p, err := layout.FromPath(string(w))
	if errors.Is(err, os.ErrNotExist) {
		p, err = layout.Write(string(w), empty.Index)
	}
	return p, err
}

// add what blobs writes under a name, in place of what had it. What only that used is removed, unless somebody else adds something now.
func (w writable) add(ctx context.Context, name string, blobs func() (v1.Descriptor, error)) error {
	use, err := w.hold(ctx, useFile, unix.LOCK_SH)
	if err != nil {
		return err
	}
	defer use.Close()
	if _, err := w.first(ctx); err != nil {
		return err
	}
	d, err := blobs()
	if errors.Is(err, ErrUnsigned) || errors.Is(err, ErrCorrupt) { // what came of it is of no use another time, and nobody would remove it
		if unix.Flock(int(use.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = errors.Join(err, w.collect())
		}
	}
	if err != nil {
		return err
	}
	d.Annotations = map[string]string{refAnnotation: name}
	err = w.change(ctx, func(refs []namedDescriptor) ([]namedDescriptor, error) {
		refs = slices.DeleteFunc(refs, func(r namedDescriptor) bool { return r.name == name })
		if len(refs) >= maxIndexEntries {
			return nil, fmt.Errorf("%s has %d images, at most %d: delete some", w, len(refs), maxIndexEntries)
		}
		return append(refs, namedDescriptor{name, d}), nil
	})
	if err != nil {
		return err
	}
	if err := unix.Flock(int(use.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // who is last collects
	}
	return w.collect()
}

// first makes an empty layout where there is none.
func (w writable) first(ctx context.Context) (layout.Path, error) {
	lock, err := w.hold(ctx, indexFile, unix.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	return w.open()
}

// change the index.
func (w writable) change(ctx context.Context, f func([]namedDescriptor) ([]namedDescriptor, error)) error {
	lock, err := w.hold(ctx, indexFile, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	refs, err := readIndex(string(w))
	if err == nil {
		refs, err = f(refs)
	}
	if err != nil {
		return err
	}
	all := make([]v1.Descriptor, len(refs))
	for i, r := range refs {
		all[i] = r.desc
	}
	raw, err := indexOf(all, func(d v1.Descriptor) string { return d.Annotations[refAnnotation] })
	if err != nil {
		return err
	}
	return instance.WriteShared(filepath.Join(string(w), "index.json"), raw)
}

// indexOf descriptors as a document, in the order of their keys.
func indexOf(all []v1.Descriptor, key func(v1.Descriptor) string) ([]byte, error) {
	slices.SortFunc(all, func(a, b v1.Descriptor) int { return strings.Compare(key(a), key(b)) })
	raw, err := json.MarshalIndent(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: all}, "", "  ")
	return append(raw, '\n'), err
}

// remove names from the index, and what only those used: at once, or, while somebody adds something, with who is last. A slow registry keeps nobody from deleting.
func (w writable) remove(ctx context.Context, names ...string) error {
	use, err := w.hold(ctx, useFile, unix.LOCK_SH)
	if err != nil {
		return err
	}
	defer use.Close()
	err = w.change(ctx, func(refs []namedDescriptor) ([]namedDescriptor, error) {
		return slices.DeleteFunc(refs, func(r namedDescriptor) bool { return slices.Contains(names, r.name) }), nil
	})
	if err != nil || unix.Flock(int(use.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return err
	}
	return w.collect()
}

// halfPrefix begins the names of directories of imports that go on.
const halfPrefix = "import-"

// half makes a directory for an import, which is locked as long as it is open, and removes those of imports that were killed.
func (w writable) half(ctx context.Context) (*os.File, error) {
	use, err := w.hold(ctx, useFile, unix.LOCK_SH) // nobody takes the directory for one of those before it is locked: neither who collects
	if err != nil {
		return nil, err
	}
	defer use.Close()
	lock, err := w.hold(ctx, indexFile, unix.LOCK_EX) // nor another import
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	dir := filepath.Join(string(w), partialsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	halves, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, h := range halves {
		if !strings.HasPrefix(h.Name(), halfPrefix) || w.goesOn(h.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, h.Name())); err != nil {
			return nil, err
		}
	}
	own, err := os.MkdirTemp(dir, halfPrefix)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(own)
	if err != nil {
		return nil, err
	}
	if err := flock(ctx, f, unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(own))
	}
	return f, nil
}

// goesOn tells whether one of the layout's halves is of an import that goes on.
func (w writable) goesOn(half string) bool {
	if !strings.HasPrefix(half, halfPrefix) {
		return false
	}
	f, err := os.Open(filepath.Join(string(w), partialsDir, half))
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// mark what a descriptor of a manifest or an index needs. What is damaged is left as it is: it needs what can be read of it. Of an index not every
// platform's image is there.
func (w writable) mark(d v1.Descriptor, used map[string]bool) error {
	if used[d.Digest.Hex] {
		return nil
	}
	used[d.Digest.Hex] = true
	raw, err := readBounded(blobPath(string(w), d.Digest))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrCorrupt) {
		return nil
	}
	if err != nil {
		return err
	}
	var parts struct {
		Manifests, Layers []v1.Descriptor
		Config            v1.Descriptor
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return nil
	}
	used[parts.Config.Digest.Hex] = true
	for _, l := range parts.Layers {
		used[l.Digest.Hex] = true
	}
	for _, m := range parts.Manifests {
		if err := w.mark(m, used); err != nil {
			return err
		}
	}
	return nil
}

// removeCorrupt takes blobs of an image out of the layout that are not what their name says, as the writer takes a blob that exists for good.
func (w writable) removeCorrupt(img v1.Image) error {
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	for _, h := range append([]v1.Hash{digest, m.Config.Digest}, digests(m.Layers)...) {
		if _, err := w.sound(h); err != nil {
			return err
		}
	}
	return nil
}

func digests(all []v1.Descriptor) (out []v1.Hash) {
	for _, d := range all {
		out = append(out, d.Digest)
	}
	return out
}

// sound tells whether a blob is there. One that is not what its name says is removed.
func (w writable) sound(h v1.Hash) (bool, error) {
	path := blobPath(string(w), h)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return false, err
	}
	if hex.EncodeToString(sum.Sum(nil)) != h.Hex {
		return false, os.Remove(path)
	}
	return true, nil
}

// write a small blob.
func (w writable) write(h v1.Hash, content []byte) error {
	if have, err := w.sound(h); have || err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(blobPath(string(w), h)), 0o755); err != nil {
		return err
	}
	if sum := sha256.Sum256(content); !bytes.Equal(sum[:], unhex(h.Hex)) {
		return fmt.Errorf("%w: %s: got sha256:%x", ErrCorrupt, h, sum)
	}
	return instance.WriteShared(blobPath(string(w), h), content)
}

func unhex(s string) []byte {
	b, _ := hex.DecodeString(s) // what is no digest equals none
	return b
}
