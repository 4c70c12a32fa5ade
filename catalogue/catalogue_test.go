package catalogue_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/bpf"
	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/oci"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
)

// world is an instance with the catalogue's images and a runtime.
type world struct {
	images  *image.Store
	runtime *kernel.Runtime
}

func newWorld(t testing.TB) world {
	t.Helper()
	return worldOf(t, func(ctx context.Context, inst instance.Instance) (*kernel.Runtime, error) {
		return oci.New(ctx, inst, oci.Options{Options: kernel.Options{Adopt: true}})
	})
}

func worldOf(t testing.TB, runtime func(context.Context, instance.Instance) (*kernel.Runtime, error)) world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("not root: this test makes containers (sudo make test)")
	}
	inst, err := instance.New(fmt.Sprintf("cat%x", os.Getpid()&0xffff), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := layout(t)
	w := world{images: image.Open(inst, dir)}
	if w.runtime, err = runtime(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := w.runtime.Destroy(ctx); err != nil {
			t.Error(err)
		}
		w.runtime.Close()
		if err := w.images.Destroy(ctx); err != nil {
			t.Error(err)
		}
		if err := os.Remove(inst.Run); err != nil {
			t.Errorf("left in the run directory: %v", err)
		}
	})
	return w
}

var built struct {
	sync.Once
	dir     string
	digests map[string]string // by NAME:TAG
	err     error
}

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(built.dir)
	os.Exit(code)
}

// layout has the images that need no Debian packages: those that do are in tests of their own. They are built once.
func layout(t testing.TB) string {
	t.Helper()
	built.Do(func() { built.dir, built.err = build() })
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

func build() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "weir-catalogue"); err != nil {
		return "", err
	}
	recipes, err := image.FindRecipes(".")
	if err != nil || len(recipes) < 4 {
		return dir, fmt.Errorf("recipes %v: %w", recipes, err)
	}
	built.digests = map[string]string{}
	for _, folder := range recipes {
		r, err := image.LoadRecipe(folder)
		if err != nil {
			return dir, err
		}
		if r.Debian() {
			continue
		}
		digest, err := r.Build(context.Background(), dir)
		if err != nil {
			return dir, err
		}
		built.digests[r.Name+":"+r.Tag] = digest
	}
	return dir, nil
}

// run starts a function of an image in a namespace, as the agent does.
func (w world) run(t *testing.T, ref, netns, config string) string {
	t.Helper()
	img, err := w.images.Resolve(ref)
	if err != nil {
		t.Fatal(err)
	}
	rootfs, err := w.images.Mount(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	rig.WriteProbe(t, dir)
	err = w.runtime.Run(t.Context(), container.Spec{
		ID: ref, Rootfs: rootfs, ReadOnly: true, Args: img.Args, Env: img.Env, Netns: netns, Memory: 64 << 20,
		Capabilities: img.Contract.Capabilities, Mounts: []container.Mount{{Source: dir, Target: "/etc/weir", ReadOnly: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func (w world) log(t testing.TB, id string) string {
	t.Helper()
	l, err := w.runtime.Logs(t.Context(), id, container.LogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	text, err := io.ReadAll(l)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// stop must end the function by SIGTERM, at once.
func (w world) stop(t *testing.T, id string) {
	t.Helper()
	if rss := residentKB(t, w, id); rss > 0 {
		t.Logf("%s: %d KB resident", id, rss)
	}
	if err := w.runtime.Stop(t.Context(), id, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	s, err := w.runtime.Status(t.Context(), id)
	if err != nil || s.State != container.Stopped || s.ExitCode != 0 {
		t.Errorf("after stop: %+v, %v; log:\n%s", s, err, w.log(t, id))
	}
}

func residentKB(t testing.TB, w world, id string) int {
	t.Helper()
	s, err := w.runtime.Status(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID))
	if err != nil {
		t.Fatalf("%s: %v; log:\n%s", id, err, w.log(t, id))
	}
	return field(t, string(raw), "VmRSS:")
}

// field reads a number from a file of /proc.
func field(t testing.TB, text, name string) (n int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

// Each function of the catalogue does its work in a real container, as made from its image.
func TestFunctionsInContainers(t *testing.T) {
	w := newWorld(t)
	t.Run("wire", func(t *testing.T) {
		r := rig.New(t, false)
		id := w.run(t, "wire", r.Netns, "")
		// A shell's orphan becomes the wire's child, and must not stay a zombie.
		var out strings.Builder
		script := "(sleep 0.05 &); i=0; while grep -q sleep /proc/[0-9]*/stat && [ $i -lt 200 ]; do i=$((i+1)); done; grep -l '^State:.Z' /proc/[0-9]*/status"
		_, err := w.runtime.Exec(t.Context(), id, container.ExecSpec{Args: []string{"sh", "-c", script}, Stdout: &out})
		if err != nil || out.String() != "" {
			t.Errorf("zombies: %q, %v", out.String(), err)
		}
		var program io.Closer // the switch's, which forwards
		r.Do(r.Netns, func() (err error) { program, err = bpf.AttachWire("in", "out"); return err })
		defer program.Close()
		s, err := w.runtime.Status(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		rig.Hostile{Frames: 1_000_000, MTU: 9000, MemoryKB: 1024, Pass: 0.9}.Send(r, s.PID)
		w.stop(t, id)
	})
	t.Run("firewall", func(t *testing.T) {
		r := rig.New(t, false)
		id := w.run(t, "firewall", r.Netns, `{"allow": ["tcp/80"]}`)
		rig.Eventually(t, "the bridge forwards", func() bool {
			r.Client.Send(rig.Probe(0))
			return r.Server.Receive(20*time.Millisecond) != nil
		})
		r.Server.Echo("10.77.0.2:80")
		r.Server.Echo("10.77.0.2:81")
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:80")
		if err != nil {
			t.Fatalf("allowed port: %v\n%s", err, w.log(t, id))
		}
		c.Close()
		ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:81"); err == nil {
			c.Close()
			t.Error("a port that is not allowed answers")
		}
		for r.Server.Receive(100*time.Millisecond) != nil { // what was on its way
		}
		if f := r.Server.Receive(2 * time.Second); f != nil {
			t.Errorf("it says something for itself: % x", f)
		}
		w.stop(t, id)
	})
	t.Run("shaper", func(t *testing.T) {
		r := rig.New(t, false)
		id := w.run(t, "shaper", r.Netns, `{"up": {"rate": "10Mbit"}, "down": {"rate": "20Mbit"}, "classes": [{"name": "voice", "share": "10%", "match": ["udp/5060", {"dscp": "ef"}]}]}`)
		rig.Eventually(t, "the bridge forwards", func() bool {
			r.Client.Send(rig.Probe(0))
			return r.Server.Receive(20*time.Millisecond) != nil
		})
		if log := w.log(t, id); !strings.Contains(log, "up=10000000 down=20000000 queue=50ms classes=1") {
			t.Errorf("in a container: %s", log)
		}
		w.stop(t, id)
	})
	t.Run("impair", func(t *testing.T) {
		r := rig.New(t, false)
		id := w.run(t, "impair", r.Netns, `{"up": {"delay": "50ms"}, "down": {"delay": "50ms"}}`)
		r.Server.Echo("10.77.0.2:80")
		rig.Eventually(t, "frames pass", func() bool {
			r.Client.Send(rig.Probe(0))
			return r.Server.Receive(20*time.Millisecond) != nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		begin := time.Now()
		c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:80")
		if err != nil {
			t.Fatalf("%v; log:\n%s", err, w.log(t, id))
		}
		c.Close()
		if took := time.Since(begin); took < 100*time.Millisecond {
			t.Errorf("connected after %s: want at least 100 ms", took)
		}
		w.stop(t, id)
	})
	t.Run("load-balancer", func(t *testing.T) {
		r := rig.New(t, false)
		id := w.run(t, "load-balancer", r.Netns, `{"services": {"web": {"address": "10.77.0.100", "protocol": "tcp", "port": 80, "targets": [{"address": "10.77.0.2", "port": 8080}]}}, "health": {"addresses": ["10.77.0.9/24"]}}`)
		r.Server.Echo("10.77.0.2:8080")
		rig.Eventually(t, "a connection to the virtual address", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.100:80")
			if err == nil {
				c.Close()
			}
			return err == nil
		})
		w.stop(t, id)
	})
	t.Run("udp-forward", func(t *testing.T) {
		r := rig.New(t, false)
		id := w.run(t, "udp-forward", r.Netns, `{"addresses": ["10.77.0.9/24"], "relays": [{"port": 7000, "to": "10.77.0.2:7001"}]}`)
		c, err := r.Client.Dial(t.Context(), "udp4", "10.77.0.9:7000")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		rig.Eventually(t, "a datagram is sent on", func() bool {
			_, _ = c.Write([]byte("payload"))
			for f := r.Server.Receive(100 * time.Millisecond); f != nil; f = r.Server.Receive(100 * time.Millisecond) {
				if strings.HasSuffix(string(f), "payload") {
					return true
				}
			}
			return false
		})
		w.stop(t, id)
	})
	t.Run("dns-lb", func(t *testing.T) {
		r := rig.New(t, false)
		id := w.run(t, "dns-lb", r.Netns, `{"names": {"own.example": {"targets": [{"address": "10.77.0.11"}], "check": {"tcp": 80}}}, "health": {"addresses": ["10.77.0.9/24"]}}`)
		rig.Eventually(t, "frames pass", func() bool {
			r.Client.Send(rig.Probe(0))
			return r.Server.Receive(20*time.Millisecond) != nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		c, err := r.Client.Dial(ctx, "udp4", "10.77.0.2:53")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		query := "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03own\x07example\x00\x00\x01\x00\x01"
		b := make([]byte, 512)
		_ = c.SetDeadline(time.Now().Add(rig.Patience))
		if _, err := c.Write([]byte(query)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(b); err != nil || !strings.HasSuffix(string(b[:n]), "\x0a\x4d\x00\x0b") {
			t.Errorf("answer % x, %v; log:\n%s", b[:n], err, w.log(t, id))
		}
		w.stop(t, id)
	})
	t.Run("http-filter", func(t *testing.T) {
		r := rig.New(t, false)
		id := w.run(t, "http-filter", r.Netns, `{"rules": [{"name": "no", "paths": ["/no"]}], "unknown": "reset"}`)
		r.Server.Echo("10.77.0.2:80")
		for path, want := range map[string]string{"/yes": "GET /yes", "/no": "HTTP/1.1 403 Forbidden"} {
			var got []byte
			rig.Eventually(t, path, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
				defer cancel()
				c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:80")
				if err != nil {
					return false
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(rig.Patience))
				fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", path)
				got = make([]byte, len(want))
				_, err = io.ReadFull(c, got) // the server sends back what it gets, which is no answer, but not forbidden
				return err == nil
			})
			if string(got) != want {
				t.Errorf("%s: %q; log:\n%s", path, got, w.log(t, id))
			}
		}
		w.stop(t, id)
	})
	t.Run("nat", func(t *testing.T) {
		r := rig.New(t, false)
		id := w.run(t, "nat", r.Netns, `{"pool": ["10.77.0.100"]}`)
		rig.Eventually(t, "frames pass", func() bool {
			r.Client.Send(rig.Probe(0))
			return r.Server.Receive(20*time.Millisecond) != nil
		})
		r.Server.Echo("10.77.0.2:80")
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:80") // the server finds the pool, which nobody else has
		if err != nil {
			t.Fatalf("%v; log:\n%s", err, w.log(t, id))
		}
		c.Close()
		w.stop(t, id)
	})
	t.Run("monitor", func(t *testing.T) {
		r := rig.New(t, true)
		id := w.run(t, "monitor", r.Netns, "")
		rig.Eventually(t, "the probe is logged", func() bool {
			r.Client.Send(rig.Probe(0))
			return strings.Contains(w.log(t, id), `"proto":"0x88b5"`)
		})
		w.stop(t, id)
		if log := w.log(t, id); !strings.Contains(log, `"event":"summary"`) {
			t.Errorf("no summary at its end:\n%s", log)
		}
	})
}

// The same sources make the same images, whenever and wherever they are built.
func TestBuildIsReproducible(t *testing.T) {
	var digests [2]string
	for i := range digests {
		r, err := image.LoadRecipe("wire")
		if err != nil {
			t.Fatal(err)
		}
		if digests[i], err = r.Build(t.Context(), filepath.Join(t.TempDir(), "layout")); err != nil {
			t.Fatal(err)
		}
	}
	if digests[0] != digests[1] {
		t.Errorf("digests differ: %v", digests)
	}
}
