package catalogue

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

const (
	alice6 = "fd00:9::1"
	bob6   = "fd00:9::2"
)

// TestSuricataInAChain: between two ports a rule drops the connection that has what it looks for, by IPv4 and IPv6, and an event tells of it within seconds;
// the rest passes, whole segments of local senders among it. Other rules are in force without the end of a connection. If Suricata dies, nothing passes, and
// it is started again.
func TestSuricataInAChain(t *testing.T) {
	t.Parallel()
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			showLogs(t, r, "ips")
			document := func(word string) string {
				return suricata(r, `
  ips:
    image: ids
    on_fail: drop
    config:
      rules: |
        drop tcp any any -> any any (msg:"evil word"; content:"`+word+`"; sid:1000001; priority:1;)
        alert icmp any any -> any any (msg:"somebody pings"; itype:8; sid:1000002;)
        alert icmpv6 any any -> any any (msg:"somebody pings by IPv6"; itype:128; sid:1000003;)
`, "ips")
			}
			r.MustApply(ctx, t, document("evil-word"))
			rig.Serve(t, netns.Path(r.Bob()), ":"+echoPort, rig.Echo)
			for _, addr := range []string{rig.BobAddr, bob6} {
				if got := say(t, r.Alice(), addr, "a good word"); got != "a good word" {
					t.Errorf("%s: what no rule drops came back as %q", addr, got)
				}
				if got := say(t, r.Alice(), addr, "an evil-word"); got != "" {
					t.Errorf("%s: what a rule drops came back: %q", addr, got)
				}
				if _, err := r.Ping(ctx, r.Alice(), addr, 3, "0.1"); err != nil {
					t.Error(err)
				}
			}
			told(ctx, t, r, "IntrusionBlocked", `sid 1000001 "evil word", severity 1: TCP `)
			told(ctx, t, r, "IntrusionAlert", `sid 1000002 "somebody pings", severity 3: ICMP 10.9.0.1 -> 10.9.0.2`)
			told(ctx, t, r, "IntrusionAlert", `sid 1000003 "somebody pings by IPv6", severity 3: IPv6-ICMP fd00:9::1 -> fd00:9::2`)
			if bits, err := stream(ctx, r, rig.BobAddr); err != nil || bits < 10e6 {
				t.Errorf("a stream of large segments: %g bit/s, %v", bits, err)
			}

			// Another rule; a connection from before goes on.
			c := dial(t, r.Alice(), rig.BobAddr)
			r.MustApply(ctx, t, document("other-word"))
			if got := exchange(c, "still there"); got != "still there" {
				t.Errorf("a connection from before the change: %q", got)
			}
			rig.Eventually(ctx, t, "the new rule drops in it, too", func() (bool, string) {
				got := exchange(c, "an other-word")
				return got == "", got
			})
			if got := say(t, r.Alice(), rig.BobAddr, "an evil-word"); got != "an evil-word" {
				t.Errorf("what only the former rule dropped came back as %q", got)
			}

			// A rule that is none changes nothing, and the reason is told.
			short, cancel := context.WithTimeout(ctx, 40*time.Second)
			defer cancel()
			_, err := r.Apply(short, strings.Replace(document("x"), "drop tcp", "drop nonsense", 1), "--timeout", "15s")
			if err == nil || !strings.Contains(err.Error(), "nonsense") {
				t.Errorf("a rule that is none: %v", err)
			}
			if got := say(t, r.Alice(), rig.BobAddr, "an other-word"); got != "" {
				t.Errorf("while it is refused: %q came back", got)
			}
			r.MustApply(ctx, t, document("other-word"))

			// Suricata alone is killed.
			before := started(ctx, t, r, "ips")
			if _, err := r.Weir(ctx, "function", "exec", "ips", "--", "sh", "-c", `for p in /proc/[0-9]*; do case $(cat $p/comm) in [Ss]uricata*) kill -9 ${p#/proc/};; esac; done`); err != nil {
				t.Logf("exec: %v", err) // the function may end before it answers
			}
			rig.Eventually(ctx, t, "the function is started again", func() (bool, string) {
				var f api.Function
				err := r.Get(ctx, &f, "function", "ips")
				return err == nil && f.Status.Restarts > before.Status.Restarts && f.Status.State == api.FunctionStarted, fmt.Sprint(f.Status, err)
			})
			rig.Eventually(ctx, t, "traffic passes again", func() (bool, string) {
				got := say(t, r.Alice(), rig.BobAddr, "a good word")
				return got == "a good word", got
			})
			if got := say(t, r.Alice(), rig.BobAddr, "an other-word"); got != "" {
				t.Errorf("after a restart: %q came back", got)
			}
		})
	}
}

// TestSuricataBehindATap: it sees what passes, drops nothing and tells.
func TestSuricataBehindATap(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	showLogs(t, r, "watch")
	r.MustApply(ctx, t, suricata(r, `
  w: {image: wire}
  watch:
    image: ids-tap
    config:
      rules: |
        drop tcp any any -> any any (msg:"secret file"; content:"/secret"; sid:1000001; priority:2;)
`, "w | tap:watch"))
	rig.Serve(t, netns.Path(r.Bob()), ":"+echoPort, rig.Echo)
	for _, addr := range []string{rig.BobAddr, bob6} {
		// A tap is up when its process is; Suricata reads what comes a little later.
		rig.Eventually(ctx, t, "an event of "+addr, func() (bool, string) {
			const request = "GET /secret"
			if got := say(t, r.Alice(), addr, request); got != request {
				t.Errorf("behind a tap it stands in the way: %q", got)
			}
			return alerted(ctx, r, "IntrusionAlert", `sid 1000001 "secret file", severity 2: TCP `, " -> "+net.JoinHostPort(addr, echoPort))
		})
	}
}

// suricata is a document with some functions and all traffic between the stations in a chain.
func suricata(r *rig.Rig, functions, chain string) string {
	return fmt.Sprintf(`endpoints:
  alice: {netns: %s, interface: eth0, address: %s/24, addresses: ["%s/64"]}
  bob: {netns: %s, interface: eth0, address: %s/24, addresses: ["%s/64"]}
functions:%schains:
  c: %s
policies:
  p: {from: alice, to: bob, symmetric: true, chain: c}
`, r.Alice(), rig.AliceAddr, alice6, r.Bob(), rig.BobAddr, bob6, functions, chain)
}

// showLogs of a function if the test fails.
func showLogs(t *testing.T, r *rig.Rig, name string) {
	t.Cleanup(func() {
		if t.Failed() {
			out, err := r.Weir(context.Background(), "function", "logs", name)
			t.Logf("log of %s (%v):\n%s", name, err, out)
		}
	})
}

const echoPort = "7077"

func dial(t *testing.T, space, addr string) net.Conn {
	t.Helper()
	var c net.Conn
	err := netns.Do(netns.Path(space), func() (err error) {
		c, err = net.DialTimeout("tcp", net.JoinHostPort(addr, echoPort), 10*time.Second)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// exchange is what comes back; nothing within seconds: it was dropped.
func exchange(c net.Conn, text string) string {
	_ = c.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return ""
	}
	var got bytes.Buffer
	_, _ = io.CopyN(&got, c, int64(len(text)))
	return got.String()
}

// say something on a connection of its own.
func say(t *testing.T, space, addr, text string) string {
	t.Helper()
	c := dial(t, space, addr)
	defer c.Close()
	return exchange(c, text)
}

// told waits for an event.
func told(ctx context.Context, t *testing.T, r *rig.Rig, reason, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	rig.Eventually(ctx, t, "event "+reason+" "+text, func() (bool, string) { return alerted(ctx, r, reason, text) })
}

// alerted tells whether there is an event.
func alerted(ctx context.Context, r *rig.Rig, reason string, texts ...string) (bool, string) {
	var list struct {
		Items []api.Event `json:"items"`
	}
	err := r.Get(ctx, &list, "events")
	for _, e := range list.Items {
		if e.Reason == reason && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(e.Message, text) }) {
			return true, ""
		}
	}
	return false, fmt.Sprintf("%+v, %v", list.Items, err)
}

func started(ctx context.Context, t *testing.T, r *rig.Rig, name string) api.Function {
	t.Helper()
	var f api.Function
	if err := r.Get(ctx, &f, "function", name); err != nil || f.Status.State != api.FunctionStarted {
		t.Fatalf("%+v, %v", f.Status, err)
	}
	return f
}
