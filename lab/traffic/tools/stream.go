package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Stream is one bulk transfer, as its receiver saw it. Lost and Datagrams are of UDP, Retransmits and Congestion of TCP.
type Stream struct {
	Raw         Raw     `json:"raw"`
	BitsPerSec  float64 `json:"bits_per_second"`
	Bytes       uint64  `json:"bytes"`
	Seconds     float64 `json:"seconds"`
	Retransmits int     `json:"retransmits,omitempty"`
	Congestion  string  `json:"congestion,omitempty"`
	Lost        int     `json:"lost,omitempty"`
	Datagrams   int     `json:"datagrams,omitempty"`
	SenderCPU   float64 `json:"sender_cpu_percent,omitempty"`   // of one core
	ReceiverCPU float64 `json:"receiver_cpu_percent,omitempty"` //
}

// StreamOptions of one transfer. Rate > 0 makes it UDP with that many bits a second.
type StreamOptions struct {
	From, To string     // namespaces
	Address  netip.Addr // of the receiver
	Duration time.Duration
	Warm     time.Duration // iperf3: whole seconds before it that do not count
	Rate     float64
	Streams  int // 0: 1
	Message  int // bytes of a write; 0: the program's default

	CPU *int // iperf3: of both ends, which then have the same real-time priority: they do not interrupt each other; nil: wherever they come to run

	Congestion string // iperf3 and iperf: control of the sender; empty: that of its namespace. nuttcp cannot choose
}

func (o StreamOptions) seconds() string {
	return strconv.Itoa(int(max(o.Duration, time.Second).Round(time.Second) / time.Second))
}

// RealTime is the program that gives others a real-time priority.
const RealTime = "chrt"

const (
	iperf3Port = 5201
	iperf2Port = 5001
	nuttcpPort = 5000
)

// RunIPerf3 runs one transfer of iperf3.
func RunIPerf3(ctx context.Context, o StreamOptions) (Stream, error) {
	var first []string
	if o.CPU != nil {
		first = []string{RealTime, "-r", "1"} // not -f: both ends share a CPU
	}
	end, err := server(ctx, o.To, "tcp", iperf3Port, append(slices.Clone(first), "iperf3", "-s", "-1")...)
	if err != nil {
		return Stream{}, err
	}
	defer end()
	argv := []string{"iperf3", "-J", "-c", o.Address.String(), "-t", o.seconds(), "-P", strconv.Itoa(max(o.Streams, 1))}
	if o.Message > 0 {
		argv = append(argv, "-l", strconv.Itoa(o.Message))
	}
	if o.Congestion != "" {
		argv = append(argv, "-C", o.Congestion)
	}
	if o.Warm > 0 {
		argv = append(argv, "-O", strconv.Itoa(int(o.Warm/time.Second)))
	}
	if o.Rate > 0 {
		argv = append(argv, "-u", "-b", strconv.FormatFloat(o.Rate, 'f', 0, 64))
	}
	if o.CPU != nil {
		argv = append(argv, "-A", fmt.Sprintf("%d,%d", *o.CPU, *o.CPU))
	}
	raw, err := client(ctx, o.From, append(first, argv...)...)
	if o.CPU != nil {
		raw.Version = version("iperf3")
	}
	s, perr := ParseIPerf3(raw.Output)
	s.Raw = raw
	return s, cmpErr(perr, err)
}

// cmpErr prefers what the program itself says is wrong.
func cmpErr(parsed, ran error) error {
	if ran != nil && parsed != nil {
		return fmt.Errorf("%w (%w)", parsed, ran)
	}
	return errors.Join(parsed, ran)
}

// ParseIPerf3 reads the output of iperf3 -J.
func ParseIPerf3(out string) (Stream, error) {
	type sum struct {
		Bytes       uint64
		Seconds     float64
		Bits        float64 `json:"bits_per_second"`
		Retransmits int
		Lost        int `json:"lost_packets"`
		Packets     int
	}
	var r struct {
		Error string
		End   struct {
			Sent       *sum   `json:"sum_sent"`
			Received   *sum   `json:"sum_received"`
			Congestion string `json:"sender_tcp_congestion"`
			CPU        struct {
				Host   float64 `json:"host_total"`
				Remote float64 `json:"remote_total"`
			} `json:"cpu_utilization_percent"`
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return Stream{}, fmt.Errorf("iperf3: %w in %q", err, short(out))
	}
	if r.Error != "" {
		return Stream{}, fmt.Errorf("iperf3: %s", r.Error)
	}
	if r.End.Received == nil || r.End.Sent == nil {
		return Stream{}, errors.New("iperf3: it does not say what was received")
	}
	return sound("iperf3", out, Stream{
		BitsPerSec: r.End.Received.Bits, Bytes: r.End.Received.Bytes, Seconds: r.End.Received.Seconds, Retransmits: r.End.Sent.Retransmits,
		Congestion: r.End.Congestion, Lost: r.End.Received.Lost, Datagrams: r.End.Received.Packets, SenderCPU: r.End.CPU.Host, ReceiverCPU: r.End.CPU.Remote,
	})
}

// sound is a stream's figures if they are some: programs divide by zero, too, and results cannot hold what comes of it.
func sound(program, out string, s Stream) (Stream, error) {
	ok := s.Retransmits >= 0 && s.Datagrams >= 0
	for _, v := range []float64{s.BitsPerSec, s.Seconds, s.SenderCPU, s.ReceiverCPU} {
		ok = ok && v >= 0 && v <= math.MaxFloat64
	}
	if !ok {
		return Stream{}, fmt.Errorf("%s: figures below zero or without end: %q", program, short(out))
	}
	return s, nil
}

// RunIPerf2 runs one TCP transfer of iperf 2. What it tells is what the sender's sockets took.
func RunIPerf2(ctx context.Context, o StreamOptions) (Stream, error) {
	if o.Rate > 0 {
		return Stream{}, errors.New("iperf 2 with UDP: only the sender's side would be known; use iperf3 or nuttcp")
	}
	end, err := server(ctx, o.To, "tcp", iperf2Port, "iperf", "-s")
	if err != nil {
		return Stream{}, err
	}
	defer end()
	argv := []string{"iperf", "-y", "C", "-c", o.Address.String(), "-t", o.seconds(), "-P", strconv.Itoa(max(o.Streams, 1))}
	if o.Message > 0 {
		argv = append(argv, "-l", strconv.Itoa(o.Message))
	}
	if o.Congestion != "" {
		argv = append(argv, "-Z", o.Congestion)
	}
	raw, err := client(ctx, o.From, argv...)
	if err != nil {
		return Stream{Raw: raw}, err
	}
	s, err := ParseIPerf2(raw.Output)
	s.Raw = raw
	return s, err
}

// ParseIPerf2 reads the output of iperf -y C. The last line is that of all streams together.
func ParseIPerf2(out string) (Stream, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	f := strings.Split(lines[len(lines)-1], ",") // time, source, port, destination, port, id, interval, bytes, bits/s
	if len(f) < 9 {
		return Stream{}, fmt.Errorf("iperf: want at least 9 fields: %q", short(out))
	}
	from, to, ok := strings.Cut(f[6], "-")
	begin, err1 := strconv.ParseFloat(from, 64)
	end, err2 := strconv.ParseFloat(to, 64)
	bytes, err3 := strconv.ParseUint(f[7], 10, 64)
	bits, err4 := strconv.ParseFloat(f[8], 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil || !ok {
		return Stream{}, fmt.Errorf("iperf: %q: %w", short(out), err)
	}
	return sound("iperf", out, Stream{BitsPerSec: bits, Bytes: bytes, Seconds: end - begin})
}

// RunNuttcp runs one transfer of nuttcp.
func RunNuttcp(ctx context.Context, o StreamOptions) (Stream, error) {
	end, err := ServeNuttcp(ctx, o.To)
	if err != nil {
		return Stream{}, err
	}
	defer end()
	argv := []string{"nuttcp", "-fparse", "-T" + o.seconds()}
	if o.Streams > 1 {
		argv = append(argv, "-N"+strconv.Itoa(o.Streams))
	}
	if o.Message > 0 {
		argv = append(argv, "-l"+strconv.Itoa(o.Message))
	}
	if o.Rate > 0 {
		argv = append(argv, "-u", "-R"+strconv.FormatFloat(o.Rate/1e6, 'f', 3, 64)+"m")
	}
	raw, err := client(ctx, o.From, append(argv, o.Address.String())...)
	if err != nil {
		return Stream{Raw: raw}, err
	}
	s, err := ParseNuttcp(raw.Output)
	s.Raw = raw
	return s, err
}

// ServeNuttcp starts a server in a namespace that takes one transfer, in either direction. The caller ends it.
func ServeNuttcp(ctx context.Context, space string) (end func(), err error) {
	return server(ctx, space, "tcp", nuttcpPort, "nuttcp", "-S", "-1", "--nofork")
}

// ParseNuttcp reads the output of nuttcp -fparse.
func ParseNuttcp(out string) (Stream, error) {
	v := map[string]float64{}
	for _, pair := range strings.Fields(out) {
		name, text, ok := strings.Cut(pair, "=")
		if !ok {
			return Stream{}, fmt.Errorf("nuttcp: %q", short(out))
		}
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return Stream{}, fmt.Errorf("nuttcp: %s: %w", name, err)
		}
		v[name] = x
	}
	for _, name := range []string{"megabytes", "real_seconds", "rate_Mbps"} {
		if _, ok := v[name]; !ok {
			return Stream{}, fmt.Errorf("nuttcp: no %s in %q", name, short(out))
		}
	}
	for _, name := range []string{"megabytes", "retrans", "drop", "pkt"} {
		if n := v[name]; !(n >= 0 && n < 1<<40) { // also what is no number
			return Stream{}, fmt.Errorf("nuttcp: %s=%v in %q", name, n, short(out))
		}
	}
	return sound("nuttcp", out, Stream{
		BitsPerSec: v["rate_Mbps"] * 1e6, Bytes: uint64(v["megabytes"] * (1 << 20)), Seconds: v["real_seconds"], Retransmits: int(v["retrans"]),
		Lost: int(v["drop"]), Datagrams: int(v["pkt"]), SenderCPU: v["tx_cpu"], ReceiverCPU: v["rx_cpu"],
	})
}
