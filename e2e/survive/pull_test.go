package survive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

const (
	largeLayer = 100 << 20 // bytes
	largeName  = "large:1"
	killAt     = 40 << 20 // bytes that are there by then, at least
	stopAt     = 70 << 20 // bytes that the registry sends until the pull is killed
	trickle    = time.Millisecond
)

// large is an image that works, a wire, with a layer of 100 MB that does not compress, in a layout.
func large(t *testing.T, r *rig.Rig) (dir string, digest, layer v1.Hash) {
	t.Helper()
	from, err := layout.FromPath(r.Images)
	must(t, err)
	index, err := from.ImageIndex()
	must(t, err)
	all, err := index.IndexManifest()
	must(t, err)
	const name = "org.opencontainers.image.ref.name"
	at := slices.IndexFunc(all.Manifests, func(d v1.Descriptor) bool { return d.Annotations[name] == "wire:1" })
	if at < 0 {
		t.Fatalf("no image wire:1 in %s: `make build` makes it", r.Images)
	}
	img, err := from.Image(all.Manifests[at].Digest)
	must(t, err)

	var archive bytes.Buffer
	archive.Grow(largeLayer + 1<<20)
	w := tar.NewWriter(&archive)
	must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "padding", Mode: 0o644, Size: largeLayer}))
	_, err = io.CopyN(w, rand.NewChaCha8([32]byte{17}), largeLayer)
	must(t, errors.Join(err, w.Close()))
	padding := static.NewLayer(archive.Bytes(), types.OCIUncompressedLayer)
	img, err = mutate.Append(img, mutate.Addendum{Layer: padding})
	must(t, err)
	dir = filepath.Join(t.TempDir(), "layout")
	to, err := layout.Write(dir, empty.Index)
	must(t, err)
	must(t, to.AppendImage(img, layout.WithAnnotations(map[string]string{name: largeName})))
	digest, err = img.Digest()
	must(t, err)
	layer, err = padding.Digest()
	must(t, err)
	return dir, digest, layer
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listen at a port of the loopback where the daemon runs.
func listen(t *testing.T, r *rig.Rig) net.Listener {
	t.Helper()
	var l net.Listener
	must(t, netns.Do(r.Netns, func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err }))
	return l
}

// front is what stands before a registry, counts the bytes of its blobs, and sends a large one slowly.
type front struct {
	at   string        // its address
	slow string        // digest of the blob that is sent slowly, and not beyond stopAt
	open chan struct{} // closed: nothing is slow any more

	mu   sync.Mutex
	gets []*get
}

// get is a request for a blob, and how many bytes of it were sent.
type get struct {
	digest, from string // from: the header Range
	sent         int64
}

// before a registry at an address, in the daemon's namespace.
func before(t *testing.T, r *rig.Rig, l net.Listener, registry, slow string) *front {
	t.Helper()
	f := &front{at: l.Addr().String(), slow: slow, open: make(chan struct{})}
	target := &url.URL{Scheme: "http", Host: registry}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(q *httputil.ProxyRequest) { q.SetURL(target) },
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // clients that are killed
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
			err = netns.Do(r.Netns, func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
			return c, err
		}},
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, ErrorLog: proxy.ErrorLog, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if _, digest, blob := strings.Cut(q.URL.Path, "/blobs/"); blob && q.Method == http.MethodGet {
			g := &get{digest: digest, from: q.Header.Get("Range")}
			f.mu.Lock()
			f.gets = append(f.gets, g)
			f.mu.Unlock()
			w = &counting{w, f, g, q.Context()}
		}
		proxy.ServeHTTP(w, q)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return f
}

// counting is an answer with a blob.
type counting struct {
	http.ResponseWriter
	f   *front
	g   *get
	ctx context.Context
}

func (c *counting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *counting) Write(b []byte) (int, error) {
	if c.g.digest == c.f.slow {
		wait := time.After(trickle)
		if c.sent() > stopAt {
			wait = nil
		}
		select {
		case <-wait:
		case <-c.f.open:
		case <-c.ctx.Done():
			return 0, c.ctx.Err()
		}
	}
	n, err := c.ResponseWriter.Write(b)
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.g.sent += int64(n)
	return n, err
}

func (c *counting) sent() int64 {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	return c.g.sent
}

// of a blob: the requests so far.
func (f *front) of(digest string) (all []get) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.gets {
		if g.digest == digest {
			all = append(all, *g)
		}
	}
	return all
}

// debian runs the distribution's registry with the image in it.
func debian(ctx context.Context, t *testing.T, r *rig.Rig, layout string) (at, repository string) {
	t.Helper()
	if _, err := exec.LookPath("docker-registry"); err != nil {
		t.Fatalf("%v: make peers unpacks it", err)
	}
	l := listen(t, r)
	at = l.Addr().String()
	must(t, l.Close())
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", dir, at), 0o600))
	_, err := r.Start("", "docker-registry", "serve", config)
	must(t, err)
	rig.Eventually(ctx, t, "the registry takes the image", func() (bool, string) {
		out, err := r.Weir(ctx, "image", "push", largeName, at+"/nf/large:1", "--images", layout)
		return err == nil, fmt.Sprint(out, err)
	})
	return at, "nf/large:1"
}

// ours is `weir image serve`.
func ours(ctx context.Context, t *testing.T, r *rig.Rig, layout string) (at, repository string) {
	t.Helper()
	cmd := r.WeirCommand(context.Background(), "image", "serve", "--listen", "127.0.0.1:0", "--images", layout)
	said, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(said).ReadString('\n')
	at, serves := strings.CutPrefix(strings.TrimSpace(line), "serving at ")
	if err != nil || !serves {
		t.Fatalf("weir image serve says %q, %v", line, err)
	}
	return at, largeName
}

// A pull of 100 MB is killed half-way, in the daemon and as a command. No half image is to be seen; the next one goes on where it was, to the byte, and what it
// has brought works.
func TestAKilledPullGoesOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		registry func(context.Context, *testing.T, *rig.Rig, string) (at, repository string)
		daemon   bool // pulls; else a command
	}{
		"the daemon's, from Debian's registry": {debian, true},
		"a command's, from our registry":       {ours, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.Bare(t, rig.Options{})
			from, digest, layer := large(t, r)
			at, repository := c.registry(ctx, t, r, from)
			f := before(t, r, listen(t, r), at, layer.String())
			ref := f.at + "/" + repository
			r.Args = []string{"--registry", f.at}
			must(t, r.Up(ctx))
			r.MustApply(ctx, t, r.Endpoints())
			checked, _ := r.Weir(ctx, "check") // a machine may lack things: what it says is to stay as it is
			document := r.Endpoints() + fmt.Sprintf("functions:\n  w: {image: %q}\nchains: {c: w}\npolicies:\n  p: {from: alice, to: bob, match: [icmp], chain: c}\n", ref)

			// Begin it, and kill who pulls while bytes come.
			pull := r.WeirCommand(ctx, "image", "pull", ref)
			if c.daemon {
				r.MustApply(ctx, t, document, "--wait=false")
			} else {
				must(t, pull.Start())
			}
			half := filepath.Join(r.Root, "images", "layout", ".partial", layer.Hex)
			rig.Eventually(ctx, t, "some of the layer is there", func() (bool, string) {
				n := size(half)
				return n >= killAt, fmt.Sprintf("%d bytes", n)
			})
			if c.daemon {
				must(t, r.Kill(syscall.SIGKILL))
			} else {
				must(t, pull.Process.Kill())
				_ = pull.Wait() // killed
			}
			have := size(half)
			if have < killAt || have > largeLayer {
				t.Fatalf("%d bytes of the layer are there", have)
			}

			// Nothing half stored.
			if out, err := r.Weir(ctx, "image", "list"); err != nil || strings.Contains(out, repository) {
				t.Errorf("after the kill: %v\n%s", err, out)
			}
			var exit *rig.ExitError
			if _, err := r.Weir(ctx, "image", "inspect", ref); !errors.As(err, &exit) || !strings.Contains(exit.Stderr, "not found") {
				t.Errorf("half an image is inspected: %v", err)
			}
			if now, err := r.Weir(ctx, "check"); now != checked {
				t.Errorf("weir check: %v\n%s\nbefore it said\n%s", err, now, checked)
			}
			if out, err := r.Weir(ctx, "image", "gc", "--dry-run"); err != nil || !strings.Contains(out, "an interrupted pull left it") {
				t.Errorf("weir image gc --dry-run: %v\n%s", err, out)
			}

			// It goes on: the daemon by itself, when it is there again.
			close(f.open)
			if c.daemon {
				must(t, r.Up(ctx))
			} else {
				_, err := r.Weir(ctx, "image", "pull", ref)
				must(t, err)
				r.MustApply(ctx, t, document)
			}
			settled(ctx, t, r)
			gets := f.of(layer.String())
			if want := fmt.Sprintf("bytes=%d-", have); len(gets) != 2 || gets[0].from != "" || gets[1].from != want || gets[1].sent != total(t, from, layer)-have {
				t.Errorf("%d bytes of %d were there when it was killed; the registry was asked, and sent: %+v; want %q at last", have, total(t, from, layer), gets, want)
			}
			f.mu.Lock()
			once := map[string]int{}
			for _, g := range f.gets {
				once[g.digest]++
			}
			f.mu.Unlock()
			for d, n := range once {
				if d != layer.String() && n > 1 {
					t.Errorf("%s was fetched %d times", d, n)
				}
			}
			t.Logf("killed with %d of %d MiB, then %d MiB came", have>>20, total(t, from, layer)>>20, gets[len(gets)-1].sent>>20)

			// It works, and nothing is left over.
			_, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.05")
			must(t, err)
			var x struct{ Digest string }
			out, err := r.Weir(ctx, "image", "inspect", ref, "-o", "json")
			must(t, err)
			if err := json.Unmarshal([]byte(out), &x); err != nil || x.Digest != digest.String() {
				t.Errorf("its digest is %s, %v; want %s", x.Digest, err, digest)
			}
			left, err := os.ReadDir(filepath.Dir(half))
			if len(left) > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left over: %v, %v", left, err)
			}
		})
	}
}

// size of a file; 0 if there is none.
func size(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// total size of a blob of a layout.
func total(t *testing.T, dir string, h v1.Hash) int64 {
	t.Helper()
	n := size(filepath.Join(dir, "blobs", h.Algorithm, h.Hex))
	if n == 0 {
		t.Fatalf("no blob %s", h)
	}
	return n
}

// A registry that nobody serves, and one that takes connections and says nothing: commands and the daemon end within a bounded time, the error says which of both it is, nothing is
// kept. When the registry works the function comes to be.
func TestARegistryThatIsDown(t *testing.T) {
	t.Parallel()
	r, ctx := rig.Bare(t, rig.Options{})
	l := listen(t, r) // nobody accepts: the kernel does
	at := l.Addr().String()
	ref := at + "/wire:1"
	r.Args = []string{"--registry", at}
	must(t, r.Up(ctx))
	r.MustApply(ctx, t, r.Endpoints())
	document := r.Endpoints() + fmt.Sprintf("functions:\n  w: {image: %q}\nchains: {c: w}\npolicies:\n  p: {from: alice, to: bob, match: [icmp], chain: c}\n", ref)
	nothing := func(when string) {
		t.Helper()
		if out, err := r.Weir(ctx, "image", "list"); err != nil || strings.Contains(out, at) {
			t.Errorf("%s: %v\n%s", when, err, out)
		}
		blobs, _ := filepath.Glob(filepath.Join(r.Root, "images", "layout", "blobs", "sha256", "*"))
		halves, _ := filepath.Glob(filepath.Join(r.Root, "images", "layout", ".partial", "*"))
		if len(blobs)+len(halves) > 0 {
			t.Errorf("%s: left: %v %v", when, blobs, halves)
		}
	}
	fails := func(want string, err error) {
		t.Helper()
		var exit *rig.ExitError
		if !errors.As(err, &exit) || !strings.Contains(exit.Stderr, want) || !strings.Contains(exit.Stderr, at) {
			t.Errorf("%v: want %q", err, want)
		}
	}

	// It hangs. Who applies is answered soon, and told why once that is known.
	begun := time.Now()
	command := make(chan error, 1)
	go func() {
		_, err := r.Weir(ctx, "image", "pull", ref)
		command <- err
	}()
	_, err := r.Apply(ctx, document)
	fails("it is being pulled: apply again in a while", err)
	rig.Eventually(ctx, t, "who applies is told why", func() (bool, string) {
		_, err := r.Apply(ctx, document)
		return err != nil && strings.Contains(err.Error(), at+" does not answer in time"), fmt.Sprint(err)
	})
	fails(at+" does not answer in time", <-command)
	took := time.Since(begun)
	t.Logf("a registry that hangs: told after %s", took.Round(time.Second))
	if took > 2*time.Minute {
		t.Errorf("it took %s to say that a registry hangs", took)
	}
	nothing("a registry that hangs")

	// Nobody is there.
	must(t, l.Close())
	_, err = r.Weir(ctx, "image", "pull", ref)
	fails("nobody answers at "+at, err)
	rig.Eventually(ctx, t, "who applies is told so", func() (bool, string) {
		_, err := r.Apply(ctx, document)
		return err != nil && strings.Contains(err.Error(), "nobody answers at "+at), fmt.Sprint(err)
	})
	nothing("a registry that is down")

	// It works, from the next apply on.
	must(t, netns.Do(r.Netns, func() (err error) { l, err = net.Listen("tcp", at); return err }))
	i, err := instance.New(r.Name+"r", t.TempDir())
	must(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: image.Open(i, r.Images).Handler("")}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	r.MustApply(ctx, t, document)
	_, err = r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.05")
	must(t, err)
	var f api.Function
	if err := r.Get(ctx, &f, "function", "w"); err != nil || f.Status.State != api.FunctionStarted {
		t.Errorf("%+v, %v", f.Status, err)
	}
}
