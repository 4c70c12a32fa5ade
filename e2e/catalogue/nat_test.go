package catalogue

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// TestNATInAChain: the policy of its README between two stations. The server sees the pool, a port is forwarded, IPv6 passes as it is, streams are as fast as they may be, and
// a connection outlives a changed configuration.
func TestNATInAChain(t *testing.T) {
	t.Parallel()
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			carol := r.Name + "-carol" // a station that has no part in it
			if err := r.Namespace(carol); err != nil {
				t.Fatal(err)
			}
			document := r.DualEndpoints() + "  carol: {netns: " + carol + ", interface: eth0, address: 10.9.0.3/24}\n" + example(t, "nat")
			r.MustApply(ctx, t, document)
			elsewhere, err := rig.Listen(carol, "eth0")
			if err != nil {
				t.Fatal(err)
			}
			defer elsewhere.Close()
			echoes(t, r.Bob(), "10.9.0.2:7000")
			echoes(t, r.Bob(), net.JoinHostPort(ipv6.bob, "7000"))
			echoes(t, r.Alice(), "10.9.0.1:80")
			out, who := connect(ctx, t, r.Alice(), "10.9.0.2:7000")
			if !strings.HasPrefix(who, "10.9.0.10") {
				t.Errorf("the server sees %s: want an address of the pool", who)
			}
			in, who := connect(ctx, t, r.Bob(), "10.9.0.100:8080")
			if who != in.LocalAddr().String() {
				t.Errorf("behind a forwarded port the client is %s: want %s", who, in.LocalAddr())
			}
			if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 5, "0.1"); err != nil {
				t.Errorf("ping: %v", err)
			}
			if _, err := r.Ping(ctx, r.Alice(), ipv6.bob, 5, "0.1"); err != nil {
				t.Errorf("ping by IPv6: %v", err)
			}
			if six, who := connect(ctx, t, r.Alice(), net.JoinHostPort(ipv6.bob, "7000")); who != six.LocalAddr().String() {
				t.Errorf("by IPv6, which is not translated, the server sees %s: want %s", who, six.LocalAddr())
			}
			rate, err := stream(ctx, r, rig.BobAddr)
			if err != nil {
				t.Error(err)
			}
			t.Logf("%.2f Gbit/s", rate/1e9)
			quick, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			if c, err := open(quick, r.Bob(), "10.9.0.1:80"); err == nil {
				c.Close()
				t.Error("a client can be reached at its own address")
			}
			document = strings.Replace(document, "port: 8080", "port: 8081", 1)
			r.MustApply(ctx, t, document)
			echo(t, out)
			again, _ := connect(ctx, t, r.Bob(), "10.9.0.100:8081")
			echo(t, again)
			r.MustApply(ctx, t, strings.Replace(document, "from: alice", "to: bob", 1)) // at the other end
			echo(t, out)
			echo(t, again)
			if _, who := connect(ctx, t, r.Alice(), "10.9.0.2:7000"); !strings.HasPrefix(who, "10.9.0.10") {
				t.Errorf("with the policy at the server, it sees %s: want an address of the pool", who)
			}
			for _, f := range elsewhere.Incoming("") {
				if f.Data[0]&1 == 0 {
					t.Errorf("carol gets what is for others: % x", f.Data[:60])
					break
				}
			}
			var f api.Function
			if err := r.Get(ctx, &f, "function", "nat"); err != nil || f.Status.Restarts != 0 || f.Status.State != api.FunctionStarted {
				t.Errorf("%+v, %v", f.Status, err)
			}
		})
	}
}

// echoes says to each client who it is, and then sends back what comes.
func echoes(t *testing.T, space, addr string) {
	t.Helper()
	rig.Serve(t, space, addr, func(c net.Conn) {
		_, _ = fmt.Fprintf(c, "%-40s", c.RemoteAddr())
		rig.Echo(c)
	})
}

func open(ctx context.Context, space, addr string) (c net.Conn, err error) {
	err = netns.Do(space, func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, "tcp", addr); return err })
	return c, err
}

// connect to what echoes; who we are there.
func connect(ctx context.Context, t *testing.T, space, addr string) (net.Conn, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := open(ctx, space, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 40)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	return c, strings.TrimSpace(string(b))
}

func echo(t *testing.T, c net.Conn) {
	t.Helper()
	b := []byte("is there anybody?")
	_, err := c.Write(b)
	got := make([]byte, len(b))
	if err == nil {
		_, err = io.ReadFull(c, got)
	}
	if err != nil || string(got) != string(b) {
		t.Errorf("%s to %s: %q, %v", c.LocalAddr(), c.RemoteAddr(), got, err)
	}
}
