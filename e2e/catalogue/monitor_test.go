package catalogue

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// TestFlowsAreReadFromATap: what passes a tap is read as JSON and as IPFIX from a running monitor, through the API; tshark finds the flows in the file. The host's collector
// gets them, too. All of it by IPv4 and IPv6, pings and connections. It stands in nobody's way.
func TestFlowsAreReadFromATap(t *testing.T) {
	t.Parallel()
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw, "--collector", "127.0.0.1:4739"}})
			var collector net.PacketConn
			if err := netns.Do(netns.Path(r.Netns), func() (err error) { collector, err = net.ListenPacket("udp", "127.0.0.1:4739"); return err }); err != nil {
				t.Fatal(err)
			}
			defer collector.Close()
			r.MustApply(ctx, t, r.DualEndpoints()+`functions:
  w: {image: wire}
  mon: {image: monitor, config: {idle_s: 2, active_s: 1}}
chains:
  c: w | tap:mon
policies:
  p: {from: alice, to: bob, symmetric: true, chain: c}
`)
			dir := t.TempDir()
			read := func(format string) string {
				raw, err := os.ReadFile(filepath.Join(dir, format))
				if err != nil {
					t.Fatal(err)
				}
				return string(raw)
			}
			for _, format := range []string{"json", "ipfix"} {
				f, err := os.Create(filepath.Join(dir, format))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				cmd := r.WeirCommand(ctx, "function", "exec", "mon", "--", "monitor", "-follow", format)
				cmd.Stdout = f
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				defer cmd.Wait()         //nolint:errcheck // it is killed
				defer cmd.Process.Kill() //nolint:errcheck // it may have ended
			}
			for _, f := range families {
				rig.Serve(t, r.Bob(), net.JoinHostPort(f.bob, "7000"), rig.Echo)
				rig.Eventually(ctx, t, f.name+": flows of pings and of connections are told", func() (bool, string) {
					if _, err := r.Ping(ctx, r.Alice(), f.bob, 3, "0.1"); err != nil {
						t.Fatal(f.name, err)
					}
					echoed(ctx, t, r, net.JoinHostPort(f.bob, "7000"))
					return reported(read("json"), f), read("json")
				})
			}
			hear(t, collector)
			rig.Eventually(ctx, t, "the function's numbers say that packets of both directions came, and that flows were exported and read", func() (bool, string) {
				out, err := r.Weir(ctx, "describe", "function", "mon")
				for _, name := range []string{`monitor_packets_total{direction="forward"}`, `monitor_packets_total{direction="reply"}`, `monitor_exported_records_total{to="collector"}`, `monitor_exported_records_total{to="reader"}`} {
					_, row, _ := strings.Cut(out, name)
					if words := strings.Fields(row); len(words) == 0 || words[0] == "0" {
						return false, out
					}
				}
				return err == nil, out
			})
			rig.Eventually(ctx, t, "tshark finds them", func() (bool, string) {
				out, err := r.Run(ctx, "", "tshark", "-nr", filepath.Join(dir, "ipfix"), "-V")
				for _, f := range families {
					if !strings.Contains(out, "SrcAddr: "+f.alice+"\n") || !strings.Contains(out, "SrcAddr: "+f.bob+"\n") {
						return false, fmt.Sprint(f.name, out, err)
					}
				}
				return err == nil && !strings.Contains(out, "Malformed"), fmt.Sprint(out, err)
			})
		})
	}
}

// reported: there are reports of pings and of connections to port 7000 from alice to bob.
func reported(lines string, f family) bool {
	pings, connections := false, false
	for text := range strings.Lines(lines) {
		var l struct {
			Proto, Src, Dst string
			Dport           uint16
			Packets         uint64 `json:"packets"`
		}
		if json.Unmarshal([]byte(text), &l) != nil || l.Packets == 0 {
			continue
		}
		pings = pings || f.pinged(l.Proto, l.Src, l.Dst)
		connections = connections || l.Proto == "tcp" && l.Src == f.alice && l.Dst == f.bob && l.Dport == 7000
	}
	return pings && connections
}

// echoed: a server at bob sends back what alice says.
func echoed(ctx context.Context, t *testing.T, r *rig.Rig, at string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var c net.Conn
	if err := netns.Do(r.Alice(), func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, "tcp", at); return err }); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	echo(t, c)
}

// hear what the collector gets until there are records of both directions between alice and bob, of both families: each datagram is one message of IPFIX, the first has
// the templates.
func hear(t *testing.T, collector net.PacketConn) {
	t.Helper()
	wanted := map[string][]byte{} // addresses of a record, as they stand in it
	for _, f := range families {
		alice, bob := netip.MustParseAddr(f.alice).AsSlice(), netip.MustParseAddr(f.bob).AsSlice()
		wanted[f.name+" from alice"], wanted[f.name+" from bob"] = slices.Concat(alice, bob), slices.Concat(bob, alice)
	}
	b := make([]byte, 65536)
	_ = collector.SetReadDeadline(time.Now().Add(20 * time.Second))
	for first := true; len(wanted) > 0; first = false {
		n, _, err := collector.ReadFrom(b)
		if err != nil {
			t.Fatalf("the collector has not heard of flows of %v: %v", slices.Sorted(maps.Keys(wanted)), err)
		}
		m := b[:n]
		if n < 20 || n > 1200 || binary.BigEndian.Uint16(m) != 10 || int(binary.BigEndian.Uint16(m[2:])) != n || first && binary.BigEndian.Uint16(m[16:]) != 2 {
			t.Fatalf("the collector gets % x", m)
		}
		maps.DeleteFunc(wanted, func(_ string, addresses []byte) bool { return bytes.Contains(m, addresses) })
	}
}
