package main

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// A rule, and frames that it is about: more are made of these.
const evilRule = `udp any any -> any any (msg:\"bad\"; content:\"evil-word\"; sid:1;)`

func evilFrames() [][]byte {
	word := []byte("an evil-word")
	six := append([]byte{0x60, 0, 0, 0, 0, 20, 17, 64, 0xfd, 15: 0, 23: 1, 24: 0xfd, 39: 2}, 4, 210, 0, 9, 0, 20, 0, 1) // its checksum is put right, often
	return [][]byte{
		frame([]byte{8, 0}, udp(word)), frame([]byte{0x81, 0, 0x20, 7, 8, 0}, udp(word)), frame([]byte{8, 0}, udp(bytes.Repeat(word, 100))), frame([]byte{0x86, 0xdd}, six, word), lengthless,
	}
}

// lengthless is a datagram by IPv6 whose packet has the length 0 and a hop-by-hop header, as a jumbogram has: Linux takes all that is there.
var lengthless = frame([]byte{0x86, 0xdd}, append([]byte{0x60, 0, 0, 0, 0, 0, 0, 64, 0xfd, 15: 0, 23: 1, 24: 0xfd, 39: 2}, 17, 0, 1, 4, 0, 0, 0, 0, 4, 210, 0, 9, 0, 20, 0x2b, 0xed), []byte("an evil-word"))

// evil says why a frame must not pass: a station takes it for a datagram that the rule drops.
func evil(_ bool, b []byte) string {
	if r := rig.Read(b); len(r.VLANs) <= 2 && r.Headers == 1 && r.Proto == unix.IPPROTO_UDP && bytes.Contains(r.Data(), []byte("evil-word")) && nf.Decode(b).Bad == "IPv6 lengths" {
		return "a rule drops it, and its packet has no length"
	}
	p := nf.Decode(b)
	if p.Bad != "" || p.Proto != nf.UDP || p.Part != nf.Whole || !p.Intact(b) || p.Type == nf.EtherIPv4 && !proper(b[p.Network+20:p.Transport]) {
		return ""
	}
	for _, tunnel := range []uint16{3544, 4789, 6081} { // Teredo, VXLAN, GENEVE: rules see what is within
		if p.SrcPort == tunnel || p.DstPort == tunnel {
			return ""
		}
	}
	if bytes.Contains(p.Data(b), []byte("evil-word")) {
		return "a rule drops it"
	}
	return ""
}

// proper options of IPv4: stations take no packet with others, and Suricata does not look into it.
func proper(options []byte) bool {
	for len(options) > 0 && options[0] != 0 {
		n := 1
		if options[0] != 1 {
			if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) {
				return false
			}
			n = int(options[1])
		}
		options = options[n:]
	}
	return true
}

// retagged are the frames that Suricata makes another one of: it writes the outer tag of 802.1ad as one of 802.1Q, and leaves out one of VLAN 0 and priority 0.
func retagged(f []byte) (all [][]byte) {
	if f[12] == 0x81 && f[13] == 0 {
		was := bytes.Clone(f)
		was[12], was[13] = 0x88, 0xa8
		all = append(all, was)
	}
	for _, tag := range [][]byte{{0x81, 0, 0, 0}, {0x88, 0xa8, 0, 0}} {
		all = append(all, slices.Insert(bytes.Clone(f), 12, tag...))
	}
	return all
}

// again tells whether a frame may repeat bytes of a TCP stream: with other content, it leaves with that of the first. Suricata finds TCP behind more headers of
// IPv6 and more VLAN tags than we do.
func again(f []byte) bool {
	p := nf.Decode(f)
	return p.Proto == nf.TCP || p.Type == nf.EtherIPv6 && p.Proto != nf.UDP || p.TagCount == len(p.Tags) && p.Bad != ""
}

// resident is what Suricata may need: less than the 512 MiB that a function has by default.
const resident = 400 << 10

// Frames that no honest station sends: Suricata goes on, what a rule drops does not pass, and what passes is as it came.
func testHostile(t *testing.T, root string) {
	r, p, _ := start(t, root, `{"rules": "drop `+evilRule+`"}`)
	rig.Hostile{Frames: 1_000_000, MemoryKB: resident, Seeds: evilFrames(), Denied: evil, Was: retagged, Changed: again, Pass: 0.3}.Send(r, p.PID())
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
}

// Behind a tap Suricata goes on, too, and raises an alert about the frame behind them.
func testHostileTap(t *testing.T, root string) {
	r, file := rig.New(t, true), filepath.Join(t.TempDir(), "config.json")
	write(t, file, `{"rules": "alert `+strings.Replace(evilRule, "evil-word", "after-all", 1)+`"}`)
	p := launch(t, r, root, file, "-tap")
	rig.Hostile{Frames: 1_000_000, MemoryKB: resident}.Send(r, p.PID())
	for deadline := time.Now().Add(rig.Patience); !strings.Contains(p.Output(), "msg=alert sid=1 rule=bad"); <-time.After(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no alert:\n%s", p.Output())
		}
		r.Client.Send(frame([]byte{8, 0}, udp([]byte("after-all"))))
	}
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
}
