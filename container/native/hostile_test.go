package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/launcher"
	"weir.dev/weir/container/kernel/suite"
	"weir.dev/weir/image"
	"weir.dev/weir/netns"
)

// probe is this test's program, in a container.
const probe = "/bin/probe"

// attempt is what the program does in a container: it prints a line of what went through, and waits if it is told so.
func attempt(args []string) {
	call := func(nr uintptr, a ...uintptr) {
		var all [6]uintptr
		copy(all[:], a)
		r, _, errno := unix.RawSyscall6(nr, all[0], all[1], all[2], all[3], all[4], all[5])
		if errno != 0 {
			fmt.Println("refused:", errno.Error())
			return
		}
		fmt.Println("went through:", r)
	}
	number := func(i int) uintptr {
		n, err := strconv.ParseUint(args[i], 0, 64)
		if err != nil {
			panic(err)
		}
		return uintptr(n)
	}
	said := func(what string, err error) {
		if err != nil {
			fmt.Println(what, "refused:", err)
			return
		}
		fmt.Println(what, "went through")
	}
	switch args[0] {
	case "personality":
		call(unix.SYS_PERSONALITY, number(1))
	case "socket":
		call(unix.SYS_SOCKET, number(1), unix.SOCK_SEQPACKET, 0)
	case "chmod": // to the mode that they have: it does no harm
		for _, d := range append(devices, "stdin", "stdout", "stderr") {
			if fi, err := os.Stat("/dev/" + d); err == nil && fi.Mode()&os.ModeCharDevice != 0 {
				said(d, os.Chmod("/dev/"+d, fi.Mode().Perm()))
			}
		}
	case "lease": // its log, so that whoever else opens it waits
		read, err := os.Open("/proc/self/fd/1")
		if err != nil {
			panic(err)
		}
		for n := range 3 {
			unix.Close(n)
		}
		_, err = unix.FcntlInt(read.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
		if err != nil {
			os.Exit(7)
		}
		time.Sleep(time.Hour)
	case "exe": // of a process that is about to be the container's program
		for {
			all, _ := filepath.Glob("/proc/[0-9]*/exe")
			for _, p := range all {
				if to, err := os.Readlink(p); err == nil && strings.Contains(to, "memfd:") {
					if f, err := os.Open(p); err == nil {
						said("chmod", f.Chmod(0))
						time.Sleep(time.Hour)
					}
				}
			}
		}
	case "reserve": // disk, for its log, beyond its end: no limit of a file's size counts there
		for range 2 {
			said("fallocate", unix.Fallocate(1, unix.FALLOC_FL_KEEP_SIZE, 0, reserved))
			said("zero", unix.Fallocate(1, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_ZERO_RANGE, 0, reserved))
			for _, number := range []uintptr{0x40305828, 0x4030582a, 1<<32 | 0x40305828} { // FS_IOC_RESVSP and its 64
				space := struct {
					kind, whence int16
					start, n     int64
					system       int32
					pid          uint32
					_            [4]int32
				}{n: reserved}
				_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, 1, number, uintptr(unsafe.Pointer(&space)))
				if errno == 0 {
					fmt.Println("ioctl went through")
				}
			}
		}
		said("hole", unix.Fallocate(1, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 1<<20, 4096))
		_, err := unix.IoctlGetInt(1, unix.TIOCINQ)
		fmt.Println("another ioctl:", err)
		time.Sleep(time.Hour)
	case "peek": // into processes that are the launcher's still, whose name is that of the descriptor that it is executed from
		name := func(dir string) string { b, _ := os.ReadFile(dir + "/comm"); return strings.TrimSpace(string(b)) }
		fmt.Println("ready")
		for seen := map[string]bool{}; ; {
			all, _ := filepath.Glob("/proc/[0-9]*")
			for _, dir := range all {
				if name(dir) != "3" {
					continue
				}
				if !seen[dir] {
					seen[dir] = true
					fmt.Println("met one")
				}
				for what, try := range map[string]func() error{
					"environ": func() error { return second(os.ReadFile(dir + "/environ")) }, "exe": func() error { return second(os.Readlink(dir + "/exe")) },
					"fd": func() error { return second(os.Readlink(dir + "/fd/4")) }, "file": func() error { return second(os.Open(dir + "/fd/4")) }, "root": func() error { return second(os.Readlink(dir + "/root")) },
					"cwd": func() error { return second(os.Readlink(dir + "/cwd")) }, "mem": func() error { return second(os.Open(dir + "/mem")) },
					"maps": func() error { return second(os.ReadFile(dir + "/maps")) },
				} {
					if err := try(); err == nil && name(dir) == "3" {
						fmt.Println(what, "went through")
					}
				}
			}
		}
	case "trace": // what ends then is not seen by its parent
		fmt.Println("ready")
		for traced := map[int]bool{}; ; {
			all, _ := filepath.Glob("/proc/[0-9]*")
			for _, dir := range all {
				pid, _ := strconv.Atoi(filepath.Base(dir))
				if b, _ := os.ReadFile(dir + "/comm"); string(b) == "sleep\n" && !traced[pid] && unix.PtraceSeize(pid) == nil {
					traced[pid] = true
					fmt.Println("traced")
				}
			}
		}
	case "forge": // the launcher's name for what it executes
		program, err := os.ReadFile("/bin/busybox")
		if err != nil {
			panic(err)
		}
		fd, err := unix.MemfdCreate(launcher.Name, 0)
		if err == nil {
			_, err = unix.Write(fd, program)
		}
		if err == nil {
			err = unix.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), []string{"sleep", "1000"}, nil)
		}
		panic(err)
	case "terminals":
		for n := 0; ; n++ {
			if _, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0); err != nil {
				fmt.Println(n, err)
				return
			}
		}
	case "wait":
		fmt.Println("ready")
		time.Sleep(time.Hour)
	}
}

func second[T any](_ T, err error) error { return err }

const reserved = 256 << 20

// withProbe is a root with the program in it.
func withProbe(t *testing.T, s *container.Spec) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.Rootfs, probe), self, 0o755))
}

// enclosed gives a spec namespaces that its root is the owner of, as the agent does.
func enclosed(t *testing.T, s *container.Spec) {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "weir-native-")
	must(t, err)
	must(t, os.Chmod(dir, 0o711))
	s.Netns, s.Userns = filepath.Join(dir, "net"), filepath.Join(dir, "user")
	s.IDs, err = netns.TakeIDs(dir)
	must(t, err)
	must(t, netns.CreateOwned(s.Userns, s.Netns, s.IDs, netns.Options{Quiet: true}))
	user, err := os.Open(s.Userns)
	must(t, err)
	defer user.Close()
	root, err := image.Shifted(s.Rootfs, user)
	must(t, err)
	defer unix.Close(root)
	s.Rootfs = filepath.Join(dir, "root")
	must(t, os.Mkdir(s.Rootfs, 0o755))
	must(t, unix.MoveMount(root, "", unix.AT_FDCWD, s.Rootfs, unix.MOVE_MOUNT_F_EMPTY_PATH))
	ids, rootfs, paths := s.IDs, s.Rootfs, []string{s.Netns, s.Userns}
	t.Cleanup(func() {
		must(t, unix.Unmount(rootfs, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		for _, p := range paths {
			must(t, netns.Delete(p))
		}
		must(t, os.RemoveAll(dir))
		must(t, netns.GiveIDsBack(dir, ids))
	})
}

// printed is what a container prints up to its end.
func printed(t *testing.T, r *kernel.Runtime, s container.Spec, args ...string) string {
	t.Helper()
	s.Args = append([]string{probe}, args...)
	must(t, r.Run(t.Context(), s))
	_, err := r.Wait(t.Context(), s.ID)
	must(t, err)
	l, err := r.Logs(t.Context(), s.ID, container.LogOptions{Latest: true})
	must(t, err)
	defer l.Close()
	var out bytes.Buffer
	_, err = out.ReadFrom(l)
	must(t, err)
	return out.String()
}

// The kernel looks at the lower half of some arguments only: what is in the upper one may not lead around the profile.
func TestNoArgumentLeadsAroundTheFilter(t *testing.T) {
	r, _, s := fresh(t)
	withProbe(t, &s)
	for _, c := range []struct{ call, arg, want string }{
		{"personality", "0x40000", "refused"},
		{"personality", "0x9e00040000", "refused"}, // 0x9e is arch_prctl on amd64
		{"personality", "0x9e", "refused"},
		{"personality", "8", "went through"},
		{"socket", "40", "refused: operation not permitted"},
		{"socket", "0x2900000028", "refused: operation not permitted"}, // AF_VSOCK; 0x29 is socket itself
		{"socket", "38", "refused: operation not permitted"},
		{"socket", "0x100000026", "refused: operation not permitted"}, // AF_ALG
		{"socket", "1", "went through"},
	} {
		if got := printed(t, r, s, c.call, c.arg); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s(%s): %s, want %s", c.call, c.arg, strings.TrimSpace(got), c.want)
		}
	}
}

// Root of a container without a user namespace owns the host's devices, and could take them from the host. So they and what stands for a stream that is
// not there are on mounts that are only read, which hinders nobody from writing into them.
func TestTheHostsDevicesCannotBeChanged(t *testing.T) {
	r, _, s := fresh(t)
	withProbe(t, &s)
	if got := printed(t, r, s, "chmod"); strings.Contains(got, "went through") || strings.Count(got, "refused") < len(devices) {
		t.Errorf("at its start:\n%s", got)
	}
	s.Args = []string{probe, "wait"}
	must(t, r.Run(t.Context(), s))
	var out bytes.Buffer
	_, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{probe, "chmod"}, Stdout: &out})
	must(t, err)
	if got := out.String(); strings.Contains(got, "went through") || strings.Count(got, "refused") < len(devices)+2 { // input and errors
		t.Errorf("one more process:\n%s", got)
	}
	out.Reset()
	const use = "echo x >/dev/null && busybox head -c 4 /dev/zero | busybox wc -c && busybox head -c 2 /dev/urandom | busybox wc -c"
	code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"/bin/sh", "-c", use}, Stdout: &out})
	if err != nil || code != 0 || out.String() != "4\n2\n" {
		t.Errorf("they cannot be used: exit code %d, %v: %s", code, err, out.String())
	}
}

// A program of Exec dies with the launcher, and so with the daemon, also where becoming root of a user namespace makes the kernel forget that it should.
func TestExecDiesWithTheLauncher(t *testing.T) {
	for _, shared := range []bool{true, false} {
		for _, uid := range []uint32{0, 65534} {
			t.Run(fmt.Sprintf("shared %v, user %d", shared, uid), func(t *testing.T) {
				r, _, s := fresh(t)
				withProbe(t, &s)
				if !shared {
					enclosed(t, &s)
				}
				s.UID, s.GID = uid, uid
				s.Args = []string{probe, "wait"}
				must(t, r.Run(t.Context(), s))
				program, _ := killedExec(t, r)
				gone := false
				for deadline := time.Now().Add(5 * time.Second); !gone && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
					_, err := os.Stat(fmt.Sprintf("/proc/%d", program))
					gone = errors.Is(err, fs.ErrNotExist) || state(program) == "Z"
				}
				if !gone {
					t.Error("the program lives on")
				}
			})
		}
	}
}

// killedExec begins an exec of the probe in container "a", kills the launcher beside it, and tells the program's process and how the exec ended.
func killedExec(t *testing.T, r *kernel.Runtime) (program int, err error) {
	t.Helper()
	over := make(chan error, 1)
	ready, w, err := os.Pipe()
	must(t, err)
	defer ready.Close()
	defer w.Close()
	go func() {
		_, err := r.Exec(context.WithoutCancel(t.Context()), "a", container.ExecSpec{Args: []string{probe, "wait", "exec"}, Stdout: w})
		over <- err
	}()
	_, err = ready.Read(make([]byte, 1))
	must(t, err)
	program, parent := find(t, "exec")
	must(t, unix.Kill(parent, unix.SIGKILL))
	return program, <-over
}

func state(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	m := regexp.MustCompile(`State:\s+(\S)`).FindSubmatch(b)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// find is our probe with a last argument, and its parent.
func find(t *testing.T, last string) (pid, parent int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, p := range all {
		b, _ := os.ReadFile(p)
		if !bytes.HasPrefix(b, []byte(probe+"\x00")) || !bytes.HasSuffix(b, []byte("\x00"+last+"\x00")) {
			continue
		}
		status, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "status"))
		m := regexp.MustCompile(`PPid:\s+(\d+)`).FindSubmatch(status)
		pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(p)))
		parent, _ = strconv.Atoi(string(m[1]))
		up, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", parent))
		if m := regexp.MustCompile(`PPid:\s+(\d+)`).FindSubmatch(up); m != nil && string(m[1]) == strconv.Itoa(os.Getpid()) {
			return pid, parent
		}
	}
	t.Fatal("no such process")
	return 0, 0
}

// An image with a pipe where a file is to be mounted holds nobody up.
func TestAPipeAtAMountPoint(t *testing.T) {
	r, _, s := fresh(t)
	file := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(file, []byte("x"), 0o644))
	must(t, unix.Mkfifo(filepath.Join(s.Rootfs, "etc/secret"), 0o666))
	s.Mounts = []container.Mount{{Source: file, Target: "/etc/secret", ReadOnly: true}}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s.Args = []string{"/bin/sh", "-c", "cat /etc/secret; sleep 1000"}
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, s) }()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(8 * time.Second):
		t.Error("it hangs, though its context has ended")
		w, err := os.OpenFile(filepath.Join(s.Rootfs, "etc/secret"), os.O_RDWR, 0)
		must(t, err)
		defer w.Close()
		<-done
	}
}

// A function that takes a lease on its log holds nobody up who reads or bounds it.
func TestALeaseOnTheLogHoldsNobodyUp(t *testing.T) {
	for _, shared := range []bool{true, false} {
		t.Run(fmt.Sprint("shared ", shared), func(t *testing.T) {
			r, e, s := fresh(t)
			withProbe(t, &s)
			if !shared {
				enclosed(t, &s)
			}
			s.Args = []string{"/bin/sh", "-c", "busybox head -c 9000000 /dev/zero; exec " + probe + " lease"}
			must(t, r.Run(t.Context(), s))
			path := e.Home.LogFile("a")
			deadline := time.Now().Add(20 * time.Second)
			for held := false; !held; time.Sleep(10 * time.Millisecond) {
				f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
				held = errors.Is(err, unix.EWOULDBLOCK)
				if err == nil {
					f.Close()
				}
				if time.Now().After(deadline) {
					t.Fatal("it takes no lease")
				}
			}
			done := make(chan error, 1)
			go func() {
				_, err := r.List(t.Context())
				done <- err
			}()
			select {
			case err := <-done:
				t.Log(err)
			case <-time.After(10 * time.Second):
				t.Error("the list of containers waits for the lease's end")
				must(t, r.Delete(context.Background(), "a"))
				<-done
			}
		})
	}
}

// Root of a container without a user namespace owns the launcher's file, too. What it does to it is its own affair.
func TestNobodySpoilsTheLauncher(t *testing.T) {
	r, _, s := fresh(t)
	withProbe(t, &s)
	must(t, os.WriteFile(filepath.Join(s.Rootfs, "bin/loop"), []byte("#!/proc/self/exe\n"), 0o755))
	s.Args = []string{probe, "exe"}
	must(t, r.Run(t.Context(), s))
	for range 300 {
		if _, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"/bin/loop"}}); err != nil && !strings.Contains(err.Error(), "not executable") {
			t.Fatal(err)
		}
		if l, err := r.Logs(t.Context(), "a", container.LogOptions{}); err == nil {
			var out bytes.Buffer
			_, _ = out.ReadFrom(l)
			l.Close()
			if out.Len() > 0 {
				t.Log(out.String())
				break
			}
		}
	}
	s.ID, s.Args = "b", []string{"/bin/sh", "-c", "exit 0"}
	must(t, r.Run(t.Context(), s))
}

// All that package e2e/escape has a hostile function try leads to nothing of the host's.
func TestTheHostileFunctionStaysInside(t *testing.T) {
	program := filepath.Join(t.TempDir(), "hostile")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "weir.dev/weir/e2e/escape/hostile")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	raw, err := os.ReadFile(program)
	must(t, err)
	many := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID",
		"CAP_SYS_CHROOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE"}
	for name, c := range map[string]struct {
		shared bool
		caps   []string
	}{"alone": {}, "with capabilities": {caps: many}, "without a user namespace": {shared: true}} {
		t.Run(name, func(t *testing.T) {
			r, _, s := fresh(t)
			must(t, os.WriteFile(filepath.Join(s.Rootfs, "hostile"), raw, 0o755))
			if !c.shared {
				enclosed(t, &s)
			}
			config := t.TempDir()
			must(t, os.WriteFile(filepath.Join(config, "config.json"), []byte("{}"), 0o644))
			s.Capabilities, s.Args, s.Mounts = c.caps, []string{"/hostile"}, []container.Mount{{Source: config, Target: "/etc/weir", ReadOnly: true}}
			must(t, r.Run(t.Context(), s))
			var text bytes.Buffer
			for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(text.String(), "ESCAPE done"); time.Sleep(100 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("it does not come to an end:\n%s", text.String())
				}
				l, err := r.Logs(t.Context(), "a", container.LogOptions{})
				must(t, err)
				text.Reset()
				_, err = text.ReadFrom(l)
				must(t, err)
				l.Close()
			}
			for line := range strings.Lines(text.String()) {
				if strings.Contains(line, " ESCAPED ") && (!c.shared || !strings.HasPrefix(line, "ESCAPE host-ids ")) {
					t.Error(strings.TrimSpace(line))
				}
			}
			t.Logf("%d attempts\n%s", strings.Count(text.String(), "ESCAPE ")-1, text.String())
		})
	}
}

// A function reserves no disk for its log.
func TestALogReservesNoDisk(t *testing.T) {
	r, e, s := fresh(t)
	withProbe(t, &s)
	enclosed(t, &s)
	s.Args = []string{probe, "reserve"}
	must(t, r.Run(t.Context(), s))
	text := ""
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(text, "another ioctl"); time.Sleep(10 * time.Millisecond) {
		raw, err := os.ReadFile(e.Home.LogFile("a"))
		must(t, err)
		if text = string(raw); time.Now().After(deadline) {
			t.Fatal(text)
		}
	}
	var st unix.Stat_t
	must(t, unix.Stat(e.Home.LogFile("a"), &st))
	if st.Blocks*512 >= reserved {
		t.Errorf("its log of %d bytes takes %d MiB of the disk:\n%s", st.Size, st.Blocks*512>>20, text)
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "went through") && !strings.HasPrefix(line, "hole") {
			t.Error(line)
		}
	}
	if strings.Contains(text, "hole refused: operation not permitted") || strings.Contains(text, "another ioctl: operation not permitted") {
		t.Errorf("more is refused than has to be:\n%s", text)
	}
}

// A process of the container that may trace all others does not get at one that is about to become another of the container's programs.
func TestNobodyLooksIntoTheLauncher(t *testing.T) {
	for _, shared := range []bool{true, false} {
		t.Run(fmt.Sprint("shared ", shared), func(t *testing.T) {
			r, e, s := fresh(t)
			withProbe(t, &s)
			s.Capabilities, s.Args = []string{"CAP_KILL"}, []string{probe, "peek"}
			if !shared {
				enclosed(t, &s)
				s.Capabilities = append(s.Capabilities, "CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH")
			}
			must(t, r.Run(t.Context(), s))
			text := ""
			for n := 0; n < 2000 && strings.Count(text, "met one") < 20; n++ {
				_, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"/bin/busybox", "true"}})
				must(t, err)
				raw, err := os.ReadFile(e.Home.LogFile("a"))
				must(t, err)
				text = string(raw)
			}
			if strings.Count(text, "met one") < 20 || strings.Contains(text, "went through") {
				t.Errorf("%d met:\n%.2000s", strings.Count(text, "met one"), text)
			}
		})
	}
}

// Mounts are of the container alone, whatever the host has for its own.
func TestMountsAreTheContainers(t *testing.T) {
	for _, shared := range []bool{true, false} {
		t.Run(fmt.Sprint("shared ", shared), func(t *testing.T) {
			r, _, s := fresh(t)
			base := t.TempDir() // a tree of mounts that are passed on to all copies
			must(t, unix.Mount("weir-test", base, "tmpfs", 0, ""))
			t.Cleanup(func() { must(t, unix.Unmount(base, unix.MNT_DETACH)) })
			must(t, unix.Mount("", base, "", unix.MS_SHARED, ""))
			must(t, os.Mkdir(filepath.Join(base, "in"), 0o755))
			must(t, os.Mkdir(filepath.Join(base, "later"), 0o755))
			must(t, unix.Mount("weir-test", filepath.Join(base, "in"), "tmpfs", 0, ""))
			if !shared {
				enclosed(t, &s)
			}
			s.Mounts = []container.Mount{{Source: base, Target: "/etc/weir", ReadOnly: true}, {Source: base, Target: "/run/weir"}}
			must(t, r.Run(t.Context(), s))
			st, err := r.Status(t.Context(), "a")
			must(t, err)
			must(t, unix.Mount("weir-late", filepath.Join(base, "later"), "tmpfs", 0, ""))
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", st.PID))
			must(t, err)
			deep := 0
			for line := range strings.Lines(string(raw)) {
				f := strings.Fields(line)
				if len(f) < 7 || f[6] != "-" {
					t.Errorf("it is joined with others: %s", line)
				}
				options := strings.Split(f[5], ",")
				has := func(o string) bool { return slices.Contains(options, o) }
				switch {
				case strings.Contains(line, "weir-late"):
					t.Errorf("it was made on the host later: %s", line)
				case strings.HasPrefix(f[4], "/etc/weir"):
					deep++
					if !has("ro") {
						t.Errorf("it can be written: %s", line)
					}
				case (f[4] == "/" || strings.HasPrefix(f[4], "/sys") || strings.HasPrefix(f[4], "/proc/") || strings.HasPrefix(f[4], "/dev/") && f[3] != "/") && !has("ro"):
					t.Errorf("it can be written: %s", line)
				}
				if !has("nosuid") || !has("nodev") && !strings.HasPrefix(f[4], "/dev") && !strings.Contains(line, "/null") {
					t.Errorf("it gives rights: %s", line)
				}
			}
			if deep != 2 {
				t.Errorf("%d mounts below /etc/weir, want 2:\n%s", deep, raw)
			}
		})
	}
}

// A process of the container that traces a program of Exec keeps its end from the launcher. The caller's context ends the wait all the same.
func TestATracedProgramHoldsNobodyUp(t *testing.T) {
	r, e, s := fresh(t)
	withProbe(t, &s)
	s.Args = []string{probe, "trace"}
	must(t, r.Run(t.Context(), s))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := r.Exec(ctx, "a", container.ExecSpec{Args: []string{"/bin/sleep", "1"}})
		done <- err
	}()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		raw, err := os.ReadFile(e.Home.LogFile("a"))
		must(t, err)
		if strings.Contains(string(raw), "traced") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it traces nothing")
		}
	}
	select {
	case err := <-done:
		t.Fatalf("its end is seen: %v", err) // then this test shows nothing
	case <-time.After(2 * time.Second):
	}
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(4 * kernel.ExecGrace):
		t.Error("the call waits though its context has ended")
		must(t, r.Delete(t.Context(), "a"))
		<-done
	}
}

// Terminals are of one store for the whole kernel.
func TestNobodyTakesAllTerminals(t *testing.T) {
	r, _, s := fresh(t)
	withProbe(t, &s)
	enclosed(t, &s)
	var n int
	got := printed(t, r, s, "terminals")
	if _, err := fmt.Sscan(got, &n); err != nil || n < 16 || n > 256 {
		t.Errorf("it has got %s, want 16 to 256", got)
	}
}

// Who forks faster than one can be killed after the other is ended all the same, without a process namespace, too.
func TestABombIsDefused(t *testing.T) {
	inst := suite.NewInstance(t)
	r, err := NewBare(t.Context(), inst, kernel.Options{Adopt: true})
	must(t, err)
	s := container.Spec{ID: "a", Rootfs: suite.Rootfs(t), ReadOnly: true, Args: []string{"/bin/bomb"}, PIDs: 48}
	must(t, os.WriteFile(filepath.Join(s.Rootfs, "bin/bomb"), []byte("#!/bin/sh\nwhile :; do /bin/bomb 2>/dev/null & done\n"), 0o755))
	must(t, r.Run(t.Context(), s))
	t.Cleanup(func() {
		must(t, r.Destroy(context.Background()))
		must(t, r.Close())
	})
	file, ok := r.ControlFile("a", "pids", "pids.current", "pids.current")
	if !ok {
		t.Fatal("no limit of processes here")
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		raw, err := os.ReadFile(file)
		must(t, err)
		if n, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil && n > 24 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it forks nothing")
		}
	}
	must(t, r.Delete(t.Context(), "a"))
}

// After a crash a program that has the launcher's name is not taken for one that still waits for its start, and one that waits is.
func TestAForgedLauncherIsNoLauncher(t *testing.T) {
	r, e, s := fresh(t)
	withProbe(t, &s)
	s.Args = []string{probe, "forge"}
	must(t, r.Create(t.Context(), s))
	st, err := r.Status(t.Context(), "a")
	must(t, err)
	c := kernel.Container{Spec: s, Bundle: e.Home.Bundle("a"), Root: s.Rootfs, PID: st.PID}
	found := func(want container.State) {
		t.Helper()
		if f, err := e.Find(t.Context(), c); err != nil || f.State != want || f.PID != st.PID {
			t.Errorf("%+v, %v, want %s", f, err, want)
		}
	}
	found(container.Created)
	must(t, r.Start(t.Context(), "a"))
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", st.PID))
		if !errors.Is(err, fs.ErrNotExist) { // for a moment it has none: its first thread has ended, and that which executes takes its place
			must(t, err)
		}
		if strings.HasPrefix(exe, "/memfd:"+launcher.Name) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it forges nothing: " + exe)
		}
	}
	found(container.Running)
}

// A killed launcher leaves the program of its exec to us, in the container's namespace: the container could not end before that is collected.
func TestWhatAKilledLauncherLeavesHoldsNobodyUp(t *testing.T) {
	r, _, s := fresh(t)
	withProbe(t, &s)
	s.Args = suite.Waiting
	must(t, r.Run(t.Context(), s))
	_, err := killedExec(t, r)
	must(t, err)
	_, err = r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"/bin/sh", "-c", "kill 1"}})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if st, err := r.Wait(ctx, "a"); err != nil || st.State != container.Stopped {
		t.Errorf("%+v, %v", st, err)
	}
}
