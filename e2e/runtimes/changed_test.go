package runtimes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// prompt is how soon a new rule holds.
const prompt = 5 * time.Second

// changed gives a firewall of the chain a new rule while it runs, and while a TCP connection goes through it: the rule holds soon, the instance is the same, the connection
// goes on. Then all of its packets pass the firewall (settle: false), in whole segments.
func changed(ctx context.Context, t *testing.T, r *rig.Rig, sw, text, firewall, runtime string) {
	t.Helper()
	before := status(ctx, t, r, firewall)
	if !passes(t, r, 9002) {
		t.Errorf("udp/9002 does not pass before there is a rule against it")
	}
	c := dial(t, r)
	if _, err := io.WriteString(c, "before the change"); err != nil {
		t.Fatal(err)
	}

	begun := time.Now()
	r.MustApply(ctx, t, strings.Replace(text, "deny: [udp/9001]", "settle: false, deny: [udp/9001, udp/9002]", 1))
	for passes(t, r, 9002) {
		if time.Since(begun) > prompt {
			t.Fatalf("udp/9002 passes %v after the change of the firewall's rules", time.Since(begun))
		}
	}
	took := time.Since(begun)
	if passes(t, r, 9001) {
		t.Error("the former rule is gone")
	}
	if !passes(t, r, 9003) {
		t.Error("what no rule denies does not pass after the change")
	}
	after := status(ctx, t, r, firewall)
	if after.PID != before.PID || after.Restarts != before.Restarts {
		t.Errorf("the firewall was made anew: pid %d, %d restarts; then %+v", before.PID, before.Restarts, after)
	}
	config, err := r.Weir(ctx, "function", "exec", firewall, "--", "cat", "/etc/weir/config.json")
	if err != nil || !strings.Contains(config, "9001") || !strings.Contains(config, "9002") {
		t.Errorf("in %s the firewall finds the configuration %q, %v", runtime, config, err)
	}
	segments := whole(t, r, c)
	t.Logf("the new rule held after %v; %s", took.Round(time.Millisecond), segments)
	if sw == "ebpf" && !segments.whole() { // Open vSwitch in user space takes segments apart
		t.Errorf("segments were cut: %s", segments)
	}
}

func status(ctx context.Context, t *testing.T, r *rig.Rig, name string) api.FunctionStatus {
	t.Helper()
	var f api.Function
	if err := r.Get(ctx, &f, "function", name); err != nil {
		t.Fatal(err)
	}
	return f.Status
}

// passes tells whether datagrams get from alice to a port of bob's.
func passes(t *testing.T, r *rig.Rig, port int) bool {
	t.Helper()
	addr := net.JoinHostPort(rig.BobAddr, strconv.Itoa(port))
	var at net.PacketConn
	if err := netns.Do(r.Bob(), func() (err error) { at, err = net.ListenPacket("udp4", addr); return err }); err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	var c net.Conn
	if err := netns.Do(r.Alice(), func() (err error) { c, err = net.Dial("udp4", addr); return err }); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 10 {
		_, _ = c.Write([]byte("x"))
		_ = at.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, _, err := at.ReadFrom(make([]byte, 10)); err == nil {
			return true
		}
	}
	return false
}

// dial bob, who tells how much he was sent, at the end.
func dial(t *testing.T, r *rig.Rig) *net.TCPConn {
	t.Helper()
	to := rig.Serve(t, r.Bob(), rig.BobAddr+":0", func(c net.Conn) {
		n, _ := io.Copy(io.Discard, c)
		_, _ = fmt.Fprint(c, n)
	})
	var c net.Conn
	err := netns.Do(r.Alice(), func() (err error) { c, err = net.DialTimeout("tcp4", to.String(), 10*time.Second); return err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// segments of a transfer, as they came.
type segments struct{ frames, bytes, largest, mtu int }

func (s segments) String() string {
	return fmt.Sprintf("%d bytes came in %d frames, the largest of %d; the MTU is %d", s.bytes, s.frames, s.largest, s.mtu)
}

// whole tells whether most were not cut to the MTU.
func (s segments) whole() bool { return s.frames > 0 && s.bytes/s.frames > 2*s.mtu }

// whole sends much by a connection of dial, ends it, and looks how it comes.
func whole(t *testing.T, r *rig.Rig, c *net.TCPConn) (s segments) {
	t.Helper()
	const size = 8 << 20
	there, err := rig.Listen(r.Bob(), "eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(bytes.Repeat([]byte("after the change"), size/16)); err != nil {
		t.Fatalf("the connection does not go on: %v", err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadAll(c); err != nil || string(n) != strconv.Itoa(len("before the change")+size) {
		t.Errorf("bob got %q bytes of %d, %v", n, len("before the change")+size, err)
	}
	err = netns.Do(r.Bob(), func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			s.mtu = link.MTU
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); s.bytes < size && time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // bob may be ahead of the capture
		s = segments{mtu: s.mtu}
		for _, f := range there.Incoming("after the change") {
			s.frames++
			s.bytes += len(f.Data)
			s.largest = max(s.largest, len(f.Data))
		}
	}
	return s
}

// seen has a tap's monitor tell the flows that come from a port, of which it knows none yet: one that the firewall lets pass, and none that it denies. The frames come again
// and again, as a monitor is ready when its process runs, and listens a moment later.
func seen(ctx context.Context, t *testing.T, r *rig.Rig, monitor string, sport uint16) {
	t.Helper()
	soon, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	alice, bob := station(t, r, r.Alice(), rig.AliceAddr), station(t, r, r.Bob(), rig.BobAddr)
	from, err := rig.NewSender(r.Alice(), "eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	var to []int
	rig.Eventually(soon, t, "the monitor tells the flow that passed", func() (bool, string) {
		for _, port := range []uint16{9001, 9000} { // the forbidden one first: it would be told by the time that the other one is
			if err := from.Send(rig.Packet{Proto: 17, Src: sport, Dst: port, TTL: 1, Payload: "seen"}.Bytes(alice, bob)); err != nil {
				t.Fatal(err)
			}
		}
		text, err := r.Weir(ctx, "function", "logs", monitor)
		to = nil
		for line := range strings.Lines(text) {
			var l struct {
				Event, Proto, Src, Dst string
				Sport                  uint16
				Dport                  int
			}
			if json.Unmarshal([]byte(line), &l) == nil && l.Event == "new" && l.Proto == "udp" && l.Src == rig.AliceAddr && l.Dst == rig.BobAddr && l.Sport == sport {
				to = append(to, l.Dport)
			}
		}
		return slices.Contains(to, 9000), fmt.Sprint(err, text)
	})
	if !slices.Equal(to, []int{9000}) {
		t.Errorf("behind the firewall the monitor has seen flows to %v, want 9000 alone", to)
	}
}

// told waits for the event and the metric of what a firewall has denied since some time, by the former rule and by the new one.
func told(ctx context.Context, t *testing.T, r *rig.Rig, firewall string, since time.Time) {
	t.Helper()
	soon, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, rule := range []string{"deny udp/9001", "deny udp/9002"} {
		rig.Eventually(soon, t, "the event of "+rule, func() (bool, string) {
			text, err := r.Weir(ctx, "events", "--from", firewall, "-o", "json")
			var l struct{ Items []api.Event }
			if err == nil {
				err = json.Unmarshal([]byte(text), &l)
			}
			return slices.ContainsFunc(l.Items, func(e api.Event) bool {
				return e.Reason == "TrafficDenied" && e.Severity == api.Warning && e.Object == firewall && e.Time.After(since) && strings.Contains(e.Message, rule)
			}), fmt.Sprint(err, text)
		})
	}
	rig.Eventually(soon, t, "the metric of what was denied", func() (bool, string) {
		text, err := r.Weir(ctx, "describe", "function", firewall)
		_, row, _ := strings.Cut(text, "firewall_denied_packets_total")
		words := append(strings.Fields(row), "")
		n, _ := strconv.ParseFloat(words[0], 64)
		return err == nil && n > 1, fmt.Sprint(err, text) // one to 9001, and those to 9002
	})
}
