package docs

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/report"
)

const results = top + "/docs/results"

// shown is a phrase of a page in which {} stands for a figure, and what the raw data says these figures are.
type shown struct {
	phrase string
	want   []float64
}

// figure as pages write it: 0.92, 11, 38,000.
const figure = `([0-9][0-9,]*(?:\.[0-9]+)?)`

// rounded is half of the last place that a figure shows: of 1.45 it is 0.005, of 38,000 it is 500.
func rounded(text string) float64 {
	if _, decimals, ok := strings.Cut(text, "."); ok {
		return 0.5 * math.Pow10(-len(decimals))
	}
	if whole := strings.ReplaceAll(text, ",", ""); whole != text {
		return 0.5 * math.Pow10(len(whole)-len(strings.TrimRight(whole, "0")))
	}
	return 0.5
}

// check that a text has the phrase once, with the figures that are wanted; it returns the phrase as the text has it.
func (s shown) check(text string) (found string, err error) {
	pattern := regexp.QuoteMeta(strings.Join(strings.Fields(s.phrase), " "))
	pattern = strings.ReplaceAll(strings.ReplaceAll(pattern, " ", `\s+`), `\{\}`, figure)
	all := regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
	if len(all) != 1 {
		return "", fmt.Errorf("%d times in the page: want once: %s", len(all), s.phrase)
	}
	have := all[0][1:]
	if len(have) != len(s.want) {
		return "", fmt.Errorf("%d figures in %q: want %d", len(have), s.phrase, len(s.want))
	}
	for i, text := range have {
		v, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
		if err != nil {
			return "", err
		}
		if !(math.Abs(v-s.want[i]) <= rounded(text)*1.001) { // NaN is no figure
			return "", fmt.Errorf("%q says %s: the raw data %.5g", all[0][0], text, s.want[i])
		}
	}
	return all[0][0], nil
}

// bench is a file that `make bench` wrote.
type bench struct {
	t    *testing.T
	file string
	rows map[string]benched
}

type benched struct {
	Name, Target     string
	Weir, Peer       float64
	Ratio            float64
	Quartiles        []float64 `json:"ratio_quartiles"`
	lower, upper, at float64   // quartiles, and the target's figure
}

var number = regexp.MustCompile(`[0-9]+(?:\.[0-9]+)?`)

func readBench(t *testing.T, file string) bench {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(results, file))
	if err != nil {
		t.Fatal(err)
	}
	var of struct{ Results []benched }
	if err := json.Unmarshal(text, &of); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	b := bench{t, file, map[string]benched{}}
	for _, r := range of.Results {
		r.lower, r.upper, r.at = math.NaN(), math.NaN(), math.NaN()
		if len(r.Quartiles) == 2 {
			r.lower, r.upper = r.Quartiles[0], r.Quartiles[1]
		}
		if text := number.FindString(r.Target); text != "" {
			if r.at, err = strconv.ParseFloat(text, 64); err != nil {
				t.Fatal(err)
			}
		}
		b.rows[r.Name] = r
	}
	return b
}

func (b bench) get(name string) benched {
	b.t.Helper()
	r, ok := b.rows[name]
	if !ok {
		b.t.Fatalf("%s has no result %q", b.file, name)
	}
	return r
}

// ran is the directory of a study's run: its summary, and its report.
type ran struct {
	t    *testing.T
	dir  string
	rows map[string]measured
	r    report.Report
}

type measured struct {
	median, ratio, low, high float64
	verdict                  string
}

func readRun(t *testing.T, dir string) ran {
	t.Helper()
	built, err := report.Build(filepath.Join(results, dir))
	if err != nil {
		t.Fatal(err)
	}
	files, err := built.Files(report.CSV)
	if err != nil {
		t.Fatal(err)
	}
	text := files["summary.csv"]
	lines, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	if err != nil || len(lines) < 2 {
		t.Fatalf("%s: %d lines: %v", dir, len(lines), err)
	}
	column := func(line []string, name string) string { return line[slices.Index(lines[0], name)] }
	x := ran{t: t, dir: dir, rows: map[string]measured{}, r: built}
	for _, line := range lines[1:] {
		if column(line, "duplicate") == "true" {
			continue
		}
		number := func(name string) float64 {
			if column(line, name) == "" {
				return math.NaN()
			}
			v, err := strconv.ParseFloat(column(line, name), 64)
			if err != nil {
				t.Fatalf("%s: %v", dir, err)
			}
			return v
		}
		key := strings.Join([]string{column(line, "part"), column(line, "group"), column(line, "metric"), column(line, "level")}, " ")
		x.rows[key] = measured{number("median"), number("ratio"), number("ratio_low"), number("ratio_high"), column(line, "verdict")}
	}
	return x
}

// against says what Weir's level is beside the baseline's: both medians, the ratio and its interval.
func (x ran) against(group, level, baseline, verdict string) []float64 {
	x.t.Helper()
	a, ok1 := x.rows[group+" "+level]
	b, ok2 := x.rows[group+" "+baseline]
	if !ok1 || !ok2 {
		x.t.Fatalf("%s has no %s of %s and %s", x.dir, group, level, baseline)
	}
	if a.verdict != verdict {
		x.t.Errorf("%s: %s of %s is %s: the page has it as %s", x.dir, group, level, a.verdict, verdict)
	}
	return []float64{a.median, b.median, a.ratio, a.low, a.high}
}

// claim by its name.
func (x ran) claim(id string) lab.ClaimResult {
	x.t.Helper()
	for _, p := range x.r.Results.Parts {
		for _, c := range p.Claims {
			if c.Claim.ID == id {
				return c
			}
		}
	}
	x.t.Fatalf("%s has no claim %s", x.dir, id)
	return lab.ClaimResult{}
}

func (x ran) ours(id string) float64 {
	x.t.Helper()
	c := x.claim(id)
	if c.Ours == nil {
		x.t.Fatalf("%s: claim %s was not tested: %s", x.dir, id, c.Why)
	}
	return *c.Ours
}

// span of what claims say.
func (x ran) span(ids ...string) (least, most float64) {
	x.t.Helper()
	least, most = math.Inf(1), math.Inf(-1)
	for _, id := range ids {
		v := x.ours(id)
		least, most = min(least, v), max(most, v)
	}
	return least, most
}

func (x ran) agreements() (all float64, by map[lab.Agreement]float64) {
	by = map[lab.Agreement]float64{}
	for _, p := range x.r.Results.Parts {
		for _, c := range p.Claims {
			all++
			by[c.Agreement]++
		}
	}
	return all, by
}

// took is how long its trials took, from the first to the end of the last.
func (x ran) took() time.Duration { return x.r.Results.Ended.Sub(x.r.Results.Started) }

// Every row of figures in README.md and docs/results/README.md, and the sentences that tell them again, says what the raw data beside it says,
// rounded. Whoever edits a figure, or the data, has to edit the other.
func TestFiguresAreThoseOfTheRawData(t *testing.T) {
	rest, chain := readBench(t, "bench-2026-11-22.json"), readBench(t, "bench-chain-2026-11-22.json")
	fabric, trees := readBench(t, "bench-fabric-2026-11-22.json"), readBench(t, "bench-fabric-2026-11-22-2.json")
	wires, makers := readRun(t, "wires-2026-11-22"), readRun(t, "generator-2026-11-22")

	beside := func(r benched) []float64 { return []float64{r.Weir, r.Peer, r.Ratio} }
	scaled := func(r benched, by float64) []float64 { return []float64{r.Weir * by, r.Peer * by, r.Ratio} }
	claims, by := wires.agreements()
	started := func(runtime, verdict string) float64 {
		return wires.against("boot functions=10 run", runtime, "runc", verdict)[0]
	}
	if !wires.r.Trust.Sound {
		t.Errorf("wires: %s", wires.r.Trust.Sentence)
	}
	readme := []shown{
		{"| one TCP stream through 9 containers | {} Gb/s | {} | {} | Linux bridges all the way |", beside(chain.get("tcp cubic, 9 wires"))},
		{"| the same, against no chain at all | {} Gb/s | {} | {} | Weir without a chain |", beside(chain.get("tcp cubic, 9 wires against none"))},
		{"| the same with both ends on one CPU | {} Gb/s | {} | {} | Weir without a chain |", beside(chain.get("tcp cubic on one CPU, 9 wires against none"))},
		{"| the same, against the least that a chain can be | {} Gb/s | {} | {} | veths and one look-up a hop |", beside(chain.get("tcp cubic on one CPU, 9 against the least"))},
		{"| one TCP stream through 100 containers | {} Gb/s | {} | {} | Linux bridges |", beside(chain.get("tcp cubic, 100 wires"))},
		{"| ping back to back through 100 | {} us | {} | {} | Linux bridges |", beside(chain.get("ping back to back, 100 wires"))},
		{"| the whole way of it (`ping -U`) | {} us | {} | {} | Linux bridges |", beside(chain.get("ping back to back -U, 100 wires"))},
		{"| 64-byte UDP through 9, on one core | {} Mpps | {} | {} | Linux bridges |", beside(rest.get("udp 64 B, 9 wires"))},
		{"| the same, against the least that a chain can be | {} Mpps | {} | {} | veths and one look-up a hop, datagrams |", beside(rest.get("udp 64 B, 9 wires against the least"))},
		{"| 64-byte UDP beside 10,000 policies | {} Mpps | {} | {} | Weir with 10 policies |", beside(rest.get("udp 64 B beside 10,000 policies"))},
		{"| a function created, started and chained (of 100) | {} ms | {} | {} | `docker run -d --network none` |", scaled(rest.get("one function"), 1000)},
		{"| 1,000 policies applied, in force | {} s |", []float64{rest.get("apply of 1,000 policies, in force").Weir}},
		{"| memory of the daemon with 100 functions | {} MB |", []float64{rest.get("daemon RSS with 100 functions").Weir}},

		{"| policies compiled and their entries sent to switches that cost nothing | {}/s | {} | {} | os-ken, which is given the entries |", beside(fabric.get("policies compiled, into a sink"))},
		{"| the same, into Open vSwitch | {}/s | {} | {} | os-ken |", beside(fabric.get("policies compiled, into Open vSwitch"))},
		{"| 10,000 policies on 100 switches compiled | {} s |", []float64{fabric.get("10,000 policies, 100 switches").Weir}},
		{"| one more policy among 10,000, p50 and p99 | {}, {} ms |", []float64{fabric.get("one more policy among 10,000, p50").Weir, fabric.get("one more policy among 10,000, p99").Weir}},
		{"| from `weir apply` to the first steered packet, p50 and p99 | {}, {} ms |", []float64{fabric.get("apply to first steered packet, p50").Weir, fabric.get("apply to first steered packet, p99").Weir}},

		{"| one TCP stream of 1 s through 9 wires | {} Gb/s | {} | {} ({} to {}) |", wires.against("throughput wires=9 rate", "ebpf", "bridges", "higher")},
		{"| the same through 100 | {} Gb/s | {} | {} ({} to {}) |", wires.against("throughput wires=100 rate", "ebpf", "bridges", "higher")},
		{"| ping through 100 | {} us | {} | {} ({} to {}) |", wires.against("delay wires=100 rtt", "ebpf", "bridges", "lower")},
		{"| 64-byte packets through 20, on one CPU | {} Mpps | {} | {} ({} to {}) |", wires.against("packets wires=20,size=64 rate", "ebpf", "bridges", "higher")},
		{"| 64-byte packets through 9 on a CPU of their own, without loss | {} Mpps | {} | {} ({} to {}) |", wires.against("limits wires=9 ndr", "ebpf", "bridges", "higher")},
		{"Ten functions, created and started one after another, take {} s; `runc run` by hand takes {} s (inconclusive), `docker run` {} s, LXC {} s.", []float64{
			started("oci", "inconclusive"), started("runc", "baseline"), started("docker", "higher"), started("lxc", "lower")}},
		{"Of {} published claims {} were reproduced, {} cannot be tested there", []float64{claims, by[lab.Reproduced], by[lab.NotTestable]}},
		{"was told from itself (A/A) in {} of {} comparisons", []float64{float64(wires.r.Trust.Different), float64(wires.r.Trust.Same + wires.r.Trust.Different)}},
	}

	quartiles := func(r benched) []float64 { return []float64{r.Ratio, r.lower, r.upper} }
	// beyond is a row: the target, beside bridges, beside the least chain.
	beyond := func(b bench, name, least string) []float64 {
		v := slices.Concat(quartiles(b.get(name)), quartiles(b.get(least)))
		if at := b.get(name).at; !math.IsNaN(at) {
			return append([]float64{at}, v...)
		}
		return v
	}
	with, cold := chain.get("ping back to back -U, 100 wires"), chain.get("ping -U, 100 wires")
	frames := []string{"frame-1k", "frame-10k", "frame-100k", "frame-half", "frame-most"}
	skbs := []string{"skb-1k", "skb-10k", "skb-100k", "skb-half", "skb-most"}
	least, most := makers.span(frames...)
	leastSkb, mostSkb := makers.span(skbs...)
	for _, id := range append(frames, skbs...) {
		if c := makers.claim(id); c.Agreement != lab.Reproduced {
			t.Errorf("generator: %s is %s: docs/results/README.md says that its whole interval is below the target", id, c.Agreement)
		}
	}
	reached := []shown{
		{"| TCP, 9 functions : no chain | {} | {} ({} to {}) | |", append([]float64{chain.get("tcp cubic, 9 wires against none").at}, quartiles(chain.get("tcp cubic, 9 wires against none"))...)},
		{"| the same on one CPU | | {} ({} to {}) | |", quartiles(chain.get("tcp cubic on one CPU, 9 wires against none"))},
		{"| TCP, 9 functions : bridges | {} | {} ({} to {}) | {} ({} to {}) |", beyond(chain, "tcp cubic, 9 wires", "tcp cubic, 9 against the least")},
		{"| the same on one CPU | | {} ({} to {}) | {} ({} to {}) |", beyond(chain, "tcp cubic on one CPU, 9 wires", "tcp cubic on one CPU, 9 against the least")},
		{"| TCP, 100 functions : bridges | {} | {} ({} to {}) | {} ({} to {}) |", beyond(chain, "tcp cubic, 100 wires", "tcp cubic, 100 against the least")},
		{"| ping through 100, every 2 ms, bridges : Weir | {} | {} ({} to {}) | {} ({} to {}) |", beyond(chain, "ping, 100 wires", "ping, 100 against the least")},
		{"| the same, back to back | {} | {} ({} to {}) | {} ({} to {}) |", beyond(chain, "ping back to back, 100 wires", "ping back to back, 100 against the least")},
		{"| the same, back to back, the whole way (`-U`) | | {} ({} to {}) | {} ({} to {}) |", beyond(chain, "ping back to back -U, 100 wires", "ping back to back -U, 100 against the least")},
		{"| every 2 ms, the whole way | | {} ({} to {}) | {} ({} to {}) |", beyond(chain, "ping -U, 100 wires", "ping -U, 100 against the least")},
		{"| 64-byte datagrams through 9 : bridges | {} | {} ({} to {}) | {} ({} to {}) |", beyond(rest, "udp 64 B, 9 wires", "udp 64 B, 9 wires against the least")},
		{"| the same through 100 | | {} ({} to {}) | {} ({} to {}) |", beyond(rest, "udp 64 B, 100 wires", "udp 64 B, 100 wires against the least")},
		{"**The daemon** takes {} % of a core beside 100 functions (target {} %).",
			[]float64{rest.get("daemon idle CPU, 100 functions").Weir, rest.get("daemon idle CPU, 100 functions").at}},
		{"there the ratio is {} back to back and {} every 2 ms ({} and {} us through 100 functions)", []float64{with.Ratio, cold.Ratio, with.Weir, cold.Weir}},
		{"**The router**: {} times os-ken where switches cost nothing, {} times into Open vSwitch",
			[]float64{fabric.get("policies compiled, into a sink").Ratio, fabric.get("policies compiled, into Open vSwitch").Ratio}},
		{"one more policy among 10,000 takes {} ms, p99 {} ms", []float64{fabric.get("one more policy among 10,000, p50").Weir, fabric.get("one more policy among 10,000, p99").Weir}},
		{"(`bench-fabric-2026-11-22-2.json`): {} and {} times, one more policy {} ms, p99 {} ms, and 10,000 policies on 100 switches in {} s",
			[]float64{trees.get("policies compiled, into a sink").Ratio, trees.get("policies compiled, into Open vSwitch").Ratio,
				trees.get("one more policy among 10,000, p50").Weir, trees.get("one more policy among 10,000, p99").Weir, trees.get("10,000 policies, 100 switches").Weir}},
		{"XDP frames leave {} times as fast as testpmd's over a packet socket (target {}) and {} times as fast as our packet socket (target {}), socket buffers {} and {} times",
			[]float64{makers.ours("testpmd-frame"), makers.claim("testpmd-frame").Claim.AtLeast, makers.ours("packet-frame"), makers.claim("packet-frame").Claim.AtLeast, makers.ours("testpmd-skb"), makers.ours("packet-skb")}},
		{"The rate of XDP frames is off by {} to {} % from 1,000 a second to 80 % of the ceiling (target {} %), that of socket buffers by {} to {} %; all ten intervals are wholly below",
			[]float64{least, most, makers.claim("frame-most").Claim.AtMost, leastSkb, mostSkb}},
		{"A frame that was held for 100 us is said to have taken {} us more, one that was held for 500 us {} us (targets {} and {})",
			[]float64{makers.ours("delay-100"), makers.ours("delay-500"), makers.claim("delay-100").Claim.AtMost, makers.claim("delay-500").Claim.AtMost}},
	}
	checkPage(t, top+"/README.md", "## Figures", readme)
	checkPage(t, results+"/README.md", "## What is reached", reached)
	checkDuration(t, top+"/README.md", "({} min {} s from nothing", wires.took())
	checkDuration(t, results+"/README.md", "That of 2026-11-22 took {} min {} s", wires.took())
	checkDuration(t, results+"/README.md", "`weir lab run generator --quick`, {} min {} s", makers.took())
}

// checkPage holds phrases against a page, and wants every row of a section's tables among them that has a figure behind its first column.
func checkPage(t *testing.T, path, heading string, all []shown) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	var rows []string
	for _, s := range all {
		found, err := s.check(text)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			found = strings.Split(s.phrase, "{}")[0]
		}
		if strings.HasPrefix(found, "|") {
			rows = append(rows, found)
		}
	}
	_, section, ok := strings.Cut(text, "\n"+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	n := 0
	for line := range strings.Lines(section) {
		cells := strings.SplitN(line, "|", 3)
		if len(cells) < 3 || !number.MatchString(cells[2]) {
			continue
		}
		n++
		if !slices.ContainsFunc(rows, func(row string) bool { return strings.HasPrefix(line, row) }) {
			t.Errorf("%s: nothing says where this row's figures are from: add it to this test: %s", path, line)
		}
	}
	if !ok || n == 0 {
		t.Errorf("%s: no figures under %q", path, heading)
	}
}

// around is how much longer a command may take than from its first trial to its last: it sets up before, and writes the report behind.
const around = 20 * time.Second

func checkDuration(t *testing.T, path, phrase string, trials time.Duration) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pattern := strings.ReplaceAll(regexp.QuoteMeta(phrase), `\{\}`, `(\d+)`)
	m := regexp.MustCompile(pattern).FindStringSubmatch(string(raw))
	if m == nil {
		t.Errorf("%s: %q is not there", path, phrase)
		return
	}
	said, err := time.ParseDuration(m[1] + "m" + m[2] + "s")
	if err != nil || said < trials || said > trials+around {
		t.Errorf("%s: %q: its trials took %s: %v", path, m[0], trials.Round(time.Second), err)
	}
}

// An edited figure does not pass.
func TestAnEditedFigureIsFound(t *testing.T) {
	s := shown{"| one | {} Gb/s | {} |", []float64{32.786, 15984.99}}
	for text, good := range map[string]bool{
		"| one | 32.8 Gb/s | 16,000 |":                               true,
		"| one | 33 Gb/s | 15,985 |":                                 true,
		"| one | 32.9 Gb/s | 16,000 |":                               false,
		"| one | 32.8 Gb/s | 17,000 |":                               false,
		"| one | 32.80 Gb/s | 16,000 |":                              false,
		"| two | 32.8 Gb/s | 16,000 |":                               false,
		"| one | 32.8 Gb/s | 16,000 |\n| one | 32.8 Gb/s | 16,000 |": false,
	} {
		if _, err := s.check(text); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}
