package ask

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/strict"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// Readings of counters for rates.
const (
	ratesEvery   = time.Second
	ratesTimeout = 800 * time.Millisecond // a host that takes longer has no rates this time
	ratesAtOnce  = 64                     // hosts
	maxPorts     = 2 * 4096               // of a host; with two instances of a function that is being changed
	maxRules     = 2 * 32768              // of a host
	ratesFresh   = 3 * time.Second        // an older reading is none of now
)

// reading is what a host's counters were at a time.
type reading struct {
	counters api.Counters
	at       time.Time
	err      error
}

// sampler reads the counters of all hosts once a second while somebody wants to know rates; all who do share the readings.
type sampler struct {
	read func(ctx context.Context) map[string]reading
	join func(ctx context.Context, r api.Rates) api.Rates // adds what the store knows

	mu     sync.Mutex
	wanted int
	stop   context.CancelFunc
	next   chan struct{} // closed with the next rates
	latest *sample
}

// sample is rates, and the event that has them, which is the same for all who follow.
type sample struct {
	rates api.Rates
	event func() []byte
}

func newSample(r api.Rates) *sample {
	return &sample{r, sync.OnceValue(func() []byte {
		var b bytes.Buffer
		b.WriteString("event: rates\ndata: ")
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if e.Encode(r) != nil { // a number that JSON does not have: counters have none
			return nil
		}
		b.WriteByte('\n')
		return b.Bytes()
	})}
}

// follow hands on rates until ctx ends or show returns false.
func (s *sampler) follow(ctx context.Context, show func(*sample) bool) {
	s.mu.Lock()
	if s.wanted++; s.wanted == 1 {
		run, stop := context.WithCancel(context.Background())
		s.stop, s.next = stop, make(chan struct{})
		go s.run(run)
	}
	next := s.next
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.wanted--; s.wanted == 0 {
			s.stop()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
		s.mu.Lock()
		latest := s.latest
		next = s.next
		s.mu.Unlock()
		if !show(latest) {
			return
		}
	}
}

func (s *sampler) run(ctx context.Context) {
	tick := time.NewTicker(ratesEvery)
	defer tick.Stop()
	before := s.read(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := s.read(ctx)
		r := s.join(ctx, ratesOf(before, now))
		if ctx.Err() != nil {
			return
		}
		for host, x := range before { // of one that does not answer now the next rates are over a longer time
			if y, asked := now[host]; asked && y.err != nil && time.Since(x.at) < ratesFresh {
				now[host] = reading{x.counters, x.at, x.err}
			}
		}
		before = now
		s.mu.Lock()
		s.latest = newSample(r)
		close(s.next)
		s.next = make(chan struct{})
		s.mu.Unlock()
	}
}

// ratesOf compares two readings. What is new, or counts less than before since it was made anew, has no rate yet.
func ratesOf(before, now map[string]reading) api.Rates {
	out := api.Rates{Hosts: []api.HostRates{}, Functions: []api.FunctionRates{}, Ports: []api.PortRates{}, Rules: []api.RuleRates{}, Policies: []api.PolicyRates{}}
	policies := map[string]*api.PolicyRates{}
	for host, x := range now {
		old, known := before[host]
		h := api.HostRates{Host: host}
		switch {
		case x.err != nil:
			h.Message = strict.Clip(x.err.Error(), strict.MaxText)
		case !known || old.err != nil:
			h.Message = "the first reading was just now"
		default:
			h.PeriodNs = x.at.Sub(old.at).Nanoseconds()
		}
		out.Hosts = append(out.Hosts, h)
		if h.PeriodNs <= 0 {
			continue
		}
		if x.at.After(out.Time) {
			out.Time = x.at.UTC()
		}
		seconds := float64(h.PeriodNs) / 1e9
		ports := map[string]api.PortCounters{}
		for _, p := range old.counters.Ports {
			ports[p.Name] = p
		}
		for _, p := range x.counters.Ports {
			q, same := ports[p.Name]
			r := api.PortRates{Host: host, Name: p.Name, Link: p.Link, State: p.State, DroppedTotal: p.Dropped.Packets}
			if same && q.Port == p.Port {
				r.Rx, r.Tx, r.DroppedPerS = rate(q.Rx, p.Rx, seconds), rate(q.Tx, p.Tx, seconds), rate(q.Dropped, p.Dropped, seconds).PacketsPerS
			}
			out.Ports = append(out.Ports, r)
		}
		used := map[string]api.FunctionUsage{}
		for _, u := range old.counters.Functions {
			used[u.Name] = u
		}
		for _, u := range x.counters.Functions {
			f := api.FunctionRates{Name: u.Name, Host: host, MemoryBytes: u.MemoryBytes}
			if q, same := used[u.Name]; same && u.CPUNs >= q.CPUNs {
				f.CPUs = float64(u.CPUNs-q.CPUNs) / float64(h.PeriodNs)
			}
			out.Functions = append(out.Functions, f)
		}
		rules := map[string]api.RuleCounters{}
		for _, c := range old.counters.Rules {
			rules[c.Cookie] = c
		}
		for _, c := range x.counters.Rules {
			r := api.RuleRates{Host: host, Cookie: c.Cookie, Policy: c.Policy, Chain: c.Chain, Note: c.Note}
			if q, same := rules[c.Cookie]; same {
				r.Hits = rate(q.Hits, c.Hits, seconds)
			}
			out.Rules = append(out.Rules, r)
			for _, caught := range c.Catches {
				p := policies[caught.Policy]
				if p == nil {
					p = &api.PolicyRates{Name: caught.Policy}
					policies[caught.Policy] = p
				}
				if caught.Direction == "reverse" {
					p.Reverse = plus(p.Reverse, r.Hits)
				} else {
					p.Forward = plus(p.Forward, r.Hits)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		out.Policies = append(out.Policies, *policies[name])
	}
	slices.SortFunc(out.Hosts, func(x, y api.HostRates) int { return cmp.Compare(x.Host, y.Host) })
	slices.SortFunc(out.Ports, func(x, y api.PortRates) int { return cmp.Or(cmp.Compare(x.Host, y.Host), cmp.Compare(x.Name, y.Name)) })
	slices.SortFunc(out.Rules, func(x, y api.RuleRates) int {
		return cmp.Or(cmp.Compare(x.Host, y.Host), cmp.Compare(x.Cookie, y.Cookie))
	})
	return out
}

func rate(before, now api.Counter, seconds float64) api.Rate {
	if now.Packets < before.Packets || now.Bytes < before.Bytes {
		return api.Rate{}
	}
	return api.Rate{PacketsPerS: float64(now.Packets-before.Packets) / seconds, BitsPerS: 8 * float64(now.Bytes-before.Bytes) / seconds}
}

// functionRates are of all functions, from the rates of their ports and from what hosts say that they use.
func functionRates(functions []api.Function, ports []api.PortRates, used []api.FunctionRates) []api.FunctionRates {
	out := []api.FunctionRates{}
	place := map[[2]string]int{} // host, name -> index
	for _, f := range functions {
		host := cmp.Or(f.At(), f.Status.Host)
		place[[2]string{host, f.Name}] = len(out)
		out = append(out, api.FunctionRates{Name: f.Name, Host: host, Image: f.Spec.Image, State: f.Status.State, Healthy: f.Status.Healthy, Restarts: f.Status.Restarts, RTTns: f.Status.RTTns})
	}
	for _, u := range used {
		if i, known := place[[2]string{u.Host, u.Name}]; known {
			out[i].CPUs, out[i].MemoryBytes = u.CPUs, u.MemoryBytes
		}
	}
	for _, p := range ports {
		of, found := strings.CutPrefix(p.Name, string(api.KindFunction)+"/")
		name, _, _ := strings.Cut(of, "/")
		i, known := place[[2]string{p.Host, name}]
		if !found || !known {
			continue
		}
		f := &out[i]
		f.In, f.Out = plus(f.In, p.Tx), plus(f.Out, p.Rx) // what the switch sends, the function gets
		f.DroppedPerS += p.DroppedPerS
	}
	return out
}

func plus(x, y api.Rate) api.Rate {
	return api.Rate{PacketsPerS: x.PacketsPerS + y.PacketsPerS, BitsPerS: x.BitsPerS + y.BitsPerS}
}

// readAll reads the counters of all hosts at the same time.
func (a *Asker) readAll(ctx context.Context) map[string]reading {
	out := map[string]reading{}
	hosts, _, err := store.List[api.Host](ctx, a.Store, api.KindHost)
	if err != nil {
		a.Log.Debug("rates: list hosts", "error", err)
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, ratesTimeout)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, ratesAtOnce)
	for _, h := range hosts {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			var c api.Counters
			n, err := a.node(ctx, h.Name)
			if err == nil {
				c, err = n.Counters(ctx)
			}
			if err = live(err); err == nil && (len(c.Ports) > maxPorts || len(c.Rules) > maxRules || len(c.Functions) > maxPorts) {
				err = fmt.Errorf("it reports %d ports, %d rules and %d functions, want at most %d, %d and %d", len(c.Ports), len(c.Rules), len(c.Functions), maxPorts, maxRules, maxPorts)
			}
			r := reading{at: time.Now(), err: err}
			if err == nil {
				r.counters = c
			}
			mu.Lock()
			defer mu.Unlock()
			out[h.Name] = r
		})
	}
	wg.Wait()
	return out
}

// joinFunctions adds the functions.
func (a *Asker) joinFunctions(ctx context.Context, r api.Rates) api.Rates {
	functions, _, err := store.List[api.Function](ctx, a.Store, api.KindFunction)
	if err != nil {
		a.Log.Debug("rates: list functions", "error", err)
	}
	r.Functions = functionRates(functions, r.Ports, r.Functions)
	if r.Time.IsZero() {
		r.Time = time.Now().UTC()
	}
	return r
}

// rates answers with the next rates, or with watch streams them as server-sent events.
func (a *Asker) rates(w http.ResponseWriter, r *http.Request) error {
	release, err := a.meters.Take("requests for rates")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := web.StreamContext(r)
	defer cancel()
	if !web.Flag(r, "watch") {
		var out api.Rates
		a.sampler.follow(ctx, func(x *sample) bool { out = x.rates; return false })
		if err := ctx.Err(); err != nil {
			return err
		}
		return web.Answer(w, http.StatusOK, out)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if http.NewResponseController(w).Flush() != nil {
		return nil
	}
	out := web.Flushing(w)
	a.sampler.follow(ctx, func(x *sample) bool {
		_, err := out.Write(x.event())
		return err == nil // else the client is gone
	})
	return nil
}
