package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
	"weir.dev/weir/netns"
)

const fairStudy = `name: fair
title: Peers with and without a mistake
parts:
  - name: idle
    question: Which is shorter?
    experiment: ping
    metrics: [{name: rtt, unit: us, better: lower}]
    factors: [{name: platform, levels: [least, bridges]}]
    settings: {wires: "2"}
    compare: platform
    baseline: bridges
    quick: {blocks: 1}
    full: {blocks: 6}
`

// mistaken is the experiment ping on platforms of which one is made with a mistake.
type mistaken struct {
	experiment.Experiment
	level   string
	mistake func(p platform.Path) error
}

func (x mistaken) Setup(ctx context.Context, b *experiment.Bench, l experiment.Levels) (experiment.Arrangement, error) {
	a, err := x.Experiment.Setup(ctx, b, l)
	if err != nil || l["platform"] != x.level {
		return a, err
	}
	p, err := b.Platform(ctx, x.level)
	if err != nil {
		return a, err
	}
	path, err := p.Path(ctx, platform.Layout{Chain: 2})
	if err == nil {
		err = x.mistake(path)
	}
	return a, err
}

// Real peers are alike. An unfair sysctl on one side is found, wherever it is, as is a peer with offloads off: nothing is claimed then, and the report
// says why.
func TestUnfairPeersAreFound(t *testing.T) {
	showTables := func(p platform.Path) error { // in one of the functions only
		space := filepath.SplitList(p.Middle)[2]
		return netns.Do(space, func() error { return os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("1"), 0) })
	}
	switchOff := func(p platform.Path) error {
		s, err := netns.At(p.From)
		if err != nil {
			return err
		}
		return errors.Join(s.Offloads(platform.Station, false), s.Close())
	}
	slowStart := func(p platform.Path) error {
		return netns.Do(p.To, func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_rmem", []byte("4096 8192 16384"), 0) })
	}
	for name, c := range map[string]struct {
		level   string
		mistake func(platform.Path) error
		want    string // empty: fair
	}{
		"none":                       {"bridges", func(platform.Path) error { return nil }, ""},
		"sysctl":                     {"bridges", slowStart, "unfair: tcp_rmem is"},
		"bridge-nf without a bridge": {"least", showTables, "unfair: bridge-nf-call-iptables is 0 and 1 at least, 0 at bridges"},
		"offloads":                   {"bridges", switchOff, "unfair: TSO is on at least, off and on at bridges"},
	} {
		t.Run(name, func(t *testing.T) {
			r := runMistaken(t, fairStudy, c.level, c.mistake)
			checkUnfair(t, r, c.want)
		})
	}
	t.Run("bridge-nf", func(t *testing.T) {
		text := strings.Replace(fairStudy, "[least, bridges]", "[oci+bridge+bridge, bridges]", 1)
		checkUnfair(t, runMistaken(t, text, "bridges", showTables), "unfair: bridge-nf-call-iptables is 0 at oci+bridge+bridge, 0 and 1 at bridges")
	})
}

func checkUnfair(t *testing.T, r Results, want string) {
	t.Helper()
	if r.Measured != 3 {
		t.Fatalf("%d trials were measured: %+v", r.Measured, r.Parts[0].Voids)
	}
	if want == "" {
		if len(r.Distrusted) > 0 {
			t.Errorf("peers that are alike: %v", r.Distrusted)
		}
		return
	}
	var text bytes.Buffer
	if err := Text(&text, r); err != nil || !strings.Contains(text.String(), want) {
		t.Errorf("%v: want %q in\n%s", err, want, text.String())
	}
}

func runMistaken(t *testing.T, text, level string, mistake func(platform.Path) error) Results {
	t.Helper()
	f, err := study.Parse("fair.yaml", []byte(text), []string{"ping"})
	if err != nil {
		t.Fatal(err)
	}
	j, err := study.Create(filepath.Join(t.TempDir(), "run"), study.Header{Study: f.Study, Mode: study.Quick, Seed: 5, Started: time.Unix(0, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	images, err := filepath.Abs("../bin/images")
	if err != nil {
		t.Fatal(err)
	}
	both, err := Options{Images: []string{images}}.benches(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := runner(nil, j)
	r.Experiments = map[string]experiment.Experiment{"ping": mistaken{experiment.All()["ping"], level, mistake}}
	r.Bench, r.Twin = both[0], both[1]
	if err := errors.Join(r.Run(t.Context()), both.close()); err != nil {
		t.Fatal(err)
	}
	return Summarise(j)
}

// conditioned is a run of a study on ping, on made-up trials. A condition whose name begins with a level's name and a space is of that level only, and
// replaces one of all levels; one that begins with a level, a space and a block's number is of that trial only.
func conditioned(t *testing.T, text string, conditions map[string]string) Results {
	t.Helper()
	f, err := study.Parse("fair.yaml", []byte(text), []string{"ping"})
	if err != nil {
		t.Fatal(err)
	}
	j, err := study.Create(filepath.Join(t.TempDir(), "run"), study.Header{Study: f.Study, Mode: study.Quick, Seed: 5, Started: time.Unix(0, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	levels, _ := f.Study.Parts[0].Factor("platform")
	for i, tr := range j.Left() {
		r := study.Record{
			Trial: tr, Begun: time.Unix(int64(i), 0), Conditions: map[string]string{},
			Values: map[string]float64{"rtt": map[string]float64{"ovs": 300, "least": 10, "veth": 5, "bridges": 20}[tr.Variant[0]]},
		}
		for _, depth := range []int{0, 1, 2} { // of all, of a level, of a trial
			for key, value := range conditions {
				words := strings.SplitN(key, " ", 3)
				of := 0
				if slices.Contains(levels.Levels, words[0]) {
					of++
					if _, err := strconv.Atoi(words[1]); err == nil {
						of++
					}
				}
				switch {
				case of != depth || of > 0 && words[0] != tr.Variant[0] || of > 1 && words[1] != strconv.Itoa(tr.Block):
				case value == "":
					delete(r.Conditions, strings.Join(strings.Fields(key)[of:], " "))
				default:
					r.Conditions[strings.Join(strings.Fields(key)[of:], " ")] = value
				}
			}
		}
		if err := j.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	return Summarise(j)
}

// Of settings that differ, or are known on one side only, a verdict and a claim are taken back; what the compared factor is about may differ, and what a
// platform cannot have otherwise, or does not have, is told.
func TestWhatDiffersIsJudged(t *testing.T) {
	text := strings.Replace(fairStudy, "[least, bridges]", "[ovs, least, bridges]", 1)
	text = strings.Replace(text, "    quick: {blocks: 1}\n", `    quick: {blocks: 8}
    claims: [{id: half, text: half as long, source: here, metric: rtt, at: {platform: least}, against: {platform: bridges}, value: 0.5}]
`, 1)
	none := strings.ReplaceAll(strings.Replace(text, `wires: "2"`, `wires: "0"`, 1), "least", "veth")
	for name, c := range map[string]struct {
		text, level  string            // of which nothing is claimed; empty: of all
		conditions   map[string]string // see conditioned
		unfair, told string
	}{
		"alike":       {text, "", map[string]string{"GRO": "off"}, "", ""},
		"unfair":      {text, "least", map[string]string{"tcp_sack": "1", "least tcp_sack": "0"}, "unfair: tcp_sack is 0 at least, 1 at bridges", ""},
		"inherent":    {text, "", map[string]string{"TSO of ports": "on (4)", "ovs TSO of ports": "on (2), off (2)"}, "", "TSO of ports at ovs, not at bridges: a switch in user space"},
		"how many":    {text, "", map[string]string{"RPS of ports": "0 (4), 2 (1)", "least RPS of ports": "2 (1), 0 (40)"}, "", ""},
		"description": {text, "", map[string]string{"mode": "one", "least mode": "another"}, "", ""},

		"known at a level only": {text, "least", map[string]string{"least colour": "red", "least size": "7"}, "unfair: known at least, not at bridges: colour, size; ", ""},
		"known at the baseline and another": {text, "least", map[string]string{"tcp_sack": "1", "least tcp_sack": ""},
			"unfair: known at bridges, not at least: tcp_sack; ", ""},
		"known in some trials only": {text, "least", map[string]string{"tcp_sack": "1", "GRO": "on", "least 3 tcp_sack": ""},
			"unfair: tcp_sack is 1 and not known at least, 1 at bridges; ", ""},
		"nothing known of a trial": {text, "", map[string]string{"tcp_sack": "1", "least 3 tcp_sack": ""}, "", ""}, // it was resumed behind its last step
		"inherent or not known": {text, "ovs", map[string]string{"GRO": "on", "TSO of ports": "on", "ovs TSO of ports": "off", "ovs 3 TSO of ports": ""},
			"unfair: TSO of ports is not known and off at ovs, on at bridges", ""},

		"nothing has it": {none, "", map[string]string{"GRO": "on", "MTU of ports": "1500", "bridge-nf-call-iptables": "0", "veth MTU of ports": "", "veth bridge-nf-call-iptables": ""}, "",
			"Part idle: MTU of ports, bridge-nf-call-iptables at bridges, not at veth: the stations are the ends of one veth pair"},
		"a station has it": {none, "veth", map[string]string{"GRO": "on", "MTU": "1500", "veth MTU": ""}, "unfair: known at bridges, not at veth: MTU; ", ""},
		"something has it": {text, "least", map[string]string{"GRO": "on", "MTU of ports": "1500", "least MTU of ports": ""}, "unfair: known at bridges, not at least: MTU of ports; ", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := conditioned(t, c.text, c.conditions)
			if got := fmt.Sprint(r.Distrusted); (c.unfair == "") != (len(r.Distrusted) == 0) || !strings.Contains(got, c.unfair) {
				t.Errorf("distrusted %s: want %q", got, c.unfair)
			}
			if got := strings.Join(r.Limits, "\n"); !strings.Contains(got, c.told) || c.told == "" && strings.Contains(got, "Part idle") {
				t.Errorf("limits: want %q in\n%s", c.told, got)
			}
			for level, ratio := range r.Parts[0].Groups[0].Metrics[0].Comparison.Variants {
				if (ratio.Verdict == stats.NotClaimed) != (level == c.level) {
					t.Errorf("%s is %s", level, ratio.Verdict)
				}
			}
			if claim := r.Parts[0].Claims[0]; strings.Contains(claim.Headline().Why, "unfair: ") != (c.level == "least" || c.level == "veth") {
				t.Errorf("claim: %s, %s", claim.Verdict, claim.Headline().Why)
			}
		})
	}
}
