package catalogue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// example is the YAML of a function's README.
func example(t *testing.T, function string) string {
	t.Helper()
	return nthExample(t, function, 1)
}

// nthExample is the n-th one, from 1.
func nthExample(t *testing.T, function string, n int) string {
	t.Helper()
	top, err := rig.Top()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(top, "catalogue", function, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```yaml\n")
	if len(blocks) <= n {
		t.Fatalf("the README of %s has %d examples in YAML: want the one of number %d", function, len(blocks)-1, n)
	}
	block, _, closed := strings.Cut(blocks[n], "```")
	if !closed {
		t.Fatalf("no end of the YAML in the README of %s", function)
	}
	return block
}

// TestDNSIsBalancedInAChain: the policy of its README between two stations, with real clients and a real server. An own name is balanced by weight, over
// what is up; other names are as at the server, byte for byte; a changed configuration loses no query.
func TestDNSIsBalancedInAChain(t *testing.T) {
	t.Parallel()
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			document := fmt.Sprintf("endpoints:\n  alice: {netns: %s, interface: eth0, address: 10.9.0.1/24, addresses: [\"2001:db8:9::1/64\"]}\n"+
				"  bob: {netns: %s, interface: eth0, address: 10.9.0.2/24, addresses: [10.9.0.12/24, \"2001:db8:9::2/64\"]}\n", r.Alice(), r.Bob()) + example(t, "dns-lb")
			r.MustApply(ctx, t, document)
			first, second := target(t, r, "10.9.0.2:8080"), target(t, r, "10.9.0.12:8080")
			defer second()
			_, err := r.Start(r.Bob(), "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root", "--group=root", "--pid-file=",
				"--local-ttl=7", "--address=/other.example/192.0.2.7", "--address=/other.example/2001:db8::7", "--address=/app.example.com/192.0.2.66", "--txt-record=other.example,"+strings.Repeat("long ", 40))
			if err != nil {
				t.Fatal(err)
			}
			rig.Eventually(ctx, t, "the server answers", func() (bool, string) {
				m, err := ask(ctx, r.Alice(), "udp", "10.9.0.2:53", "other.example.", dns.TypeA)
				return err == nil && len(m.Answer) == 1, fmt.Sprint(m, err)
			})
			for _, a := range []string{"10.9.0.2", "10.9.0.12"} {
				rig.Eventually(ctx, t, a+" is up", func() (bool, string) {
					m, err := ask(ctx, r.Alice(), "udp", "10.9.0.2:53", "app.example.com.", dns.TypeA)
					return err == nil && first4(m) == a, fmt.Sprint(m, err)
				})
			}
			counting(func() { balanced(ctx, t, r) })
			counting(func() { unchanged(ctx, t, r) })
			counting(func() { clients(ctx, t, r) })
			counting(func() { changed(ctx, t, r, strings.Replace(document, "ttl: 5", "ttl: 6", 1)) })
			restarted(ctx, t, r)

			first() // a target goes down
			rig.Eventually(ctx, t, "a target that is down is in no answer", func() (bool, string) {
				for range 20 {
					m, err := ask(ctx, r.Alice(), "udp", "10.9.0.2:53", "app.example.com.", dns.TypeA)
					if err != nil || first4(m) != "10.9.0.12" {
						return false, fmt.Sprint(m, err)
					}
				}
				return true, ""
			})
			rig.Eventually(ctx, t, "the operator is told", func() (bool, string) {
				out, err := r.Weir(ctx, "events")
				return err == nil && strings.Contains(out, "TargetDown") && strings.Contains(out, "10.9.0.2 is down (tcp port 8080)"), out
			})
			var f api.Function
			if err := r.Get(ctx, &f, "function", "lb"); err != nil || f.Status.Restarts != 0 || f.Status.State != api.FunctionStarted {
				t.Errorf("%+v, %v", f.Status, err)
			}
		})
	}
}

// target listens at bob until it is stopped.
func target(t *testing.T, r *rig.Rig, addr string) (stop func()) {
	t.Helper()
	var l net.Listener
	if err := netns.Do(r.Bob(), func() (err error) { l, err = net.Listen("tcp", addr); return err }); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	})
	return sync.OnceFunc(func() { l.Close(); wg.Wait() })
}

const patience = 5 * time.Second

// raw sends a message from a namespace and gets what comes back.
func raw(ctx context.Context, space, network, addr string, msg []byte) ([]byte, error) {
	var c net.Conn
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := netns.Do(space, func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err }); err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	d := dns.Conn{Conn: c, UDPSize: 4096}
	if _, err := d.Write(msg); err != nil {
		return nil, err
	}
	return d.ReadMsgHeader(nil)
}

func ask(ctx context.Context, space, network, addr, name string, kind uint16) (*dns.Msg, error) {
	q := new(dns.Msg).SetQuestion(name, kind)
	msg, err := q.Pack()
	if err != nil {
		return nil, err
	}
	b, err := raw(ctx, space, network, addr, msg)
	if err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		return nil, err
	}
	if m.Id != q.Id {
		return nil, errors.New("an answer to another query")
	}
	return m, nil
}

func first4(m *dns.Msg) string {
	if len(m.Answer) == 0 {
		return dns.RcodeToString[m.Rcode]
	}
	if a, ok := m.Answer[0].(*dns.A); ok {
		return a.A.String()
	}
	return m.Answer[0].String()
}

func balanced(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	var tries []map[string]int
	for range 4 { // a target may look down for a moment when others have the processors
		seen := answers(ctx, t, r)
		if n := seen["10.9.0.2"]; n > 250 && n < 350 && n+seen["10.9.0.12"] == 400 {
			return
		}
		tries = append(tries, seen)
	}
	t.Errorf("400 answers: %v: want three quarters 10.9.0.2 and the others 10.9.0.12", tries)
}

func answers(ctx context.Context, t *testing.T, r *rig.Rig) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for i := range 400 {
		network, addr := "udp", []string{"10.9.0.2:53", "[2001:db8:9::2]:53"}[i%2]
		if i%10 == 0 {
			network = "tcp"
		}
		m, err := ask(ctx, r.Alice(), network, addr, "app.example.com.", dns.TypeA)
		if err != nil {
			t.Fatalf("%s %s: %v", network, addr, err)
		}
		seen[first4(m)]++
	}
	return seen
}

// unchanged compares what a client gets through the function with what the server says beside it.
func unchanged(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	for _, name := range []string{"other.example.", "OTHER.example.", "nowhere.invalid.", "www.app.example.com."} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeMX} {
			for _, network := range []string{"udp", "tcp"} {
				for _, addr := range []string{"10.9.0.2:53", "[2001:db8:9::2]:53"} {
					msg, err := new(dns.Msg).SetQuestion(name, kind).SetEdns0(4096, true).Pack()
					if err != nil {
						t.Fatal(err)
					}
					got, err := raw(ctx, r.Alice(), network, addr, msg)
					want, err2 := raw(ctx, r.Bob(), network, addr, msg)
					if err != nil || err2 != nil || !bytes.Equal(got, want) {
						t.Errorf("%s %s %s %s: % x, %v: want % x, %v", network, addr, name, dns.TypeToString[kind], got, err, want, err2)
					}
				}
			}
		}
	}
}

// clients that people use.
func clients(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	for _, argv := range [][]string{
		{"dig", "+notcp", "@10.9.0.2"}, {"dig", "+tcp", "@10.9.0.2"}, {"dig", "+tcp", "+keepopen", "@2001:db8:9::2"}, {"kdig", "+notcp", "@2001:db8:9::2"}, {"kdig", "+tcp", "@10.9.0.2"}, {"kdig", "+tcp", "+keepopen", "@2001:db8:9::2"},
	} {
		argv = append(argv, "a.static.example.com", "AAAA", "other.example", "A", "b.static.example.com", "A", "other.example", "TXT")
		out, err := r.Run(ctx, r.Alice(), argv...)
		for _, want := range []string{"2001:db8::21", "192.0.2.7", "10.9.0.2", "long long"} {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%s: %v: no %s in\n%s", strings.Join(argv, " "), err, want, out)
			}
		}
	}
}

// changed applies another configuration while clients ask: each query is answered.
func changed(ctx context.Context, t *testing.T, r *rig.Rig, document string) {
	t.Helper()
	asking, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var asked [2]int
	for i, name := range []string{"app.example.com.", "other.example."} {
		wg.Go(func() {
			for asking.Err() == nil {
				asked[i]++
				if m, err := ask(ctx, r.Alice(), "udp", "10.9.0.2:53", name, dns.TypeA); err != nil || len(m.Answer) != 1 {
					t.Errorf("%s, during the change: %v, %v", name, m, err)
					return
				}
			}
		})
	}
	r.MustApply(ctx, t, document)
	rig.Eventually(ctx, t, "the new configuration is in force", func() (bool, string) {
		m, err := ask(ctx, r.Alice(), "udp", "10.9.0.2:53", "app.example.com.", dns.TypeA)
		return err == nil && m.Answer[0].Header().Ttl == 6, fmt.Sprint(m, err)
	})
	stop()
	wg.Wait()
	if asked[0] < 10 || asked[1] < 10 {
		t.Errorf("%v queries during the change: too few to tell", asked)
	}
	if m, err := ask(ctx, r.Alice(), "tcp", "10.9.0.2:53", "app.example.com.", dns.TypeA); err != nil || len(m.Answer) != 1 {
		t.Errorf("by TCP, after it: %v, %v", m, err)
	}
}

// restarted restarts the function while clients ask: some queries may be lost, and none is answered by the server.
func restarted(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	asking, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, network := range []string{"udp", "tcp"} {
		wg.Go(func() {
			for asking.Err() == nil {
				short, cancel := context.WithTimeout(asking, 300*time.Millisecond)
				if m, err := ask(short, r.Alice(), network, "10.9.0.2:53", "app.example.com.", dns.TypeA); err == nil && !strings.HasPrefix(first4(m), "10.9.0.") {
					t.Errorf("%s, during the restart: %v", network, m)
				}
				cancel()
			}
		})
	}
	if out, err := r.Weir(ctx, "function", "restart", "lb"); err != nil {
		t.Errorf("restart: %v\n%s", err, out)
	}
	for _, network := range []string{"udp", "tcp"} {
		rig.Eventually(ctx, t, "it answers again by "+network, func() (bool, string) {
			m, err := ask(ctx, r.Alice(), network, "10.9.0.2:53", "app.example.com.", dns.TypeA)
			return err == nil && len(m.Answer) == 1, fmt.Sprint(m, err)
		})
	}
	stop()
	wg.Wait()
}
