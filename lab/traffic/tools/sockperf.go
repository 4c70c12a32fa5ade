package tools

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"time"
)

// Latency is what sockperf's ping-pong tells: half of a round trip.
type Latency struct {
	Raw         Raw                       `json:"raw"`
	Mean        time.Duration             `json:"mean_ns"`
	Min         time.Duration             `json:"min_ns"`
	Max         time.Duration             `json:"max_ns"`
	Percentiles map[float64]time.Duration `json:"-"`
	Samples     int                       `json:"samples"`
	Dropped     int                       `json:"dropped"`
}

// MessageRate is what sockperf's throughput run tells: messages that the sender's socket took.
type MessageRate struct {
	Raw     Raw     `json:"raw"`
	PerSec  float64 `json:"messages_per_second"`
	MBytes  float64 `json:"mbytes_per_second"` // 2^20
	Message int     `json:"message_bytes"`
}

// SockperfOptions of one run.
type SockperfOptions struct {
	From, To string // namespaces
	Address  netip.Addr
	Duration time.Duration
	Message  int // bytes; at least 14
	TCP      bool
}

const sockperfPort = 11111

func (o SockperfOptions) run(ctx context.Context, what string) (Raw, error) {
	network, proto := "udp", []string(nil)
	if o.TCP {
		network, proto = "tcp", []string{"--tcp"}
	}
	to := []string{"-i", o.Address.String(), "-p", strconv.Itoa(sockperfPort)}
	end, err := server(ctx, o.To, network, sockperfPort, append(append([]string{"sockperf", "sr"}, proto...), to...)...)
	if err != nil {
		return Raw{}, err
	}
	defer end()
	argv := append(append([]string{"sockperf", what}, proto...), to...)
	return client(ctx, o.From, append(argv, "-t", strconv.Itoa(int(max(o.Duration, time.Second)/time.Second)), "-m", strconv.Itoa(o.Message))...)
}

// RunSockperfLatency is request and response, one at a time.
func RunSockperfLatency(ctx context.Context, o SockperfOptions) (Latency, error) {
	raw, err := o.run(ctx, "pp")
	if err != nil {
		return Latency{Raw: raw}, err
	}
	l, err := ParseSockperfLatency(raw.Output)
	l.Raw = raw
	return l, err
}

// RunSockperfRate sends as fast as it goes.
func RunSockperfRate(ctx context.Context, o SockperfOptions) (MessageRate, error) {
	raw, err := o.run(ctx, "tp")
	if err != nil {
		return MessageRate{Raw: raw}, err
	}
	r, err := ParseSockperfRate(raw.Output)
	r.Raw, r.Message = raw, o.Message
	return r, err
}

var (
	sockperfMean       = regexp.MustCompile(`avg-latency=([0-9.]+)`)
	sockperfPercentile = regexp.MustCompile(`percentile +([0-9.]+) *= *([0-9.]+)`)
	sockperfEnd        = regexp.MustCompile(`<(MIN|MAX)> observation = *([0-9.]+)`)
	sockperfTotal      = regexp.MustCompile(`Total (\d+) observations`)
	sockperfDropped    = regexp.MustCompile(`dropped messages = (\d+)`)
	sockperfMessages   = regexp.MustCompile(`Message Rate is (\d+)`)
	sockperfBandwidth  = regexp.MustCompile(`BandWidth is ([0-9.]+) MBps`)
)

func micros(s string) (time.Duration, error) {
	us, err := strconv.ParseFloat(s, 64)
	if err == nil && us > maxSpan.Seconds()*1e6 {
		err = fmt.Errorf("%s us: more than %s", s, maxSpan)
	}
	return time.Duration(us * float64(time.Microsecond)), err
}

// maxSpan is longer than anything that these programs time.
const maxSpan = 24 * time.Hour

// ParseSockperfLatency reads the output of sockperf ping-pong.
func ParseSockperfLatency(out string) (Latency, error) {
	l := Latency{Percentiles: map[float64]time.Duration{}}
	mean, total := sockperfMean.FindStringSubmatch(out), sockperfTotal.FindStringSubmatch(out)
	if mean == nil || total == nil {
		return l, fmt.Errorf("sockperf: no latency in its output: %q", short(out))
	}
	var errs [3]error
	l.Mean, errs[0] = micros(mean[1])
	l.Samples, errs[1] = strconv.Atoi(total[1])
	if d := sockperfDropped.FindStringSubmatch(out); d != nil {
		l.Dropped, errs[2] = strconv.Atoi(d[1])
	}
	for _, m := range sockperfEnd.FindAllStringSubmatch(out, -1) {
		v, err := micros(m[2])
		if err != nil {
			return l, fmt.Errorf("sockperf: %w", err)
		}
		if m[1] == "MIN" {
			l.Min = v
		} else {
			l.Max = v
		}
	}
	for _, m := range sockperfPercentile.FindAllStringSubmatch(out, -1) {
		p, err := strconv.ParseFloat(m[1], 64)
		v, verr := micros(m[2])
		if err := errors.Join(err, verr); err != nil {
			return l, fmt.Errorf("sockperf: %w", err)
		}
		l.Percentiles[p] = v
	}
	return l, named(errs[:]...)
}

func named(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sockperf: %w", err)
	}
	return nil
}

// ParseSockperfRate reads the output of sockperf throughput.
func ParseSockperfRate(out string) (MessageRate, error) {
	rate, width := sockperfMessages.FindStringSubmatch(out), sockperfBandwidth.FindStringSubmatch(out)
	if rate == nil || width == nil {
		return MessageRate{}, fmt.Errorf("sockperf: no rate in its output: %q", short(out))
	}
	var r MessageRate
	var errs [2]error
	r.PerSec, errs[0] = strconv.ParseFloat(rate[1], 64)
	r.MBytes, errs[1] = strconv.ParseFloat(width[1], 64)
	return r, named(errs[:]...)
}
