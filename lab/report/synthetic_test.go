package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"weir.dev/weir/lab/study"
)

const syntheticStudy = `name: synthetic
title: A synthetic study of chains
source: A paper that does not exist
about: Its truth is known.
parts:
  - name: chain
    question: How fast is a chain of wires?
    experiment: tcp
    metrics: [{name: rate, unit: Gb/s, better: higher}, {name: rtt, unit: us, better: lower}]
    factors:
      - {name: platform, levels: [bridges, ebpf, veth, ovs]}
      - {name: wires, levels: ["1", "2", "5", "9", "20", "50"]}
    compare: platform
    baseline: bridges
    quick: {blocks: 10, duration: 1s}
    full: {blocks: 20, duration: 5s}
    claims:
      - {id: nine, text: 9 wires carry 13.8 Gb/s, source: Fig. 5, metric: rate, at: {wires: "9", platform: ebpf}, value: 13.8}
      - {id: triple, text: 9 wires are 3.1 times as fast as bridges, source: Section 4, metric: rate, at: {wires: "9", platform: ebpf}, against: {wires: "9", platform: bridges}, value: 3.1}
      - {id: slower, text: ebpf is slower than bridges, source: Section 5, metric: rate, at: {wires: "2", platform: ebpf}, against: {wires: "2", platform: bridges}, value: 0.5}
      - {id: linear, text: the delay grows linearly, source: Fig. 6, metric: rtt, at: {platform: ebpf}, shape: linear, along: wires}
      - {id: ovs, text: ovs carries 70 Gb/s, source: Table 1, metric: rate, at: {wires: "1"}, systems: [ovs, bridges], instead: [ebpf], value: 70}
      - {id: far, text: 50 wires carry half of what 1 carries, source: Table 2, metric: rate, at: {wires: "50"}, against: {wires: "1"}, systems: [ovs, bridges], instead: [ebpf], value: 0.5}
      - {id: inverse, text: the rate falls as 1/length, source: Fig. 7, metric: rate, systems: [bridges], instead: [ebpf], shape: inverse, along: wires}
      - {id: twice, text: ebpf is twice as fast as bridges, source: target of ours, metric: rate, at: {wires: "9", platform: ebpf}, against: {platform: bridges}, at_least: 2}
      - {id: quick, text: the round trip through 50 wires is below 100 us, source: target of ours, metric: rtt, at: {wires: "50", platform: ebpf}, at_most: 100}
  - name: packets
    question: What does a packet cost?
    experiment: packets
    metrics: [{name: throughput, unit: Mpps, better: higher}]
    factors:
      - {name: platform, levels: [bridges, ebpf]}
      - {name: wires, levels: ["1", "5", "20"]}
      - {name: frame, levels: ["64", "1514"]}
    compare: platform
    baseline: bridges
    quick: {blocks: 8, duration: 1s}
    full: {blocks: 20, duration: 5s}
  - name: idle
    question: How long does an idle ping take?
    experiment: ping
    metrics: [{name: rtt, unit: us, better: lower}]
    factors:
      - {name: platform, levels: [veth, ebpf, <vm>]}
    compare: platform
    baseline: veth
    quick: {blocks: 8, duration: 1s}
    full: {blocks: 20, duration: 5s}
`

// truth of the synthetic study: ebpf is 3 times as fast as bridges, veth the same, ovs cannot be measured, a wire adds 10 us of delay and
// 200 ns to a packet on ebpf, 600 on bridges. All drift together by 30 % within a run.
func truth(part string, v study.Variant, metric string) float64 {
	n := func(i int) float64 { x, _ := strconv.ParseFloat(v[i], 64); return x }
	factor := map[string]float64{"bridges": 1, "ebpf": 3, "veth": 1}[v[0]]
	switch part + "/" + metric {
	case "chain/rate":
		return 5 * factor / math.Sqrt(n(1)/9)
	case "chain/rtt":
		return (20 + 10*n(1)) * (4 - factor) / 1
	case "packets/throughput":
		return 1e3 / (300 + 600/factor*n(1))
	default: // idle/rtt
		return map[string]float64{"veth": 30, "ebpf": 33, "<vm>": 120}[v[0]]
	}
}

// synthetic is a whole run, or its first trials.
func synthetic(t testing.TB, trials int) *study.Journal {
	t.Helper()
	f, err := study.Parse("synthetic.yaml", []byte(syntheticStudy), []string{"tcp", "packets", "ping"})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	j, err := study.Create(t.TempDir(), study.Header{
		Study: f.Study, Mode: study.Quick, Seed: 42, Started: start, Version: "v0.0.0-test",
		Environment: map[string]string{"kernel": "6.1.0", "cpu": "a processor", "cpus": "2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	rng := rand.New(rand.NewPCG(1, 2))
	at := start
	for i, tr := range j.Left() {
		if i == trials {
			break
		}
		at = at.Add(1200 * time.Millisecond)
		r := study.Record{Trial: tr, Begun: at, Took: time.Second, Covariates: map[string]float64{
			"steal": math.Round(rng.ExpFloat64()*100) / 1e4, "lab_cpu": 0.02, "lab_rss_mb": 60, "canary": 1.01,
		}}
		if tr.Variant[0] == "ovs" {
			r.Skipped, r.Took, r.Covariates = "there is no ovs-vswitchd: install openvswitch-switch", 0, nil
		} else {
			drift := 1 + 0.3*math.Sin(float64(i)/60)
			r.Values = map[string]float64{}
			for _, p := range f.Study.Parts {
				if p.Name != tr.Part {
					continue
				}
				for k, m := range p.Metrics {
					d := drift
					if m.Better == "lower" {
						d = 1 / drift
					}
					mean := truth(p.Name, tr.Variant, m.Name)
					r.Values[m.Name] = round(mean * d * math.Exp(rng.NormFloat64()*0.02))
					if p.Name == "idle" && k == 0 {
						for range 150 {
							r.Samples = append(r.Samples, round(mean*(0.9+0.1*rng.ExpFloat64())))
						}
					}
				}
			}
			if i%41 == 17 {
				r.Covariates["steal"] = 0.21
				r.Void = "steal 21 %"
			}
		}
		if err := j.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	return j
}

// round to 5 digits, so that golden files are the same everywhere.
func round(v float64) float64 {
	r, _ := strconv.ParseFloat(fmt.Sprintf("%.5g", v), 64)
	return r
}
