package hostile

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// Addresses of a manager and of a host that joins it, and the ports that they listen on.
const (
	managerAddr = "10.77.0.1"
	hostAddr    = "10.77.0.2"
)

// open is a socket by which somebody else could reach a process: one that listens, one that is bound to a port, or one that sees frames.
type open struct {
	what    string // "tcp 127.0.0.1:7411", "unix RUN/api.sock", "packet"
	process string
	path    string // of a Unix socket
	inode   string // of the socket
}

// expected are the sockets that each mode has, as patterns; docs/security.md lists the same.
type expected map[string]string

var (
	ofAPI      = expected{`tcp 127\.0\.0\.1:7411`: "the API's TCP port", `tcp 127\.0\.0\.1:7410`: "the web UI's port"}
	ofManager  = expected{`unix RUN/api\.sock`: "the API's socket", `unix RUN/etcd/client`: "the store"}
	ofHost     = expected{`unix RUN/functions/[a-z0-9]+/run/events\.sock`: "a function's events", `unix RUN/functions/[a-z0-9]+/run/metrics\.sock`: "its metrics", `packet`: "frames"}
	ofFirewall = expected{`unix RUN/functions/fw/run/settle\.sock`: "flows that it settles"} // where the switch settles
	ofXDP      = expected{`unix RUN/functions/x/run/xdp\.sock`: "AF_XDP sockets that it hands over"}
	ofExporter = expected{`unix RUN/functions/mon/run/ipfix\.sock`: "flows that it exports"} // where the host has a collector
	ofOVS      = expected{`unix RUN/ovs/.*`: "Open vSwitch"}
	ofAgents   = expected{`tcp 10\.77\.0\.1:7412`: "agents"}
	ofOpenFlow = expected{`tcp 10\.77\.0\.1:6653`: "OpenFlow"}
	ofTunnels  = expected{`udp6? .*:(4789|4790)`: "tunnels"}
)

// TestEverySocketIsExpected lists the sockets of Weir's processes in each mode. There is none that is not documented, none is abstract, and others than root
// reach no Unix socket.
func TestEverySocketIsExpected(t *testing.T) {
	chain := "functions:\n  fw: {image: firewall, config: {allow: [icmp]}}\n  w: {image: wire}\n  x: {image: wire-xdp}\n  mon: {image: monitor}\nchains:\n  c: fw | w | x | tap:mon\npolicies:\n  p: {from: alice, to: bob, match: [icmp], chain: c}\n"
	joined := []string{"--agents", managerAddr + ":7412", "--openflow", managerAddr + ":6653", "--underlay", "vxlan", "--underlay-address", managerAddr, "--host", "first"}
	for _, c := range []struct {
		name, verb string
		args       []string
		agent      []string // of a host that joins
		want, host []expected
	}{
		{name: "all in one", verb: "up", want: []expected{ofAPI, ofManager, ofHost, ofFirewall, ofXDP}},
		{name: "all in one, Open vSwitch", verb: "up", args: []string{"--switch", "ovs"}, want: []expected{ofAPI, ofManager, ofHost, ofXDP, ofOVS}},
		{name: "without TCP", verb: "up", args: []string{"--listen", "none", "--collector", "127.0.0.1:4739"}, want: []expected{ofManager, ofHost, ofFirewall, ofXDP, ofExporter}},
		{name: "manager only", verb: "manager", args: []string{"--agents", managerAddr + ":7412"}, want: []expected{ofAPI, ofManager, ofAgents}},
		{name: "fabric, tunnels and a joined host", verb: "up", args: joined, agent: []string{"--underlay-address", hostAddr},
			want: []expected{ofAPI, ofManager, ofHost, ofFirewall, ofXDP, ofAgents, ofOpenFlow, ofTunnels}, host: []expected{ofHost, ofTunnels}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, ctx := rig.Bare(t, rig.Options{Args: c.args})
			r.Verb = c.verb
			underlay(ctx, t, r, r.Netns, managerAddr)
			if err := r.Up(ctx); err != nil {
				t.Fatal(err)
			}
			document := strings.ReplaceAll(r.Endpoints(), "netns:", "host: first, netns:") + strings.ReplaceAll(chain, "image:", "host: first, image:")
			if c.agent == nil {
				document = r.Endpoints() + chain
			}
			if c.verb == "up" {
				r.MustApply(ctx, t, document)
			}
			if c.agent != nil {
				pid, run := join(ctx, t, r, c.agent)
				compare(t, sockets(t, pid, run), c.host, run)
			}
			run := filepath.Join("/run/weir", r.Name)
			compare(t, sockets(t, r.PID(), run), c.want, run)
		})
	}
}

// underlay gives a namespace an address on a network that the manager's namespace is in.
func underlay(ctx context.Context, t *testing.T, r *rig.Rig, space, address string) {
	t.Helper()
	lines := [][]string{{"ip", "link", "add", "br9", "type", "bridge"}, {"ip", "addr", "add", address + "/24", "dev", "br9"}, {"ip", "link", "set", "br9", "up"}}
	if space != r.Netns {
		lines = [][]string{{"ip", "link", "add", "v9", "type", "veth", "peer", "name", "eth9", "netns", space}, {"ip", "link", "set", "v9", "master", "br9", "up"},
			{"nsenter", "--net=/run/netns/" + space, "ip", "addr", "add", address + "/24", "dev", "eth9"}, {"nsenter", "--net=/run/netns/" + space, "ip", "link", "set", "eth9", "up"}}
	}
	for _, argv := range lines {
		if _, err := r.Run(ctx, "", argv...); err != nil {
			t.Fatal(err)
		}
	}
}

// join starts an agent in a namespace of its own, with endpoints and a function, and a tunnel to the manager's host.
func join(ctx context.Context, t *testing.T, r *rig.Rig, args []string) (pid int, run string) {
	t.Helper()
	a, _ := rig.Bare(t, rig.Options{Open: true})
	underlay(ctx, t, r, a.Netns, hostAddr)
	token, err := r.Weir(ctx, "token", "create")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	argv := append([]string{"env", "WEIR_NAME=" + a.Name, "WEIR_ROOT=" + a.Root, "WEIR_IMAGES=" + a.Images, a.Bin, "agent",
		"--manager", "https://" + managerAddr + ":7412", "--host", "second", "--token-file", file}, args...)
	cmd, err := a.Start("", argv...)
	if err != nil {
		t.Fatal(err)
	}
	rig.Eventually(ctx, t, "the host has joined", func() (bool, string) {
		var h api.Host
		err := r.Get(ctx, &h, "host", "second")
		return err == nil && h.Status.State == "ready", fmt.Sprint(h.Status.State, err)
	})
	r.MustApply(ctx, t, "endpoints:\n  carol: {host: second, netns: "+a.Alice()+", interface: eth0, address: 10.9.0.3/24}\n"+
		"functions:\n  w2: {host: second, image: wire}\nchains:\n  d: w2\npolicies:\n  q: {from: alice, to: carol, match: [icmp], chain: d}\n")
	return cmd.Process.Pid, filepath.Join("/run/weir", a.Name)
}

// compare fails the test for each socket that is not expected, and for each expected one that is missing, so that the list stays true.
func compare(t *testing.T, all []open, want []expected, run string) {
	t.Helper()
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, s := range all {
		purpose := ""
		for _, list := range want {
			for pattern, what := range list {
				if regexp.MustCompile("^" + pattern + "$").MatchString(s.what) {
					purpose, found[pattern] = what, true
				}
			}
		}
		who := "anybody"
		if s.path != "" {
			who = reachedBy(t, s.path)
			if who != "root" {
				t.Errorf("%s of %s can be opened by %s", s.what, s.process, who)
			}
		}
		if purpose == "" {
			t.Errorf("%s of %s is not expected: if it has to be there, add it here and to docs/security.md", s.what, s.process)
		}
		if purpose != "" && !strings.Contains(string(page), "| "+purpose+" |") {
			t.Errorf("docs/security.md does not list %q among the sockets", purpose)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.what, s.process, cmp.Or(purpose, "NOT EXPECTED"), who)
	}
	_ = w.Flush()
	t.Logf("%d sockets of %s\n%s", len(all), run, table.String())
	for _, list := range want {
		for pattern := range list {
			if !found[pattern] {
				t.Errorf("no socket %s: is it still there?", pattern)
			}
		}
	}
}

// reachedBy tells who can open a Unix socket: a folder on the way or the socket itself keeps all but its owner out.
func reachedBy(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return "root" // unlinked: nobody finds it
	}
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o022 == 0 {
		return "root"
	}
	for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o011 == 0 {
			return "root"
		}
	}
	return fmt.Sprintf("others (%v)", info.Mode())
}

// sockets are the open sockets of all processes in a process's network namespace, and the kernel's own there.
func sockets(t *testing.T, pid int, run string) []open {
	t.Helper()
	home, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	inodes := map[string]bool{}
	var all []open
	for _, e := range entries {
		other, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if there, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", other)); err == nil && there == home {
			all = append(all, socketsOf(t, other, inodes)...)
		}
	}
	if len(inodes) == 0 {
		t.Fatalf("process %d has no sockets at all", pid)
	}
	all = append(all, listed(t, pid, inodes)...)
	now := moved(t, pid, run)
	for i, s := range all {
		if path, ok := now[s.inode]; ok && s.path != "" {
			all[i].path, all[i].what = path, "unix "+path
		}
		all[i].what, all[i].inode = strings.Replace(all[i].what, run, "RUN", 1), ""
	}
	slices.SortFunc(all, func(a, b open) int { return cmp.Or(cmp.Compare(a.what, b.what), cmp.Compare(a.process, b.process)) })
	return slices.Compact(all)
}

// moved are the paths of Unix sockets, by the socket's inode: one that was renamed after it was made goes by its first name, which the kernel keeps.
func moved(t *testing.T, pid int, run string) map[string]string {
	t.Helper()
	files := map[string]string{}
	_ = filepath.WalkDir(run, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type()&os.ModeSocket != 0 {
			if info, err := d.Info(); err == nil {
				files[strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)] = path
			}
		}
		return nil
	})
	out, err := exec.CommandContext(t.Context(), "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", pid), "ss", "-Hxae").Output() // one of datagrams counts as connected when somebody is connected to it
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m) (\d+) +\* 0 .*ino:(\d+) `).FindAllStringSubmatch(string(out), -1) {
		if path, there := files[m[2]]; there {
			paths[m[1]] = path
		}
	}
	return paths
}

// socketsOf looks at a process's descriptors itself, wherever their sockets are.
func socketsOf(t *testing.T, pid int, inodes map[string]bool) (all []open) {
	t.Helper()
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return nil // it has ended
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(process)
	for _, f := range fds {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, f.Name()))
		inode, isSocket := strings.CutPrefix(target, "socket:[")
		if err != nil || !isSocket {
			continue
		}
		n, _ := strconv.Atoi(f.Name())
		fd, err := unix.PidfdGetfd(process, n, 0)
		if err != nil {
			continue // closed meanwhile
		}
		inode = strings.TrimSuffix(inode, "]")
		inodes[inode] = true
		o, is := describe(fd)
		unix.Close(fd)
		if o.process, o.inode = strings.TrimSpace(string(comm)), inode; is {
			all = append(all, o)
		}
	}
	return all
}

// describe tells of a socket by which others can reach its process; false: it is a connection, or speaks with the kernel.
func describe(fd int) (open, bool) {
	option := func(name int) int { n, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, name); return n }
	family, kind, listens := option(unix.SO_DOMAIN), option(unix.SO_TYPE), option(unix.SO_ACCEPTCONN) == 1
	local, _ := unix.Getsockname(fd)
	_, err := unix.Getpeername(fd)
	connected := err == nil
	switch family {
	case unix.AF_NETLINK:
		return open{}, false
	case unix.AF_UNIX:
		at, _ := local.(*unix.SockaddrUnix)
		if at == nil || at.Name == "" || !listens && (connected || kind == unix.SOCK_STREAM) {
			return open{}, false
		}
		if at.Name[0] == '@' || at.Name[0] == 0 {
			return open{what: fmt.Sprintf("abstract %q", at.Name)}, true
		}
		return open{what: "unix " + at.Name, path: at.Name}, true
	case unix.AF_PACKET:
		return open{what: "packet"}, true
	case unix.AF_INET, unix.AF_INET6:
		address := ""
		switch a := local.(type) {
		case *unix.SockaddrInet4:
			address = fmt.Sprintf("%d.%d.%d.%d:%d", a.Addr[0], a.Addr[1], a.Addr[2], a.Addr[3], a.Port)
		case *unix.SockaddrInet6:
			address = fmt.Sprintf("[%x]:%d", a.Addr, a.Port)
		}
		switch {
		case kind == unix.SOCK_STREAM && !listens, kind == unix.SOCK_DGRAM && (connected || strings.HasSuffix(address, ":0")):
			return open{}, false
		case kind == unix.SOCK_STREAM:
			return open{what: "tcp " + address}, true
		case kind == unix.SOCK_DGRAM:
			return open{what: "udp " + address}, true
		}
	}
	return open{what: fmt.Sprintf("family %d, type %d", family, kind)}, true
}

// listed are the sockets of a network namespace that no process has: the kernel's.
func listed(t *testing.T, pid int, inodes map[string]bool) (all []open) {
	t.Helper()
	for _, x := range []struct {
		table        string
		state, inode int // columns; of the address, if there is one, 1
		listens      string
	}{
		{"tcp", 3, 9, "0A"}, {"tcp6", 3, 9, "0A"}, {"udp", 3, 9, ""}, {"udp6", 3, 9, ""}, {"raw", 3, 9, ""}, {"raw6", 3, 9, ""},
		{"unix", 3, 6, "00010000"}, {"packet", 4, 8, ""},
	} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, x.table))
		if err != nil {
			t.Fatal(err)
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			c := strings.Fields(s.Text())
			if len(c) <= x.inode || c[0] == "sl" || c[0] == "Num" || c[0] == "sk" || x.listens != "" && c[x.state] != x.listens || inodes[c[x.inode]] {
				continue
			}
			what := x.table
			switch {
			case x.table == "unix" && len(c) > 7 && c[7][0] == '@':
				what = fmt.Sprintf("abstract %q", c[7])
			case x.table == "unix" && len(c) > 7:
				what += " " + c[7]
			case x.table != "unix" && x.table != "packet":
				_, port, _ := strings.Cut(c[1], ":")
				n, _ := strconv.ParseUint(port, 16, 16)
				what += fmt.Sprintf(" *:%d", n)
			}
			all = append(all, open{what: what, process: "the kernel"})
		}
		f.Close()
	}
	return all
}
