package platform

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// counted is a file that stands for the kernel's: at most so many can be had.
func counted(t *testing.T, n int) hugepages {
	dir := t.TempDir()
	h := hugepages{count: filepath.Join(dir, "nr_hugepages"), record: filepath.Join(dir, "hugepages")}
	if err := os.WriteFile(filepath.Join(dir, "surplus_hugepages"), []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.set(t, n)
	return h
}

func (h hugepages) now(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(h.count)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (h hugepages) set(t *testing.T, n int) {
	t.Helper()
	if err := os.WriteFile(h.count, []byte(fmt.Sprintln(n)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Hugepages that were taken are given back, and those of others stay, whatever these did meanwhile.
func TestHugepagesAreGivenBackExactly(t *testing.T) {
	h := counted(t, 1000)
	for _, n := range []int{100, 20} {
		if err := h.more(n); err != nil {
			t.Fatal(err)
		}
	}
	if n := h.now(t); n != 1120 {
		t.Fatalf("%d: want 1120", n)
	}
	h.set(t, 1620) // another takes 500
	for range 2 {  // the second time there is nothing to give back
		if err := h.giveBack(); err != nil {
			t.Fatal(err)
		}
		if n := h.now(t); n != 1500 {
			t.Fatalf("%d: want 1500", n)
		}
	}
	if _, err := os.Stat(h.record); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record is still there: %v", err)
	}
}

// A crash at any moment of a change leaves a record from which the number before is found.
func TestHugepagesOfACrashAreGivenBack(t *testing.T) {
	for _, c := range []struct {
		name      string
		record    pages
		now, want int
	}{
		{"before taking", pages{Before: 1000, Change: 100}, 1000, 1000},
		{"behind taking", pages{Before: 1000, Change: 100}, 1100, 1000},
		{"part of it", pages{Before: 1000, Change: 100}, 1040, 1000},
		{"the second time, before", pages{Taken: 100, Before: 1100, Change: 20}, 1100, 1000},
		{"the second time, behind", pages{Taken: 100, Before: 1100, Change: 20}, 1120, 1000},
		{"at work", pages{Taken: 120}, 1120, 1000},
		{"before giving back", pages{Taken: 120, Before: 1120, Change: -120}, 1120, 1000},
		{"behind giving back", pages{Taken: 120, Before: 1120, Change: -120}, 1000, 1000},
	} {
		h := counted(t, c.now)
		text, err := json.Marshal(c.record)
		if err == nil {
			err = os.WriteFile(h.record, text, 0o600)
		}
		if err == nil {
			err = h.giveBack()
		}
		if n := h.now(t); err != nil || n != c.want {
			t.Errorf("%s: %d, %v: want %d", c.name, n, err, c.want)
		}
	}
}

// What is given back while a program that ends has it in use still counts in the kernel's file: the next that takes some takes no more than its own.
func TestHugepagesInUseAreGivenBackExactly(t *testing.T) {
	const n = 4
	first, second := hugepagesOf(instance.Instance{Run: t.TempDir()}), hugepagesOf(instance.Instance{Run: t.TempDir()})
	persistent := func() int {
		f, err := first.locked()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		n, err := number(f)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if why := checkHugepages(); why != "" {
		t.Skip(why)
	}
	before := persistent()
	if err := first.more(n); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(-1, 0, n<<21, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_POPULATE)
	if err := errors.Join(err, first.giveBack(), second.more(n)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Munmap(memory), second.giveBack()); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); persistent() != before; time.Sleep(20 * time.Millisecond) { // others may have theirs meanwhile
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d hugepages are left: want %d", persistent(), before)
		}
	}
}

// Chains side by side have an entry for each source MAC where they part, and in the other direction for each destination.
func TestChainsSideBySideHaveEntries(t *testing.T) {
	f := &flows{numbers: map[string]int{"alice": 1, "bob": 2, "a1": 3, "a2": 4, "b1": 5, "b2": 6}, ends: []string{"alice", "bob"},
		ports: map[string][2]string{"a": {"a1", "a2"}, "b": {"b1", "b2"}}}
	want := strings.Join([]string{
		"in_port=1,actions=output:3", "in_port=3,actions=output:1", "in_port=4,actions=output:2", "in_port=2,actions=output:4",
		"priority=40000,dl_src=02:57:45:00:00:01,in_port=1,actions=output:5", "in_port=5,actions=output:1",
		"in_port=6,actions=output:2", "priority=40000,dl_dst=02:57:45:00:00:01,in_port=2,actions=output:6", "",
	}, "\n")
	if diff := cmp.Diff(want, f.entries([][]string{{"a"}, {"b"}})); diff != "" {
		t.Error(diff)
	}
}

func TestProcessorsAreSharedOut(t *testing.T) {
	for _, c := range []struct {
		all       []int
		threads   int
		switches  []int
		functions []int
	}{
		{[]int{0, 1}, 0, nil, []int{1}},
		{[]int{0, 1}, 1, []int{1}, []int{0}},
		{[]int{0, 1}, 2, []int{0, 1}, []int{0, 1}},
		{[]int{2, 3, 5, 7}, 1, []int{7}, []int{3, 5}},
		{[]int{2, 3, 5, 7}, 3, []int{3, 5, 7}, []int{2}},
		{[]int{4}, 1, []int{4}, []int{4}},
		{[]int{4}, 0, nil, []int{4}},
	} {
		switches, functions := shareOut(c.all, c.threads)
		if !slices.Equal(switches, c.switches) || !slices.Equal(functions, c.functions) {
			t.Errorf("%d of %v: %v and %v: want %v and %v", c.threads, c.all, switches, functions, c.switches, c.functions)
		}
	}
}

// What polls is stopped while nothing is measured, and goes on with the next path.
func TestWhatPollsRests(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var p pollers
	if err := p.add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	defer p.close()
	state := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		return rest[:1]
	}
	wait := func(want string) {
		t.Helper()
		for begin := time.Now(); state() != want; time.Sleep(time.Millisecond) {
			if time.Since(begin) > 10*time.Second {
				t.Fatalf("its state is %s: want %s", state(), want)
			}
		}
	}
	wait("S")
	for range 2 {
		if err := errors.Join(p.rest(), p.rest()); err != nil {
			t.Fatal(err)
		}
		wait("T")
		if err := errors.Join(p.wake(), p.wake()); err != nil {
			t.Fatal(err)
		}
		wait("S")
	}
}

// A run that is killed leaves a switch that polls, its sockets and its hugepages: the next run's removal ends the one and gives back the others. What stopped the
// switch may have died with the run.
func TestPollingSwitchOfACrashIsRemoved(t *testing.T) {
	k, _ := Find("bare+ovs-dpdk-1+testpmd")
	o := testOptions(t)
	if why := k.Check(o); why != "" {
		t.Fatal(why)
	}
	p, err := k.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	m := p.(*made)
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := p.Path(t.Context(), Layout{Chain: 2}); err != nil {
		t.Fatal(err)
	}
	if err := m.Rest(); err != nil {
		t.Fatal(err)
	}
	h := hugepagesOf(m.inst)
	text, err := os.ReadFile(h.record)
	var taken pages
	if err == nil {
		err = json.Unmarshal(text, &taken)
	}
	if err != nil || taken.Taken != pagesOfSwitch+2*pagesPerFunction {
		t.Fatalf("%+v on record: %v", taken, err)
	}
	before := h.now(t)
	pid := m.net.(*flows).process.SwitchPID()
	// The functions' programs end with a lab that is killed.
	if err := m.rt.close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := Remove(t.Context(), o.Name); err != nil {
		t.Fatal(err)
	}
	if n := before - h.now(t); n != taken.Taken {
		t.Errorf("%d hugepages were given back: want %d", n, taken.Taken)
	}
	if args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(args) > 0 { // what has ended and was not waited for has none
		t.Errorf("the switch lives on: %d", pid)
	}
	for _, dir := range []string{m.inst.Run, m.inst.Root} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// A virtual machine in which DPDK drives the ports that share its memory with a switch hands frames on as they are, also when both have rested. Neither a machine that is
// killed nor a lab that is leaves anything.
func TestMachinesShareMemoryWithASwitch(t *testing.T) {
	k, _ := Find("kvm+ovs-dpdk-1+testpmd")
	o := testOptions(t)
	if why := k.Check(o); strings.HasPrefix(why, "this kernel lacks hugepages") {
		t.Skip(why)
	} else if why != "" {
		t.Fatalf("not on this machine: %s", why)
	}
	p, err := k.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	m := p.(*made)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	var path Path
	for range 2 {
		if path, err = p.Path(t.Context(), Layout{Chain: 1}); err != nil {
			t.Fatal(err)
		}
		framesPass(t, path.From, path.To)
		framesPass(t, path.To, path.From)
		if err := m.Rest(); err != nil {
			t.Fatal(err)
		}
	}
	const want = "vhost-user to virtio-net, which DPDK drives in the machine (uio_pci_generic)"
	if is := m.Conditions()["datapath"]; !strings.Contains(is, want) {
		t.Errorf("datapath %q: want %q", is, want)
	}
	err = netns.Do(m.space(wireName(0)), func() error {
		all, err := net.Interfaces()
		for _, l := range all {
			if l.Flags&net.FlagLoopback == 0 {
				err = errors.Join(err, fmt.Errorf("there is a link %s, too", l.Name))
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	h := hugepagesOf(m.inst)
	before := h.now(t)

	machine := m.rt.(*contained).rt
	st, err := machine.Status(t.Context(), wireName(0))
	if err != nil || st.PID == 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := errors.Join(unix.Kill(st.PID, unix.SIGKILL), m.wake()); err != nil {
		t.Fatal(err)
	}
	if st, err = machine.Wait(t.Context(), wireName(0)); err != nil || st.ExitCode != 137 {
		t.Errorf("a killed machine: %+v, %v", st, err)
	}
	if _, err := p.Path(t.Context(), Layout{Chain: 1}); err != nil {
		t.Error(err) // it is led already
	}
	if err := m.rt.ill(t.Context()); err == nil || !strings.Contains(err.Error(), "function w000: its container is stopped") {
		t.Error(err)
	}
	if err := Remove(t.Context(), o.Name); err != nil { // as the next run does
		t.Fatal(err)
	}
	if n := before - h.now(t); n != pagesOfSwitch {
		t.Errorf("%d hugepages were given back: want %d", n, pagesOfSwitch)
	}
	for _, pattern := range []string{Run + "/" + o.Name + "-*", State + "/" + o.Name + "-*", "/sys/fs/cgroup/*/weir/" + o.Name + "*"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// framesPass sends frames of all kinds of lengths from one station, and wants each at the other one as it was.
func framesPass(t *testing.T, from, to string) {
	t.Helper()
	open := func(space string) (fd int) {
		err := netns.Do(space, func() (err error) {
			link, err := net.InterfaceByName(Station)
			if err != nil {
				return err
			}
			all := uint16(unix.ETH_P_ALL)<<8 | unix.ETH_P_ALL>>8
			if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
				return err
			}
			return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}),
				unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}))
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	out, in := open(from), open(to)
	got := make([]byte, 4096)
	for _, length := range []int{60, 61, 64, 127, 128, 512, 1024, 1280, 1513, 1514} {
		frame := make([]byte, length)
		_, _ = rand.Read(frame)
		copy(frame, []byte{2, 9, 0, 0, 0, 1, 2, 9, 0, 0, 0, 2, 0x88, 0xb5}) // an EtherType for experiments
		if _, err := unix.Write(out, frame); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := unix.Read(in, got)
			if errors.Is(err, unix.EINTR) || err == nil && !bytes.HasPrefix(got[:n], frame[:14]) { // another's, such as ARP
				continue
			}
			if err != nil {
				t.Fatalf("a frame of %d bytes: %v", length, err)
			}
			if diff := cmp.Diff(frame, got[:n]); diff != "" {
				t.Fatalf("a frame of %d bytes: %s", length, diff)
			}
			break
		}
	}
}
