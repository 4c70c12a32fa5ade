package main

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A call that the kernel makes counts, also one that waits. A call is refused by an error, or by a filter that ends the process.
func TestCallsOfAChild(t *testing.T) {
	const filtered, unknown = unix.SYS_SETDOMAINNAME, 1000
	for name, c := range map[string]struct {
		numbers []uintptr
		arg     uintptr
		verdict string
		detail  string
	}{
		"returns":                       {[]uintptr{unix.SYS_GETPPID}, 0, escaped, "is made"},
		"waits":                         {[]uintptr{unix.SYS_PAUSE}, 0, escaped, "is made: killed: killed"},
		"ends the child":                {[]uintptr{unix.SYS_EXIT}, 0, escaped, "is made"},
		"ends with an error":            {[]uintptr{unix.SYS_CLOSE}, 1<<63 - 1, refused, "bad file descriptor"},
		"is unknown":                    {[]uintptr{unknown}, 0, refused, "function not implemented"},
		"is of another machine":         {[]uintptr{0x40000000 | unix.SYS_CLOSE}, 1<<63 - 1, refused, ""},
		"is filtered":                   {[]uintptr{filtered}, 0, refused, "killed: bad system call"},
		"is the second of several":      {[]uintptr{unknown, unix.SYS_GETPPID, unknown}, 0, escaped, "is made"},
		"is the one behind a filter's":  {[]uintptr{filtered, unknown, unix.SYS_GETPPID}, 0, escaped, "is made"},
		"is none of several":            {[]uintptr{filtered, unknown, filtered}, 0, refused, "killed: bad system call; function not implemented"},
		"waits as the third of several": {[]uintptr{unknown, unknown, unix.SYS_PAUSE}, 0, escaped, "is made: killed: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtime.LockOSThread() // not unlocked: the filter goes with the thread
			endOn(t, filtered)
			begin := time.Now()
			verdict, detail := childCalls(escaped, c.numbers, c.arg)
			if verdict != c.verdict || !strings.Contains(detail, c.detail) {
				t.Errorf("%s: %s, want %s: %s", verdict, detail, c.verdict, c.detail)
			}
			if took := time.Since(begin); took > callTimeout+5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// endOn has the kernel end this thread when it makes a system call, as filters do with calls of another machine.
func endOn(t *testing.T, number uint32) {
	t.Helper()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: number},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_THREAD},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		t.Fatal(err)
	}
}

// A file in reach is told, also one that has nothing now. An empty one, and a pipe in the place of one, are masks.
func TestFilesInReach(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	held := filepath.Join(dir, "held")
	if err := unix.Mkfifo(held, 0o600); err != nil {
		t.Fatal(err)
	}
	holder, err := os.OpenFile(held, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	for name, c := range map[string]struct{ path, verdict string }{
		"no file":                    {filepath.Join(dir, "none"), refused},
		"empty":                      {file("empty", ""), refused},
		"with content":               {file("full", "x"), escaped},
		"a directory":                {dir, escaped},
		"a pipe":                     {pipe, refused},
		"a pipe that is held open":   {held, refused},
		"the kernel's log":           {"/dev/kmsg", escaped},
		"the kernel's log to remove": {"/proc/kmsg", escaped},
	} {
		done := make(chan [2]string, 1)
		go func() {
			verdict, detail := opens(os.O_RDONLY, escaped, c.path)
			done <- [2]string{verdict, detail}
		}()
		select {
		case got := <-done:
			if got[0] != c.verdict {
				t.Errorf("%s: %v, want %s", name, got, c.verdict)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: it waits", name)
		}
	}
	if _, err := holder.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if verdict, detail := opens(os.O_RDONLY, escaped, held); verdict != escaped {
		t.Errorf("a pipe with content: %s, %s", verdict, detail)
	}
}

// One attempt of many that goes through is enough.
func TestOneOfManyGoesThrough(t *testing.T) {
	no := func() (string, string) { return refused, "no" }
	yes := func() (string, string) { return escaped, "yes" }
	if v, d := anyOf(no, no, yes, no); v != escaped || d != "yes" {
		t.Error(v, d)
	}
	if v, d := anyOf(no, no); v != refused || d != "no" {
		t.Error(v, d)
	}
	if v, d := all(no, yes, no); v != escaped || d != "no; yes" {
		t.Error(v, d)
	}
}

// A lower link in another namespace, where this process may change links, is one that is reached. A test of the attempts that the kernel refuses in a container.
func TestLinkOnAnotherNamespacesLink(t *testing.T) {
	// Two namespaces: this thread's new one, and another below the same user namespace that it knows as 5.
	runtime.LockOSThread() // not unlocked: the namespace goes with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	other, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := ask(unix.RTM_NEWLINK, create, 0, made("below", "bridge")...); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	try := attempts()[slices.IndexFunc(attempts(), func(a attempt) bool { return a.name == "macvlan-on-host" })].try
	if verdict, detail := try(); verdict != refused {
		t.Errorf("with no other namespace: %s, %s", verdict, detail)
	}
	const id = 5
	if err := netlink.SetNetNsIdByFd(int(other.Fd()), id); err != nil {
		t.Fatal(err)
	}
	if verdict, detail := try(); verdict != escaped || !strings.HasSuffix(detail, "a macvlan on link 2 of namespace 5") {
		t.Errorf("with another one in reach: %s, %s", verdict, detail)
	}
}
