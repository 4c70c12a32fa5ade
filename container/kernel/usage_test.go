package kernel

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// What a process in control groups of its own uses is told; of one that is in ours nothing is.
func TestUsage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("root is needed (control groups): sudo make test")
	}
	m, err := NewMeter()
	if err != nil {
		t.Fatal(err)
	}
	if u, ok := m.Usage(os.Getpid()); ok {
		t.Errorf("this process: %+v", u)
	}
	for _, pid := range []int{0, -1, 1 << 30} {
		if u, ok := m.Usage(pid); ok {
			t.Errorf("process %d: %+v", pid, u)
		}
	}
	busy := exec.Command("sh", "-c", "read go; while :; do :; done")
	stdin, err := busy.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	var made []string
	t.Cleanup(func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
		for _, dir := range made {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		}
	})
	name := "weir-test-" + strconv.Itoa(os.Getpid())
	for _, top := range []string{"/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(top, "cgroup.procs")); err != nil {
			continue
		}
		dir := filepath.Join(top, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		made = append(made, dir)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(busy.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		u, ok := m.Usage(busy.Process.Pid)
		if ok && u.CPU > 50*time.Millisecond {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%+v, %t", u, ok)
		}
	}
}
