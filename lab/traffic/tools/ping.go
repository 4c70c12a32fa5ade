package tools

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Ping is the round trips of ICMP echoes.
type Ping struct {
	Raw      Raw             `json:"raw"`
	Sent     int             `json:"sent"`
	Received int             `json:"received"`
	RTT      []time.Duration `json:"-"` // in the order of the answers
}

// PingOptions of one run. Interval 0: the next one as soon as an answer is there. ping takes the time of arrival from the kernel, unless
// FullTrip: then it is that of the program, with its wake-up.
type PingOptions struct {
	To       netip.Addr
	Count    int
	Interval time.Duration
	Size     int // payload bytes; 0: 56
	FullTrip bool
	Deadline time.Duration // whole seconds after which it ends with what has come back; 0: none
}

// RunPing runs iputils' ping.
func RunPing(ctx context.Context, space string, o PingOptions) (Ping, error) {
	argv := []string{"ping", "-n", "-c", strconv.Itoa(o.Count), "-W", "1"}
	if o.Interval == 0 {
		argv = append(argv, "-A")
	} else {
		argv = append(argv, "-i", strconv.FormatFloat(o.Interval.Seconds(), 'f', -1, 64))
	}
	if o.Size > 0 {
		argv = append(argv, "-s", strconv.Itoa(o.Size))
	}
	if o.Deadline > 0 {
		argv = append(argv, "-w", strconv.Itoa(int(o.Deadline/time.Second)))
	}
	if o.FullTrip {
		argv = append(argv, "-U")
	}
	raw, err := client(ctx, space, append(argv, o.To.String())...)
	p, perr := ParsePing(raw.Output)
	p.Raw = raw
	if perr != nil && err == nil {
		err = perr
	}
	if err != nil && perr == nil && p.Sent > 0 { // it ends with 1 if answers are missing: that is a result
		return p, ctx.Err()
	}
	return p, err
}

var (
	pingTime    = regexp.MustCompile(`time[=<]([0-9.]+) ms`)
	pingSummary = regexp.MustCompile(`(\d+) packets transmitted, (\d+) received`)
)

// ParsePing reads iputils' output.
func ParsePing(out string) (Ping, error) {
	var p Ping
	for line := range strings.Lines(out) {
		if m := pingTime.FindStringSubmatch(line); m != nil {
			ms, err := strconv.ParseFloat(m[1], 64)
			if err == nil && ms > maxSpan.Seconds()*1e3 {
				err = fmt.Errorf("more than %s", maxSpan)
			}
			if err != nil {
				return p, fmt.Errorf("ping: %q: %w", m[1], err)
			}
			p.RTT = append(p.RTT, time.Duration(ms*float64(time.Millisecond)+0.5))
		}
	}
	m := pingSummary.FindStringSubmatch(out)
	if m == nil {
		return p, fmt.Errorf("ping: no summary in its output: %q", short(out))
	}
	var errs [2]error
	p.Sent, errs[0] = strconv.Atoi(m[1])
	p.Received, errs[1] = strconv.Atoi(m[2])
	if err := errors.Join(errs[:]...); err != nil {
		return p, fmt.Errorf("ping: %w", err)
	}
	return p, nil
}

func short(s string) string {
	if len(s) > 200 {
		return s[:200] + "..."
	}
	return s
}
