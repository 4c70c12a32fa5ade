package platform

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir.dev/weir/lab/traffic/tools"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "platform: these tests make network namespaces and containers: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func testOptions(t *testing.T) Options {
	t.Helper()
	images, err := filepath.Abs("../../bin/images")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(images), "weir")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: build it with `make build`", err)
	}
	return Options{Name: fmt.Sprintf("tst-%04x", time.Now().UnixNano()&0xffff), Images: []string{images}, Program: program, Former: "../.."}
}

// A peer must really carry traffic, through as many wires as it says, or a ratio to it means nothing. It leaves nothing behind.
func TestPlatformsCarry(t *testing.T) {
	for _, k := range Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			o := testOptions(t)
			elsewhere := k.Name == PlatformHosts || k.Open == nil // it needs a Weir that runs, or the lab has no driver for it
			if why := k.Check(o); why != "" {
				if !elsewhere {
					t.Fatalf("not on this machine: %s", why)
				}
				return
			}
			if elsewhere {
				t.Fatal("it can be had here, it is said")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			p, err := k.Open(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				for _, pattern := range []string{Run + "/" + o.Name + "*", Run + "/" + daemonNames(o) + "*", State + "/" + daemonNames(o) + "*", "/var/lib/weir/" + o.Name + "*", "/sys/fs/cgroup/*/*" + o.Name + "*", "/sys/fs/cgroup/*/weir/" + o.Name + "*"} {
					if left, _ := filepath.Glob(pattern); len(left) > 0 {
						t.Errorf("left behind: %v", left)
					}
				}
			})
			lengths := []int{0}
			if k.Most > 0 {
				lengths = []int{3, 1, 2}
			}
			for _, n := range lengths {
				path, err := p.Path(ctx, n)
				if err != nil {
					t.Fatalf("%d wires: %v", n, err)
				}
				r, err := tools.RunPing(ctx, path.From, tools.PingOptions{To: path.Address, Count: 5, Interval: 5 * time.Millisecond})
				if err != nil || r.Received != 5 {
					t.Errorf("%d wires: %d of 5 echoes: %v", n, r.Received, err)
				}
			}
		})
	}
}
