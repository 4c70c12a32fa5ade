package failure

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
	"weir.dev/weir/netns"
)

// connect makes a TCP connection from alice to bob.
func connect(t *testing.T, r *rig.Rig) error {
	t.Helper()
	var l net.Listener
	err := netns.Do(r.Bob(), func() (err error) {
		l, err = net.Listen("tcp", rig.BobAddr+":80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return netns.Do(r.Alice(), func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 2*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// A Linux bridge in a function, as anybody makes it, drops what two one-way policies lead through its chain. That is told with the remedy, and the
// remedy is one.
func TestABridgeThatLearnsIsTold(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.Bare(t, rig.Options{Args: []string{"--switch", sw}})
			dir := t.TempDir()
			for name, text := range map[string]string{
				"run": "#!/bin/busybox sh\nbrctl addbr br0 || true\nbrctl addif br0 in || true\nbrctl addif br0 out || true\nip link set br0 up\nexec sleep 1000000\n",
				image.RecipeFile: `
name: bridge
tag: "1"
description: An ordinary bridge
entrypoint: [/bin/busybox, sh, /run.sh]
labels: {weir.capabilities: CAP_NET_ADMIN}
files:
  - {to: /run.sh, from: run}
`,
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			recipe, err := image.LoadRecipe(dir)
			if err != nil {
				t.Fatal(err)
			}
			r.Images = filepath.Join(dir, "images")
			if _, err := recipe.Build(ctx, r.Images); err != nil {
				t.Fatal(err)
			}
			if err := r.Up(ctx); err != nil {
				t.Fatal(err)
			}
			doc := func() string {
				return r.Endpoints() + "functions:\n  f: {image: bridge}\nchains:\n  c: f\npolicies:\n" +
					"  p: {from: alice, to: bob, match: [tcp], chain: c, symmetric: false}\n  q: {from: bob, to: alice, match: [tcp], chain: c, symmetric: false}\n"
			}
			r.MustApply(ctx, t, doc())
			rig.Eventually(ctx, t, "the warning", func() (bool, string) {
				f := function(ctx, t, r, "f")
				return len(events(ctx, t, r, "BridgeLearns", "f")) == 1 && strings.Contains(f.Status.Message, "learning off"), fmt.Sprintf("%+v", f.Status)
			})
			if err := connect(t, r); err == nil {
				t.Error("TCP passes a bridge that has learned both stations at one port: the warning is wrong")
			}
			for _, line := range []string{"bridge link set dev in learning off", "bridge link set dev out learning off", "ip link set br0 type bridge fdb_flush"} {
				if _, err := r.Run(ctx, filepath.Join("/run/weir", r.Name, "netns", "f"), strings.Fields(line)...); err != nil {
					t.Fatal(err)
				}
			}
			rig.Eventually(ctx, t, "that all is well", func() (bool, string) {
				f := function(ctx, t, r, "f")
				return f.Status.Healthy && f.Status.Message == "", fmt.Sprintf("%+v", f.Status)
			})
			if err := connect(t, r); err != nil {
				t.Errorf("with learning off: %v", err)
			}
			if n := len(events(ctx, t, r, "BridgeLearns", "f")); n != 1 {
				t.Errorf("%d warnings", n)
			}
		})
	}
}
