// Package settle tests functions that settle flows, in a chain, with real TCP.
package settle

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

const (
	functions = 5
	after     = 20 // packets that each function looks at
)

// chain is a Weir whose chain between alice and bob is made of the example examples/settle.
func chain(t *testing.T, args ...string) (*rig.Rig, context.Context) {
	t.Helper()
	r, ctx := rig.Bare(t, rig.Options{Args: args})
	build(ctx, t, r)
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	r.MustApply(ctx, t, document(r, nil))
	return r, ctx
}

// build the example for a Weir that has not begun.
func build(ctx context.Context, t testing.TB, r *rig.Rig) {
	t.Helper()
	top, err := rig.Top()
	if err != nil {
		t.Fatal(err)
	}
	recipe, err := image.LoadRecipe(filepath.Join(top, "examples", "settle"))
	if err != nil {
		t.Fatal(err)
	}
	r.Images = filepath.Join(t.TempDir(), "images")
	if _, err := recipe.Build(ctx, r.Images); err != nil {
		t.Fatal(err)
	}
}

// document has a port that a function blocks, by its number.
func document(r *rig.Rig, blocks map[int]int) string {
	var b, names strings.Builder
	b.WriteString(r.Endpoints() + "functions:\n")
	for i := 1; i <= functions; i++ {
		fmt.Fprintf(&b, "  f%d: {image: settle, config: {after: %d, block: %d}}\n", i, after, blocks[i])
		fmt.Fprintf(&names, "| f%d ", i)
	}
	fmt.Fprintf(&b, "chains:\n  five: %s\npolicies:\n  p: {from: alice, to: bob, match: [tcp, icmp], chain: five}\n", names.String()[2:])
	return b.String()
}

// paths of the instance.
func paths(t *testing.T, r *rig.Rig) instance.Instance {
	t.Helper()
	i, err := instance.New(r.Name, r.Root)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// talk is a TCP connection from alice to a server at bob that echoes lines.
type talk struct {
	t    *testing.T
	c    net.Conn
	r    *bufio.Reader
	said int
}

func newTalk(t *testing.T, r *rig.Rig, port int) *talk { return newTalkBy(t, r, port, rig.BobAddr) }

// newTalkBy an address at which bob's port can be reached: his own, or one of IPv4 that is translated.
func newTalkBy(t *testing.T, r *rig.Rig, port int, address string) *talk {
	t.Helper()
	at := rig.BobAddr
	if address == rig.BobAddr6 {
		at = address
	}
	rig.Serve(t, r.Bob(), net.JoinHostPort(at, strconv.Itoa(port)), rig.Echo)
	w := &talk{t: t}
	err := netns.Do(r.Alice(), func() (err error) {
		w.c, err = net.DialTimeout("tcp", net.JoinHostPort(address, strconv.Itoa(port)), 10*time.Second)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.c.Close() })
	w.r = bufio.NewReader(w.c)
	return w
}

// say a line and hear it.
func (w *talk) say(within time.Duration) error {
	w.said++
	line := w.line(w.said)
	if err := w.c.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := io.WriteString(w.c, line); err != nil {
		return err
	}
	got, err := w.r.ReadString('\n')
	if err == nil && got != line {
		err = fmt.Errorf("heard %q, said %q", got, line)
	}
	return err
}

func (w *talk) line(n int) string { return fmt.Sprintf("line %s %06d\n", w.c.LocalAddr(), n) }

func (w *talk) mustSay(lines int) {
	w.t.Helper()
	for range lines {
		if err := w.say(20 * time.Second); err != nil {
			w.t.Fatal(err)
		}
	}
}

// port has its counters.
func port(ctx context.Context, t *testing.T, r *rig.Rig, name string) api.PortCounters {
	t.Helper()
	var all api.Counters
	if err := r.Get(ctx, &all, "ports"); err != nil {
		t.Fatal(err)
	}
	for _, p := range all.Ports {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no port %s", name)
	return api.PortCounters{}
}

// five are the functions of the example's chain.
func five() (names []string) {
	for i := range functions {
		names = append(names, fmt.Sprintf("f%d", i+1))
	}
	return names
}

// sniff at both ports of some functions, all of the chain if none is named.
func sniff(t *testing.T, r *rig.Rig, names ...string) (all []*rig.Capture) {
	t.Helper()
	if len(names) == 0 {
		names = five()
	}
	for _, name := range names {
		for _, link := range []string{"in", "out"} {
			c, err := rig.Listen(filepath.Join(paths(t, r).NetnsDir(), name), link)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			all = append(all, c)
		}
	}
	return all
}

// sees waits until a capture has a text: what has arrived at the other end may not have been read there yet.
func sees(ctx context.Context, t *testing.T, c *rig.Capture, text, what string) {
	t.Helper()
	rig.Eventually(ctx, t, what, func() (bool, string) { return len(c.With(text)) > 0, "not yet" })
}

// settled waits until no function sees the talk any more: some lines in a row.
func (w *talk) settled(ctx context.Context, r *rig.Rig) {
	w.t.Helper()
	rig.Eventually(ctx, w.t, "the flow is settled", func() (bool, string) { return w.passesBy(ctx, r, five()...) })
}

// listed: both directions of a talk are among the flows that a function has settled, with at least so many packets.
func (w *talk) listed(ctx context.Context, r *rig.Rig, name string, packets uint64) {
	w.t.Helper()
	out, err := r.Weir(ctx, "function", "flows", name, "-o", "json")
	var found api.SettledFlows
	if err == nil {
		err = json.Unmarshal([]byte(out), &found)
	}
	if err != nil {
		w.t.Fatal(err, out)
	}
	said := map[string]int{}
	for _, f := range found.Flows {
		source, destination := fmt.Sprintf("%s:%d", f.Source, f.SourcePort), fmt.Sprintf("%s:%d", f.Destination, f.DestPort)
		if source != w.c.LocalAddr().String() && destination != w.c.LocalAddr().String() {
			continue
		}
		said[fmt.Sprint(f.Verdict, " at ", f.At, " ", f.Protocol, " ", source, " ", destination)]++
		if f.Missed.Packets < packets || f.Missed.Bytes < 40*packets || found.Time.Sub(f.Since) < 0 || f.IdleNs < 0 || f.IdleNs > int64(time.Minute) {
			w.t.Errorf("%+v", f)
		}
	}
	want := map[string]int{
		fmt.Sprint("pass at in tcp ", w.c.LocalAddr(), " ", w.c.RemoteAddr()):  1,
		fmt.Sprint("pass at out tcp ", w.c.RemoteAddr(), " ", w.c.LocalAddr()): 1,
	}
	if !maps.Equal(said, want) {
		w.t.Errorf("settled flows of %s: %v, want %v\n%s", name, said, want, out)
	}
}

// passesBy says some lines, and whether they have passed some functions by.
func (w *talk) passesBy(ctx context.Context, r *rig.Rig, names ...string) (bool, string) {
	w.t.Helper()
	before := make([]api.PortCounters, len(names))
	for i, name := range names {
		before[i] = port(ctx, w.t, r, "function/"+name+"/in")
	}
	w.mustSay(10)
	for i := range before {
		now := port(ctx, w.t, r, before[i].Name)
		if now.Settled.Packets < before[i].Settled.Packets+10 {
			return false, fmt.Sprintf("before %+v, now %+v", before[i], now)
		}
	}
	return true, ""
}

// The functions see the first packets of a flow, and none after; a rule that a function has changed itself, and one in a new configuration, hold at once for
// flows that go on.
func TestSettledFlowsPassTheChainBy(t *testing.T) {
	r, ctx := chain(t)
	seen := sniff(t, r)
	w := newTalk(t, r, 9000)
	w.mustSay(after)
	w.settled(ctx, r)
	first := w.said
	w.mustSay(200)
	for i, c := range seen {
		name := fmt.Sprintf("f%d, capture %d", i/2+1, i%2)
		if n := len(c.Incoming(strings.TrimSuffix(w.line(1), "\n"))); n != 1 {
			t.Errorf("%s: the first line was seen %d times", name, n)
		}
		for n := first + 1; n <= w.said; n++ {
			if len(c.With(strings.TrimSuffix(w.line(n), "\n"))) > 0 {
				t.Fatalf("%s: line %d of a flow that was settled after %d was seen", name, n, first)
			}
		}
	}
	text, err := r.Weir(ctx, "trace", "alice", "bob", "tcp/9000")
	if err != nil || !strings.Contains(text, "SETTLED") || !strings.Contains(text, "may settle flows") {
		t.Errorf("trace: %v\n%s", err, text)
	}

	w.listed(ctx, r, "f3", 200)
	if text, err := r.Weir(ctx, "function", "flows", "f3", "-o", "wide"); err != nil || !strings.Contains(text, "GENERATION") || !strings.Contains(text, w.c.LocalAddr().String()) {
		t.Errorf("%v\n%s", err, text)
	}

	// A rule that the function itself changes.
	settle := func(port int) func(int) *talk {
		return func(try int) *talk {
			w := newTalk(t, r, port+try)
			w.mustSay(after)
			w.settled(ctx, r)
			return w
		}
	}
	rule{what: "a function's own rule", settle: settle(9100), forbid: func(try int) time.Time {
		return inForce(ctx, t, r, "f3", "another rule", func() {
			if out, err := r.Weir(ctx, "function", "exec", "f3", "--", "sh", "-c", fmt.Sprintf("echo %d >/tmp/block && kill -HUP 1", 9100+try)); err != nil {
				t.Fatal(err, out)
			}
		})
	}}.holds(t, r)

	// A new instance with another configuration.
	rule{what: "a new configuration", settle: settle(9200), forbid: func(try int) time.Time {
		r.MustApply(ctx, t, document(r, map[int]int{2: 9200 + try}))
		return time.Now()
	}}.holds(t, r)

	// A new instance with the same one sees the flow again, and settles it again.
	w = newTalk(t, r, 9002)
	w.mustSay(after)
	w.settled(ctx, r)
	for _, line := range [][]string{{"function", "restart", "f1"}} {
		if out, err := r.Weir(ctx, line...); err != nil {
			t.Fatal(err, out)
		}
	}
	again := sniff(t, r)[:2]
	before := w.said
	w.mustSay(after)
	for _, c := range again {
		sees(ctx, t, c, fmt.Sprintf("line %s", w.c.LocalAddr()), fmt.Sprintf("after a restart the function sees a settled flow, of lines %d to %d", before+1, w.said))
	}
	w.settled(ctx, r)

	// While Weir is away settled flows go on.
	if err := r.Kill(9); err != nil {
		t.Fatal(err)
	}
	w.mustSay(100)
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	w.settled(ctx, r)
	w = newTalk(t, r, 9003) // and functions are heard again
	w.settled(ctx, r)

	// A rule that a function changes while Weir is away, so that nobody hears it, holds when Weir is back.
	rule{what: "a rule that was changed while Weir was away", settle: settle(9300), forbid: func(try int) time.Time {
		var f api.Function
		if err := r.Get(ctx, &f, "function", "f3"); err != nil {
			t.Fatal(err)
		}
		if err := r.Kill(9); err != nil {
			t.Fatal(err)
		}
		if out, err := r.Run(ctx, "", "nsenter", "--target", strconv.Itoa(f.Status.PID), "--all", "sh", "-c", fmt.Sprintf("echo %d >/tmp/block && kill -HUP 1", 9300+try)); err != nil {
			t.Fatal(err, out)
		}
		if err := r.Up(ctx); err != nil {
			t.Fatal(err)
		}
		rig.Eventually(ctx, t, "the host is ready", func() (bool, string) {
			var hosts struct {
				Items []api.Host `json:"items"`
			}
			err := r.Get(ctx, &hosts, "hosts")
			return err == nil && len(hosts.Items) == 1 && hosts.Items[0].Status.State == "ready", fmt.Sprint(hosts, err)
		})
		return time.Now()
	}}.holds(t, r)
}

// What a function says is checked, and nobody else has a say.
func TestAFunctionSettlesItsOwnOnly(t *testing.T) {
	r, ctx := chain(t)
	w := newTalk(t, r, 9000)
	w.mustSay(1)
	flow := strings.Join([]string{"tcp", w.c.LocalAddr().String(), w.c.RemoteAddr().String()}, " ")
	for _, tt := range []struct{ line, want string }{
		{"pass tcp 10.9.0.1:1 10.9.0.2:2", "not-given"},
		{"pass it", "error: want pass, drop or judge"},
		{strings.Repeat("x", 300), "error: a line is longer"},
		{"judge " + flow, "ok 2"},
	} {
		out, err := r.Weir(ctx, "function", "exec", "f1", "--", "weir-settle", tt.line)
		if !strings.HasPrefix(out, tt.want) || (err == nil) != strings.HasPrefix(tt.want, "ok") {
			t.Errorf("%s: %q, %v; want %q", tt.line, out, err, tt.want)
		}
	}
	// Root of the host, who is in no function's network namespace.
	c, err := net.Dial("unix", filepath.Join(paths(t, r).Run, "functions", "f1", "run", "settle.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "drop %s\n", flow)
	if answer, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(answer, "not in the network namespace") {
		t.Errorf("%q, %v", answer, err)
	}
	w.mustSay(1)
	// A drop is the function's to say. It holds for its flow alone.
	other := newTalk(t, r, 9001)
	rule{what: "a settled drop", settle: func(try int) *talk {
		w = newTalk(t, r, 9100+try)
		w.mustSay(after)
		w.settled(ctx, r) // so the function itself says nothing of it any more: its pass could come behind the drop
		return w
	}, forbid: func(int) time.Time {
		rig.Eventually(ctx, t, "the flow is dropped", func() (bool, string) {
			out, err := r.Weir(ctx, "function", "exec", "f1", "--", "weir-settle", strings.Join([]string{"drop tcp", w.c.LocalAddr().String(), w.c.RemoteAddr().String()}, " "))
			return err == nil, out
		})
		return time.Now()
	}}.holds(t, r)
	other.mustSay(1)
	if p := port(ctx, t, r, "function/f1/in"); p.Dropped.Packets == 0 || !p.Settles {
		t.Errorf("%+v", p)
	}
}

// Where the switch cannot settle flows, functions that could get every packet, and their host says so.
func TestOnOpenVSwitchAllIsGiven(t *testing.T) {
	r, ctx := chain(t, "--switch", "ovs")
	seen := sniff(t, r)
	w := newTalk(t, r, 9000)
	w.mustSay(3 * after)
	for i, c := range seen {
		sees(ctx, t, c, strings.TrimSuffix(w.line(w.said), "\n"), fmt.Sprintf("f%d sees the last line", i/2+1))
	}
	out, err := r.Weir(ctx, "function", "exec", "f1", "--", "weir-settle", "reset")
	if err == nil || !strings.Contains(err.Error()+out, "the host's switch ebpf") {
		t.Errorf("%q, %v", out, err)
	}
	out, err = r.Weir(ctx, "function", "flows", "f1")
	if err == nil || !strings.Contains(err.Error()+out, "its switch ovs settles no flows: function f1 gets every packet") {
		t.Errorf("%q, %v", out, err)
	}
}
