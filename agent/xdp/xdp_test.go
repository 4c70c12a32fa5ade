package xdp

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/agent/socket"
	"weir.dev/weir/bpf/xsk"
	"weir.dev/weir/netns"
)

// The first thread does nothing but wait: the kernel tells of a process where that thread is, and a thread that makes something in another namespace is there meanwhile.
func init() { runtime.LockOSThread() }

// home is a namespace with the ports of a function.
func home(t *testing.T) (path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("not root: this test makes network namespaces (sudo make test)")
	}
	path = filepath.Join(t.TempDir(), "net")
	if err := netns.Create(path, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(path); err != nil {
			t.Error(err)
		}
	})
	space, err := netns.At(path)
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	for i, name := range []string{"in", "out", "eth7"} {
		if _, err := space.Veth(space, netns.VethOptions{HostName: name + "-host", PeerName: name, PeerIndex: 1024 + i, Alias: "weir:test", Quiet: true}); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// server of the function whose instance is in a namespace.
func server(t *testing.T, space string) (*Server, string) {
	t.Helper()
	own, err := socket.SpaceAt(space)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "xdp.sock")
	s, err := Serve(filepath.Join(dir, "fresh"), path, func(from socket.Space) (string, bool) { return space, from == own })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, path
}

// within does something on a thread in a namespace.
func within(t *testing.T, space string, f func() error) {
	t.Helper()
	if err := netns.Do(space, f); err != nil {
		t.Fatal(err)
	}
}

// peer is a process in a namespace that has connected.
type peer struct {
	t *testing.T
	c *net.UnixConn
	r *bufio.Reader
}

// connect as this process: the kernel notes the process, not the thread.
func connect(t *testing.T, path string) peer {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return peer{t, c, bufio.NewReader(c)}
}

// say a message with descriptors; "" there is no answer.
func (p peer) say(text string, fds ...int) string {
	p.t.Helper()
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := p.c.WriteMsgUnix([]byte(text), rights, nil); err != nil {
		return ""
	}
	line, _ := p.r.ReadString('\n')
	return strings.TrimSpace(line)
}

// socketIn makes a socket in a namespace.
func socketIn(t *testing.T, space string, family, kind int) (fd int) {
	t.Helper()
	within(t, space, func() (err error) {
		fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
		return err
	})
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// programs are the ids of the programs of XDP of a namespace's links.
func programs(t *testing.T, space string) map[string]uint32 {
	t.Helper()
	all := map[string]uint32{}
	within(t, space, func() error {
		for _, name := range []string{"in", "out", "eth7", "lo"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if x := l.Attrs().Xdp; x != nil && x.Attached {
				all[name] = x.ProgId
			}
		}
		return nil
	})
	return all
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// here is a server whose function is in this process's own namespace, as the kernel tells of a connection's process: tests run in a fresh one.
func here(t *testing.T) (space string, s *Server, path string) {
	t.Helper()
	space = home(t)
	dir := t.TempDir()
	path = filepath.Join(dir, "xdp.sock")
	own, err := socket.SpaceAt("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if s, err = Serve(filepath.Join(dir, "fresh"), path, func(from socket.Space) (string, bool) { return space, from == own }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return space, s, path
}

// An AF_XDP socket of the function's namespace is taken for a queue of a port, again and again; the program stays the same, also for another agent.
func TestSocketsAreTaken(t *testing.T) {
	space, s, path := here(t)
	p := connect(t, path)
	for _, line := range []string{"in 0\n", "out 0", "in 0\n"} {
		if got := p.say(line, socketIn(t, space, unix.AF_XDP, unix.SOCK_RAW)); got != "ok" {
			t.Fatalf("%q: %q", line, got)
		}
	}
	before := programs(t, space)
	if before["in"] == 0 || before["out"] == 0 || before["in"] == before["out"] || len(before) != 2 {
		t.Errorf("programs %v: want one of in, and one of out", before)
	}
	s.Close()
	if after := programs(t, space); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("programs %v after the agent's end: want %v", after, before)
	}
	own, err := socket.SpaceAt("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	next, err := Serve(path+".new", path, func(from socket.Space) (string, bool) { return space, from == own })
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if got := connect(t, path).say("in 0\n", socketIn(t, space, unix.AF_XDP, unix.SOCK_RAW)); got != "ok" {
		t.Error(got)
	}
	if after := programs(t, space); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("programs %v of another agent: want %v", after, before)
	}
}

// What is no AF_XDP socket of the function's own namespace is refused, whatever it is, and nothing gets a program.
func TestOtherDescriptorsAreRefused(t *testing.T) {
	space, _, path := here(t)
	other := home(t)
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(epoll)
	before := descriptors(t) + 2 // the connection, and its other end
	p := connect(t, path)
	fine := socketIn(t, space, unix.AF_XDP, unix.SOCK_RAW)
	for name, c := range map[string]struct {
		line string
		fd   int
		want string
	}{
		"a file":                          {"in 0\n", int(file.Fd()), "no AF_XDP socket"},
		"an epoll":                        {"in 0\n", epoll, "no AF_XDP socket"},
		"a packet socket":                 {"in 0\n", socketIn(t, space, unix.AF_PACKET, unix.SOCK_RAW), "no AF_XDP socket"},
		"a TCP socket":                    {"in 0\n", socketIn(t, space, unix.AF_INET, unix.SOCK_STREAM), "no AF_XDP socket"},
		"a Unix socket":                   {"in 0\n", socketIn(t, space, unix.AF_UNIX, unix.SOCK_STREAM), "no AF_XDP socket"},
		"one of another function":         {"in 0\n", socketIn(t, other, unix.AF_XDP, unix.SOCK_RAW), "another network namespace"},
		"one of this machine":             {"in 0\n", socketIn(t, "/proc/self/ns/net", unix.AF_XDP, unix.SOCK_RAW), "another network namespace"},
		"another link":                    {"eth7 0\n", fine, "want"},
		"the loopback":                    {"lo 0\n", fine, "want"},
		"a path":                          {"../in 0\n", fine, "want"},
		"a port that is not there":        {"tap 0\n", fine, "link tap"},
		"a queue that is not there":       {"in 1\n", fine, "no receive queue 1"},
		"a queue that nobody has":         {"in 999\n", fine, "no receive queue 999"},
		"a number too long":               {"in 4294967296\n", fine, "want"},
		"less than none":                  {"in -1\n", fine, "want"},
		"two lines":                       {"in 0\nout 0\n", fine, "want"},
		"noise":                           {"\x00\xff\xfe", fine, "want"},
		"nothing but the end of the line": {"\n", fine, "want"},
	} {
		if got := p.say(c.line, c.fd); !strings.HasPrefix(got, "error: ") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if have := programs(t, space); len(have) != 0 {
		t.Errorf("programs %v: want none", have)
	}
	if got := p.say("in 0\n", fine); got != "ok" {
		t.Errorf("a good one afterwards: %q", got)
	}
	eventually(t, "all descriptors are closed", func() bool { return descriptors(t) <= before+8 }) // the sockets that this test has made
}

// A program that somebody else has attached stays.
func TestAnotherProgramStays(t *testing.T) {
	space, _, path := here(t)
	within(t, space, func() error { return attachOther("in") })
	before := programs(t, space)
	if got := connect(t, path).say("in 0\n", socketIn(t, space, unix.AF_XDP, unix.SOCK_RAW)); !strings.Contains(got, xsk.ErrOccupied.Error()) {
		t.Error(got)
	}
	if after := programs(t, space); before["in"] == 0 || after["in"] != before["in"] {
		t.Errorf("programs %v, before %v", after, before)
	}
}

// A process in another namespace is not heard, although it can connect.
func TestOnlyTheInstanceIsHeard(t *testing.T) {
	space := home(t)
	_, path := server(t, space) // this process is not there
	if got := connect(t, path).say("in 0\n", socketIn(t, space, unix.AF_XDP, unix.SOCK_RAW)); !strings.Contains(got, "not in the network namespace") {
		t.Error(got)
	}
	if have := programs(t, space); len(have) != 0 {
		t.Errorf("programs %v: want none", have)
	}
}

// Many descriptors at once, messages without one, long ones, floods of them and many connections take a bounded part of the agent; others are served afterwards.
func TestWhatAFunctionSendsIsBounded(t *testing.T) {
	space, s, path := here(t)
	fine := socketIn(t, space, unix.AF_XDP, unix.SOCK_RAW)
	before := descriptors(t)
	many := make([]int, 250) // SCM_MAX_FD is 253
	for i := range many {
		many[i] = fine
	}
	for name, c := range map[string]struct {
		text string
		fds  []int
	}{
		"two descriptors": {"in 0\n", many[:2]}, "many descriptors": {"in 0\n", many}, "no descriptor": {"in 0\n", nil},
		"a long message": {strings.Repeat("x", maxMessage+1), many[:1]}, "a longer one": {strings.Repeat("x", 1<<16), many},
	} {
		p := connect(t, path)
		if got := p.say(c.text, c.fds...); got != "" && !strings.HasPrefix(got, "error: want") {
			t.Errorf("%s: %q", name, got)
		}
		if got := p.say("in 0\n", fine); got != "" {
			t.Errorf("%s: the connection goes on: %q", name, got)
		}
		p.c.Close()
	}
	// Thousands of descriptors by messages that come faster than they are read, from more connections than are served.
	var all sync.WaitGroup
	stop := time.Now().Add(2 * time.Second)
	most := 0
	var mu sync.Mutex
	for range 16 {
		all.Go(func() {
			for time.Now().Before(stop) {
				c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
				if err != nil {
					continue
				}
				_ = c.SetDeadline(stop)
				for range 20 {
					if _, _, err := c.WriteMsgUnix([]byte("in 0\n"), unix.UnixRights(many...), nil); err != nil {
						break
					}
				}
				mu.Lock()
				most = max(most, len(many))
				mu.Unlock()
				c.Close()
			}
		})
	}
	worst := 0
	for time.Now().Before(stop) {
		worst = max(worst, descriptors(t)-before)
		runtime.Gosched()
	}
	all.Wait()
	if most == 0 {
		t.Error("nothing was sent")
	}
	// 16 clients of this test; of the server conns connections, a descriptor of each, and as many that are being closed.
	if worst > 16+3*conns+4 {
		t.Errorf("%d descriptors were open at once", worst)
	}
	eventually(t, "all descriptors are closed", func() bool { return descriptors(t) <= before })
	if got := connect(t, path).say("in 0\n", fine); got != "ok" {
		t.Errorf("a good one afterwards: %q", got)
	}
	// What comes too fast waits.
	p := connect(t, path)
	begun := time.Now()
	const more = 5
	for range burst + more {
		if got := p.say("in 0\n", fine); got != "ok" {
			t.Fatal(got)
		}
	}
	if took := time.Since(begun); took < (more-1)*perMessage {
		t.Errorf("%d messages were carried out in %s", burst+more, took)
	}
	s.Close()
	if got := p.say("in 0\n", fine); got != "" {
		t.Errorf("a connection goes on after the end: %q", got)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left")
	}
}

// A descriptor that takes long to close (a TCP socket that lingers) holds nobody up but its function, and not the end of the server.
func TestADescriptorThatTakesLongToClose(t *testing.T) {
	space, s, path := here(t)
	for range conns { // these are served: further ones wait, so that the descriptor is the server's alone when it is closed
		connect(t, path)
	}
	const lingers = 6 * time.Second
	fd := lingering(t, space, lingers)
	late := connect(t, path)
	if _, _, err := late.c.WriteMsgUnix([]byte("in 0\n"), unix.UnixRights(fd), nil); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	unix.Close(fd)
	if took := time.Since(begun); took > time.Second {
		t.Fatalf("closed within %s: it was the last one", took)
	}
	before := descriptors(t)
	eventually(t, "silent connections end, and it is served", func() bool {
		if late.c.SetReadDeadline(time.Now().Add(time.Millisecond)) != nil {
			return false
		}
		line, _ := late.r.ReadString('\n')
		return strings.Contains(line, "no AF_XDP socket")
	})
	begun = time.Now()
	s.Close()
	if took := time.Since(begun); took > lingers/2 {
		t.Errorf("the end took %s", took)
	}
	eventually(t, "it is closed in the end", func() bool { return descriptors(t) <= before })
}

// lingering is a TCP socket that is to send what nobody reads.
func lingering(t *testing.T, space string, lingers time.Duration) (fd int) {
	t.Helper()
	within(t, space, func() error {
		l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(l) })
		at := &unix.SockaddrInet4{Port: 7, Addr: [4]byte{127, 0, 0, 1}}
		if err := errors.Join(unix.Bind(l, at), unix.Listen(l, 1)); err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := errors.Join(unix.Connect(fd, at), unix.SetNonblock(fd, true), unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: int32(lingers / time.Second)})); err != nil {
			return err
		}
		for err == nil {
			_, err = unix.Write(fd, make([]byte, 1<<20))
		}
		return unix.SetNonblock(fd, false) // full; one that does not block does not linger
	})
	return fd
}

// attachOther attaches a program of somebody else's.
func attachOther(link string) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "other", Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		return err
	}
	defer p.Close()
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	return netlink.LinkSetXdpFdWithFlags(l, p.FD(), unix.XDP_FLAGS_SKB_MODE)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-tick.C {
		if ok() {
			return
		}
	}
	t.Errorf("not within 20 s: %s", what)
}
