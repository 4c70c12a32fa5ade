package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"weir.dev/weir/sbom"
)

// registry is our own, behind what a test does with its answers.
type registry struct {
	*httptest.Server
	Store *Store

	mu     sync.Mutex
	asked  map[string]int                                                  // requests by method and path
	ranges []string                                                        // that were asked for
	spoil  func(w http.ResponseWriter, r *http.Request, good http.Handler) // nil: nothing
}

// of a store with images.
func registryOf(t *testing.T, s *Store, token string) *registry {
	t.Helper()
	x := &registry{Store: s, asked: map[string]int{}}
	good := s.Handler(token)
	x.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x.mu.Lock()
		x.asked[r.Method+" "+r.URL.Path]++
		if g := r.Header.Get("Range"); g != "" {
			x.ranges = append(x.ranges, g)
		}
		spoil := x.spoil
		x.mu.Unlock()
		if spoil != nil {
			spoil(w, r, good)
			return
		}
		good.ServeHTTP(w, r)
	}))
	t.Cleanup(x.Close)
	return x
}

func (x *registry) host() string { return strings.TrimPrefix(x.URL, "http://") }

func (x *registry) set(spoil func(w http.ResponseWriter, r *http.Request, good http.Handler)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.spoil, x.asked, x.ranges = spoil, map[string]int{}, nil
}

// blobs that were asked for, by digest.
func (x *registry) blobs() map[string]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[string]int{}
	for k, n := range x.asked {
		if _, digest, ok := strings.Cut(k, "/blobs/"); ok && strings.HasPrefix(k, "GET ") {
			out[digest] = n
		}
	}
	return out
}

// isBlob tells requests for the contents of a blob of more than a few bytes.
func isBlob(r *http.Request, h string) bool {
	return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/blobs/"+h)
}

// bigImage has some MiB that do not compress, for this machine.
func bigImage(t *testing.T, layers int, bytes int64) v1.Image {
	t.Helper()
	img, err := random.Image(bytes, int64(layers))
	must(t, err)
	c, err := img.ConfigFile()
	must(t, err)
	c = c.DeepCopy()
	c.Architecture, c.OS = runtime.GOARCH, "linux"
	img, err = mutate.ConfigFile(img, c)
	must(t, err)
	return img
}

// with puts an image into a new store's own layout.
func with(t *testing.T, name string, img v1.Image) *Store {
	t.Helper()
	s := newStore(t)
	must(t, writable(s.own).put(t.Context(), name, img))
	return s
}

func layersOf(t *testing.T, img v1.Image) (out []string) {
	t.Helper()
	m, err := img.Manifest()
	must(t, err)
	for _, l := range m.Layers {
		out = append(out, l.Digest.String())
	}
	return out
}

// What is pushed and pulled is what was built, from Debian's registry and from our own; it runs, and nothing is fetched twice.
func TestPushAndPull(t *testing.T) {
	digest := ""
	from := newStore(t)
	digest = built(t, from.own, recipe(t, "fw", "1", "hello", LabelPorts, "in,out", LabelDescription, "x"))
	theirs := debianRegistry(t)
	sent, err := from.Push(t.Context(), "fw", theirs+"/nf/fw:1", RemoteOptions{})
	must(t, err)
	if sent != digest {
		t.Errorf("pushed %s, built %s", sent, digest)
	}
	ours := registryOf(t, from, "")
	for _, ref := range []string{theirs + "/nf/fw:1", theirs + "/nf/fw@" + digest, ours.host() + "/fw:1", ours.host() + "/fw@" + digest} {
		to := newStore(t)
		var most atomic.Int64
		o := RemoteOptions{Progress: func(done, all int64) {
			if done > all || done < 0 {
				t.Errorf("%d of %d bytes", done, all)
			}
			most.Store(max(most.Load(), done))
		}}
		img, err := to.Pull(t.Context(), ref, o)
		if err != nil {
			t.Fatalf("%s: %v", ref, err)
		}
		if img.Digest != digest || img.Ref != ref || img.Contract.Description != "x" || most.Load() < img.Size {
			t.Errorf("%s: %+v, %d bytes seen", ref, img, most.Load())
		}
		root, err := to.Mount(t.Context(), ref)
		must(t, err)
		if text, err := os.ReadFile(filepath.Join(root, "file")); string(text) != "hello" {
			t.Errorf("%s: %q, %v", ref, text, err)
		}
		ours.set(nil)
		if _, err := to.Pull(t.Context(), ref, RemoteOptions{}); err != nil || len(ours.blobs()) != 0 {
			t.Errorf("again: %v, %v", ours.blobs(), err)
		}
	}
}

// debianRegistry runs the distribution's registry on this machine's loopback.
func debianRegistry(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Fatalf("%v: make peers unpacks it", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	at := l.Addr().String()
	must(t, l.Close())
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	must(t, os.WriteFile(config, []byte(fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", dir, at)), 0o600))
	cmd := exec.Command(program, "serve", config)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &said, &said, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get("http://" + at + "/v2/")
		if err == nil {
			resp.Body.Close()
			return at
		}
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("the registry does not answer: %v: %s", err, said.String())
		}
	}
}

// A pull that is cut half-way leaves no image, and the next one goes on where it was.
func TestACutPullGoesOn(t *testing.T) {
	img := bigImage(t, 1, 8<<20)
	x := registryOf(t, with(t, "big:1", img), "")
	layer, ref := layersOf(t, img)[0], x.host()+"/big:1"
	to := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	half := func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		if isBlob(r, layer) {
			w = &cutting{ResponseWriter: w, left: 4 << 20, cut: cancel}
		}
		good.ServeHTTP(w, r)
	}
	x.set(half)
	if _, err := to.Pull(ctx, ref, RemoteOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("cut: %v", err)
	}
	if all, err := to.List(); len(all) != 0 || err != nil {
		t.Fatalf("half an image is there: %v, %v", all, err)
	}
	x.set(nil)
	if _, err := to.Pull(t.Context(), ref, RemoteOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(x.ranges) != 1 || x.ranges[0] == "bytes=0-" {
		t.Errorf("ranges %v: it did not go on", x.ranges)
	}
	// In the middle of one pull, too.
	to = newStore(t)
	once := sync.Once{}
	x.set(func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		if isBlob(r, layer) {
			once.Do(func() { w = &cutting{ResponseWriter: w, left: 3 << 20, cut: func() {}} })
		}
		good.ServeHTTP(w, r)
	})
	if _, err := to.Pull(t.Context(), ref, RemoteOptions{}); err != nil || len(x.ranges) != 1 {
		t.Errorf("a connection that breaks: %v, ranges %v", err, x.ranges)
	}
	// What a former try left wrong is not gone on with for ever.
	to = newStore(t)
	dir := filepath.Join(to.own, partialsDir)
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, strings.TrimPrefix(layer, "sha256:")), bytes.Repeat([]byte("x"), 1<<20), 0o600))
	x.set(nil)
	if _, err := to.Pull(t.Context(), ref, RemoteOptions{}); err != nil {
		t.Errorf("a wrong half: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v are left", left)
	}
}

// cutting breaks a connection after some bytes.
type cutting struct {
	http.ResponseWriter
	left int
	cut  func()
}

func (c *cutting) Write(b []byte) (int, error) {
	if len(b) < c.left {
		c.left -= len(b)
		return c.ResponseWriter.Write(b)
	}
	_, _ = c.ResponseWriter.Write(b[:c.left])
	c.ResponseWriter.(http.Flusher).Flush()
	time.Sleep(100 * time.Millisecond) // they arrive
	c.cut()
	panic(http.ErrAbortHandler)
}

// Each lie is told for what it is, and nothing of it is kept as an image.
func TestRegistriesThatLie(t *testing.T) {
	img := bigImage(t, 1, 1<<20)
	store := with(t, "big:1", img)
	foreign := bigImage(t, 1, 1000)
	c, err := foreign.ConfigFile()
	must(t, err)
	c = c.DeepCopy()
	c.Architecture = "vax"
	foreign, err = mutate.ConfigFile(foreign, c)
	must(t, err)
	must(t, writable(store.own).put(t.Context(), "foreign:1", foreign))
	labelled, err := mutate.Config(bigImage(t, 1, 1000), v1.Config{Labels: map[string]string{"weir.wings": "two"}})
	must(t, err)
	must(t, writable(store.own).put(t.Context(), "labelled:1", labelled))
	x := registryOf(t, store, "")
	layer := layersOf(t, img)[0]
	m, err := img.Manifest()
	must(t, err)
	other := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "vax"}}})
	index, err := other.RawManifest()
	must(t, err)
	both := func(asIndex bool) []byte {
		raw, err := img.RawManifest()
		must(t, err)
		var all map[string]any
		must(t, json.Unmarshal(raw, &all))
		delete(all, "mediaType")
		all["manifests"] = []any{}
		if asIndex {
			all["manifests"] = []any{map[string]any{"mediaType": types.OCIManifestSchema1, "digest": "sha256:" + strings.Repeat("1", 64), "size": len(raw)}}
		}
		raw, err = json.Marshal(all)
		must(t, err)
		return raw
	}
	body := func(status int, kind types.MediaType, b []byte) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", string(kind))
			w.WriteHeader(status)
			_, _ = w.Write(b)
		}
	}
	for name, c := range map[string]struct {
		ref    string
		at     string // part of the path that is answered otherwise
		answer func(http.ResponseWriter)
		want   string
	}{
		"another content":        {"big:1", "/blobs/" + layer, body(200, "", bytes.Repeat([]byte("x"), int(m.Layers[0].Size))), "image corrupt"},
		"too little":             {"big:1", "/blobs/" + layer, body(200, "", []byte("x")), "it ended after 1 of"},
		"too much":               {"big:1", "/blobs/" + layer, body(200, "", bytes.Repeat([]byte("x"), 3<<20)), "image corrupt"},
		"no blob":                {"big:1", "/blobs/" + layer, body(404, "", nil), "has no big:1"},
		"another manifest":       {"big@sha256:" + strings.Repeat("0", 64), "/manifests/", body(200, types.OCIManifestSchema1, []byte("{}")), "manifest digest"},
		"no manifest":            {"big:1", "/manifests/", body(200, types.OCIManifestSchema1, []byte("{")), "image corrupt"},
		"a manifest of nothings": {"big:1", "/manifests/", body(200, types.OCIManifestSchema1, []byte(`{"layers":[`+strings.Repeat("{},", 1<<20)+`{}]}`)), "objects"},
		"a manifest of commas":   {"big:1", "/manifests/", body(200, types.OCIManifestSchema1, []byte(`{"layers":[`+strings.Repeat("0,", 1<<20)+`0]}`)), "values"},
		"an image and an index":  {"big:1", "/manifests/", body(200, types.OCIManifestSchema1, both(false)), "both manifests and layers"},
		"an index and an image":  {"big:1", "/manifests/", body(200, types.OCIImageIndex, both(true)), "both manifests and layers"},
		"an index as an image":   {"big:1", "/manifests/", body(200, types.OCIManifestSchema1, index), "says that it is"},
		"an endless manifest":    {"big:1", "/manifests/", body(200, types.OCIManifestSchema1, bytes.Repeat([]byte(" "), 40<<20)), "image corrupt"},
		"no such platform":       {"big:1", "/manifests/", body(200, types.OCIImageIndex, index), "for linux/" + runtime.GOARCH + ": there are linux/vax"},
		"a foreign processor":    {"foreign:1", "", nil, "built for vax"},
		"a label":                {"labelled:1", "", nil, "weir.wings"},
		"an expired token":       {"big:1", "/manifests/", body(401, "application/json", []byte(`{"errors":[{"code":"UNAUTHORIZED","message":"token expired"}]}`)), "docker login " + x.host()},
		"unknown":                {"none:1", "", nil, "has no none:1"},
		"out of order":           {"big:1", "/manifests/", body(500, "", []byte("on fire")), "500"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if c.at != "" && strings.Contains(r.URL.Path, c.at) {
					c.answer(w)
					return
				}
				store.Handler("").ServeHTTP(w, r)
			}))
			defer mine.Close()
			host := strings.TrimPrefix(mine.URL, "http://")
			to := newStore(t)
			_, err := to.Pull(t.Context(), host+"/"+c.ref, RemoteOptions{})
			want := strings.ReplaceAll(c.want, x.host(), host)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: want %q", err, want)
			}
			if all, lerr := to.List(); len(all) != 0 || lerr != nil {
				t.Errorf("something is there: %v, %v", all, lerr)
			}
			freed, gerr := to.Collect(t.Context(), CollectOptions{})
			if left, _ := filepath.Glob(filepath.Join(to.own, "blobs", "sha256", "*")); gerr != nil || len(left) != 0 {
				t.Errorf("%v are left after %d bytes, %v", left, freed.Freed, gerr)
			}
		})
	}
	down := newStore(t)
	gone := x.host()
	x.Close()
	if _, err := down.Pull(t.Context(), gone+"/big:1", RemoteOptions{}); err == nil || !strings.Contains(err.Error(), "nobody answers at "+gone) {
		t.Errorf("nobody there: %v", err)
	}
	selfSigned := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(selfSigned.Close)
	if _, err := down.Pull(t.Context(), strings.TrimPrefix(selfSigned.URL, "https://")+"/big:1", RemoteOptions{}); err == nil || !strings.Contains(err.Error(), "run update-ca-certificates") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a certificate of nobody's: %v", err)
	}
	for ref, want := range map[string]string{
		"fw": "want REGISTRY/NAME:TAG", "fw:1": "want REGISTRY/NAME:TAG", "nf/fw:1": "want REGISTRY/NAME:TAG", "": "want REGISTRY/NAME:TAG", "/": "want REGISTRY/NAME:TAG", "localhost/": "",
		"https://ghcr.io/x/y:1": "want REGISTRY/NAME:TAG", "localhost/fw@sha256:abc": "digest length", "localhost/Fw:1": "can only contain", "localhost/fw:": "must specify a tag",
	} {
		if _, err := down.Pull(t.Context(), ref, RemoteOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", ref, err, want)
		}
	}
}

// A registry that hangs holds nobody up for long, wherever it does: the error says who does not answer, and nothing is kept as an image. It is asked again only where something had come: then the pull goes on
// where it was.
func TestARegistryThatHangs(t *testing.T) {
	img := bigImage(t, 1, 6<<20)
	store, layer := with(t, "big:1", img), layersOf(t, img)[0]
	for name, c := range map[string]struct {
		hangs func(*http.Request) bool
		after int // bytes
		times int
		want  string // of the error, an expression; "": it is pulled all the same
		asked int32  // how often it was asked for what it hangs at; 0: it does not matter
	}{
		"at once":            {func(r *http.Request) bool { return r.URL.Path == "/v2/" }, 0, 100, "does not answer in time: see whether it works", 0},
		"at the manifest":    {func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/manifests/") }, 0, 100, "does not answer in time: see whether it works", 1},
		"at the layer":       {func(r *http.Request) bool { return isBlob(r, layer) }, 0, 100, "not a byte in 300ms|does not answer in time", 1},
		"in the layer":       {func(r *http.Request) bool { return isBlob(r, layer) }, 1 << 20, 100, "not a byte in 300ms", tries},
		"once, in the layer": {func(r *http.Request) bool { return isBlob(r, layer) }, 1 << 20, 1, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := registryOf(t, store, "")
			var hung atomic.Int32
			x.set(func(w http.ResponseWriter, r *http.Request, good http.Handler) {
				if c.hangs(r) && int(hung.Add(1)) <= c.times {
					if c.after == 0 {
						<-r.Context().Done()
						return
					}
					w = &cutting{ResponseWriter: w, left: c.after, cut: func() { <-r.Context().Done() }}
				}
				good.ServeHTTP(w, r)
			})
			to, idle := newStore(t), 300*time.Millisecond
			if c.want == "" { // a busy machine is not to look like a registry that hangs
				idle *= 10
			}
			_, err := to.Pull(t.Context(), x.host()+"/big:1", RemoteOptions{idle: idle})
			if (err == nil) != (c.want == "") || err != nil && (!regexp.MustCompile(c.want).MatchString(err.Error()) || !strings.Contains(err.Error(), x.host())) {
				t.Errorf("%v: want %q", err, c.want)
			}
			if n := hung.Load(); c.asked > 0 && n != c.asked {
				t.Errorf("it was asked %d times, want %d", n, c.asked)
			}
			all, lerr := to.List()
			if (len(all) == 0) != (c.want != "") || lerr != nil {
				t.Errorf("%d images are there, %v", len(all), lerr)
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			if c.want == "" && (len(x.ranges) != 1 || x.ranges[0] != fmt.Sprintf("bytes=%d-", c.after)) {
				t.Errorf("ranges that were asked for: %v, want one from byte %d on", x.ranges, c.after)
			}
		})
	}
}

// A registry that is slow, and never silent for long, is waited for.
func TestASlowRegistryDoesNotHang(t *testing.T) {
	t.Parallel()
	x := registryOf(t, with(t, "fw:1", bigImage(t, 1, 1<<10)), "")
	x.set(func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/manifests/1") {
			w = slow{w}
		}
		good.ServeHTTP(w, r)
	})
	begun, idle := time.Now(), 15*pause // long, as a busy machine is not to look like a registry that hangs
	if _, err := newStore(t).Pull(t.Context(), x.host()+"/fw:1", RemoteOptions{idle: idle}); err != nil || time.Since(begun) < idle {
		t.Errorf("%v, after %s", err, time.Since(begun))
	}
}

// slow sends a body in twenty pieces.
type slow struct{ http.ResponseWriter }

const pause = 100 * time.Millisecond

func (s slow) Write(b []byte) (int, error) {
	for at, each := 0, len(b)/20+1; at < len(b); at += each {
		if _, err := s.ResponseWriter.Write(b[at:min(at+each, len(b))]); err != nil {
			return at, err
		}
		s.ResponseWriter.(http.Flusher).Flush()
		time.Sleep(pause)
	}
	return len(b), nil
}

// Twenty pulls at once of images that share layers fetch each layer once.
func TestPullsAtOnceShareLayers(t *testing.T) {
	base := bigImage(t, 3, 1<<20)
	store := newStore(t)
	for i := range 20 {
		img, err := mutate.Config(base, v1.Config{Env: []string{fmt.Sprint("N=", i)}})
		must(t, err)
		must(t, writable(store.own).put(t.Context(), fmt.Sprintf("fw:%d", i), img))
	}
	x := registryOf(t, store, "")
	to := newStore(t)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			other := Open(to.inst) // as another process has it
			if _, err := other.Pull(t.Context(), fmt.Sprintf("%s/fw:%d", x.host(), i), RemoteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	fetched := x.blobs()
	for _, l := range layersOf(t, base) {
		if fetched[l] != 1 {
			t.Errorf("layer %s was fetched %d times", l, fetched[l])
		}
	}
	if have, err := to.List(); len(have) != 20 || err != nil {
		t.Errorf("%d images, %v", len(have), err)
	}
}

// A registry with a token lets in who has it, and nobody writes to it.
func TestTheRegistryIsForReadersWithTheToken(t *testing.T) {
	img := bigImage(t, 1, 1000)
	x := registryOf(t, with(t, "big:1", img), "0123456789abcdef")
	if _, err := newStore(t).Pull(t.Context(), x.host()+"/big:1", RemoteOptions{}); err == nil || !strings.Contains(err.Error(), "wants other credentials") {
		t.Errorf("without: %v", err)
	}
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	for password, want := range map[string]bool{"0123456789abcdef": true, "0123456789abcdeF": false} {
		auth := map[string]any{"auths": map[string]any{x.host(): map[string]string{"username": "weir", "password": password}}}
		text, err := json.Marshal(auth)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
		if _, err := newStore(t).Pull(t.Context(), x.host()+"/big:1", RemoteOptions{}); (err == nil) != want {
			t.Errorf("password %s: %v", password, err)
		}
	}
	for path, want := range map[string]int{
		"/v2/": 200, "/v2/_catalog": 200, "/v2/big/tags/list": 200, "/v2/none/tags/list": 404, "/v2/big/manifests/2": 404, "/v2/big/manifests/sha256:" + strings.Repeat("0", 64): 404,
		"/v2/big/blobs/sha256:0": 400, "/v2/big/blobs/sha256:" + strings.Repeat("0", 64): 404, "/v2/big/blobs/../../../index.json": 404, "/v2/big/nothing": 404, "/": 404, "/v2/%2e%2e/blobs/sha256:x": 400,
	} {
		req, err := http.NewRequest(http.MethodGet, x.URL+path, nil)
		must(t, err)
		req.Header.Set("Authorization", "Bearer 0123456789abcdef")
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s: %s", path, resp.Status, text)
		}
	}
	for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodPatch} {
		req, err := http.NewRequest(method, x.URL+"/v2/big/manifests/2", strings.NewReader("{}"))
		must(t, err)
		req.SetBasicAuth("a", "0123456789abcdef")
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %s", method, resp.Status)
		}
	}
}

// Others' tools read ours, and we read what they write.
func TestSkopeoPullsFromUs(t *testing.T) {
	if _, err := exec.LookPath("skopeo"); err != nil {
		t.Fatalf("%v: make peers installs it", err)
	}
	from := newStore(t)
	digest := built(t, from.own, recipe(t, "fw", "1", "hello"))
	x := registryOf(t, from, "")
	dir := t.TempDir()
	for _, target := range []string{"oci-archive:" + dir + "/oci.tar:theirs:1", "docker-archive:" + dir + "/docker.tar:theirs:1", "oci:" + dir + "/layout:theirs:1"} {
		out, err := exec.Command("skopeo", "copy", "--insecure-policy", "--src-tls-verify=false", "docker://"+x.host()+"/fw:1", target).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", target, err, out)
		}
	}
	for _, file := range []string{"oci.tar", "docker.tar", "layout"} {
		to := newStore(t)
		all, err := to.Import(t.Context(), filepath.Join(dir, file), "")
		if err != nil || len(all) != 1 || all[0].Ref != "theirs:1" || file != "docker.tar" && all[0].Digest != digest {
			t.Fatalf("%s: %+v, %v", file, all, err)
		}
		root, err := to.Mount(t.Context(), "theirs")
		must(t, err)
		if text, err := os.ReadFile(filepath.Join(root, "file")); string(text) != "hello" {
			t.Errorf("%s: %q, %v", file, text, err)
		}
	}
}

// An exported image is the same image, and the same bytes each time; archives that want something else get nothing.
func TestImportAndExport(t *testing.T) {
	from := newStore(t)
	digest := built(t, from.own, recipe(t, "fw", "1", "hello"))
	var first, second bytes.Buffer
	must(t, from.Export(t.Context(), "fw:1", &first))
	must(t, from.Export(t.Context(), "fw:1", &second))
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two exports differ")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "fw.tar")
	must(t, os.WriteFile(file, first.Bytes(), 0o600))
	to := newStore(t)
	all, err := to.Import(t.Context(), file, "other:2")
	if err != nil || all[0].Ref != "other:2" || all[0].Digest != digest {
		t.Fatalf("%+v, %v", all, err)
	}
	// One that was cut on its way, as by a download that broke.
	for _, at := range []int{first.Len() / 3, first.Len() - 1536} {
		cut := filepath.Join(dir, "cut.tar")
		must(t, os.WriteFile(cut, first.Bytes()[:at], 0o600))
		if _, err := to.Import(t.Context(), cut, "cut:1"); err == nil || !strings.Contains(err.Error(), "it was cut on its way") && !strings.Contains(err.Error(), "it ends in the middle") {
			t.Errorf("cut at byte %d of %d: %v", at, first.Len(), err)
		}
	}
	// docker save, of an image without a label.
	tag, err := name.NewTag("docker.io/library/plain:3")
	must(t, err)
	plain := bigImage(t, 2, 1000)
	must(t, tarball.WriteToFile(filepath.Join(dir, "docker.tar"), tag, plain))
	all, err = to.Import(t.Context(), filepath.Join(dir, "docker.tar"), "")
	if err != nil || all[0].Ref != "plain:3" || all[0].Contract.Tap {
		t.Fatalf("%+v, %v", all, err)
	}
	archive := func(entries ...*tar.Header) string {
		path := filepath.Join(t.TempDir(), "bad.tar")
		f, err := os.Create(path)
		must(t, err)
		w := tar.NewWriter(f)
		for _, h := range entries {
			must(t, w.WriteHeader(h))
			_, err := w.Write(bytes.Repeat([]byte("{"), int(h.Size)))
			must(t, err)
		}
		must(t, w.Close())
		must(t, f.Close())
		return path
	}
	regular := func(name string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 10, Mode: 0o644}
	}
	text := filepath.Join(dir, "text")
	must(t, os.WriteFile(text, []byte("no archive"), 0o600))
	for name, c := range map[string]struct{ file, want string }{
		"nothing there":  {filepath.Join(dir, "none"), "no such file"},
		"a text":         {text, "no tar archive"},
		"an empty one":   {archive(), "neither an OCI archive nor"},
		"another":        {archive(regular("readme")), "neither an OCI archive nor"},
		"outside":        {archive(regular("../../index.json"), regular("/etc/index.json")), "neither an OCI archive nor"},
		"a bad index":    {archive(regular("index.json")), "image corrupt"},
		"a link":         {archive(&tar.Header{Typeflag: tar.TypeSymlink, Name: "index.json", Linkname: "/etc/passwd"}), "it has no image"},
		"a bad manifest": {archive(regular("manifest.json")), ""},
		"no layout":      {t.TempDir(), "it has no image"},
		"a device":       {"/dev/null", "want a file, or a directory"},
	} {
		before, err := to.List()
		must(t, err)
		if _, err := to.Import(t.Context(), c.file, ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v: want %q", name, err, c.want)
		}
		if after, err := to.List(); len(after) != len(before) || err != nil {
			t.Errorf("%s: %d images, %d before, %v", name, len(after), len(before), err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(to.own, partialsDir)); len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	if _, err := to.Import(t.Context(), file, "a@b"); err == nil {
		t.Error("a name that is none")
	}
}

// An import that cannot be used by its name is refused before the name is taken: another image is found first, or a signature is missing.
func TestAnImportThatCannotBeUsedLeavesNothing(t *testing.T) {
	from := newStore(t)
	digest := built(t, from.own, recipe(t, "fw", "1", "hello"))
	var archive bytes.Buffer
	must(t, from.Export(t.Context(), "fw:1", &archive))
	shipped := filepath.Join(t.TempDir(), "shipped")
	built(t, shipped, recipe(t, "fw", "1", "another"))
	to := newStore(t, shipped)
	free, err := to.Free()
	if err != nil || free <= 0 {
		t.Errorf("%d bytes are free, %v", free, err)
	}
	take := func(as string) error {
		_, err := to.ImportFrom(t.Context(), bytes.NewReader(archive.Bytes()), as)
		return err
	}
	if err := take(""); !errors.Is(err, ErrHidden) || !strings.Contains(err.Error(), shipped+" has another image of this name") || strings.Contains(err.Error(), partialsDir) {
		t.Errorf("%v: want %v", err, ErrHidden)
	}
	if err := take("fw"); !errors.Is(err, ErrHidden) { // which means fw:1 there
		t.Errorf("%v: want %v", err, ErrHidden)
	}
	if _, err := to.Build(t.Context(), recipe(t, "fw", "1", "hello")); !errors.Is(err, ErrHidden) || !errors.Is(err, ErrRecipe) || !strings.Contains(err.Error(), shipped+" has another image of this name") {
		t.Errorf("a build: %v: want %v", err, ErrHidden)
	}
	if err := take("a b"); err == nil || !strings.Contains(err.Error(), "want NAME or NAME:TAG") {
		t.Error(err)
	}
	_, public := keyPair(t)
	policy, err := ParsePolicy([]string{"signed=" + public})
	must(t, err)
	to.Require(policy)
	if err := take("signed:1"); !errors.Is(err, ErrUnsigned) {
		t.Errorf("%v: want %v", err, ErrUnsigned)
	}
	if names, err := In(to.own); len(names) != 0 || err != nil {
		t.Errorf("%v are there, %v", names, err)
	}
	if left, err := os.ReadDir(filepath.Join(to.own, "blobs", "sha256")); len(left) != 0 && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v are left, %v", left, err)
	}
	// The same image as the one that is found first is no other.
	same := newStore(t, from.own)
	if _, err := same.ImportFrom(t.Context(), bytes.NewReader(archive.Bytes()), ""); err != nil {
		t.Error(err)
	}
	if got, err := same.Build(t.Context(), recipe(t, "fw", "1", "hello")); err != nil || got != digest {
		t.Errorf("a build: %s, %v: want %s", got, err, digest)
	}
	must(t, take("mine:2"))
	if img, err := to.Resolve("mine:2"); err != nil || img.Digest != digest {
		t.Errorf("%+v, %v", img, err)
	}
}

// An instance whose first image is pulled has a directory that is root's alone.
func TestTheFirstImageOpensNothing(t *testing.T) {
	s := with(t, "big:1", bigImage(t, 1, 1000))
	for _, dir := range []string{s.inst.Root, filepath.Join(s.inst.Root, "images")} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}
}

// What is deleted is gone with what it alone used; what came with the program stays.
func TestDelete(t *testing.T) {
	s := newStore(t, filepath.Join(t.TempDir(), "shipped"))
	built(t, s.dirs[0], recipe(t, "shipped", "1", "one"))
	kept := built(t, s.own, recipe(t, "kept", "1", "two"))
	built(t, s.own, recipe(t, "gone", "1", "three"))
	for name, want := range map[string]string{"shipped:1": "came with this program", "none:1": "image not found"} {
		if err := s.Delete(t.Context(), "gone:1", name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if all, _ := s.List(); len(all) != 3 {
		t.Errorf("%d images: something was deleted", len(all))
	}
	must(t, s.Delete(t.Context(), "gone:1"))
	if all, err := s.List(); len(all) != 2 || err != nil {
		t.Errorf("%v, %v", all, err)
	}
	blobs, err := filepath.Glob(filepath.Join(s.own, "blobs", "sha256", "*"))
	if len(blobs) != 7 || err != nil { // manifest, config, base, own; manifest, config and text of the bill of materials
		t.Errorf("%v, %v", blobs, err)
	}
	if img, err := s.Verify(t.Context(), "kept"); err != nil || img.Digest != kept {
		t.Errorf("%+v, %v", img, err)
	}
}

// Images that are built, pulled and deleted at once leave a sound layout.
func TestChangesAtOnce(t *testing.T) {
	s := newStore(t)
	recipes := make([]Recipe, 6)
	for i := range recipes {
		recipes[i] = recipe(t, fmt.Sprintf("f%d", i), "1", fmt.Sprint("content ", i))
	}
	var all sync.WaitGroup
	for i, r := range recipes {
		all.Go(func() {
			for range 3 {
				if _, err := r.Build(t.Context(), s.own); err != nil {
					t.Error(err)
				}
				if i%2 == 0 {
					if err := Open(s.inst).Delete(t.Context(), r.Name+":1"); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	have, err := s.List()
	must(t, err)
	for _, x := range have {
		if _, err := s.Verify(t.Context(), x.Ref); err != nil {
			t.Error(err)
		}
	}
	if len(have) != 3 {
		t.Errorf("%d images", len(have))
	}
}

// A host pulls what functions name from registries that its operator named, and from no other; who waits is told how far it is.
func TestPullOnDemand(t *testing.T) {
	img := bigImage(t, 1, 2<<20)
	x := registryOf(t, with(t, "big:1", img), "")
	ref := x.host() + "/big:1"
	for _, registries := range [][]string{{"ghcr.io"}, {x.host() + "/other"}, {x.host()[:len(x.host())-1]}} {
		s := &OnDemand{Store: newStore(t), Registries: registries, Log: slog.New(slog.DiscardHandler)}
		for _, ref := range []string{ref, x.host() + "/other/../big:1", x.host() + "/other/./../big:1", x.host() + "/other//../big:1"} {
			if _, err := s.Verify(t.Context(), ref); !errors.Is(err, ErrNotFound) || len(x.asked) != 0 {
				t.Errorf("%s from %v: %v, asked %v", ref, registries, err, x.asked)
			}
		}
	}
	for _, ref := range []string{x.host() + "/a/../big:1", x.host() + "/./big:1", x.host() + "//big:1", x.host() + "/..@sha256:" + strings.Repeat("1", 64)} {
		for _, pull := range []func(*Store) (Image, error){
			func(s *Store) (Image, error) { return s.Pull(t.Context(), ref, RemoteOptions{}) },
			func(s *Store) (Image, error) {
				return s.PullFrom(t.Context(), ref, Peer{URL: x.URL, Name: "the manager", Client: x.Client()}, RemoteOptions{})
			},
		} {
			if _, err := pull(newStore(t)); err == nil || !strings.Contains(err.Error(), "want none that is empty or made of dots") || len(x.asked) != 0 {
				t.Errorf("%s: %v, asked %v", ref, err, x.asked)
			}
		}
	}
	s := &OnDemand{Store: newStore(t), Registries: []string{"ghcr.io", x.host()}, Log: slog.New(slog.DiscardHandler)}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if got, err := s.Verify(t.Context(), ref); err != nil || got.Ref != ref {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	all.Wait()
	waitFor(t, func() bool { _, err := s.Resolve(ref); return err == nil })
	if n := x.blobs()[layersOf(t, img)[0]]; n != 1 {
		t.Errorf("the layer was fetched %d times", n)
	}
	if _, err := s.Verify(t.Context(), x.host()+"/none:1"); err == nil || !strings.Contains(err.Error(), "has no none:1") {
		t.Errorf("none: %v", err)
	}
	slow := &OnDemand{Store: newStore(t), Registries: []string{x.host()}, Log: slog.New(slog.DiscardHandler)}
	hold := make(chan struct{})
	x.set(func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		if isBlob(r, layersOf(t, img)[0]) {
			<-hold
		}
		good.ServeHTTP(w, r)
	})
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if got, err := slow.Verify(short, ref); err != nil || len(got.Layers) != 1 { // what it is, while it is on its way
		t.Errorf("slow: %+v, %v", got, err)
	}
	if _, err := slow.Resolve(ref); !errors.Is(err, ErrPulling) || !strings.Contains(err.Error(), "it is being pulled, 0 % of 3 MiB so far") {
		t.Errorf("slow: %v", err)
	}
	close(hold)
	waitFor(t, func() bool { _, err := slow.Resolve(ref); return err == nil })
	hangs := &OnDemand{Store: newStore(t), Registries: []string{x.host()}, Remote: RemoteOptions{idle: pullPatience / 10}, Log: slog.New(slog.DiscardHandler)}
	x.set(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() })
	waitFor(t, func() bool {
		_, err := hangs.Resolve(ref)
		return err != nil && strings.Contains(err.Error(), "does not answer in time")
	})
	hangs.Remote.idle = 2 * pullPatience
	if _, err := hangs.Verify(t.Context(), ref); !errors.Is(err, ErrPulling) || !strings.Contains(err.Error(), "the try before was in vain") || !strings.Contains(err.Error(), "does not answer in time") {
		t.Errorf("a registry that hangs, asked again: %v", err)
	}
	x.set(nil)
	waitFor(t, func() bool { hangs.mu.Lock(); defer hangs.mu.Unlock(); return len(hangs.pulls) == 0 })
	full := &OnDemand{Store: newStore(t), Registries: []string{x.host()}, Log: slog.New(slog.DiscardHandler)}
	if _, err := full.Pull(t.Context(), ref, RemoteOptions{Reserve: 1 << 60}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("no room: %v", err)
	}
}

// A host fetches what it lacks from its manager: each layer once for all functions, going on where it was cut; wrong bytes are refused and not kept.
func TestFetchFromTheManager(t *testing.T) {
	img := bigImage(t, 2, 2<<20)
	layer := layersOf(t, img)[0]
	x := registryOf(t, with(t, "nf:1", img), "")
	hold := make(chan struct{})
	x.set(func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		if isBlob(r, layer) {
			<-hold
		}
		good.ServeHTTP(w, r)
	})
	s := &OnDemand{Store: newStore(t), Log: slog.New(slog.DiscardHandler)}
	s.From(Peer{URL: x.URL, Name: "the manager", Client: x.Client()})
	if got, err := s.Verify(t.Context(), "nf"); err != nil || len(got.Layers) != 2 || got.Ref != "nf" {
		t.Errorf("before its layers are there: %+v, %v", got, err)
	}
	if _, err := s.Resolve("nf"); !errors.Is(err, ErrPulling) || !strings.Contains(err.Error(), "of 5 MiB so far") {
		t.Errorf("meanwhile: %v", err)
	}
	if got, err := s.Peek("nf"); err != nil || len(got.Layers) != 2 {
		t.Errorf("peek: %+v, %v", got, err)
	}
	close(hold)
	waitFor(t, func() bool { _, err := s.Resolve("nf"); return err == nil })
	if n := x.blobs()[layer]; n != 1 {
		t.Errorf("the layer was fetched %d times", n)
	}
	if names, err := In(s.own); err != nil || len(names) != 1 || names[0] != "nf:1" {
		t.Errorf("%v, %v", names, err)
	}
	if all, err := offersOf(t.Context(), *s.manager); err != nil || len(all) != 1 || all[0] != "nf:1" {
		t.Errorf("offers: %v, %v", all, err)
	}
	if _, err := s.Verify(t.Context(), "none:1"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "the manager has no image none:1") {
		t.Errorf("none: %v", err)
	}
	// Wrong bytes: never kept, and told.
	evil := newStore(t)
	x.set(func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		if isBlob(r, layer) {
			_, _ = w.Write(make([]byte, 3<<20))
			return
		}
		good.ServeHTTP(w, r)
	})
	if _, err := evil.PullFrom(t.Context(), "nf:1", *s.manager, RemoteOptions{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("wrong bytes: %v", err)
	}
	if _, err := evil.Resolve("nf:1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("after wrong bytes: %v", err)
	}
	// Cut in the middle: what is there is not fetched again.
	cut := false
	x.set(func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		if isBlob(r, layer) && !cut {
			cut = true
			good.ServeHTTP(&cutting{ResponseWriter: w, left: 1 << 20, cut: func() {}}, r)
			return
		}
		good.ServeHTTP(w, r)
	})
	if _, err := evil.PullFrom(t.Context(), "nf:1", *s.manager, RemoteOptions{}); err != nil {
		t.Errorf("after a cut: %v", err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.ranges) != 1 {
		t.Errorf("ranges asked for: %v", x.ranges)
	}
}

func waitFor(t *testing.T, there func() bool) {
	t.Helper()
	for begin := time.Now(); !there(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > 30*time.Second {
			t.Fatal("it does not come")
		}
	}
}

// billsOf makes a registry list n bills of materials of about size bytes for every digest, each twice, before what it is asked; it gives how many bytes of them were asked for.
func billsOf(t *testing.T, x *registry, n, size int) (asked func() (blobs, most int)) {
	t.Helper()
	var mu sync.Mutex
	served := map[string]int{}
	blobs := map[string][]byte{}
	x.set(func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		mu.Lock()
		defer mu.Unlock()
		at := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		if strings.Contains(r.URL.Path, "/referrers/") {
			subject, err := v1.NewHash(at)
			must(t, err)
			index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
			for i := range n {
				bill := bytes.Repeat([]byte{byte('a' + i)}, size)
				hash, _, err := v1.SHA256(bytes.NewReader(bill))
				must(t, err)
				a, err := newArtifact(v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: subject}, sbom.MediaType, []byte("{}"), emptyConfig,
					[]v1.Descriptor{{MediaType: sbom.MediaType, Digest: hash, Size: int64(size)}}, map[v1.Hash][]byte{hash: bill})
				must(t, err)
				d, err := a.descriptor()
				must(t, err)
				blobs[d.Digest.String()] = a.raw
				for h, b := range a.blobs {
					blobs[h.String()] = b
				}
				index.Manifests = append(index.Manifests, d, d)
			}
			w.Header().Set("Content-Type", string(types.OCIImageIndex))
			must(t, json.NewEncoder(w).Encode(index))
			return
		}
		b, ok := blobs[at]
		if !ok {
			good.ServeHTTP(w, r)
			return
		}
		if strings.Contains(r.URL.Path, "/blobs/") && len(b) == size || strings.Contains(r.URL.Path, "/manifests/") {
			served[at]++
		}
		w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
		_, _ = w.Write(b)
	})
	return func() (all, most int) {
		mu.Lock()
		defer mu.Unlock()
		for at, n := range served {
			all += n * len(blobs[at])
			most = max(most, n)
		}
		return all, most
	}
}

// What a registry has about an image is bounded: what is more is not fetched, nothing is fetched twice, and the disk has to have room for it.
func TestWhatIsAboutAnImageIsBounded(t *testing.T) {
	img := bigImage(t, 1, 1000)
	x := registryOf(t, with(t, "nf:1", img), "")
	asked := billsOf(t, x, 20, 4<<20)
	var warned []string
	s := newStore(t)
	_, err := s.Pull(t.Context(), x.host()+"/nf:1", RemoteOptions{Warn: func(text string) { warned = append(warned, text) }})
	must(t, err)
	if all, most := asked(); all < maxAbout/2 || all > maxAbout || most != 1 {
		t.Errorf("%d bytes were fetched, a thing up to %d times; want at most %d, once", all, most, maxAbout)
	}
	if len(warned) != 1 || !strings.Contains(warned[0], "more than 32 MiB: the rest is left out") {
		t.Errorf("warnings %q", warned)
	}
	about, err := s.About(x.host() + "/nf:1")
	if err != nil || len(about.SBOMs) != 1 {
		t.Errorf("%+v, %v", about, err)
	}
	digest, err := img.Digest()
	must(t, err)
	billsOf(t, x, 1, 1000)
	full := &puller{into: writable(newStore(t).own), url: x.URL + "/v2/nf", http: x.Client(), all: 1 << 60}
	must(t, os.MkdirAll(string(full.into), 0o755))
	if _, err := full.about(t.Context(), v1.Descriptor{Digest: digest}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("no room beside the image: %v", err)
	}
}

// An image that is refused for its signature leaves nothing, and is not fetched again until its signature may have been made.
func TestARefusedImageLeavesNothing(t *testing.T) {
	_, public := keyPair(t)
	x := registryOf(t, with(t, "nf:1", bigImage(t, 1, 1000)), "")
	billsOf(t, x, 1, 1000)
	ref := x.host() + "/nf:1"
	s := &OnDemand{Store: newStore(t), Registries: []string{x.host()}, Log: slog.New(slog.DiscardHandler)}
	policy, err := ParsePolicy([]string{"*=" + public})
	must(t, err)
	s.Require(policy)
	if _, err := s.Verify(t.Context(), ref); !errors.Is(err, ErrUnsigned) {
		t.Fatalf("unsigned: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(s.own, "blobs", "sha256", "*"))
	must(t, err)
	if _, err := os.Stat(filepath.Join(s.own, referrersFile)); len(left) != 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v, and a list of what is about images: %v", left, err)
	}
	for _, c := range []struct {
		since time.Duration
		want  error
	}{{time.Minute, ErrUnsigned}, {time.Hour, ErrPulling}} {
		s.mu.Lock()
		f := s.failed[ref]
		s.failed[ref] = failure{f.err, time.Now().Add(-c.since)}
		s.mu.Unlock()
		if _, err := s.Resolve(ref); !errors.Is(err, c.want) {
			t.Errorf("after %s: %v, want %v", c.since, err, c.want)
		}
	}
	waitFor(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.pulls) == 0 })
}

// What has to stay free does, also where others fill the disk while layers come.
func TestAPullLeavesRoomWhoeverElseFillsTheDisk(t *testing.T) {
	img := bigImage(t, 1, 8<<20)
	x, to := registryOf(t, with(t, "big:1", img), ""), newStore(t)
	must(t, os.MkdirAll(to.own, 0o755))
	must(t, unix.Mount("tmpfs", to.own, "tmpfs", 0, "size=24m"))
	defer unix.Unmount(to.own, unix.MNT_DETACH)
	layer := layersOf(t, img)[0]
	x.set(func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		if strings.HasSuffix(r.URL.Path, layer) {
			must(t, os.WriteFile(filepath.Join(to.own, "others"), make([]byte, 14<<20), 0o600))
		}
		good.ServeHTTP(w, r)
	})
	_, err := to.Pull(t.Context(), x.host()+"/big:1", RemoteOptions{Reserve: 6 << 20})
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "MiB free, and 6 stay free") {
		t.Errorf("%v: want that 6 MiB stay free", err)
	}
	if free, err := to.Free(); free < 5<<20 || err != nil {
		t.Errorf("%d bytes are free, %v", free, err)
	}
	must(t, os.Remove(filepath.Join(to.own, "others")))
	x.set(nil)
	if _, err := to.Pull(t.Context(), x.host()+"/big:1", RemoteOptions{}); err != nil {
		t.Error(err)
	}
}

// A registry that is slow, or an import, keeps nobody from deleting an image. What the image alone used goes with who is last.
func TestImagesAreDeletedWhileOthersArePulled(t *testing.T) {
	x := registryOf(t, with(t, "big:1", bigImage(t, 1, 1<<20)), "")
	to := newStore(t)
	built(t, to.own, recipe(t, "fw", "1", "hello"))
	asked, goOn, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	once := sync.Once{}
	x.set(func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			once.Do(func() { close(asked) })
			<-goOn
		}
		good.ServeHTTP(w, r)
	})
	go func() {
		_, err := to.Pull(context.Background(), x.host()+"/big:1", RemoteOptions{})
		over <- err
	}()
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := to.Delete(ctx, "fw:1"); err != nil {
		t.Error(err)
	}
	if _, err := to.Resolve("fw:1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v: want %v", err, ErrNotFound)
	}
	close(goOn)
	must(t, <-over)
	use, err := writable(to.own).hold(t.Context(), useFile, unix.LOCK_EX)
	must(t, errors.Join(err, use.Close()))
	if all, err := os.ReadDir(filepath.Join(to.own, "blobs", "sha256")); len(all) != 3 || err != nil {
		t.Errorf("%d blobs, %v: want the three of the image that was pulled", len(all), err)
	}
}

// A registry leads nobody to what only the machine reaches, nor from TLS to plain HTTP.
func TestRegistriesLeadToWhatAllReach(t *testing.T) {
	x := registryOf(t, with(t, "big:1", bigImage(t, 1, 1000)), "")
	x.set(func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		if strings.Contains(r.URL.Path, "/manifests/") {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", http.StatusTemporaryRedirect)
			return
		}
		good.ServeHTTP(w, r)
	})
	_, err := newStore(t).Pull(t.Context(), x.host()+"/big:1", RemoteOptions{})
	if want := `leads to "169.254.169.254", an address of this machine or its link`; !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v: want %q", err, want)
	}
	for _, c := range []struct {
		from, to, want string
	}{
		{"https://r.example", "https://cdn.example/blob", ""},
		{"https://r.example", "https://10.0.0.9:9000/blob", ""},
		{"http://r.example", "http://cafe.example/blob", ""},
		{"http://127.0.0.1:5000", "http://localhost:9000/blob", ""},
		{"http://127.0.0.1:5000", "http://[::1]:9000/blob", ""},
		{"https://r.example", "http://cdn.example/blob", "does not speak TLS"},
		{"http://r.example", "http://127.0.0.1/x", "an address of this machine"},
		{"http://r.example", "http://127.1/x", "an address of this machine"},
		{"http://r.example", "http://2130706433/x", "an address of this machine"},
		{"http://r.example", "http://[::ffff:127.0.0.1]/x", "an address of this machine"},
		{"http://r.example", "http://localhost/x", "an address of this machine"},
		{"http://r.example", "http://0.0.0.0/x", "an address of this machine"},
		{"http://127.0.0.1:5000", "http://[fe80::1%25eth0]/x", "an address of this machine or its link"},
	} {
		from, err := http.NewRequest(http.MethodGet, c.from, nil)
		must(t, err)
		to, err := http.NewRequest(http.MethodGet, c.to, nil)
		must(t, err)
		if err := checkRedirect(to, []*http.Request{from}); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s to %s: %v: want %q", c.from, c.to, err, c.want)
		}
	}
}
