package rings

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
)

const unified = "/sys/fs/cgroup/unified" // or /sys/fs/cgroup alone

const asks = "WEIR_RINGS_ASKS"

func TestMain(m *testing.M) {
	if os.Getenv(asks) != "" {
		serve()
		return
	}
	os.Exit(m.Run())
}

// serve does what it reads, a line each, and answers: a process in a group.
func serve() {
	sockets := map[string]int{}
	var pipe [2]int
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		f := strings.Fields(in.Text())
		n := make([]int, len(f))
		for i, text := range f {
			n[i], _ = strconv.Atoi(text)
		}
		var err error
		switch f[0] {
		case "open":
			sockets[f[1]], err = unix.Socket(n[2], unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		case "socket": // name, family, type, protocol
			sockets[f[1]], err = unix.Socket(n[2], n[3]|unix.SOCK_CLOEXEC, n[4])
		case "churn": // how many, family, type, protocol: one after another
			for i := 0; i < n[1] && err == nil; i++ {
				var fd int
				if fd, err = unix.Socket(n[2], n[3]|unix.SOCK_CLOEXEC, n[4]); err == nil {
					unix.Close(fd)
				}
			}
		case "take": // how often, a way
			err = take(strings.Join(f[2:], " "), n[1])
		case "connects": // a socket that comes from accept, and whose listener is told of errors
			err = errors.Join(upLo(), connects())
		case "dup": // socket, another name of it
			sockets[f[2]], err = unix.FcntlInt(uintptr(sockets[f[1]]), unix.F_DUPFD_CLOEXEC, 0)
		case "pass": // socket: it waits to be received
			if pipe, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
				err = errors.Join(unix.Sendmsg(pipe[0], []byte{0}, unix.UnixRights(sockets[f[1]]), nil, 0), unix.Close(sockets[f[1]]))
			}
		case "receive": // socket
			rights := make([]byte, unix.CmsgSpace(4))
			if _, _, _, _, err = unix.Recvmsg(pipe[1], make([]byte, 1), rights, 0); err == nil {
				sockets[f[1]] = int(binary.NativeEndian.Uint32(rights[unix.CmsgLen(0):]))
			}
		case "hold": // socket of IPv6: a datagram is held back
			err = errors.Join(upLo(), unix.Sendto(sockets[f[1]], make([]byte, 1000), unix.MSG_MORE, &unix.SockaddrInet6{Port: 9, Addr: [16]byte{15: 1}}))
		case "tell": // socket: sends what it is to be told of
			err = errors.Join(upLo(), unix.Sendmsg(sockets[f[1]], []byte{0}, message(sent), loopback, 0))
		case "join": // socket of IPv6, how many groups
			for i := 0; i < n[2] && err == nil; i++ {
				err = unix.SetsockoptIPv6Mreq(sockets[f[1]], unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: [16]byte{0: 0xff, 1: 2, 15: byte(i)}, Interface: 1})
			}
		case "filter": // socket, option, statements
			err = filter(sockets[f[1]], n[2], n[3])
		case "bind6": // socket
			err = unix.Bind(sockets[f[1]], &unix.SockaddrInet6{Port: 9})
		case "asks": // socket of NETLINK_ROUTE: answers are not read
			for i := 0; i < 100 && err == nil; i++ {
				err = unix.Sendto(sockets[f[1]], []byte{17, 0, 0, 0, unix.RTM_GETLINK, 0, unix.NLM_F_REQUEST | unix.NLM_F_ACK, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
			}
		case "fill": // raw socket of ICMP: what its own host answers, and is asked, is not read
			err = upLo()
			for i := 0; i < 100 && err == nil; i++ {
				err = unix.Sendto(sockets[f[1]], append([]byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}, make([]byte, 1400)...), 0, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
			}
		case "ping": // lets everybody have ping sockets
			err = os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0)
		case "send": // socket, bytes: how long its queue of what is sent is then, in place of an error
			err = unix.SetsockoptInt(sockets[f[1]], unix.SOL_SOCKET, unix.SO_SNDBUF, n[2])
			if got, gerr := unix.GetsockoptInt(sockets[f[1]], unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil && gerr == nil {
				err = unix.Errno(got >> 10)
			}
		case "race": // socket: the longest queue that it gets while another thread changes what is asked for
			v := new(uint32)
			var done atomic.Bool
			go func() {
				for i := uint32(0); !done.Load(); i++ {
					atomic.StoreUint32(v, 4096+i%2<<21)
				}
			}()
			most := 0
			for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
				_ = setsockopt(sockets[f[1]], unix.SOL_SOCKET, unix.SO_RCVBUF, unsafe.Slice((*byte)(unsafe.Pointer(v)), 4))
				got, _ := unix.GetsockoptInt(sockets[f[1]], unix.SOL_SOCKET, unix.SO_RCVBUF)
				most = max(most, got)
			}
			done.Store(true)
			err = unix.Errno(most >> 10)
		case "close":
			err = unix.Close(sockets[f[1]])
		case "packet": // socket, option, block size, blocks, bytes of the option
			req := unix.TpacketReq{Block_size: uint32(n[3]), Block_nr: uint32(n[4]), Frame_size: 2048}
			req.Frame_nr = req.Block_size / 2048 * req.Block_nr
			value := make([]byte, max(n[5], int(unsafe.Sizeof(req))))
			copy(value, unsafe.Slice((*byte)(unsafe.Pointer(&req)), unsafe.Sizeof(req)))
			err = setsockopt(sockets[f[1]], unix.SOL_PACKET, n[2], value)
		case "set": // socket, level, option, value of 32 bits
			v := uint32(n[4])
			err = setsockopt(sockets[f[1]], n[2], n[3], unsafe.Slice((*byte)(unsafe.Pointer(&v)), 4))
		case "queue": // socket, bytes: how long its queue is then, in place of an error
			err = setsockopt(sockets[f[1]], unix.SOL_SOCKET, unix.SO_RCVBUF, unsafe.Slice((*byte)(unsafe.Pointer(&n[2])), 4))
			if got, gerr := unix.GetsockoptInt(sockets[f[1]], unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil && gerr == nil {
				err = unix.Errno(got >> 10)
			}
		case "long": // socket: an option of another kind that is longer than a page
			err = setsockopt(sockets[f[1]], unix.SOL_SOCKET, unix.SO_RCVBUF, append([]byte{0, 0, 1, 0}, make([]byte, 8192)...))
		case "fanout": // socket, group, members
			v := [2]uint32{uint32(n[2]), uint32(n[3])}
			err = setsockopt(sockets[f[1]], unix.SOL_PACKET, unix.PACKET_FANOUT, unsafe.Slice((*byte)(unsafe.Pointer(&v)), 8))
		case "bind": // AF_XDP socket, to a queue of the loopback interface, alone or with another one's memory
			var lo *net.Interface
			if lo, err = net.InterfaceByName("lo"); err == nil {
				a := unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(lo.Index)}
				if len(f) > 2 {
					a.Flags, a.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(sockets[f[2]])
				}
				err = unix.Bind(sockets[f[1]], &a)
			}
		case "umem": // socket, MiB of the same memory
			var b []byte
			if b, err = unix.Mmap(-1, 0, n[2]<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err == nil {
				reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&b[0]))), Len: uint64(len(b)), Size: 2048}
				err = setsockopt(sockets[f[1]], unix.SOL_XDP, unix.XDP_UMEM_REG, unsafe.Slice((*byte)(unsafe.Pointer(&reg)), unsafe.Sizeof(reg)))
			}
		}
		var e unix.Errno
		errors.As(err, &e)
		fmt.Println(int(e))
	}
}

func setsockopt(fd, level, option int, value []byte) error {
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option), uintptr(unsafe.Pointer(&value[0])), uintptr(len(value)), 0)
	if e != 0 {
		return e
	}
	return nil
}

// upLo brings the loopback interface up.
func upLo() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) // which counts nothing
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}

// member is a process in a group and in a network namespace of its own.
type member struct {
	t   *testing.T
	pid int
	in  io.Writer
	out *bufio.Scanner
	end func()
}

func join(t *testing.T, dir string) *member {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asks+"=1")
	for _, name := range []string{"rmem_max", "optmem_max"} { // older kernels do not show them in its network namespace
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s_%s=%d", asks, name, setting(name)))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd()), Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	m := &member{t: t, pid: cmd.Process.Pid, in: in, out: bufio.NewScanner(out)}
	m.end = func() {
		in.Close()
		_ = cmd.Wait()
	}
	t.Cleanup(m.end)
	return m
}

// does has the process do something, and fails unless that ends as wanted.
func (m *member) does(want unix.Errno, what string) {
	m.t.Helper()
	fmt.Fprintln(m.in, what)
	if !m.out.Scan() {
		m.t.Fatalf("%s: the process is gone", what)
	}
	if got, _ := strconv.Atoi(m.out.Text()); unix.Errno(got) != want {
		m.t.Errorf("%s: %v, want %v", what, unix.Errno(got), want)
	}
}

// moves the process to another group.
func (m *member) moves(dir string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(m.pid)), 0); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(m.end) // before the group is removed
}

// group makes a group of version 2.
func group(t *testing.T, above, name string) string {
	t.Helper()
	dir := filepath.Join(above, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func top() string {
	var st unix.Statfs_t
	if err := unix.Statfs(unified, &st); err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		return unified
	}
	return "/sys/fs/cgroup"
}

func attached(t *testing.T, dir string, most uint64) *Bound {
	t.Helper()
	pins := filepath.Join(t.TempDir(), "pins")
	t.Cleanup(func() {
		if err := Detach(dir, pins); err != nil {
			t.Error(err)
		}
	})
	return again(t, dir, pins, most)
}

// again attaches what may be there already.
func again(t *testing.T, dir, pins string, most uint64) *Bound {
	t.Helper()
	b, err := Attach(dir, pins, most)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// each is what a socket counts that has no longer queues than usual.
var each = uint64(min(setting("rmem_default"), 212992) + min(setting("wmem_default"), 212992) + 32768)

// packets is what a packet, netlink or AF_XDP socket counts: nothing where this kernel does not show them.
var packets = sync.OnceValue(func() uint64 {
	if Seen() != nil {
		return 0
	}
	return each
})

// setting is one of the host for all sockets.
func setting(name string) int {
	if n, err := strconv.Atoi(os.Getenv(asks + "_" + name)); err == nil {
		return n
	}
	raw, err := os.ReadFile("/proc/sys/net/core/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0 // in another network namespace than the host's, where nobody asks
	}
	if err != nil {
		panic(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		panic(err)
	}
	return n
}

// swept is what each group has.
func swept(t *testing.T, b *Bound) map[string]Group {
	t.Helper()
	groups, err := b.Sweep()
	if err != nil && (!errors.Is(err, b.lacks) || groups == nil) {
		t.Fatal(err)
	}
	out := map[string]Group{}
	for _, g := range groups {
		out[g.Name] = g
	}
	return out
}

// sweeps skips the rest of a test where this kernel cannot go over sockets.
func sweeps(t *testing.T, b *Bound) {
	t.Helper()
	if b.iter == nil {
		t.Skipf("kernel lacks iterators over what sockets have: %v", b.lacks)
	}
}

const mib = 1 << 20

func TestRingsAreBounded(t *testing.T) {
	scope := group(t, top(), "weir-rings-"+strconv.Itoa(os.Getpid()))
	one, two := group(t, scope, "one"), group(t, scope, "two")
	b := attached(t, scope, 4*mib+2*packets())
	a, o := join(t, group(t, one, "below")), join(t, two)

	a.does(0, fmt.Sprintf("open p %d", unix.AF_PACKET))
	a.does(unix.ENOMEM, "packet p 5 1048576 5 0") // PACKET_RX_RING of 5 MiB
	a.does(unix.ENOMEM, "packet p 13 1048576 5 0")
	a.does(0, "packet p 5 1048576 3 0")
	a.does(unix.ENOMEM, "packet p 13 1048576 2 0") // 5 MiB together
	a.does(0, "packet p 13 1048576 1 0")
	a.does(unix.EPERM, "packet p 5 4096 1 5000") // the program does not see all of it
	a.does(0, fmt.Sprintf("open q %d", unix.AF_PACKET))
	a.does(unix.ENOMEM, "packet q 5 4096 1 0")
	if got, want := swept(t, b)["one"], (Group{"one", 4*mib + 2*packets(), 4}); got != want {
		t.Errorf("group: %+v, want %+v", got, want)
	}

	// What is given back and taken again is the same.
	for range 3 {
		a.does(0, "packet p 5 0 0 0")
		a.does(0, "packet p 5 1048576 3 0")
	}
	// Another group has its own bound. Its process is in it, not below.
	o.does(0, fmt.Sprintf("open p %d", unix.AF_PACKET))
	o.does(0, fmt.Sprintf("open q %d", unix.AF_PACKET))
	o.does(0, "packet p 5 1048576 4 0")
	o.does(unix.ENOMEM, "packet p 13 4096 1 0")

	// What is gone does not count, once somebody has looked.
	a.does(0, "close p")
	a.does(unix.ENOMEM, "packet q 5 1048576 1 0")
	sweeps(t, b)
	if got := swept(t, b)["one"].Bytes; got != packets() {
		t.Errorf("%d bytes after a socket is gone, want those of the other one", got)
	}
	if got, want := swept(t, b)["two"].Bytes, 4*mib+2*packets(); got != want {
		t.Errorf("%d bytes of another group, want %d", got, want)
	}
	a.does(0, "packet q 5 1048576 4 0")
	a.does(unix.ENOMEM, "packet q 13 1048576 1 0")
	a.does(0, "close q")

	// Other options are the kernel's affair, also those that are longer than what a program is shown.
	a.does(0, fmt.Sprintf("open u %d", unix.AF_PACKET))
	a.does(0, "long u")
	a.does(0, fmt.Sprintf("set u %d %d 4096", unix.SOL_SOCKET, unix.SO_RCVBUF))

	// A group that is gone is forgotten.
	o.end()
	if err := os.Remove(two); err != nil {
		t.Fatal(err)
	}
	swept(t, b)
	if groups, err := all[RingsGroup](b.o.Groups); err != nil || len(groups) != 1 {
		t.Errorf("groups: %v %v, want one", groups, err)
	}
	if err := os.Mkdir(two, 0o755); err != nil { // for the end of the test
		t.Fatal(err)
	}
}

// TestWhatTheKernelTakesCounts: not what was asked for.
func TestWhatTheKernelTakesCounts(t *testing.T) {
	scope := group(t, top(), "weir-rings-takes-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, 4*mib+3*packets())
	a := join(t, group(t, scope, "one"))
	a.does(0, fmt.Sprintf("open p %d", unix.AF_PACKET))
	a.does(unix.ENOMEM, fmt.Sprintf("packet p 5 %d 4 0", mib+4096)) // 2 MiB a block
	a.does(0, fmt.Sprintf("packet p 5 %d 1 0", mib+4096))
	if got := swept(t, b)["one"].Bytes; got != 2*mib+packets() {
		t.Errorf("a block of 1 MiB and a page: %d bytes, want 2 MiB", got)
	}
	// A ring takes a page at least.
	a.does(0, fmt.Sprintf("open x %d", unix.AF_XDP))
	for _, option := range []int{unix.XDP_RX_RING, unix.XDP_TX_RING, unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING} {
		a.does(0, fmt.Sprintf("set x %d %d 1", unix.SOL_XDP, option))
	}
	if got := swept(t, b)["one"].Bytes; got != 2*mib+4*4096+2*packets() {
		t.Errorf("4 rings of 1 entry: %d bytes, want 4 pages", got-2*mib-2*packets())
	}
	// Nor can fanout groups be for more members than usual.
	a.does(0, fmt.Sprintf("open f %d", unix.AF_PACKET))
	a.does(unix.ENOMEM, "fanout f 1 65536")
	a.does(unix.EINVAL, "fanout f 1 256") // the kernel's: it is bound to nothing
}

func TestRingsOfXDPAreBounded(t *testing.T) {
	scope := group(t, top(), "weir-rings-xdp-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, 4*mib+3*packets())
	a := join(t, group(t, scope, "one"))
	const page = 4096
	a.does(0, fmt.Sprintf("open x %d", unix.AF_XDP))
	for _, option := range []int{unix.XDP_RX_RING, unix.XDP_TX_RING} {
		a.does(unix.ENOMEM, fmt.Sprintf("set x %d %d %d", unix.SOL_XDP, option, 1<<19)) // 8 MiB
		a.does(0, fmt.Sprintf("set x %d %d 2048", unix.SOL_XDP, option))
	}
	a.does(0, "umem x 4") // 2048 frames
	for _, option := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING} {
		a.does(unix.ENOMEM, fmt.Sprintf("set x %d %d %d", unix.SOL_XDP, option, 1<<30))
		a.does(0, fmt.Sprintf("set x %d %d 2048", unix.SOL_XDP, option))
	}
	a.does(0, fmt.Sprintf("open y %d", unix.AF_XDP))
	a.does(unix.ENOMEM, "umem y 128")
	if got, want := swept(t, b)["one"].Bytes, 2*packets()+2048*(16+32+8+8)+4*page+2048*(16+144); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	// Another queue that shares the memory takes as much for it.
	before := swept(t, b)["one"].Bytes
	a.does(0, fmt.Sprintf("set y %d %d 2048", unix.SOL_XDP, unix.XDP_UMEM_FILL_RING))
	if got, want := swept(t, b)["one"].Bytes-before, uint64(2048*(8+144)+page); got != want {
		t.Errorf("%d bytes of another queue, want %d", got, want)
	}
	// So do those that are there when there is more memory.
	before = swept(t, b)["one"].Bytes
	a.does(0, fmt.Sprintf("open z %d", unix.AF_XDP))
	a.does(0, "umem z 8")
	if got, want := swept(t, b)["one"].Bytes-before, packets()+4096*16+2*2048*144; got != want {
		t.Errorf("%d bytes of more memory, want %d", got, want)
	}
}

// TestSharedMemoryOfXDPStaysCounted: a socket shares the rings and the memory of another one, which has been closed.
func TestSharedMemoryOfXDPStaysCounted(t *testing.T) {
	scope := group(t, top(), "weir-rings-shared-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, 4*mib+2*packets())
	a := join(t, group(t, scope, "one"))
	a.does(0, fmt.Sprintf("open x %d", unix.AF_XDP))
	a.does(0, "umem x 1")
	for _, option := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING} {
		a.does(0, fmt.Sprintf("set x %d %d %d", unix.SOL_XDP, option, 1<<17)) // 1 MiB packets()
	}
	a.does(0, fmt.Sprintf("open y %d", unix.AF_XDP))
	for _, s := range []string{"x", "y"} {
		a.does(0, fmt.Sprintf("set %s %d %d 2", s, unix.SOL_XDP, unix.XDP_RX_RING))
	}
	a.does(0, "bind x")
	a.does(0, "bind y x")
	a.does(0, "close x")
	if got := swept(t, b)["one"].Bytes; got < 2*mib {
		t.Errorf("%d bytes while a socket shares them, want 2 MiB and more", got)
	}
	// It is one of AF_XDP whatever else is asked of it.
	a.does(unix.ENOPROTOOPT, "packet y 5 4096 1 0")
	if got := swept(t, b)["one"].Bytes; got < 2*mib {
		t.Errorf("%d bytes after an option of another family, want 2 MiB and more", got)
	}
	a.does(0, "close y")
	sweeps(t, b)
	for deadline := time.Now().Add(5 * time.Second); ; { // the kernel frees it after a grace period of RCU
		got := swept(t, b)["one"].Bytes
		if got == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes when all sockets are gone, want 0", got)
		}
	}
}

// TestAnotherProcessTakesOver: a daemon that was killed leaves its bound in force, and the next one knows what was counted.
func TestAnotherProcessTakesOver(t *testing.T) {
	scope := group(t, top(), "weir-rings-over-"+strconv.Itoa(os.Getpid()))
	pins := filepath.Join(t.TempDir(), "pins")
	b := again(t, scope, pins, 4*mib+packets())
	t.Cleanup(func() {
		if err := Detach(scope, pins); err != nil {
			t.Error(err)
		}
	})
	a := join(t, group(t, scope, "one"))
	a.does(0, fmt.Sprintf("open p %d", unix.AF_PACKET))
	a.does(0, "packet p 5 1048576 3 0")
	b.Close()
	a.does(unix.ENOMEM, "packet p 13 1048576 2 0")
	for range 3 { // it is attached once, however often
		b = again(t, scope, pins, 8*mib+2*packets())
		if got := swept(t, b)["one"].Bytes; got != 3*mib+packets() {
			t.Errorf("%d bytes, want %d", got, 3*mib+packets())
		}
	}
	a.does(0, "packet p 13 1048576 5 0")
	a.does(0, fmt.Sprintf("open q %d", unix.AF_PACKET))
	a.does(unix.ENOMEM, "packet q 5 4096 1 0")
	if packets() != 0 {
		if got := pinned(t, pins); len(got) != len(seeing) {
			t.Errorf("pins %v, want one of each program", got)
		}
	}
	if !b.At(scope) || b.At(filepath.Join(scope, "one")) {
		t.Error("At does not tell groups apart")
	}
}

func TestWhatCannotBeAttachedIsAnError(t *testing.T) {
	if b, err := Attach(t.TempDir(), t.TempDir(), mib); err == nil {
		b.Close()
		t.Error("a directory that is no group was accepted")
	}
}

// TestWithoutTypesOfTheKernel: nobody knows what is gone, but what was refused.
func TestWithoutTypesOfTheKernel(t *testing.T) {
	scope := group(t, top(), "weir-rings-types-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, mib+packets())
	b.iter.Close()
	b.iter, b.lacks = nil, errors.ErrUnsupported
	a := join(t, group(t, scope, "one"))
	a.does(0, fmt.Sprintf("open p %d", unix.AF_PACKET))
	a.does(0, "packet p 5 1048576 1 0")
	a.does(unix.ENOMEM, "packet p 13 1048576 1 0")
	groups, err := b.Sweep()
	if want := (Group{"one", mib + packets(), 1}); !errors.Is(err, b.lacks) || len(groups) != 1 || groups[0] != want {
		t.Errorf("%+v, %v, want %+v and why no more is known", groups, err, want)
	}
}

// TestAStrangersRingsAreBounded: a process outside all groups has a function's socket, say by SCM_RIGHTS.
func TestAStrangersRingsAreBounded(t *testing.T) {
	scope := group(t, top(), "weir-rings-strange-"+strconv.Itoa(os.Getpid()))
	pins := filepath.Join(t.TempDir(), "pins")
	again(t, scope, pins, 4*mib)
	if err := bpf.Unmount(pins); err != nil { // a socket that nobody has seen when it was made
		t.Fatal(err)
	}
	a := join(t, group(t, scope, "one"))
	a.does(0, fmt.Sprintf("open p %d", unix.AF_PACKET))
	b := again(t, scope, pins, 4*mib)
	t.Cleanup(func() {
		if err := Detach(scope, pins); err != nil {
			t.Error(err)
		}
	})
	a.does(0, fmt.Sprintf("open q %d", unix.AF_PACKET))
	a.moves(group(t, top(), "weir-rings-stranger-"+strconv.Itoa(os.Getpid())))
	a.does(unix.ENOMEM, "packet p 5 1048576 5 0")
	a.does(0, "packet p 5 1048576 4 0")
	if packets() != 0 {
		a.does(unix.ENOMEM, "packet q 5 4096 1 0") // it is the function's
	}
	if got := swept(t, b)[""]; got.Bytes != 4*mib || got.Refused != 1 {
		t.Errorf("%+v, want 4 MiB, 1 refused", got)
	}
	if got := swept(t, b)["one"].Bytes; got != packets() {
		t.Errorf("%d bytes of the function, want a socket", got)
	}
}

// TestManyAtOnce: threads that ask at the same time, and sweeps meanwhile, do not get more together.
func TestManyAtOnce(t *testing.T) {
	scope := group(t, top(), "weir-rings-many-"+strconv.Itoa(os.Getpid()))
	const processes, sockets, rings = 8, 30, 64
	b := attached(t, scope, processes*sockets*packets()+rings*65536)
	dir := group(t, scope, "one")
	var all []*member
	for range processes {
		m := join(t, dir)
		for i := range sockets { // before any ring, which takes the place of sockets otherwise
			m.does(0, fmt.Sprintf("open %d %d", i, unix.AF_PACKET))
		}
		all = append(all, m)
	}
	done := make(chan error)
	go func() {
		var err error
		for range 100 {
			if _, serr := b.Sweep(); serr != nil && !errors.Is(serr, b.lacks) {
				err = serr
			}
		}
		done <- err
	}()
	got := make(chan int)
	for _, m := range all {
		go func() {
			n := 0
			for i := range sockets {
				fmt.Fprintf(m.in, "packet %d 5 65536 1 0\n", i)
				m.out.Scan()
				if m.out.Text() == "0" {
					n++
				}
			}
			got <- n
		}()
	}
	sum := 0
	for range all {
		sum += <-got
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if sum > rings || sum < rings-processes {
		t.Errorf("%d rings of 64 KiB, want %d", sum, rings)
	}
	if g := swept(t, b)["one"]; g.Bytes != processes*sockets*packets()+uint64(sum)*65536 || g.Refused != uint64(processes*sockets-sum) {
		t.Errorf("%+v, want %d bytes, %d refused", g, processes*sockets*packets()+uint64(sum)*65536, processes*sockets-sum)
	}
}

// TestLongQueuesAreBounded: sockets keep the usual length when half of what the group may have is used up, and are not told.
func TestLongQueuesAreBounded(t *testing.T) {
	most := min(setting("rmem_max"), mib)
	floor := 2 * 212992 // of a socket that was not counted when it was made
	if packets() != 0 {
		floor = setting("rmem_default")
	}
	if 2*most <= floor {
		t.Skip("machine lacks queues of sockets that are longer than usual: net.core.rmem_max")
	}
	usual, long, more := unix.Errno(floor>>10), unix.Errno(2*most>>10), uint64(2*most-floor)
	scope := group(t, top(), "weir-rings-queues-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, 2*(3*packets()+2*more))
	a := join(t, group(t, scope, "one"))
	for i, family := range []int{unix.AF_NETLINK, unix.AF_PACKET, unix.AF_NETLINK} {
		want := long
		if i > 1 {
			want = usual
		}
		a.does(0, fmt.Sprintf("open %d %d", i, family))
		a.does(want, fmt.Sprintf("queue %d %d", i, most))
		a.does(want, fmt.Sprintf("queue %d %d", i, most)) // the same queue counts once
	}
	a.does(usual, fmt.Sprintf("queue 2 %d", most))
	a.does(usual, "queue 2 1073741824")
	a.does(usual>>1, fmt.Sprintf("queue 2 %d", floor/4))
	a.does(0, fmt.Sprintf("socket r %d %d %d", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP))
	a.does(unix.Errno(setting("rmem_default")>>10), fmt.Sprintf("queue r %d", most))
	a.does(0, fmt.Sprintf("open u %d", unix.AF_UNIX)) // which is counted
	a.does(long, fmt.Sprintf("queue u %d", most))
	if got, want := swept(t, b)["one"], (Group{"one", 3*packets() + each + 2*more, 0}); got != want {
		t.Errorf("group: %+v, want %+v", got, want)
	}
	a.does(0, "close r")
	a.does(0, "close 1")
	if packets() == 0 {
		sweeps(t, b) // else it is given back at once
		swept(t, b)
	}
	a.does(long, fmt.Sprintf("queue 2 %d", most))
	if got, want := swept(t, b)["one"].Bytes, 2*packets()+2*more; got != want {
		t.Errorf("%d bytes when one is closed, want %d", got, want)
	}
}
