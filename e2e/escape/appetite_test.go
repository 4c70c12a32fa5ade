package escape

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// What takes all that it can get is bounded, and the neighbours do not notice. Its machines have no other machines beside them: where all are emulated, a neighbour's
// has too little of the processors then.
func TestAppetiteIsBounded(t *testing.T) {
	for _, rt := range runtimes {
		t.Run(rt.name, func(t *testing.T) {
			t.Parallel() // an abuse holds what it has for some seconds, and another world's is one more neighbour's
			g := asked
			if rt.name == "bare" { // where capabilities would be the host's
				g = nothing
			}
			r, ctx := world(t, rt, options{grant: g})
			m := newMeter(r.PID(), r.Root)
			var table strings.Builder
			w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "abuse\tit says\tdaemon grew MiB\tdisk grew MiB\tmachine lost MiB\tdescriptors")
			for _, name := range rt.abuses {
				said, most := abused(ctx, t, r, m, name)
				fmt.Fprintf(w, "%s\t%.100s\t%s\n", name, said, most)
				most.judge(t, name)
				if name == "log" && most.disk < 16<<20 {
					t.Errorf("log: it says %.200q, and the log grew by %d MiB: want one that fills", said, most.disk>>20)
				}
				switch name {
				case "rings":
					ringsAreBounded(ctx, t, r, said, g.capabilities != "")
				case "sockets":
					socketsAreBounded(ctx, t, r, said, g.capabilities != "")
				case "kept":
					keptIsBounded(ctx, t, r, said)
				}
				works(ctx, t, r, "evil")
				unharmed(ctx, t, r, name)
				if name == "links" {
					linksGoOneByOne(ctx, t, r)
				}
			}
			_ = w.Flush()
			t.Logf("\n%s", table.String())
		})
	}
}

// abused has the hostile function do one abuse, and looks at everything else meanwhile.
func abused(ctx context.Context, t *testing.T, r *rig.Rig, m *meter, name string) (said string, most use) {
	t.Helper()
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		out, err := r.Weir(limited, "function", "exec", "evil", "--", "/usr/bin/hostile", "abuse", name)
		said = strings.TrimSpace(out)
		if err != nil {
			said += " " + strings.Join(strings.Fields(err.Error()), " ")
		}
	}()
	before := m.read(t)
	for {
		select {
		case <-done:
			return said, m.read(t).beyond(before, most)
		case <-time.After(200 * time.Millisecond):
		}
		most = m.read(t).beyond(before, most)
		unharmed(ctx, t, r, name)
		spare(t, name)
	}
}

// ofSocket is what a socket counts that has queues of the usual length.
const ofSocket = 2*212992 + 32<<10

// socketsAreBounded compares how many sockets a function got, of kinds whose queues the kernel counts against nobody, with its limit. Where the kernel does not show them, the limit says so.
func socketsAreBounded(ctx context.Context, t *testing.T, r *rig.Rig, said string, may bool) {
	t.Helper()
	var f api.Function
	if err := r.Get(ctx, &f, "function", "evil"); err != nil {
		t.Fatal(err)
	}
	if f.Status.Runtime == api.RuntimeKVM { // they are in its own memory
		return
	}
	var netlink, packet, raw int64
	if _, err := fmt.Sscanf(said, "%d netlink, %d packet, %d raw sockets", &netlink, &packet, &raw); err != nil {
		t.Fatalf("sockets: it says %q", said)
	}
	l, all := f.Status.Limits, netlink+packet+raw
	if !may && packet+raw != 0 {
		t.Errorf("sockets: without a capability: %s", said)
	}
	if strings.Contains(l.Missing, "sockets: ") {
		t.Logf("sockets: %s; missing: %s", said, l.Missing)
		all, may = raw, may && !strings.Contains(l.Missing, "raw, ping and UDP")
		if !may {
			return
		}
	}
	if most := l.RingBytes / ofSocket; all > most || all < most/2 {
		t.Errorf("sockets: %s, want %d together", said, most)
	}
}

// keptIsBounded compares what the kernel keeps for a function's UDP sockets with its limit.
func keptIsBounded(ctx context.Context, t *testing.T, r *rig.Rig, said string) {
	t.Helper()
	var f api.Function
	if err := r.Get(ctx, &f, "function", "evil"); err != nil {
		t.Fatal(err)
	}
	if f.Status.Runtime == api.RuntimeKVM { // it is in its own memory
		return
	}
	var hold, told, in int64
	if _, err := fmt.Sscanf(said, "%d sockets that hold back, %d that are told, %d in groups", &hold, &told, &in); err != nil {
		t.Fatalf("kept: it says %q", said)
	}
	if strings.Contains(f.Status.Limits.Missing, "UDP sockets are not seen") {
		t.Logf("kept: %s; missing: %s", said, f.Status.Limits.Missing)
		return
	}
	const made, queue, groups = 120 << 10, 212992, 30 * 512
	if all, most := hold*made+told*(made+queue)+in*(made+groups), f.Status.Limits.RingBytes; all > most || all < most-2*mostOfSocket {
		t.Errorf("kept: %s, which count %d KiB, want about %d", said, all>>10, most>>10)
	}
}

// mostOfSocket is more than a socket of that abuse counts.
const mostOfSocket = 1 << 20

// ringsAreBounded compares what a function took by rings of sockets with its limit: nearly all of it, as it asks until it gets no more. A function that may have no such sockets took
// nothing, and a machine has rings in its own memory.
func ringsAreBounded(ctx context.Context, t *testing.T, r *rig.Rig, said string, may bool) {
	t.Helper()
	var f api.Function
	if err := r.Get(ctx, &f, "function", "evil"); err != nil {
		t.Fatal(err)
	}
	var taken int64
	if _, err := fmt.Sscanf(said, "%d MiB of rings", &taken); err != nil && f.Status.Runtime != api.RuntimeKVM { // whose memory is short
		t.Fatalf("rings: it says %q", said)
	}
	l := f.Status.Limits
	switch {
	case f.Status.Runtime == api.RuntimeKVM:
		if l.RingBytes != 0 {
			t.Errorf("rings: a machine has a limit of %d bytes", l.RingBytes)
		}
	case l.RingBytes != 64<<20 || strings.Contains(l.Missing, "rings"):
		t.Errorf("rings: limits %+v, want 64 MiB for rings", l)
	case !may && taken != 0:
		t.Errorf("rings: without a capability: %s", said)
	case may && (taken<<20 > l.RingBytes || taken<<20 < l.RingBytes-8<<20): // their sockets count as well
		t.Errorf("rings: %s, want about %d MiB", said, l.RingBytes>>20)
	}
}

// linksGoOneByOne starts a function with many links anew, and looks whether the rest suffers while they go.
func linksGoOneByOne(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	if _, err := r.Weir(ctx, "function", "restart", "evil"); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(ctx, t, "nothing is left of the former start", func() (bool, string) {
		unharmed(ctx, t, r, "a start with the links of the former one")
		left, err := filepath.Glob(filepath.Join("/run/weir", r.Name, "sandboxes", "evil.*"))
		return err == nil && len(left) == 1, fmt.Sprint(left, err)
	})
	works(ctx, t, r, "evil")
}

func works(ctx context.Context, t *testing.T, r *rig.Rig, name string) {
	t.Helper()
	rig.Eventually(ctx, t, "function "+name+" works", func() (bool, string) {
		var f api.Function
		err := r.Get(ctx, &f, "function", name)
		return err == nil && f.Status.State == api.FunctionStarted, fmt.Sprint(f.Status, err)
	})
}

// spare fails the test if nothing is left to the host's root of what the kernel counts for each user.
func spare(t *testing.T, during string) {
	t.Helper()
	if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC); err != nil {
		t.Errorf("during %s: the host's root gets no inotify instance: %v", during, err)
	} else {
		unix.Close(fd)
	}
	var id int32
	if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id))); errno != 0 {
		t.Errorf("during %s: the host's root gets no timer: %v", during, errno)
	} else {
		_, _, _ = unix.Syscall(unix.SYS_TIMER_DELETE, uintptr(id), 0, 0)
	}
}

// use is what is in use; lost is what the machine has less.
type use struct {
	memory, disk, lost int64
	files              int
}

func (u use) String() string {
	return fmt.Sprintf("%d\t%d\t%d\t%d", u.memory>>20, u.disk>>20, u.lost>>20, u.files)
}

// beyond is the most so far of what is more than before.
func (u use) beyond(before, most use) use {
	return use{memory: max(most.memory, u.memory-before.memory), disk: max(most.disk, u.disk-before.disk), lost: max(most.lost, u.lost-before.lost), files: max(most.files, u.files)}
}

func (u use) judge(t *testing.T, name string) {
	t.Helper()
	if u.memory > 200<<20 {
		t.Errorf("%s: the daemon grew by %d MiB", name, u.memory>>20)
	}
	if u.disk > 128<<20 {
		t.Errorf("%s: the state directory grew by %d MiB", name, u.disk>>20)
	}
	if u.lost > 2<<30 {
		t.Errorf("%s: the machine lost %d MiB of memory", name, u.lost>>20)
	}
	if u.files > 1000 {
		t.Errorf("%s: the daemon has %d descriptors", name, u.files)
	}
}

// meter looks at a daemon and its machine.
type meter struct {
	pid  int
	root string
}

func newMeter(pid int, root string) *meter { return &meter{pid, root} }

var (
	resident  = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)
	available = regexp.MustCompile(`MemAvailable:\s+(\d+) kB`)
)

func (m *meter) read(t *testing.T) use {
	t.Helper()
	kilobytes := func(file string, e *regexp.Regexp) int64 {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatalf("the daemon is gone: %v", err)
		}
		found := e.FindSubmatch(b)
		if found == nil {
			t.Fatalf("the daemon is gone: %s", b)
		}
		n, _ := strconv.ParseInt(string(found[1]), 10, 64)
		return n << 10
	}
	u := use{memory: kilobytes(fmt.Sprintf("/proc/%d/status", m.pid), resident), lost: -kilobytes("/proc/meminfo", available)}
	_ = filepath.WalkDir(m.root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				if st, ok := info.Sys().(*syscall.Stat_t); ok {
					u.disk += st.Blocks * 512
				}
			}
		}
		return nil
	})
	all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.pid))
	u.files = len(all)
	return u
}

// What a function forges reaches nobody who is not on its chain, and moves no station.
func TestForgedFramesHarmNoNeighbour(t *testing.T) {
	t.Parallel()
	for _, rt := range runtimes {
		for _, sw := range rt.switches {
			t.Run(rt.name+"/"+sw, func(t *testing.T) {
				t.Parallel()
				forgedFramesHarmNoNeighbour(t, rt, sw)
			})
		}
	}
}

func forgedFramesHarmNoNeighbour(t *testing.T, rt runtime, sw string) {
	r, ctx := world(t, rt, options{grant: asked, sw: sw})
	unharmed(ctx, t, r, "nothing")
	before, neighbours := look(ctx, t, r), neighbour(ctx, t, r)
	out, err := r.Weir(ctx, "function", "exec", "-e", "CAROL_MAC="+carolMAC(ctx, t, r), "-e", "CAROL_IP="+carolAddr, "evil", "--", "/usr/bin/hostile", "abuse", "forge")
	m := regexp.MustCompile(`^(\d+) frames sent`).FindStringSubmatch(out)
	if err != nil || m == nil || len(m[1]) < 4 {
		t.Fatalf("%q, %v: want more than 1,000 frames sent", out, err)
	}
	if after := neighbour(ctx, t, r); after != neighbours {
		t.Errorf("dave's neighbour: %s, was %s", after, neighbours)
	}
	asBefore(ctx, t, r, before)
	unharmed(ctx, t, r, "the forged frames")
}

func carolMAC(ctx context.Context, t *testing.T, r *rig.Rig) string {
	t.Helper()
	mac, err := r.Run(ctx, carol(r), "cat", "/sys/class/net/eth0/address")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(mac)
}

// neighbour is the address that dave has of carol.
func neighbour(ctx context.Context, t *testing.T, r *rig.Rig) string {
	t.Helper()
	out, err := r.Run(ctx, dave(r), "ip", "neigh", "show", carolAddr)
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(out)
	if at := slices.Index(f, "lladdr"); at >= 0 && at+1 < len(f) {
		return f[at+1]
	}
	return ""
}
