package catalogue

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// TestConnectionsAreBalancedInAChain: the policy of its README between a client and two targets, by IPv4 and IPv6. Connections are spread by weight; one in flight
// outlives a changed configuration and a restart; a target that goes down gets no more and is told of; nobody else gets what is not for them.
func TestConnectionsAreBalancedInAChain(t *testing.T) {
	t.Parallel()
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			carol := r.Name + "-carol"
			if err := r.Namespace(carol); err != nil {
				t.Fatal(err)
			}
			document := r.DualEndpoints() + "  carol: {netns: " + carol + ", interface: eth0, address: 10.9.0.3/24, addresses: [\"2001:db8:9::3/64\"]}\n" + example(t, "load-balancer")
			r.MustApply(ctx, t, document)
			stop := map[string]func(){}
			for _, a := range []string{"10.9.0.2:8080", "[2001:db8:9::2]:8080"} {
				stop[a] = greet(t, r.Bob(), a)
			}
			for _, a := range []string{"10.9.0.3:8080", "[2001:db8:9::3]:8080"} {
				stop[a] = greet(t, carol, a)
			}
			for _, virtual := range []string{"10.9.0.100:80", "[2001:db8:9::100]:80"} {
				rig.Eventually(ctx, t, "both targets of "+virtual+" are up", func() (bool, string) {
					seen := spread(ctx, r.Alice(), virtual, 20)
					return len(seen) == 2, fmt.Sprint(seen)
				})
				seen := spread(ctx, r.Alice(), virtual, 120)
				first := 0
				for who, n := range seen {
					if strings.Contains(who, "0.2:") || strings.Contains(who, "::2]") {
						first += n
					}
				}
				if len(seen) != 2 || first < 55 || first > 105 {
					t.Errorf("120 connections to %s: %v: want two thirds at the first target", virtual, seen)
				}
			}
			if _, err := r.Ping(ctx, r.Alice(), "10.9.0.100", 3, "0.1"); err != nil {
				t.Errorf("ping of the virtual address: %v", err)
			}
			if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.1"); err != nil { // others' frames pass
				t.Errorf("ping of a target: %v", err)
			}
			c, who, err := reach(ctx, r.Alice(), "10.9.0.100:80")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if !strings.HasSuffix(who, " "+c.LocalAddr().String()) {
				t.Errorf("the target sees %q: want %s", who, c.LocalAddr())
			}
			r.MustApply(ctx, t, strings.Replace(document, "interval: 500ms", "interval: 400ms", 1))
			echo(t, c)
			if out, err := r.Weir(ctx, "function", "restart", "lb"); err != nil {
				t.Errorf("restart: %v\n%s", err, out)
			}
			echo(t, c)
			stop["10.9.0.2:8080"]()
			rig.Eventually(ctx, t, "a target that is down gets no connection", func() (bool, string) {
				seen := spread(ctx, r.Alice(), "10.9.0.100:80", 20)
				return len(seen) == 1 && seen["10.9.0.3:8080"] == 20, fmt.Sprint(seen)
			})
			rig.Eventually(ctx, t, "the operator is told", func() (bool, string) {
				out, err := r.Weir(ctx, "events")
				return err == nil && strings.Contains(out, "10.9.0.2 is down (tcp port 8080)"), out
			})
			rig.Eventually(ctx, t, "the function's numbers say so", func() (bool, string) {
				out, err := r.Weir(ctx, "describe", "function", "lb")
				_, down, _ := strings.Cut(out, `load_balancer_target_up{target="10.9.0.2 tcp port 8080"}`)
				_, up, _ := strings.Cut(out, `load_balancer_target_up{target="10.9.0.3 tcp port 8080"}`)
				return err == nil && strings.HasPrefix(strings.TrimSpace(down), "0 ") && strings.HasPrefix(strings.TrimSpace(up), "1 "), out
			})
			var f api.Function
			if err := r.Get(ctx, &f, "function", "lb"); err != nil || f.Status.State != api.FunctionStarted {
				t.Errorf("%+v, %v", f.Status, err)
			}
		})
	}
}

// greet says to each client where it is and who the client is, and then sends back what comes, until it is stopped.
func greet(t *testing.T, space, addr string) (stop func()) {
	t.Helper()
	return greetAs(t, space, addr, "")
}

// greetAs says who it is instead of where; empty: where.
func greetAs(t *testing.T, space, addr, who string) (stop func()) {
	t.Helper()
	var l net.Listener
	if err := netns.Do(space, func() (err error) { l, err = net.Listen("tcp", addr); return err }); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				defer context.AfterFunc(t.Context(), func() { c.Close() })()
				_, _ = fmt.Fprintf(c, "%-100s", cmp.Or(who, c.LocalAddr().String())+" "+c.RemoteAddr().String())
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return func() { l.Close() }
}

// reach a place that greets.
func reach(ctx context.Context, space, addr string) (c net.Conn, who string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := netns.Do(space, func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, "tcp", addr); return err }); err != nil {
		return nil, "", err
	}
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	b := make([]byte, 100)
	if _, err := io.ReadFull(c, b); err != nil {
		c.Close()
		return nil, "", err
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c, strings.TrimSpace(string(b)), nil
}

// spread opens n connections, and counts which targets they reach.
func spread(ctx context.Context, space, addr string, n int) map[string]int {
	seen := map[string]int{}
	for range n {
		c, who, err := reach(ctx, space, addr)
		if err != nil {
			seen[err.Error()]++
			return seen
		}
		c.Close()
		target, _, _ := strings.Cut(who, " ")
		seen[target]++
	}
	return seen
}
