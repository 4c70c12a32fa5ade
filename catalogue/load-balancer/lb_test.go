package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/netns"
)

func TestMain(m *testing.M) { rig.Main(m) }

// launch runs the function between two stations and waits until it forwards.
func launch(t testing.TB, r *rig.Rig, config string) *rig.Process {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	must(t, os.WriteFile(file, []byte(config), 0o644))
	p := r.Start(rig.Program(t), "-config", file, "-probe", rig.WriteProbe(t, dir), "-events", filepath.Join(dir, "events.sock"))
	p.Await("services in force")
	rig.Eventually(t, "probes pass", func() bool {
		r.Client.Send(rig.Probe(0))
		return r.Server.Receive(20*time.Millisecond) != nil
	})
	return p
}

// stations gives the client IPv6, and the server two addresses of each family.
func stations(t testing.TB, r *rig.Rig) {
	t.Helper()
	for s, all := range map[*rig.Station][]string{r.Client: {"2001:db8:77::1/64", "fe80::1/64"}, r.Server: {"10.77.0.3/24", "2001:db8:77::2/64", "2001:db8:77::3/64", "fe80::2/64"}} {
		for _, link := range []string{"lo", s.Link.Name} {
			r.Do(s.Netns, func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/disable_ipv6", []byte("0"), 0) })
		}
		for _, a := range all {
			argv := []string{"ip", "addr", "add", a, "dev", s.Link.Name}
			if strings.Contains(a, ":") {
				argv = append(argv, "nodad")
			}
			rig.Command(t, s, argv...)
		}
	}
}

const two = `{"services": {
	"web": {"address": "10.77.0.100", "protocol": "tcp", "port": 80, "targets": [{"address": "10.77.0.2", "port": 8080}, {"address": "10.77.0.3", "port": 8080}], "check": {"tcp": 8080}},
	"web6": {"address": "2001:db8:77::100", "protocol": "tcp", "port": 80, "targets": [{"address": "2001:db8:77::2", "port": 8080}, {"address": "2001:db8:77::3", "port": 8080}], "check": {"tcp": 8080}},
	"echo": {"address": "10.77.0.100", "protocol": "udp", "port": 7, "by": "client", "targets": [{"address": "10.77.0.2", "port": 7}, {"address": "10.77.0.3", "port": 7}]}},
	"health": {"addresses": ["10.77.0.9/24", "2001:db8:77::9/64"], "interval": "300ms", "timeout": "300ms", "rise": 1, "fall": 2}}`

// greet accepts at the server: it says which address was reached and by whom, then sends back what comes.
func greet(t testing.TB, r *rig.Rig, addr string) (stop func()) {
	t.Helper()
	var l net.Listener
	must(t, netns.Do(r.Server.Netns, func() (err error) { l, err = net.Listen("tcp", addr); return err }))
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(rig.Patience))
				_, _ = fmt.Fprintf(c, "%-100s", c.LocalAddr().String()+" "+c.RemoteAddr().String())
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	t.Cleanup(func() { l.Close() })
	return func() { l.Close() }
}

// connect to a virtual place; who answered, and whom it sees.
func connect(t testing.TB, r *rig.Rig, addr string) (c net.Conn, target, client string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if c, err = r.Client.Dial(ctx, "tcp", addr); err != nil {
		return nil, "", "", err
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(rig.Patience))
	b := make([]byte, 100)
	if _, err = io.ReadFull(c, b); err != nil {
		return nil, "", "", err
	}
	words := strings.Fields(string(b))
	return c, words[0], words[1], nil
}

// A client may know a virtual address by the MAC address of a former instance, as after a move to another host. Requests and pings to that one are answered, too.
func TestTheMACAddressOfAFormerInstance(t *testing.T) {
	r := rig.New(t, false)
	stations(t, r)
	launch(t, r, two)
	const former = "02:00:00:00:00:99"
	for _, virtual := range []string{"10.77.0.100", "2001:db8:77::100"} {
		rig.Command(t, r.Client, "ip", "neigh", "replace", virtual, "lladdr", former, "dev", r.Client.Link.Name, "nud", "permanent")
		rig.Command(t, r.Client, "ping", "-q", "-c", "2", "-i", "0.05", "-W", "2", virtual)
		// The kernel asks the former MAC address whether it is still there, and hears of the new one.
		rig.Command(t, r.Client, "ip", "neigh", "replace", virtual, "lladdr", former, "dev", r.Client.Link.Name, "nud", "probe")
		rig.Eventually(t, "the client knows where "+virtual+" is now", func() bool {
			known := rig.Command(t, r.Client, "ip", "neigh", "show", "to", virtual)
			return strings.Contains(known, "lladdr") && !strings.Contains(known, former)
		})
	}
}

// Real connections, with offloads and without, by both families: the virtual address answers pings, both targets get their share and see the client, streams
// arrive whole, and one that goes down gets no more.
func TestStations(t *testing.T) {
	r := rig.New(t, false)
	stations(t, r)
	stop := map[string]func(){}
	for _, a := range []string{"10.77.0.2:8080", "10.77.0.3:8080", "[2001:db8:77::2]:8080", "[2001:db8:77::3]:8080"} {
		stop[a] = greet(t, r, a)
	}
	p := launch(t, r, two)
	for _, virtual := range []string{"10.77.0.100", "2001:db8:77::100"} {
		rig.Eventually(t, "a connection to "+virtual, func() bool {
			c, _, _, err := connect(t, r, net.JoinHostPort(virtual, "80"))
			if err == nil {
				c.Close()
			}
			return err == nil
		})
		rig.Command(t, r.Client, "ping", "-q", "-c", "2", "-i", "0.05", "-W", "2", virtual)
		for _, offload := range []string{"on", "off"} {
			for _, s := range []*rig.Station{r.Client, r.Server} {
				rig.Command(t, s, "ethtool", "-K", s.Link.Name, "rx", offload, "tx", offload, "tso", offload, "gso", offload, "gro", offload)
			}
			seen := map[string]int{}
			for range 20 {
				c, target, client, err := connect(t, r, net.JoinHostPort(virtual, "80"))
				if err != nil {
					t.Fatal(err)
				}
				if seen[target]++; client != c.LocalAddr().String() {
					t.Errorf("the target sees %s: want %s", client, c.LocalAddr())
				}
				c.Close()
			}
			if len(seen) != 2 {
				t.Errorf("20 connections: %v: want both targets", seen)
			}
			c, _, _, err := connect(t, r, net.JoinHostPort(virtual, "80"))
			must(t, err)
			want := bytes.Repeat([]byte("all bytes come, in order. "), 100_000)
			go func() { _, _ = c.Write(want) }()
			got := make([]byte, len(want))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s, offloads %s: other bytes came back: %v", virtual, offload, err)
			}
		}
	}
	if _, _, _, err := connect(t, r, "10.77.0.100:81"); err == nil {
		t.Error("a port of no service is open")
	}
	if _, _, _, err := connect(t, r, "10.77.0.2:8080"); err == nil {
		t.Error("a target's port can be reached beside the virtual one")
	}
	stop["10.77.0.2:8080"]()
	stop["[2001:db8:77::2]:8080"]()
	p.Await("target is down")
	rig.Eventually(t, "no connection goes to the target that is down", func() bool {
		for range 10 {
			for _, virtual := range []string{"10.77.0.100", "2001:db8:77::100"} {
				c, target, _, err := connect(t, r, net.JoinHostPort(virtual, "80"))
				if err != nil || !strings.Contains(target, "3") || strings.Contains(target, "77::2") {
					return false
				}
				c.Close()
			}
		}
		return true
	})
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
	if !strings.Contains(p.Output(), "service=web address=10.77.0.2:8080") {
		t.Error("no counters at the end")
	}
}

// Connections outlive the instance that they began in, whoever speaks first, and datagrams of all sizes come, in fragments, too.
func TestAnotherInstanceAndDatagrams(t *testing.T) {
	r := rig.New(t, false)
	stations(t, r)
	greet(t, r, "10.77.0.2:8080")
	greet(t, r, "10.77.0.3:8080")
	p := launch(t, r, two)
	var conns []net.Conn
	rig.Eventually(t, "connections", func() bool {
		c, _, _, err := connect(t, r, "10.77.0.100:80")
		if err == nil {
			conns = append(conns, c)
		}
		return len(conns) == 10
	})
	p.Signal(syscall.SIGKILL)
	_ = p.End()
	launch(t, r, two)
	for _, c := range conns {
		_, err := c.Write([]byte("still there"))
		must(t, err)
		b := make([]byte, 11)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "still there" {
			t.Errorf("%q, %v", b, err)
		}
	}
	for _, a := range []string{"10.77.0.2:7", "10.77.0.3:7"} {
		var l net.PacketConn
		must(t, netns.Do(r.Server.Netns, func() (err error) { l, err = net.ListenPacket("udp4", a); return err }))
		t.Cleanup(func() { l.Close() })
		go func() {
			b := make([]byte, 65536)
			for {
				n, from, err := l.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = l.WriteTo(b[:n], from)
			}
		}()
	}
	c, err := r.Client.Dial(t.Context(), "udp4", "10.77.0.100:7")
	must(t, err)
	defer c.Close()
	for _, size := range []int{0, 1, 1472, 1473, 9000, 60000} {
		want, got := bytes.Repeat([]byte{byte(size)}, size), make([]byte, 65536)
		rig.Eventually(t, fmt.Sprintf("%d bytes, and back", size), func() bool {
			_, err := c.Write(want)
			must(t, err)
			must(t, c.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
			n, err := c.Read(got)
			return err == nil && bytes.Equal(got[:n], want)
		})
	}
	r.PassUnchanged(50, 60, []byte{0x12, 0x34}, []byte{0x81, 0, 0, 42, 8, 0, 0x45}, []byte{0x88, 0xa8, 0, 1})
}
