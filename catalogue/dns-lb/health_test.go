package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/netns"
)

// told are the events that a function raises.
type told struct {
	mu   sync.Mutex
	text []string
}

func events(t *testing.T, dir string) *told {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(dir, "events.sock"))
	must(t, err)
	all := &told{}
	s := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e struct{ Severity, Reason, Message string }
		_ = json.NewDecoder(r.Body).Decode(&e)
		all.mu.Lock()
		defer all.mu.Unlock()
		all.text = append(all.text, fmt.Sprintf("%s %s %s", e.Severity, e.Reason, e.Message))
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return all
}

func (a *told) has(text string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Contains(strings.Join(a.text, "\n"), text)
}

const noAnswer = "no answer"

// resolve a name through the function; the addresses, what the answer's code is, or noAnswer.
func resolve(t *testing.T, r *rig.Rig, name string, kind uint16) string {
	t.Helper()
	c, err := r.Client.Dial(t.Context(), "udp", "10.77.0.2:53")
	must(t, err)
	defer c.Close()
	d := dns.Conn{Conn: c}
	must(t, d.SetDeadline(time.Now().Add(time.Second)))
	must(t, d.WriteMsg(new(dns.Msg).SetQuestion(name, kind)))
	m, err := d.ReadMsg()
	if err != nil {
		return noAnswer
	}
	if m.Rcode != 0 {
		return dns.RcodeToString[m.Rcode]
	}
	return strings.Join(addresses(m), " ")
}

// Targets are tried by TCP, HTTP and ICMP, from an address that only the function has. One that is down is in no answer, and the operator is told.
func TestTargetsThatGoDown(t *testing.T) {
	name := func(check, down, targets string) string {
		return fmt.Sprintf(`{"strategy": "failover", "check": %s, "all_down": "%s", "targets": [%s]}`, check, down, targets)
	}
	const four, both = `{"address": "10.77.0.2"}, {"address": "10.77.0.3"}`, `{"address": "10.77.0.2"}, {"address": "10.77.0.3"}, {"address": "2001:db8:77::2"}, {"address": "2001:db8:77::3"}`
	r, p, dir := start(t, `{"names": {
		"tcp.example": `+name(`{"tcp": 8080}`, "servfail", both)+`,
		"http.example": `+name(`{"http": {"port": 8080, "path": "/health", "host": "app.example"}}`, "pass", four)+`,
		"icmp.example": `+name(`{"icmp": true}`, "serve", both)+`},
		"health": {"addresses": ["10.77.0.9/24", "2001:db8:77::9/64"], "interval": "300ms", "timeout": "300ms", "rise": 1, "fall": 2}}`)
	raised := events(t, dir)
	for _, a := range []string{"10.77.0.3/24", "2001:db8:77::3/64"} {
		rig.Command(t, r.Server, "ip", "addr", "add", a, "dev", r.Server.Link.Name, "nodad")
	}
	var well atomic.Bool
	well.Store(true)
	handler := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/health" || q.Host != "app.example" || !well.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	listen := func(addr string) func() {
		var l net.Listener
		must(t, netns.Do(r.Server.Netns, func() (err error) { l, err = net.Listen("tcp", addr); return err }))
		s := &http.Server{Handler: handler}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { s.Close() })
		return func() { s.Close() }
	}
	stop := map[string]func(){}
	for _, a := range []string{"10.77.0.2:8080", "10.77.0.3:8080", "[2001:db8:77::2]:8080", "[2001:db8:77::3]:8080"} {
		stop[a] = listen(a)
	}
	becomes := func(name string, kind uint16, want string) {
		t.Helper()
		got := ""
		rig.Eventually(t, fmt.Sprintf("%s %s is %s", name, dns.TypeToString[kind], want), func() bool { got = resolve(t, r, name, kind); return got == want })
	}
	for _, n := range []string{"tcp.example.", "http.example.", "icmp.example."} {
		becomes(n, dns.TypeA, "10.77.0.2")
	}
	becomes("tcp.example.", dns.TypeAAAA, "2001:db8:77::2")
	stop["10.77.0.2:8080"]()
	stop["[2001:db8:77::2]:8080"]()
	becomes("tcp.example.", dns.TypeA, "10.77.0.3")
	becomes("http.example.", dns.TypeA, "10.77.0.3")
	becomes("tcp.example.", dns.TypeAAAA, "2001:db8:77::3")
	becomes("icmp.example.", dns.TypeA, "10.77.0.2")
	rig.Eventually(t, "the operator is told", func() bool { return raised.has("warning TargetDown 10.77.0.2 is down (tcp port 8080)") })
	well.Store(false)
	becomes("http.example.", dns.TypeA, noAnswer) // passed on to where nobody is
	well.Store(true)
	becomes("http.example.", dns.TypeA, "10.77.0.3")
	stop["10.77.0.3:8080"]()
	becomes("tcp.example.", dns.TypeA, "SERVFAIL")
	listen("10.77.0.2:8080")
	becomes("tcp.example.", dns.TypeA, "10.77.0.2")
	rig.Eventually(t, "the operator is told", func() bool { return raised.has("info TargetUp 10.77.0.2 is up (tcp port 8080)") })
	for _, a := range []string{"10.77.0.2/24", "2001:db8:77::2/64"} { // nobody answers echo requests for it
		rig.Command(t, r.Server, "ip", "addr", "del", a, "dev", r.Server.Link.Name)
	}
	rig.Eventually(t, "echo requests are missed", func() bool {
		return raised.has("TargetDown 10.77.0.2 is down (icmp)") && raised.has("TargetDown 2001:db8:77::2 is down (icmp)")
	})
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
}
