package kvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	kit "weir.dev/weir/container/kernel/suite"
	"weir.dev/weir/netns"
)

// said collects what a runtime warns of.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// readied has the template of a kind made.
func readied(t *testing.T, r *Runtime, k kind) (system, shape) {
	t.Helper()
	sys, s, err := r.engine.common(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	from, err := r.engine.template(t.Context(), sys, s, k)
	if err != nil || from == nil {
		t.Fatal(from, err)
	}
	from.close()
	return sys, s
}

// templated opens a runtime that makes machines from templates. Where machines have the host's own processor there are none: the test is skipped.
func templated(t *testing.T) (*Runtime, container.Spec, *said) {
	t.Helper()
	r, spec := fresh(t)
	_, s, err := r.engine.common(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s != copied {
		t.Skipf("machine lacks emulated machines: those here are %s", s)
	}
	r.engine.others = ""
	var words said
	r.engine.log = slog.New(slog.NewTextHandler(&words, nil))
	return r, spec, &words
}

// templates that are there, finished.
func templatesOf(t *testing.T, r *Runtime) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(r.engine.templates(), "[0-9a-f]*", "state"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Machines of one template share what it had drawn before: nothing that a program sees may be one of that.
func TestCopiesAreMachinesOfTheirOwn(t *testing.T) {
	t.Parallel()
	r, spec, words := templated(t)
	spec.Args = sh(`busybox head -c 16 /dev/urandom | busybox od -An -tx1 | busybox tr -d ' '; cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id
busybox grep stack /proc/self/maps; busybox date +%s; cat /proc/sys/kernel/hostname`)
	var drawn [][]string
	for range 3 {
		begun := time.Now()
		text, st := prints(t, r, spec)
		ended := time.Now()
		lines := strings.Split(strings.TrimSpace(text), "\n")
		if st.ExitCode != 0 || len(lines) != 6 {
			t.Fatalf("it ended with %d and %q", st.ExitCode, lines)
		}
		clock, err := strconv.ParseInt(lines[4], 10, 64)
		if err != nil || clock < begun.Unix()-1 || clock > ended.Unix()+1 {
			t.Errorf("its clock says %s, begun at %d, ended at %d (%v)", lines[4], begun.Unix(), ended.Unix(), err)
		}
		drawn = append(drawn, lines[:4])
	}
	for i := range 4 {
		if drawn[0][i] == drawn[1][i] || drawn[1][i] == drawn[2][i] || drawn[0][i] == drawn[2][i] {
			t.Errorf("machines of one template drew the same: %q", []string{drawn[0][i], drawn[1][i], drawn[2][i]})
		}
	}
	if all := templatesOf(t, r); len(all) != 1 || words.all() != "" {
		t.Errorf("templates %q, warnings %q", all, words.all())
	}
}

// Machines with other limits or interfaces have templates of their own, and of those only some stay.
func TestTemplatesAreBounded(t *testing.T) {
	t.Parallel()
	r, spec, words := templated(t)
	spec.ID, spec.Args = "a", waiting
	for i := range mostTemplates + 1 {
		spec.Memory = minMemory + int64(i)<<20
		if err := r.Run(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if err := r.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if got, want := len(templatesOf(t, r)), min(i+1, mostTemplates); got != want {
			t.Errorf("%d templates after %d kinds of machines, want %d", got, i+1, want)
		}
	}
	if words.all() != "" {
		t.Error(words.all())
	}
	var held int64
	for _, file := range templatesOf(t, r) {
		var st unix.Stat_t
		if err := unix.Stat((&template{dir: filepath.Dir(file)}).memory(), &st); err != nil {
			t.Fatal(err)
		}
		held = max(held, st.Blocks*512)
	}
	t.Logf("a template's memory takes %d MB at most", held>>20)
	if held == 0 || held > minMemory {
		t.Errorf("a template's memory takes %d bytes", held)
	}
}

// A template that is of no use costs the time of a boot, and nothing else.
func TestABrokenTemplateIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	r, spec, words := templated(t)
	spec.ID, spec.Args = "a", sh("echo here; while :; do sleep 1000; done")
	again := func() {
		t.Helper()
		if err := r.Run(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its program runs", func() bool { return logOf(t, r, "a") == "here\n" })
		if err := r.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	again()
	all := templatesOf(t, r)
	if len(all) != 1 {
		t.Fatalf("templates %q", all)
	}
	if err := os.WriteFile(all[0], []byte("no state"), 0o600); err != nil {
		t.Fatal(err)
	}
	again()
	taken, err := filepath.Glob("/run/weir/.ids/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, ids := range taken {
		if owner, _ := os.Readlink(ids); owner == r.engine.home.Bundle("a") {
			t.Errorf("%s is taken by a machine that is gone", ids)
		}
	}
	if all := templatesOf(t, r); len(all) != 0 || strings.Count(words.all(), "not from a template") != 1 {
		t.Errorf("templates %q, warnings %q", all, words.all())
	}
	again()
	if n := strings.Count(words.all(), "not from a template"); n != 1 {
		t.Errorf("%d warnings: %q", n, words.all())
	}
	r.engine.finding.Lock()
	for dir, p := range r.engine.pauses { // they are over
		r.engine.pauses[dir] = pause{p.tries, time.Now()}
	}
	r.engine.finding.Unlock()
	again()
	if all := templatesOf(t, r); len(all) != 1 || strings.Count(words.all(), "msg=") != 2 || !strings.Contains(words.all(), "begin from a template again") {
		t.Errorf("after the pause: templates %q, words %q", all, words.all())
	}
	r.engine.finding.Lock()
	defer r.engine.finding.Unlock()
	if len(r.engine.pauses) != 0 {
		t.Errorf("a machine has come up from its template: %v", r.engine.pauses)
	}
}

// Each try that fails has a longer pause, up to a bound. What had begun before a failure is no other try.
func TestTemplatesPause(t *testing.T) {
	t.Parallel()
	var p pause
	now := time.Now()
	for i, want := range []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute, 30 * time.Minute} {
		var begins bool
		if p, begins = p.after(now); !begins || p.until.Sub(now) != want {
			t.Errorf("try %d: a pause of %v (%v), want %v", i+1, p.until.Sub(now), begins, want)
		}
		if same, begins := p.after(p.until.Add(-time.Second)); begins || same != p {
			t.Errorf("in the pause: %+v (%v), want %+v", same, begins, p)
		}
		now = p.until
	}

	var words said
	e := &Engine{pauses: map[string]pause{"old": {1, now.Add(-2 * forgotten)}}, log: slog.New(slog.NewTextHandler(&words, nil))}
	of := &template{dir: filepath.Join(t.TempDir(), "none")}
	for range 2 { // of two machines
		e.giveUp(of, errors.New("it hangs"))
	}
	e.resume(of) // of a third, which had begun before
	if got := e.pauses[of.dir]; len(e.pauses) != 1 || got.tries != 1 || strings.Count(words.all(), "msg=") != 1 {
		t.Errorf("pauses %+v, words %q", e.pauses, words.all())
	}
	if found, wanted := e.find(of); found != nil || wanted {
		t.Error("a template is made in the pause")
	}
	e.pauses[of.dir] = pause{1, time.Now()}
	if _, wanted := e.find(of); !wanted {
		t.Error("no template is made after the pause")
	}
	e.giveUp(of, errors.New("it hangs"))
	if got := e.pauses[of.dir]; got.tries != 2 || strings.Count(words.all(), "for=5m0s tries=2") != 1 {
		t.Errorf("pause %+v, words %q", got, words.all())
	}
}

// A template may go while a machine begins from it, and a half of one may be there: neither is a failure of the machine.
func TestATemplateMayGo(t *testing.T) {
	t.Parallel()
	r, spec, words := templated(t)
	spec.ID, spec.Args = "a", waiting
	run := func() {
		t.Helper()
		if err := r.Run(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if err := r.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	run()
	all := templatesOf(t, r)
	if len(all) != 1 {
		t.Fatalf("templates %q", all)
	}
	for _, half := range []string{"memory", "state"} { // what a killed remover leaves
		if err := os.Remove(filepath.Join(filepath.Dir(all[0]), half)); err != nil {
			t.Fatal(err)
		}
		run()
		if now := templatesOf(t, r); !slices.Equal(now, all) {
			t.Errorf("without its %s: templates %q", half, now)
		}
	}
	sys, s, err := r.engine.common(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	from, err := r.engine.template(t.Context(), sys, s, kind{memory: defaultMemory, cpus: 1})
	if err != nil || from == nil {
		t.Fatal(from, err)
	}
	defer from.close()
	r.engine.giveUp(&template{dir: from.dir}, errors.New("it is swept"))
	var q command
	if err := q.copies(from); err != nil {
		t.Fatal(err)
	}
	q.filler.close()
	if n := strings.Count(words.all(), "msg="); n != 1 {
		t.Error(words.all())
	}
}

// While a template is made machines of another kind begin from theirs, and whoever does not want to wait any more need not.
func TestOneTemplateHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	r, _, words := templated(t)
	sys, s := readied(t, r, kind{memory: minMemory, cpus: 1})
	r.engine.copying <- struct{}{} // as if one was made
	from, err := r.engine.template(t.Context(), sys, s, kind{memory: minMemory, cpus: 1})
	if err != nil || from == nil {
		t.Fatal(from, err)
	}
	from.close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if from, err := r.engine.template(ctx, sys, s, kind{memory: minMemory + 1<<20, cpus: 1}); from != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(from, err)
	}
	<-r.engine.copying
	if words.all() != "" {
		t.Error(words.all())
	}
}

// As many machines as may come up at once wait until another kind's template is made: whatever does not wait for that comes up.
func TestMachinesThatWaitHoldUpNoOther(t *testing.T) {
	t.Parallel()
	r, spec, words := templated(t)
	spec.Args = waiting
	sys, s := readied(t, r, kind{memory: defaultMemory, cpus: 1})
	r.engine.copying <- struct{}{} // as if one was made
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	half := r.engine.named(sys, s, kind{memory: minMemory, cpus: 1}).dir
	for i := range cap(r.engine.booting) {
		if err := os.MkdirAll(half, 0o700); err != nil { // who looks for a template removes half of one
			t.Fatal(err)
		}
		late := spec
		late.ID, late.Memory = fmt.Sprint("late", i), minMemory
		go func() { ended <- r.Run(ctx, late) }()
		eventually(t, "a machine waits for a template", func() bool { _, err := os.Stat(half); return errors.Is(err, os.ErrNotExist) })
	}
	spec.ID = "other"
	inTime, done := context.WithTimeout(t.Context(), bootsIn)
	defer done()
	if err := r.Run(inTime, spec); err != nil {
		t.Error(err)
	}
	cancel()
	for range cap(r.engine.booting) {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	<-r.engine.copying
	if words.all() != "" {
		t.Error(words.all())
	}
}

// Where a template finds no room, machines boot, and nothing stays of it.
func TestAFullDiskHasMachinesBoot(t *testing.T) {
	t.Parallel()
	for size, want := range map[string]string{"4k": "no space", "20m": "no space for a template's memory"} {
		r, spec, words := templated(t)
		dir := r.engine.templates()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		spec.ID, spec.Args = "a", sh("exit 3")
		if err := r.Run(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if st, err := r.Wait(t.Context(), "a"); err != nil || st.ExitCode != 3 {
			t.Error(st, err)
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 || strings.Count(words.all(), "not from a template") != 1 || !strings.Contains(words.all(), want) {
			t.Errorf("with %s: left %v (%v), words %q", size, left, err, words.all())
		}
	}
}

// A function that no machine can run is no fault of the template, and is not tried twice.
func TestAFunctionsOwnFault(t *testing.T) {
	t.Parallel()
	r, spec, words := templated(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, 60<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, s := range map[string]container.Spec{
		"not found in the image":                              {Args: []string{"no-such-program"}, ReadOnly: true},
		"enter working directory":                             {Args: waiting, ReadOnly: true, Dir: "/no/such/place"},
		"no space left in its memory: give the function more": {Args: waiting, Mounts: []container.Mount{{Source: dir, Target: "/mnt"}}},
	} {
		s.ID, s.Rootfs, s.Memory = "a", spec.Rootfs, minMemory
		err := r.Run(t.Context(), s)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "disk full") || errors.Is(err, errNotUp) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if all := templatesOf(t, r); len(all) != 1 || words.all() != "" {
		t.Errorf("templates %q, warnings %q", all, words.all())
	}
}

// A copy has its own interfaces, with their names, addresses and MTUs, and all of its processors and its memory.
func TestCopiesOfOtherShapes(t *testing.T) {
	t.Parallel()
	r, spec, words := templated(t)
	b := newSandbox(t)
	in := func(script string) string {
		out, err := exec.Command("nsenter", "--net="+b.fn, "sh", "-c", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return string(out)
	}
	in("ip link add name a type veth peer name b && ip link set dev a mtu 9000 && ip link set dev b mtu 1280")
	const list = "for l in in out a b; do echo $l $(cat /sys/class/net/$l/address) $(cat /sys/class/net/$l/mtu); done"
	spec.ID, spec.Netns, spec.CPUs, spec.Memory = "a", b.fn, 2, 1<<30
	spec.Args = sh(list + "; busybox nproc; busybox awk '/MemTotal/ {print ($2 > 900000)}' /proc/meminfo; " + waiting[2])
	var want strings.Builder
	err := netns.Do(b.fn, func() error {
		for _, name := range []string{"in", "out", "a", "b"} {
			l, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			fmt.Fprintln(&want, name, l.HardwareAddr, l.MTU)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&want, "%d\n1\n", min(2, runtime.NumCPU()))
	if err := r.Run(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it says what it has", func() bool { return strings.Count(logOf(t, r, "a"), "\n") == 6 })
	if got := logOf(t, r, "a"); got != want.String() {
		t.Errorf("it has\n%swant\n%s", got, want.String())
	}
	if all := templatesOf(t, r); len(all) != 1 || words.all() != "" {
		t.Errorf("templates %q, warnings %q", all, words.all())
	}
}

// The template that a killed daemon was making waits for devices for ever.
func TestATemplateInTheMakingGoesWithItsMaker(t *testing.T) {
	t.Parallel()
	inst := kit.NewInstance(t)
	r := open(t, inst)
	defer r.Close()
	var stays exec.Cmd
	stays.Path, stays.Args = "/bin/sleep", []string{"sleep", "600"}
	if err := r.engine.home.StartIn(container.Spec{ID: templateID, Memory: minMemory}, "", &stays); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- kernel.Wait(&stays) }()
	half := filepath.Join(r.engine.home.Root(), "templates", halfPrefix+"made")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	next := open(t, inst)
	defer next.Close()
	defer func() {
		if err := next.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		_ = stays.Process.Kill()
		t.Error("the next runtime leaves it")
	}
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its files: %v", err)
	}
}

// A machine that goes on elsewhere would tell the network by itself. One that is made from a template is nobody who has moved.
func TestACopyTellsTheNetworkNothing(t *testing.T) {
	t.Parallel()
	r, spec, words := templated(t)
	for i := range 2 {
		b := newSandbox(t)
		sides := []frames{listenFrames(t, b.left), listenFrames(t, b.right)}
		spec.ID, spec.Args, spec.Netns, spec.Forwarder = "fn", waiting, b.fn, "wire"
		if err := r.Run(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // QEMU's own announcements come 50 ms apart and later
		for _, side := range sides {
			if seen := side.comeIn(t); len(seen) > 0 {
				t.Errorf("machine %d has sent %x", i, seen[0])
			}
		}
		framesPass(t, b)
		if err := r.Delete(t.Context(), "fn"); err != nil {
			t.Fatal(err)
		}
	}
	if words.all() != "" {
		t.Error(words.all())
	}
}

// comeIn are all frames that have come in.
func (f frames) comeIn(t *testing.T) (all [][]byte) {
	t.Helper()
	buf := make([]byte, 16<<10)
	for {
		n, from, err := unix.Recvfrom(f.fd, buf, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype != unix.PACKET_OUTGOING {
			all = append(all, bytes.Clone(buf[:n]))
		}
	}
}

func TestFill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from := template{dir: dir}
	want := make([]byte, 4<<20)
	copy(want[1<<20:], bytes.Repeat([]byte("memory"), 50_000))
	copy(want[3<<20:], "end")
	f, err := os.Create(from.memory())
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(want); at += 4096 {
		if page := want[at:][:4096]; slices.ContainsFunc(page, func(b byte) bool { return b != 0 }) {
			if _, err := f.WriteAt(page, int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(f.Truncate(int64(len(want))), f.Close(), os.WriteFile(from.state(), nil, 0o600), from.open()); err != nil {
		t.Fatal(err)
	}
	defer from.close()
	ram, err := memory(int64(len(want)))
	if err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	fill := func(more ...part) error {
		var q command
		if err := q.copies(&from); err != nil {
			t.Fatal(err)
		}
		defer q.filler.close()
		q.ram, q.filler.parts = firstFD+len(q.files), append(q.filler.parts, more...)
		cmd := exec.Command("true")
		done, err := q.filler.before(cmd, &q)
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		cmd.ExtraFiles = append(q.files, ram)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer kernel.Wait(cmd)
		return q.filler.wait(t.Context())
	}
	if err := fill(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := ram.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the memory is another (%v)", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(ram.Fd()), &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes are there, want no holes filled (%v)", st.Blocks*512, err)
	}
	if err := fill(part{3 << 20, 5 << 20}); err == nil || !strings.Contains(err.Error(), "fill the memory of the virtual machine to the end") {
		t.Errorf("of a memory that is shorter than it was: %v", err)
	}
}

// What a machine has of its template counts to its own memory, as what it has of its own does.
func TestACopysMemoryIsItsOwn(t *testing.T) {
	t.Parallel()
	r, spec, words := templated(t)
	spec.ID, spec.Args = "a", waiting
	if err := r.Run(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	st, err := r.Status(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	var ram unix.Stat_t
	files, err := filepath.Glob("/proc/" + strconv.Itoa(st.PID) + "/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		switch to, _ := os.Readlink(f); {
		case strings.Contains(to, "weir-machine"):
			if err := unix.Stat(f, &ram); err != nil {
				t.Fatal(err)
			}
		case strings.HasPrefix(to, r.engine.templates()), strings.Contains(to, "weir-launcher"), strings.Contains(to, "memfd:program"):
			t.Errorf("its process has %s", to)
		}
	}
	meter, err := kernel.NewMeter()
	if err != nil {
		t.Fatal(err)
	}
	used, ok := meter.Usage(st.PID)
	t.Logf("its memory has %d MB, and it uses %d MB", ram.Blocks*512>>20, used.Memory>>20)
	if !ok || ram.Blocks == 0 || int64(used.Memory) < ram.Blocks*512 {
		t.Errorf("a machine whose memory has %d bytes uses %d (%v)", ram.Blocks*512, used.Memory, ok)
	}
	if words.all() != "" {
		t.Error(words.all())
	}
}

// BenchmarkRun is a machine's way to its program: Create and Start in one, without interfaces.
func BenchmarkRun(b *testing.B) {
	for _, from := range []string{"template", "boot"} {
		b.Run(from, func(b *testing.B) {
			r := open(b, kit.NewInstance(b))
			defer r.Close()
			defer func() {
				if err := r.Destroy(context.Background()); err != nil {
					b.Error(err)
				}
			}()
			spec := container.Spec{ID: "a", Rootfs: kit.Rootfs(b), ReadOnly: true, Args: waiting}
			r.engine.alone = from == "boot"
			cycle := func() {
				if err := r.Run(b.Context(), spec); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := r.Delete(b.Context(), "a"); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			cycle() // makes what all have in common
			b.ResetTimer()
			for range b.N {
				cycle()
			}
		})
	}
}
