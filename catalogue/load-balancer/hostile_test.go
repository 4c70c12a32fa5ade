package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// besieged has services of both families; a target of IPv4 is the server that is there. Nothing is asked for, so that all frames can be told.
const besieged = `{"services": {
	"web": {"address": "10.77.0.100", "protocol": "tcp", "port": 80, "targets": [{"address": "10.77.0.2", "port": 8080, "mac": "%[1]s"}]},
	"dns": {"address": "10.77.0.100", "protocol": "udp", "port": 53, "targets": [{"address": "10.1.1.9", "port": 5353, "mac": "02:00:00:00:01:01"}, {"address": "10.1.1.8", "port": 5353, "mac": "02:00:00:00:01:02"}]},
	"web6": {"address": "fd00::100", "protocol": "tcp", "port": 80, "targets": [{"address": "fd00::9", "port": 8080, "mac": "02:00:00:00:01:01"}]},
	"dns6": {"address": "fd00::100", "protocol": "udp", "port": 53, "targets": [{"address": "fd00::9", "port": 5353, "mac": "02:00:00:00:01:01"}]}}, "connections": 4096}`

// lengthless makes the payload length of IPv6 0, as jumbograms have it, without their option: Linux takes all that is there for the packet.
func lengthless(f []byte) []byte {
	f = slices.Insert(bytes.Clone(f), 54, f[20], 0, 1, 4, 0, 0, 0, 0)
	f[18], f[19], f[20] = 0, 0, unix.IPPROTO_HOPOPTS
	return f
}

// A packet without a length reaches no target, and does not pass to a virtual address.
func TestPacketsWithoutALength(t *testing.T) {
	l := newLab(t, small)
	for to, want := range map[string]bool{"[2001:db8::100]:80": false, "[2001:db8::1:1]:8080": false, "[2001:db8::1:1]:9": false, "[2001:db8::7]:9": true} {
		if f := lengthless(packet(t, "tcp [2001:db8::9]:1000 "+to+" syn", nil)); (l.give(nf.Up, f) != nil) != want {
			t.Errorf("to %s: passes %t", to, !want)
		}
	}
}

// Hostile frames by both ports, up to jumbo frames: what is to a virtual address goes to a target or nowhere, and to a target's port goes nothing else. Then a client is
// served as ever. They are 500,000, to save time: TestAMillionFrames has more, without the sockets.
func TestHostileFrames(t *testing.T) {
	r := rig.New(t, false)
	mac := r.Server.Link.MAC
	p := launch(t, r, fmt.Sprintf(besieged, fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])))
	virtual := []netip.Addr{netip.MustParseAddr("10.77.0.100"), netip.MustParseAddr("fd00::100")}
	targets := map[place]bool{}
	for _, a := range []string{"10.77.0.2:8080", "[fd00::9]:8080"} {
		targets[place{nf.TCP, netip.MustParseAddrPort(a)}] = true
	}
	for _, a := range []string{"10.1.1.9:5353", "10.1.1.8:5353", "[fd00::9]:5353"} {
		targets[place{nf.UDP, netip.MustParseAddrPort(a)}] = true
	}
	isTarget := func(a netip.Addr) bool {
		for x := range targets {
			if x.at.Addr() == a {
				return true
			}
		}
		return false
	}
	var seeds [][]byte
	for _, text := range []string{
		"tcp 10.1.1.1:1000 10.77.0.100:80 syn", "tcp 10.1.1.1:1000 10.77.0.100:80 ack", "tcp 10.1.1.1:1000 10.77.0.100:80 fin ack", "udp 10.1.1.1:1000 10.77.0.100:53", "tcp 10.1.1.1:1000 10.77.0.100:81 syn",
		"tcp [fd00::1]:1000 [fd00::100]:80 syn", "tcp [fd00::1]:1000 [fd00::100]:80 ack", "udp [fd00::1]:1000 [fd00::100]:53", "udp [fd00::1]:1000 [fd00::100]:7",
		"tcp 10.1.1.1:1000 10.77.0.2:8080 syn", "tcp 10.1.1.1:1000 10.77.0.2:8080 ack", "udp 10.1.1.1:1000 10.1.1.9:5353", "tcp [fd00::1]:1000 [fd00::9]:8080 syn", "udp [fd00::1]:1000 [fd00::9]:5353", // beside the virtual places
		"tcp 10.77.0.2:8080 10.1.1.1:1000 syn ack", "tcp 10.77.0.2:8080 10.1.1.1:1000 ack", "udp 10.1.1.9:5353 10.1.1.1:1000", "tcp [fd00::9]:8080 [fd00::1]:1000 ack", "udp [fd00::9]:5353 [fd00::1]:1000",
	} {
		seeds = append(seeds, packet(t, text, bytes.Repeat([]byte("data"), 20)))
		if strings.Contains(text, "8080") && strings.Contains(text, "ack") {
			quoted := packet(t, text, nil)
			for _, from := range []string{"10.1.1.1:0 10.77.0.100:0", "10.9.9.9:0 10.1.1.1:0"} {
				f := packet(t, "udp "+from, quoted[14:])
				f[23] = unix.IPPROTO_ICMP
				copy(f[34:], []byte{3, 4, 0, 0, 0, 0, 5, 0}) // too big; its checksum is put right, often
				seeds = append(seeds, f)
			}
		}
	}
	for _, to := range []string{"[fd00::100]:80", "[fd00::9]:8080"} {
		seeds = append(seeds, lengthless(packet(t, "tcp [fd00::1]:1000 "+to+" syn", nil)))
	}
	speaks := r.Speaks()
	rig.Hostile{
		Frames: 500_000, MTU: 9000, MemoryKB: 40 << 10, Pass: 0.2, Seeds: seeds,
		Denied: func(up bool, f []byte) string {
			if r := rig.Read(f); up && r.Proper && r.Outside() && slices.Contains(virtual, r.Dst) {
				return "to a virtual address"
			}
			return ""
		},
		AsSent: func(up bool, f []byte) string {
			r := rig.Read(f)
			if _, port := r.Ports(); up && r.Proper && r.Outside() && port >= 0 && targets[place{uint8(r.Proto), netip.AddrPortFrom(r.Dst, uint16(port))}] {
				return "to a target beside the virtual place"
			}
			return ""
		},
		Changed: func(f []byte) bool { // rewritten, or the function's answers in the place of virtual addresses
			p := nf.Decode(f)
			return speaks(f) || p.Bad == "" && (isTarget(p.Dst) || slices.Contains(virtual, p.Src) || p.Proto == nf.ICMP || p.Proto == nf.ICMPv6)
		},
	}.Send(r, p.PID())
	p.Signal(syscall.SIGUSR1)
	p.Await("msg=counter connections")
	t.Log(p.Output()[strings.LastIndex(p.Output(), "msg=counter"):])
	r.Server.Echo("10.77.0.2:8080")
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.100:80")
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(rig.Patience)))
	want := bytes.Repeat([]byte("all bytes come, in order. "), 10_000)
	go func() { _, _ = c.Write(want) }()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("other bytes came back: %v", err)
	}
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
}
