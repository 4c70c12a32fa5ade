package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"weir.dev/weir/image/event"
	"weir.dev/weir/instance"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// recipe writes a recipe of one file and loads it.
func recipe(t *testing.T, name, tag, content string, labels ...string) Recipe {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte(content), 0o644))
	text := fmt.Sprintf("name: %s\ntag: %q\nentrypoint: [/bin/cat, /file]\nfiles: [{to: /file, from: file}]\n", name, tag)
	if len(labels) > 0 {
		text += "labels:\n"
		for i := 0; i < len(labels); i += 2 {
			text += fmt.Sprintf("  %s: %q\n", labels[i], labels[i+1])
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, RecipeFile), []byte(text), 0o644))
	r, err := LoadRecipe(dir)
	must(t, err)
	return r
}

func built(t *testing.T, layout string, r Recipe) string {
	t.Helper()
	digest, err := r.Build(t.Context(), layout)
	must(t, err)
	return digest
}

// newStore opens a store over one layout. What it mounts is checked to be gone at the end.
func newStore(t *testing.T, layouts ...string) *Store {
	t.Helper()
	inst := instance.Instance{Name: "img", Root: filepath.Join(t.TempDir(), "root"), Run: filepath.Join(t.TempDir(), "run")}
	s := Open(inst, layouts...)
	t.Cleanup(func() {
		must(t, s.Destroy(context.Background()))
		mounts, err := os.ReadFile("/proc/self/mounts")
		must(t, err)
		if strings.Contains(string(mounts), inst.Run) {
			t.Error("a mount is left")
		}
		if _, err := os.Stat(s.mountsDir()); err == nil {
			t.Error("the mount points are left")
		}
	})
	return s
}

func TestResolve(t *testing.T) {
	layout := filepath.Join(t.TempDir(), "layout")
	d9 := built(t, layout, recipe(t, "fw", "1.9", "nine"))
	d10 := built(t, layout, recipe(t, "fw", "1.10", "ten"))
	latest := built(t, layout, recipe(t, "other", "latest", "latest"))
	built(t, layout, recipe(t, "other", "9", "nine"))
	s := newStore(t, filepath.Join(t.TempDir(), "does-not-exist"), layout)
	for ref, want := range map[string]string{
		"fw": d10, "fw:1.9": d9, "fw:1.10": d10, "other": latest, d9: d9, "fw@" + d9: d9,
	} {
		img, err := s.Resolve(ref)
		if err != nil || img.Digest != want || img.Ref != ref {
			t.Errorf("%s: got %s as %q, %v; want %s", ref, img.Digest, img.Ref, err, want)
		}
	}
	for _, ref := range []string{"", "f", "fw:", "fw:2", "fw:1.9:1", "sha256:abc", "sha256:" + strings.Repeat("0", 64), "../fw"} {
		_, err := s.Resolve(ref)
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: got %v, want ErrNotFound", ref, err)
		}
	}
	_, err := s.Resolve("nope")
	if err == nil || !strings.Contains(err.Error(), "fw:1.10, fw:1.9, other:9, other:latest") {
		t.Errorf("the error does not say what there is: %v", err)
	}
	all, err := s.List()
	must(t, err)
	var refs []string
	for _, i := range all {
		refs = append(refs, i.Ref)
	}
	if diff := cmp.Diff([]string{"fw:1.10", "fw:1.9", "other:9", "other:latest"}, refs); diff != "" {
		t.Error(diff)
	}
	img, err := s.Resolve("fw")
	must(t, err)
	if diff := cmp.Diff([]string{"/bin/cat", "/file"}, img.Args); diff != "" || len(img.Layers) != 2 || img.Size == 0 {
		t.Errorf("%+v: %s", img, diff)
	}
}

func TestNoImagesAtAll(t *testing.T) {
	_, err := newStore(t).Resolve("fw")
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "make build") {
		t.Errorf("got %v, want ErrNotFound with a remedy", err)
	}
}

// What `make build` leaves out of the catalogue is known, and how it is made.
func TestImagesOfPackagesAreKnown(t *testing.T) {
	recipes, err := filepath.Glob("../catalogue/*/" + RecipeFile)
	must(t, err)
	var want []string
	for _, file := range recipes {
		r, err := LoadRecipe(filepath.Dir(file))
		must(t, err)
		if r.Debian() {
			want = append(want, r.Name)
		}
	}
	if diff := cmp.Diff(want, packaged); diff != "" {
		t.Error(diff)
	}
	layout := filepath.Join(t.TempDir(), "layout")
	built(t, layout, recipe(t, "fw", "1", "content"))
	for _, s := range []*Store{newStore(t), newStore(t, layout)} {
		if _, err := s.Resolve("ids"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "weir image build catalogue/ids") {
			t.Errorf("got %v, want ErrNotFound with a remedy", err)
		}
	}
}

func TestEarlierLayoutWins(t *testing.T) {
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	want := built(t, a, recipe(t, "fw", "1", "first"))
	built(t, b, recipe(t, "fw", "1", "second"))
	s := newStore(t, a, b)
	if img, err := s.Resolve("fw"); err != nil || img.Digest != want {
		t.Errorf("got %s, %v", img.Digest, err)
	}
	if all, err := s.List(); err != nil || len(all) != 1 {
		t.Errorf("%d images, %v", len(all), err)
	}
}

func TestMount(t *testing.T) {
	layout := filepath.Join(t.TempDir(), "layout")
	built(t, layout, recipe(t, "fw", "1", "content"))
	built(t, layout, recipe(t, "fw2", "1", "other content"))
	s := newStore(t, layout)
	root, err := s.Mount(t.Context(), "fw")
	must(t, err)
	content, err := os.ReadFile(filepath.Join(root, "file"))
	if err != nil || string(content) != "content" {
		t.Errorf("got %q, %v", content, err)
	}
	for _, p := range []string{"bin/busybox", "bin/sh", "proc", "dev", "sys", "run", "tmp", "etc/passwd", "etc/weir/config.json"} {
		if _, err := os.Lstat(filepath.Join(root, p)); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "new"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("write into the image: got %v, want a read-only file system", err)
	}
	again, err := s.Mount(t.Context(), "fw")
	if err != nil || again != root {
		t.Errorf("the second mount is at %s, %v", again, err)
	}
	other, err := s.Mount(t.Context(), "fw2")
	must(t, err)
	if other == root {
		t.Error("two images in one place")
	}
	layers, err := filepath.Glob(filepath.Join(s.layersDir(), "[0-9a-f]*"))
	must(t, err)
	if len(layers) != 3 {
		t.Errorf("%d layers on disk, want 3: the base is shared", len(layers))
	}

	// another process of the instance, after a crash: finds the mount
	s2 := Open(s.inst, layout)
	if again, err := s2.Mount(t.Context(), "fw"); err != nil || again != root {
		t.Errorf("after a restart: %s, %v", again, err)
	}
	// after a reboot: the run directory is gone, the layers are there
	must(t, s2.Destroy(t.Context()))
	before := inode(t, layers[0])
	if again, err := s2.Mount(t.Context(), "fw"); err != nil || again != root {
		t.Errorf("after a reboot: %s, %v", again, err)
	}
	if inode(t, layers[0]) != before {
		t.Error("the layers were unpacked again")
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return st.Ino
}

func TestMountFromManyCallers(t *testing.T) {
	layout := filepath.Join(t.TempDir(), "layout")
	built(t, layout, recipe(t, "fw", "1", "content"))
	s := newStore(t, layout)
	s2 := Open(s.inst, layout)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			store := []*Store{s, s2}[i%2]
			root, err := store.Mount(t.Context(), "fw")
			if err != nil {
				t.Error(err)
				return
			}
			if content, err := os.ReadFile(filepath.Join(root, "file")); err != nil || string(content) != "content" {
				t.Errorf("got %q, %v", content, err)
			}
		})
	}
	wg.Wait()
}

// damage is what can happen to a file on disk.
var damage = map[string]func([]byte) []byte{
	"truncated": func(b []byte) []byte { return b[:len(b)/2] },
	"empty":     func([]byte) []byte { return nil },
	"a flipped bit": func(b []byte) []byte {
		b = bytes.Clone(b)
		b[len(b)/2] ^= 1
		return b
	},
	"bytes at the end": func(b []byte) []byte { return append(bytes.Clone(b), "garbage"...) },
}

func TestCorruptBlobs(t *testing.T) {
	for what, f := range damage {
		for _, blob := range []string{"manifest", "config", "layer 0", "layer 1"} {
			t.Run(blob+" "+what, func(t *testing.T) {
				layout := filepath.Join(t.TempDir(), "layout")
				r := recipe(t, "fw", "1", "content")
				built(t, layout, r)
				path := blobOf(t, layout, blob)
				raw, err := os.ReadFile(path)
				must(t, err)
				must(t, os.WriteFile(path, f(raw), 0o644))
				s := newStore(t, layout)
				_, err = s.Mount(t.Context(), "fw")
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "make build") {
					t.Fatalf("got %v, want ErrCorrupt, the file and a remedy", err)
				}
				if !strings.Contains(err.Error(), "expected sha256:"+filepath.Base(path)) {
					t.Errorf("the error does not name the digest: %v", err)
				}
				if left, _ := filepath.Glob(filepath.Join(s.layersDir(), partialPrefix+"*")); len(left) > 0 {
					t.Errorf("half a layer is left: %v", left)
				}
				built(t, layout, r) // the remedy
				if _, err := s.Mount(t.Context(), "fw"); err != nil {
					t.Errorf("after building again: %v", err)
				}
			})
		}
	}
}

func blobOf(t *testing.T, layout, which string) string {
	t.Helper()
	refs, err := readIndex(layout)
	must(t, err)
	raw, err := readBlob(layout, refs[0].desc.Digest)
	must(t, err)
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	must(t, err)
	return blobPath(layout, map[string]v1.Hash{
		"manifest": refs[0].desc.Digest, "config": m.Config.Digest, "layer 0": m.Layers[0].Digest, "layer 1": m.Layers[1].Digest,
	}[which])
}

func TestMissingBlob(t *testing.T) {
	for _, blob := range []string{"manifest", "config", "layer 1"} {
		layout := filepath.Join(t.TempDir(), "layout")
		built(t, layout, recipe(t, "fw", "1", "content"))
		path := blobOf(t, layout, blob)
		must(t, os.Remove(path))
		if _, err := newStore(t, layout).Mount(t.Context(), "fw"); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path+" is missing") {
			t.Errorf("%s: got %v", blob, err)
		}
	}
}

func TestCorruptIndex(t *testing.T) {
	layout := filepath.Join(t.TempDir(), "layout")
	built(t, layout, recipe(t, "fw", "1", "content"))
	must(t, os.WriteFile(filepath.Join(layout, "index.json"), []byte("{"), 0o644))
	if _, err := newStore(t, layout).Resolve("fw"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v", err)
	}
}

func TestHalfUnpackedLayersAreCollected(t *testing.T) {
	layout := filepath.Join(t.TempDir(), "layout")
	built(t, layout, recipe(t, "fw", "1", "content"))
	s := newStore(t, layout)
	stale := filepath.Join(s.layersDir(), partialPrefix+"123")
	must(t, os.MkdirAll(filepath.Join(stale, "bin"), 0o755))
	_, err := s.Mount(t.Context(), "fw")
	must(t, err)
	if _, err := os.Stat(stale); err == nil {
		t.Error("the half-unpacked layer of a crash is still there")
	}
}

func TestDiskFull(t *testing.T) {
	layout := filepath.Join(t.TempDir(), "layout")
	built(t, layout, recipe(t, "fw", "1", "content"))
	s := newStore(t, layout)
	must(t, os.MkdirAll(s.inst.Root, 0o755))
	must(t, unix.Mount("tmpfs", s.inst.Root, "tmpfs", 0, "size=300k"))
	defer unix.Unmount(s.inst.Root, unix.MNT_DETACH)
	_, err := s.Mount(t.Context(), "fw")
	if !errors.Is(err, unix.ENOSPC) || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("got %v, want disk full with a remedy", err)
	}
	must(t, unix.Mount("tmpfs", s.inst.Root, "tmpfs", unix.MS_REMOUNT, "size=30m"))
	if _, err := s.Mount(t.Context(), "fw"); err != nil {
		t.Errorf("with space again: %v", err)
	}
}

func TestCancelledMount(t *testing.T) {
	layout := filepath.Join(t.TempDir(), "layout")
	built(t, layout, recipe(t, "fw", "1", "content"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newStore(t, layout).Mount(ctx, "fw"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A layer that tries to write outside its directory does not.
func TestHostileLayer(t *testing.T) {
	target := filepath.Join(t.TempDir(), "escaped")
	b := newLayer("test")
	b.symlink("/out", filepath.Dir(target))
	b.file("/out/escaped", 0o644, []byte("x"))
	layer, err := b.layer()
	must(t, err)
	r := recipe(t, "bad", "1", "x")
	img, err := r.assemble(layer)
	must(t, err)
	layout := filepath.Join(t.TempDir(), "layout")
	must(t, writable(layout).put(t.Context(), "bad:1", img))
	_, err = newStore(t, layout).Mount(t.Context(), "bad")
	if _, serr := os.Lstat(target); serr == nil {
		t.Errorf("it wrote outside (%v)", err)
	}
}

// sparse is a layer of a few bytes with a file that says it has so many, all of them in a hole (GNU tar's sparse format 1.0).
func sparse(t *testing.T, size int64) builtLayer {
	t.Helper()
	l, err := pack(append(hole("hole", size), make([]byte, 1024)...), "test")
	must(t, err)
	return l
}

// hole is an entry of a tar archive whose file has so many bytes, all of them in a hole.
func hole(name string, size int64) []byte {
	records := ""
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=" + name, fmt.Sprintf("GNU.sparse.realsize=%d", size)} {
		n := len(r) + 4
		if n > 99 {
			n++
		}
		records += fmt.Sprintf("%02d %s\n", n, r)
	}
	return append(tarEntry("x", "hole", "", records), tarEntry("0", "hole", "", "0\n"+strings.Repeat("\x00", 510))...) // no pieces of data
}

// tarEntry is an entry of a tar archive.
func tarEntry(kind, name, link, content string) []byte {
	e := make([]byte, 512)
	for at, field := range map[int]string{
		0: name, 100: "0000644", 108: "0000000", 116: "0000000", 124: fmt.Sprintf("%011o", len(content)), 136: "00000000000", 148: "        ", 156: kind, 157: link, 257: "ustar\x0000",
	} { // name, mode, owner, group, size, time, sum, type, link, magic
		copy(e[at:], field)
	}
	sum := 0
	for _, b := range e {
		sum += int(b)
	}
	copy(e[148:], fmt.Sprintf("%06o\x00 ", sum))
	e = append(e, content...)
	return append(e, make([]byte, 511-(len(e)+511)%512)...)
}

// What a layer unpacks to is known before anything is written: a few bytes can stand for more than any disk has.
func TestLayerThatUnpacksToTooMuch(t *testing.T) {
	img, err := recipe(t, "bomb", "1", "x").assemble(sparse(t, 1<<50))
	must(t, err)
	layout := filepath.Join(t.TempDir(), "layout")
	must(t, writable(layout).put(t.Context(), "bomb:1", img))
	s := newStore(t, layout)
	must(t, os.MkdirAll(s.inst.Root, 0o755))
	must(t, unix.Mount("tmpfs", s.inst.Root, "tmpfs", 0, "size=30m")) // or the test would fill the disk, if it failed
	defer unix.Unmount(s.inst.Root, unix.MNT_DETACH)
	if _, err := s.Mount(t.Context(), "bomb"); err == nil || errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "unpacks to more than") {
		t.Errorf("got %v", err)
	}
	img, err = recipe(t, "hole", "1", "x").assemble(sparse(t, 1<<20))
	must(t, err)
	must(t, writable(layout).put(t.Context(), "hole:1", img))
	dir, err := s.Mount(t.Context(), "hole")
	must(t, err)
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if fi, err := os.Stat(filepath.Join(dir, "hole")); err != nil || fi.Size() != 1<<20 {
		t.Errorf("%v, %v", fi, err)
	}
}

func TestOtherArchitecture(t *testing.T) {
	if runtime.GOARCH == "s390x" {
		return
	}
	r := recipe(t, "big", "1", "x")
	b := newLayer("test")
	b.file("/file", 0o644, nil)
	layer, err := b.layer()
	must(t, err)
	img, err := r.assemble(layer)
	must(t, err)
	cf, err := img.ConfigFile()
	must(t, err)
	cf.Architecture = "s390x"
	img, err = withConfig(img, cf)
	must(t, err)
	layout := filepath.Join(t.TempDir(), "layout")
	must(t, writable(layout).put(t.Context(), "big:1", img))
	if _, err := newStore(t, layout).Resolve("big"); err == nil || !strings.Contains(err.Error(), "built for s390x, this machine is "+runtime.GOARCH) {
		t.Errorf("got %v", err)
	}
}

func TestImagesThatDoNotFitAreRefused(t *testing.T) {
	many := make([]builtLayer, maxLayers+1)
	for i := range many {
		many[i] = sparse(t, 1)
	}
	for name, x := range map[string]struct {
		layers []builtLayer
		want   string
	}{
		"layers":     {many, "has 128 layers, at most 127"},
		"all-layers": {[]builtLayer{sparse(t, 12<<30), sparse(t, 13<<30), sparse(t, 14<<30)}, "the image unpacks to more than 32 GiB"},
		"disk":       {[]builtLayer{sparse(t, 20<<20), sparse(t, 21<<20)}, "it needs 41 MiB in "},
		"fits":       {[]builtLayer{sparse(t, 10<<20), sparse(t, 11<<20)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			img, err := recipe(t, name, "1", "x").assemble(x.layers...)
			must(t, err)
			layout := filepath.Join(t.TempDir(), "layout")
			must(t, writable(layout).put(t.Context(), name+":1", img))
			s := newStore(t, layout)
			must(t, os.MkdirAll(s.inst.Root, 0o755))
			must(t, unix.Mount("tmpfs", s.inst.Root, "tmpfs", 0, "size=30m"))
			t.Cleanup(func() { must(t, unix.Unmount(s.inst.Root, unix.MNT_DETACH)) })
			_, err = s.Mount(t.Context(), name)
			if x.want == "" {
				must(t, err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("got %v, want %q", err, x.want)
			}
			if left, _ := filepath.Glob(filepath.Join(s.layersDir(), "[^.]*")); len(left) > 0 {
				t.Errorf("unpacked all the same: %v", left)
			}
		})
	}
}

// An image of a layout is known by its digest, under whichever name another layout has it.
func TestALayoutHoldsAnImage(t *testing.T) {
	shipped, other := t.TempDir(), t.TempDir()
	digest := built(t, shipped, recipe(t, "wire", "1", "hello"))
	foreign := built(t, other, recipe(t, "wire", "1", "something else"))
	same := built(t, other, recipe(t, "wire", "1", "hello"))
	if same != digest {
		t.Fatalf("the same image has the digests %s and %s", digest, same)
	}
	img, err := newStore(t, other).Resolve("wire:1")
	must(t, err)
	for name, x := range map[string]struct {
		digest  string
		layouts []string
		want    bool
	}{
		"it has it":             {digest, []string{shipped}, true},
		"one of two has it":     {img.Digest, []string{filepath.Join(shipped, "not there"), shipped}, true},
		"another, by that name": {foreign, []string{shipped}, false},
		"no layout":             {digest, nil, false},
		"no digest":             {"", []string{shipped}, false},
	} {
		if got := Holds(x.digest, x.layouts...); got != x.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// An image that is built has the program by which scripts raise events, unless its recipe leaves it out or brings its own.
func TestBuiltImagesHaveWeirEvent(t *testing.T) {
	layout := filepath.Join(t.TempDir(), "layout")
	without := false
	for name, tt := range map[string]struct {
		change func(*Recipe)
		want   []byte
	}{
		"with":    {func(*Recipe) {}, event.Program()},
		"without": {func(r *Recipe) { r.Event = &without }, nil},
		"own":     {func(r *Recipe) { r.Files = append(r.Files, RecipeFileSpec{To: event.Path, From: "file"}) }, []byte("mine")},
	} {
		r := recipe(t, name, "1", "mine")
		tt.change(&r)
		built(t, layout, r)
		e, err := newStore(t, layout).resolve(name)
		must(t, err)
		f, err := openLayer(blobPath(layout, e.layers[len(e.layers)-1].Digest))
		must(t, err)
		defer f.Close()
		plain, err := decompress(e.layers[len(e.layers)-1].MediaType, f)
		must(t, err)
		var got []byte
		for all := tar.NewReader(plain); ; {
			h, err := all.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			if "/"+h.Name == event.Path {
				got, err = io.ReadAll(all)
				must(t, err)
			}
		}
		if !bytes.Equal(got, tt.want) {
			t.Errorf("%s: %d bytes: want %d", name, len(got), len(tt.want))
		}
	}
}
