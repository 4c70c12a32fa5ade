// Package vm runs tests in a virtual machine whose kernel has what the machine's own may lack: WireGuard.
package vm

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// bootTime bounds a run: on a busy machine without KVM.
const bootTime = 4 * time.Minute

// modules that the tests need, besides those on which they depend.
var modules = []string{"veth", "vxlan", "wireguard"}

// withDependencies lists the files of modules, each after those that it depends on (the ELF section .modinfo says which).
func withDependencies(t *testing.T, dir string, names []string) []string {
	t.Helper()
	byName := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			byName[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	var add func(name string)
	add = func(name string) {
		path := byName[name]
		if path == "" || slices.Contains(out, path) {
			return // the first: built in
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, rest, ok := bytes.Cut(b, []byte("\x00depends=")); ok {
			list, _, _ := bytes.Cut(rest, []byte{0})
			for _, d := range strings.Split(string(list), ",") {
				add(strings.ReplaceAll(d, "-", "_"))
			}
		}
		out = append(out, path)
	}
	for _, n := range names {
		add(n)
	}
	return out
}

// The tunnels' tests of package netns run in Debian's cloud kernel.
func TestTunnelsInAKernelWithWireGuard(t *testing.T) {
	root := "../../build/vm/kern"
	kernels, _ := filepath.Glob(root + "/boot/vmlinuz-*-cloud-amd64")
	if len(kernels) == 0 {
		t.Fatalf("no kernel in %s: make peers unpacks one", root)
	}
	dir := t.TempDir()
	files := map[string]string{}
	for _, pkg := range []string{"netns", "agent/tunnel"} {
		name := filepath.Base(pkg) + ".test"
		files[name] = filepath.Join(dir, "root", name)
		build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", files[name], "../../"+pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the tests of %s: %v\n%s", pkg, err, out)
		}
	}
	script := "#!/busybox sh\n/busybox mkdir -p /proc /sys /tmp /run /dev /bin\n/busybox mount -t proc p /proc\n/busybox mount -t sysfs s /sys\n/busybox mount -t devtmpfs d /dev\n/busybox mount -t tmpfs t /tmp\n" +
		"/busybox mount -t tmpfs r /run\n/busybox ln -s /busybox /bin/ip\n/busybox ln -s /busybox /bin/ping\nexport PATH=/bin\n"
	script += load(t, kernels[0], modules, files)
	script += "/busybox ip link set lo up\nexport WEIR_TEST_WIREGUARD=1 TMPDIR=/tmp\n/netns.test -test.v -test.run WireGuard && /tunnel.test -test.v -test.run Sealed && /busybox echo VM-PASS\n/busybox poweroff -f\n"
	out, err := boot(t, kernels[0], pack(t, dir, script, files), 768, bootTime)
	if err != nil || !bytes.Contains(out, []byte("VM-PASS")) || bytes.Count(out, []byte("--- PASS: Test")) != 2 {
		t.Fatalf("the tests in the machine failed: %v", err)
	}
}

// trackingModules are those of a firewall whose kernel tracks connections on bridges.
var trackingModules = []string{"veth", "bridge", "nf_tables", "nf_conntrack_bridge", "nf_conntrack_netlink", "nft_ct", "nft_limit", "nft_reject_bridge", "nft_meta_bridge"}

// The firewall's tests that depend on it run in a kernel that tracks connections on bridges.
func TestTheFirewallInAKernelThatTracksConnectionsOnBridges(t *testing.T) {
	kernels, _ := filepath.Glob("../../build/vm/kern/boot/vmlinuz-*-cloud-amd64")
	if len(kernels) == 0 {
		t.Fatal("no kernel in ../../build/vm/kern: make peers unpacks one")
	}
	dir := t.TempDir()
	files := map[string]string{}
	for name, args := range map[string][]string{"firewall.test": {"test", "-c", "-vet=off"}, "firewall": {"build"}} {
		files[name] = filepath.Join(dir, "root", name)
		build := exec.Command("go", append(args, "-ldflags=-s -w", "-o", files[name], "../../catalogue/firewall")...)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the firewall: %v\n%s", err, out)
		}
	}
	tests := []string{"TestConnections", "TestWhatCountsForALimitIsNotSettled", "TestAllowedConnectionsAreSettled", "TestSegmentsBehindAGapPass", "TestRepliesOfUDPAreSettled", "TestManyFlowsAreSettledInTurn"}
	script := "#!/busybox sh\n/busybox mkdir -p /proc /sys /tmp /run /dev\n/busybox mount -t proc p /proc\n/busybox mount -t sysfs s /sys\n/busybox mount -t devtmpfs d /dev\n" +
		"/busybox mount -t tmpfs t /tmp\n/busybox mount -t tmpfs r /run\n" + load(t, kernels[0], trackingModules, files) +
		"/busybox ip link set lo up\nexport WEIR_FIREWALL=/firewall TMPDIR=/tmp\n/firewall.test -test.v -test.run '^(" + strings.Join(tests, "|") + ")$' && /busybox echo VM-PASS\n/busybox poweroff -f\n"
	out, err := boot(t, kernels[0], pack(t, dir, script, files), 768, bootTime)
	if err != nil || !bytes.Contains(out, []byte("VM-PASS")) || bytes.Count(out, []byte("--- PASS: Test")) != len(tests) ||
		!bytes.Contains(out, []byte("the kernel tracks connections on bridges: true")) {
		t.Fatalf("the tests in the machine failed: %v", err)
	}
}

// load says how the machine loads modules and what they need, and adds them to its files.
func load(t *testing.T, kernel string, names []string, files map[string]string) (script string) {
	t.Helper()
	version := strings.TrimPrefix(filepath.Base(kernel), "vmlinuz-")
	for _, path := range withDependencies(t, filepath.Join(kernel, "../../lib/modules", version), names) {
		files[filepath.Base(path)] = path
		script += "/busybox insmod /" + filepath.Base(path) + "\n"
	}
	return script
}

// boot runs a machine until it switches itself off, and returns what it has printed.
func boot(t *testing.T, kernel, initrd string, mb int, limit time.Duration) ([]byte, error) {
	t.Helper()
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatalf("%v: make setup installs it", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	begin := time.Now()
	cmd := exec.CommandContext(ctx, qemu, "-M", "pc", "-accel", "tcg", "-m", strconv.Itoa(mb), "-smp", "1", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 quiet panic=-1 tsc_early_khz=2600000 tsc=reliable mitigations=off")
	out, err := cmd.CombinedOutput()
	t.Logf("%v in the machine:\n%s", time.Since(begin).Round(100*time.Millisecond), out)
	return out, err
}

// pack makes an initramfs.
func pack(t *testing.T, dir, script string, files map[string]string) string {
	t.Helper()
	top := filepath.Join(dir, "root")
	copyFile := func(name, from string) {
		t.Helper()
		if from == filepath.Join(top, name) {
			return
		}
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(top, name), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatalf("%v: make setup installs it", err)
	}
	if err := os.MkdirAll(top, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, from := range files {
		copyFile(name, from)
	}
	copyFile("busybox", busybox)
	if err := os.WriteFile(filepath.Join(top, "init"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "initrd")
	cmd := exec.Command("sh", "-c", "find . | busybox cpio -o -H newc > "+out)
	cmd.Dir = top
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pack: %v\n%s", err, text)
	}
	return out
}
