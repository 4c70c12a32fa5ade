package fabric

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

// bulk is packets enough to be settled, and large ones.
const bulk = 64 << 10

// stationsOf are v1 on h1, v2 on h2 and v3 on h3. Addressed endpoints declare their addresses, and have port security for them.
func stationsOf(b *bed, addressed bool) string {
	var s strings.Builder
	s.WriteString("endpoints:\n")
	for i := 1; i <= 3; i++ {
		fmt.Fprintf(&s, "  v%d: {host: h%d, netns: %s, interface: eth0", i, i, b.netns(fmt.Sprint("v", i)))
		if addressed {
			fmt.Fprintf(&s, ", address: 10.0.0.%d/24, addresses: [\"fd00::%d/64\"]", i, i)
		}
		s.WriteString("}\n")
	}
	return s.String()
}

// configure gives the stations the addresses that endpoints without addresses do not give them, and has them forget their neighbours.
func configure(b *bed) {
	b.t.Helper()
	for i := 1; i <= 3; i++ {
		for _, args := range []string{"addr replace 10.0.0.%d/24 dev eth0", "addr replace fd00::%d/64 dev eth0 nodad", "neigh flush dev eth0"} {
			if strings.Contains(args, "%d") {
				args = fmt.Sprintf(args, i)
			}
			if _, err := b.exec(fmt.Sprint("v", i), strings.Fields("ip "+args)...); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}

// A function may give packets addresses that no endpoint has, and answer ARP and neighbour discovery for these. An exhaustive policy of one endpoint
// takes them to it, whichever hosts the stations and the function are on, and whether endpoints declare addresses or not.
func TestFunctionsWithAddressesOfTheirOwnAcrossHosts(t *testing.T) {
	t.Parallel()
	b := newBed(t, "vxlan.yaml", func(text string) string { return text + "  v3: {agent: h3}\n" })
	for i := 1; i <= 3; i++ {
		if _, err := b.exec(fmt.Sprint("v", i), "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=0", "net.ipv6.conf.default.disable_ipv6=0"); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("a policy by addresses warns", func(t *testing.T) {
		b := b.in(t)
		b.apply(stationsOf(b, true) + `
functions:
  nat: {image: nat, host: h3, config: {pool: [10.0.0.100], clients: [10.0.0.1/32]}}
chains: {out: nat}
policies:
  translate: {from: v1, to: v2, match: [all], chain: out}
`)
		if c := b.policy("translate").Status.Conditions.Get(api.ConditionUnselected); c == nil || !strings.HasPrefix(c.Message, "function nat changes addresses") {
			t.Errorf("%+v", b.policy("translate").Status)
		}
	})
	for _, x := range []struct {
		name, host, policy, pool string
		addressed                bool
	}{
		{"nat of a client, on a third host", "h3", "from: v1", "10.0.0.100", true},
		{"nat of a server, on the client's host", "h1", "to: v2", "10.0.0.101", false},
		{"nat of a client, on the server's host", "h2", "from: v1", "10.0.0.102", false},
	} {
		t.Run(x.name, func(t *testing.T) {
			b := b.in(t)
			b.apply(stationsOf(b, x.addressed)+fmt.Sprintf(`
functions:
  nat: {image: nat, host: %s, config: {pool: [%s], clients: [10.0.0.1/32], forward: [{protocol: tcp, port: 8080, to: "10.0.0.1:80"}]}}
chains: {out: nat}
policies:
  translate: {%s, mode: exhaustive, chain: out}
`, x.host, x.pool, x.policy), "--prune")
			configure(b)
			echoes(t, b.netns("v1"), "10.0.0.1:80", bulk)
			echoes(t, b.netns("v2"), "10.0.0.2:7000", bulk)
			b.meets("v2", x.pool+":8080", func(mine, theirs string) bool { return theirs == mine }) // the server comes first: it has to ask where the pool is
			b.meets("v1", "10.0.0.2:7000", func(_, theirs string) bool { return strings.HasPrefix(theirs, x.pool+":") })
			b.reach("v1", "10.0.0.2")
			b.reach("v1", "fd00::2") // passes as it is
			b.reach("v2", "fd00::1")
			b.reach("v1", "10.0.0.3")
			b.reach("v3", "10.0.0.2")
			if p := b.policy("translate"); len(p.Status.Conditions) > 0 {
				t.Errorf("%+v", p.Status)
			}
		})
	}
	for _, x := range []struct {
		name, host string
		addressed  bool
	}{
		{"load-balancer on a third host", "h3", true},
		{"load-balancer on the client's host", "h1", false},
		{"load-balancer on a target's host", "h2", false},
	} {
		t.Run(x.name, func(t *testing.T) {
			b := b.in(t)
			b.apply(stationsOf(b, x.addressed)+fmt.Sprintf(`
functions:
  lb:
    image: load-balancer
    host: %s
    config:
      services:
        web: {address: 10.0.0.200, protocol: tcp, port: 80, check: {tcp: 7000}, targets: [{address: 10.0.0.2, port: 7000}, {address: 10.0.0.3, port: 7000}]}
        web6: {address: "fd00::200", protocol: tcp, port: 80, check: {tcp: 7000}, targets: [{address: "fd00::2", port: 7000}, {address: "fd00::3", port: 7000}]}
      health: {addresses: [10.0.0.201/24, "fd00::201/64"], interval: 200ms, timeout: 150ms, rise: 1, fall: 2}
chains: {balanced: lb}
policies:
  clients: {from: v1, mode: exhaustive, chain: balanced}
`, x.host), "--prune")
			configure(b)
			for _, at := range []string{"10.0.0.%d", "[fd00::%d]"} {
				echoes(t, b.netns("v2"), fmt.Sprintf(at, 2)+":7000", bulk)
				echoes(t, b.netns("v3"), fmt.Sprintf(at, 3)+":7000", bulk)
				virtual := fmt.Sprintf(at, 200) + ":80"
				b.await("both targets of "+virtual+" answer", func() (bool, string) {
					seen := map[string]int{}
					for range 8 {
						_, _, at, err := greeted(b.ctx, b.netns("v1"), virtual)
						if err != nil {
							return false, err.Error()
						}
						seen[at]++
					}
					return len(seen) == 2, fmt.Sprint(seen)
				})
				b.meets("v1", virtual, func(mine, theirs string) bool { return theirs == mine }) // targets see who the client is
			}
			b.reach("v1", "10.0.0.200")
			b.reach("v1", "fd00::200")
			b.reach("v1", "10.0.0.2")
			b.reach("v2", "fd00::1")
		})
	}
}

// The same in an OpenFlow network, whose stations Weir only sees: the policy may be at either end.
func TestANATInAnOpenFlowNetwork(t *testing.T) {
	t.Parallel()
	b := newBed(t, "fig2.yaml", nil)
	echoes(t, b.netns("vm1"), "10.0.0.1:80", bulk)
	echoes(t, b.netns("vm2"), "10.0.0.2:7000", bulk)
	for pool, policy := range map[string]string{"10.0.0.100": "from: vm1", "10.0.0.101": "to: vm2"} {
		b.apply(fmt.Sprintf(`
endpoints: {vm1: {address: 10.0.0.1/24}, vm2: {address: 10.0.0.2/24}}
functions:
  nat: {image: nat, config: {pool: [%s], clients: [10.0.0.1/32], forward: [{protocol: tcp, port: 8080, to: "10.0.0.1:80"}]}}
chains: {out: nat}
policies:
  translate: {%s, mode: exhaustive, chain: out}
`, pool, policy), "--prune")
		b.meets("vm2", pool+":8080", func(mine, theirs string) bool { return theirs == mine })
		b.meets("vm1", "10.0.0.2:7000", func(_, theirs string) bool { return strings.HasPrefix(theirs, pool+":") })
	}
}

// echoes tells each client its address and the server's, and sends so many bytes more.
func echoes(t *testing.T, space, addr string, more int) {
	t.Helper()
	rig.Serve(t, space, addr, func(c net.Conn) {
		_, _ = fmt.Fprintf(c, "%-100s", fmt.Sprint(c.RemoteAddr(), " ", c.LocalAddr(), " ", more))
		_, _ = c.Write(make([]byte, more))
	})
}

// greeted gives a client's address, the one that the server sees, and the server's.
func greeted(ctx context.Context, space, addr string) (mine, theirs, server string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var c net.Conn
	if err := netns.Do(space, func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, "tcp", addr); return err }); err != nil {
		return "", "", "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	text, err := io.ReadAll(c)
	if err != nil {
		return "", "", "", err
	}
	var more int
	if _, err := fmt.Sscan(string(text), &theirs, &server, &more); err != nil || len(text) != 100+more {
		return "", "", "", fmt.Errorf("%d bytes came: %q..., %w", len(text), text[:min(100, len(text))], err)
	}
	return c.LocalAddr().String(), theirs, server, nil
}

// meets waits until a station's connection arrives, and checks from which address.
func (b *bed) meets(from, addr string, right func(mine, theirs string) bool) {
	b.t.Helper()
	b.await(from+" reaches "+addr, func() (bool, string) {
		mine, theirs, _, err := greeted(b.ctx, b.netns(from), addr)
		if err == nil && !right(mine, theirs) {
			b.t.Fatalf("%s, from %s, is %s at %s", from, mine, theirs, addr)
		}
		return err == nil, fmt.Sprint(err)
	})
}
