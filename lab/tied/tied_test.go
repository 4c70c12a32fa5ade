package tied

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"weir.dev/weir/netns"
)

// A program goes on when threads of this process end, and it is where it is wanted.
func TestAProgramOutlivesThreads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("root is needed (network namespaces): sudo make test")
	}
	dir, err := os.MkdirTemp("/run", "weir-tied-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	space := filepath.Join(dir, "space")
	if err := netns.Create(space, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(space); err != nil {
			t.Error(err)
		}
	})
	var all []*exec.Cmd
	for _, where := range []string{"", space} {
		for range 8 {
			cmd := exec.Command("cat", "/proc/self/mounts", "-") // the standard input: until it is closed
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := Start(where, cmd); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				in.Close()
				if err := cmd.Wait(); err != nil {
					t.Errorf("a program has ended: %v", err)
				}
			})
			all = append(all, cmd)
		}
	}
	ended := make(chan bool)
	for range 64 {
		go func() {
			runtime.LockOSThread() // for ever: the thread ends with this goroutine
			ended <- true
		}()
	}
	for range 64 {
		<-ended
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for i, cmd := range all {
		link, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "ns/net"))
		if err != nil {
			t.Fatal(err)
		}
		if elsewhere := i >= 8; (link != own) != elsewhere {
			t.Errorf("program %d is in %s, this process in %s", i, link, own)
		}
	}
	if err := Start(filepath.Join(dir, "none"), exec.Command("true")); err == nil {
		t.Error("a namespace that is not there is none")
	}
}
