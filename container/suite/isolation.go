package suite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/cpuset"
	"weir.dev/weir/image"
	"weir.dev/weir/netns"
	"weir.dev/weir/portkind"
)

// Kernel is what the tests of isolation need of a runtime whose containers are processes of this kernel.
type Kernel struct {
	Runtime container.Runtime
	Root    string // a root file system of its own with busybox as /bin/busybox and /bin/sh; the suite adds files to it
	// Bare: its containers are never in a user namespace, and no filter of system calls is on them.
	Bare bool
}

// isolated is one test of isolation.
type isolated struct {
	*test
	Kernel
}

func isolations() map[string]func(*isolated) {
	return map[string]func(*isolated){
		IDs:    ids,
		Owners: owners,
		"capabilities are exactly those of the spec":             capabilities,
		"a set-user-id program of the image gives nothing":       setuid,
		"files of the image belong to root, and none is changed": files,
		"a second start finds nothing of the first":              pristine,
		"a cpuset is where it runs":                              cpusets,
		"limits of each process are in force":                    rlimits,
		"without a network namespace it gets one of its own":     ownNetns,
	}
}

// Tests of user namespaces.
const (
	IDs    = "root is nobody outside, and no two containers share an id"
	Owners = "the user namespace owns all other namespaces"
)

// Isolations are the names of the tests of isolation, in order.
func Isolations() []string { return slices.Sorted(maps.Keys(isolations())) }

// Isolation tests what keeps containers from the host and from each other. A driver that runs containers as processes of this kernel passes it
// besides Run, but for what skip is true of. It looks from outside, through /proc, so that no program in the container has to be believed.
func Isolation(t *testing.T, open func(t *testing.T) Kernel, skip func(name string) bool) {
	for name, f := range isolations() {
		if skip(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			k := open(t)
			with(t, Driver{Runtime: k.Runtime}, func(t *test) { f(&isolated{t, k}) })
		})
	}
}

// waits runs until SIGTERM, and has a child.
const waits = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"

func shell(script string) []string { return []string{"/bin/sh", "-c", script} }

// box is what the agent prepares for one start: namespaces with ids of their own, and the root as these ids see it; for a bare one a network namespace.
type box struct {
	dir  string
	spec container.Spec
}

// box makes one; close removes it, when its container is deleted.
func (t *isolated) box(id string, capabilities ...string) box {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "weir-suite-")
	t.must(err)
	t.must(os.Chmod(dir, 0o711)) // whoever is nobody here has to get to its root
	b := box{dir: dir, spec: container.Spec{ID: id, ReadOnly: true, Args: shell(waits), Capabilities: capabilities,
		Netns: filepath.Join(dir, "net"), Userns: filepath.Join(dir, "user"), Rootfs: filepath.Join(dir, "root")}}
	t.Cleanup(func() {
		if err := t.Runtime.Delete(context.Background(), id); err != nil {
			t.Error(err)
		}
		b.close(t)
	})
	if t.Bare {
		b.spec.Userns, b.spec.Rootfs = "", t.Root
		t.must(netns.Create(b.spec.Netns, netns.Options{Quiet: true}))
		return b
	}
	b.spec.IDs, err = netns.TakeIDs(dir)
	t.must(err)
	t.must(netns.CreateOwned(b.spec.Userns, b.spec.Netns, b.spec.IDs, netns.Options{Quiet: true}))
	user, err := os.Open(b.spec.Userns)
	t.must(err)
	defer user.Close()
	root, err := image.Shifted(t.Root, user)
	t.must(err)
	defer unix.Close(root)
	t.must(os.Mkdir(b.spec.Rootfs, 0o755))
	t.must(unix.MoveMount(root, "", unix.AT_FDCWD, b.spec.Rootfs, unix.MOVE_MOUNT_F_EMPTY_PATH))
	return b
}

// close is safe to call twice.
func (b box) close(t *isolated) {
	t.Helper()
	if _, err := os.Stat(b.dir); err != nil {
		return
	}
	spaces := []string{b.spec.Netns}
	if !t.Bare {
		if err := unix.Unmount(b.spec.Rootfs, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			t.Errorf("root of %s: %v", b.spec.ID, err)
			return
		}
		spaces = append(spaces, b.spec.Userns)
	}
	for _, path := range spaces {
		if err := netns.Delete(path); err != nil {
			t.Error(err)
		}
	}
	if err := os.RemoveAll(b.dir); err != nil {
		t.Error(err)
	}
	if err := netns.GiveIDsBack(b.dir, b.spec.IDs); err != nil {
		t.Error(err)
	}
}

// start runs a container and returns the process id of its first process.
func (t *isolated) start(s container.Spec) int {
	t.Helper()
	t.must(t.Runtime.Run(t.ctx, s))
	st, err := t.Runtime.Status(t.ctx, s.ID)
	t.must(err)
	if st.PID == 0 {
		t.Fatalf("%s: no process", s.ID)
	}
	return st.PID
}

// run runs a script in a container, to its end.
func (t *isolated) run(id, script string) string {
	t.Helper()
	var out bytes.Buffer
	code, err := t.Runtime.Exec(t.ctx, id, container.ExecSpec{Args: shell(script), Stdout: &out, Stderr: &out})
	if err != nil || code != 0 {
		t.Fatalf("%s: exit code %d, %v: %s", script, code, err, out.String())
	}
	return out.String()
}

// background starts a script in a container that goes on, and waits for its first line.
func (t *isolated) background(id, script string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.ctx)
	ready, done := &firstLine{seen: make(chan struct{})}, make(chan struct{})
	go func() {
		defer close(done)
		_, _ = t.Runtime.Exec(ctx, id, container.ExecSpec{Args: shell("echo; " + script), Stdout: ready}) // it ends with ctx or its container
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-ready.seen:
	case <-done:
		t.Fatalf("%s: it has ended", script)
	case <-t.ctx.Done():
		t.Fatal(t.ctx.Err())
	}
}

// firstLine tells that something was written.
type firstLine struct {
	seen chan struct{}
	told bool
}

func (f *firstLine) Write(b []byte) (int, error) {
	if !f.told {
		close(f.seen)
		f.told = true
	}
	return len(b), nil
}

// processes lists those in a process's PID namespace.
func (t *isolated) processes(pid int) []int {
	t.Helper()
	same := func(dir string) (string, error) { return os.Readlink(dir + "/ns/pid") }
	if t.Bare { // they are in the host's
		same = func(dir string) (string, error) {
			raw, err := os.ReadFile(dir + "/cgroup")
			return string(raw), err
		}
	}
	want, err := same(fmt.Sprintf("/proc/%d", pid))
	t.must(err)
	all, err := filepath.Glob("/proc/[0-9]*")
	t.must(err)
	var out []int
	for _, dir := range all {
		if got, err := same(dir); err != nil || got != want {
			continue // or it has ended
		}
		n, err := strconv.Atoi(filepath.Base(dir))
		t.must(err)
		out = append(out, n)
	}
	return out
}

// status reads fields of proc_pid_status(5); false: the process has ended.
func status(pid int) (map[string][]string, bool) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	fields := map[string][]string{}
	for line := range strings.Lines(string(raw)) {
		key, value, _ := strings.Cut(line, ":")
		fields[key] = strings.Fields(value)
	}
	return fields, err == nil
}

func ids(t *isolated) {
	boxes := []box{t.box("a"), t.box("b"), t.box("c")}
	var ranges []netns.IDs
	for i, b := range boxes {
		if i == 2 {
			b.spec.UID, b.spec.GID = 65534, 65534
		}
		own := b.spec.IDs
		ranges = append(ranges, own)
		pid := t.start(b.spec)
		t.background(b.spec.ID, "sleep 1000")
		want := fmt.Sprintf("0 %d %d", own.First, own.Count)
		for _, file := range []string{"uid_map", "gid_map"} {
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			t.must(err)
			if got := strings.Join(strings.Fields(string(raw)), " "); got != want {
				t.Errorf("%s of %s is %q, want %q", file, b.spec.ID, got, want)
			}
		}
		all := t.processes(pid)
		for len(all) < 3 && t.ctx.Err() == nil { // a shell takes a moment to start its child
			time.Sleep(5 * time.Millisecond)
			all = t.processes(pid)
		}
		if len(all) < 3 {
			t.Errorf("%d processes of %s, want its first, a child, and that of exec", len(all), b.spec.ID)
		}
		for _, pid := range all {
			s, ok := status(pid)
			if !ok {
				continue
			}
			for _, id := range slices.Concat(s["Uid"], s["Gid"], s["Groups"]) {
				n, err := strconv.ParseUint(id, 10, 32)
				t.must(err)
				if uint32(n) < own.First || uint32(n) >= own.First+own.Count {
					t.Errorf("process %d of %s has id %d outside, want one from %d on", pid, b.spec.ID, n, own.First)
				}
			}
		}
		t.run(b.spec.ID, "echo x >/tmp/made")
		fi, err := os.Stat(fmt.Sprintf("/proc/%d/root/tmp/made", pid))
		t.must(err)
		if st, ok := fi.Sys().(*syscall.Stat_t); !ok || st.Uid != own.First+b.spec.UID || st.Gid != own.First+b.spec.GID {
			t.Errorf("a file that %s makes belongs to %d:%d outside", b.spec.ID, st.Uid, st.Gid)
		}
		_, err = t.Runtime.Exec(t.ctx, b.spec.ID, container.ExecSpec{Args: shell(":")})
		t.must(err)
		hostDevices(t, b)
	}
	slices.SortFunc(ranges, func(a, b netns.IDs) int { return int(a.First) - int(b.First) })
	for i, r := range ranges {
		if r.First < netns.FirstID || i > 0 && ranges[i-1].First+ranges[i-1].Count > r.First {
			t.Errorf("ranges %v overlap, or have ids of the host's users", ranges)
		}
	}
}

// hostDevices fails the test if a container owns a device of the host, and so could take it from the host's other users.
func hostDevices(t *isolated, b box) {
	t.Helper()
	devices, err := filepath.Glob("/dev/*")
	t.must(err)
	for _, device := range devices {
		var st unix.Stat_t
		if err := unix.Lstat(device, &st); err == nil && (st.Uid-b.spec.IDs.First < b.spec.IDs.Count || st.Gid-b.spec.IDs.First < b.spec.IDs.Count) {
			t.Errorf("the host's %s belongs to %s: %d:%d", device, b.spec.ID, st.Uid, st.Gid)
		}
	}
}

func owners(t *isolated) {
	host := map[string]uint64{}
	for _, name := range []string{"user", "net", "pid", "mnt", "ipc", "uts"} {
		host[name] = inode(t, "/proc/self/ns/"+name)
	}
	b := t.box("a", "CAP_NET_ADMIN")
	pid := t.start(b.spec)
	t.background("a", "sleep 1000")
	user := inode(t, b.spec.Userns)
	for _, pid := range t.processes(pid) {
		for name, theirs := range host {
			path := fmt.Sprintf("/proc/%d/ns/%s", pid, name)
			got := inode(t, path)
			switch {
			case got == theirs:
				t.Errorf("process %d is in the host's %s namespace", pid, name)
			case name == "user" && got != user, name == "net" && got != inode(t, b.spec.Netns):
				t.Errorf("process %d is in another %s namespace than the spec's", pid, name)
			case name == "user":
			default:
				f, err := os.Open(path)
				t.must(err)
				owner, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
				f.Close()
				t.must(err)
				if got := inode(t, fmt.Sprintf("/proc/self/fd/%d", owner)); got != user {
					t.Errorf("the %s namespace of process %d belongs to another user namespace than its own", name, pid)
				}
				unix.Close(owner)
			}
		}
	}
}

func inode(t *isolated, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return st.Ino
}

func capabilities(t *isolated) {
	bit := map[string]uint64{"CAP_NET_ADMIN": 1 << unix.CAP_NET_ADMIN, "CAP_NET_RAW": 1 << unix.CAP_NET_RAW}
	n := 0
	filter := "2"
	if t.Bare {
		filter = "0"
	}
	modes := []bool{false, true}
	if t.Bare {
		modes = modes[1:]
	}
	for _, shared := range modes {
		for _, uid := range []uint32{0, 65534} {
			for _, given := range [][]string{nil, {"CAP_NET_ADMIN"}, {"CAP_NET_ADMIN", "CAP_NET_RAW"}} {
				n++
				var spec container.Spec
				id := fmt.Sprint("a", n)
				if shared { // where the host has no user namespaces
					spec = container.Spec{ID: id, Rootfs: t.Root, ReadOnly: true, Args: shell(waits), Capabilities: given}
				} else {
					spec = t.box(id, given...).spec
				}
				spec.UID, spec.GID = uid, uid
				var all uint64
				for _, c := range given {
					all |= bit[c]
				}
				want := map[string]uint64{"CapInh": 0, "CapPrm": all, "CapEff": all, "CapBnd": all, "CapAmb": 0}
				if uid != 0 { // an ordinary user keeps them by the ambient set alone
					want["CapInh"], want["CapAmb"] = all, all
				}
				pid := t.start(spec)
				t.background(id, "sleep 1000")
				for _, pid := range t.processes(pid) {
					s, ok := status(pid)
					if !ok {
						continue
					}
					got := map[string]uint64{}
					for set := range want {
						v, err := strconv.ParseUint(strings.Join(s[set], ""), 16, 64)
						t.must(err)
						got[set] = v
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("capabilities of %s (%s) as user %d with %v, shared %v:\n%s", id, s["Name"], uid, given, shared, diff)
					}
					if nnp, mode := s["NoNewPrivs"], s["Seccomp"]; !slices.Equal(nnp, []string{"1"}) || !slices.Equal(mode, []string{filter}) {
						t.Errorf("%s (%s): no_new_privs %v, want 1; seccomp %v, want %s (2: a filter)", id, s["Name"], nnp, mode, filter)
					}
				}
				t.must(t.Runtime.Delete(t.ctx, id))
			}
		}
	}
}

// busybox's su asks for a password where its file made it root, and says so where it did not.
func setuid(t *isolated) {
	program, err := os.ReadFile(filepath.Join(t.Root, "bin/busybox"))
	t.must(err)
	const name = "bin/busybox-rise" // busybox takes what begins with its name for itself
	t.must(os.WriteFile(filepath.Join(t.Root, name), program, 0o755))
	t.must(unix.Chmod(filepath.Join(t.Root, name), 0o4755))
	shared := container.Spec{ID: "shared", Rootfs: t.Root, ReadOnly: true, Args: shell(waits)}
	for _, s := range []container.Spec{t.box("a").spec, shared} {
		s.UID, s.GID = 65534, 65534
		t.start(s)
		if got := t.run(s.ID, "/"+name+" su </dev/null 2>&1 || true"); !strings.Contains(got, "must be suid to work") {
			t.Errorf("%s: a set-user-id program has become root: %q", s.ID, got)
		}
	}
}

func files(t *isolated) {
	t.must(os.WriteFile(filepath.Join(t.Root, "nobodys"), []byte("x"), 0o644))
	t.must(os.Chown(filepath.Join(t.Root, "nobodys"), 65534, 65534))
	t.must(os.WriteFile(filepath.Join(t.Root, "open"), []byte("x"), 0o644))
	t.must(os.Chmod(filepath.Join(t.Root, "open"), 0o666))
	before := t.tree(t.Root)
	b := t.box("a", "CAP_NET_ADMIN", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID")
	t.start(b.spec)
	got := t.run("a", `stat -c '%n %u %g' / /bin/busybox /open /nobodys`)
	if want := "/ 0 0\n/bin/busybox 0 0\n/open 0 0\n/nobodys 65534 65534\n"; got != want {
		t.Errorf("owners inside:\n%s", cmp.Diff(want, got))
	}
	for _, try := range []string{"echo y >/open", "echo y >/new", "chown 0:0 /nobodys", "chmod 4755 /bin/busybox", "rm /open", "ln /open /hard", "mkdir /dir"} {
		if out := t.run("a", "("+try+") 2>/dev/null && echo done || true"); out != "" {
			t.Errorf("%s: it is done, on a read-only root", try)
		}
	}
	t.must(t.Runtime.Delete(t.ctx, "a"))
	b.close(t)
	if diff := cmp.Diff(before, t.tree(t.Root)); diff != "" {
		t.Errorf("the image's files on the host's disk have changed:\n%s", diff)
	}
}

// tree is owner, mode and content of all below a directory.
func (t *isolated) tree(root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	t.must(filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		st, _ := fi.Sys().(*syscall.Stat_t)
		content := ""
		if fi.Mode().IsRegular() {
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = fmt.Sprintf("%x", sha256.Sum256(raw))
		}
		out[path] = fmt.Sprintf("%d:%d %v %d links %s %s", st.Uid, st.Gid, fi.Mode(), st.Nlink, fi.ModTime(), content)
		return nil
	}))
	return out
}

// leftSleep is how long what a container leaves sleeps: so it is found among all processes of the host, too.
var leftSleep = strconv.Itoa(1_000_000 + os.Getpid())

// sees prints what a container finds where a former one may have left something.
var sees = `
echo links; ls /sys/class/net
echo addresses; busybox ip -o addr | busybox sed -n 's/.*\(inet.*\)/\1/p'
echo routes; busybox ip route; busybox ip rule; busybox ip neigh
echo sysctls; cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/all/arp_ignore /proc/sys/net/ipv6/conf/all/forwarding
echo mounts; busybox cut -d' ' -f2-4 /proc/self/mounts | busybox sed 's/,[ug]id=[0-9]*//g'
echo files; ls -A /tmp /run /dev/shm
echo processes; busybox ps -o args | busybox grep -c '[s]leep ` + leftSleep + `'
echo hostname; cat /proc/sys/kernel/hostname`

// What one container leaves in its namespaces, in memory and of processes is gone with it and its sandbox: the next one of the same name, in a sandbox
// of its own, finds what the first one found. Nothing holds the former namespaces, so their links vanish from the switch.
func pristine(t *isolated) {
	if !slices.Contains(t.Runtime.PortKinds(), portkind.Veth) {
		t.Fatalf("it gives no ports of kind %s, and nothing else is tested here: %s", portkind.Veth, portkind.List(t.Runtime.PortKinds()))
	}
	base, err := os.MkdirTemp("/run", "weir-suite-")
	t.must(err)
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	outside := filepath.Join(base, "switch")
	t.must(netns.Create(outside, netns.Options{Quiet: true}))
	t.Cleanup(func() {
		if err := netns.Delete(outside); err != nil {
			t.Error(err)
		}
	})
	var found []map[string]string
	for round := range 2 {
		b := t.box("a", "CAP_NET_ADMIN", "CAP_NET_RAW")
		_, err := netns.Veth(outside, b.spec.Netns, netns.VethOptions{HostName: fmt.Sprint("port", round), PeerName: "in", Alias: "weir:suite:port", Quiet: true})
		t.must(err)
		pid := t.start(b.spec)
		seen := map[string]string{"inside": t.run("a", sees)}
		for name, argv := range map[string][]string{
			"nftables": {"nft", "list", "ruleset"}, "tc": {"tc", "qdisc", "show", "dev", "in"}, "links": {"ip", "-o", "link", "show", "type", "bridge"},
		} {
			out, err := exec.CommandContext(t.ctx, "nsenter", append([]string{"--net=" + b.spec.Netns}, argv...)...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %v\n%s", argv, err, out)
			}
			seen[name] = string(out)
		}
		found = append(found, seen)

		// By its own rights: links, addresses, routes, files, shared memory, and processes that leave their parents.
		t.run("a", `busybox ip link add left type bridge && busybox ip link add one type veth peer name two && busybox ip link set in master left
busybox ip link set left up && busybox ip addr add 10.1.2.3/24 dev left && busybox ip route add 10.8.0.0/16 via 10.1.2.4
busybox ip rule add from 10.1.2.0/24 table 7
echo x >/tmp/left && echo x >/run/left && echo x >/dev/shm/left
(busybox setsid sh -c 'trap "" TERM HUP; while :; do sleep `+leftSleep+`; done' >/dev/null 2>&1 &)`)
		// By nftables and sysctls, for which busybox has no program, or which are read-only for it.
		for _, argv := range [][]string{
			{"nft", "add table inet left; add chain inet left c { type filter hook input priority 0; }; add rule inet left c counter drop"},
			{"sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.arp_ignore=1", "net.ipv6.conf.all.forwarding=1"},
			{"tc", "qdisc", "add", "dev", "in", "clsact"},
		} {
			if out, err := exec.CommandContext(t.ctx, "nsenter", append([]string{"--net=" + b.spec.Netns}, argv...)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", argv, err, out)
			}
		}
		all := t.processes(pid)
		if len(all) < 3 {
			t.Errorf("processes %v: want the first, a child, and one that has left its parent", all)
		}
		first := b.spec.IDs.First
		t.must(t.Runtime.Delete(t.ctx, "a"))
		if left := withIDs(first, b.spec.IDs.Count); len(left) > 0 {
			t.Errorf("round %d: processes of the deleted container: %v", round, left)
		}
		b.close(t)
		t.vanishes(outside, fmt.Sprint("port", round))
	}
	if diff := cmp.Diff(found[0], found[1]); diff != "" {
		t.Errorf("the second start finds what the first one left:\n%s", diff)
	}
	if !strings.Contains(found[1]["inside"], "links\nin\nlo\n") || found[1]["nftables"] != "" || found[1]["links"] != "" {
		t.Errorf("not pristine: %v", slices.Collect(maps.Values(found[1])))
	}
}

// withIDs lists processes that have one of a range of user ids.
func withIDs(first, count uint32) (out []string) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		s, ok := status(pid)
		if !ok || len(s["Uid"]) == 0 || strings.HasPrefix(strings.Join(s["State"], ""), "Z") {
			continue
		}
		if id, err := strconv.ParseUint(s["Uid"][0], 10, 32); err == nil && uint32(id) >= first && uint32(id) < first+count {
			out = append(out, fmt.Sprint(pid, s["Name"]))
		}
	}
	return out
}

// vanishes waits until a link is gone, with the namespace at its other end.
func (t *isolated) vanishes(space, name string) {
	t.Helper()
	s, err := netns.At(space)
	t.must(err)
	defer s.Close()
	deadline := time.After(patience)
	for {
		links, err := s.Links("")
		t.must(err)
		if !slices.ContainsFunc(links, func(l netns.Link) bool { return l.Name == name }) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s is still there: something holds the namespace of the deleted container", name)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// cpusets: processes of a container run on its spec's processors alone, those that come later included, and its status says so.
func cpusets(t *isolated) {
	last := runtime.NumCPU() - 1
	raw, err := os.ReadFile("/proc/self/status")
	t.must(err)
	_, rest, _ := strings.Cut(string(raw), "Cpus_allowed_list:")
	mine, err := cpuset.Parse(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
	t.must(err)
	if len(mine) > 0 {
		last = mine[len(mine)-1]
	}
	want := strconv.Itoa(last)
	b := t.box("a")
	b.spec.CPUSet = want
	pid := t.start(b.spec)
	allowed := "Cpus_allowed_list:\t" + want + "\n"
	if raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err != nil || !strings.Contains(string(raw), allowed) {
		t.Errorf("its process: %s, %v; want %q", raw, err, allowed)
	}
	if got := t.run("a", "grep Cpus_allowed_list /proc/self/status"); got+"\n" != allowed && got != allowed {
		t.Errorf("one more process: %q, want %q", got, allowed)
	}
	s, err := t.Runtime.Status(t.ctx, "a")
	if t.must(err); s.Limits.CPUSet != want {
		t.Errorf("its status says %q, want %q", s.Limits.CPUSet, want)
	}
	missing := container.Spec{ID: "b", Rootfs: t.Root, ReadOnly: true, Args: shell(waits), CPUSet: strconv.Itoa(cpuset.Max)}
	if err := t.Runtime.Run(t.ctx, missing); err == nil || !strings.Contains(err.Error(), "no processor "+missing.CPUSet) {
		t.Errorf("a processor that is not there: %v", err)
	}
}

// rlimits: its processes, and those of Exec, have the limits of open files, of core dumps, and, as the root is only read, of the size of files. The soft
// limit of open files may be the hard one: a runtime that is written in Go raises its own, and cannot lower a container's without CAP_SYS_RESOURCE.
func rlimits(t *isolated) {
	b := t.box("a")
	pid := t.start(b.spec)
	var own unix.Rlimit
	t.must(unix.Getrlimit(unix.RLIMIT_NOFILE, &own))
	hard := min(own.Max, 524288)
	soft := fmt.Sprintf("(%d|%d)", min(1024, hard), hard)
	want := fmt.Sprintf(`^%s\n%d\n0\n65536\n$`, soft, hard)
	if got := t.run("a", "ulimit -Sn; ulimit -Hn; ulimit -c; ulimit -f"); !regexp.MustCompile(want).MatchString(got) { // the last in pieces of 512 bytes
		t.Errorf("a process of Exec has the limits %q, want %q", got, want)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	t.must(err)
	for _, line := range []string{fmt.Sprintf(`Max open files +%s +%d `, soft, hard), `Max core file size +0 +0 `, `Max file size +33554432 +33554432 `} {
		if !regexp.MustCompile(line).Match(raw) {
			t.Errorf("its process has no %q:\n%s", line, raw)
		}
	}
}

func ownNetns(t *isolated) {
	pids := map[string]int{"host": os.Getpid()}
	for _, id := range []string{"a", "b"} {
		s := container.Spec{ID: id, Rootfs: t.Root, ReadOnly: true, Args: shell(waits)}
		t.must(t.Runtime.Run(t.ctx, s))
		status, err := t.Runtime.Status(t.ctx, id)
		t.must(err)
		pids[id] = status.PID
	}
	seen := map[string]string{}
	for name, pid := range pids {
		at, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		t.must(err)
		if other, taken := seen[at]; taken {
			t.Errorf("%s and %s are in one network namespace, %s", name, other, at)
		}
		seen[at] = name
	}
}
