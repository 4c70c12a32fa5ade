package catalogue

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// TestFlowsAreReadFromATap: what passes a tap is read as JSON and as IPFIX from a running monitor, through the API; tshark finds the flows in the file. The host's collector
// gets them, too. It stands in nobody's way.
func TestFlowsAreReadFromATap(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw, "--collector", "127.0.0.1:4739"}})
			var collector net.PacketConn
			if err := netns.Do(netns.Path(r.Netns), func() (err error) { collector, err = net.ListenPacket("udp", "127.0.0.1:4739"); return err }); err != nil {
				t.Fatal(err)
			}
			defer collector.Close()
			r.MustApply(ctx, t, r.Endpoints()+`functions:
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
			rig.Eventually(ctx, t, "flows of pings are told", func() (bool, string) {
				if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.1"); err != nil {
					t.Fatal(err)
				}
				for text := range strings.Lines(read("json")) {
					var l struct {
						Proto, Src, Dst string
						Packets         uint64 `json:"packets"`
					}
					if json.Unmarshal([]byte(text), &l) == nil && l.Proto == "icmp" && l.Src == rig.AliceAddr && l.Dst == rig.BobAddr && l.Packets > 0 {
						return true, ""
					}
				}
				return false, read("json")
			})
			hear(t, collector)
			rig.Eventually(ctx, t, "tshark finds them", func() (bool, string) {
				out, err := r.Run(ctx, "", "tshark", "-nr", filepath.Join(dir, "ipfix"), "-V")
				return err == nil && strings.Contains(out, "SrcAddr: "+rig.AliceAddr) && strings.Contains(out, "SrcAddr: "+rig.BobAddr) && !strings.Contains(out, "Malformed"), fmt.Sprint(out, err)
			})
		})
	}
}

// hear what the collector gets until there are records of both directions between alice and bob: each datagram is one message of IPFIX, the first has the templates.
func hear(t *testing.T, collector net.PacketConn) {
	t.Helper()
	alice, bob := netip.MustParseAddr(rig.AliceAddr).AsSlice(), netip.MustParseAddr(rig.BobAddr).AsSlice()
	b, there, back := make([]byte, 65536), false, false
	_ = collector.SetReadDeadline(time.Now().Add(20 * time.Second))
	for first := true; !there || !back; first = false {
		n, _, err := collector.ReadFrom(b)
		if err != nil {
			t.Fatalf("the collector has heard of flows from alice: %t, from bob: %t: %v", there, back, err)
		}
		m := b[:n]
		if n < 20 || n > 1200 || binary.BigEndian.Uint16(m) != 10 || int(binary.BigEndian.Uint16(m[2:])) != n || first && binary.BigEndian.Uint16(m[16:]) != 2 {
			t.Fatalf("the collector gets % x", m)
		}
		there = there || bytes.Contains(m, append(bytes.Clone(alice), bob...))
		back = back || bytes.Contains(m, append(bytes.Clone(bob), alice...))
	}
}
