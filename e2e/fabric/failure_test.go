package fabric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/ovsdb/ovsproc"
)

// Two stations on different leaves, and a function that the manager places.
const failurePolicy = `
endpoints:
  a: {address: 10.0.0.2/24}
  b: {address: 10.0.0.8/24}
functions:
  nf: {image: wire}
chains:
  through: nf
policies:
  a-through-nf: {from: a, to: b, match: [udp, icmp], chain: through}
`

const (
	streamRate = 1000 // datagrams a second
	streamPort = 9000
	// The aims, for a machine that has nothing else to do. Tests print what was measured beside them, and fail at a multiple.
	linkHeals    = time.Second
	hostReplaced = 5 * time.Second
	busy         = 10
)

// failure is something that happens to the network under a counted stream through the function, and is made good.
type failure struct {
	name    string
	fail    func(*bed)
	recover func(*bed)
	after   int           // datagrams after that
	noLoss  bool          // nothing is lost, and no switch's entry changes
	aim     time.Duration // of the outage; 0: measured only
}

// Each failure is made good, and no datagram has come past the function meanwhile. At last the function's host goes for good.
func TestFailuresUnderTraffic(t *testing.T) {
	b := newBed(t, "leaf-spine.yaml", nil)
	b.reach("h2", "10.0.0.8")
	b.apply(failurePolicy)
	b.reach("h2", "10.0.0.8")
	host := b.hostOf("nf")
	for _, x := range []failure{
		{name: "the manager dies and starts again", noLoss: true, fail: func(b *bed) { b.kill("manager") }, recover: (*bed).again,
			after: 5 * streamRate}, // longer than the router waits for switches and links
		{name: "the agent of the function's host dies and starts again", noLoss: true, fail: func(b *bed) { b.kill(host) }, recover: (*bed).again},
		{name: "both die and start again", noLoss: true, fail: func(b *bed) { b.kill(host); b.kill("manager") }, recover: (*bed).again, after: 5 * streamRate},
		{name: "a link on the way is cut", fail: cutOnTheWay, aim: linkHeals, recover: healAll},
		{name: "ovsdb-server dies and starts again", noLoss: true, fail: func(b *bed) { b.end(b.switches().ServerPID()) }, recover: (*bed).again},
		{name: "ovs-vswitchd dies and starts again", fail: func(b *bed) { b.end(b.switches().SwitchPID()) }, recover: (*bed).again},
	} {
		t.Run(x.name, func(t *testing.T) { b.in(t).survives(x, host) })
		if t.Failed() {
			return
		}
	}
	t.Run("a dead host's functions run elsewhere", func(t *testing.T) { b.in(t).deadHost() })
}

// in is the testbed in a subtest.
func (b *bed) in(t *testing.T) *bed {
	c := *b
	c.t = t
	return &c
}

func outage(o rig.Outcome) string {
	return fmt.Sprintf("outage %s, %d of %d lost, %d duplicated", o.LongestGap.Round(100*time.Microsecond), o.Lost, o.Sent, o.Duplicated)
}

// under runs do while a stream goes from h2 to h8, and counts.
func (b *bed) under(pps int, do func(*rig.Stream)) rig.Outcome {
	b.t.Helper()
	s, err := rig.NewStream(b.netns("h2"), b.netns("h8"), "10.0.0.8", streamPort, pps)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := s.Await(b.ctx, pps/4); err != nil {
		b.t.Fatal(err)
	}
	do(s)
	o, err := s.Stop()
	if err != nil {
		b.t.Fatal(err)
	}
	return o
}

func (b *bed) survives(x failure, host string) {
	b.t.Helper()
	before, dropped := b.entries(), b.discarded()
	var changed []string
	measure := func() rig.Outcome {
		function, arrived := listen(b.t, b.function(host, "nf"), "in"), listen(b.t, b.netns("h8"), "eth0")
		o := b.under(streamRate, func(s *rig.Stream) { changed = append(changed, b.happens(x, s)...) })
		b.none(function, arrived)
		return o
	}
	if x.noLoss {
		o := measure
		measure = func() rig.Outcome { return b.exact(o) }
	}
	outcome := measure()
	b.t.Logf("%s: %s; receive queues of the switches overran by %d", x.name, outage(outcome), b.discarded()-dropped)
	if outcome.Duplicated > 0 {
		b.t.Errorf("%d duplicated", outcome.Duplicated)
	}
	if x.noLoss && outcome.Lost > 0 {
		b.t.Errorf("lost %d of %d", outcome.Lost, outcome.Sent)
	}
	if len(changed) > 0 {
		b.t.Errorf("entries changed:\n%s", strings.Join(changed, "\n"))
	}
	b.within(outcome.LongestGap, x.aim)
	b.await("the entries are what they were", func() (bool, string) {
		now := b.entries()
		return slices.Equal(before, now), fmt.Sprintf("%d entries, there were %d:\n%s\nwere\n%s", len(now), len(before), strings.Join(now, "\n"), strings.Join(before, "\n"))
	})
}

// happens lets it happen and recover under a stream, and tells which entries that has changed, where none should.
func (b *bed) happens(x failure, s *rig.Stream) []string {
	b.t.Helper()
	stop := func() []string { return nil }
	if x.noLoss {
		stop = b.changes()
	}
	x.fail(b)
	if err := s.Await(b.ctx, streamRate/4); err != nil {
		b.t.Fatal(err)
	}
	x.recover(b)
	if err := s.Await(b.ctx, max(x.after, streamRate/2)); err != nil {
		b.t.Fatal(err)
	}
	at := s.Received()
	b.await("the stream goes on", func() (bool, string) { return s.Received() > at, "nothing arrives" })
	return stop()
}

// within compares an outage with its aim; 0 is none.
func (b *bed) within(gap, aim time.Duration) {
	b.t.Helper()
	switch {
	case aim == 0:
	case gap > busy*aim:
		b.t.Errorf("an outage of %s: the aim is %s", gap, aim)
	case gap > aim:
		b.t.Logf("NOT within the aim of %s: this machine is busy, or slow", aim)
	}
}

// none of the stream's datagrams has come past the function, or met it twice.
func (b *bed) none(function, arrived *rig.Capture) {
	b.t.Helper()
	var met map[uint64]int
	past, all := 0, numbers(arrived)
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) { // what was seen at one place may have to be fetched yet at the other
		met, past = numbers(function), 0
		for n := range all {
			if met[n] == 0 {
				past++
			}
		}
		if past == 0 || time.Since(begin) > lost {
			break
		}
	}
	twice := 0
	for _, k := range met {
		twice += k - 1
	}
	if past+twice > 0 || len(met) == 0 {
		b.t.Errorf("%d datagrams met the function; %d came past it, %d met it again", len(met), past, twice)
	}
}

// numbers of the stream's datagrams that came in, and how often.
func numbers(c *rig.Capture) map[uint64]int {
	out := map[uint64]int{}
	for _, f := range c.Seen() {
		const udp = 14 + 20 // Ethernet, IPv4 without options
		if !f.Outgoing && len(f.Data) >= udp+16 && f.Data[23] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(f.Data[udp+2:]) == streamPort {
			out[binary.BigEndian.Uint64(f.Data[udp+8:])]++
		}
	}
	return out
}

// entries of all switches, without the round that their cookies tell.
func (b *bed) entries() []string {
	b.t.Helper()
	var all []string
	for _, n := range b.status().Nodes {
		if n.Kind == "switch" {
			for _, f := range b.flows(n.Name) {
				all = append(all, n.Name+" "+rounds.ReplaceAllString(f, "cookie=0x57--"))
			}
		}
	}
	slices.Sort(all)
	return all
}

var rounds = regexp.MustCompile(`cookie=0x57..`)

// switches are the processes of the testbed's Open vSwitch.
func (b *bed) switches() *ovsproc.Process {
	return ovsproc.At(ovsproc.Options{Dir: "/run/weir-testbed/" + b.name + "/ovs"})
}

// ownSwitch are those of an agent's.
func (b *bed) ownSwitch(agent string) *ovsproc.Process {
	return ovsproc.At(ovsproc.Options{Dir: filepath.Join("/run/weir", b.node(agent).Instance, "ovs")})
}

// end a process the hard way, and wait until it is gone.
func (b *bed) end(pid int) {
	b.t.Helper()
	if pid == 0 {
		b.t.Fatal("it does not run")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
	b.await("it ends", func() (bool, string) {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return errors.Is(err, unix.ESRCH), err.Error()
		}
		defer unix.Close(fd)
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0, "it runs"
	})
}

// hostOf is where a function runs.
func (b *bed) hostOf(function string) string {
	b.t.Helper()
	var f api.Function
	b.get(&f, "function", function)
	if f.Status.Host == "" {
		b.t.Fatalf("function %s is nowhere: %+v", function, f.Status)
	}
	return f.Status.Host
}

// cutOnTheWay pulls out a cable between a leaf and a spine that the policy's frames pass.
func cutOnTheWay(b *bed) {
	b.t.Helper()
	for _, hop := range b.policy("a-through-nf").Status.RenderedPath {
		name, port, _ := strings.Cut(hop, ":")
		if strings.HasPrefix(name, "lf") && (port == "1" || port == "2") {
			b.must("--name", b.name, "testbed", "cut", hop)
			b.t.Logf("cut %s", hop)
			return
		}
	}
	b.t.Fatalf("no cable between leaf and spine on %v", b.policy("a-through-nf").Status.RenderedPath)
}

func healAll(b *bed) {
	b.t.Helper()
	for _, l := range b.status().Links {
		if l.State == "down" {
			b.must("--name", b.name, "testbed", "heal", l.A)
		}
	}
}

// deadHost takes away the host that runs the function, whole, and waits for the function's new place.
func (b *bed) deadHost() {
	b.t.Helper()
	old := b.hostOf("nf")
	var died time.Time
	outcome := b.under(streamRate, func(s *rig.Stream) {
		died = time.Now()
		b.must("--name", b.name, "testbed", "cut", old)
		b.must("--name", b.name, "testbed", "cut", old+":mgmt")
		b.kill(old)
		before := s.Received()
		b.await("the stream goes on", func() (bool, string) { return s.Received() > before+streamRate/2, "nothing arrives" })
	})
	b.t.Logf("host %s dies: %s", old, outage(outcome))
	if now := b.hostOf("nf"); now == old {
		b.t.Errorf("the function is still at %s", old)
	}
	b.within(outcome.LongestGap, hostReplaced)
	want := map[string]bool{"HostLost": false, "FunctionMoved": false}
	for _, e := range b.events() {
		if _, ok := want[e.Reason]; ok && e.Time.After(died) {
			want[e.Reason] = true
		}
	}
	for reason, seen := range want {
		if !seen {
			b.t.Errorf("no event %s", reason)
		}
	}
}
