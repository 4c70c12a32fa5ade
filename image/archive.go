package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// Bounds of an archive of images.
const (
	maxEntries = 10_000 // a blob each
	maxPath    = 4096   // bytes of a name in it
	maxNames   = 1000   // of its images: each is brought for itself
)

// Import takes the images of an archive into the instance's own layout: of an OCI layout (as `skopeo copy ... oci-archive:FILE`, `podman save --format
// oci-archive` and Export write it), a directory with one, or of `docker save`. as is the name of the only image; empty: they keep those that they have.
func (s *Store) Import(ctx context.Context, file, as string) ([]Image, error) {
	out, err := s.importAny(ctx, file, as)
	if err != nil {
		return out, fmt.Errorf("import %s: %w", file, err)
	}
	return out, nil
}

func (s *Store) importAny(ctx context.Context, file, as string) (out []Image, err error) {
	if err := checkName(as); err != nil {
		return nil, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrArchive, err)
	}
	var names []string
	switch {
	case info.IsDir():
		names, err = s.importLayout(ctx, file, as)
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%w: want a file, or a directory with an OCI layout", ErrArchive)
	default:
		names, err = s.importFile(ctx, file, as)
	}
	if err != nil { // what came of it is of no use another time; while it was read nobody could collect
		if cerr := s.collectIdle(context.WithoutCancel(ctx)); !errors.Is(cerr, fs.ErrPermission) { // who may not write there has said so
			err = errors.Join(err, cerr)
		}
		return nil, err
	}
	for _, n := range names {
		img, err := s.Verify(ctx, n)
		if err != nil {
			return out, err
		}
		out = append(out, img)
	}
	return out, nil
}

// collectIdle removes blobs that no image uses, unless somebody adds some now.
func (s *Store) collectIdle(ctx context.Context) error {
	own := writable(s.own)
	use, err := own.hold(ctx, useFile, unix.LOCK_SH)
	if err != nil {
		return err
	}
	defer use.Close()
	if unix.Flock(int(use.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil // who is last collects
	}
	return own.collect()
}

// checkName refuses a name that an imported image cannot have; "" is none of them.
func checkName(as string) error {
	if as == "" {
		return nil
	}
	if _, _, digest, err := splitRef(as); err != nil || digest != "" || len(as) > maxName || strings.ContainsFunc(as, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
		return fmt.Errorf("name %s: want NAME or NAME:TAG", clipped(as))
	}
	return nil
}

// maxName is how long a name of an image may be, in bytes.
const maxName = 512

// ErrHidden is about a name that an image of another layout has, which is found first.
var ErrHidden = errors.New("its name is taken")

// bring puts an imported image into the instance's own layout, if it can be used there by its name.
func (s *Store) bring(ctx context.Context, name string, img v1.Image, about ...artifact) error {
	if _, err := v1.NewHash(name); err != nil { // else it has no name in its archive
		if err := checkName(name); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	d, err := partial.Descriptor(img)
	if err != nil {
		return err
	}
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	e, err := newEntry(s.own, *d, d.Digest, m, config)
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	if err := s.hidden(name, d.Digest); err != nil {
		if errors.Is(err, ErrHidden) {
			err = fmt.Errorf("%w: import it under another one (--as NAME:TAG)", err)
		}
		return err
	}
	own := writable(s.own)
	return own.add(ctx, name, func() (v1.Descriptor, error) {
		if err := own.attach(ctx, false, about...); err != nil {
			return v1.Descriptor{}, err
		}
		if err := s.allowed(name, e); err != nil {
			return v1.Descriptor{}, fmt.Errorf("image %s: %w", name, err)
		}
		d, err := own.blobs(img)
		for i := 0; i < len(m.Layers) && err == nil; i++ { // an archive of docker save may say anything of its layers
			err = s.verifyBlob(ctx, blobPath(s.own, m.Layers[i].Digest), m.Layers[i])
		}
		return d, err
	})
}

// hidden is ErrHidden if an image of the instance's own layout would not be found by its name: another layout has another one.
func (s *Store) hidden(name string, image v1.Hash) error {
	base, tag, digest, err := splitRef(name)
	if err != nil {
		return err
	}
	for _, dir := range s.dirs {
		if dir == s.own {
			continue
		}
		refs, err := readIndex(dir)
		if err != nil {
			return err
		}
		if other, there := pick(refs, base, tag, digest); there && other.Digest != image { // also fw:1, for fw
			return fmt.Errorf("image %s: %w: %s has another image of this name, which is found first", name, ErrHidden, dir)
		}
	}
	return nil
}

// importFile tells the kinds of archives apart. Newer engines write both into one file.
func (s *Store) importFile(ctx context.Context, file, as string) ([]string, error) {
	own := writable(s.own)
	if _, err := own.first(ctx); err != nil {
		return nil, err
	}
	use, err := own.hold(ctx, useFile, unix.LOCK_SH) // nobody collects what is half there
	if err != nil {
		return nil, err
	}
	defer use.Close()
	dir, err := own.half(ctx)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	half := dir.Name()
	defer os.RemoveAll(half)
	c, err := extract(ctx, file, half)
	if err != nil {
		return nil, err
	}
	if _, docker := c[dockerManifest]; docker {
		return s.importDocker(ctx, file, as, c)
	}
	if _, oci := c["index.json"]; oci {
		return s.importLayout(ctx, half, as)
	}
	return nil, fmt.Errorf("%w: neither an OCI archive nor one of `docker save`: it has no index.json and no manifest.json", ErrArchive)
}

// contents of an archive: its entries by name, of several with one name the first.
type contents map[string]entryOf

// entryOf is what an archive says of an entry.
type entryOf struct {
	size int64  // bytes
	link string // the name where it leads; "": it is none
}

// dockerManifest is in archives of `docker save`.
const dockerManifest = "manifest.json"

// size of a file, or of the one where a link leads.
func (c contents) size(name string) int64 {
	for range len(c) { // links may lead in a circle
		e := c[path.Clean(name)]
		if e.link == "" {
			return e.size
		}
		name = e.link
	}
	return 0
}

// small refuses a file that is read into memory and has more than a document may have.
func (c contents) small(name string) error {
	if n := c.size(name); n > maxDocument {
		return fmt.Errorf("%w: its file %s has %d bytes, at most %d", ErrCorrupt, clipped(name), n, maxDocument)
	}
	return nil
}

// admit refuses an image of `docker save` that is more than an image may be. Each layer that it names is read, however often it is named.
func (c contents) admit(d tarball.Descriptor) error {
	if n := len(d.Layers); n > maxLayers {
		return fmt.Errorf("%w: its image %s has %d layers, at most %d", ErrArchive, clipped(d.Config), n, maxLayers)
	}
	var all int64
	for _, l := range d.Layers {
		if all += c.size(l); all > maxUnpacked {
			return fmt.Errorf("%w: its image %s has more than %d GiB", ErrArchive, clipped(d.Config), maxUnpacked>>30)
		}
	}
	return c.small(d.Config)
}

// until is a file that is read until ctx ends.
type until struct {
	*os.File
	ctx context.Context
}

func (u until) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.File.Read(p)
}

// extract the files of an OCI layout, and nothing else, to a directory. A compressed archive is refused: it cannot be read in any order. So is a sparse one: its files
// can have more bytes than any disk.
func extract(ctx context.Context, file, to string) (c contents, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrArchive, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(to, "blobs", "sha256"), 0o700); err != nil {
		return nil, err
	}
	c = contents{}
	all := tar.NewReader(f)
	var total int64
	for n := 0; ; n++ {
		h, err := all.Next()
		switch {
		case errors.Is(err, io.EOF):
			return c, nil
		case err != nil && n == 0:
			return nil, fmt.Errorf("%w: no tar archive (a compressed one has to be unpacked first): %w", ErrArchive, err)
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrArchive, err)
		case n >= maxEntries:
			return nil, fmt.Errorf("%w: more than %d files", ErrArchive, maxEntries)
		case len(h.Name) > maxPath || len(h.Linkname) > maxPath:
			return nil, fmt.Errorf("%w: a name of %d bytes in it: want at most %d", ErrCorrupt, max(len(h.Name), len(h.Linkname)), maxPath)
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		e, name := entryOf{size: h.Size}, path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeSymlink, tar.TypeLink:
			e = entryOf{link: path.Join(path.Dir(name), path.Clean(h.Linkname))}
		case tar.TypeDir, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
			e = entryOf{}
		}
		if e.size < 0 || e.size > info.Size()-total {
			return nil, fmt.Errorf("%w: its files have more bytes than it has itself, %d: it was cut on its way, or it is sparse (want tar without --sparse)", ErrCorrupt, info.Size())
		}
		if total += e.size; total > maxUnpacked {
			return nil, fmt.Errorf("%w: it has more than %d GiB", ErrArchive, maxUnpacked>>30)
		}
		if _, there := c[name]; !there {
			c[name] = e
		}
		hex, blob := strings.CutPrefix(name, "blobs/sha256/")
		if _, err := v1.NewHash("sha256:" + hex); h.Typeflag != tar.TypeReg || !(blob && err == nil || name == "index.json" || name == "oci-layout" || name == referrersFile) {
			continue
		}
		err = writeNew(filepath.Join(to, filepath.FromSlash(name)), all)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: it ends in the middle of a file: %w", ErrArchive, err)
		}
		if err != nil {
			return nil, err
		}
	}
}

func writeNew(file string, content io.Reader) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("%w: free some space there or choose another --root", err)
	}
	return errors.Join(err, f.Close())
}

// importLayout copies what a layout has for this machine.
func (s *Store) importLayout(ctx context.Context, dir, as string) (names []string, err error) {
	refs, err := readIndex(dir)
	if err != nil {
		return nil, err
	}
	var beside []v1.Descriptor
	refs = slices.DeleteFunc(refs, func(r namedDescriptor) bool {
		about := isAbout(dir, r.desc)
		if about {
			beside = append(beside, r.desc)
		}
		return about
	})
	if len(refs) == 0 {
		return nil, fmt.Errorf("%w: it has no image: want an OCI layout with an index.json that names some", ErrArchive)
	}
	if len(refs) > maxNames {
		return nil, fmt.Errorf("%w: it names %d images, at most %d", ErrArchive, len(refs), maxNames)
	}
	if as != "" && len(refs) > 1 {
		return nil, fmt.Errorf("%w: it has %d images: one name is not enough for them", ErrArchive, len(refs))
	}
	from := &Store{dirs: []string{dir}, own: dir}
	for _, r := range refs {
		name := r.name
		if as != "" {
			name = as
		} else if full := r.desc.Annotations["io.containerd.image.name"]; full != "" { // of newer engines, whose own annotation is the tag alone
			name = familiar(full)
		}
		img, err := from.stored(ctx, r.desc.Digest.String())
		if err != nil {
			return names, err
		}
		about, err := from.aboutStored(img, beside)
		if err != nil {
			return names, err
		}
		if err := s.bring(ctx, name, img, about...); err != nil {
			return names, err
		}
		names = append(names, name)
	}
	return names, nil
}

// familiar is a reference as people write it: without docker.io and library.
func familiar(ref string) string {
	r, err := name.ParseReference(ref)
	if err != nil || r.Context().RegistryStr() != name.DefaultRegistry {
		return ref
	}
	return strings.TrimPrefix(r.Context().RepositoryStr(), "library/") + ":" + r.Identifier()
}

// importDocker reads an archive of `docker save`.
func (s *Store) importDocker(ctx context.Context, file, as string, c contents) (names []string, err error) {
	if err := c.small(dockerManifest); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) {
		f, err := os.Open(file)
		return until{f, ctx}, err
	}
	m, err := tarball.LoadManifest(open)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrArchive, err)
	}
	for _, d := range m {
		names = append(names, d.RepoTags...)
		if err := c.admit(d); err != nil {
			return nil, err
		}
	}
	if len(names) > maxNames {
		return nil, fmt.Errorf("%w: its images have %d names, at most %d", ErrArchive, len(names), maxNames)
	}
	if as != "" {
		if len(m) != 1 {
			return nil, fmt.Errorf("%w: it has %d images: one name is not enough for them", ErrArchive, len(m))
		}
		img, err := tarball.Image(open, nil)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrArchive, err)
		}
		return []string{as}, s.bring(ctx, as, img)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: its image has no name: give it one (--as NAME:TAG)", ErrArchive)
	}
	for i, n := range names {
		tag, err := name.NewTag(n)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrArchive, err)
		}
		img, err := tarball.Image(open, &tag)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrArchive, err)
		}
		names[i] = familiar(n)
		if err := s.bring(ctx, names[i], img); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// ImportFromEngine takes an image of a Docker engine on this machine, at a socket, into the instance's own layout.
func (s *Store) ImportFromEngine(ctx context.Context, socket, image, as string) ([]Image, error) {
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	defer c.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/images/get?names="+url.QueryEscape(image), nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the Docker engine at %s: %w", socket, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var said struct{ Message string }
		_ = json.NewDecoder(io.LimitReader(resp.Body, maxDocument)).Decode(&said) // the status is told anyway
		return nil, fmt.Errorf("the Docker engine at %s: image %s: %s: %s", socket, image, resp.Status, said.Message)
	}
	if as == "" {
		as = familiar(image)
	}
	return s.ImportFrom(ctx, resp.Body, as)
}

// ImportFrom is Import of an archive that is read once.
func (s *Store) ImportFrom(ctx context.Context, r io.Reader, as string) ([]Image, error) {
	if _, err := writable(s.own).first(ctx); err != nil {
		return nil, err
	}
	dir, err := writable(s.own).half(ctx) // of its own: whoever collects leaves it alone, and whoever deletes an image does not wait for it
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	defer os.RemoveAll(dir.Name())
	f, err := os.OpenFile(filepath.Join(dir.Name(), "archive"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	n, err := io.Copy(f, io.LimitReader(r, maxUnpacked+1))
	if n > maxUnpacked {
		err = fmt.Errorf("it has more than %d GiB", maxUnpacked>>30)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	out, err := s.importAny(ctx, f.Name(), as)
	if err != nil {
		return out, fmt.Errorf("import: %w", err)
	}
	return out, nil
}

// Free is how many bytes the disk of the instance's own layout has free.
func (s *Store) Free() (int64, error) {
	at := s.own
	for {
		bytes, _, err := free(at)
		if errors.Is(err, unix.ENOENT) && at != filepath.Dir(at) { // nothing was stored yet
			at = filepath.Dir(at)
			continue
		}
		return bytes, err
	}
}

// free is for how many bytes and files the disk of a directory has room; files: -1 where the file system has no bound.
func free(dir string) (bytes, files int64, err error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	if files = int64(disk.Ffree); disk.Files == 0 {
		files = -1
	}
	return int64(disk.Bavail) * disk.Bsize, files, nil
}

// Export writes this machine's platform of an image as an OCI archive, a tar file that Import, skopeo and Podman read. The same image gives the same bytes.
func (s *Store) Export(ctx context.Context, ref string, w io.Writer) error {
	img, err := s.stored(ctx, ref)
	if err != nil {
		return err
	}
	as := ref
	if _, _, digest, _ := splitRef(ref); digest == "" { // a name without a tag means one with it: the archive says which
		as = cmp.Or(img.entry.top.Annotations[refAnnotation], ref)
	}
	d := v1.Descriptor{MediaType: img.parsed.MediaType, Size: int64(len(img.manifest)), Annotations: map[string]string{refAnnotation: as}}
	if d.Digest, err = img.Digest(); err != nil {
		return err
	}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{d}})
	if err != nil {
		return err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	add := func(name string, size int64, content io.Reader) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, ModTime: epoch, Format: tar.FormatPAX})
		if err == nil {
			_, err = io.Copy(t, content)
		}
		return err
	}
	small := func(name string, content []byte) error {
		return add(name, int64(len(content)), bytes.NewReader(content))
	}
	blob := func(h v1.Hash) string { return "blobs/sha256/" + h.Hex }
	for _, err := range []error{
		small("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)), small("index.json", index), small(blob(d.Digest), img.manifest), small(blob(img.parsed.Config.Digest), config),
	} {
		if err != nil {
			return fmt.Errorf("export %s: %w", ref, err)
		}
	}
	// What is about the image: blobs, and the list beside the index.
	seen := map[v1.Hash]bool{}
	about, err := s.aboutStored(img, nil)
	if err != nil {
		return fmt.Errorf("export %s: %w", ref, err)
	}
	list := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, a := range about {
		d, err := a.descriptor()
		if err != nil {
			return err
		}
		list.Manifests = append(list.Manifests, d)
		a.blobs[d.Digest] = a.raw
		for _, h := range slices.SortedFunc(maps.Keys(a.blobs), func(x, y v1.Hash) int { return strings.Compare(x.Hex, y.Hex) }) {
			if !seen[h] {
				seen[h] = true
				if err := small(blob(h), a.blobs[h]); err != nil {
					return fmt.Errorf("export %s: %w", ref, err)
				}
			}
		}
	}
	if len(about) > 0 {
		raw, err := json.Marshal(list)
		if err == nil {
			err = small(referrersFile, raw)
		}
		if err != nil {
			return fmt.Errorf("export %s: %w", ref, err)
		}
	}
	for _, l := range img.parsed.Layers {
		if seen[l.Digest] {
			continue
		}
		seen[l.Digest] = true
		f, err := openLayer(blobPath(img.entry.layout, l.Digest))
		if err == nil {
			err = errors.Join(add(blob(l.Digest), l.Size, f), f.Close())
		}
		if err != nil {
			return fmt.Errorf("export %s: %w", ref, err)
		}
	}
	if err := t.Close(); err != nil {
		return fmt.Errorf("export %s: %w", ref, err)
	}
	return nil
}

// ErrShipped is about an image of a layout that came with the program.
var ErrShipped = errors.New("it came with this program, or stands under another name")

// Own are the names of images in the instance's own layout: those that Delete takes.
func (s *Store) Own() ([]string, error) { return In(s.own) }

// Delete takes images out of the instance's own layout, by name. Functions that run keep what they have; one of an image that is gone cannot be made anew.
func (s *Store) Delete(ctx context.Context, names ...string) error {
	refs, err := readIndex(s.own)
	if err != nil {
		return err
	}
	var own []string
	for _, n := range names {
		found := ""
		for _, r := range refs {
			if r.name == n || r.desc.Digest.String() == n {
				found = r.name
			}
		}
		if found == "" {
			if _, err := s.resolve(n); err == nil {
				return fmt.Errorf("image %s: it is not in %s: %w", n, s.own, ErrShipped)
			}
			return fmt.Errorf("image %s: %w in %s", n, ErrNotFound, s.own)
		}
		own = append(own, found)
	}
	return writable(s.own).remove(ctx, own...)
}
