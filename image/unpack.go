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
	maxUnpacked   = 32 << 30 // bytes of an image
	maxFiles      = 1 << 20  // of an image
	block         = 4 << 10  // what a file takes on the disk is a multiple of this
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
	if err := flock(ctx, lock, unix.LOCK_EX); err != nil {
		return err
	}
	if err := removePartial(dir); err != nil {
		return err
	}
	if err := s.checkRoom(ctx, e); err != nil {
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

// openLayer opens a layer's file. A missing one is a damaged layout.
func openLayer(path string) (*os.File, error) {
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: layer %s is missing; %s", ErrCorrupt, path, remedy)
	case err != nil:
		return nil, fmt.Errorf("open layer: %w", err)
	}
	return f, nil
}

// unpack verifies both digests while it writes, and gives the directory its name only when all of it is on disk.
func (s *Store) unpack(ctx context.Context, layout string, d v1.Descriptor, diffID string) (err error) {
	path := blobPath(layout, d.Digest)
	f, err := openLayer(path)
	if err != nil {
		return err
	}
	defer f.Close()
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

// extent is what layers unpack to.
type extent struct{ bytes, files int64 }

// checkRoom refuses an image that unpacks to too much, or to more than there is room for, before anything of it is written: a few bytes can stand for a
// file that fills any disk, as a hole, or compressed.
func (s *Store) checkRoom(ctx context.Context, e *entry) error {
	var all, missing extent
	for i, d := range e.layers {
		before := all
		err := measure(ctx, blobPath(e.layout, d.Digest), d.MediaType, &all)
		if err != nil {
			return err
		}
		if _, err := os.Stat(s.layerDir(e.image.Layers[i])); err != nil {
			missing.bytes += all.bytes - before.bytes
			missing.files += all.files - before.files
		}
	}
	room, files, err := free(s.layersDir())
	if err != nil {
		return err
	}
	const mib = 1 << 20
	if missing.bytes > room {
		return fmt.Errorf("it needs %d MiB in %s, which has %d MiB free: free some space there or choose another --root: %w",
			(missing.bytes+mib-1)/mib, s.layersDir(), room/mib, unix.ENOSPC)
	}
	if files >= 0 && missing.files > files {
		return fmt.Errorf("it needs %d files in %s, which has room for %d: remove some there or choose another --root: %w",
			missing.files, s.layersDir(), files, unix.ENOSPC)
	}
	return nil
}

// measure adds what a layer unpacks to. What cannot be read is told when it is unpacked.
func measure(ctx context.Context, path string, mt types.MediaType, sum *extent) error {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	plain, err := decompress(mt, &hashReader{ctx: ctx, r: f, h: crc32.NewIEEE()}) // the sum is not looked at
	if err != nil {
		return nil
	}
	defer plain.Close()
	entries := tar.NewReader(plain)
	for {
		h, err := entries.Next()
		if err != nil {
			return ctx.Err()
		}
		sum.files++
		if h.Size > maxUnpacked-sum.bytes {
			return fmt.Errorf("layer %s: %q: the image unpacks to more than %d GiB: build a smaller one", path, h.Name, maxUnpacked>>30)
		}
		if sum.files > maxFiles {
			return fmt.Errorf("layer %s: the image unpacks to more than %d files: build a smaller one", path, maxFiles)
		}
		sum.bytes += (h.Size + block - 1) / block * block
	}
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
