package badinput

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// traces are all that a start leaves in the machine.
func traces(ctx context.Context, t *testing.T, r *rig.Rig) []string {
	t.Helper()
	all, err := rig.Snapshot(ctx, r.Netns)
	if err != nil {
		t.Fatal(err)
	}
	s := slices.DeleteFunc(all, func(l string) bool { return !strings.Contains(l, r.Name) }) // others may be at work on this machine
	entries, err := os.ReadDir(r.Root)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		s = append(s, "root: "+e.Name())
	}
	return s
}

// try runs the binary in the daemon's namespace with changes to the command.
func try(ctx context.Context, r *rig.Rig, change func(*exec.Cmd), args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	c := r.Command(ctx, "", append([]string{r.Bin}, args...)...)
	c.Env = r.Env()
	if change != nil {
		change(c)
	}
	var out strings.Builder
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	if exit, ok := err.(*exec.ExitError); ok {
		return &rig.ExitError{Argv: c.Args, Code: exit.ExitCode(), Stderr: out.String()}
	}
	return err
}

func TestStartRefused(t *testing.T) {
	r, ctx := rig.Bare(t, rig.Options{})
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, []byte("a file\n"))
	readOnly := filepath.Join(t.TempDir(), "ro")
	if err := os.Mkdir(readOnly, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", readOnly, "tmpfs", unix.MS_RDONLY, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(readOnly, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	badToken := t.TempDir()
	if err := os.WriteFile(filepath.Join(badToken, "token"), []byte(strings.Repeat("x", 43)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(badToken, "token"), 0o644); err != nil {
		t.Fatal(err)
	}
	var busy net.Listener
	if err := netns.Do(r.Netns, func() (err error) {
		busy, err = net.Listen("tcp4", "127.0.0.1:7499")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	lacking := func(capability string) func(*exec.Cmd) {
		return func(c *exec.Cmd) { prefix(c, "setpriv", "--bounding-set=-"+capability, "--inh-caps=-"+capability) }
	}
	before := traces(ctx, t, r)
	for _, c := range []struct {
		name   string
		change func(*exec.Cmd)
		args   []string
		code   int
		say    []string
	}{
		{"runtime that is not there", nil, []string{"--runtime", "/nonexistent"}, failure, []string{"/nonexistent", "apt-get install runc", "--runtime"}},
		{"no runc in the path", func(c *exec.Cmd) { c.Env = append(c.Env, "PATH=/nonexistent") }, []string{"--runtime", "oci"}, failure, []string{"runc", "not found in $PATH", "apt-get install runc"}},
		{"port in use", nil, []string{"--listen", "127.0.0.1:7499"}, conflict, []string{"127.0.0.1:7499", "address already in use", "--listen none"}},
		{"address of others", nil, []string{"--listen", "0.0.0.0:7411"}, failure, []string{"not loopback", "use 127.0.0.1"}},
		{"no address", nil, []string{"--listen", "here"}, failure, []string{`"here"`, "want host:port, for example 127.0.0.1:7411"}},
		{"name too long", nil, []string{"--name", "a-name-of-16-let"}, usage, []string{"want 1 to 10 characters of a-z, 0-9"}},
		{"name with a slash", nil, []string{"--name", "../etc"}, usage, []string{"want 1 to 10 characters of a-z, 0-9"}},
		{"root is a file", nil, []string{"--root", file}, failure, []string{file, "not a directory", "--root"}},
		{"root below a file", nil, []string{"--root", file + "/below"}, failure, []string{file, "not a directory", "--root"}},
		{"root cannot be written", nil, []string{"--root", readOnly}, full, []string{readOnly, "read-only file system", "--root"}},
		{"token that others can read", nil, []string{"--root", badToken}, failure, []string{"has mode 0644: others may have read it", "delete it (a new one is made"}},
		{"backup that is not there", nil, []string{"--restore", "/nonexistent"}, invalid, []string{"--restore", "/nonexistent"}},
		{"backup that is none", nil, []string{"--restore", file}, invalid, []string{"--restore", file, "nothing was changed"}},
		{"key that is not there", nil, []string{"--secret-key", "/nonexistent"}, invalid, []string{"--secret-key", "/nonexistent"}},
		{"key that others can read", nil, []string{"--secret-key", file}, invalid, []string{"--secret-key", "others may have read it"}},
		{"certificate that is not there", nil, []string{"--etcd", "https://127.0.0.1:9", "--etcd-ca", "/nonexistent"}, invalid, []string{"/nonexistent"}},
		{"certificate that is none", nil, []string{"--etcd", "https://127.0.0.1:9", "--etcd-ca", file}, invalid, []string{file, "holds no PEM certificate"}},
		{"key of images that is not there", nil, []string{"--verify", "*=/nonexistent"}, invalid, []string{"--verify", "/nonexistent"}},
		{"not root", asNobody(t, r), nil, forbidden, []string{"root is needed", "use sudo"}},
		{"root without CAP_SYS_ADMIN", lacking("sys_admin"), nil, forbidden, []string{"lacks CAP_SYS_ADMIN", "outside of the container"}},
		{"root without CAP_NET_ADMIN", lacking("net_admin"), nil, forbidden, []string{"lacks CAP_NET_ADMIN"}},
		{"root of a user namespace", func(c *exec.Cmd) {
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}}}
			c.Path, c.Args = r.Bin, c.Args[2:] // it may not enter other network namespaces
		}, nil, forbidden, []string{"root of a user namespace only", "start it outside"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused(t, try(ctx, r, c.change, append([]string{"up"}, c.args...)...), c.code, c.say...)
			if d := rig.Diff(before, traces(ctx, t, r)); len(d) > 0 {
				t.Errorf("left behind:\n%s", strings.Join(d, "\n"))
			}
		})
	}
	t.Run("kernel without bpf()", func(t *testing.T) {
		var err error
		var check error
		without(t, unix.SYS_BPF, func() {
			err = try(ctx, r, nil, "up")
			check = try(ctx, r, nil, "check")
		})
		refused(t, err, forbidden, "tc programs, needed for steering", "not supported by this kernel", "kernel 4.5 with CONFIG_BPF_SYSCALL")
		refused(t, check, forbidden, "tc programs", "missing", "CONFIG_BPF_SYSCALL")
		if d := rig.Diff(before, traces(ctx, t, r)); len(d) > 0 {
			t.Errorf("left behind:\n%s", strings.Join(d, "\n"))
		}
	})
	t.Run("not root, other commands", func(t *testing.T) {
		refused(t, try(ctx, r, asNobody(t, r), "down"), forbidden, "root is needed", "use sudo")
		refused(t, try(ctx, r, asNobody(t, r), "check"), forbidden, "root is needed", "use sudo")
	})
	t.Run("in a directory of others", func(t *testing.T) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "logs"), []byte("of others\n"))
		for _, more := range [][]string{nil, {"--detach"}} {
			refused(t, try(ctx, r, nil, append([]string{"up", "--root", dir}, more...)...), conflict, dir+" is no state directory of Weir, and holds logs", "--root")
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
				t.Errorf("%v: left in it: %v, %v", more, left, err)
			}
		}
		if d := rig.Diff(before, traces(ctx, t, r)); len(d) > 0 {
			t.Errorf("left behind:\n%s", strings.Join(d, "\n"))
		}
	})
	t.Run("in the background", func(t *testing.T) {
		refused(t, try(ctx, r, nil, "up", "--detach", "--runtime", "/nonexistent"), failure, "weir.log has:", "/nonexistent", "apt-get install runc")
	})
	t.Run("down where nothing is", func(t *testing.T) {
		for range 2 {
			if err := try(ctx, r, nil, "down"); err != nil {
				t.Error(err)
			}
		}
		if d := rig.Diff(before, traces(ctx, t, r)); len(d) > 0 {
			t.Errorf("left behind:\n%s", strings.Join(d, "\n"))
		}
	})
}

// asNobody runs a copy of the binary that everybody can reach as a user without rights, who can still see everything.
func asNobody(t *testing.T, r *rig.Rig) func(*exec.Cmd) {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	b, err := os.ReadFile(r.Bin)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "weir"), b, 0o755)
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(c *exec.Cmd) { // nsenter enters first
		c.Args[2] = filepath.Join(dir, "weir")
		c.Args = append(c.Args[:2:2], append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}, c.Args[2:]...)...)
	}
}

// prefix runs the binary by another command, inside the namespace.
func prefix(c *exec.Cmd, argv ...string) {
	c.Args = append(c.Args[:2:2], append(argv, c.Args[2:]...)...)
}

// without runs f on a thread, and all that f starts, as on a kernel that lacks a system call. The thread is thrown away.
func without(t *testing.T, number uint32, f func()) {
	t.Helper()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: number, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("seccomp filter (CONFIG_SECCOMP_FILTER): %v", err)
	}
}
