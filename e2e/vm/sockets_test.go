package vm

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The tests of what bounds sockets run in a kernel that takes programs of tracing, for which some machines' policy has no room.
func TestSocketsInAKernelThatShowsThem(t *testing.T) {
	kernels, _ := filepath.Glob("../../build/vm/kern/boot/vmlinuz-*-cloud-amd64")
	if len(kernels) == 0 {
		t.Fatal("no kernel in ../../build/vm/kern: make peers unpacks one")
	}
	dir := t.TempDir()
	files := map[string]string{"rings.test": filepath.Join(dir, "root", "rings.test")}
	build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", files["rings.test"], "../../bpf/rings")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the tests: %v\n%s", err, out)
	}
	script := "#!/busybox sh\n/busybox mkdir -p /proc /sys /tmp /run /dev\n/busybox mount -t proc p /proc\n/busybox mount -t sysfs s /sys\n/busybox mount -t cgroup2 c /sys/fs/cgroup\n" +
		"/busybox mount -t devtmpfs d /dev\n/busybox mount -t tmpfs t /tmp\n/busybox mount -t tmpfs r /run\n" + load(t, kernels[0], []string{"af_packet"}, files) +
		"/busybox ip link set lo up\nexport TMPDIR=/tmp\n/rings.test -test.v && /busybox echo VM-PASS\n/busybox poweroff -f\n"
	out, err := boot(t, kernels[0], pack(t, dir, script, files), 768, bootTime)
	if err != nil || !bytes.Contains(out, []byte("VM-PASS")) || bytes.Contains(out, []byte("--- SKIP")) {
		t.Fatalf("the tests in the machine failed, or left something out: %v", err)
	}
}
