package platform

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"weir.dev/weir/container/rkt"
)

// traces of a run in directories and cgroups.
func traces(o Options) (found []string) {
	for _, pattern := range []string{Run + "/" + o.Name + "-*", State + "/" + o.Name + "-*", "/sys/fs/cgroup/*/*" + o.Name + "*", "/sys/fs/cgroup/*/weir/" + o.Name + "*", "/sys/fs/cgroup/weir/" + o.Name + "*"} {
		left, _ := filepath.Glob(pattern)
		found = append(found, left...)
	}
	return found
}

func openMembers(t *testing.T, o MemberOptions) *Members {
	t.Helper()
	if why := CheckMembers(o.Options, o.Runtime, o.Network); why != "" {
		t.Fatalf("not on this machine: %s", why)
	}
	m, err := OpenMembers(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// On every network each member reaches each other one, also those that come later, and closing leaves nothing.
func TestMembersReachEachOther(t *testing.T) {
	t.Parallel()
	for _, network := range SegmentNames() {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			o := MemberOptions{Options: testOptions(t), Runtime: bare, Network: network}
			if network == byKernel && checkKernel() != "" {
				t.Skip(checkKernel())
			}
			m := openMembers(t, o)
			defer func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
				if left := traces(o.Options); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, n := range []int{2, 4, 3} {
				list, err := m.Grow(ctx, n)
				if err != nil || len(list) != n {
					t.Fatalf("%d of %d members: %v", len(list), n, err)
				}
				for i := range list[1:] {
					if err := m.Path(list[0], list[i+1]).Try(ctx); err != nil {
						t.Error(err)
					}
				}
				have, err := m.Path(list[0], list[1]).Conditions()
				if err != nil || have[SettingMTU] != "1500" {
					t.Errorf("%v, %v", have, err)
				}
				t.Logf("%d members: %v", n, have)
			}
		})
	}
}

// Members are containers of every runtime: a process can enter their cgroups, and they can be confined to processors.
func TestMembersAreContainers(t *testing.T) {
	t.Parallel()
	for _, runtime := range MemberRuntimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			o := MemberOptions{Options: testOptions(t), Runtime: runtime, Network: byBridges}
			if why := CheckMembers(o.Options, runtime, byBridges); why != "" {
				if runtime != rkt.Name { // which nobody packs any more
					t.Fatalf("not on this machine: %s", why)
				}
				t.Skip("machine lacks rkt: " + why)
			}
			var engine *Engine
			o.Engine = func(ctx context.Context) (_ *Engine, err error) {
				if engine == nil {
					engine, err = StartEngine(ctx, o.Options)
				}
				return engine, err
			}
			if runtime == byDocker { // Grow calls it from several goroutines
				if _, err := o.Engine(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			m := openMembers(t, o)
			defer func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
				if engine != nil {
					if err := engine.Close(); err != nil {
						t.Error(err)
					}
				}
				if left := traces(o.Options); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			}()
			list, err := m.Grow(t.Context(), 2)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Path(list[0], list[1]).Try(t.Context()); err != nil {
				t.Error(err)
			}
			if runtime == bare {
				if len(list[0].Groups) != 0 {
					t.Errorf("a namespace without a process is in %v", list[0].Groups)
				}
				return
			}
			own, err := groupsOf(os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			if len(list[0].Groups) != len(own) || slices.Equal(list[0].Groups, list[1].Groups) || slices.Equal(list[0].Groups, own) {
				t.Errorf("groups %v and %v, ours are %v", list[0].Groups, list[1].Groups, own)
			}
			for _, cpus := range []string{"0", "0-1"} {
				if ok, err := list[0].Confine(cpus); !ok || err != nil {
					t.Errorf("confined to %s: %t, %v", cpus, ok, err)
				}
			}
		})
	}
}

// What a run has left is removed by its name. (A switch of Weir's is locked as long as its process lives.)
func TestLeftMembersAreRemoved(t *testing.T) {
	for _, network := range []string{byMacvlan, byOVSNetdev} {
		o := MemberOptions{Options: testOptions(t), Runtime: "native", Network: network}
		if _, err := openMembers(t, o).Grow(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		if len(traces(o.Options)) == 0 {
			t.Error("nothing is there: the test does not test")
		}
		if err := Remove(t.Context(), o.Name); err != nil {
			t.Error(err)
		}
		if left := traces(o.Options); len(left) > 0 {
			t.Errorf("%s: left behind: %v", network, left)
		}
	}
}

func TestMembersHaveAddresses(t *testing.T) {
	seen := map[netip.Addr]bool{}
	for i := range maxMembers {
		p := memberAddress(i)
		if !memberNet.Contains(p.Addr()) || seen[p.Addr()] || p.Bits() != memberNet.Bits() {
			t.Errorf("member %d: %s", i, p)
		}
		seen[p.Addr()] = true
	}
}

func TestControllersOfAMount(t *testing.T) {
	for options, want := range map[string]string{
		"rw,cpu,cpuacct": "cpu,cpuacct", "rw,cpuset": "cpuset", "rw,xattr,name=systemd": "name=systemd", "rw,xattr,release_agent=/x,name=systemd": "name=systemd",
	} {
		if got := controllers(options); got != want {
			t.Errorf("%s: %q: want %q", options, got, want)
		}
	}
}
