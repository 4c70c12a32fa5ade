package catalogue

import (
	"bytes"
	"flag"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"weir.dev/weir/e2e/rig"
)

var update = flag.Bool("update", false, "write the captures of the catalogue's cases anew; look at what comes out before you commit it")

// cases are the captures that enter functions of the catalogue at in and at out; what comes out is in catalogue/NAME/test.
var cases = map[string]struct{ in, reverse [][]byte }{
	"impair/test/line": {
		in:      series(12, "udp 10.0.0.1:4000 10.0.0.2:5000", "udp [2001:db8::1]:4000 [2001:db8::2]:5000", "tcp 10.0.0.1:4000 10.0.0.2:80"),
		reverse: series(12, "udp 10.0.0.2:5000 10.0.0.1:4000", "udp [2001:db8::2]:5000 [2001:db8::1]:4000"),
	},
	"load-balancer/test/services": {
		in: series(12, "tcp 10.0.0.1:4000 10.0.0.100:80 syn", "tcp 10.0.0.1:4001 10.0.0.100:80 syn", "tcp 10.0.0.1:4002 10.0.0.100:80 syn", "udp [2001:db8::1]:4000 [2001:db8::100]:53", "tcp 10.0.0.1:4000 10.0.1.1:8080 syn",
			"udp 10.0.0.1:4000 10.0.1.1:9"),
		reverse: series(8, "tcp 10.0.1.1:8080 10.0.0.1:4001", "udp [2001:db8::1:1]:5353 [2001:db8::1]:4000", "tcp 10.0.1.1:22 10.0.0.1:4000", "udp 10.0.1.1:8080 10.0.0.1:4000"),
	},
	"udp-forward/test/others": { // where the next hop is it has to ask, so here is what passes, and what does not
		in:      series(10, "udp 10.0.0.1:4000 10.0.0.2:5000", "udp [2001:db8::1]:4000 [2001:db8::2]:5000", "tcp 10.0.0.1:4000 10.0.0.9:80 syn", "udp 10.0.0.1:4000 10.0.0.9:7001", "tcp 10.0.0.1:4000 10.0.0.2:80 syn"),
		reverse: series(6, "udp 10.0.0.2:5000 10.0.0.1:4000", "udp [2001:db8::2]:5000 [2001:db8::1]:4000", "udp 10.0.0.2:4000 10.0.0.9:7000"),
	},
}

// series is n frames of those packets, in turns.
func series(n int, packets ...string) (all [][]byte) {
	for i := range n {
		all = append(all, packet(packets[i%len(packets)], byte(i)))
	}
	return all
}

// packet from one place to another: "udp 10.0.0.1:1000 10.0.0.2:80". From the lower address the frame goes from 02:00:00:00:00:01 to 02:00:00:00:00:02.
func packet(text string, number byte) []byte {
	f := strings.Fields(text)
	src, dst := netip.MustParseAddrPort(f[1]), netip.MustParseAddrPort(f[2])
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	if dst.Addr().Less(src.Addr()) {
		eth.SrcMAC, eth.DstMAC = eth.DstMAC, eth.SrcMAC
	}
	var ip interface {
		gopacket.NetworkLayer
		gopacket.SerializableLayer
	}
	proto := map[string]layers.IPProtocol{"udp": layers.IPProtocolUDP, "tcp": layers.IPProtocolTCP}[f[0]]
	if src.Addr().Is4() {
		ip = &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	}
	parts := []gopacket.SerializableLayer{eth, ip}
	if f[0] == "udp" {
		l := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
		_ = l.SetNetworkLayerForChecksum(ip)
		parts = append(parts, l)
	} else {
		l := &layers.TCP{SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), Seq: 1, Window: 1000, SYN: len(f) > 3, ACK: len(f) == 3}
		_ = l.SetNetworkLayerForChecksum(ip)
		parts = append(parts, l)
	}
	buf := gopacket.NewSerializeBuffer()
	parts = append(parts, gopacket.Payload(bytes.Repeat([]byte{number}, 30)))
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, parts...); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// TestCases: `weir function test` sends each case's frames to the real image, and what comes out is what is expected, both ways.
func TestCases(t *testing.T) {
	bin, _, err := rig.Programs()
	must(t, err)
	top, err := rig.Top()
	must(t, err)
	folders := map[string]bool{}
	for name, c := range cases {
		dir := filepath.Join(top, "catalogue", name)
		if *update {
			write(t, filepath.Join(dir, "in.pcap"), c.in)
			write(t, filepath.Join(dir, "reverse.pcap"), c.reverse)
			write(t, filepath.Join(dir, "expect-reverse.pcap"), nil) // the command writes anew what is there
		}
		folders[strings.Split(name, "/")[0]] = true
	}
	for folder := range folders {
		t.Run(folder, func(t *testing.T) {
			argv := []string{"function", "test", "catalogue/" + folder}
			if *update {
				argv = append(argv, "--update")
			}
			c := exec.CommandContext(t.Context(), bin, argv...)
			c.Dir = top
			if out, err := c.CombinedOutput(); err != nil || !*update && !strings.Contains(string(out), "PASS") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func write(t *testing.T, file string, frames [][]byte) {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	must(t, w.WriteFileHeader(65536, layers.LinkTypeEthernet))
	for i, f := range frames {
		must(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1e9, int64(i)*1e6), CaptureLength: len(f), Length: len(f)}, f))
	}
	must(t, os.WriteFile(file, b.Bytes(), 0o644))
}
