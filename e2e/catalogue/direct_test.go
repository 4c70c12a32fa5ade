package catalogue

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

const (
	directCarol  = "10.9.0.3"
	directCarol6 = "2001:db8:9::3"
	directPort   = "80"   // of TCP; UDP has 53
	trialPort    = "8080" // by which targets are tried
)

var directVirtual = []string{"10.9.0.100", "2001:db8:9::100"}

// TestTargetsAnswerDirectly: the second example of the load-balancer's README. Real clients and two targets that share the virtual addresses, TCP and UDP, IPv4 and IPv6. Both
// targets get connections, and answer by themselves: what they send does not come to the function. One that goes down gets none. A target that is not silent misleads nobody, and
// one that may not use the virtual address sends nothing from it.
func TestTargetsAnswerDirectly(t *testing.T) {
	t.Parallel()
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			carol := r.Name + "-carol"
			if err := r.Namespace(carol); err != nil {
				t.Fatal(err)
			}
			document := nthExample(t, "load-balancer", 2)
			for name, space := range map[string]string{"alice": r.Alice(), "bob": r.Bob(), "carol": carol} {
				document = strings.Replace(document, "netns: "+name, "netns: "+space, 1)
			}
			d := &directly{t: t, r: r, carol: carol, stop: map[string][]func(){}}
			d.run(ctx, "", "ip", "-n", r.Bob(), "link", "set", "lo", "up")
			d.run(ctx, "", "ip", "-n", carol, "link", "set", "lo", "up")
			r.MustApply(ctx, t, document)
			d.serve(ctx, "bob", r.Bob(), rig.BobAddr, rig.BobAddr6)
			d.serve(ctx, "carol", carol, directCarol, directCarol6)
			for _, sysctl := range []string{"arp_ignore", "arp_announce"} {
				want := map[string]string{"arp_ignore": "1", "arp_announce": "2"}[sysctl]
				if got := strings.TrimSpace(d.run(ctx, carol, "cat", "/proc/sys/net/ipv4/conf/eth0/"+sysctl)); got != want {
					t.Errorf("%s of a target's interface is %s: want %s", sysctl, got, want)
				}
			}
			d.all(ctx, "bob", "carol")
			d.answersDoNotPass(ctx)
			if sw == "ebpf" {
				d.settles(ctx)
			}
			for _, a := range directVirtual {
				if _, err := r.Ping(ctx, r.Alice(), a, 3, "0.1"); err != nil {
					t.Errorf("ping of %s: %v", a, err)
				}
			}
			d.nobodyIsMisled(ctx)
			for _, stop := range d.stop["bob"] {
				stop()
			}
			d.all(ctx, "carol")
			// Where a policy leads answers back, they come, as they are; and are counted.
			head, _, _ := strings.Cut(document, "policies:")
			r.MustApply(ctx, t, head+"policies:\n  clients: {from: alice, mode: exhaustive, chain: balanced}\n", "--prune")
			d.all(ctx, "carol")
			rig.Eventually(ctx, t, "answers that come to the function are counted", func() (bool, string) {
				n := d.number(ctx, "load_balancer_direct_answers_total")
				return n > 0, fmt.Sprint(n)
			})
			// The README's other policies lead them past it again.
			r.MustApply(ctx, t, merged(head, nthExample(t, "load-balancer", 3)), "--prune")
			d.passBy(ctx)
			r.MustApply(ctx, t, document, "--prune")
			d.all(ctx, "carol")
			// Without the right to it, nothing leaves from the virtual address.
			r.MustApply(ctx, t, strings.ReplaceAll(document, `, port_security: {shared: [10.9.0.100, "2001:db8:9::100"]}`, ""), "--prune")
			before := d.port(ctx, "endpoint/carol").Refused["source"]
			for _, a := range directVirtual {
				if c, who, err := reach(ctx, r.Alice(), net.JoinHostPort(a, directPort)); err == nil {
					c.Close()
					t.Errorf("%s answers from %s, which it may not use", who, a)
				}
			}
			rig.Eventually(ctx, t, "what it sends is refused", func() (bool, string) {
				p := d.port(ctx, "endpoint/carol")
				return p.Refused["source"] > before, fmt.Sprint(p.Refused)
			})
		})
	}
}

// directly is the bed of that test.
type directly struct {
	t     *testing.T
	r     *rig.Rig
	carol string
	stop  map[string][]func() // what answers trials, by target
}

func (d *directly) run(ctx context.Context, space string, argv ...string) string {
	d.t.Helper()
	out, err := d.r.Run(ctx, space, argv...)
	if err != nil {
		d.t.Fatal(argv, err)
	}
	return out
}

// serve makes a target: the virtual addresses stand on lo, and both services answer there.
func (d *directly) serve(ctx context.Context, name, space string, own ...string) {
	d.t.Helper()
	for i, a := range directVirtual {
		d.run(ctx, space, append([]string{"ip", "addr", "add", a + []string{"/32", "/128"}[i], "dev", "lo"}, [][]string{nil, {"nodad"}}[i]...)...)
		greetAs(d.t, space, net.JoinHostPort(a, directPort), name)
		var l net.PacketConn
		if err := netns.Do(space, func() (err error) { l, err = net.ListenPacket("udp", net.JoinHostPort(a, "53")); return err }); err != nil {
			d.t.Fatal(err)
		}
		d.t.Cleanup(func() { l.Close() })
		go func() {
			b := make([]byte, 65536)
			for {
				n, from, err := l.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = l.WriteTo(append([]byte(name+" "), b[:n]...), from)
			}
		}()
	}
	for _, a := range own {
		d.stop[name] = append(d.stop[name], greet(d.t, space, net.JoinHostPort(a, trialPort)))
	}
}

// ask a service of UDP; who answers.
func (d *directly) ask(c net.Conn, n int) (who string, err error) {
	want := []byte("question " + strconv.Itoa(n))
	if _, err := c.Write(want); err != nil {
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	b := make([]byte, 200)
	got, err := c.Read(b)
	if err != nil {
		return "", err
	}
	who, rest, _ := strings.Cut(string(b[:got]), " ")
	if rest != string(want) {
		return "", fmt.Errorf("%q comes back for %q", rest, want)
	}
	return who, nil
}

func (d *directly) dial(ctx context.Context, addr string) net.Conn {
	d.t.Helper()
	var c net.Conn
	if err := netns.Do(d.r.Alice(), func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, "udp", addr); return err }); err != nil {
		d.t.Fatal(err)
	}
	return c
}

// all waits until every service is served by these targets, and by no other.
func (d *directly) all(ctx context.Context, want ...string) {
	d.t.Helper()
	for _, a := range directVirtual {
		rig.Eventually(ctx, d.t, fmt.Sprintf("TCP of %s is served by %s", a, want), func() (bool, string) {
			seen := spread(ctx, d.r.Alice(), net.JoinHostPort(a, directPort), 30)
			return slices.Equal(slices.Sorted(maps.Keys(seen)), want), fmt.Sprint(seen)
		})
		rig.Eventually(ctx, d.t, fmt.Sprintf("UDP of %s is served by %s", a, want), func() (bool, string) {
			seen := map[string]int{}
			for i := range 30 {
				c := d.dial(ctx, net.JoinHostPort(a, "53"))
				who, err := d.ask(c, i)
				c.Close()
				if err != nil {
					return false, fmt.Sprint(seen, err)
				}
				seen[who]++
			}
			return slices.Equal(slices.Sorted(maps.Keys(seen)), want), fmt.Sprint(seen)
		})
	}
}

// answersDoNotPass: many datagrams and their answers, and bytes of TCP both ways. The function gets the questions, and from its other side a few trials' answers.
func (d *directly) answersDoNotPass(ctx context.Context) {
	d.t.Helper()
	const questions, size = 2000, 1 << 20
	in, out := d.port(ctx, "function/lb/in").Tx.Packets, d.port(ctx, "function/lb/out").Tx.Packets
	got := d.port(ctx, "endpoint/alice").Tx.Packets
	begin := time.Now()
	for _, a := range directVirtual {
		c := d.dial(ctx, net.JoinHostPort(a, "53"))
		for i := range questions {
			if _, err := d.ask(c, i); err != nil {
				d.t.Fatalf("%s, question %d: %v", a, i, err)
			}
		}
		c.Close()
		stream, _, err := reach(ctx, d.r.Alice(), net.JoinHostPort(a, directPort))
		if err != nil {
			d.t.Fatal(err)
		}
		_ = stream.SetDeadline(time.Now().Add(30 * time.Second))
		want := bytes.Repeat([]byte("01234567"), size/8)
		go func() { _, _ = stream.Write(want) }()
		back := make([]byte, size)
		if _, err := io.ReadFull(stream, back); err != nil || !bytes.Equal(back, want) {
			d.t.Errorf("%s: other bytes come back: %v", a, err)
		}
		stream.Close()
	}
	took := time.Since(begin)
	in0, got0 := in, got
	rig.Eventually(ctx, d.t, "the switch's numbers are of now", func() (bool, string) { // Open vSwitch's are some hundred milliseconds old
		in, got = d.port(ctx, "function/lb/in").Tx.Packets-in0, d.port(ctx, "endpoint/alice").Tx.Packets-got0
		return in >= 2*questions && got >= 2*questions, fmt.Sprint(in, got)
	})
	out = d.port(ctx, "function/lb/out").Tx.Packets - out
	took = max(took, time.Since(begin))
	rig.Eventually(ctx, d.t, "the function's numbers are of now", func() (bool, string) {
		n := d.number(ctx, `load_balancer_rewritten_packets_total{direction="up"}`)
		return n >= 2*questions, fmt.Sprint(n)
	})
	answers := d.number(ctx, "load_balancer_direct_answers_total")
	d.t.Logf("in %v: %d packets to the client, %d of the client's to the function, %d to its other port, %v of them answers", took.Round(time.Millisecond), got, in, out, answers)
	// A trial of one of two targets by two families every 0.5 s is some 5 packets; there is ARP, too.
	most := uint64(100 + 100*took.Seconds())
	if out > most || answers != 0 {
		d.t.Errorf("want at most %d to its other port, and no answer", most)
	}
}

// merged are two documents whose sections hold other names.
func merged(one, other string) string {
	sections, order := map[string]string{}, []string(nil)
	for _, line := range strings.SplitAfter(one+other, "\n") {
		if name := strings.TrimSuffix(line, ":\n"); name != line && line[0] != ' ' {
			if _, there := sections[name]; there {
				order = slices.DeleteFunc(order, func(s string) bool { return s == name })
			}
			order = append(order, name)
			continue
		}
		sections[order[len(order)-1]] += line
	}
	var text strings.Builder
	for _, name := range order {
		text.WriteString(name + ":\n" + sections[name])
	}
	return text.String()
}

// passBy: answers do not come to the function any more.
func (d *directly) passBy(ctx context.Context) {
	d.t.Helper()
	const more = 500
	const rewritten, answers = `load_balancer_rewritten_packets_total{direction="up"}`, "load_balancer_direct_answers_total"
	d.all(ctx, "carol")
	c := d.dial(ctx, net.JoinHostPort(directVirtual[0], "53"))
	defer c.Close()
	seen := [2]float64{}
	for round := range seen { // the numbers are of some seconds ago: the first round tells them from those of the policies before
		up := d.number(ctx, rewritten)
		for i := range more {
			if _, err := d.ask(c, i); err != nil {
				d.t.Fatal(err)
			}
		}
		rig.Eventually(ctx, d.t, "the function's numbers are of now", func() (bool, string) {
			n := d.number(ctx, rewritten)
			return n >= up+more, fmt.Sprint(up, n)
		})
		seen[round] = d.number(ctx, answers)
	}
	if seen[1] != seen[0] {
		d.t.Errorf("%v of %d answers came to the function", seen[1]-seen[0], more)
	}
}

// settles: the switch changes the MAC address of an open connection's packets itself.
func (d *directly) settles(ctx context.Context) {
	d.t.Helper()
	for _, a := range directVirtual {
		c, _, err := reach(ctx, d.r.Alice(), net.JoinHostPort(a, directPort))
		if err != nil {
			d.t.Fatal(err)
		}
		before := d.port(ctx, "function/lb/in").Settled.Packets
		rig.Eventually(ctx, d.t, "packets of an open connection to "+a+" pass the function by", func() (bool, string) {
			for range 20 {
				echo(d.t, c)
			}
			n := d.port(ctx, "function/lb/in").Settled.Packets - before
			return n >= 100, fmt.Sprint(n)
		})
		c.Close()
	}
}

// nobodyIsMisled: carol's kernel is told to speak by ARP for all its addresses. The client still finds the function.
func (d *directly) nobodyIsMisled(ctx context.Context) {
	d.t.Helper()
	where := func() string {
		known := strings.Fields(d.run(ctx, d.r.Alice(), "ip", "neigh", "show", "to", directVirtual[0]))
		if i := slices.Index(known, "lladdr"); i >= 0 {
			return known[i+1]
		}
		return ""
	}
	before, refused := where(), d.port(ctx, "endpoint/carol").Refused["arp"]
	rig.Eventually(ctx, d.t, "ARP that tells of the virtual address is refused", func() (bool, string) {
		for _, sysctl := range []string{"arp_ignore", "arp_announce"} { // Weir puts them right now and then
			d.run(ctx, d.carol, "sysctl", "-q", "-w", "net.ipv4.conf.eth0."+sysctl+"=0")
		}
		d.run(ctx, d.carol, "ip", "neigh", "flush", "dev", "eth0")
		_, _ = d.r.Ping(ctx, d.carol, rig.AliceAddr, 3, "0.1", "-I", directVirtual[0]) // it asks for alice in the name of the virtual address
		p := d.port(ctx, "endpoint/carol")
		return p.Refused["arp"] > refused, fmt.Sprint(p.Refused)
	})
	if after := where(); before == "" || after != before {
		d.t.Errorf("the client takes the virtual address to be at %q: was %q", after, before)
	}
	for sysctl, n := range map[string]string{"arp_ignore": "1", "arp_announce": "2"} {
		d.run(ctx, d.carol, "sysctl", "-q", "-w", "net.ipv4.conf.eth0."+sysctl+"="+n)
	}
}

func (d *directly) port(ctx context.Context, name string) api.PortCounters {
	d.t.Helper()
	var all api.Counters
	if err := d.r.Get(ctx, &all, "ports"); err != nil {
		d.t.Fatal(err)
	}
	for _, p := range all.Ports {
		if p.Name == name {
			return p
		}
	}
	d.t.Fatalf("no port %s", name)
	return api.PortCounters{}
}

// number that the function gives of itself; -1: none yet.
func (d *directly) number(ctx context.Context, name string) float64 {
	d.t.Helper()
	out, err := d.r.Weir(ctx, "describe", "function", "lb")
	if err != nil {
		d.t.Fatal(err, out)
	}
	for _, line := range strings.Split(out, "\n") {
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
