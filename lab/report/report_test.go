package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"image"
	_ "image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api/schematest"
	"weir.dev/weir/lab"
	"weir.dev/weir/lab/claim"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s (-want +got; -update writes it anew):\n%s", path, diff)
	}
}

func TestGolden(t *testing.T) {
	r := Of(synthetic(t, -1))
	r.Results.Limits, r.Results.Rules = []string{"no network card"}, []string{"steal"} // the engine's texts are not of this package
	files, err := r.Files(Markdown, CSV, Benchstat, SVG)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"report.md", "summary.csv"} {
		golden(t, name, files[name])
	}
	// Of the long ones the beginning.
	for _, name := range []string{"trials.csv", "benchstat.txt"} {
		lines := bytes.SplitAfter(files[name], []byte("\n"))
		golden(t, name, bytes.Join(lines[:min(40, len(lines))], nil))
	}
	golden(t, "schema.json", SchemaJSON())
}

// TestFindsTheTruth: what the journal was made from is what the report says.
func TestFindsTheTruth(t *testing.T) {
	r := Of(synthetic(t, -1))
	if !r.Trust.Sound || r.Trust.Different > 0 && r.Trust.Sentence == "" {
		t.Errorf("the run is not trusted: %+v", r.Trust)
	}
	if r.Trust.Apart <= 1 || r.Trust.Apart > 1.05 {
		t.Errorf("the baseline is %v off itself with 2 %% of noise", r.Trust.Apart)
	}
	var chain Finding
	for _, f := range r.Findings {
		if f.Part == "chain" {
			chain = f
		}
	}
	if chain.Group != "wires=9" {
		t.Errorf("the sentence is about %q: want the published wires=9", chain.Group)
	}
	want := map[string]Sense{"ebpf": Better, "veth": Same, "ovs": Skipped}
	for _, l := range chain.Levels {
		if l.Sense != want[l.Level] {
			t.Errorf("%s: %s: want %s", l.Level, l.Sense, want[l.Level])
		}
		if l.Level == "ebpf" && !l.Ratio.Interval.Contains(3) {
			t.Errorf("ebpf: %+v: the truth is 3", l.Ratio)
		}
	}
	for _, piece := range []string{"At wires=9: rate against bridges", "ebpf is better, ", "veth is equivalent", "ovs was skipped (there is no ovs-vswitchd"} {
		if !strings.Contains(chain.Sentence, piece) {
			t.Errorf("the sentence does not say %q: %s", piece, chain.Sentence)
		}
	}
	verdicts := map[string]claim.Verdict{
		"nine": claim.NotTestable, "triple": claim.Reproduced, "slower": claim.Contradicted, "linear": claim.Reproduced, "ovs": claim.NotTestable, "inverse": claim.SameDirection,
		"far": claim.NotTestable, "twice": claim.Met, "quick": claim.Missed,
	}
	for _, p := range r.Results.Parts {
		for _, c := range p.Claims {
			if c.Verdict != verdicts[c.Claim.ID] {
				t.Errorf("claim %s: %s (%s): want %s", c.Claim.ID, c.Verdict, c.Headline().Why, verdicts[c.Claim.ID])
			}
		}
	}
	hops := map[string]float64{"bridges": 600, "ebpf": 200}
	laws, cost := 0, map[string]float64{}
	for _, l := range r.Laws {
		if l.Part != "packets" {
			continue
		}
		laws++
		cost[l.Level] += l.B
		if math.Abs(l.B/hops[l.Level]-1) > 0.45 || l.Interval == nil || l.R2 < 0.95 {
			t.Errorf("law of %s at %v: %+v: the truth is %v ns per hop (drift of 30 %%)", l.Level, l.At, l, hops[l.Level])
		}
	}
	if laws != 4 || math.Abs(cost["bridges"]/cost["ebpf"]/3-1) > 0.1 {
		t.Errorf("%d laws of packets, hops of %v: want 4, three times as much on bridges", laws, cost)
	}
	if len(r.Distributions) != 3 {
		t.Fatalf("%d distributions: want 3", len(r.Distributions))
	}
	for _, d := range r.Distributions {
		// 0.9 + 0.1 Exp(1): the quantile q is 0.9 - 0.1 ln(1-q).
		mean := truth("idle", study.Variant{d.Levels["platform"]}, "rtt")
		if d.P99 == nil || math.Abs(*d.P99/mean/(0.9-0.1*math.Log(0.01))-1) > 0.08 {
			t.Errorf("%s: p99 %v of mean %v", d.Name, d.P99, mean)
		}
		if d.P999 != nil {
			t.Errorf("%s: p99.9 of %d samples: too few lie beyond", d.Name, d.N)
		}
		if !slices.IsSorted(d.X) || !slices.IsSorted(d.Q) {
			t.Errorf("%s: the distribution falls", d.Name)
		}
	}
}

// TestAnUnsoundRunIsSaidToBe: the duplicate differs from the baseline.
func TestAnUnsoundRunIsSaidToBe(t *testing.T) {
	j := synthetic(t, -1)
	for i := range j.Records {
		if r := &j.Records[i]; r.Trial.Duplicate {
			for m := range r.Values {
				r.Values[m] *= 1.4
			}
		}
	}
	r := Of(j)
	if r.Trust.Sound || !strings.Contains(r.Trust.Sentence, "do not trust this run") {
		t.Errorf("%+v", r.Trust)
	}
	for _, f := range r.Findings {
		if b, note := badge(f); f.Trusted || b != "not to be trusted" || note != "bad" {
			t.Errorf("%s: %s", f.Part, b)
		}
	}
}

// TestWhatIsNoDifferenceIsSaid as what it is.
func TestWhatIsNoDifferenceIsSaid(t *testing.T) {
	m := study.Metric{Name: "rate", Better: "higher"}
	for want, r := range map[string]stats.Ratio{
		"too few blocks (6) for the test (p 0.090)":            {Blocks: 6, Ratio: 0.67, Interval: stats.Interval{Low: 0.63, High: 0.7}, P: 0.09, Verdict: stats.Inconclusive},
		"1.30× would have shown four times in five":            {Blocks: 9, Ratio: 1.1, Interval: stats.Interval{Low: 0.9, High: 1.2}, P: 0.3, Detectable: 1.3, Verdict: stats.Inconclusive},
		"ebpf is equivalent within ±5.0 %, 1.00×":              stats.Compare(make([]float64, 7), make([]float64, 7), map[string][]float64{"ebpf": make([]float64, 7)}, stats.Margin, 1).Variants["ebpf"],
		"it or the baseline, not both, was 0 in 5 of 8 blocks": {Blocks: 8, Zeros: 5, Verdict: stats.NoRatio},
	} {
		l := LevelFinding{Level: "ebpf", Sense: sense(m, r), Ratio: r}
		if string(l.Sense) != string(r.Verdict) {
			t.Errorf("%s: sense %q", r.Verdict, l.Sense)
		}
		if text := clause(l, lab.Value{}, m); !strings.Contains(text, want) {
			t.Error(text)
		}
		if text, _ := badge(Finding{Levels: []LevelFinding{l}, Trusted: r.Verdict != stats.NoRatio}); !strings.Contains(text, string(r.Verdict)) {
			t.Errorf("%s: badge %q", r.Verdict, text)
		}
	}
}

// TestTrustBearsWhatChanceMakes: one A/A comparison of twenty tells the baseline from itself; a run with many more of them is not trusted.
func TestTrustBearsWhatChanceMakes(t *testing.T) {
	run := func(apart int) lab.Results {
		var p lab.PartResult
		p.Part.Baseline = "x"
		for i := range 20 {
			d := stats.Ratio{Blocks: 8, Ratio: 1.01, Interval: stats.Interval{Low: 0.98, High: 1.04}, P: 0.5, Verdict: stats.Inconclusive}
			if i < apart {
				d.Interval.Low, d.P, d.Verdict = 1.002, 0.016, stats.Higher
			}
			p.Groups = append(p.Groups, lab.Group{Metrics: []lab.MetricResult{{Comparison: stats.Comparison{Duplicate: d}}}})
		}
		return lab.Results{Parts: []lab.PartResult{p}}
	}
	for apart, sound := range map[int]bool{0: true, 1: true, 5: true, 6: false, 10: false} {
		if got := trust(run(apart)); got.Sound != sound || got.Different != apart || got.Same != 20-apart || sound == strings.Contains(got.Sentence, "do not trust") {
			t.Errorf("%d of 20 told apart: %+v", apart, got)
		}
	}
}

// TestAnyPartOfARunIsAReport: from no trial at all to all, every form can be made.
func TestAnyPartOfARunIsAReport(t *testing.T) {
	validate := asSchema(t)
	for _, n := range []int{0, 1, 7, 45, 160} {
		j := synthetic(t, n)
		r := Of(j)
		files, err := r.Files(Outputs()...)
		if err != nil {
			t.Fatalf("%d trials: %v", n, err)
		}
		if !strings.Contains(string(files["report.md"]), "This run is not complete") {
			t.Errorf("%d trials: the report does not say that some are left", n)
		}
		if n < 45 && r.Trust.Sound {
			t.Errorf("%d trials are trusted", n)
		}
		validate(files["report.json"])
		for name, b := range files {
			for _, bad := range []string{"NaN", "+Inf", "%!"} {
				if !strings.HasSuffix(name, ".png") && name != "report.html" && bytes.Contains(b, []byte(bad)) {
					t.Errorf("%d trials: %s says %s", n, name, bad)
				}
			}
		}
	}
}

// asSchema fails for JSON that is not as the report's schema says.
func asSchema(t *testing.T) func([]byte) {
	t.Helper()
	valid := schematest.Of(t, SchemaJSON())
	return func(b []byte) {
		t.Helper()
		if err := valid(b); err != nil {
			t.Errorf("the JSON is not as its schema says: %v", err)
		}
	}
}

func TestJSONFollowsItsSchema(t *testing.T) {
	r := Of(synthetic(t, -1))
	b, err := r.json()
	if err != nil {
		t.Fatal(err)
	}
	asSchema(t)(b)
	var back Report
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if back.Findings[0].Sentence != r.Findings[0].Sentence {
		t.Error("a finding is lost")
	}
}

// TestNothingEscapes: what a study or a reason says is text, never markup.
func TestNothingEscapes(t *testing.T) {
	j := synthetic(t, 100)
	j.Header.Study.Title = `</title><script>alert(1)</script>`
	j.Header.Study.Parts[0].Question = `<img src=x onerror=alert(1)> | ?`
	j.Records[0].Void = "</script><b>|"
	r := Of(j)
	files, err := r.Files(HTML, Markdown, SVG)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script>alert", "<img src=x", "</script><b>", "<vm>"} {
		if bytes.Contains(files["report.html"], []byte(bad)) {
			t.Errorf("the page contains %s", bad)
		}
	}
	for name, b := range files {
		if !strings.HasSuffix(name, ".svg") {
			continue
		}
		d := xml.NewDecoder(bytes.NewReader(b))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
		}
	}
}

func TestWriteIsRepeatable(t *testing.T) {
	dir := t.TempDir()
	j := synthetic(t, -1)
	first, err := Of(j).Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	content := map[string][]byte{}
	for _, p := range first {
		if content[p], err = os.ReadFile(p); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(p, ".png") {
			if c, _, err := image.DecodeConfig(bytes.NewReader(content[p])); err != nil || c.Width < 1000 {
				t.Errorf("%s: %v px, %v", p, c.Width, err)
			}
		}
	}
	second, err := Of(j).Write(dir)
	if err != nil || !slices.Equal(first, second) {
		t.Fatalf("%v: %v", err, second)
	}
	for _, p := range second {
		if b, err := os.ReadFile(p); err != nil || !bytes.Equal(b, content[p]) {
			t.Errorf("%s is another one", p)
		}
	}
	entries, err := filepath.Glob(filepath.Join(dir, "*.new"))
	if err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
	// Every form's every trial is there.
	rows, err := csv.NewReader(bytes.NewReader(content[filepath.Join(dir, "trials.csv")])).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	values := 0
	for _, r := range j.Records {
		values += max(len(r.Values), 1)
	}
	if len(rows)-1 != values {
		t.Errorf("%d rows of %d values", len(rows)-1, values)
	}
	if _, err := Of(j).Files("pdf"); !errors.Is(err, ErrOutput) {
		t.Errorf("pdf: %v", err)
	}
	if _, err := ParseOutputs("html,doc"); !errors.Is(err, ErrOutput) {
		t.Errorf("doc: %v", err)
	}
	if _, err := Build(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory without a journal: %v", err)
	}
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Of(j).Write(blocked, JSON); err == nil {
		t.Error("a report was written below a file")
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1: "1.00", 12.345: "12.3", 123.45: "123", 1234: "1\u00a0234", 2345678: "2\u00a0345\u00a0678", 0.01234: "0.0123", -5: "-5.00", 999.7: "1\u00a0000", 0.000012: "1.20e-05"} {
		if got := number(v); got != want {
			t.Errorf("%v: %q: want %q", v, got, want)
		}
	}
	if got := number(math.NaN()); got != none {
		t.Errorf("NaN: %q", got)
	}
	for v, want := range map[float64]string{3.1: "3.10×", 31: "31.0×", 310: "310×", 0.031: "0.031×"} {
		if got := times(v); got != want {
			t.Errorf("%v: %q: want %q", v, got, want)
		}
	}
}

func TestScales(t *testing.T) {
	for _, c := range []struct {
		values []float64
		log    bool
		n      int
	}{{[]float64{1, 100}, true, 6}, {[]float64{0.98, 1.03}, true, 4}, {[]float64{3, 3}, false, 5}, {[]float64{0, 0}, false, 5}, {[]float64{-5, 10}, false, 5}, {nil, true, 3}, {[]float64{1e-9, 1e9}, true, 4}, {[]float64{12e6, 14e6}, false, 5}} {
		s := newScale(c.values, c.log, 10, 300)
		ticks := s.ticks(c.n)
		if len(ticks) == 0 || len(ticks) > c.n+2 {
			t.Errorf("%v: %d ticks %v: want about %d", c.values, len(ticks), ticks, c.n)
		}
		last := math.Inf(-1)
		for _, v := range append(slices.Clone(c.values), ticks...) {
			if at := s.at(v); !finite(at) || at < 10 || at > 300 {
				t.Errorf("%v: %v is at %v", c.values, v, at)
			}
		}
		for _, v := range ticks {
			if at := s.at(v); at <= last {
				t.Errorf("%v: the ticks %v do not grow", c.values, ticks)
			} else {
				last = at
			}
			if strconv.Quote(tick(v)) == `""` {
				t.Errorf("%v has no label", v)
			}
		}
	}
}

func TestChance(t *testing.T) {
	// scipy.stats.binom.sf(k-1, n, 0.05)
	for _, c := range []struct {
		k, n int
		want float64
	}{{0, 20, 1}, {1, 20, 0.6415140775914581}, {3, 20, 0.0754837}, {4, 20, 0.0159015}} {
		if got := atLeast(c.k, c.n, stats.Alpha); math.Abs(got-c.want) > 1e-5 {
			t.Errorf("%d of %d: %v: want %v", c.k, c.n, got, c.want)
		}
	}
}

// Every script of a page that a browser would run is one that the policy names.
func TestThePolicyNamesAllScripts(t *testing.T) {
	files, err := Of(synthetic(t, -1)).Files(HTML)
	if err != nil {
		t.Fatal(err)
	}
	page := files["report.html"]
	if !IsCurrent(page) || IsCurrent(bytes.Replace(page, []byte("<script>"), []byte("<script>alert(1);"), 1)) {
		t.Error("a page of this version is not told from a changed one")
	}
	n := 0
	for rest := page; ; {
		_, after, found := bytes.Cut(rest, []byte("<script>"))
		if !found {
			break
		}
		script, more, _ := bytes.Cut(after, []byte("</script>"))
		rest = more
		n++
		sum := sha256.Sum256(script)
		if hash := "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(ContentPolicy(), hash) {
			t.Errorf("the policy lacks %s", hash)
		}
	}
	if n != 2 {
		t.Errorf("%d scripts, want 2", n)
	}
}
