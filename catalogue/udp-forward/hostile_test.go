package main

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// Hostile frames by both ports, up to jumbo frames: nothing that is for the function passes, and what it sends on is a right datagram to a configured place. Then datagrams are
// sent on as ever. They are 500,000, to save time: TestAMillionFrames has more, without the sockets.
func TestHostileFrames(t *testing.T) {
	r, p := start(t, both)
	own := []netip.Addr{netip.MustParseAddr("10.77.0.9"), netip.MustParseAddr("2001:db8:77::9")}
	sentOn := map[[2]netip.AddrPort]bool{}
	for from, to := range map[string]string{"10.77.0.9:7000": "10.77.0.2:7001", "[2001:db8:77::9]:7000": "[2001:db8:77::2]:7001", "10.77.0.9:7002": "10.77.0.2:7002"} {
		sentOn[[2]netip.AddrPort{netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)}] = true
	}
	var seeds [][]byte
	for _, v6 := range []bool{false, true} {
		for _, port := range []uint16{7000, 7002, 9} {
			seeds = append(seeds, datagram(v6, port, bytes.Repeat([]byte("some data"), 10)))
		}
		tcp := datagram(v6, 80, make([]byte, 40))
		tcp[map[bool]int{false: 23, true: 20}[v6]] = nf.TCP
		seeds = append(seeds, tcp)
	}
	speaks, relayed := r.Speaks(), 0
	rig.Hostile{
		Frames: 500_000, MTU: 9000, MemoryKB: 40 << 10, Pass: 0.2, Seeds: seeds,
		AsSent: func(_ bool, f []byte) string {
			if r := rig.Read(f); r.Proper && len(r.VLANs) <= 2 && slices.Contains(own, r.Dst) {
				return "to the function's own address"
			}
			return ""
		},
		Changed: func(f []byte) bool { // what stations and the function say for themselves, and what is sent on
			p := nf.Decode(f)
			if p.Proto != nf.UDP || !slices.Contains(own, p.Src) {
				return speaks(f)
			}
			hops := f[p.Network+8]
			if p.Type == nf.EtherIPv6 {
				hops = f[p.Network+7]
			}
			relayed++
			return speaks(f) && p.Bad == "" && p.Part == nf.Whole && p.TagCount == 0 && p.Intact(f) && hops == 64 && sentOn[[2]netip.AddrPort{netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)}]
		},
	}.Send(r, p.PID())
	p.Signal(syscall.SIGUSR1)
	p.Await("msg=counter forwarded=")
	t.Log(p.Output()[strings.LastIndex(p.Output(), "msg=counter"):])
	if relayed == 0 {
		t.Error("nothing was sent on: this tested less than it says")
	}
	for at, to := range map[string]string{"10.77.0.9:7000": "10.77.0.2:7001", "[2001:db8:77::9]:7000": "[2001:db8:77::2]:7001"} {
		l := listen(t, r.Server, to)
		c, err := r.Client.Dial(t.Context(), "udp", at)
		must(t, err)
		defer c.Close()
		got := make([]byte, 64)
		rig.Eventually(t, "a datagram to "+at, func() bool {
			_, err := c.Write([]byte("after all"))
			must(t, err)
			must(t, l.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
			n, from, err := l.ReadFrom(got)
			return err == nil && string(got[:n]) == "after all" && from.String() == at
		})
	}
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
}
