// Package services asks servers between two network namespaces as fast as they answer: HTTP over connections that stay, and DNS over UDP. It is a closed
// loop: a client asks again when the answer is there. Each answer is read and looked at. A wrong one ends the run with an error.
package services

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weir.dev/weir/lab/stats"
)

// Bounds of a run.
const (
	MaxClients  = 256
	MaxDuration = time.Hour
	MaxBody     = 1 << 20 // bytes
)

// Result of a run. Times are those of the window, which begins when every client has had its first answer.
type Result struct {
	Clients int     `json:"clients"`
	Answers uint64  `json:"answers"`
	Lost    uint64  `json:"lost"` // questions without an answer in time (DNS); HTTP loses none, or fails
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"answers_per_second"`
	P50     float64 `json:"p50_us,omitempty"` // from a question to its answer, of a sample; 0: too few answers
	P99     float64 `json:"p99_us,omitempty"`
}

// loop is one client's: what it counts.
type loop struct {
	answers, lost uint64
	times         []float64 // us, of the first mostTimes answers
}

const mostTimes = 1 << 16

func (l *loop) took(d time.Duration) {
	l.answers++
	if len(l.times) < mostTimes {
		l.times = append(l.times, float64(d)/float64(time.Microsecond))
	}
}

// sum of all clients.
func sum(loops []loop, took time.Duration) (r Result) {
	var times []float64
	for _, l := range loops {
		r.Answers += l.answers
		r.Lost += l.lost
		times = append(times, l.times...)
	}
	r.Clients, r.Seconds = len(loops), took.Seconds()
	r.Rate = float64(r.Answers) / r.Seconds
	for q, to := range map[float64]*float64{0.5: &r.P50, 0.99: &r.P99} {
		if v, ok := stats.Percentile(times, q); ok {
			*to = v
		}
	}
	return r
}

func check(a netip.Addr, clients int, d time.Duration) error {
	var errs []error
	if !a.IsValid() {
		errs = append(errs, errors.New("want the server's address"))
	}
	if clients < 1 || clients > MaxClients {
		errs = append(errs, fmt.Errorf("%d clients: want 1 to %d", clients, MaxClients))
	}
	if d <= 0 || d > MaxDuration {
		errs = append(errs, fmt.Errorf("duration %s: want more than 0, at most %s", d, MaxDuration))
	}
	return errors.Join(errs...)
}
