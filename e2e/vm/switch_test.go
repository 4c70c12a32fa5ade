package vm

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"testing"
)

// inside runs tests of a package in a machine with Debian's kernel, and returns what they print. run is a pattern of tests; "" all.
func inside(t *testing.T, pkg, run string, modules []string) []byte {
	t.Helper()
	kernels, _ := filepath.Glob("../../build/vm/kern/boot/vmlinuz-*-cloud-amd64")
	if len(kernels) == 0 {
		t.Fatal("no kernel in ../../build/vm/kern: make peers unpacks one")
	}
	dir := t.TempDir()
	name := path.Base(pkg) + ".test"
	files := map[string]string{name: filepath.Join(dir, "root", name)}
	build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", files[name], "../../"+pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the tests of %s: %v\n%s", pkg, err, out)
	}
	script := "#!/busybox sh\n/busybox mkdir -p /proc /sys /tmp /run /dev /bin\n/busybox ln -s /busybox /bin/sleep\n/busybox mount -t proc p /proc\n/busybox mount -t sysfs s /sys\n/busybox mount -t cgroup2 c /sys/fs/cgroup\n" +
		"/busybox mount -t devtmpfs d /dev\n/busybox mount -t tmpfs t /tmp\n/busybox mount -t tmpfs r /run\n" + load(t, kernels[0], modules, files) +
		"/busybox ip link set lo up\nexport TMPDIR=/tmp PATH=/bin\n/" + name + " -test.v -test.run '" + run + "' && /busybox echo VM-PASS\n/busybox poweroff -f\n"
	out, err := boot(t, kernels[0], pack(t, dir, script, files), 768, bootTime)
	if err != nil || !bytes.Contains(out, []byte("VM-PASS")) || bytes.Contains(out, []byte("--- SKIP")) {
		t.Fatalf("the tests in the machine failed, or left something out: %v", err)
	}
	return out
}

// The tests of what bounds sockets run in a kernel that takes programs of tracing, for which some machines' policy has no room.
func TestSocketsInAKernelThatShowsThem(t *testing.T) {
	inside(t, "bpf/rings", "", []string{"af_packet"})
}

// The switch's programs are taken, and do what they are to, in a kernel that counts their stack as all did before Linux 6.8, and has no tcx.
func TestTheSwitchInAnOlderKernel(t *testing.T) {
	out := inside(t, "datapath/ebpf", "^TestConformance$/^(auto|clsact)$/^(settled_flows|flows_that_functions_in_a_row_have_settled|restart)$",
		[]string{"af_packet", "veth", "bridge", "sch_ingress", "cls_bpf"})
	if n := bytes.Count(out, []byte("--- PASS: TestConformance/")); n != 8 { // two hooks, three cases of each
		t.Errorf("%d tests in the machine, want 8", n)
	}
}
