package services

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"weir.dev/weir/netns"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "services: these tests make network namespaces: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// pair of namespaces with addresses 10.9.0.1 and 10.9.0.2.
func pair(t *testing.T) (from, to string) {
	t.Helper()
	dir := t.TempDir()
	from, to = filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, space := range []string{from, to} {
		if err := netns.Create(space, netns.Options{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := netns.Delete(space); err != nil {
				t.Error(err)
			}
		})
	}
	_, err := netns.Veth(from, to, netns.VethOptions{HostName: "eth0", PeerName: "eth0", Alias: "weir:services", Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24")}})
	if err != nil {
		t.Fatal(err)
	}
	err = netns.Do(from, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr("10.9.0.1/24")
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
	})
	if err != nil {
		t.Fatal(err)
	}
	return from, to
}

var server = netip.MustParseAddr("10.9.0.2")

// Answers are counted, and a server that forbids nothing is found out, and so is a cache that is none.
func TestHTTP(t *testing.T) {
	from, to := pair(t)
	o := HTTPOptions{From: from, To: to, Address: server, Clients: 2, Body: 1000, Duration: 200 * time.Millisecond}
	r, err := HTTP(t.Context(), o)
	if err != nil || r.Answers < 10 || r.Rate <= 0 || r.P50 <= 0 || r.Clients != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	o.Forbidden = "/no"
	if _, err := HTTP(t.Context(), o); err == nil || !strings.Contains(err.Error(), "/no, which is forbidden: status 200") {
		t.Error(err)
	}
	o.Forbidden, o.Cached = "", true
	if _, err := HTTP(t.Context(), o); err == nil || !strings.Contains(err.Error(), "want a cache that answers") {
		t.Error(err)
	}
	o.Clients = MaxClients + 1
	if _, err := HTTP(t.Context(), o); err == nil || !strings.Contains(err.Error(), "want 1 to 256") {
		t.Error(err)
	}
}

// Answers are counted, lost ones too, and a wrong one ends the run.
func TestDNS(t *testing.T) {
	from, to := pair(t)
	var c net.PacketConn
	if err := netns.Do(to, func() (err error) { c, err = net.ListenPacket("udp4", ":53"); return err }); err != nil {
		t.Fatal(err)
	}
	var seen atomic.Int64
	s := &dns.Server{PacketConn: c, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if seen.Add(1)%50 == 0 {
			return
		}
		a := new(dns.Msg).SetReply(q)
		a.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(10, 9, 1, 7)}}
		_ = w.WriteMsg(a) // a client that is gone
	})}
	ended := make(chan error, 1)
	go func() { ended <- s.ActivateAndServe() }()
	defer func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
		<-ended
	}()
	o := DNSOptions{From: from, Address: server, Clients: 1, UnderWay: 2, Name: "x.example", Want: netip.MustParseAddr("10.9.1.7"), Duration: time.Second}
	r, err := DNS(t.Context(), o)
	if err != nil || r.Answers < 10 || r.Lost == 0 || r.Rate <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
	o.Want = netip.MustParseAddr("10.9.1.8")
	if _, err := DNS(t.Context(), o); err == nil || !strings.Contains(err.Error(), "want 10.9.1.8") {
		t.Error(err)
	}
}
