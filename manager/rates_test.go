package manager_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
	"weir.dev/weir/store"
)

// meter is a node whose counters grow by 1000 packets of 100 bytes with each second, from its beginning on.
type meter struct {
	node
	mu    sync.Mutex
	began time.Time
	reads int
}

func (m *meter) Counters(context.Context) (api.Counters, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reads++; m.began.IsZero() {
		m.began = time.Now()
	}
	n := uint64(1000 * time.Since(m.began).Seconds())
	grown := api.Counter{Packets: n, Bytes: 100 * n}
	return api.Counters{Host: "h1", Ports: []api.PortCounters{
		{Port: 1, Name: "endpoint/alice", Link: "wr1", Rx: grown},
		{Port: 2, Name: "function/fw/in", Tx: grown, State: "up"},
		{Port: 3, Name: "function/fw/out", Rx: grown, Dropped: grown, State: "up"},
		{Port: uint32(10 + m.reads), Name: "endpoint/remade", Rx: api.Counter{Packets: uint64(1000 * m.reads)}},
	}, Rules: []api.RuleCounters{{Cookie: "01", Policy: "guests", Hits: grown, Catches: []api.Caught{{Policy: "guests", Direction: "forward"}, {Policy: "copies", Direction: "reverse"}}},
		{Cookie: "03", Policy: "guests", Hits: grown, Catches: []api.Caught{{Policy: "guests", Direction: "forward"}}}, {Cookie: "04", Policy: "guests", Hits: grown}, {Cookie: "02", Hits: api.Counter{Packets: uint64(1000 - m.reads)}}},
		Functions: []api.FunctionUsage{{Name: "fw", CPUNs: n * 250_000, MemoryBytes: 5 << 20}, {Name: "nobody's", CPUNs: n}}}, nil
}

func (m *meter) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reads
}

// TestTrafficOfTheLastHour: points come by themselves, of what endpoints send.
func TestTrafficOfTheLastHour(t *testing.T) {
	m := &meter{}
	b := start(t, manager.Options{TrafficEvery: 100 * time.Millisecond, Node: func(string) ask.Node { return m }})
	if _, err := b.store.Txn(ctx(t), nil, putRaw(store.Key(api.KindHost, "h1"))); err != nil {
		t.Fatal(err)
	}
	if got := must(b.Traffic(ctx(t)))(t); got.Points == nil || len(got.Points) > 0 || got.EveryNs != int64(100*time.Millisecond) {
		t.Errorf("before it begins: %+v", got)
	}
	run, stop := context.WithCancel(ctx(t))
	defer stop()
	go b.m.Ask.RememberTraffic(run)
	var got api.Traffic
	for len(got.Points) < 3 {
		time.Sleep(20 * time.Millisecond)
		got = must(b.Traffic(ctx(t)))(t)
	}
	for i, p := range got.Points {
		if p.Hosts != 1 || p.PacketsPerS < 500 || p.PacketsPerS > 2000 || p.BitsPerS < 400_000 || p.DroppedPerS < 500 || i > 0 && !p.Time.After(got.Points[i-1].Time) {
			t.Errorf("point %d: %+v", i, p)
		}
	}
}

func TestRates(t *testing.T) {
	m := &meter{}
	b := start(t, manager.Options{Node: func(host string) ask.Node {
		if host == "h1" {
			return m
		}
		return nil
	}})
	for _, h := range []string{"h1", "h2"} {
		if _, err := b.store.Txn(ctx(t), nil, putRaw(store.Key(api.KindHost, h))); err != nil {
			t.Fatal(err)
		}
	}
	must(b.Functions().Put(ctx(t), "fw", api.FunctionSpec{Image: "firewall", Host: "h1"}))(t)
	near := func(what string, got, want float64) {
		t.Helper()
		if got < want*0.9 || got > want*1.1 {
			t.Errorf("%s: %.0f, want about %.0f", what, got, want)
		}
	}
	check := func(r api.Rates) {
		t.Helper()
		if len(r.Hosts) != 2 || r.Hosts[0].PeriodNs < int64(time.Second)/2 || r.Hosts[1].Message == "" || r.Hosts[1].PeriodNs != 0 {
			t.Fatalf("hosts %+v", r.Hosts)
		}
		if len(r.Ports) != 4 || len(r.Rules) != 4 || len(r.Policies) != 2 || len(r.Functions) != 1 {
			t.Fatalf("%d ports, %d rules, %d functions", len(r.Ports), len(r.Rules), len(r.Functions))
		}
		near("alice", r.Ports[0].Rx.PacketsPerS, 1000)
		near("alice", r.Ports[0].Rx.BitsPerS, 800_000)
		if x := r.Ports[1]; x.Name != "endpoint/remade" || x.Rx.PacketsPerS != 0 {
			t.Errorf("a port that was made anew: %+v", x)
		}
		near("the rule of guests", r.Rules[0].Hits.PacketsPerS, 1000)
		near("guests, by two rules that catch its packets", r.Policies[1].Forward.PacketsPerS, 2000)
		near("guests, by two rules that catch its packets", r.Policies[1].Forward.BitsPerS, 1_600_000)
		near("replies of copies", r.Policies[0].Reverse.PacketsPerS, 1000)
		if r.Policies[0].Name != "copies" || r.Policies[0].Forward.PacketsPerS != 0 || r.Policies[1].Reverse.PacketsPerS != 0 {
			t.Errorf("policies: %+v", r.Policies)
		}
		if x := r.Rules[1]; x.Hits.PacketsPerS != 0 {
			t.Errorf("a counter that went back: %+v", x)
		}
		f := r.Functions[0]
		near("fw gets", f.In.PacketsPerS, 1000)
		near("fw gives", f.Out.BitsPerS, 800_000)
		near("fw drops", f.DroppedPerS, 1000)
		near("fw uses, in thousandths of a processor", 1000*f.CPUs, 250)
		near("fw's memory", float64(f.MemoryBytes), 5<<20)
	}
	check(must(b.Rates(ctx(t)))(t))
	// Those who watch share the readings, which end with the last one.
	before := m.count()
	enough := errors.New("enough")
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			n := 0
			err := b.WatchRates(ctx(t), func(r api.Rates) error {
				if n++; n == 1 {
					check(r)
					return nil
				}
				return enough
			})
			if !errors.Is(err, enough) {
				t.Errorf("watch: %v", err)
			}
		})
	}
	wg.Wait()
	if got := m.count() - before; got > 15 {
		t.Errorf("%d readings for ten who watched two seconds", got)
	}
}
