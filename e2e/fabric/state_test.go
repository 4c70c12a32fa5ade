package fabric

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// translated: what v1 sends passes a nat with one address, on the host that %[2]s says.
const translated = `
endpoints:
  v1: {host: h1, netns: %[1]s/v1, interface: eth0}
  v2: {host: h2, netns: %[1]s/v2, interface: eth0}
functions:
  nat: {image: nat, host: %[2]s, config: {pool: [10.0.0.100], clients: [10.0.0.1/32, 10.0.0.11/32]}}
chains:
  out: nat
policies:
  translate: {from: v1, mode: exhaustive, chain: out}
`

// A nat is moved to another host and takes its translations along: connections go on. Two clients use the same port, so one of them has another one in the pool; it speaks
// first after the move, and a nat without state would give it the port of the other one.
func TestAMovedFunctionKeepsItsState(t *testing.T) {
	t.Parallel()
	b := newBed(t, "vxlan.yaml", func(text string) string { return strings.Replace(text, "  h3: {}\n", "", 1) })
	document := func(host string) string { return fmt.Sprintf(translated, "/run/weir-testbed/"+b.name+"/netns", host) }
	b.apply(document("h1"))
	for node, addresses := range map[string][]string{"v1": {"10.0.0.1/24", "10.0.0.11/24"}, "v2": {"10.0.0.2/24"}} {
		for _, a := range addresses {
			if _, err := b.exec(node, "ip", "addr", "add", a, "dev", "eth0"); err != nil {
				t.Fatal(err)
			}
		}
	}
	rig.Serve(t, b.netns("v2"), "10.0.0.2:7000", func(c net.Conn) {
		_, _ = fmt.Fprintf(c, "%-40s", c.RemoteAddr())
		rig.Echo(c)
	})
	first, second := b.connect("10.0.0.1:4000", "10.0.0.2:7000"), b.connect("10.0.0.11:4000", "10.0.0.2:7000")
	if first.who != "10.0.0.100:4000" || second.who == first.who || !strings.HasPrefix(second.who, "10.0.0.100:") {
		t.Fatalf("the server sees %s and %s: want 10.0.0.100:4000 and another port there", first.who, second.who)
	}
	for _, to := range []string{"h2", "h1"} {
		b.apply(document(to))
		b.await("the nat is up at "+to+" alone", func() (bool, string) {
			f := b.placedFunction("nat")
			others := b.host(map[string]string{"h1": "h2", "h2": "h1"}[to]).Status.Functions
			return f.Status.Healthy && f.Status.Host == to && others == 0, fmt.Sprintf("%s: %s; functions at the other host: %d", f.Status.Host, f.Status.Message, others)
		})
		for _, c := range []conversation{second, first} {
			if err := c.echo(); err != nil {
				t.Errorf("at %s: %v", to, err)
			}
		}
	}
	if n := b.raised("StateLost"); n > 0 {
		t.Errorf("%d events say that state is lost", n)
	}
}

// conversation is a connection to what echoes.
type conversation struct {
	net.Conn
	who string // we are there
}

func (b *bed) connect(from, to string) conversation {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	local, err := net.ResolveTCPAddr("tcp4", from)
	if err != nil {
		b.t.Fatal(err)
	}
	var c net.Conn
	err = netns.Do(b.netns("v1"), func() (err error) {
		c, err = (&net.Dialer{LocalAddr: local}).DialContext(ctx, "tcp4", to)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	who := make([]byte, 40)
	if _, err := io.ReadFull(c, who); err != nil {
		b.t.Fatal(err)
	}
	return conversation{c, strings.TrimSpace(string(who))}
}

func (c conversation) echo() error {
	said := []byte("is there anybody?")
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write(said); err != nil {
		return err
	}
	got := make([]byte, len(said))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != string(said) {
		return fmt.Errorf("%s to %s: %q, %v", c.LocalAddr(), c.RemoteAddr(), got, err)
	}
	return nil
}
