package image

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
)

// maxBuildCache bounds the layers in a cache of builds, in bytes; those that were not used for longest go first.
const maxBuildCache = 2 << 30

// buildCache keeps finished layers: blobs by their digest, and for each key of what they were made from the digest. One process at a time writes.
type buildCache struct {
	dir string
	max int64
}

// cachedLayer is a layer whose compressed blob is a file of the cache.
type cachedLayer struct {
	path           string
	digest, diffID v1.Hash
	size           int64
}

func (l *cachedLayer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l *cachedLayer) DiffID() (v1.Hash, error)             { return l.diffID, nil }
func (l *cachedLayer) Size() (int64, error)                 { return l.size, nil }
func (l *cachedLayer) MediaType() (types.MediaType, error)  { return types.OCILayer, nil }
func (l *cachedLayer) Compressed() (io.ReadCloser, error)   { return os.Open(l.path) }
func (l *cachedLayer) Uncompressed() (io.ReadCloser, error) { return l.open() }

func (l *cachedLayer) open() (io.ReadCloser, error) {
	f, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{z, f}, nil
}

// record is the file of a key.
type record struct {
	What   string  `json:"what"` // for people
	Digest v1.Hash `json:"digest"`
	DiffID v1.Hash `json:"diff_id"`
	Size   int64   `json:"size"`
}

func (c *buildCache) blobs() writable           { return writable(c.dir) }
func (c *buildCache) blob(h v1.Hash) string     { return blobPath(c.dir, h) }
func (c *buildCache) keyFile(key string) string { return filepath.Join(c.dir, "keys", key+".json") }

// layer is the one of a key. If it is not there, or anew is wanted, make writes its archive, and it is kept. make has a directory to work in.
func (c *buildCache) layer(ctx context.Context, key, what string, anew bool, make func(to *os.File, work string) error) (*cachedLayer, error) {
	for _, d := range []string{"keys", filepath.Join("blobs", "sha256")} {
		if err := os.MkdirAll(filepath.Join(c.dir, d), 0o755); err != nil {
			return nil, fmt.Errorf("cache of builds: %w", err)
		}
	}
	lock, err := c.blobs().hold(ctx, useFile, unix.LOCK_EX) // who builds the same waits, and finds it
	if err != nil {
		return nil, fmt.Errorf("cache of builds: %w", err)
	}
	defer lock.Close()
	if !anew {
		if l := c.find(key); l != nil {
			return l, nil
		}
	}
	if err := c.sweep(); err != nil { // what a killed build left
		return nil, err
	}
	l, err := c.add(key, what, make)
	if err != nil {
		return nil, errors.Join(err, c.sweep())
	}
	return l, errors.Join(c.sweep(), c.bound(key))
}

// find a layer whose blob is whole. It is marked as used now.
func (c *buildCache) find(key string) *cachedLayer {
	raw, err := readBounded(c.keyFile(key))
	if err != nil {
		return nil
	}
	var r record
	if json.Unmarshal(raw, &r) != nil || r.Digest.Algorithm != "sha256" || r.DiffID.Algorithm != "sha256" {
		return nil
	}
	if ok, err := c.blobs().sound(r.Digest); !ok || err != nil {
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(c.keyFile(key), now, now) // else it only goes sooner
	return &cachedLayer{c.blob(r.Digest), r.Digest, r.DiffID, r.Size}
}

// halves is where a build works.
func (c *buildCache) halves() string { return filepath.Join(c.dir, partialsDir) }

func (c *buildCache) sweep() error {
	if err := os.RemoveAll(c.halves()); err != nil {
		return fmt.Errorf("cache of builds: %w", err)
	}
	return nil
}

// add compresses the archive that make writes.
func (c *buildCache) add(key, what string, make func(to *os.File, work string) error) (*cachedLayer, error) {
	work := filepath.Join(c.halves(), "work")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return nil, fmt.Errorf("cache of builds: %w", err)
	}
	plain, err := os.CreateTemp(c.halves(), "archive-")
	if err != nil {
		return nil, fmt.Errorf("cache of builds: %w", err)
	}
	defer plain.Close()
	if err := make(plain, work); err != nil {
		return nil, err
	}
	if _, err := plain.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	packed, err := os.CreateTemp(c.halves(), "layer-")
	if err != nil {
		return nil, fmt.Errorf("cache of builds: %w", err)
	}
	defer packed.Close()
	in, out := sha256.New(), sha256.New()
	z := gzip.NewWriter(io.MultiWriter(packed, out))
	if _, err := io.Copy(io.MultiWriter(z, in), plain); err != nil {
		return nil, fmt.Errorf("cache of builds: %w", err)
	}
	size := int64(0)
	err = errors.Join(z.Close(), packed.Chmod(0o644), packed.Sync())
	if err == nil {
		size, err = packed.Seek(0, io.SeekCurrent)
	}
	if err != nil {
		return nil, fmt.Errorf("cache of builds: %w", err)
	}
	hash := func(sum []byte) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum)} }
	r := record{what, hash(out.Sum(nil)), hash(in.Sum(nil)), size}
	if err := os.Rename(packed.Name(), c.blob(r.Digest)); err != nil {
		return nil, fmt.Errorf("cache of builds: %w", err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if err := instance.WriteShared(c.keyFile(key), append(raw, '\n')); err != nil {
		return nil, fmt.Errorf("cache of builds: %w", err)
	}
	return &cachedLayer{c.blob(r.Digest), r.Digest, r.DiffID, r.Size}, nil
}

// bound removes what is too much, and blobs that no key names. The key that was just made stays, however large.
func (c *buildCache) bound(keep string) error {
	type kept struct {
		name string
		used time.Time
		record
	}
	files, err := os.ReadDir(filepath.Join(c.dir, "keys"))
	if err != nil {
		return fmt.Errorf("cache of builds: %w", err)
	}
	var all []kept
	for _, f := range files {
		k := kept{name: f.Name()}
		raw, err := readBounded(filepath.Join(c.dir, "keys", f.Name()))
		if info, ierr := f.Info(); err == nil && ierr == nil && json.Unmarshal(raw, &k.record) == nil {
			k.used = info.ModTime()
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b kept) int { return b.used.Compare(a.used) })
	used, total := map[string]bool{}, int64(0)
	for _, k := range all {
		if !used[k.Digest.Hex] {
			total += k.Size
		}
		if k.name != keep+".json" && (total > c.max || k.used.IsZero()) {
			if err := os.Remove(filepath.Join(c.dir, "keys", k.name)); err != nil {
				return fmt.Errorf("cache of builds: %w", err)
			}
			continue
		}
		used[k.Digest.Hex] = true
	}
	blobs := filepath.Join(c.dir, "blobs", "sha256")
	files, err = os.ReadDir(blobs)
	for _, f := range files {
		if !used[f.Name()] {
			err = errors.Join(err, os.Remove(filepath.Join(blobs, f.Name())))
		}
	}
	if err != nil {
		return fmt.Errorf("cache of builds: %w", err)
	}
	return nil
}
