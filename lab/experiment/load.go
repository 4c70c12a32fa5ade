package experiment

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/xdp"
)

// Factors of what a generator sends.
const (
	factorSize = "size"
	factorIP   = "ip"
	factorVLAN = "vlan"
)

const imix = "imix"

// load is what a generator sends, as levels say it.
type load struct {
	sizes []int // on the wire, with FCS
	flows int
	six   bool
	vlan  int
}

// loadFactors are the factors of a load.
func loadFactors() []Factor {
	return []Factor{
		{Name: factorSize, About: "bytes of a frame as the papers count: 64 with the FCS, larger ones without; or imix (7, 4 and 1 of 64, 594 and 1518)", Default: "64",
			Check: func(level string) error { _, err := sizes(level); return err }},
		{Name: factorFlows, About: "UDP flows, by source port; with chains side by side a multiple of these, by default one for each", Default: "1", Check: between(1, xdp.MaxSlots, "a number of flows")},
		{Name: factorIP, About: "version of IP", Default: "4", Check: oneOf("4", "6")},
		{Name: factorVLAN, About: "VLAN of the frames' tag, 0 untagged", Default: "0", Check: between(0, 4094, "a VLAN")},
	}
}

// sizes on the wire of a level of the factor size.
func sizes(level string) ([]int, error) {
	if level == imix {
		return traffic.IMIX(), nil
	}
	n, err := strconv.Atoi(level)
	if err != nil || n < traffic.MinFrame-traffic.FCS || n > traffic.MaxFrame {
		return nil, fmt.Errorf("size %q: want bytes of a frame, %d to %d, or %s", level, traffic.MinFrame-traffic.FCS, traffic.MaxFrame, imix)
	}
	if n <= traffic.MinFrame {
		return []int{traffic.MinFrame}, nil
	}
	return []int{min(n+traffic.FCS, traffic.MaxFrame)}, nil
}

// loadOf levels that were checked one by one says why they do not go together.
func loadOf(l Levels) (load, error) {
	s, err := sizes(l.or(factorSize, "64"))
	chains := l.number(factorParallel, "1")
	x := load{sizes: s, flows: l.number(factorFlows, strconv.Itoa(chains)), six: l.or(factorIP, "4") == "6", vlan: l.number(factorVLAN, "0")}
	if err != nil {
		return x, err
	}
	if x.flows%chains != 0 {
		return x, fmt.Errorf("%d flows and %d chains side by side: want as many flows for each", x.flows, chains)
	}
	if n := x.flows * len(x.sizes); n > xdp.MaxSlots {
		return x, fmt.Errorf("%d flows of %d sizes: want at most %d of both together", x.flows, len(x.sizes), xdp.MaxSlots)
	}
	if l.or(factorSize, "") == imix { // the smallest that such a flow can have
		for i := range x.sizes {
			x.sizes[i] = max(x.sizes[i], x.flow(platform.Path{}, [6]byte{}, [6]byte{}, 0).Least())
		}
	}
	return x, x.spec(platform.Path{}, [6]byte{}, [6]byte{}, time.Second).Validate()
}

// Addresses of flows of version 6; no station has them, and none is asked.
var (
	sourceSix = netip.MustParseAddr("fd00:9::1")
	targetSix = netip.MustParseAddr("fd00:9::2")
)

const (
	firstPort  = 1024
	targetPort = 9
)

func (x load) flow(p platform.Path, from, to [6]byte, i int) traffic.Flow {
	f := traffic.Flow{SrcMAC: from, DstMAC: to, Src: p.Source, Dst: p.Address, SrcPort: uint16(firstPort + i), DstPort: targetPort, VLAN: uint16(x.vlan)}
	if p.Chains > 1 && i%p.Chains > 0 {
		f.SrcMAC = platform.SourceMAC(i % p.Chains)
	}
	if !f.Src.IsValid() {
		f.Src, f.Dst = netip.IPv4Unspecified(), netip.IPv4Unspecified()
	}
	if x.six {
		f.Src, f.Dst = sourceSix, targetSix
	}
	return f
}

// spec of a run over a path.
func (x load) spec(p platform.Path, from, to [6]byte, length time.Duration) traffic.Spec {
	s := traffic.Spec{Sizes: x.sizes, Duration: length}
	for i := range x.flows {
		s.Flows = append(s.Flows, x.flow(p, from, to, i))
	}
	return s
}
