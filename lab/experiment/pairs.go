package experiment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"weir.dev/weir/cpuset"
	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic/rr"
	"weir.dev/weir/lab/traffic/tools"
)

// Factors of experiments on pairs.
const (
	factorPairs   = "pairs"
	factorPinning = "pinning"
)

// Levels of the factors cores and pinning.
const (
	coresAll = "all"

	pinNone      = "none"
	pinSame      = "same"
	pinDifferent = "different"
)

// Defaults of members: Docker's containers on a Linux bridge are what most people have.
const (
	defaultMember  = "docker"
	defaultSegment = "bridge"
)

// pairs is what experiments on many pairs have in common: N pairs of a client and a server, each a container with one interface (factor runtime) on a
// network that joins them all (factor network), all driven at once.
type pairs struct {
	name, about string
	metrics     map[string]string
	memory      int64    // bytes that a pair's traffic takes beside its containers, about
	programs    []string // that any level needs
	more        []Factor
	check       func(l Levels) string // see chains
	measure     func(ctx context.Context, p *paired, length time.Duration) (Measurement, error)
}

func (x *pairs) Name() string               { return x.name }
func (x *pairs) About() string              { return x.about }
func (x *pairs) Metrics() map[string]string { return x.metrics }

func (x *pairs) Factors() []Factor {
	return append([]Factor{
		{Name: factorPairs, About: "pairs of a client and its server, each in a container of its own", Check: between(1, tools.MaxPairs, "a number of pairs"), Sets: []string{condFlows}},
		{Name: factorRuntime, Default: defaultMember, About: "what the containers are", Check: oneOf(platform.MemberRuntimes()...), Sets: []string{condEnds, condCPUs}},
		{Name: FactorNetwork, Default: defaultSegment, About: "what joins them", Check: oneOf(platform.SegmentNames()...)},
		{Name: factorCores, Default: coresAll, About: "processors for all containers together, the machine's first ones: a number, or all", Check: checkShared, Sets: []string{condCPUs}},
		{Name: factorPinning, Default: pinNone, Check: oneOf(pinNone, pinSame, pinDifferent), Sets: []string{condCPUs},
			About: "none; or each container on one processor, in turns: a client and its server on the same one, or on different ones"},
		socketFactors()[0],
	}, x.more...)
}

// OnPairs tells whether an experiment measures pairs.
func OnPairs(name string) bool {
	_, ok := All()[name].(*pairs)
	return ok
}

func checkShared(level string) error {
	if n, err := strconv.Atoi(level); level != coresAll && (err != nil || n < 1 || n > cpuset.Max+1) {
		return fmt.Errorf("%q: want %s, or a number of processors", level, coresAll)
	}
	return nil
}

func (x *pairs) Check(_ context.Context, b *Bench, l Levels) string {
	if _, ok := l[factorPairs]; !ok {
		return "how many pairs? (factor pairs)"
	}
	if err := tools.Installed(x.programs...); err != nil {
		return err.Error()
	}
	if _, why := seats(l); why != "" {
		return why
	}
	runtime, network := l.or(factorRuntime, defaultMember), l.or(FactorNetwork, defaultSegment)
	if why := platform.CheckMembers(b.options(), runtime, network); why != "" {
		return why
	}
	if why := x.room(l, runtime); why != "" {
		return why
	}
	if why := CongestionHere(l.or(factorCongestion, DefaultCongestion)); why != "" {
		return why
	}
	if x.check != nil {
		return x.check(l)
	}
	return ""
}

// room tells why the machine's memory does not bear so many pairs.
func (x *pairs) room(l Levels, runtime string) string {
	free, err := machine.Available()
	if err != nil {
		return err.Error()
	}
	n := l.number(factorPairs, "1")
	if need := int64(n) * (2*platform.MemberMemory(runtime) + x.memory); need > free {
		return fmt.Sprintf("%d pairs need about %d MiB of memory, and %d MiB are available", n, need>>20, free>>20)
	}
	return ""
}

// seat is where the programs of a pair run; empty: wherever they come to run.
type seat struct{ client, server cpuset.Set }

// seats of all pairs; why says what this machine lacks.
func seats(l Levels) (out []seat, why string) {
	have, err := cpuset.Allowed()
	if err != nil {
		return nil, err.Error()
	}
	cores := l.or(factorCores, coresAll)
	n := len(have)
	if cores != coresAll {
		n, _ = strconv.Atoi(cores) // checked
	}
	if n > len(have) {
		return nil, fmt.Sprintf("this machine has %d processors: %d are wanted", len(have), n)
	}
	pinning := l.or(factorPinning, pinNone)
	if pinning == pinDifferent && n < 2 {
		return nil, "clients and servers on different processors need two of them"
	}
	out = make([]seat, l.number(factorPairs, "1"))
	for i := range out {
		at, next := cpuset.Set{have[i%n]}, cpuset.Set{have[(i+1)%n]}
		switch {
		case pinning == pinSame:
			out[i] = seat{at, at}
		case pinning == pinDifferent:
			out[i] = seat{at, next}
		case cores != coresAll:
			out[i] = seat{have[:n], have[:n]}
		}
	}
	return out, ""
}

// gathered is members, and how many trials were made with them: each has a port of its own.
type gathered struct {
	*platform.Members
	trials int
}

// paired is pairs that are ready.
type paired struct {
	x       *pairs
	members *gathered
	list    []platform.Member // clients and servers in turns
	levels  Levels
}

func (x *pairs) Setup(ctx context.Context, b *Bench, l Levels) (Arrangement, error) {
	runtime, network := l.or(factorRuntime, defaultMember), l.or(FactorNetwork, defaultSegment)
	name := "members " + runtime + " " + network
	m, err := shared(b, name, func() (*gathered, error) {
		m, err := platform.OpenMembers(ctx, platform.MemberOptions{Options: b.options(), Runtime: runtime, Network: network, Engine: b.engine})
		return &gathered{Members: m}, err
	})
	if err != nil {
		return nil, err
	}
	p := &paired{x: x, members: m, levels: l}
	if p.list, err = m.Grow(ctx, 2*l.number(factorPairs, "1")); err == nil {
		err = p.path(len(p.list)/2 - 1).Try(ctx)
	}
	if err != nil { // what is half made is made anew
		return nil, errors.Join(err, b.unshare(name))
	}
	return p, nil
}

// engine is the Docker engine of all members on the bench.
func (b *Bench) engine(ctx context.Context) (*platform.Engine, error) {
	b.starting.Lock()
	defer b.starting.Unlock()
	return shared(b, "engine", func() (*platform.Engine, error) { return platform.StartEngine(ctx, b.options()) })
}

// Close leaves the members to others.
func (p *paired) Close() error { return nil }

func (p *paired) Measure(ctx context.Context, length time.Duration) (Measurement, error) {
	m, err := p.x.measure(ctx, p, length)
	if err != nil {
		return m, err
	}
	have, err := p.path(0).Conditions() // all are made alike
	if err != nil {
		return m, err
	}
	have[condRepresentation] = "socket"
	maps.Copy(have, m.Conditions)
	m.Conditions = have
	return m, nil
}

func (p *paired) pair(i int) (client, server platform.Member) { return p.list[2*i], p.list[2*i+1] }

// path of a pair.
func (p *paired) path(i int) platform.Path {
	client, server := p.pair(i)
	return p.members.Path(client, server)
}

// place gives the ends of all pairs: what each runs in, and its processors. Containers with a cpuset cgroup are confined by that, others by the affinity
// of what runs there.
func (p *paired) place() (out []tools.Pair, where string, err error) {
	all, why := seats(p.levels)
	if why != "" {
		return nil, "", errors.New(why)
	}
	have, err := cpuset.Allowed()
	if err != nil {
		return nil, "", err
	}
	by := "affinity"
	end := func(m platform.Member, cpus cpuset.Set) (tools.End, error) {
		e := tools.End{Space: m.Space, Groups: m.Groups}
		want := cpus
		if want == nil {
			want = have
		}
		confined, err := m.Confine(want.String())
		switch {
		case confined:
			by = "cpusets"
		case cpus != nil:
			e.CPUs = cpus.String()
		}
		return e, err
	}
	for i, s := range all {
		client, server := p.pair(i)
		c, err := end(client, s.client)
		if err != nil {
			return nil, "", err
		}
		v, err := end(server, s.server)
		if err != nil {
			return nil, "", err
		}
		out = append(out, tools.Pair{Client: c, Server: v, Address: server.Address})
	}
	where = fmt.Sprintf("%s, pinning %s", p.levels.or(factorCores, coresAll), p.levels.or(factorPinning, pinNone))
	if all[0].client != nil {
		where += ", by " + by
	}
	return out, where, nil
}

// ends of flows of our own: threads of this process in the namespaces of the containers.
func (p *paired) ends() (out []rr.Ends, err error) {
	all, why := seats(p.levels)
	if why != "" {
		return nil, errors.New(why)
	}
	for i, s := range all {
		client, server := p.pair(i)
		out = append(out, rr.Ends{From: client.Space, To: server.Space, Address: server.Address, FromCPUs: s.client, ToCPUs: s.server})
	}
	return out, nil
}

// port of the next trial: those of the last ones may still be in use.
func (p *paired) port() int {
	p.members.trials++
	return 20000 + p.members.trials%1000
}

// pairedNetwork is the network that levels of an experiment on pairs choose; false: it is none.
func pairedNetwork(l Levels) (string, bool) {
	_, ok := l[factorPairs]
	return l.or(FactorNetwork, defaultSegment), ok
}

// condEnds says what makes the traffic.
const condEnds = "ends"

// endsText of programs.
func endsText(list []tools.Pair) string {
	if slices.ContainsFunc(list, func(p tools.Pair) bool { return len(p.Client.Groups) == 0 }) {
		return "programs in the namespaces"
	}
	return "programs in the namespaces and cgroups of the containers"
}
