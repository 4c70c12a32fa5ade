package change

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// conversation is a TCP connection over which something goes to and fro all the time.
type conversation struct {
	c     net.Conn
	turns atomic.Int64
	turn  sync.Mutex // held during one; who holds it keeps the connection silent
	done  chan error
}

// converse opens one from a station to what echoes at another, from a given address and port.
func converse(ctx context.Context, t *testing.T, space, local, to string) *conversation {
	t.Helper()
	from, err := net.ResolveTCPAddr("tcp4", local)
	if err != nil {
		t.Fatal(err)
	}
	x := &conversation{done: make(chan error, 1)}
	dialed, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := netns.Do(space, func() (err error) {
		x.c, err = (&net.Dialer{LocalAddr: from}).DialContext(dialed, "tcp4", to)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.c.Close() })
	go func() { x.done <- x.run() }()
	return x
}

func (x *conversation) run() error {
	got := make([]byte, 16)
	for i := 0; ; i++ {
		if err := x.say(fmt.Sprintf("%16d", i), got); err != nil {
			return fmt.Errorf("turn %d: %w", i, err)
		}
		x.turns.Add(1)
		time.Sleep(time.Millisecond) // a rate, not a wait
	}
}

func (x *conversation) say(said string, got []byte) error {
	x.turn.Lock()
	defer x.turn.Unlock()
	if err := x.c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(x.c, said); err != nil {
		return err
	}
	if _, err := io.ReadFull(x.c, got); err != nil || string(got) != said {
		return fmt.Errorf("%q, %w", got, err)
	}
	return nil
}

// goesOn waits for some more turns.
func (x *conversation) goesOn(ctx context.Context, t *testing.T, what string) {
	t.Helper()
	before := x.turns.Load()
	rig.Eventually(ctx, t, what, func() (bool, string) {
		select {
		case err := <-x.done:
			x.done <- err
			t.Fatalf("%s: the connection has ended: %v", what, err)
		default:
		}
		return x.turns.Load() > before+20, fmt.Sprintf("%d turns", x.turns.Load())
	})
}

// Functions that take a changed config while they run: the same processes go on, no packet is lost, a connection goes on, and the new rules hold. A config that a function
// refuses changes nothing, and the function's condition says why.
func TestReloadLosesNothing(t *testing.T) {
	document := func(r *rig.Rig, deny, rate, word string) string {
		return r.Endpoints() + fmt.Sprintf(`
functions:
  fw: {image: firewall, config: {default: accept, deny: [%s]}}
  web: {image: http-filter, config: {rules: [{name: words, words: [%s]}]}}
  slow: {image: shaper, config: {up: {rate: %s}, down: {rate: %s}, classes: [{name: talk, share: 20%%, match: [tcp, {service: udp, clients: [10.9.0.1]}]}]}}
  dns: {image: dns-lb, config: {names: {www.example: {targets: [{address: 10.9.0.2}]}}}}
chains:
  c: fw | web | slow | dns
policies:
  p: {from: alice, to: bob, match: [udp, tcp], chain: c}
`, deny, word, rate, rate)
	}
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			r.MustApply(ctx, t, document(r, "udp/9001", "400Mbit", "forbidden"))
			rig.Serve(t, r.Bob(), rig.BobAddr+":7000", rig.Echo)
			talk := converse(ctx, t, r.Alice(), rig.AliceAddr+":0", rig.BobAddr+":7000")
			talk.goesOn(ctx, t, "before the change")
			before := pidsOf(ctx, t, r, "fw", "web", "slow", "dns")
			there, back, forbidden := counted(ctx, t, r, func() {
				r.MustApply(ctx, t, document(r, "udp/9001, udp/9002", "300Mbit", "unspeakable"))
			})
			fmt.Printf("%s, reload of four functions: there %d sent, %d lost, %d twice; back %d, %d, %d; forbidden %d sent, %d passed\n", sw,
				there.Sent, there.Lost, there.Duplicated, back.Sent, back.Lost, back.Duplicated, forbidden.Sent, forbidden.Received)
			if there.Lost+there.Duplicated+back.Lost+back.Duplicated+forbidden.Received > 0 {
				t.Errorf("there %+v, back %+v, forbidden %+v", there, back, forbidden)
			}
			talk.goesOn(ctx, t, "after the change")
			for name, pid := range pidsOf(ctx, t, r, "fw", "web", "slow", "dns") {
				if pid != before[name] {
					t.Errorf("%s was made anew: pid %d, then %d", name, before[name], pid)
				}
			}
			denied(ctx, t, r, "9002", true)

			// Ports that go backwards pass the schema, and the function refuses them.
			_, err := r.Apply(ctx, document(r, "udp/9003, tcp/90-80", "300Mbit", "unspeakable"), "--timeout", "5s")
			if err == nil || !strings.Contains(err.Error(), "refuses the config, the former one stays in force") || !strings.Contains(err.Error(), "goes backwards") {
				t.Errorf("apply: %v", err)
			}
			denied(ctx, t, r, "9002", true)
			denied(ctx, t, r, "9003", false)
			talk.goesOn(ctx, t, "after a config that is refused")
			var f api.Function
			if err := r.Get(ctx, &f, "function", "fw"); err != nil || !f.Status.Healthy || f.Status.PID != before["fw"] || f.Status.ObservedGeneration == f.Generation {
				t.Errorf("%+v, %v", f.Status, err)
			}
			if text, err := r.Weir(ctx, "function", "exec", "fw", "--", "cat", "/etc/weir/config.json"); err != nil || !strings.Contains(text, "9002") || strings.Contains(text, "9003") {
				t.Errorf("the function finds %q, %v", text, err)
			}
			r.MustApply(ctx, t, document(r, "udp/9003", "300Mbit", "unspeakable"))
			denied(ctx, t, r, "9003", true)
			denied(ctx, t, r, "9002", false)
			talk.goesOn(ctx, t, "at the end")
			// What the functions tell of themselves.
			rig.Eventually(ctx, t, "the firewall tells what it has denied", func() (bool, string) {
				text, err := r.Weir(ctx, "describe", "function", "fw")
				_, row, _ := strings.Cut(text, "firewall_denied_packets_total")
				words := strings.Fields(row)
				return err == nil && len(words) > 0 && words[0] != "0", text
			})
			for name, metric := range map[string]string{"web": "http_filter_connections_total", "slow": `shaper_sent_packets_total{direction="up"}`, "dns": "dns_lb_answers_total"} {
				rig.Eventually(ctx, t, name+" tells numbers", func() (bool, string) {
					text, err := r.Weir(ctx, "describe", "function", name)
					return err == nil && strings.Contains(text, metric), text
				})
			}
		})
	}
}

func pidsOf(ctx context.Context, t *testing.T, r *rig.Rig, names ...string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, name := range names {
		var f api.Function
		if err := r.Get(ctx, &f, "function", name); err != nil {
			t.Fatal(err)
		}
		out[name] = f.Status.PID
	}
	return out
}

// denied checks whether datagrams to a port of bob's come through.
func denied(ctx context.Context, t *testing.T, r *rig.Rig, port string, want bool) {
	t.Helper()
	var at net.PacketConn
	if err := netns.Do(r.Bob(), func() (err error) { at, err = net.ListenPacket("udp4", rig.BobAddr+":"+port); return err }); err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	var c net.Conn
	if err := netns.Do(r.Alice(), func() (err error) { c, err = net.Dial("udp4", rig.BobAddr+":"+port); return err }); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, came := make([]byte, 10), false
	for range 10 {
		_, _ = c.Write([]byte("x"))
		_ = at.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, _, err := at.ReadFrom(b); err == nil {
			came = true
			break
		}
	}
	if came == want {
		t.Errorf("udp/%s: denied %t, want %t", port, !came, want)
	}
	if ctx.Err() != nil {
		t.Fatal(ctx.Err())
	}
}

// A new instance of nat takes the sessions of the former one over: two clients with the same port, of which the second got another one at the pool, talk on after a
// restart, whoever speaks first.
func TestConnectionsThroughNATOutliveAnUpgrade(t *testing.T) {
	const other = "10.9.0.11"
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			document := func(env string) string {
				return strings.Replace(r.Endpoints(), "address: "+rig.AliceAddr+"/24}", "address: "+rig.AliceAddr+"/24, addresses: ["+other+"/24]}", 1) + `
functions:
  nat: {image: nat, config: {pool: ["10.9.0.100"], clients: [10.9.0.1/32, ` + other + `/32]}` + env + `}
chains:
  c: nat
policies:
  p: {from: alice, to: bob, match: [all], chain: c, symmetric: true}
`
			}
			r.MustApply(ctx, t, document(""))
			rig.Serve(t, r.Bob(), rig.BobAddr+":7000", rig.Echo)
			first := converse(ctx, t, r.Alice(), rig.AliceAddr+":40000", rig.BobAddr+":7000")
			first.goesOn(ctx, t, "the first connection")
			second := converse(ctx, t, r.Alice(), other+":40000", rig.BobAddr+":7000")
			second.goesOn(ctx, t, "the second connection")
			before := pidsOf(ctx, t, r, "nat")
			for i := range 3 {
				first.turn.Lock() // the second one speaks first, and without the state would get the first one's port
				if i == 1 {
					r.MustApply(ctx, t, document(", env: {A: b}"))
				} else if _, err := r.Weir(ctx, "function", "restart", "nat"); err != nil {
					t.Fatal(err)
				}
				second.goesOn(ctx, t, "the second connection after a change")
				first.turn.Unlock()
				first.goesOn(ctx, t, "the first connection after a change")
				after := pidsOf(ctx, t, r, "nat")
				if after["nat"] == before["nat"] {
					t.Errorf("change %d: the function was not made anew", i)
				}
				before = after
			}
			if events, err := r.Weir(ctx, "get", "events"); err != nil || strings.Contains(events, "StateLost") {
				t.Errorf("%s, %v", events, err)
			}
		})
	}
}
