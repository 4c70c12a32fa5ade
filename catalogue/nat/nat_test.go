package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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

// start runs the function between the stations and waits until it forwards.
func start(t *testing.T, config string) (*rig.Rig, *rig.Process) {
	t.Helper()
	r := rig.New(t, false)
	return r, launch(t, r, config)
}

func launch(t *testing.T, r *rig.Rig, config string) *rig.Process {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	must(t, os.WriteFile(file, []byte(config), 0o644))
	p := r.Start(rig.Program(t), "-config", file, "-probe", rig.WriteProbe(t, dir), "-events", filepath.Join(dir, "events.sock"))
	p.Await("pool in force")
	rig.Eventually(t, "frames pass", func() bool {
		r.Client.Send(rig.Probe(0))
		return r.Server.Receive(20*time.Millisecond) != nil
	})
	return p
}

func dial(t *testing.T, s *rig.Station, network, addr string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	c, err := s.Dial(ctx, network, addr)
	must(t, err)
	must(t, c.SetDeadline(time.Now().Add(rig.Patience)))
	t.Cleanup(func() { c.Close() })
	return c
}

// serve accepts at a station: it says who the other end is, and then sends back what comes.
func serve(t *testing.T, at *rig.Station, addr string) {
	t.Helper()
	at.Serve(t, addr, func(c net.Conn) {
		_, _ = fmt.Fprintf(c, "%-40s", c.RemoteAddr())
		_, _ = io.Copy(c, c)
	})
}

func greeting(t *testing.T, c net.Conn) string {
	t.Helper()
	b := make([]byte, 40)
	_, err := io.ReadFull(c, b)
	must(t, err)
	return strings.TrimSpace(string(b))
}

const shared = `{"pool": ["10.77.0.100"], "clients": ["10.77.0.1/32"], "forward": [{"protocol": "tcp", "port": 8080, "to": "10.77.0.1:80"}, {"protocol": "udp", "port": 9000, "to": "10.77.0.1:9"}]}`

// Real stations, with offloads and without: streams of both directions arrive whole, the server sees the pool, errors and fragments come through.
func TestStations(t *testing.T) {
	for _, offload := range []string{"on", "off"} {
		t.Run("offloads "+offload, func(t *testing.T) {
			r, p := start(t, shared)
			for _, s := range []*rig.Station{r.Client, r.Server} {
				rig.Command(t, s, "ethtool", "-K", s.Link.Name, "rx", offload, "tx", offload, "tso", offload, "gso", offload, "gro", offload)
			}
			serve(t, r.Client, "10.77.0.1:80") // a port that is forwarded, to a client that has said nothing yet
			c := dial(t, r.Server, "tcp4", "10.77.0.100:8080")
			if who := greeting(t, c); who != c.LocalAddr().String() {
				t.Errorf("the client sees %s: want %s", who, c.LocalAddr())
			}
			roundTrip(t, c)
			serve(t, r.Server, "10.77.0.2:80")
			c = dial(t, r.Client, "tcp4", "10.77.0.2:80")
			if who, want := greeting(t, c), strings.Replace(c.LocalAddr().String(), "10.77.0.1:", "10.77.0.100:", 1); who != want {
				t.Errorf("the server sees %s: want %s", who, want)
			}
			roundTrip(t, c)
			datagrams(t, r)
			rig.Command(t, r.Client, "ping", "-q", "-c", "3", "-i", "0.05", "-W", "2", "10.77.0.2")
			rig.Command(t, r.Client, "ping", "-q", "-c", "3", "-i", "0.05", "-W", "2", "-s", "20000", "10.77.0.2") // in fragments
			u := dial(t, r.Client, "udp4", "10.77.0.2:999")
			rig.Eventually(t, "a closed port is told of", func() bool {
				_, _ = u.Write([]byte("x"))
				must(t, u.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
				_, err := u.Read(make([]byte, 1))
				return errors.Is(err, syscall.ECONNREFUSED)
			})
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			for _, addr := range []string{"10.77.0.1:80", "10.77.0.100:80"} {
				if c, err := r.Server.Dial(ctx, "tcp4", addr); err == nil {
					c.Close()
					t.Errorf("%s can be reached from out", addr)
				}
			}
			p.Signal(syscall.SIGTERM)
			must(t, p.End())
			if !strings.Contains(p.Output(), "translated up") {
				t.Error("no counters at the end")
			}
		})
	}
}

// roundTrip sends a lot and gets it back.
func roundTrip(t *testing.T, c net.Conn) {
	t.Helper()
	want := make([]byte, 8<<20)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range want {
		want[i] = byte(random.Uint32())
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(want)
		sent <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err = errors.Join(err, <-sent); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d of %d bytes came back, or others: %v", len(got), len(want), err)
	}
}

// datagrams of all sizes, also in fragments, both ways.
func datagrams(t *testing.T, r *rig.Rig) {
	t.Helper()
	var l, forwarded net.PacketConn
	must(t, netns.Do(r.Server.Netns, func() (err error) { l, err = net.ListenPacket("udp4", "10.77.0.2:53"); return err }))
	defer l.Close()
	must(t, netns.Do(r.Client.Netns, func() (err error) { forwarded, err = net.ListenPacket("udp4", "10.77.0.1:9"); return err }))
	defer forwarded.Close()
	c, s := dial(t, r.Client, "udp4", "10.77.0.2:53"), dial(t, r.Server, "udp4", "10.77.0.100:9000")
	b := make([]byte, 65536)
	for _, size := range []int{0, 1, 2, 1000, 1472, 1473, 9000, 60000} {
		data := bytes.Repeat([]byte{byte(size)}, size)
		for _, way := range []struct {
			from net.Conn
			to   net.PacketConn
		}{{c, l}, {s, forwarded}} {
			got := 0
			rig.Eventually(t, fmt.Sprintf("%d bytes to %s, and back", size, way.to.LocalAddr()), func() bool {
				_, err := way.from.Write(data)
				must(t, err)
				must(t, way.to.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
				n, from, err := way.to.ReadFrom(b)
				if err != nil || !bytes.Equal(b[:n], data) {
					return false
				}
				_, err = way.to.WriteTo(b[:n], from)
				must(t, err)
				must(t, way.from.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
				got, err = way.from.Read(b)
				return err == nil && bytes.Equal(b[:got], data)
			})
		}
	}
}

// A new instance knows no sessions, and gives them the same places again: connections go on.
func TestConnectionsOutliveAnInstance(t *testing.T) {
	r := rig.New(t, false)
	p := launch(t, r, shared)
	serve(t, r.Server, "10.77.0.2:80")
	serve(t, r.Client, "10.77.0.1:80")
	conns := []net.Conn{dial(t, r.Client, "tcp4", "10.77.0.2:80"), dial(t, r.Server, "tcp4", "10.77.0.100:8080")}
	for _, c := range conns {
		greeting(t, c)
	}
	p.Signal(syscall.SIGKILL)
	if p.End() == nil {
		t.Error("killed")
	}
	launch(t, r, shared)
	for _, c := range conns {
		_, err := c.Write([]byte("still there"))
		must(t, err)
		b := make([]byte, 11)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "still there" {
			t.Errorf("%s to %s: %q, %v", c.LocalAddr(), c.RemoteAddr(), b, err)
		}
	}
}

// What is not IPv4 of clients passes unchanged.
func TestOtherFramesPassUnchanged(t *testing.T) {
	r, _ := start(t, shared)
	r.PassUnchanged(200, 60, []byte{0x86, 0xdd, 0x60}, []byte{0x81, 0, 0, 42, 0x86, 0xdd, 0x60}, []byte{8, 6}, []byte{0x88, 0xa8, 0, 1, 8, 6}, []byte{0x12, 0x34}, []byte{0x88, 0xb5})
}
