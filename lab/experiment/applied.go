package experiment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/ovsdb/ovsproc"
	"weir.dev/weir/testbed"
)

// appliedExperiment is how soon a policy steers in a fabric.
type appliedExperiment struct{}

func (appliedExperiment) Name() string { return "applied" }
func (appliedExperiment) About() string {
	return "from `weir apply` of a policy to the first packet that has been through its function, under a stream of packets between two stations at two OpenFlow " +
		"switches, the function on a server at the second one"
}
func (appliedExperiment) Metrics() map[string]string {
	return map[string]string{"first": "ms", "slowest": "ms", "lost": "packets"}
}
func (appliedExperiment) Needs() string { return "fig2" }

// Levels of the factor policy.
const (
	factorPolicy   = "policy"
	policyEndpoint = "endpoint"
	policyPrefix   = "prefix"
	policyStarts   = "starts"

	factorApplies = "applies"
)

func (appliedExperiment) Factors() []Factor {
	return []Factor{
		{Name: factorPolicy, Check: oneOf(policyEndpoint, policyPrefix, policyStarts), About: "endpoint: it names the sender; prefix: it names addresses only; starts: its function has to be started"},
		{Name: FactorPlatform, Check: oneOf(platform.PlatformDaemon, platform.PlatformFormer), Default: platform.PlatformDaemon,
			About: "whose daemons: this program's, or another version's"},
		{Name: factorApplies, About: "policies that a trial applies, one after another", Default: "10", Check: between(1, 1000, "policies")},
	}
}

func (appliedExperiment) Check(_ context.Context, b *Bench, l Levels) string {
	if l[FactorPlatform] == platform.PlatformFormer {
		if why := b.Former.Check(); why != "" {
			return why
		}
	}
	if ovsproc.Installed() != nil {
		return "Open vSwitch is not installed (apt-get install openvswitch-switch)"
	}
	if err := tools.Installed("ping"); err != nil {
		return err.Error()
	}
	return checkDaemon(b)
}

// The stream that meets the new policy: the figures are no finer than its pause. firstWithin bounds the wait for a steered packet.
const (
	appliedPPS  = 2000
	appliedPort = 20000 // UDP, of the first stream
	appliedPast = 20    // packets that have been sent before a policy is applied
	firstWithin = 10 * time.Second
	reachWithin = 20 * time.Second
)

// fig2 is a testbed: two switches, two stations, and a server for functions at the second switch (Fig. 2 of the paper on GLANF).
type fig2 struct {
	name, record, program string
	next                  int // of the policies
}

const fig2Base = "endpoints:\n  vm1: {address: 10.0.0.1/24}\n  vm2: {address: 10.0.0.2/24}\nfunctions:\n  nf: {image: wire}\nchains:\n  through: nf\n"

// suffixesFig2 are of the testbeds' names: this program's, and another version's.
var suffixesFig2 = map[string]string{platform.PlatformDaemon: "-t", platform.PlatformFormer: "-u"}

// programFile is in a testbed's record: the program that made it, and can take it down.
const programFile = "program"

// atFig2 is the testbed of a bench and a version, which may be there. Its record says that a testbed of this name is the lab's.
func atFig2(bench, suffix string) *fig2 {
	return &fig2{name: strings.ReplaceAll(bench, "-", "") + suffix, record: filepath.Join(platform.State, bench+suffix)}
}

func openFig2(ctx context.Context, b *Bench, whose string) (*fig2, error) {
	n := atFig2(b.Name, suffixesFig2[whose])
	var err error
	if whose == platform.PlatformFormer {
		n.program, err = filepath.Abs(b.Former.Program())
	} else {
		n.program, err = b.program()
	}
	if err != nil {
		return nil, err
	}
	if names, err := testbed.Names(); err != nil || slices.Contains(names, n.name) {
		return nil, errors.Join(err, fmt.Errorf("a testbed %s is there already, and not the lab's", n.name))
	}
	if err := os.MkdirAll(n.record, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(n.record, programFile), []byte(n.program), 0o600); err != nil {
		return nil, err
	}
	spec := testbed.Spec{
		Name: n.name, Manager: &testbed.Manager{}, Switches: map[string]testbed.Switch{"s1": {DPID: 1}, "s2": {DPID: 2}},
		Hosts:  map[string]testbed.Host{"vm1": {Address: "10.0.0.1/24"}, "vm2": {Address: "10.0.0.2/24"}},
		Agents: map[string]testbed.Agent{"nfv1": {Switch: "ovs"}},
		Links:  []testbed.Link{{A: "s1:1", B: "s2:1"}, {A: "s1:2", B: "vm1"}, {A: "s2:2", B: "vm2"}, {A: "s2:3", B: "nfv1"}},
	}
	if _, err = testbed.Up(ctx, testbed.File{Spec: spec}, testbed.Options{Program: n.program}); err == nil {
		err = n.apply(ctx, fig2Base, "--prune")
	}
	if err == nil {
		err = n.reach(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Close takes it down; also what a crash left.
func (n *fig2) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), clearing)
	defer cancel()
	if _, err := testbed.Down(ctx, n.name, testbed.Options{Program: n.program}); err != nil {
		return err
	}
	return os.RemoveAll(n.record)
}

// removeFig2 takes away what a crash of a bench left.
func removeFig2(bench string) error {
	var errs []error
	for _, suffix := range suffixesFig2 {
		n := atFig2(bench, suffix)
		if _, err := os.Lstat(n.record); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if text, err := os.ReadFile(filepath.Join(n.record, programFile)); err == nil {
			if _, err := os.Stat(string(text)); err == nil {
				n.program = string(text)
			}
		}
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
}

func (n *fig2) space(node string) string {
	return filepath.Join("/run/weir-testbed", n.name, "netns", node)
}

// applyWithin bounds an apply.
const applyWithin = time.Minute

func (n *fig2) apply(ctx context.Context, document string, more ...string) error {
	ctx, cancel := context.WithTimeout(ctx, applyWithin)
	defer cancel()
	c := exec.CommandContext(ctx, n.program, append([]string{"apply", "-f", "-"}, more...)...)
	c.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_") }), "WEIR_NAME="+n.name, "NO_COLOR=1")
	c.Stdin = strings.NewReader(document)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("weir apply: %w: %s", errors.Join(err, ctx.Err()), bytes.TrimSpace(out))
	}
	return nil
}

// reach waits until the stations reach each other, and the router knows both.
func (n *fig2) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	for {
		r, err := tools.RunPing(ctx, n.space("vm1"), tools.PingOptions{To: fig2Target, Count: 3, Interval: 50 * time.Millisecond})
		if err == nil && r.Received == r.Sent {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("vm1 does not reach vm2: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// policed is a kind of policy that is about to be applied.
type policed struct {
	n     *fig2
	kind  string
	times int
}

func (appliedExperiment) Setup(ctx context.Context, b *Bench, l Levels) (Arrangement, error) {
	whose := l.or(FactorPlatform, platform.PlatformDaemon)
	n, err := shared(b, "fig2 of "+whose, func() (*fig2, error) { return openFig2(ctx, b, whose) })
	if err != nil {
		return nil, err
	}
	return &policed{n, l[factorPolicy], l.number(factorApplies, "10")}, nil
}

// Close leaves the testbed to others.
func (*policed) Close() error { return nil }

// document of the i-th policy, for a port.
func (p *policed) document(i, port int) string {
	switch d := fmt.Sprintf("policies:\n  p%d: {from: vm1, match: [udp/%d], chain: through}\n", i, port); p.kind {
	case policyPrefix:
		return strings.Replace(d, "vm1", "10.0.0.0/24", 1)
	case policyStarts:
		return fmt.Sprintf("functions:\n  f%d: {image: wire}\nchains:\n  c%d: f%d\n", i, i, i) + strings.Replace(d, "through", fmt.Sprint("c", i), 1)
	default:
		return d
	}
}

// mostPorts are used before the first one is used again.
const mostPorts = 40_000

func (p *policed) Measure(ctx context.Context, _ time.Duration) (Measurement, error) {
	m := Measurement{Sampled: "first"}
	lost := 0
	for range p.times {
		i := p.n.next
		p.n.next++
		port := appliedPort + i%mostPorts
		took, missed, err := p.n.first(ctx, p.document(i, port), uint16(port))
		if err != nil {
			return m, err
		}
		m.Samples, lost = append(m.Samples, took.Seconds()*1e3), lost+missed
		if err := p.n.apply(ctx, fig2Base, "--prune"); err != nil {
			return m, err
		}
	}
	m.Values = map[string]float64{"first": stats.Median(m.Samples), "slowest": slices.Max(m.Samples), "lost": float64(lost)}
	return m, nil
}

// first applies a document while a stream to a port goes on, and returns how long it took until a packet of it came back from the server, and how
// many of the stream's packets were lost meanwhile.
func (n *fig2) first(ctx context.Context, document string, port uint16) (took time.Duration, lost int, err error) {
	w, err := newWitness(n.space("nfv1"), "eth1", port)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	s, err := newBeat(n.space("vm1"), n.space("vm2"), port)
	if err != nil {
		return 0, 0, err
	}
	begin := time.Time{}
	if err = s.past(ctx, appliedPast); err == nil {
		begin = time.Now()
		err = n.apply(ctx, document)
	}
	if err == nil {
		var at time.Time
		at, err = w.wait(ctx)
		took = at.Sub(begin)
	}
	lost, serr := s.stop()
	if err = errors.Join(err, serr); err == nil && took <= 0 {
		err = fmt.Errorf("a packet was steered %s before the policy was applied", -took)
	}
	return took, lost, err
}
