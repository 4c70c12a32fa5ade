package suite

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/instance"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// output runs a script in a container and returns what it printed, with its exit code.
func output(t *testing.T, r *kernel.Runtime, s container.Spec, script string) (string, int) {
	t.Helper()
	s.ID, s.Args = "script", sh(script)
	must(t, r.Run(t.Context(), s))
	st, err := r.Wait(t.Context(), s.ID)
	must(t, err)
	l, err := r.Logs(t.Context(), s.ID, container.LogOptions{})
	must(t, err)
	defer l.Close()
	text, err := io.ReadAll(l)
	must(t, err)
	must(t, r.Delete(t.Context(), s.ID))
	return string(text), st.ExitCode
}

func (k Kit) containment(t *testing.T) {
	r, spec := k.fresh(t)
	shared := t.TempDir()
	must(t, os.WriteFile(filepath.Join(shared, "config.json"), []byte("shared"), 0o644))
	spec.Mounts = []container.Mount{{Source: shared, Target: "/etc/weir", ReadOnly: true}, {Source: shared, Target: "/run/weir"}}
	for name, tt := range map[string]struct {
		script, want string
		change       func(*container.Spec)
	}{
		"the root is read-only":              {script: "echo x 2>/dev/null >/new || echo refused", want: "refused\n"},
		"run and tmp are writable":           {script: "echo x >/run/new && echo y >/tmp/new && cat /run/new /tmp/new", want: "x\ny\n"},
		"mounts are there":                   {script: "cat /etc/weir/config.json /run/weir/config.json", want: "sharedshared"},
		"a read-only mount is":               {script: "echo x 2>/dev/null >/etc/weir/new || echo refused", want: "refused\n"},
		"it is process 1":                    {script: "echo $$", want: "1\n"},
		"it has no capabilities":             {script: "grep CapEff /proc/self/status", want: "CapEff:\t0000000000000000\n"},
		"it has those that it asks for":      {script: "grep CapEff /proc/self/status", want: "CapEff:\t0000000000001000\n", change: func(s *container.Spec) { s.Capabilities = []string{"CAP_NET_ADMIN"} }},
		"a user keeps those it asks for":     {script: "grep CapEff /proc/self/status; id -u", want: "CapEff:\t0000000000001000\n65534\n", change: func(s *container.Spec) { s.Capabilities, s.UID = []string{"CAP_NET_ADMIN"}, 65534 }},
		"system calls are filtered":          {script: "grep Seccomp: /proc/self/status; grep NoNewPrivs /proc/self/status", want: "Seccomp:\t2\nNoNewPrivs:\t1\n"},
		"its hostname is its id":             {script: "cat /proc/sys/kernel/hostname", want: "script\n"},
		"proc/sys is read-only":              {script: "echo x 2>/dev/null >/proc/sys/kernel/hostname || echo refused", want: "refused\n"},
		"without a namespace it has its own": {script: "ls /sys/class/net", want: "lo\n"},
		"the environment is the spec's":      {script: "echo $A", want: "b\n", change: func(s *container.Spec) { s.Env = []string{"A=b"} }},
		"a writable root is its own":         {script: "echo x >/new && cat /new", want: "x\n", change: func(s *container.Spec) { s.ReadOnly = false }},
	} {
		if Skipped(k.Name, "what a program finds in its container/"+name) != "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := spec
			if tt.change != nil {
				tt.change(&s)
			}
			got, code := output(t, r, s, tt.script)
			if diff := cmp.Diff(tt.want, got); diff != "" || code != 0 {
				t.Errorf("exit code %d: %s", code, diff)
			}
			if _, err := os.Lstat(filepath.Join(spec.Rootfs, "new")); err == nil {
				t.Error("it wrote into the image")
			}
		})
	}
}

func (k Kit) limits(t *testing.T) {
	r, spec := k.fresh(t)
	spec.ID, spec.Args, spec.CPUs, spec.Memory, spec.PIDs = "a", Waiting, 0.5, 32<<20, 20
	must(t, r.Run(t.Context(), spec)) // reads them back itself
	if file, got := limit(t, r, "a", "memory", "memory.limit_in_bytes", "memory.max"); got != "33554432" {
		t.Errorf("%s is %s", file, got)
	}
	code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: sh("i=0; while [ $i -lt 30 ]; do sleep 5 & i=$((i+1)); done")})
	if err != nil || code == 0 {
		t.Errorf("30 processes with a limit of 20: exit code %d, %v", code, err)
	}
	must(t, r.Delete(t.Context(), "a"))
	spec.Args = sh("x=a; while :; do x=$x$x; done")
	must(t, r.Run(t.Context(), spec))
	st, err := r.Wait(t.Context(), "a")
	must(t, err)
	if st.ExitCode != 137 || st.Signal != 9 || !st.OOM || st.Short != container.ShortLimit {
		t.Errorf("out of memory: %+v, want exit code 137, signal 9, and that its own limit was reached", st)
	}
	if again, err := r.Status(t.Context(), "a"); err != nil || again != st {
		t.Errorf("the status differs from what was waited for: %+v, %v", again, err)
	}
	must(t, r.Delete(t.Context(), "a"))
	spec.Args = sh("tail /dev/zero; exit $?")
	must(t, r.Run(t.Context(), spec))
	st, err = r.Wait(t.Context(), "a")
	must(t, err)
	if st.ExitCode != 137 || st.Signal != 0 || !st.OOM {
		t.Errorf("a shell whose program is out of memory: %+v, want exit code 137, no signal and that", st)
	}
}

// A container has groups of its own, which tell what its processes use: one that burns uses more and more of the processors, and has memory.
func (k Kit) whatItUsesIsMeasured(t *testing.T) {
	r, spec := k.fresh(t)
	spec.ID, spec.Args, spec.CPUs = "a", sh("trap 'exit 0' TERM; while :; do :; done"), 0.5
	must(t, r.Run(t.Context(), spec))
	st, err := r.Status(t.Context(), "a")
	must(t, err)
	m, err := kernel.NewMeter()
	must(t, err)
	first, ok := m.Usage(st.PID)
	if !ok || first.Memory == 0 || first.Memory > 1<<30 {
		t.Errorf("it uses %+v, %v", first, ok)
	}
	eventually(t, "it has used more", func() bool {
		u, ok := m.Usage(st.PID)
		return ok && u.CPU > first.CPU+50*time.Millisecond && u.Memory > 0
	})
	must(t, r.Delete(t.Context(), "a"))
	if u, ok := m.Usage(st.PID); ok {
		t.Errorf("without its process it uses %+v", u)
	}
}

// A container whose spec names no memory gets the host's default; all containers together get less of the processors than others who want them.
func (k Kit) defaultsBoundWhatNamesNoLimit(t *testing.T) {
	inst := NewInstance(t)
	r := k.open(t, inst, kernel.Options{Memory: 48 << 20})
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	root := Rootfs(t)
	for name, c := range map[string]struct {
		memory int64
		want   string
	}{"none": {0, "50331648"}, "its own": {16 << 20, "16777216"}} {
		t.Run(name, func(t *testing.T) {
			must(t, r.Run(t.Context(), container.Spec{ID: "a", Rootfs: root, ReadOnly: true, Args: Waiting, Memory: c.memory}))
			if file, got := limit(t, r, "a", "memory", "memory.limit_in_bytes", "memory.max"); got != c.want {
				t.Errorf("%s is %s, want %s", file, got, c.want)
			}
			if file, got := limit(t, r, "a", "memory", "memory.kmem.tcp.limit_in_bytes", "memory.max"); got != c.want { // of sockets
				t.Errorf("%s is %s, want %s", file, got, c.want)
			}
			must(t, r.Delete(t.Context(), "a"))
		})
	}
	file, got := limit(t, r, "..", "cpu", "cpu.shares", "cpu.weight")
	want := "512"
	if strings.HasSuffix(file, "weight") {
		want = "50"
	}
	if got != want {
		t.Errorf("%s of all containers is %s, want %s", file, got, want)
	}
}

func (k Kit) badSpecs(t *testing.T) {
	r, spec := k.fresh(t)
	for name, tt := range map[string]struct {
		change func(*container.Spec)
		want   string
	}{
		"no root":            {func(s *container.Spec) { s.Rootfs = "/no/such/root" }, `root file system "/no/such/root" is not there`},
		"no command":         {func(s *container.Spec) { s.Args = nil }, "no command"},
		"no such namespace":  {func(s *container.Spec) { s.Netns = "/run/netns/no-such" }, "network namespace /run/netns/no-such: no such file"},
		"not a namespace":    {func(s *container.Spec) { s.Netns = "/etc/passwd" }, "this is no namespace"},
		"bad id":             {func(s *container.Spec) { s.ID = "../a" }, `container id "../a": want`},
		"no mount source":    {func(s *container.Spec) { s.Mounts = []container.Mount{{Source: "/no/such", Target: "/etc/weir"}} }, "/no/such"},
		"no mount target":    {func(s *container.Spec) { s.Mounts = []container.Mount{{Source: "/etc", Target: "/nowhere"}} }, "has no /nowhere and its root is read-only"},
		"too little memory":  {func(s *container.Spec) { s.Memory = 1000 }, "want at least 512K"},
		"unknown capability": {func(s *container.Spec) { s.Capabilities = []string{"CAP_MAGIC"} }, "CAP_MAGIC"},
		"no ports to share":  {func(s *container.Spec) { s.Shared = &container.Shared{Dir: "/no/such", Ports: []string{"in"}} }, "ports of kind vhost-user: "},
		"not executable":     {func(s *container.Spec) { s.Args = []string{"/etc/weir"} }, `"/etc/weir" is not executable`},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec
			s.ID, s.Args = "a", Waiting
			tt.change(&s)
			for _, f := range []func(context.Context, container.Spec) error{r.Create, r.Run} {
				err := f(t.Context(), s)
				if err == nil && s.ID == "a" {
					err = r.Start(t.Context(), "a")
					must(t, r.Delete(t.Context(), "a"))
				}
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %q in it", err, tt.want)
				}
			}
			all, err := r.List(t.Context())
			must(t, err)
			if len(all) != 0 {
				t.Errorf("left %v", all)
			}
		})
	}
}

func (k Kit) execWithTerminal(t *testing.T) {
	r, spec := k.fresh(t)
	spec.ID, spec.Args = "a", Waiting
	must(t, r.Run(t.Context(), spec))
	resize := make(chan [2]uint16, 1)
	resize <- [2]uint16{123, 45}
	in, keys := io.Pipe()
	defer keys.Close()
	var out bytes.Buffer
	go func() {
		for _, k := range []string{"i=0; until stty size | grep '45 123' || [ $i = 100 ]; do i=$((i+1)); sleep 0.05; done\n", "exit 9\n"} {
			if _, err := io.WriteString(keys, k); err != nil {
				return
			}
		}
	}()
	code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"sh", "-i"}, TTY: true, Stdin: in, Stdout: &out, Resize: resize})
	if err != nil || code != 9 {
		t.Errorf("exit code %d, %v", code, err)
	}
	// The size follows the start by a moment. A shell that is quicker than runc at setting the terminal up ends lines with \r\r\n.
	if !strings.Contains(out.String(), "\r\n45 123\r") {
		t.Errorf("the terminal's size is not seen: %q", out.String())
	}
}

// A new process of the instance takes over: the same processes, their exits with codes, their logs.
func (k Kit) takeOver(t *testing.T) {
	inst := NewInstance(t)
	spec := container.Spec{Rootfs: Rootfs(t), ReadOnly: true, Args: sh("echo hello; trap 'exit 6' TERM; while :; do sleep 1000 & wait; done")}
	first := k.open(t, inst, kernel.Options{})
	with := func(id string) container.Spec { s := spec; s.ID = id; return s }
	must(t, first.Run(t.Context(), with("runs")))
	must(t, first.Create(t.Context(), with("waits")))
	must(t, first.Run(t.Context(), with("ended")))
	must(t, first.Stop(t.Context(), "ended", 10*time.Second))
	before, err := first.List(t.Context())
	must(t, err)
	must(t, first.Close())

	second := k.open(t, inst, kernel.Options{})
	defer second.Close()
	after, err := second.List(t.Context())
	must(t, err)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("changed by the take-over:\n%s", diff)
	}
	must(t, second.Create(t.Context(), with("waits")))
	must(t, second.Start(t.Context(), "waits"))
	must(t, second.Run(t.Context(), with("runs")))
	must(t, second.Stop(t.Context(), "runs", 10*time.Second))
	if st, err := second.Status(t.Context(), "runs"); err != nil || st.ExitCode != 6 {
		t.Errorf("exit after the take-over: %+v, %v", st, err)
	}
	must(t, second.Destroy(t.Context()))
}

func (k Kit) logIsBounded(t *testing.T) {
	inst := NewInstance(t)
	r := k.open(t, inst, kernel.Options{LogBytes: 4096})
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	spec := container.Spec{ID: "a", Rootfs: Rootfs(t), ReadOnly: true, Args: sh("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; sleep 1000")}
	must(t, r.Run(t.Context(), spec))
	tail := func() string {
		l, err := r.Logs(t.Context(), "a", container.LogOptions{Tail: 2})
		must(t, err)
		defer l.Close()
		text, err := io.ReadAll(l)
		must(t, err)
		return string(text)
	}
	eventually(t, "the last line", func() bool { return tail() == "line 1998\nline 1999\n" })
	_, err := r.List(t.Context())
	must(t, err)
	if got := tail(); got != "line 1998\nline 1999\n" {
		t.Errorf("last lines after the cut: %q", got)
	}
	var size int64
	for _, f := range []string{r.LogFile("a"), r.LogFile("a") + ".1"} {
		if fi, err := os.Stat(f); err == nil {
			size += fi.Size()
		}
	}
	if size > 2*4096 {
		t.Errorf("%d bytes of log, want at most %d", size, 2*4096)
	}
}

// Killed at random moments, a process leaves nothing that the next one does not find: what is there works, and all of it can be
// removed. The container that runs through it all is never touched.
func (k Kit) killedAtAnyMoment(t *testing.T) {
	inst := NewInstance(t)
	image := Rootfs(t)
	r := k.open(t, inst, kernel.Options{})
	steady := container.Spec{ID: "steady", Rootfs: image, ReadOnly: true, Args: Waiting}
	must(t, r.Run(t.Context(), steady))
	st, err := r.Status(t.Context(), "steady")
	must(t, err)
	must(t, r.Close())
	for round := range 20 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestChild$")
		cmd.Env = append(os.Environ(), "WEIR_CHILD="+inst.Name, "WEIR_CHILD_KIT="+k.Name, "WEIR_CHILD_ROOT="+inst.Root, "WEIR_CHILD_IMAGE="+image)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		first := make([]byte, 6)
		if _, err := io.ReadFull(out, first); err != nil || string(first) != "ready\n" {
			rest, _ := io.ReadAll(out)
			_ = cmd.Wait()
			t.Fatalf("round %d: the next process does not start: %s%s", round, first, rest)
		}
		after := time.NewTimer(time.Duration(rand.IntN(150_000)) * time.Microsecond)
		<-after.C
		must(t, cmd.Process.Signal(syscall.SIGKILL))
		rest, _ := io.ReadAll(out)
		_ = cmd.Wait()
		if len(rest) > 0 {
			t.Errorf("round %d: %s", round, rest)
		}
		// Every other time the next child takes over at once, else we look.
		if round%2 == 0 {
			continue
		}
		r := k.open(t, inst, kernel.Options{})
		all, err := r.List(t.Context())
		must(t, err)
		for _, s := range all {
			if s.ID == "steady" {
				if s.State != container.Running || s.PID != st.PID {
					t.Errorf("round %d: the steady container is %+v", round, s)
				}
				continue
			}
			must(t, r.Start(t.Context(), s.ID)) // whatever state it was in
			must(t, r.Delete(t.Context(), s.ID))
		}
		must(t, r.Close())
	}
	r = k.open(t, inst, kernel.Options{})
	must(t, r.Destroy(t.Context()))
	must(t, r.Close())
}

// What reads from the disk without end gets what the host's default is, and what burns processors too.
func (k Kit) appetiteForProcessorsAndDisksIsBounded(t *testing.T) {
	const rate = 4 << 20
	inst := NewInstance(t)
	r := k.open(t, inst, kernel.Options{CPUs: 0.5, DiskBytes: rate, Rings: 8 << 20})
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	root := Rootfs(t)
	const size = 24 << 20
	must(t, os.WriteFile(filepath.Join(root, "big"), make([]byte, size), 0o644))
	spec := container.Spec{ID: "a", Rootfs: root, ReadOnly: true, Args: Waiting}
	must(t, r.Run(t.Context(), spec))
	st, err := r.Status(t.Context(), "a")
	must(t, err)
	want := container.Limits{CPUs: 0.5, PIDs: 512, DiskBytes: rate, DiskOps: rate / (64 << 10), Rings: 8 << 20}
	if err := kernel.CheckSockets(); err != nil && Skipped(k.Name, "rings are bounded as the last daemon says") == "" {
		want.Missing = "sockets: " + err.Error()
	}
	if st.Limits != want {
		t.Errorf("limits %+v, want %+v", st.Limits, want)
	}
	must(t, exec.Command("sync").Run())
	begin := time.Now()
	code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: sh("busybox dd if=/big of=/dev/null bs=1M iflag=direct 2>&1")})
	must(t, err)
	least := size / rate * time.Second / 2 // the kernel lets through what it has saved up
	if took := time.Since(begin); code != 0 || took < least {
		t.Errorf("exit code %d; 24 MiB in %v, want at least %v at 4 MiB/s", code, took, least)
	}
	var out bytes.Buffer
	begin = time.Now()
	_, err = r.Exec(t.Context(), "a", container.ExecSpec{Args: sh("for i in 1 2; do busybox timeout 2 sh -c 'while :; do :; done' & done; wait; times"), Stdout: &out})
	must(t, err)
	took := time.Since(begin)
	var own, children struct{ user, system time.Duration }
	var text [4]string
	_, err = fmt.Sscanf(out.String(), "%s %s\n%s %s", &text[0], &text[1], &text[2], &text[3])
	must(t, err)
	for i, d := range []*time.Duration{&own.user, &own.system, &children.user, &children.system} {
		*d, err = time.ParseDuration(text[i])
		must(t, err)
	}
	if used := children.user + children.system; used < 20*time.Millisecond || used > took*7/10 { // a half, and what a period more may give; less on a busy machine
		t.Errorf("two that burn have used %v of processors in %v, want a half of one", used, took)
	}
}

// A call of i386 would reach the kernel without the program that bounds rings.
func (k Kit) callsOf32BitsAreRefused(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("machine lacks system calls of i386: it is no amd64")
	}
	r, spec := k.fresh(t)
	must(t, os.WriteFile(filepath.Join(spec.Rootfs, "getpid"), executable([]byte{
		0xb8, 20, 0, 0, 0, // mov eax, getpid of i386
		0xcd, 0x80, // int 0x80
		0x85, 0xc0, // test eax, eax
		0xbf, 7, 0, 0, 0, // mov edi, 7
		0x7e, 5, // jle over the next one
		0xbf, 42, 0, 0, 0, // mov edi, 42
		0xb8, 231, 0, 0, 0, // mov eax, exit_group
		0x0f, 0x05, // syscall
	}), 0o755))
	if text, code := output(t, r, spec, "/getpid; c=$?; echo $c; [ $c != 0 ] && [ $c != 42 ]"); code != 0 {
		t.Errorf("a process: exit code %s, want a refusal: 7, or a signal", text)
	}
	spec.ID, spec.Args = "a", Waiting
	must(t, r.Run(t.Context(), spec))
	if code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"/getpid"}}); err != nil || code == 0 || code == 42 {
		t.Errorf("a process more: exit code %d, %v, want a refusal: 7, or a signal", code, err)
	}
}

// executable is code of amd64 as a file.
func executable(code []byte) []byte {
	const at, headers = 0x400000, 64 + 56
	var b bytes.Buffer
	b.WriteString("\x7fELF\x02\x01\x01")
	b.Write(make([]byte, 9))
	size := uint64(headers + len(code))
	for _, v := range []any{
		uint16(elf.ET_EXEC), uint16(elf.EM_X86_64), uint32(1), uint64(at + headers), uint64(64), uint64(0), uint32(0), uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(elf.PT_LOAD), uint32(elf.PF_R | elf.PF_X), uint64(0), uint64(at), uint64(at), size, size, uint64(4096),
	} {
		_ = binary.Write(&b, binary.LittleEndian, v)
	}
	return append(b.Bytes(), code...)
}

// A container that goes on has the limit of the daemon that takes it over, or none.
func (k Kit) ringsAreAsTheLastDaemonSays(t *testing.T) {
	inst := NewInstance(t)
	r := k.open(t, inst, kernel.Options{Rings: 8 << 20})
	defer func() {
		must(t, r.Destroy(context.Background()))
		must(t, r.Close())
	}()
	must(t, r.Run(t.Context(), container.Spec{ID: "a", Rootfs: Rootfs(t), ReadOnly: true, Args: Waiting}))
	for _, want := range []int64{8 << 20, 4 << 20, 0, 2 << 20} {
		must(t, r.Close())
		r = k.open(t, inst, kernel.Options{Rings: want})
		st, err := r.Status(t.Context(), "a")
		must(t, err)
		if st.Limits.Rings != want || strings.Contains(st.Limits.Missing, "rings") {
			t.Errorf("limits %+v, want rings of %d bytes", st.Limits, want)
		}
	}
}

// What a killed process ran in a container for a client ends when the next one opens the instance; the container goes on.
func (k Kit) execOfAKilledProcess(t *testing.T) {
	inst := NewInstance(t)
	r := k.open(t, inst, kernel.Options{})
	must(t, r.Run(t.Context(), container.Spec{ID: "a", Rootfs: Rootfs(t), ReadOnly: true, Args: Waiting}))
	must(t, r.Close())
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestExecChild$")
	cmd.Env = append(os.Environ(), "WEIR_EXEC_CHILD="+inst.Name, "WEIR_CHILD_KIT="+k.Name, "WEIR_CHILD_ROOT="+inst.Root)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	first := make([]byte, 6)
	if _, err := io.ReadFull(out, first); err != nil || string(first) != "ready\n" {
		t.Fatalf("%q, %v", first, err)
	}
	must(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait()
	r = k.open(t, inst, kernel.Options{})
	defer r.Close()
	st, err := r.Status(t.Context(), "a")
	must(t, err)
	if st.State != container.Running {
		t.Errorf("the container is %s", st.State)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) { // a busy machine takes its time to end what was killed
		var text bytes.Buffer
		_, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: sh("cat /proc/[0-9]*/cmdline 2>/dev/null"), Stdout: &text}) // among the host's, some end meanwhile
		must(t, err)
		if strings.Contains(text.String(), "sleep") && !strings.Contains(text.String(), sleepOf(cmd.Process.Pid)) {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("the client's program still runs: %q", text.String())
			break
		}
	}
	must(t, r.Destroy(t.Context()))
}

func (k Kit) destroyLeavesTheLogsWhereItIsTold(t *testing.T) {
	for name, keep := range map[string]bool{"keep": true, "drop": false} {
		t.Run(name, func(t *testing.T) {
			inst := NewInstance(t)
			r := k.open(t, inst, kernel.Options{KeepLogs: keep})
			must(t, r.Run(t.Context(), container.Spec{ID: "a", Rootfs: Rootfs(t), ReadOnly: true, Args: sh("echo last words")}))
			_, err := r.Wait(t.Context(), "a")
			must(t, err)
			must(t, r.Destroy(t.Context()))
			must(t, r.Close())
			text, err := os.ReadFile(r.LogFile("a"))
			switch {
			case keep && (err != nil || string(text) != "last words\n"):
				t.Errorf("the log has %q, %v", text, err)
			case !keep && !errors.Is(err, fs.ErrNotExist):
				t.Errorf("the log is still there: %q, %v", text, err)
			}
			must(t, os.RemoveAll(filepath.Dir(r.LogFile("a"))))
		})
	}
}

// What a container prints is cut now and then; before that, it cannot fill the disk.
func (k Kit) logIsBoundedBetweenTwoLooks(t *testing.T) {
	inst := NewInstance(t)
	r := k.open(t, inst, kernel.Options{})
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	spec := container.Spec{ID: "a", Rootfs: Rootfs(t), ReadOnly: true, Args: sh("/bin/busybox truncate -s 2000000000 /proc/self/fd/1; echo beyond: $?; sleep 1000")}
	must(t, r.Run(t.Context(), spec))
	last := ""
	eventually(t, "what came of it", func() bool {
		l, err := r.Logs(t.Context(), "a", container.LogOptions{Tail: 1})
		must(t, err)
		defer l.Close()
		text, err := io.ReadAll(l)
		must(t, err)
		last = string(text)
		return strings.Contains(last, "beyond: ")
	})
	if fi, err := os.Stat(r.LogFile("a")); err != nil || fi.Size() > 32<<20 || strings.HasSuffix(last, "beyond: 0\n") {
		t.Errorf("%d bytes, %v; %q", fi.Size(), err, last[max(0, len(last)-20):])
	}
}

// Nobody cuts the log, as the daemon is gone. The flood comes from children of the first process: the kernel spares only that one signals by itself.
func (k Kit) endlessOutputFillsNoDiskAndEndsNobody(t *testing.T) {
	inst := NewInstance(t)
	first := k.open(t, inst, kernel.Options{})
	done := filepath.Join(t.TempDir(), "done")
	must(t, os.Mkdir(done, 0o755))
	flood := "i=0; worst=0; while [ $i -lt 32 ]; do dd if=/dev/zero bs=1M count=64 2>/dev/null; c=$?; [ $c -gt $worst ] && worst=$c; i=$((i+1)); done; " +
		"touch /run/done/it; while :; do echo after: $worst; sleep 0.1; done" // 2 GiB
	must(t, first.Run(t.Context(), container.Spec{ID: "a", Rootfs: Rootfs(t), ReadOnly: true, Args: sh(flood), Mounts: []container.Mount{{Source: done, Target: "/run/done"}}}))
	must(t, first.Close())
	eventually(t, "the end of the flood", func() bool {
		_, err := os.Stat(filepath.Join(done, "it"))
		return err == nil
	})
	if got := diskUse(t, filepath.Dir(first.LogFile("a"))); got > 33<<20 {
		t.Errorf("the log takes %d MiB of disk", got>>20)
	}

	r := k.open(t, inst, kernel.Options{})
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	st, err := r.List(t.Context()) // cuts it
	must(t, err)
	if len(st) != 1 || st[0].State != container.Running {
		t.Errorf("the container is no more: %+v", st)
	}
	read := func(o container.LogOptions) string {
		l, err := r.Logs(t.Context(), "a", o)
		must(t, err)
		defer l.Close()
		text, err := io.ReadAll(l)
		must(t, err)
		return string(text)
	}
	last := ""
	eventually(t, "a line after the cut", func() bool {
		last = read(container.LogOptions{Tail: 1})
		return strings.HasPrefix(last, "after: ") && strings.HasSuffix(last, "\n")
	})
	want := "after: 1\n" // told that it could not write
	if Skipped(k.Name, endless+"/"+endsNobody) != "" {
		want = fmt.Sprintf("after: %d\n", 128+int(unix.SIGXFSZ))
	}
	if last != want {
		t.Errorf("%q, want %q: how the program has ended that wrote beyond the limit", last, want)
	}
	all := read(container.LogOptions{})
	for _, say := range []string{"[weir: 25165824 bytes before this are lost", "[weir: lines after this are lost: the log was full, at 32 MiB"} {
		if !strings.Contains(all, say) {
			t.Errorf("the log does not say %q", say)
		}
	}
	if got := diskUse(t, filepath.Dir(r.LogFile("a"))); got > 9<<20 {
		t.Errorf("after the cut the log takes %d MiB of disk", got>>20)
	}
}

// Child is no test: it is the process that a test kills. The package of the engine calls it in a test of the name TestChild.
func (k Kit) Child(t *testing.T) {
	name, root, image := os.Getenv("WEIR_CHILD"), os.Getenv("WEIR_CHILD_ROOT"), os.Getenv("WEIR_CHILD_IMAGE")
	if name == "" || os.Getenv("WEIR_CHILD_KIT") != k.Name {
		return
	}
	inst, err := instance.New(name, root)
	must(t, err)
	r := k.open(t, inst, kernel.Options{})
	ctx := context.Background()
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := 0; ; i++ {
				s := container.Spec{ID: fmt.Sprintf("c%d-%d", w, i%3), Rootfs: image, ReadOnly: i%4 != 0, Args: []string{"/bin/sleep", "1000"}, Memory: max(k.Memory, 16<<20)}
				steps := []func() error{
					func() error { return r.Delete(ctx, s.ID) }, // what a former child has left may have another spec
					func() error { return r.Run(ctx, s) },
					func() error { return r.Delete(ctx, s.ID) },
					func() error { return r.Create(ctx, s) },
					func() error { return r.Start(ctx, s.ID) },
					func() error { return r.Stop(ctx, s.ID, 0) },
					func() error { return r.Delete(ctx, s.ID) },
				}
				for n, step := range steps {
					if err := step(); err != nil {
						fmt.Printf("step %d of %s: %v\n", n, s.ID, err)
						os.Exit(3)
					}
				}
			}
		})
	}
	fmt.Println("ready")
	wg.Wait()
}

// ExecChild is the same of another test: TestExecChild.
func (k Kit) ExecChild(t *testing.T) {
	name := os.Getenv("WEIR_EXEC_CHILD")
	if name == "" || os.Getenv("WEIR_CHILD_KIT") != k.Name {
		return
	}
	inst, err := instance.New(name, os.Getenv("WEIR_CHILD_ROOT"))
	must(t, err)
	r := k.open(t, inst, kernel.Options{})
	_, err = r.Exec(context.Background(), "a", container.ExecSpec{Args: sh("echo ready; sleep " + sleepOf(os.Getpid())), Stdout: os.Stdout})
	must(t, err)
}

// sleepOf is how long a process's program of exec sleeps: nobody else's on this machine does so.
func sleepOf(pid int) string { return strconv.Itoa(10_000_000 + pid) }

// limit reads a control file of a container's cgroup, of version 1 or 2.
func limit(t *testing.T, r *kernel.Runtime, id, controller, v1, v2 string) (file, text string) {
	t.Helper()
	file, ok := r.ControlFile(id, controller, v1, v2)
	if !ok {
		t.Fatalf("the kernel has no cgroup controller %q", controller)
	}
	raw, err := os.ReadFile(file)
	must(t, err)
	return file, strings.TrimSpace(string(raw))
}

func diskUse(t *testing.T, dir string) int64 {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	sum := int64(0)
	for _, d := range entries {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(dir, d.Name()), &st))
		sum += st.Blocks * 512
	}
	return sum
}
