package catalogue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// TestDatagramsAreProcessedInAChain: the policy of its README between two stations. Datagrams to the function's address come to the server as new ones, by IPv4
// and IPv6, and all other frames pass; a restart and a changed configuration bring it back.
func TestDatagramsAreProcessedInAChain(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct{ sw, image string }{"ebpf": {"ebpf", "udp-forward"}, "ovs": {"ovs", "udp-forward"}, "socat": {"ebpf", "udp-forward-socat"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", x.sw}})
			document := r.DualEndpoints() + strings.Replace(example(t, "udp-forward"), "image: udp-forward", "image: "+x.image, 1)
			r.MustApply(ctx, t, document)
			arrives := func(at, to, from string) {
				t.Helper()
				rig.Eventually(ctx, t, at+" leads to "+to, func() (bool, string) {
					got, err := sentOn(ctx, r, at, to)
					return got == from, fmt.Sprint(got, err)
				})
			}
			arrives("10.9.0.9:7000", "10.9.0.2:7001", "10.9.0.9:7000")
			arrives("[2001:db8:9::9]:7000", "[2001:db8:9::2]:7001", "[2001:db8:9::9]:7000")
			lost := 0
			counting(func() {
				for range 50 {
					if got, err := sentOn(ctx, r, "10.9.0.9:7000", "10.9.0.2:7001"); got == "" {
						t.Logf("lost: %v", err)
						lost++
					}
				}
			})
			if lost > 0 {
				t.Errorf("%d of 50 datagrams are lost", lost)
			}
			for _, addr := range []string{"10.9.0.9", "10.9.0.2"} { // the function, and what it passes
				if _, err := r.Ping(ctx, r.Alice(), addr, 3, "0.1"); err != nil {
					t.Errorf("ping of %s: %v", addr, err)
				}
			}
			if out, err := r.Weir(ctx, "function", "restart", "relay"); err != nil {
				t.Errorf("restart: %v\n%s", err, out)
			}
			arrives("10.9.0.9:7000", "10.9.0.2:7001", "10.9.0.9:7000")
			rig.Eventually(ctx, t, "the function's numbers say that it has sent datagrams on", func() (bool, string) {
				out, err := r.Weir(ctx, "describe", "function", "relay")
				_, row, _ := strings.Cut(out, "udp_forward_forwarded_total")
				words := strings.Fields(row)
				return err == nil && len(words) > 0 && words[0] != "0", out
			})
			var f api.Function
			if err := r.Get(ctx, &f, "function", "relay"); err != nil || f.Status.State != api.FunctionStarted {
				t.Errorf("%+v, %v", f.Status, err)
			}
		})
	}
}

// sentOn sends a datagram from alice to a place, and tells who bob gets it from at another.
func sentOn(ctx context.Context, r *rig.Rig, at, to string) (from string, err error) {
	var l net.PacketConn
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := netns.Do(r.Bob(), func() (err error) { l, err = net.ListenPacket("udp", to); return err })
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(end) { // a program that another test starts may hold the socket of the last call until it is executed
			return "", err
		}
	}
	defer l.Close()
	var c net.Conn
	if err := netns.Do(r.Alice(), func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, "udp", at); return err }); err != nil {
		return "", err
	}
	defer c.Close()
	want := "from " + c.LocalAddr().String()
	if _, err := c.Write([]byte(want)); err != nil {
		return "", err
	}
	_ = l.SetReadDeadline(time.Now().Add(time.Second))
	b := make([]byte, 100)
	for {
		n, who, err := l.ReadFrom(b)
		if err != nil {
			return "", err
		}
		if string(b[:n]) == want {
			return who.String(), nil
		}
	}
}
