package rig

import (
	"context"
	"flag"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/netns"
)

// Stations of the scenarios: alice is 10.9.0.1, bob is 10.9.0.2. DualEndpoints have addresses of IPv6, too.
const (
	AliceAddr  = "10.9.0.1"
	BobAddr    = "10.9.0.2"
	AliceAddr6 = "2001:db8:9::1"
	BobAddr6   = "2001:db8:9::2"
)

// Alice and Bob are the stations' namespaces.
func (r *Rig) Alice() string { return r.Name + "-alice" }
func (r *Rig) Bob() string   { return r.Name + "-bob" }

// Endpoints is the part of a document that joins both stations.
func (r *Rig) Endpoints() string {
	return "endpoints:\n" +
		"  alice: {netns: " + r.Alice() + ", interface: eth0, address: " + AliceAddr + "/24}\n" +
		"  bob: {netns: " + r.Bob() + ", interface: eth0, address: " + BobAddr + "/24}\n"
}

// DualEndpoints is Endpoints with IPv6 beside IPv4.
func (r *Rig) DualEndpoints() string {
	return "endpoints:\n" +
		"  alice: {netns: " + r.Alice() + ", interface: eth0, address: " + AliceAddr + "/24, addresses: [\"" + AliceAddr6 + "/64\"]}\n" +
		"  bob: {netns: " + r.Bob() + ", interface: eth0, address: " + BobAddr + "/24, addresses: [\"" + BobAddr6 + "/64\"]}\n"
}

// ForTest is a running Weir with both stations' namespaces, taken down at the end of the test. The context bounds the test.
func ForTest(t *testing.T, o Options) (*Rig, context.Context) {
	t.Helper()
	r, ctx := Bare(t, o)
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	return r, ctx
}

// Bare is ForTest without starting the daemon.
func Bare(t *testing.T, o Options) (*Rig, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	t.Cleanup(cancel)
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("daemon log:\n%s", r.Log(60))
		}
		if err := r.Close(); err != nil {
			t.Errorf("take down: %v", err)
		}
	})
	for _, s := range []string{r.Alice(), r.Bob()} {
		if err := r.Namespace(s); err != nil {
			t.Fatal(err)
		}
	}
	return r, ctx
}

// MustApply applies a document or ends the test.
func (r *Rig) MustApply(ctx context.Context, t *testing.T, document string, args ...string) string {
	t.Helper()
	out, err := r.Apply(ctx, document, args...)
	if err != nil {
		t.Fatalf("apply: %v\n%s", err, document)
	}
	return out
}

// Eventually polls until ok or the context ends: often at first, and ten times a second in the end, for many a look is a process of its own.
func Eventually(ctx context.Context, t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	for pause := 20 * time.Millisecond; ; pause = min(pause*5/4, 100*time.Millisecond) {
		good, detail := ok()
		if good {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %s", what, detail)
		case <-time.After(pause):
		}
	}
}

// AtOnce runs a package's tests, so many of those that are parallel at the same time, if nobody says otherwise (-parallel). Go has as many as there are processors:
// too few for tests that wait for functions and clients more than they work.
func AtOnce(m *testing.M, n int) int {
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err) // no test program
	}
	return m.Run()
}

// Serve accepts TCP connections at an address in a namespace until the test ends; then they are closed.
func Serve(t testing.TB, space, addr string, serve func(net.Conn)) net.Addr {
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
				serve(c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr()
}

// Echo sends back what comes.
func Echo(c net.Conn) { _, _ = io.Copy(c, c) }
