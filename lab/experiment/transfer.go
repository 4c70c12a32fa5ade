package experiment

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/lab/guest"
	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic/rr"
	"weir.dev/weir/lab/traffic/tools"
)

// Factors of transfers and of requests between a guest and its peer.
const (
	factorTransfer = "transfer"
	factorOffered  = "offered"
	factorProtocol = "protocol"
	factorBytes    = "bytes"
	reverse        = "reverse-"
	protocolTCP    = "tcp"
	protocolUDP    = "udp"
	defaultOffered = "1100"
	defaultBytes   = "200"
	leastTransfer  = time.Second // nuttcp counts in whole seconds
	datagram       = 1448        // bytes: of more than a segment of its own connection nuttcp fears fragments
	echoPort       = 7007
	transferGrace  = 30 * time.Second
)

func lineGuest(ctx context.Context, s *guest.Site, l Levels) ([]*guest.Guest, error) {
	return one(ctx, s, l, guest.Spec{Mbits: l.number(factorLine, defaultLine), Memory: memoryOf(l, "512")})
}

// transferExperiment is what nuttcp's receiver gets of an offered rate.
func transferExperiment() Experiment {
	return &inside{
		name: "transfer", about: "nuttcp from a guest to a peer over a cable of a given rate, or back; what the receiver got, and what the cable carried",
		metrics:  map[string]string{"rate": "Mb/s", "line": "Mb/s", "loss": "%", "retransmits": "segments"},
		programs: []string{"nuttcp", "busybox"}, guests: lineGuest, measure: measureTransfer,
		more: []Factor{
			{Name: factorTransfer, About: "protocol and direction: from the guest, or " + reverse + ": to it", Default: protocolTCP,
				Check: oneOf(protocolTCP, reverse+protocolTCP, protocolUDP, reverse+protocolUDP)},
			{Name: factorOffered, About: "Mb/s that the sender offers", Default: defaultOffered, Check: between(1, 100_000, "Mb/s")},
			lineFactor(), memoryFactor("512", "containers and machines"),
		},
	}
}

func measureTransfer(ctx context.Context, h *hosted, length time.Duration) (Measurement, error) {
	g := h.guests[0]
	_, peer := platform.LineAddresses()
	protocol, back := strings.CutPrefix(h.levels.or(factorTransfer, protocolTCP), reverse)
	if !back {
		protocol = h.levels.or(factorTransfer, protocolTCP)
	}
	argv := []string{guest.Program("nuttcp"), "-fparse", "-T" + seconds(atLeast(length, leastTransfer).Round(time.Second)), "-R" + h.levels.or(factorOffered, defaultOffered) + "m"}
	if protocol == protocolUDP {
		argv = append(argv, "-u", "-l"+strconv.Itoa(datagram))
	}
	if back {
		argv = append(argv, "-r")
	}
	ctx, cancel := context.WithTimeout(ctx, length+transferGrace)
	defer cancel()
	end, err := tools.ServeNuttcp(ctx, g.Line().Peer)
	if err != nil {
		return Measurement{}, err
	}
	defer end()
	there, here, err := g.Line().Carried()
	if err != nil {
		return Measurement{}, err
	}
	out, err := g.Run(ctx, append(argv, peer.Addr().String())...)
	if err != nil {
		return Measurement{}, err
	}
	s, err := tools.ParseNuttcp(out)
	if err != nil {
		return Measurement{}, err
	}
	there2, here2, err := g.Line().Carried()
	if err != nil {
		return Measurement{}, err
	}
	carried := there2 - there
	if back {
		carried = here2 - here
	}
	if s.Seconds <= 0 {
		return Measurement{}, misread("nuttcp", out)
	}
	s.Raw = tools.Raw{Argv: argv, Output: out}
	m := Measurement{Raw: s, Values: map[string]float64{"rate": s.BitsPerSec / 1e6, "line": float64(carried) / s.Seconds / 1e6}}
	if protocol == protocolUDP {
		m.Values["loss"] = 100 * float64(s.Lost) / max(1, float64(s.Datagrams))
	} else {
		m.Values["retransmits"] = float64(s.Retransmits)
	}
	return m, nil
}

// exchangeExperiment is requests to a guest.
func exchangeExperiment() Experiment {
	return &inside{
		name: "exchange", about: "requests of a peer to a program in a guest, which sends them back, one at a time; latency is half of the mean round trip, 10^6 / (2 rate)",
		metrics:  map[string]string{"rate": "transactions/s", "latency": "us", "p50": "us", "p99": "us"},
		programs: []string{"busybox"}, guests: lineGuest, measure: measureExchange,
		more: []Factor{
			{Name: factorProtocol, About: "of the requests", Default: protocolTCP, Check: oneOf(protocolTCP, protocolUDP)},
			{Name: factorBytes, About: "of a request, and of its answer", Default: defaultBytes, Check: between(8, rr.MaxDatagram, "bytes")},
			lineFactor(), memoryFactor("512", "containers and machines"),
		},
	}
}

func measureExchange(ctx context.Context, h *hosted, length time.Duration) (Measurement, error) {
	g := h.guests[0]
	own, _ := platform.LineAddresses()
	protocol := h.levels.or(factorProtocol, protocolTCP)
	o := rr.AskOptions{
		From: g.Line().Peer, To: netip.AddrPortFrom(own.Addr(), echoPort), Datagram: protocol == protocolUDP,
		Bytes: h.levels.number(factorBytes, defaultBytes), Duration: atLeast(length, 100*time.Millisecond),
	}
	ctx, cancel := context.WithTimeout(ctx, o.Duration+transferGrace)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		_, err := g.Run(ctx, guest.Probe, "echo", protocol, strconv.Itoa(echoPort))
		served <- err
	}()
	release := machine.Awake()
	r, err := rr.Ask(ctx, o)
	release()
	if err != nil {
		cancel() // the server may wait for somebody
	}
	if err = errors.Join(err, <-served); err != nil {
		return Measurement{}, err
	}
	if r.Transactions == 0 {
		return Measurement{}, fmt.Errorf("no transaction in %s", o.Duration)
	}
	m := Measurement{Sending: r.CPU, Values: map[string]float64{"rate": r.PerSec, "latency": 1e6 / (2 * r.PerSec)}}
	if err := r.Check(); err != nil {
		m.Void = err.Error()
	}
	for name, q := range map[string]float64{"p50": 0.5, "p99": 0.99} {
		if d, ok := r.Latency.Quantile(q); ok {
			m.Values[name] = micros(d)
		}
	}
	r.Latency.Buckets, r.PerConnection = nil, nil // what counts is in the values
	m.Raw = r
	return m, nil
}
