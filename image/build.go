package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"weir.dev/weir/image/event"
)

// epoch is the time of everything in a built image: the same sources give the same digests.
var epoch = time.Unix(0, 0).UTC()

// Build makes the recipe's image and puts it into the layout, with its bill of materials, in place of an image of the same name and tag. It returns the
// image's digest. The compilers that the recipe needs run with a fixed environment. Nothing is fetched but Debian packages that the user's cache of builds lacks.
func (r Recipe) Build(ctx context.Context, layoutDir string) (string, error) {
	return r.build(ctx, layoutDir, func(v1.Hash) error { return nil })
}

// Build makes a recipe's image and puts it into the instance's own layout, unless another image of its name is found first.
func (s *Store) Build(ctx context.Context, r Recipe) (string, error) {
	return r.build(ctx, s.own, func(digest v1.Hash) error {
		if err := s.hidden(r.Name+":"+r.Tag, digest); err != nil {
			return fmt.Errorf("%w: %w: give it another name or tag in %s", ErrRecipe, err, filepath.Join(r.dir, RecipeFile))
		}
		return nil
	})
}

// build puts the image into a layout if its digest may stand there.
func (r Recipe) build(ctx context.Context, layoutDir string, may func(digest v1.Hash) error) (string, error) {
	work, err := os.MkdirTemp("", "weir-build-")
	if err != nil {
		return "", fmt.Errorf("build image %s: %w", r.Name, err)
	}
	defer os.RemoveAll(work)
	base, err := r.baseLayers(ctx)
	if err != nil {
		return "", fmt.Errorf("build image %s: base: %w", r.Name, err)
	}
	layers := slices.Clone(base)
	var files []builtFile
	if len(r.Files) > 0 || r.hasEvent() {
		var own builtLayer
		if own, files, err = r.ownLayer(ctx, work); err != nil {
			return "", fmt.Errorf("build image %s: %w", r.Name, err)
		}
		layers = append(layers, own)
	}
	img, err := r.assemble(layers...)
	if err != nil {
		return "", fmt.Errorf("build image %s: %w", r.Name, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return "", fmt.Errorf("build image %s: %w", r.Name, err)
	}
	if err := may(digest); err != nil {
		return "", fmt.Errorf("build image %s: %w", r.Name, err)
	}
	bill, err := r.bill(img, base, files)
	if err != nil {
		return "", fmt.Errorf("build image %s: bill of materials: %w", r.Name, err)
	}
	if err := writable(layoutDir).put(ctx, r.Name+":"+r.Tag, img, bill); err != nil {
		return "", fmt.Errorf("build image %s: write layout %s: %w", r.Name, layoutDir, err)
	}
	return digest.String(), nil
}

func (r Recipe) baseLayers(ctx context.Context) ([]builtLayer, error) {
	if r.Debian() {
		return r.debianLayers(ctx)
	}
	b, err := baseLayer(ctx)
	return []builtLayer{b}, err
}

func (r Recipe) assemble(layers ...builtLayer) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", Created: v1.Time{Time: epoch},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: r.Entrypoint, Labels: r.labels(), WorkingDir: "/",
			Env: append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, r.Env...),
		},
	})
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		if img, err = mutate.Append(img, mutate.Addendum{Layer: l.Layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: l.by}}); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// hasEvent tells whether the image gets the program weir-event: not if the recipe leaves it out or has its own.
func (r Recipe) hasEvent() bool {
	own := func(f RecipeFileSpec) bool { return f.To == event.Path }
	return (r.Event == nil || *r.Event) && event.Program() != nil && !slices.ContainsFunc(r.Files, own)
}

// ownLayer compiles and collects the recipe's files.
func (r Recipe) ownLayer(ctx context.Context, work string) (l builtLayer, files []builtFile, err error) {
	b := newLayer("weir image build " + r.Name)
	if r.hasEvent() {
		b.file(event.Path, 0o755, event.Program())
		files = append(files, builtFile{event.Path, true, event.Program()})
	}
	for i, f := range r.Files {
		var src string
		var err error
		mode := int64(0o755)
		out := filepath.Join(work, fmt.Sprint(i))
		switch {
		case f.Go != "":
			src, err = out, buildGo(ctx, filepath.Join(r.dir, f.Go), out)
		case f.C != "":
			src, err = out, buildC(ctx, filepath.Join(r.dir, f.C), out)
		default:
			src, mode = f.From, 0o644
			if !filepath.IsAbs(src) {
				src = filepath.Join(r.dir, src)
			}
		}
		if err != nil {
			return builtLayer{}, nil, fmt.Errorf("%s: %w", f.To, err)
		}
		if f.Mode != 0 {
			mode = int64(f.Mode)
		}
		content, err := os.ReadFile(src)
		if err != nil {
			return builtLayer{}, nil, fmt.Errorf("%w: %s: %w", ErrRecipe, f.To, err)
		}
		b.file(f.To, mode, content)
		files = append(files, builtFile{f.To, f.From == "", content})
	}
	l, err = b.layer()
	return l, files, err
}

func buildGo(ctx context.Context, dir, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", out, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	return runCompiler(cmd, "install Go from https://go.dev/dl")
}

// findC is the C compiler that programs are built with.
func findC() (string, error) {
	for _, name := range []string{"clang", "gcc", "cc"} {
		if found, err := exec.LookPath(name); err == nil {
			return found, nil
		}
	}
	return "", errors.New("no C compiler found: apt-get install clang")
}

func buildC(ctx context.Context, src, out string) error {
	cc, err := findC()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, cc, "-Os", "-Wall", "-Wextra", "-Werror", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector",
		"-fno-asynchronous-unwind-tables", "-fno-pie", "-Wl,--build-id=none", "-Wl,-z,noseparate-code", "-s", "-o", out, filepath.Base(src))
	cmd.Dir = filepath.Dir(src)
	return runCompiler(cmd, "apt-get install clang")
}

func runCompiler(cmd *exec.Cmd, remedy string) error {
	text, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%s is missing: %s", cmd.Args[0], remedy)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w\n%s", ErrRecipe, strings.Join(cmd.Args, " "), err, bytes.TrimSpace(text))
	}
	return nil
}

const busyboxProgram = "/bin/busybox"

// baseLayer holds Debian's static busybox with its applets, the users, and the mount points.
func baseLayer(ctx context.Context) (builtLayer, error) {
	content, err := os.ReadFile(busyboxProgram)
	if err != nil {
		return builtLayer{}, fmt.Errorf("%w: apt-get install busybox-static", err)
	}
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return builtLayer{}, fmt.Errorf("%s: %w", busyboxProgram, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return builtLayer{}, fmt.Errorf("%s is not static: apt-get install busybox-static", busyboxProgram)
		}
	}
	list, err := exec.CommandContext(ctx, busyboxProgram, "--list").Output()
	if err != nil {
		return builtLayer{}, fmt.Errorf("%s --list: %w", busyboxProgram, err)
	}
	b := newLayer("weir image build base")
	for _, d := range []string{"/proc", "/dev", "/sys", "/run", "/tmp", "/etc/weir", "/root"} {
		b.dir(d)
	}
	b.file(busyboxProgram, 0o755, content)
	applets := strings.Fields(string(list))
	slices.Sort(applets)
	for _, a := range applets {
		if a != "busybox" && !strings.Contains(a, "/") {
			b.symlink("/bin/"+a, "busybox")
		}
	}
	b.file("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"))
	b.file("/etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"))
	b.file("/etc/weir/config.json", 0o644, nil)
	return b.layer()
}

// layerBuilder writes a tar archive whose bytes depend on nothing but names, modes and contents.
type layerBuilder struct {
	by   string
	buf  bytes.Buffer
	tw   *tar.Writer
	dirs map[string]bool
	err  error
}

func newLayer(by string) *layerBuilder {
	b := &layerBuilder{by: by, dirs: map[string]bool{"/": true}}
	b.tw = tar.NewWriter(&b.buf)
	return b
}

func (b *layerBuilder) add(h tar.Header, content []byte) {
	if b.err != nil {
		return
	}
	h.Name = strings.TrimPrefix(h.Name, "/")
	h.ModTime, h.Size, h.Format = epoch, int64(len(content)), tar.FormatPAX
	if b.err = b.tw.WriteHeader(&h); b.err == nil {
		_, b.err = b.tw.Write(content)
	}
}

func (b *layerBuilder) dir(name string) {
	if b.dirs[name] {
		return
	}
	b.dir(path.Dir(name))
	b.dirs[name] = true
	mode := int64(0o755)
	if name == "/tmp" {
		mode = 0o1777
	}
	b.add(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil)
}

func (b *layerBuilder) file(name string, mode int64, content []byte) {
	b.dir(path.Dir(name))
	b.add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, content)
}

func (b *layerBuilder) symlink(name, target string) {
	b.dir(path.Dir(name))
	b.add(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
}

func (b *layerBuilder) layer() (builtLayer, error) {
	if b.err == nil {
		b.err = b.tw.Close()
	}
	if b.err != nil {
		return builtLayer{}, fmt.Errorf("write layer: %w", b.err)
	}
	return pack(b.buf.Bytes(), b.by)
}

// builtLayer is a layer, and what made it.
type builtLayer struct {
	v1.Layer
	by string
}

// pack compresses an archive.
func pack(archive []byte, by string) (builtLayer, error) {
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }
	l, err := tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressedCaching)
	return builtLayer{l, by}, err
}
