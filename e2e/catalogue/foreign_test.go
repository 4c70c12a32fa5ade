package catalogue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
)

// filter is a shell script of somebody who has a bridge between two interfaces, and iptables.
const filter = `#!/bin/sh
set -e
ip link add br0 type bridge ageing_time 0 nf_call_iptables 1
for port in in out; do ip link set $port master br0; done
iptables-legacy -A FORWARD -p tcp --dport 8080 -j DROP
ip link set br0 up
echo filtering
exec sleep infinity
`

// TestImagesThatDoNotKnowWeir: an image of Debian with iptables-legacy and a shell script works in a chain, as does one that Docker builds of a Dockerfile of
// three lines. Neither has a label; the operator says which capabilities they get.
func TestImagesThatDoNotKnowWeir(t *testing.T) {
	t.Parallel()
	host := rig.DockerEngine(t)
	root := debian(t)
	docker(t, host, "", "sh", "-c", `tar -C "$0" -c . | docker import -c 'CMD ["/filter.sh"]' - elsewhere:1`, script(t, root))
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "filter.sh"), []byte(filter), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM elsewhere:1\nCOPY filter.sh /usr/bin/\nCMD [\"filter.sh\"]\n"), 0o644))
	docker(t, host, dir, "docker", "build", "-q", "-t", "dockerfile:1", ".")
	saved := filepath.Join(t.TempDir(), "saved.tar")
	docker(t, host, "", "docker", "save", "-o", saved, "elsewhere:1")

	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			if out, err := r.Weir(ctx, "image", "import", saved); err != nil || !strings.Contains(out, "elsewhere:1") {
				t.Fatalf("import of what Docker saved: %s %v", out, err)
			}
			if out, err := r.Weir(ctx, "image", "import", "docker:dockerfile:1", "--docker-host", host); err != nil || !strings.Contains(out, "dockerfile:1") {
				t.Fatalf("import from Docker: %s %v", out, err)
			}
			document := func(image, more string) string {
				return r.Endpoints() + fmt.Sprintf(`functions:
  f: {image: "%s", on_fail: drop%s}
chains:
  c: f
policies:
  p: {from: alice, to: bob, match: [tcp, icmp], chain: c}
`, image, more)
			}
			if _, err := r.Apply(ctx, document("elsewhere:1", ", allow: [CAP_SYS_ADMIN]")); err == nil || !strings.Contains(err.Error(), "CAP_SYS_ADMIN cannot be granted") {
				t.Errorf("a capability that nobody gets: %v", err)
			}
			for _, port := range []string{"80", "8080"} {
				serve(t, r, port)
			}
			for _, image := range []string{"elsewhere:1", "dockerfile:1"} {
				t.Run(image, func(t *testing.T) {
					r.MustApply(ctx, t, document(image, ", allow: [CAP_NET_ADMIN, CAP_NET_RAW]"))
					rig.Eventually(ctx, t, "what the script lets pass passes", func() (bool, string) { // without probes Weir sees only that its process lives
						out, err := r.Run(ctx, r.Alice(), "curl", "-sS", "--max-time", "2", "http://"+rig.BobAddr+":80/")
						return err == nil && strings.Contains(out, "hello"), fmt.Sprint(out, err)
					})
					if out, err := r.Run(ctx, r.Alice(), "curl", "-sS", "--max-time", "1", "http://"+rig.BobAddr+":8080/"); err == nil {
						t.Errorf("what the script drops passes: %s", out)
					}
					if out, err := r.Weir(ctx, "function", "logs", "f"); err != nil || !strings.Contains(out, "filtering") {
						t.Errorf("its log: %q, %v", out, err)
					}
				})
			}
		})
	}
}

// serve a page at a port of bob.
func serve(t *testing.T, r *rig.Rig, port string) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "index.html"), []byte("hello"), 0o644))
	if _, err := r.Start(r.Bob(), "busybox", "httpd", "-f", "-p", port, "-h", dir); err != nil {
		t.Fatal(err)
	}
}

// debian is a root with iptables, as anybody's tool makes one; it comes from the cache of builds, where it is.
func debian(t *testing.T) (root string) {
	t.Helper()
	inst, err := instance.New(fmt.Sprintf("else%x", os.Getpid()&0xffff), t.TempDir())
	must(t, err)
	dir, layout := t.TempDir(), filepath.Join(t.TempDir(), "layout")
	must(t, os.WriteFile(filepath.Join(dir, image.RecipeFile), []byte("name: root\ntag: \"1\"\nentrypoint: [/bin/sh]\nbase: debian:trixie\npackages: [iptables, iproute2]\n"), 0o644))
	recipe, err := image.LoadRecipe(dir)
	must(t, err)
	_, err = recipe.Build(t.Context(), layout)
	must(t, err)
	s := image.Open(inst, layout)
	t.Cleanup(func() {
		must(t, s.Destroy(context.Background()))
		if err := os.Remove(inst.Run); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	})
	root, err = s.Mount(t.Context(), "root")
	must(t, err)
	return root
}

// script puts the script into a copy of a root.
func script(t *testing.T, root string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "root")
	if out, err := exec.Command("cp", "-a", root, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, os.WriteFile(filepath.Join(to, "filter.sh"), []byte(filter), 0o755))
	must(t, os.RemoveAll(filepath.Join(to, "etc", "weir"))) // as elsewhere
	return to
}

// docker runs a program that speaks to an engine.
func docker(t *testing.T, host, dir string, argv ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+host, "DOCKER_BUILDKIT=0", "DOCKER_CONFIG="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
