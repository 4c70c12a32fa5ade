// Package unit runs Weir as the service that `weir unit` describes, under a real systemd: in its own PID, mount, cgroup and network namespaces, where
// nothing but that service is started and nothing is written to this machine's disk.
package unit

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
)

// boot makes the namespaces' private places and becomes systemd. $1 is a directory with weir.service and the images, $2 the name of a cgroup.
const boot = `set -e
for c in /sys/fs/cgroup/*/; do [ -e "$c/cgroup.procs" ] || continue; mkdir -p "$c/$2"; echo 0 > "$c/$2/cgroup.procs" 2>/dev/null || true; done
[ ! -e /sys/fs/cgroup/cgroup.procs ] || { mkdir -p "/sys/fs/cgroup/$2"; echo 0 > "/sys/fs/cgroup/$2/cgroup.procs"; }
exec unshare --cgroup --pid --mount --net --fork --kill-child --mount-proc bash -ec '
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system/weir.service.d /run/lock /run/netns /run/test
mount --bind "$1" /run/test
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /etc/systemd
mkdir -p /etc/systemd/system
mkdir /run/dpkg
mount --bind /var/lib/dpkg /run/dpkg
mount -t tmpfs tmpfs /var/lib
mkdir /var/lib/dpkg
mount --bind /run/dpkg /var/lib/dpkg
ip link set lo up
cp /run/test/weir.service /run/systemd/system/
printf "[Unit]\nDefaultDependencies=no\nWants=\nAfter=\n[Service]\nUMask=0077\nWatchdogSec=3\nStandardOutput=append:/run/test/daemon.log\nStandardError=inherit\n" > /run/systemd/system/weir.service.d/alone.conf
printf "[Unit]\nDefaultDependencies=no\nWants=weir.service\n" > /run/systemd/system/only.target
export container=weir-test
exec /lib/systemd/systemd --unit=only.target --log-target=console --show-status=no
' bash "$1"
`

// machine is a systemd in namespaces.
type machine struct {
	dir, cgroup string
	pid         int // of systemd, on this machine
	out         *bytes.Buffer
}

func start(ctx context.Context, t *testing.T, command string, args ...string) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("root is needed: use sudo")
	}
	id := make([]byte, 3)
	if _, err := rand.Read(id); err != nil {
		t.Fatal(err)
	}
	m := &machine{dir: t.TempDir(), cgroup: "weir-unit-" + hex.EncodeToString(id), out: &bytes.Buffer{}}
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"bin/weir": "weir", "bin/images": "images"} {
		if out, err := exec.Command("cp", "-a", filepath.Join(top, from), filepath.Join(m.dir, to)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s: build it with `make build`", err, out)
		}
	}
	text, err := exec.Command(filepath.Join(m.dir, "weir"), append([]string{"unit", command, "--name", "u" + hex.EncodeToString(id), "--"}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte(m.dir), []byte("/run/test"))
	if err := os.WriteFile(filepath.Join(m.dir, "weir.service"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("bash", "-c", boot, "bash", m.dir, m.cgroup)
	c.Stdout, c.Stderr = m.out, m.out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = c.Wait(); close(done) }()
	t.Cleanup(func() {
		_ = c.Process.Kill() // unshare's child, systemd, goes with it, and with that its PID namespace
		<-done
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(m.dir, "daemon.log"))
			t.Logf("systemd said:\n%s\nthe daemon:\n%s", m.out, log)
		}
		m.removeCgroups(t)
	})
	rig.Eventually(ctx, t, "systemd runs", func() (bool, string) {
		kids, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", c.Process.Pid, c.Process.Pid))
		for _, k := range strings.Fields(string(kids)) {
			if name, _ := os.ReadFile("/proc/" + k + "/comm"); strings.TrimSpace(string(name)) == "systemd" {
				m.pid, _ = strconv.Atoi(k)
				return true, ""
			}
		}
		return false, "no systemd among the children " + string(kids)
	})
	return m
}

// removeCgroups removes the groups that systemd and Weir made below the test's own, when their processes have ended.
func (m *machine) removeCgroups(t *testing.T) {
	tops, _ := filepath.Glob("/sys/fs/cgroup/*/" + m.cgroup)
	tops = append(tops, "/sys/fs/cgroup/"+m.cgroup)
	for deadline := time.Now().Add(20 * time.Second); ; {
		var left []string
		for _, top := range tops {
			var dirs []string
			_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			slices.Reverse(dirs)
			for _, d := range dirs {
				if err := syscall.Rmdir(d); err != nil {
					left = append(left, fmt.Sprintf("%s: %v", d, err))
				}
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("cgroups are left: %v", left)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// run runs a command in the machine.
func (m *machine) run(ctx context.Context, stdin string, argv ...string) (string, error) {
	c := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(m.pid), "--pid", "--mount", "--net", "--cgroup"}, argv...)...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return string(out), nil
}

func (m *machine) must(ctx context.Context, t *testing.T, stdin string, argv ...string) string {
	t.Helper()
	out, err := m.run(ctx, stdin, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// property is one of the service.
func (m *machine) property(ctx context.Context, name string) string {
	out, _ := m.run(ctx, "", "systemctl", "show", "weir.service", "--property", name, "--value")
	return strings.TrimSpace(out)
}

func (m *machine) running(ctx context.Context, t *testing.T, besides string) string {
	t.Helper()
	var pid string
	rig.Eventually(ctx, t, "the service is active, ready, with another process than "+besides, func() (bool, string) {
		state := m.property(ctx, "ActiveState")
		pid = m.property(ctx, "MainPID")
		return state == "active" && pid != "0" && pid != besides, state + " " + pid
	})
	return pid
}

const document = `
endpoints:
  alice: {netns: alice, interface: eth0, address: 10.9.0.1/24}
  bob: {netns: bob, interface: eth0, address: 10.9.0.2/24}
functions:
  fw: {image: firewall, config: {allow: [icmp]}, on_fail: drop}
  w1: {image: wire}
chains:
  web: fw | w1
policies:
  guests: {from: alice, to: bob, match: [tcp, icmp], chain: web}
`

// The rights that the unit leaves are enough for chains on both switches; a daemon that is killed or hangs is started again by systemd, and the chain
// forwards on.
func TestServiceRunsUnderSystemd(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			m := start(ctx, t, "up", "--switch", sw, "--listen", "none", "--images", "/run/test/images")
			pid := m.running(ctx, t, "")
			name := strings.TrimPrefix(m.cgroup, "weir-unit-")
			weir := func(stdin string, args ...string) string {
				t.Helper()
				return m.must(ctx, t, stdin, append([]string{"/run/test/weir", "--name", "u" + name}, args...)...)
			}
			for _, ns := range []string{"alice", "bob"} {
				m.must(ctx, t, "", "ip", "netns", "add", ns)
			}
			weir(document, "apply", "-f", "-")
			ping := func() {
				t.Helper()
				m.must(ctx, t, "", "nsenter", "--net=/run/netns/alice", "ping", "-c", "3", "-i", "0.05", "-W", "2", "10.9.0.2")
			}
			ping()
			status, err := m.run(ctx, "", "cat", "/proc/"+pid+"/status")
			if err != nil {
				t.Fatal(err)
			}
			if !regexp.MustCompile(`(?m)^NoNewPrivs:\s+1$`).MatchString(status) || !regexp.MustCompile(`(?m)^Seccomp:\s+2$`).MatchString(status) {
				t.Errorf("the unit's rights are not in force:\n%s", status)
			}

			m.must(ctx, t, "", "kill", "-KILL", pid)
			ping()
			next := m.running(ctx, t, pid)
			weir("", "status")

			m.must(ctx, t, "", "kill", "-STOP", next) // it hangs: the watchdog finds out
			ping()
			m.running(ctx, t, next)
			if n := m.property(ctx, "NRestarts"); n != "2" {
				t.Errorf("restarts: %s, want 2", n)
			}
			weir("", "function", "restart", "fw") // the new daemon works
			ping()

			m.must(ctx, t, "", "systemctl", "stop", "weir.service")
			ping()
			weir("", "down", "--yes")
		})
	}
}

// A manager alone needs next to nothing.
func TestManagerRunsUnderSystemd(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	m := start(ctx, t, "manager", "--listen", "127.0.0.1:7411", "--agents", "127.0.0.1:7412")
	pid := m.running(ctx, t, "")
	weir := []string{"/run/test/weir", "--name", "u" + strings.TrimPrefix(m.cgroup, "weir-unit-")}
	m.must(ctx, t, "functions: {w1: {image: wire}}\n", append(weir, "apply", "--wait=false", "-f", "-")...)
	m.must(ctx, t, "", append(weir, "get", "functions")...)
	m.must(ctx, t, "", "kill", "-STOP", pid)
	m.running(ctx, t, pid)
	m.must(ctx, t, "", append(weir, "get", "functions")...)
}

// Exposure as systemd-analyze rates it, 0 to 10, is at most this. A host's daemon cannot be below about 7: it makes namespaces, mounts and BPF
// programs that have to outlive it.
func TestExposure(t *testing.T) {
	bin, err := filepath.Abs("../../bin/weir")
	if err != nil {
		t.Fatal(err)
	}
	for command, most := range map[string]float64{"up": 7.4, "agent": 7.4, "manager": 2.2} {
		text, err := exec.Command(bin, "unit", command).Output()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "weir.service")
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("systemd-analyze", "verify", path).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: systemd-analyze verify: %v: %s", command, err, out)
		}
		out, err := exec.Command("systemd-analyze", "security", "--offline=yes", "--threshold=100", path).CombinedOutput()
		found := regexp.MustCompile(`exposure level for weir.service: ([0-9.]+)`).FindSubmatch(out)
		if err != nil || found == nil {
			t.Fatalf("%s: systemd-analyze security: %v: %s", command, err, out)
		}
		rated, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil || rated > most {
			t.Errorf("%s: exposure %s, want at most %v", command, found[1], most)
		}
		t.Logf("%s: exposure %s", command, found[1])
	}
}
