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

// transferOf levels: what nuttcp is called with in a guest, whether by UDP, and whether to the guest.
func transferOf(l Levels, length time.Duration) (argv []string, datagrams, back bool) {
	protocol, back := strings.CutPrefix(l.or(factorTransfer, protocolTCP), reverse)
	argv = []string{guest.Program("nuttcp"), "-fparse", "-T" + seconds(length), "-R" + l.or(factorOffered, defaultOffered) + "m"}
	if protocol == protocolUDP {
		argv = append(argv, "-u", "-l"+strconv.Itoa(datagram))
	}
	if back {
		argv = append(argv, "-r")
	}
	_, peer := platform.LineAddresses()
	return append(argv, peer.Addr().String()), protocol == protocolUDP, back
}

// nuttcp runs a transfer in a guest, and tells what the cable carried meanwhile, in bits.
func nuttcp(ctx context.Context, g *guest.Guest, argv []string, back bool) (s tools.Stream, carried uint64, err error) {
	end, err := tools.ServeNuttcp(ctx, g.Line().Peer)
	if err != nil {
		return s, 0, err
	}
	defer end()
	count := func() uint64 {
		there, here, cerr := g.Line().Carried()
		err = errors.Join(err, cerr)
		if back {
			return here
		}
		return there
	}
	before := count()
	out, rerr := g.Run(ctx, argv...)
	carried = count() - before
	if err := errors.Join(rerr, err); err != nil {
		return s, 0, err
	}
	if s, err = tools.ParseNuttcp(out); err == nil && s.Seconds <= 0 {
		err = misread("nuttcp", out)
	}
	s.Raw = tools.Raw{Argv: argv, Output: out}
	return s, carried, err
}

func measureTransfer(ctx context.Context, h *hosted, length time.Duration) (Measurement, error) {
	length = atLeast(length, leastTransfer).Round(time.Second)
	argv, datagrams, back := transferOf(h.levels, length)
	ctx, cancel := context.WithTimeout(ctx, length+transferGrace)
	defer cancel()
	s, carried, err := nuttcp(ctx, h.guests[0], argv, back)
	if err != nil {
		return Measurement{}, err
	}
	sending := max(s.Seconds, length.Seconds()) // a receiver may see less of it
	m := Measurement{Raw: s, Values: map[string]float64{"rate": s.BitsPerSec / 1e6, "line": float64(carried) / sending / 1e6}}
	if datagrams {
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
