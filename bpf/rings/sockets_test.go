package rings

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// raw is a socket that every kernel shows.
var raw = fmt.Sprint(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)

var netlink = fmt.Sprint(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)

// seen skips a test of sockets that this kernel does not show.
func seen(t *testing.T) {
	t.Helper()
	if err := Seen(); err != nil {
		t.Skipf("kernel lacks programs at its functions: %v", err)
	}
}

// kinds are sockets whose memory the kernel does not count against a cgroup, or not all of it, and others: family, type, protocol.
var kinds = []struct {
	name, socket string
	counted, ip  bool
}{
	{"netlink", fmt.Sprint(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE), true, false},
	{"netlink of datagrams", fmt.Sprint(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC), true, false},
	{"packet", fmt.Sprint(unix.AF_PACKET, unix.SOCK_RAW, 0), true, false},
	{"packet of datagrams", fmt.Sprint(unix.AF_PACKET, unix.SOCK_DGRAM, 0), true, false},
	{"packet as it was", fmt.Sprint(unix.AF_INET, unix.SOCK_PACKET, 0), true, false},
	{"raw", fmt.Sprint(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP), true, true},
	{"raw of UDP", fmt.Sprint(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP), true, true},
	{"raw of IPv6", fmt.Sprint(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6), true, true},
	{"ping", fmt.Sprint(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP), true, true},
	{"ping of IPv6", fmt.Sprint(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6), true, true},
	{"AF_XDP", fmt.Sprint(unix.AF_XDP, unix.SOCK_RAW, 0), true, false},
	{"TCP", fmt.Sprint(unix.AF_INET, unix.SOCK_STREAM, 0), false, true},
	{"TCP of IPv6", fmt.Sprint(unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP), false, true},
	{"MPTCP", fmt.Sprint(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP), false, true},
	{"UDP", fmt.Sprint(unix.AF_INET, unix.SOCK_DGRAM, 0), true, true},
	{"UDP of IPv6", fmt.Sprint(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP), true, true},
	{"UNIX", fmt.Sprint(unix.AF_UNIX, unix.SOCK_STREAM, 0), false, true},
}

// TestSocketsAreBounded: whatever kind they are of that the kernel does not count.
func TestSocketsAreBounded(t *testing.T) {
	scope := group(t, top(), "weir-sockets-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, 3*each)
	a, o := join(t, group(t, scope, "one")), join(t, group(t, scope, "two"))
	a.does(0, "ping")
	for i := range 3 {
		a.does(0, fmt.Sprintf("socket %d %s", i, raw))
	}
	refused := uint64(0)
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			a.t = t
			if !kind.ip {
				seen(t)
			}
			if !a.can(kind.socket) {
				t.Skip("kernel lacks sockets of family, type and protocol " + kind.socket)
			}
			want := unix.Errno(0)
			if kind.counted {
				want = unix.ENOMEM
				refused++
			}
			a.does(want, "socket x "+kind.socket)
			if !kind.counted {
				a.does(0, "close x")
				return
			}
			if strings.HasPrefix(kind.name, "UDP") { // it would leave room for others
				return
			}
			a.does(0, "close 0")
			a.does(0, "socket 0 "+kind.socket)
		})
	}
	a.t = t
	if got, want := swept(t, b)["one"], (Group{"one", 3 * each, refused}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	o.does(0, "socket x "+raw)
	if got := swept(t, b)["two"]; got.Bytes != each {
		t.Errorf("%+v, want one socket", got)
	}
	// Who is in no group is not concerned.
	a.moves(group(t, top(), "weir-sockets-elsewhere-"+strconv.Itoa(os.Getpid())))
	a.does(0, "socket x "+raw)
	if got := swept(t, b)[""]; got.Bytes != 0 {
		t.Errorf("%+v of who is in no group", got)
	}
}

// can tells whether the kernel has a kind of socket, by a process outside all groups.
func (m *member) can(socket string) bool {
	f := strings.Fields(socket)
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(f[i])
	}
	fd, err := unix.Socket(n[0], n[1]|unix.SOCK_CLOEXEC, n[2])
	if err == nil {
		unix.Close(fd)
	}
	return err == nil || err == unix.EACCES // of a ping socket, for which the test's own namespace is not set
}

// TestASocketIsGivenBackAtOnce: a script that runs many tools needs nobody to look.
func TestASocketIsGivenBackAtOnce(t *testing.T) {
	scope := group(t, top(), "weir-sockets-back-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, 64*each)
	a := join(t, group(t, scope, "one"))
	a.does(0, "ping")
	for _, kind := range kinds {
		n := 10000
		if strings.HasPrefix(kind.name, "packet") || kind.name == "AF_XDP" {
			n = 200 // the kernel waits for a grace period of RCU at each
		}
		if (kind.ip || packets() != 0) && a.can(kind.socket) {
			a.does(0, fmt.Sprintf("churn %d %s", n, kind.socket))
		}
	}
	if got := swept(t, b)["one"]; got.Bytes != 0 || got.Refused != 0 {
		t.Errorf("%+v, want nothing", got)
	}
}

// TestManySocketsAtOnce: processes that make and close sockets at the same time get all that they may have together, and no more.
func TestManySocketsAtOnce(t *testing.T) {
	const processes, sockets = 8, 20
	scope := group(t, top(), "weir-sockets-many-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, processes*each)
	dir := group(t, scope, "one")
	var all []*member
	for range processes {
		all = append(all, join(t, dir))
	}
	said := make(chan string)
	together := func(what string) (out []string) {
		for _, m := range all {
			go func() {
				fmt.Fprintln(m.in, what)
				m.out.Scan()
				said <- m.out.Text()
			}()
		}
		for range all {
			out = append(out, <-said)
		}
		return out
	}
	for _, text := range together("churn 3000 " + raw) {
		if text != "0" {
			t.Errorf("one socket each at a time: error %s", text)
		}
	}
	got := 0
	for i := range sockets {
		for _, text := range together(fmt.Sprintf("socket %d %s", i, raw)) {
			if text == "0" {
				got++
			}
		}
	}
	if got != processes {
		t.Errorf("%d sockets, want %d", got, processes)
	}
	if g := swept(t, b)["one"]; g.Bytes != processes*each || g.Refused != processes*(sockets-1) {
		t.Errorf("%+v, want %d bytes, %d refused", g, processes*each, processes*(sockets-1))
	}
}

// TestAFullSocketIsGivenBackWhenItIsGone: its memory is freed after it was closed.
func TestAFullSocketIsGivenBackWhenItIsGone(t *testing.T) {
	scope := group(t, top(), "weir-sockets-full-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, 2*each)
	a := join(t, group(t, scope, "one"))
	for range 3 {
		a.does(0, "socket f "+raw)
		a.does(0, "fill f")
		if packets() != 0 {
			a.does(0, fmt.Sprintf("socket g %d %d %d", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE))
			a.does(0, "asks g")
			a.does(0, "close g")
		}
		a.does(0, "close f")
		for deadline := time.Now().Add(5 * time.Second); swept(t, b)["one"].Bytes != 0; { // the kernel frees it after a grace period of RCU
			if time.Now().After(deadline) {
				t.Fatal("it counts 5 s after it was closed")
			}
		}
	}
}

// TestAPassedSocketIsItsMakers: who has it when it is closed gives it back to the maker.
func TestAPassedSocketIsItsMakers(t *testing.T) {
	scope := group(t, top(), "weir-sockets-passed-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, 2*each)
	one, two := group(t, scope, "one"), group(t, scope, "two")
	a := join(t, one)
	a.does(0, "socket x "+raw)
	a.does(0, "socket y "+raw)
	a.does(unix.ENOMEM, "socket z "+raw)
	a.moves(two) // as if it was passed on
	for _, s := range []string{"v", "w"} {
		a.does(0, fmt.Sprintf("socket %s %s", s, raw))
	}
	a.does(unix.ENOMEM, "socket z "+raw)
	a.does(0, "close x")
	a.does(unix.ENOMEM, "socket z "+raw)
	if got := swept(t, b); got["one"].Bytes != each || got["two"].Bytes != 2*each {
		t.Errorf("%+v, want one socket and two", got)
	}
}

// TestSocketsOfTwoScopes: each has its own bound, and goes alone.
func TestSocketsOfTwoScopes(t *testing.T) {
	first, second := group(t, top(), "weir-sockets-first-"+strconv.Itoa(os.Getpid())), group(t, top(), "weir-sockets-second-"+strconv.Itoa(os.Getpid()))
	b, o := attached(t, first, each), attached(t, second, 2*each)
	a, c := join(t, group(t, first, "one")), join(t, group(t, second, "one"))
	a.does(0, "socket x "+raw)
	a.does(unix.ENOMEM, "socket y "+raw)
	for _, s := range []string{"x", "y"} {
		c.does(0, fmt.Sprintf("socket %s %s", s, raw))
	}
	c.does(unix.ENOMEM, "socket z "+raw)
	if got := swept(t, b)["one"]; got.Bytes != each {
		t.Errorf("%+v, want one socket", got)
	}
	if got := swept(t, o)["one"]; got.Bytes != 2*each {
		t.Errorf("%+v, want two sockets", got)
	}
}

// TestDetachLetsSocketsBe: and nothing is left of it.
func TestDetachLetsSocketsBe(t *testing.T) {
	scope := group(t, top(), "weir-sockets-detach-"+strconv.Itoa(os.Getpid()))
	pins := filepath.Join(t.TempDir(), "pins")
	b := again(t, scope, pins, each)
	a := join(t, group(t, scope, "one"))
	a.does(0, "socket x "+raw)
	a.does(unix.ENOMEM, "socket y "+raw)
	b.Close()
	for range 2 { // it is safe to call twice
		if err := Detach(scope, pins); err != nil {
			t.Fatal(err)
		}
	}
	a.does(0, "socket y "+raw)
	if _, err := os.Lstat(pins); !os.IsNotExist(err) {
		t.Errorf("%s: %v, want nothing there", pins, err)
	}
	b = again(t, scope, pins, each) // what was made meanwhile does not count
	t.Cleanup(func() { _ = Detach(scope, pins) })
	a.does(0, "socket z "+raw)
	a.does(unix.ENOMEM, "socket u "+raw)
	if got := swept(t, b)["one"]; got.Bytes != each {
		t.Errorf("%+v, want one socket", got)
	}
}

// TestAnotherVersionCountsOnce: the programs of two versions are there together for a moment.
func TestAnotherVersionCountsOnce(t *testing.T) {
	seen(t)
	scope := group(t, top(), "weir-sockets-version-"+strconv.Itoa(os.Getpid()))
	pins := filepath.Join(t.TempDir(), "pins")
	b := again(t, scope, pins, 3*each)
	t.Cleanup(func() {
		if err := Detach(scope, pins); err != nil {
			t.Error(err)
		}
	})
	a := join(t, group(t, scope, "one"))
	a.does(0, "socket x "+netlink)
	if !b.At(scope) {
		t.Error("At does not see its pins")
	}
	for _, name := range pinned(t, pins) { // the same programs once more, as if they were another version's
		if err := os.Rename(filepath.Join(pins, name), filepath.Join(pins, "old-"+name)); err != nil {
			t.Fatal(err)
		}
	}
	if b.At(scope) {
		t.Error("At does not miss its pins")
	}
	spec, err := LoadRings()
	if err != nil {
		t.Fatal(err)
	}
	all, err := ebpf.NewCollectionWithOptions(with(spec, takeApart(spec), seeing...), b.shared())
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	for _, program := range seeing {
		if err := pin(all.Programs[program], filepath.Join(pins, "other-"+program)); err != nil {
			t.Fatal(err)
		}
	}
	a.does(0, "socket y "+netlink)
	a.does(0, "close x")
	if got := swept(t, b)["one"]; got.Bytes != each {
		t.Errorf("%+v while both are there, want one socket", got)
	}
	again(t, scope, pins, 3*each)
	if got := pinned(t, pins); len(got) != len(seeing) || strings.HasPrefix(got[0], "o") {
		t.Errorf("pins %v, want one of each program", got)
	}
	a.does(0, "socket x "+netlink)
	a.does(0, "socket z "+netlink)
	a.does(unix.ENOMEM, "socket u "+netlink)
	if got := swept(t, b)["one"]; got.Bytes != 3*each || got.Refused != 1 {
		t.Errorf("%+v, want three sockets", got)
	}
}

func pinned(t *testing.T, pins string) []string {
	t.Helper()
	entries, err := os.ReadDir(pins)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if !strings.Contains(e.Name(), ".") {
			out = append(out, e.Name())
		}
	}
	return out
}

// TestLongMessagesToMany: by NETLINK_USERSOCK everybody sends to everybody, and a queue that is empty takes one message of any length.
func TestLongMessagesToMany(t *testing.T) {
	floor := 2 * 212992
	if packets() != 0 {
		floor = setting("wmem_default")
	}
	scope := group(t, top(), "weir-sockets-long-"+strconv.Itoa(os.Getpid()))
	b := attached(t, scope, 64*mib)
	a := join(t, group(t, scope, "one"))
	a.does(0, fmt.Sprintf("socket u %d %d %d", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_USERSOCK))
	a.does(unix.Errno(min(floor, 2*setting("wmem_max"))>>10), "send u 4194304")
	a.does(0, "socket r "+netlink) // its own requests only, if it has no capability
	long := min(setting("wmem_max"), mib)
	a.does(unix.Errno(2*long>>10), fmt.Sprintf("send r %d", long))
	if got, want := swept(t, b)["one"].Bytes, 2*packets()+uint64(max(2*long-floor, 0)); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}

// TestTheLengthThatCountsIsTheOneThatIsSet, not what another thread makes of it meanwhile.
func TestTheLengthThatCountsIsTheOneThatIsSet(t *testing.T) {
	scope := group(t, top(), "weir-sockets-race-"+strconv.Itoa(os.Getpid()))
	attached(t, scope, each)
	a := join(t, group(t, scope, "one"))
	a.does(0, "socket r "+raw)
	a.does(unix.Errno(setting("rmem_default")>>10), "race r")
}
