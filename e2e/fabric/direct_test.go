package fabric

import (
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/netns"
)

// Targets on other hosts answer by themselves: what they send to a client does not come to the function, whichever host it is on.
func TestTargetsAnswerDirectlyAcrossHosts(t *testing.T) {
	t.Parallel()
	b := newBed(t, "vxlan.yaml", func(text string) string { return text + "  v3: {agent: h3}\n" })
	const shared = `, port_security: {shared: [10.0.0.200, "fd00::200"]}`
	endpoints := stationsOf(b, true)
	for _, v := range []string{"v2", "v3"} {
		head, tail, _ := strings.Cut(endpoints, "  "+v+": ")
		line, rest, _ := strings.Cut(tail, "}\n")
		endpoints = head + "  " + v + ": " + line + shared + "}\n" + rest
	}
	for i := 1; i <= 3; i++ {
		if _, err := b.exec(fmt.Sprint("v", i), "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=0", "net.ipv6.conf.default.disable_ipv6=0", "net.ipv6.conf.lo.disable_ipv6=0"); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range []string{"v2", "v3"} {
		for _, argv := range []string{"ip link set lo up", "ip addr add 10.0.0.200/32 dev lo", "ip addr add fd00::200/128 dev lo nodad"} {
			if _, err := b.exec(v, strings.Fields(argv)...); err != nil {
				t.Fatal(err)
			}
		}
	}
	policies := func(more string) string {
		return "policies:\n  clients: {from: v1, mode: exhaustive, chain: balanced}\n" + more
	}
	const answers = `  answers: {from: 10.0.0.200, to: v1, symmetric: false, priority: 200, chain: answered}
  answers6: {from: "fd00::200", to: v1, symmetric: false, priority: 200, chain: answered}
`
	served := false
	whole := t
	for _, x := range []struct{ name, host string }{{"on a third host", "h3"}, {"on the client's host", "h1"}} {
		t.Run(x.name, func(t *testing.T) {
			b := b.in(t)
			document := endpoints + fmt.Sprintf(`
functions:
  lb:
    image: load-balancer
    host: %s
    config:
      services:
        web: {address: 10.0.0.200, protocol: tcp, port: 80, return: direct, check: {tcp: 7000}, targets: [{address: 10.0.0.2}, {address: 10.0.0.3}]}
        web6: {address: "fd00::200", protocol: tcp, port: 80, return: direct, check: {tcp: 7000}, targets: [{address: "fd00::2"}, {address: "fd00::3"}]}
      health: {addresses: [10.0.0.201/24, "fd00::201/64"], interval: 200ms, timeout: 150ms, rise: 1, fall: 2}
  seen: {image: monitor, host: %s}
chains:
  balanced: lb
  answered: tap:seen
`, x.host, x.host)
			b.apply(document+policies(answers), "--prune")
			configure(b)
			if !served {
				served = true
				for _, v := range []string{"v2", "v3"} {
					for _, a := range []string{"10.0.0.200", "fd00::200"} {
						names(whole, b.netns(v), net.JoinHostPort(a, "80"), v)
					}
					for _, a := range []string{"10.0.0.", "fd00::"} {
						names(whole, b.netns(v), net.JoinHostPort(a+v[1:], "7000"), v)
					}
				}
			}
			for _, a := range []string{"10.0.0.200", "fd00::200"} {
				b.await("both targets of "+a+" answer", func() (bool, string) {
					seen := map[string]int{}
					for range 20 {
						who, err := named(b, a)
						if err != nil {
							return false, err.Error()
						}
						seen[who]++
					}
					return slices.Equal(slices.Sorted(maps.Keys(seen)), []string{"v2", "v3"}), fmt.Sprint(seen)
				})
			}
			number := func(name string) float64 {
				for _, line := range strings.Split(b.must("describe", "function", "lb"), "\n") {
					if _, rest, ok := strings.Cut(line, name); ok {
						if f := strings.Fields(rest); len(f) > 0 {
							if n, err := strconv.ParseFloat(f[0], 64); err == nil {
								return n
							}
						}
					}
				}
				return -1
			}
			b.await("the function's numbers are of now", func() (bool, string) {
				n := number(`load_balancer_rewritten_packets_total{direction="up"}`)
				return n >= 40, fmt.Sprint(n)
			})
			t.Logf("rewritten %v, answers %v", number(`load_balancer_rewritten_packets_total{direction="up"}`), number("load_balancer_direct_answers_total"))
			if n := number("load_balancer_direct_answers_total"); n != 0 {
				t.Errorf("%v answers came to the function", n)
			}
			b.apply(document+policies(""), "--prune") // now they come
			b.await("answers that come to the function are counted", func() (bool, string) {
				_, err := named(b, "10.0.0.200")
				n := number("load_balancer_direct_answers_total")
				return n > 0 && err == nil, fmt.Sprint(n, err)
			})
		})
	}
}

// names says who it is, and sends some bytes more, until the test ends.
func names(t *testing.T, space, addr, who string) {
	t.Helper()
	var l net.Listener
	if err := netns.Do(space, func() (err error) { l, err = net.Listen("tcp", addr); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = c.Write(append([]byte(who), make([]byte, bulk)...))
			}()
		}
	}()
}

func named(b *bed, a string) (string, error) {
	var c net.Conn
	if err := netns.Do(b.netns("v1"), func() (err error) {
		c, err = net.DialTimeout("tcp", net.JoinHostPort(a, "80"), 2*time.Second)
		return err
	}); err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	text, err := io.ReadAll(c)
	if err != nil || len(text) != 2+bulk {
		return "", fmt.Errorf("%d bytes came: %w", len(text), err)
	}
	return string(text[:2]), nil
}
