package rig

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestFactsOfOthersAreNotOurs(t *testing.T) {
	const daemon, host = "weir-t0ab12c", "weir-t0ab12c-0" // namespaces of a rig, the second that of a machine with an instance of its own
	for fact, want := range map[string]bool{
		"cgroup: /sys/fs/cgroup/memory/weir/t0ab12c/fw":  false,
		"cgroup: /sys/fs/cgroup/memory/weir/t0ab12ca":    false,
		"cgroup: /sys/fs/cgroup/memory/weir/0":           true, // the instance that people use
		"cgroup: /sys/fs/cgroup/memory/weir/0/t0":        true,
		"cgroup: /sys/fs/cgroup/memory/weir/t":           true,
		"cgroup: /sys/fs/cgroup/memory/weir/t0ab12d/fw":  true,
		"mount: /run/weir/t0ab12ca/bpf":                  false,
		"mount: /run/weir/0/bpf":                         true,
		"/run/weir: t0ab12c":                             false,
		"/run/weir: 0":                                   true,
		"/run/netns: weir-t0ab12c-0":                     false,
		"/run/netns: weir-t0ab12d":                       true,
		"mount: /run/netns/t0ab12c-alice":                false,
		"mount: /run/netns/somebody":                     true,
		"mount: /tmp/weir-t0ab12c-123/root":              false,
		"mount: /tmp/weir-t0ab12d-123/root":              true,
		"mount: /tmp/TestDiskFull123/001/disk":           true,
		"mount: /mnt":                                    false,
		"weir-t0ab12c ip link: 2: lo: <UP>":              false,
		"weir-t0ab12c ip link: 3: t0ab12d-br: <UP>":      true,
		"weir-t0ab12c nft ruleset: table bridge foreign": false,
	} {
		for _, ours := range []string{daemon, host} {
			if got := others(fact, ours); got != want {
				t.Errorf("%q is another's, to %s: %v, want %v", fact, ours, got, want)
			}
		}
	}
}

func TestCgroupsAreThoseOfInstances(t *testing.T) {
	top := filepath.Join(t.TempDir(), "weir", "cgroup") // where it is does not make what is there Weir's
	var want []string
	for dir, instance := range map[string]bool{
		"memory/docker/x": false, "weirdo/x": false, "memory/weir": false, "memory/weir/t0ab12c": true, "memory/weir/t0ab12c/fw": true, "unified/weir/0": true,
	} {
		p := filepath.Join(top, dir)
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
		if instance {
			want = append(want, "cgroup: "+p)
		}
	}
	slices.Sort(want)
	if got := cgroups(top); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
