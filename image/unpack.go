package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"github.com/moby/go-archive"
	"golang.org/x/sys/unix"
)

const (
	partialPrefix = ".partial-"
	maxUnpacked   = 32 << 30 // bytes of one layer
	maxFiles      = 1 << 20  // of one layer
)

func (s *Store) layersDir() string { return filepath.Join(s.inst.Root, "images", "layers") }

func (s *Store) layerDir(diffID string) string {
	return filepath.Join(s.layersDir(), strings.TrimPrefix(diffID, "sha256:"))
}

// unpackAll makes sure that every layer of the image is on disk. Layers are shared by all images of the instance. The directory
// is locked, as another process of this instance may be at it.
func (s *Store) unpackAll(ctx context.Context, e *entry) error {
	missing := false
	for _, id := range e.image.Layers {
		if _, err := os.Stat(s.layerDir(id)); err != nil {
			missing = true
		}
	}
	if !missing {
		return nil
	}
	dir := s.layersDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make layer directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("lock layers: %w", err)
	}
	defer lock.Close()
	if err := flock(ctx, lock); err != nil {
		return err
	}
	if err := removePartial(dir); err != nil {
		return err
	}
	for i, id := range e.image.Layers {
		if _, err := os.Stat(s.layerDir(id)); err == nil {
			continue
		}
		if err := s.unpack(ctx, e.layout, e.layers[i], id); err != nil {
			return err
		}
	}
	return nil
}

// removePartial collects what an interrupted unpack left. The caller holds the lock, so nobody is at it.
func removePartial(dir string) error {
	stale, err := filepath.Glob(filepath.Join(dir, partialPrefix+"*"))
	if err != nil {
		return err
	}
	for _, p := range stale {
		if err := os.RemoveAll(p); err != nil {
			return fmt.Errorf("remove half-unpacked layer: %w", err)
		}
	}
	return nil
}

// unpack verifies both digests while it writes, and gives the directory its name only when all of it is on disk.
func (s *Store) unpack(ctx context.Context, layout string, d v1.Descriptor, diffID string) (err error) {
	path := blobPath(layout, d.Digest)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: layer %s is missing; %s", ErrCorrupt, path, remedy)
	}
	if err != nil {
		return fmt.Errorf("open layer: %w", err)
	}
	defer f.Close()
	if err := measure(ctx, f, d.MediaType); err != nil {
		return fmt.Errorf("unpack layer %s: %w", path, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read layer %s: %w", path, err)
	}
	partial, err := os.MkdirTemp(s.layersDir(), partialPrefix)
	if err != nil {
		return fmt.Errorf("unpack layer: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(partial))
		}
	}()
	if err := os.Chmod(partial, 0o755); err != nil {
		return fmt.Errorf("unpack layer: %w", err)
	}

	compressed := &hashReader{ctx: ctx, r: f, h: sha256.New()}
	plain, err := decompress(d.MediaType, compressed)
	if err != nil {
		return s.corruptLayer(path, d, compressed, err)
	}
	defer plain.Close()
	content := &hashReader{ctx: ctx, r: io.LimitReader(plain, maxUnpacked), h: sha256.New()}
	uerr := archive.UntarUncompressed(content, partial, &archive.TarOptions{WhiteoutFormat: archive.OverlayWhiteoutFormat})
	if errors.Is(uerr, unix.ENOSPC) || errors.Is(uerr, unix.EDQUOT) {
		return fmt.Errorf("unpack layer %s into %s: %w; free some space there or choose another --root", d.Digest, s.layersDir(), uerr)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("unpack layer %s: %w", d.Digest, err)
	}
	if uerr != nil {
		return s.corruptLayer(path, d, compressed, uerr)
	}
	if _, err := io.Copy(io.Discard, content); err != nil { // the archive's padding counts too
		return s.corruptLayer(path, d, compressed, err)
	}
	if got := content.sum(); "sha256:"+got != diffID {
		return corrupt(path+" (unpacked)", strings.TrimPrefix(diffID, "sha256:"), got)
	}
	if err := s.corruptLayer(path, d, compressed, nil); err != nil {
		return err
	}
	return commit(partial, s.layerDir(diffID))
}

// measure refuses a layer that unpacks to too much, before anything of it is written: a few bytes can stand for a file that fills any disk, as a hole, or
// compressed. What cannot be read is told when it is unpacked.
func measure(ctx context.Context, f io.Reader, mt types.MediaType) error {
	plain, err := decompress(mt, &hashReader{ctx: ctx, r: f, h: crc32.NewIEEE()}) // the sum is not looked at
	if err != nil {
		return nil
	}
	defer plain.Close()
	entries := tar.NewReader(plain)
	left := int64(maxUnpacked)
	for range maxFiles {
		h, err := entries.Next()
		if err != nil {
			return ctx.Err()
		}
		if left -= h.Size; h.Size > maxUnpacked || left < 0 {
			return fmt.Errorf("%q: it unpacks to more than %d GiB", h.Name, maxUnpacked>>30)
		}
	}
	return fmt.Errorf("it unpacks to more than %d files", maxFiles)
}

// corruptLayer reads the rest of the compressed file to tell whether it is what the manifest says. When it is, the cause stands.
func (s *Store) corruptLayer(path string, d v1.Descriptor, r *hashReader, cause error) error {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return fmt.Errorf("read layer %s: %w", path, err)
	}
	if got := r.sum(); got != d.Digest.Hex {
		return corrupt(path, d.Digest.Hex, got)
	}
	if cause != nil {
		return fmt.Errorf("unpack layer %s: %w", path, cause)
	}
	return nil
}

// commit makes the files durable, then the name: after a power cut a layer is whole or absent.
func commit(partial, final string) error {
	d, err := os.Open(partial)
	if err != nil {
		return fmt.Errorf("commit layer: %w", err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync layer %s: %w", final, err)
	}
	if err := os.Rename(partial, final); err != nil {
		return fmt.Errorf("commit layer: %w", err)
	}
	return nil
}

func decompress(mt types.MediaType, r io.Reader) (io.ReadCloser, error) {
	switch mt {
	case types.OCILayer, types.DockerLayer:
		return gzip.NewReader(r)
	case types.OCILayerZStd:
		z, err := zstd.NewReader(r)
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case types.OCIUncompressedLayer, types.DockerUncompressedLayer:
		return io.NopCloser(r), nil
	}
	return nil, fmt.Errorf("layer media type %s: want a tar layer, plain, gzip or zstd", mt)
}

// hashReader hashes what passes and stops when ctx ends.
type hashReader struct {
	ctx context.Context
	r   io.Reader
	h   hash.Hash
}

func (h *hashReader) Read(p []byte) (int, error) {
	if err := h.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := h.r.Read(p)
	h.h.Write(p[:n])
	return n, err
}

func (h *hashReader) sum() string { return hex.EncodeToString(h.h.Sum(nil)) }
