package fabric

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"weir.dev/weir/testbed"
)

// Wherever `weir testbed up` is killed, down takes away all that it had made, daemons and what these had made included.
func TestTestbedIsRemovedWhereverUpWasKilled(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, 800 * time.Millisecond, 1100 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), lifetime)
			defer cancel()
			b := unbuilt(t, ctx, "vxlan.yaml", nil)
			c := exec.CommandContext(ctx, b.bin, "testbed", "up", b.file)
			c.Env = append(os.Environ(), "WEIR_NAME="+b.name)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(after, func() { _ = c.Process.Kill() })
			_ = c.Wait() // killed, or done before that
			var instances []string
			if s, err := testbed.List(b.name); err == nil {
				for _, n := range s.Nodes {
					if n.Instance != "" {
						instances = append(instances, n.Instance)
					}
				}
			}
			b.must("testbed", "down", b.name)
			for _, i := range instances {
				b.traces(i)
			}
		})
	}
}

// traces reports what is left of an instance: directories, mounts, control groups.
func (b *bed) traces(instance string) {
	b.t.Helper()
	for _, pattern := range []string{"/run/weir/", "/sys/fs/cgroup/weir/", "/sys/fs/cgroup/*/weir/"} {
		if left, _ := filepath.Glob(pattern + instance); len(left) > 0 {
			b.t.Errorf("left behind: %v", left)
		}
	}
	if mounts, _ := os.ReadFile("/proc/self/mounts"); bytes.Contains(mounts, []byte("/"+instance+"/")) {
		b.t.Errorf("mounts of %s left behind", instance)
	}
}
