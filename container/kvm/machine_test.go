package kvm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/container"
	kit "weir.dev/weir/container/kernel/suite"
	"weir.dev/weir/instance"
)

// prints runs a program to its end, and returns what it printed.
func prints(t *testing.T, r *Runtime, s container.Spec) (string, container.Status) {
	t.Helper()
	s.ID = "a"
	if err := r.Run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	st, err := r.Wait(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	text := logOf(t, r, "a")
	if err := r.Delete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	return text, st
}

func compare(t *testing.T, got string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(got), "\n")); diff != "" {
		t.Error(diff)
	}
}

func TestWhatAProgramFinds(t *testing.T) {
	t.Parallel()
	r, spec := fresh(t)
	shared := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(shared, "dir"), 0o750), os.WriteFile(filepath.Join(shared, "dir", "config.json"), []byte("text\n"), 0o640),
		os.WriteFile(filepath.Join(shared, "one"), []byte("one\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	spec.Mounts = []container.Mount{
		{Source: filepath.Join(shared, "dir"), Target: "/etc/weir", ReadOnly: true}, {Source: filepath.Join(shared, "dir"), Target: "/run/copy"},
		{Source: filepath.Join(shared, "one"), Target: "/run/secrets/one", ReadOnly: true},
	}
	spec.Env, spec.Dir, spec.PIDs, spec.Memory = []string{"A=b"}, "/tmp", 20, 100<<20
	t.Run("as root", func(t *testing.T) {
		s := spec
		s.Capabilities = []string{"CAP_NET_ADMIN"}
		s.Args = sh(`echo $A; pwd; cat /proc/sys/kernel/hostname; cat /etc/weir/config.json /run/copy/config.json /run/secrets/one
(echo x >/new) 2>/dev/null || echo refused; (echo x >/etc/weir/new) 2>/dev/null || echo refused; echo x >/run/copy/new && cat /run/copy/new
busybox stat -c '%a %u' /etc/weir /etc/weir/config.json /run/secrets/one /tmp
grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; ls /sys/class/net; ls /dev | busybox tr '\n' ' '; echo
i=0; while [ $i -lt 40 ]; do busybox sleep 100 & i=$((i+1)); done 2>/dev/null`)
		text, st := prints(t, r, s)
		compare(t, text, "b", "/tmp", "a", "text", "text", "one", "refused", "refused", "x", "750 0", "640 0", "600 0", "1777 0",
			"CapEff:\t0000000000001000", "CapBnd:\t0000000000001000", "NoNewPrivs:\t1", "lo",
			"fd full null ptmx pts random shm stderr stdin stdout tty urandom zero")
		if st.ExitCode == 0 {
			t.Error("40 processes where 20 are allowed")
		}
		if st.Limits.Memory != 100<<20 || st.Limits.PIDs != 20 {
			t.Errorf("limits %+v", st.Limits)
		}
	})
	t.Run("as a user, with a writable root", func(t *testing.T) {
		s := spec
		s.UID, s.GID, s.ReadOnly, s.Capabilities = 65534, 65533, false, []string{"CAP_NET_ADMIN"}
		if err := os.Mkdir(filepath.Join(s.Rootfs, "open"), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(s.Rootfs, "open"), 0o777); err != nil {
			t.Fatal(err)
		}
		s.Args = sh(`id -u; id -g; grep -E 'CapEff|Groups' /proc/self/status; echo x >/open/new && cat /open/new; echo out >/dev/stdout`)
		text, _ := prints(t, r, s)
		compare(t, text, "65534", "65533", "Groups:\t ", "CapEff:\t0000000000001000", "x", "out")
		if _, err := os.Stat(filepath.Join(s.Rootfs, "open", "new")); err == nil {
			t.Error("it has written to the image")
		}
	})
}

// A program that reads its files again when it gets SIGHUP finds what they are now, also when another process of ours has taken the machine over; and so does one that looks now and
// then. What the program writes to is its own, and a mounted file is the one of the start.
func TestChangedFilesReachAMachine(t *testing.T) {
	t.Parallel()
	inst := kit.NewInstance(t)
	r := open(t, inst)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := instance.Replace(at(name), []byte(text+"\n"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	write("config.json", "first")
	write("old", "old")
	if err := errors.Join(os.Mkdir(at("sub"), 0o755), os.WriteFile(at("sub/file"), []byte("x"), 0o644)); err != nil {
		t.Fatal(err)
	}
	spec := container.Spec{ID: "a", Rootfs: kit.Rootfs(t), ReadOnly: true, Mounts: []container.Mount{
		{Source: dir, Target: "/etc/weir", ReadOnly: true}, {Source: dir, Target: "/run/own"}, {Source: at("config.json"), Target: "/run/one", ReadOnly: true}}}
	spec.Args = sh(`trap 'cd /etc/weir; busybox find . | busybox sort | busybox tr "\n" " "; cat config.json link 2>/dev/null; busybox stat -c %a config.json; cat /run/own/config.json /run/one; echo done' HUP
echo $$ >/tmp/pid; echo ready; while ! [ -e /etc/weir/end ]; do sleep 1 & wait; done; exit 7`)
	if err := r.Run(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	said := 0
	hangUp := func(want ...string) {
		t.Helper()
		var out bytes.Buffer
		code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: sh("kill -HUP $(cat /tmp/pid)"), Stdout: &out, Stderr: &out})
		if err != nil || code != 0 {
			t.Fatalf("%d, %v: %s", code, err, out.String())
		}
		eventually(t, "the program has read its files", func() bool { return strings.Count(logOf(t, r, "a"), "done\n") > said })
		text := logOf(t, r, "a")
		text = text[max(0, strings.LastIndex(strings.TrimSuffix(text, "done\n"), "done\n")):]
		compare(t, strings.TrimPrefix(strings.TrimPrefix(text, "done\n"), "ready\n"), append(want, "done")...)
		said++
	}
	eventually(t, "the program runs", func() bool { return strings.Contains(logOf(t, r, "a"), "ready") })
	hangUp(". ./config.json ./old ./sub ./sub/file first", "640", "first", "first")
	write("config.json", "second")
	hangUp(". ./config.json ./old ./sub ./sub/file second", "640", "first", "first")

	r.Close()
	r = open(t, inst)
	defer func() {
		if err := r.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		r.Close()
	}()
	write("config.json", strings.Repeat("third ", 20_000)) // by several frames
	if err := errors.Join(os.Remove(at("old")), os.RemoveAll(at("sub")), os.Symlink("target", at("link")), os.MkdirAll(at("old/deep"), 0o755),
		os.WriteFile(at("old/deep/target"), nil, 0o644), os.WriteFile(at("sub"), nil, 0o644), os.WriteFile(at("target"), []byte("linked\n"), 0o644),
		os.Chmod(at("config.json"), 0o600)); err != nil {
		t.Fatal(err)
	}
	hangUp(". ./config.json ./link ./old ./old/deep ./old/deep/target ./sub ./target "+strings.Repeat("third ", 20_000), "linked", "600", "first", "first")

	write("end", "")
	eventually(t, "the program finds a new file", func() bool {
		list, err := r.List(t.Context()) // as the agent does
		return err == nil && len(list) == 1 && list[0].State == container.Stopped && list[0].ExitCode == 7
	})
}

// withSocket is a container "a" to be, with a directory of ours mounted in which there may be a socket at path. It has TestInMachine as its program "probe".
func withSocket(t *testing.T, name string) (r *Runtime, spec container.Spec, path string) {
	t.Helper()
	r, spec = fresh(t)
	dir := t.TempDir()
	spec.Mounts = []container.Mount{{Source: dir, Target: "/run/weir", ReadOnly: true}}
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(filepath.Join(spec.Rootfs, "bin", "probe"), self, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	spec.ID, spec.Args, spec.Env = "a", waiting, []string{"WEIR_IN_MACHINE=/run/weir/" + name}
	return r, spec, filepath.Join(dir, name)
}

// A function raises events at a socket that its agent has made, and makes anew.
func TestSocketsOfMounts(t *testing.T) {
	t.Parallel()
	r, spec, path := withSocket(t, "events.sock")
	if err := r.Run(t.Context(), spec); err != nil { // the socket comes later
		t.Fatal(err)
	}
	for _, word := range []string{"one", "two"} {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan string, 1)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			got <- fmt.Sprint(r.Method, " ", len(b), " ", strings.TrimLeft(string(b), "x"))
			_, _ = w.Write(bytes.Repeat([]byte("y"), 300_000))
		})}
		go func() { _ = s.Serve(l) }()
		var out bytes.Buffer
		code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"probe", "-test.run=^TestInMachine$"}, Env: []string{"WORD=" + word}, Stdout: &out, Stderr: &out})
		if err != nil || code != 0 {
			t.Fatalf("%d, %v: %s", code, err, out.String())
		}
		if text, want := <-got, "POST 200003 "+word; text != want {
			t.Errorf("%q, want %q", text, want)
		}
		s.Close()
	}
}

// A function exports datagrams to a socket that its agent has made, and makes anew: each arrives whole, in order.
func TestDatagramsOfAMachine(t *testing.T) {
	t.Parallel()
	r, spec, path := withSocket(t, "ipfix.sock")
	listen := func() *net.UnixConn {
		t.Helper()
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := listen()
	if err := r.Run(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		if round == 1 {
			c.Close()
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			c = listen()
		}
		var out bytes.Buffer
		done := make(chan string, 1)
		go func() {
			code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"probe", "-test.run=^TestInMachine$"}, Env: []string{"WORD=datagrams"}, Stdout: &out, Stderr: &out})
			done <- fmt.Sprint(code, " ", err)
		}()
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		b := make([]byte, 64<<10)
		for last := -1; last < datagrams-1; {
			n, err := c.Read(b)
			if err != nil {
				t.Fatalf("round %d: after datagram %d: %v", round, last, err)
			}
			i, rest := 0, ""
			if _, err := fmt.Sscanf(string(b[:n]), "%d %s", &i, &rest); err != nil || len(rest) != 10*i+1 || i <= last || round == 0 && i != last+1 {
				t.Fatalf("round %d: datagram %d of %d bytes after %d: %v", round, i, len(rest), last, err)
			}
			last = i
		}
		if said := <-done; said != "0 <nil>" {
			t.Fatalf("round %d: %s: %s", round, said, out.String())
		}
	}
	c.Close()
}

// datagrams that the program of TestDatagramsOfAMachine sends, each longer than the one before.
const datagrams = 300

func sendDatagrams(t *testing.T, path string) {
	c, err := net.Dial("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range datagrams {
		if _, err := fmt.Fprintf(c, "%d %s", i, strings.Repeat("x", 10*i+1)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestInMachine is the program of TestSocketsOfMounts and TestDatagramsOfAMachine.
func TestInMachine(t *testing.T) {
	path := os.Getenv("WEIR_IN_MACHINE")
	if path == "" {
		return
	}
	if os.Getenv("WORD") == "datagrams" {
		sendDatagrams(t, path)
		return
	}
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}, Timeout: 20 * time.Second}
	answer, err := c.Post("http://weir/", "text/plain", strings.NewReader(strings.Repeat("x", 200_000)+os.Getenv("WORD")))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if b, err := io.ReadAll(answer.Body); err != nil || len(b) != 300_000 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
}

// Much goes both ways by exec, and a client that does not read holds up nobody else.
func TestExecCarriesMuch(t *testing.T) {
	t.Parallel()
	r, spec := fresh(t)
	spec.ID, spec.Args = "a", waiting
	if err := r.Run(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	stuck, unstick := io.Pipe()
	defer stuck.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.Exec(t.Context(), "a", container.ExecSpec{Args: sh("busybox dd if=/dev/zero bs=1M count=4"), Stdout: unstick})
	}()
	in := make([]byte, 1<<20)
	for i := range in {
		in[i] = byte(i * i >> 3)
	}
	var out bytes.Buffer
	code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"cat"}, Stdin: bytes.NewReader(in), Stdout: &out})
	if err != nil || code != 0 || !bytes.Equal(in, out.Bytes()) {
		t.Errorf("%d, %v: %d bytes of %d", code, err, out.Len(), len(in))
	}
	stuck.Close()
	<-done
}

// Terminals take controls of 8 bits, too, and marks of direction show a text otherwise than it is.
func TestTextsOfAMachineAreHarmless(t *testing.T) {
	for text, want := range map[string]string{
		"\x1b]0;owned\x07\x1b[2Ja\tb\nc":   "]0;owned[2Ja b c",
		"\u009b31mred\u202eder":            "31mredder",
		"\xff\ufffdé":                      "é",
		strings.Repeat("é", maxText):       strings.Repeat("é", maxText/2),
		"x" + strings.Repeat("é", maxText): "x" + strings.Repeat("é", (maxText-1)/2),
	} {
		if got := printable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestMachinesThatFail(t *testing.T) {
	t.Parallel()
	r, spec := fresh(t)
	t.Run("its kernel panics", func(t *testing.T) {
		s := spec
		s.Args = sh("echo begin; sleep 1; echo c >/proc/sysrq-trigger; sleep 100")
		text, st := prints(t, r, s)
		if st.ExitCode != failed || !strings.HasPrefix(text, "begin\n[weir: the virtual machine has ended: ") || !strings.Contains(text, "Kernel panic") {
			t.Errorf("%+v: %q", st, text)
		}
	})
	t.Run("out of memory", func(t *testing.T) {
		s := spec
		s.Args = []string{"/bin/busybox", "tail", "/dev/zero"}
		if text, st := prints(t, r, s); !st.OOM || st.Short != container.ShortLimit || st.ExitCode != 137 || st.Signal != 9 {
			t.Errorf("%+v: %q", st, text)
		}
	})
	t.Run("too little memory", func(t *testing.T) {
		s := spec
		s.ID, s.Args, s.Memory = "a", waiting, 64<<20
		if err := r.Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), "memory 64M: a virtual machine wants at least 96M") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a program for other processors", func(t *testing.T) {
		program := make([]byte, 64) // the header of an ELF file
		copy(program, "\x7fELF\x02\x01\x01")
		binary.LittleEndian.PutUint16(program[16:], 2)
		binary.LittleEndian.PutUint16(program[18:], 183)
		binary.LittleEndian.PutUint32(program[20:], 1)
		if err := os.WriteFile(filepath.Join(spec.Rootfs, "bin/arm"), program, 0o755); err != nil {
			t.Fatal(err)
		}
		s := spec
		s.ID, s.Args = "a", []string{"/bin/arm"}
		if err := r.Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), "command /bin/arm is for EM_AARCH64") {
			t.Errorf("got %v", err)
		}
	})
}

// Machines whose kernels begin, and which do not come up: one kernel panics, the other one has an init that does not answer. Run says so, with the last lines of the
// console, and leaves nothing.
func TestMachinesThatDoNotComeUp(t *testing.T) {
	t.Parallel()
	r, spec := fresh(t)
	r.engine.others = "" // a template of the other tests has come up
	spec.ID, spec.Args = "a", waiting
	sys, _, err := r.engine.common(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile(filepath.Join(spec.Rootfs, "bin/busybox"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		init []byte
		in   time.Duration
		want []string
	}{
		{"its kernel panics", []byte("no program"), bootsIn, []string{"the virtual machine has ended; its console: ", "Kernel panic - not syncing: "}},
		{"its init does not answer", busybox, 6 * time.Second, // by its name busybox is an init, which says what it misses and goes on
			[]string{"the virtual machine has not come up in 6s; its console: ", "can't run '/etc/init.d/rcS': No such file or directory"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.WriteFile(sys.initrd(), initrd(tt.init, nil), 0o644); err != nil {
				t.Fatal(err)
			}
			r.engine.boots = tt.in
			begun := time.Now()
			err := r.Run(t.Context(), spec)
			t.Logf("after %v: %v", time.Since(begun).Round(10*time.Millisecond), err)
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
			if all, err := r.List(t.Context()); err != nil || len(all) != 0 {
				t.Errorf("left %v, %v", all, err)
			}
		})
	}
}

// firstQEMU has a runtime's first machine that is no trial started with arguments that a script changes.
func firstQEMU(t *testing.T, r *Runtime, script string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-first-") // QEMU's user goes through it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	text := fmt.Sprintf("#!/bin/sh\nif mkdir %s/was 2>/dev/null; then\n%s\nfi\nexec %s \"$@\"\n", dir, script, r.engine.qemu)
	if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(filepath.Join(dir, "qemu"), []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
	r.engine.qemu = filepath.Join(dir, "qemu")
}

// A machine hangs on purpose: the first QEMU never lets its processor run. It is there after another try, and nothing is left of the first.
func TestAMachineThatHangsIsTriedOnceMore(t *testing.T) {
	t.Parallel()
	r, spec, words := templated(t)
	firstQEMU(t, r, `set -- "$@" -S`)
	r.engine.alone, r.engine.boots = true, 6*firstTry*time.Second
	spec.Args = sh("echo here; exit 3")
	begun := time.Now()
	text, st := prints(t, r, spec)
	t.Logf("after %v: %q", time.Since(begun).Round(10*time.Millisecond), words.all())
	if text != "here\n" || st.ExitCode != 3 {
		t.Errorf("it ended with %d and %q", st.ExitCode, text)
	}
	if said := words.all(); strings.Count(said, "msg=") != 1 || !strings.Contains(said, "hangs as it boots, and is tried once more") || !strings.Contains(said, "has not come up in 6s") {
		t.Errorf("words %q", said)
	}
}

// A kernel that has found no timer, as on a busy host, would sleep for ever the first time that something sleeps. Its machine ends, and another one boots at once.
func TestAMachineWithoutATimerBootsAgain(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{true, false} {
		r, spec, words := templated(t)
		firstQEMU(t, r, `for a; do shift; case $a in console=*) a="$a nolapic_timer";; esac; set -- "$@" "$a"; done`)
		r.engine.alone = alone
		spec.Args = sh("sleep 0.1; echo here; exit 3")
		text, st := prints(t, r, spec)
		if text != "here\n" || st.ExitCode != 3 || words.all() != "" {
			t.Errorf("alone %v: it ended with %d and %q, words %q", alone, st.ExitCode, text, words.all())
		}
		if n := len(templatesOf(t, r)); n == 0 != alone {
			t.Errorf("alone %v: %d templates", alone, n)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(r.engine.qemu), "was")); err != nil {
			t.Errorf("alone %v: %v", alone, err)
		}
	}
}

// How often a machine boots until it is as it should be, and when it is none.
func TestTries(t *testing.T) {
	t.Parallel()
	hung, timers, other := error(late(time.Second)), fmt.Errorf("%w: none", errTimer), errors.New("another")
	for name, tt := range map[string]struct {
		shape shape
		errs  []error // of the tries
		in    []time.Duration
		want  error
		warns int
	}{
		"the first is good":              {copied, []error{nil}, []time.Duration{20}, nil, 0},
		"it hangs once":                  {copied, []error{hung, nil}, []time.Duration{20, 60}, nil, 1},
		"it hangs twice":                 {copied, []error{hung, hung}, []time.Duration{20, 60}, errNotUp, 1},
		"timers are wrong":               {copied, []error{timers, timers, nil}, []time.Duration{20, 20, 20}, nil, 0},
		"a timer is wrong, and it hangs": {copied, []error{timers, hung, timers, nil}, []time.Duration{20, 20, 60, 60}, nil, 1},
		"all timers are wrong":           {copied, slices.Repeat([]error{timers}, mostTries), slices.Repeat([]time.Duration{20}, mostTries), errTimer, 0},
		"it fails":                       {copied, []error{other}, []time.Duration{20}, other, 0},
		"another machine":                {shape{"tcg", "q35"}, []error{hung, nil}, []time.Duration{20, 60}, nil, 1},
		"a processor of the host's":      {shape{"kvm", "microvm"}, []error{hung}, []time.Duration{60}, errNotUp, 0},
	} {
		var words said
		e := &Engine{boots: 60, log: slog.New(slog.NewTextHandler(&words, nil))}
		var in []time.Duration
		var last []string
		err := e.tries(t.Context(), tt.shape, func(one try) error {
			in, last = append(in, one.in), one.words
			return tt.errs[len(in)-1]
		})
		if !errors.Is(err, tt.want) || !slices.Equal(in, tt.in) || strings.Count(words.all(), "msg=") != tt.warns {
			t.Errorf("%s: %v after tries of %v, words %q", name, err, in, words.all())
		}
		want := []string{"weir.timer=54347-71875"}
		if len(in) == mostTries {
			want = []string{"weir.timer=7812-500000"}
		}
		if tt.shape != copied {
			want = nil
		}
		if !slices.Equal(last, want) {
			t.Errorf("%s: words %q, want %q", name, last, want)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	n := 0
	if err := (&Engine{boots: 60}).tries(over, copied, func(try) error { n++; return timers }); err == nil || n != 1 {
		t.Errorf("%d tries when nobody waits any more: %v", n, err)
	}
}

// Where no machine comes up the error has QEMU's words. Who has waited for the trial makes no other one at once.
func TestATrialThatFailsIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	r, spec := fresh(t)
	was := r.engine.shape
	r.engine.shape = nil
	defer func() { r.engine.shape = was }() // it is other tests', too
	_ = os.Remove(r.engine.trialFile())
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	if err := errors.Join(os.Chmod(dir, 0o777), os.Chmod(filepath.Dir(dir), 0o755),
		os.WriteFile(filepath.Join(dir, "qemu"), []byte("#!/bin/sh\necho >>"+calls+"\necho its own words >&2\nexit 1\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	r.engine.qemu = filepath.Join(dir, "qemu")
	spec.ID, spec.Args = "a", waiting
	count := 0
	for round := range 2 {
		err := r.Run(t.Context(), spec)
		if err == nil || !strings.Contains(err.Error(), "no virtual machine comes up here: ") || !strings.Contains(err.Error(), "its own words") {
			t.Errorf("round %d: %v", round, err)
		}
		text, err := os.ReadFile(calls)
		if n := len(text); err != nil || n == 0 || round > 0 && n != count {
			t.Errorf("round %d: %d calls of QEMU, %v; %d before", round, n, err, count)
		}
		count = len(text)
	}
	done, err := r.engine.turnToMake(t.Context()) // another is at it
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	hurry, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Run(hurry, spec); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside another trial: %v", err)
	}
}

func TestWhatAHostLacks(t *testing.T) {
	empty := t.TempDir()
	notKernel := filepath.Join(empty, "vmlinuz-1")
	if err := os.WriteFile(notKernel, make([]byte, 4096), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		o    Options
		want string
	}{
		"no QEMU":   {Options{QEMU: "/no/such/qemu", Kernel: testKernel}, "apt-get install qemu-system-x86"},
		"no kernel": {Options{Kernel: empty + "/vmlinux"}, "no kernel for virtual machines in " + empty + "/vmlinux: install one"},
	} {
		if a := About(t.Context(), tt.o); !strings.Contains(a.Missing, tt.want) {
			t.Errorf("%s: about says %q", name, a.Missing)
		}
		if _, err := New(t.Context(), kit.NewInstance(t), tt.o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a := About(t.Context(), Options{Kernel: testKernel})
	if a.Missing != "" || !strings.Contains(a.Version, "QEMU emulator version") || !strings.Contains(a.Note, "tcg") || !a.Userns {
		t.Errorf("%+v", a)
	}
	inst := kit.NewInstance(t)
	r, err := New(t.Context(), inst, Options{Kernel: notKernel})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	err = r.Run(t.Context(), container.Spec{ID: "a", Rootfs: kit.Rootfs(t), ReadOnly: true, Args: waiting})
	if err == nil || !strings.Contains(err.Error(), notKernel+": neither an ELF file nor a kernel for PCs") {
		t.Errorf("not a kernel: %v", err)
	}
	if err := r.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}
