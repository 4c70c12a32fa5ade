package tools

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What a program said is refused with the program's name and some of the words, or is figures that can be written down: no infinity, and nothing
// below zero but lost datagrams, of which iperf3 counts those that came twice as less than none.
func FuzzOutputs(f *testing.F) {
	outputs, err := filepath.Glob("testdata/*.*")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range outputs {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Add("megabytes=0 real_seconds=0 rate_Mbps=nan")
	f.Add("megabytes=-1 real_seconds=inf rate_Mbps=1")
	f.Add("20260101,10.0.0.1,1,10.0.0.2,2,3,0.0-0.0,0,-nan")
	f.Add("avg-latency=1.2.3\nTotal 5 observations")
	f.Add("avg-latency=99999999999999999999\nTotal 5 observations")
	f.Add("64 bytes time=99999999999999999999 ms\n1 packets transmitted, 1 received")
	f.Add("1 packets transmitted, 99999999999999999999 received")
	f.Add(`{"end":{"sum_sent":{},"sum_received":{"bits_per_second":-1}}}`)
	f.Fuzz(func(t *testing.T, out string) {
		figures := func(program string, err error, all ...float64) {
			t.Helper()
			if err != nil {
				if !strings.HasPrefix(err.Error(), program+":") {
					t.Fatalf("%s: an error that does not name it: %v", program, err)
				}
				return
			}
			for _, v := range all {
				if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
					t.Fatalf("%s: %v in %v", program, v, all)
				}
			}
		}
		stream := func(program string, s Stream, err error) {
			t.Helper()
			figures(program, err, s.BitsPerSec, s.Seconds, float64(s.Retransmits), float64(s.Datagrams), s.SenderCPU, s.ReceiverCPU)
		}
		s, err := ParseIPerf3(out)
		stream("iperf3", s, err)
		s, err = ParseIPerf2(out)
		stream("iperf", s, err)
		s, err = ParseNuttcp(out)
		stream("nuttcp", s, err)
		p, err := ParsePing(out)
		figures("ping", err, append(seconds(p.RTT...), float64(p.Sent), float64(p.Received))...)
		l, err := ParseSockperfLatency(out)
		all := append(seconds(l.Mean, l.Min, l.Max), float64(l.Samples), float64(l.Dropped))
		for at, v := range l.Percentiles {
			all = append(all, at, v.Seconds())
		}
		figures("sockperf", err, all...)
		r, err := ParseSockperfRate(out)
		figures("sockperf", err, r.PerSec, r.MBytes)
	})
}

func seconds(all ...time.Duration) []float64 {
	var s []float64
	for _, d := range all {
		s = append(s, d.Seconds())
	}
	return s
}
