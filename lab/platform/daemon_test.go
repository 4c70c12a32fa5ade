package platform

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// A daemon whose lab was killed is ended by the next run, by the record that it left; and nothing else.
func TestDaemonsOfACrashAreRemoved(t *testing.T) {
	o := testOptions(t)
	var left []*Daemon
	for range 2 {
		d, err := StartDaemon(t.Context(), o, false)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, d)
	}
	t.Cleanup(func() {
		for _, d := range left {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	if left[0].inst.Name == left[1].inst.Name {
		t.Fatalf("two daemons are called %s", left[0].inst.Name)
	}
	if err := left[0].Apply(t.Context(), Wires(1)); err != nil {
		t.Error(err)
	}
	before, err := left[0].CPU()
	if err != nil || before <= 0 || before > time.Minute {
		t.Errorf("it has used %s: %v", before, err)
	}
	if err := removeDaemons(o); err != nil {
		t.Fatal(err)
	}
	for _, d := range left {
		select {
		case <-d.ended:
		case <-time.After(10 * time.Second):
			t.Errorf("daemon %s lives on", d.inst.Name)
		}
	}
	for _, pattern := range []string{Run + "/" + o.Name + "-*", State + "/" + o.Name + "-*", Run + "/" + daemonNames(o) + "*", State + "/" + daemonNames(o) + "*"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			t.Errorf("left behind: %v", found)
		}
	}
	if err := removeDaemons(o); err != nil {
		t.Errorf("nothing is there: %v", err)
	}
}

// A program that does not come up leaves its words and nothing else.
func TestDaemonThatDoesNotComeUp(t *testing.T) {
	o := testOptions(t)
	o.Program = "/bin/false"
	if _, err := StartDaemon(t.Context(), o, false); err == nil || !strings.Contains(err.Error(), "/bin/false up ended") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(filepath.Join(State, o.Name+suffixDaemons)); err == nil {
		entries, _ := os.ReadDir(filepath.Join(State, o.Name+suffixDaemons))
		if len(entries) > 0 {
			t.Errorf("left behind: %v", entries)
		}
		if err := removeDaemons(o); err != nil {
			t.Error(err)
		}
	}
	for _, f := range []Former{"", Former(t.TempDir())} {
		if f.Check() == "" {
			t.Errorf("clone %q: it has a program", f)
		}
	}
}

// The lab waits until no program is a tc filter. What a function has at its ports is no program, and stays: nobody waits for that.
func TestFiltersThatAreNoProgramsAreNotCounted(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	space := filepath.Join(t.TempDir(), "netns")
	must(netns.Create(space, netns.Options{Quiet: true}))
	t.Cleanup(func() { must(netns.Delete(space)) })
	must(netns.Do(space, func() error {
		lo, err := netlink.LinkByName("lo")
		must(err)
		index := lo.Attrs().Index
		must(netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}))
		attrs := netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Protocol: unix.ETH_P_ALL, Priority: 1}
		must(netlink.FilterAdd(&netlink.U32{FilterAttrs: attrs, RedirIndex: index}))
		if n, err := filtersHere(); n != 0 || err != nil {
			t.Errorf("a redirection: %d, %v", n, err)
		}
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
		must(err)
		defer program.Close()
		attrs.Priority = 2
		must(netlink.FilterAdd(&netlink.BpfFilter{FilterAttrs: attrs, Fd: program.FD(), Name: "weir", DirectAction: true}))
		if n, err := filtersHere(); n != 1 || err != nil {
			t.Errorf("and a program: %d, %v", n, err)
		}
		return nil
	}))
}
