package experiment

import (
	"context"
	"errors"
	"fmt"
	"math"
	goruntime "runtime"
	"strconv"
	"time"

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic/datagrams"
	"weir.dev/weir/lab/traffic/tools"
)

// Factors of processors.
const (
	factorProcessors = "processors"
	factorHosts      = "hosts"
	factorPayload    = "payload"
	factorLink       = "link"
	toolSocat        = "socat"
	modeFixed        = "fixed"
	modeSearch       = "search"
)

// Defaults of processors: those of the study of them, on links of 1 Gb/s.
const (
	defaultLink    = "1000"
	defaultPayload = "1454"
	fixedLoad      = "332000" // a quarter of what the link carries of 28 bytes; of 1454 bytes it carries less
	linkNone       = "none"
)

// Goal of the search: the share of the datagrams that may be lost, and that has to be sent on time.
const (
	processorLoss   = 0.005
	processorOnTime = 0.995
	processorSteps  = 12
	processorWidth  = 1.03 // between the highest load that passed and the lowest that did not
	fastest         = 1e6  // datagrams a second that are offered where the link does not bound them
)

// processorsExperiment is UDP datagrams through processors, one behind the other.
type processorsExperiment struct{}

// OfProcessors is the name of the experiment on processors.
const OfProcessors = "processors"

func (processorsExperiment) Name() string { return OfProcessors }
func (processorsExperiment) About() string {
	return "UDP datagrams through processors in containers, each of which sends on what it receives: what arrives of a fixed load and its delay, or the highest rate that loses at most 0.5 % and the delay at half of it"
}
func (processorsExperiment) Metrics() map[string]string {
	return map[string]string{"rate": "pps", "received": "pps", "sent": "pps", "min": "us", "mean": "us", "max": "us", "p50": "us", "p99": "us"}
}

func (processorsExperiment) Factors() []Factor {
	return []Factor{
		{Name: factorRuntime, Default: defaultMember, About: "what the containers are; bare on network host is no container at all", Check: oneOf(platform.MemberRuntimes()...)},
		{Name: FactorNetwork, Default: "host", Check: oneOf(platform.ProcessorNetworks()...), About: "host: the host's own stack; nat: a Linux bridge behind the host's address, masquerade out, ports forwarded in; " +
			"macvlan: bridge mode, on the host's link; own-nat, own-macvlan: the same as the runtime's tool makes them (docker: its bridge with published ports, its macvlan; " +
			"nspawn, rkt: the CNI plugins bridge with portmap, and macvlan); weir: the processors are a chain of functions on the hosts of a Weir that runs (--socket, --url), made through its API"},
		{Name: factorProcessors, Default: "1", About: "one behind the other", Check: between(1, 100, "a number of processors")},
		{Name: factorHosts, Default: "1", About: "hosts (network namespaces): 1, or 2 on which processors are in turns", Check: between(1, 2, "hosts")},
		{Name: factorPayload, Default: defaultPayload, About: "bytes of a datagram", Check: between(datagrams.MinPayload, 1472, "bytes")},
		{Name: factorTool, Default: toolSocat, Sets: []string{condTool, condEnds}, About: "the processor: socat, the container's own process; own: a thread of the lab, in its namespace; " +
			platform.ProcessorFunction + ": the function of Weir's catalogue, on network weir only", Check: oneOf(toolSocat, toolOwn, platform.ProcessorFunction)},
		{Name: factorMode, Default: modeFixed, About: "fixed: datagrams at one load for the length of a trial (received, sent, and their delay); search: for the highest load that loses at most 0.5 %, in steps " +
			"of that length (rate, and the delay at half of it)", Check: oneOf(modeFixed, modeSearch)},
		{Name: factorOffered, Default: fixedLoad, About: "datagrams a second of the fixed load, as far as the link carries them", Check: between(1, fastest, "datagrams a second")},
		{Name: factorLink, Default: defaultLink, Sets: []string{condLink, platform.SettingQdisc}, About: "Mb/s of each host's link and of the outside's, shaped by a token bucket; none: as fast as it goes", Check: checkLink},
	}
}

// condLink is the rate of links.
const condLink = "link"

func checkLink(level string) error {
	if n, err := strconv.Atoi(level); level != linkNone && (err != nil || n < 1 || n > 100_000) {
		return fmt.Errorf("%q: want %s, or Mb/s, 1 to 100000", level, linkNone)
	}
	return nil
}

func (processorsExperiment) Check(_ context.Context, b *Bench, l Levels) string {
	tool, ofWeir := l.or(factorTool, toolSocat), l.or(FactorNetwork, "host") == platform.NetworkWeir
	if ofWeir != (tool == platform.ProcessorFunction) {
		return fmt.Sprintf("tool %s on network %s: %s is what processors of network weir are, and only these", tool, l.or(FactorNetwork, "host"), platform.ProcessorFunction)
	}
	if tool == toolSocat {
		if err := tools.Installed(toolSocat); err != nil {
			return err.Error()
		}
	}
	return platform.CheckProcessors(processorOptions(b, l))
}

func processorOptions(b *Bench, l Levels) platform.ProcessorOptions {
	return platform.ProcessorOptions{
		MemberOptions: platform.MemberOptions{
			Options: b.options(), Runtime: l.or(factorRuntime, defaultMember), Network: l.or(FactorNetwork, "host"), Relays: l.or(factorTool, toolSocat) == toolSocat, Engine: b.engine,
		},
		Hosts: l.number(factorHosts, "1"), Mbps: mbps(l),
	}
}

func mbps(l Levels) int {
	if l.or(factorLink, defaultLink) == linkNone {
		return 0
	}
	return l.number(factorLink, defaultLink)
}

// forwarding is processors that are ready.
type forwarding struct {
	b      *Bench
	shared string // name of the line
	line   platform.Row
	list   []platform.Processor
	levels Levels
	run    uint32 // of the last datagrams
}

func (processorsExperiment) Setup(ctx context.Context, b *Bench, l Levels) (Arrangement, error) {
	o := processorOptions(b, l)
	name := fmt.Sprintf("line %s %s %d %d %t", o.Runtime, o.Network, o.Hosts, o.Mbps, o.Relays)
	line, err := shared(b, name, func() (platform.Row, error) { return platform.OpenRow(ctx, o) })
	if err != nil {
		return nil, err
	}
	f := &forwarding{b: b, shared: name, line: line, levels: l}
	if f.list, err = line.Grow(ctx, l.number(factorProcessors, "1")); err != nil { // what is half made is made anew
		return nil, errors.Join(err, b.unshare(name))
	}
	return f, nil
}

// Close leaves the processors' containers to others.
func (f *forwarding) Close() error { return nil }

// step is datagrams at a load.
type step struct {
	Load float64 `json:"load_pps"`
	datagrams.Count
}

// passed tells whether a load is within the goal.
func (s step) passed() bool {
	return s.OnTime() >= processorOnTime && s.LossRatio() <= processorLoss && s.Damaged+s.Foreign == 0
}

func (f *forwarding) Measure(ctx context.Context, length time.Duration) (m Measurement, err error) {
	defer goruntime.GOMAXPROCS(goruntime.GOMAXPROCS(len(f.list) + goruntime.NumCPU() + 4)) // see measureFCTPairs
	end, err := f.start()
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, end()) }()
	defer func() {
		if ill := f.line.Ill(ctx); ill != nil { // they are made anew
			err = errors.Join(err, ill, f.b.unshare(f.shared))
		}
	}()
	from, to, at := f.line.Outside()
	sink, err := datagrams.Listen(to, at)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, sink.Close()) }()
	try := func(load float64, length time.Duration) (step, error) {
		f.run++
		c, err := sink.Run(ctx, datagrams.Options{
			Space: from, To: f.list[0].Reach, Payload: f.levels.number(factorPayload, defaultPayload), Rate: load, Duration: length, Run: f.run,
		})
		return step{load, c}, err
	}
	if err := f.warm(try); err != nil {
		return m, err
	}
	var steps []step
	if f.levels.or(factorMode, modeFixed) == modeSearch {
		steps, m.Values, err = f.search(length, try)
	} else {
		steps, m.Values, err = f.fixed(length, try)
	}
	if err != nil {
		return m, err
	}
	m.Raw = struct {
		Steps []step `json:"steps"` // of a search the first one is at the highest load, the last one at half of the rate
	}{steps}
	m.Conditions, err = f.conditions()
	return m, err
}

// mostCold is how long processors may take to find each other.
const mostCold = 15 * time.Second

// warm sends datagrams until some arrive: addresses are known then. Processors that look for the next one each second, and wait for an answer for some, need a moment.
func (f *forwarding) warm(try tryLoad) error {
	for begun := time.Now(); ; {
		first, err := try(200, 200*time.Millisecond)
		if err != nil || first.Unique > 0 {
			return err
		}
		if time.Since(begun) > mostCold {
			return fmt.Errorf("%d of %d datagrams came through %d processors after %s", first.Unique, first.Sent.Sent, len(f.list), mostCold)
		}
	}
}

type tryLoad func(load float64, length time.Duration) (step, error)

// fixed load.
func (f *forwarding) fixed(length time.Duration, try tryLoad) ([]step, map[string]float64, error) {
	s, err := try(min(f.highest(), float64(f.levels.number(factorOffered, fixedLoad))), length)
	if err != nil {
		return nil, nil, err
	}
	values := s.delays()
	values["received"], values["sent"] = s.Rate(), float64(s.Sent.Sent)/s.Took.Seconds()
	return []step{s}, values, nil
}

// search for the highest rate.
func (f *forwarding) search(length time.Duration, try tryLoad) ([]step, map[string]float64, error) {
	steps, rate, err := seek(f.highest(), length, try)
	if err != nil || rate.pps == 0 {
		return steps, nil, err
	}
	half, err := try(rate.pps/2, length)
	if err != nil {
		return nil, nil, err
	}
	values := half.delays()
	if rate.found {
		values["rate"] = rate.pps
	}
	return append(steps, half), values, nil
}

// delays of the datagrams that came, in microseconds.
func (s step) delays() map[string]float64 {
	l, out := s.Latency, map[string]float64{}
	if l.Count == 0 {
		return out
	}
	out["min"], out["mean"], out["max"] = micros(l.Min), micros(l.Mean()), micros(l.Max)
	for name, q := range map[string]float64{"p50": 0.5, "p99": 0.99} {
		if d, ok := l.Quantile(q); ok {
			out[name] = micros(d)
		}
	}
	return out
}

// highest load that is offered: what the link carries (with 66 bytes of headers, checksum and gap for each datagram), as far as it is not too much.
func (f *forwarding) highest() float64 {
	if n := mbps(f.levels); n > 0 {
		return min(float64(n)*1e6/8/float64(f.levels.number(factorPayload, defaultPayload)+66), fastest)
	}
	return fastest
}

// limit is the highest load that passed.
type limit struct {
	pps   float64
	found bool // the lowest that did not pass is hardly higher, and it was not for the sender alone that it did not
}

// seek the highest load that passes, by halves of what is open on the scale of logarithms. What arrives of the highest load is where it begins. 0: no load
// passed.
func seek(highest float64, length time.Duration, try func(float64, time.Duration) (step, error)) (steps []step, l limit, err error) {
	low, high, load, late := 0.0, highest, highest, false
	for range processorSteps {
		s, err := try(load, length)
		if err != nil {
			return steps, limit{}, err
		}
		steps = append(steps, s)
		if s.passed() {
			low = load
		} else {
			high, late = load, s.OnTime() < processorOnTime && s.LossRatio() <= processorLoss
		}
		if low == highest || low > 0 && high <= low*processorWidth {
			return steps, limit{low, low == highest || !late}, nil
		}
		switch {
		case len(steps) == 1:
			load = min(max(s.Rate(), highest/1000), high*0.9)
		case low == 0:
			load = high / 4
		default:
			load = math.Sqrt(low * high)
		}
	}
	return steps, limit{low, low == 0}, nil
}

// start the processors that are threads of the lab; end ends them. Containers have theirs as long as they are.
func (f *forwarding) start() (end func() error, err error) {
	var own []*datagrams.Forwarder
	end = func() error {
		var errs []error
		for _, o := range own {
			errs = append(errs, o.Close())
		}
		return errors.Join(errs...)
	}
	if f.levels.or(factorTool, toolSocat) != toolOwn {
		return end, nil
	}
	for i, p := range f.list {
		_, _, to := f.line.Outside()
		if i+1 < len(f.list) {
			to = f.list[i+1].Reach
		}
		o, err := datagrams.Forward(p.Space, p.Listen, to)
		if err != nil {
			return nil, errors.Join(err, end())
		}
		own = append(own, o)
	}
	return end, nil
}

func (f *forwarding) conditions() (map[string]string, error) {
	have, err := f.line.Conditions()
	if err != nil {
		return nil, err
	}
	have[condRepresentation] = "socket"
	have[condLink] = f.levels.or(factorLink, defaultLink) + " Mb/s"
	have[condMessage] = f.levels.or(factorPayload, defaultPayload) + " B"
	have[condTool], have[condEnds] = "own processor", "threads of the lab in the network namespaces of the containers"
	switch tool := f.levels.or(factorTool, toolSocat); tool {
	case toolSocat:
		have[condTool], have[condEnds] = toolSocat, "the containers' own processes"
	case platform.ProcessorFunction:
		have[condTool], have[condEnds], have[condLink] = tool, "functions of a Weir that runs", "that of the hosts"
	}
	return have, nil
}
