package report

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/claim"
	"weir.dev/weir/lab/study"
)

// section of the document, the same in HTML and Markdown.
type section struct {
	ID, Title string
	Short     string // in the list of contents
	Blocks    []block
}

// block is one thing in a section; exactly one field (Text with Note) is set.
type block struct {
	Text    string
	Note    string // how a text is shown: "good", "bad", "quiet"
	Heading string
	List    []string
	Table   *table
	Figure  *figure
	Finding *shownFinding
	Facts   []fact
}

// fact is a figure with what it counts.
type fact struct{ Value, What, Note string }

// shownFinding is a finding with its badge.
type shownFinding struct {
	Finding
	Part, Badge, Note string
	Lines             []string // for many levels: the sentence in pieces
}

func say(format string, args ...any) block { return block{Text: fmt.Sprintf(format, args...)} }

// document of the report. The first section is the page for the busy.
func (r Report) document(figures []figure) []section {
	doc := []section{r.minute()}
	for _, targets := range []bool{false, true} {
		if s, ok := r.claims(targets); ok {
			doc = append(doc, s)
		}
	}
	for _, p := range r.Results.Parts {
		s := section{ID: "part-" + p.Part.Name, Title: p.Part.Name + ": " + p.Part.Question, Short: p.Part.Name}
		s.Blocks = append(s.Blocks, say("%s", partText(p, r.Results.Mode)))
		if len(p.Conditions) > 0 {
			s.Blocks = append(s.Blocks, block{Text: "Measured with: " + lab.ConditionsText(p.Conditions) + ".", Note: "quiet"})
		}
		if text := p.SetupsText(); text != "" {
			s.Blocks = append(s.Blocks, block{Text: text, Note: "quiet"})
		}
		for i := range figures {
			if figures[i].Part == p.Part.Name {
				s.Blocks = append(s.Blocks, block{Figure: &figures[i]})
			}
		}
		if !slices.ContainsFunc(s.Blocks, func(b block) bool { return b.Figure != nil }) {
			s.Blocks = append(s.Blocks, block{Text: "Nothing was measured.", Note: "quiet"})
		}
		doc = append(doc, s)
	}
	doc = append(doc, r.notMeasured(figures), r.environment())
	if len(references()) > 0 {
		doc = append(doc, stateOfTheArt())
	}
	return doc
}

func partText(p lab.PartResult, mode study.Mode) string {
	plan := p.Part.Plan(mode)
	var factors []string
	for _, f := range p.Part.Factors {
		factors = append(factors, fmt.Sprintf("%s: %s", f.Name, strings.Join(f.Levels, ", ")))
	}
	length := ""
	if plan.Duration != "" {
		length = " of " + plan.Duration
	}
	return fmt.Sprintf("%s (%s). Each of %s holds one trial%s of every variant in random order, and one more of the baseline, %s.",
		strings.Join(factors, "; "), p.Part.Experiment, count(plan.Blocks, "block", "blocks"), length, p.Part.Baseline)
}

// fewLevels fit into a sentence that can be read.
const fewLevels = 3

// minute is what can be read in one.
func (r Report) minute() section {
	s := section{ID: "minute", Title: "In a minute"}
	x := r.Results
	if x.Left > 0 {
		s.Blocks = append(s.Blocks, block{Note: "bad", Text: fmt.Sprintf("This run is not complete: %d of %d trials are yet to be made. What is here is valid, with fewer blocks.", x.Left, x.Planned)})
	}
	for _, text := range x.ResumedText() {
		s.Blocks = append(s.Blocks, block{Note: "bad", Text: "This run " + text + ". Absolute figures are of both."})
	}
	for _, d := range x.Distrusted {
		s.Blocks = append(s.Blocks, block{Note: "bad", Text: "Do not trust " + d.String() + "."})
	}
	for i := range r.Findings {
		f := shownFinding{Finding: r.Findings[i], Part: r.Findings[i].Part}
		f.Badge, f.Note = badge(f.Finding)
		if lines := f.lines; len(lines) > fewLevels+1 {
			f.Lines = lines
		}
		s.Blocks = append(s.Blocks, block{Finding: &f})
	}
	s.Blocks = append(s.Blocks, r.summaries()...)
	s.Blocks = append(s.Blocks, block{Heading: "How sure"})
	note := "good"
	if !r.Trust.Sound {
		note = "bad"
	}
	s.Blocks = append(s.Blocks, block{Text: r.Trust.Sentence, Note: note})
	s.Blocks = append(s.Blocks, block{Facts: r.facts()})
	s.Blocks = append(s.Blocks, block{Heading: "What this cannot claim"})
	if len(x.Limits) == 0 {
		s.Blocks = append(s.Blocks, block{Text: "No limits of the machine are known.", Note: "quiet"})
	} else {
		s.Blocks = append(s.Blocks, block{List: x.Limits})
	}
	return s
}

func (r Report) facts() []fact {
	x, t := r.Results, r.Trust
	blocks := strconv.Itoa(t.LeastBlocks)
	if t.MostBlocks != t.LeastBlocks {
		blocks += " to " + strconv.Itoa(t.MostBlocks)
	}
	apart := "none known"
	if t.Apart > 0 {
		apart = fmt.Sprintf("median; worst %s", offText(t.WorstApart))
	}
	void := "by rules fixed before the run"
	if made := x.Measured + x.Void; made > 0 {
		void = fmt.Sprintf("%s of those made, %s; %d times one was made again", share(float64(x.Void)/float64(made)), void, x.Again)
	}
	return []fact{
		{offText(t.Apart), "between the baseline and itself", apart},
		{blocks, "complete blocks", "of a comparison of the baseline with itself"},
		{strconv.Itoa(x.Measured), "valid trials", fmt.Sprintf("of %d planned", x.Planned)},
		{strconv.Itoa(x.Void), "void trials", void},
		{strconv.Itoa(x.Skipped), "skipped trials", "left to --full, or not possible here; reasons below"},
		{number(x.Overhead.CPU), "cores used by the lab itself", fmt.Sprintf("worst trial %s; %s MiB", number(x.Overhead.MaxCPU), number(x.Overhead.RSS))},
	}
}

// badge of a finding in a word or two, with how it is shown.
func badge(f Finding) (text, note string) {
	n := map[Sense]int{}
	for _, l := range f.Levels {
		n[l.Sense]++
	}
	told := n[Better] + n[Worse] + n[Same] + n[Open] + n[NoRatio] + n[Unclaimed]
	switch {
	case told == 0 && n[Skipped] == len(f.Levels) && n[Skipped] > 0:
		return "skipped", "quiet"
	case told == 0:
		return "nothing to tell yet", "quiet"
	case n[NoRatio] == told:
		return "no ratio", "quiet"
	case !f.Trusted:
		return "not to be trusted", "bad"
	case n[Same] == told:
		return string(Same), "quiet"
	}
	var parts []string
	for _, s := range []Sense{Better, Worse, Open, Same, NoRatio} {
		if n[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[s], s))
		}
	}
	return strings.Join(parts, ", "), "plain"
}

// claimed are the results of all claims, in the order of the parts: those of others, or targets of our own.
func (r Report) claimed(targets bool) (out []partClaim) {
	for _, p := range r.Results.Parts {
		for _, c := range p.Claims {
			if c.Claim.IsTarget() == targets {
				out = append(out, partClaim{p.Part, c})
			}
		}
	}
	return out
}

type partClaim struct {
	part study.Part
	lab.ClaimResult
}

// verdicts counts every verdict, those too that no claim has.
func verdicts(all []partClaim, words []claim.Verdict) string {
	var parts []string
	for _, v := range words {
		n := 0
		for _, c := range all {
			if c.Verdict == v {
				n++
			}
		}
		parts = append(parts, fmt.Sprintf("%d %s", n, v))
	}
	return strings.Join(parts, ", ")
}

// summaries say how many claims and targets have which verdict, and name each that was contradicted or missed.
func (r Report) summaries() (out []block) {
	if all := r.claimed(false); len(all) > 0 {
		out = append(out, say("Of %s: %s.", count(len(all), "published claim", "published claims"), verdicts(all, claim.Published())))
		out = append(out, failures(all, claim.Contradicted)...)
	}
	if all := r.claimed(true); len(all) > 0 {
		out = append(out, say("Of %s of our own: %s.", count(len(all), "target", "targets"), verdicts(all, claim.Targets())))
		out = append(out, failures(all, claim.Missed)...)
	}
	return out
}

func failures(all []partClaim, v claim.Verdict) (out []block) {
	for _, c := range all {
		if c.Verdict != v {
			continue
		}
		on := c.Headline()
		text := fmt.Sprintf("%s%s: %s", strings.ToUpper(string(v[:1])), v[1:], c.Claim.Text)
		if on.Ours != nil {
			text += "; we see " + strings.ReplaceAll(ours(c.Claim, on), "\n", ", ") + " on " + on.System
		}
		out = append(out, block{Text: text + ".", Note: "bad"})
	}
	return out
}

// claims of all parts: what was published, what would contradict it, what we see, and the verdict, for each system.
func (r Report) claims(targets bool) (section, bool) {
	s := section{ID: "published", Title: "Paper says, we see"}
	head := []string{"published", "contradicted if", "on", "ours", "verdict"}
	intro := "What would contradict a claim follows from the study alone, before anything is measured. The verdict is that of the system nearest to the published one; " +
		"what Weir offers in its place stands beside it. An absolute figure of other hardware is shown beside ours and neither reproduced nor contradicted."
	if targets {
		s = section{ID: "targets", Title: "Targets of our own"}
		head = []string{"target", "missed if", "on", "ours", "verdict"}
		intro = "What counts as missed follows from the study alone, before anything is measured."
	}
	t := table{Head: head}
	notes := []string{}
	all := r.claimed(targets)
	for _, c := range all {
		if c.Rule.Note != "" && !slices.Contains(notes, c.Rule.Note) {
			notes = append(notes, c.Rule.Note)
		}
		text := fmt.Sprintf("%s\n%s (%s: %s)", c.Claim.Text, theirs(c.ClaimResult, c.part), c.part.Name, c.Claim.Source)
		for i, on := range c.Systems {
			row := []string{text, contradictedIf(c.Rule), c.SystemText(on), ours(c.Claim, on), string(on.Verdict) + "\n" + on.Why}
			if i > 0 {
				row[0], row[1] = "the same", none
			}
			t.Rows = append(t.Rows, row)
		}
	}
	if r.Results.Study.Source != "" && !targets {
		s.Blocks = append(s.Blocks, say("Published in: %s", r.Results.Study.Source))
	}
	s.Blocks = append(s.Blocks, say("%s", intro), say("%s.", verdicts(all, map[bool][]claim.Verdict{false: claim.Published(), true: claim.Targets()}[targets])), block{Table: &t})
	for _, n := range notes {
		s.Blocks = append(s.Blocks, block{Text: n, Note: "quiet"})
	}
	return s, len(t.Rows) > 0
}

func contradictedIf(r claim.Rule) string {
	if r.Contradicted == "" {
		return "nothing"
	}
	return r.Contradicted
}

func ours(c study.Claim, on lab.ClaimOn) string {
	if on.Ours == nil {
		return none
	}
	say := func(v float64) string { return quantity(v, on.Unit) }
	if c.Against != nil {
		say = times
	}
	text := say(*on.Ours)
	if on.Interval != nil {
		text += "\n" + say(on.Interval.Low) + " to " + say(on.Interval.High)
	}
	return text
}

func theirs(c lab.ClaimResult, p study.Part) string {
	unit := ""
	if c.Claim.Against == nil {
		for _, m := range p.Metrics {
			if m.Name == c.Claim.Metric {
				unit = m.Unit
			}
		}
	}
	say := func(v float64) string {
		if c.Claim.Against != nil {
			return times(v)
		}
		return quantity(v, unit)
	}
	switch {
	case c.Claim.Shape != "":
		return c.Claim.Shape + " in " + c.Claim.Along
	case c.Claim.AtLeast > 0:
		return "at least " + say(c.Claim.AtLeast)
	case c.Claim.AtMost > 0:
		return "at most " + say(c.Claim.AtMost)
	}
	return say(c.Claim.Value)
}

// notMeasured tells of all trials, in their order, and of those that do not count or could not be made.
func (r Report) notMeasured(figures []figure) section {
	s := section{ID: "trials", Title: "Trials, void ones and skipped levels"}
	for i := range figures {
		if figures[i].Part == "" {
			s.Blocks = append(s.Blocks, block{Figure: &figures[i]})
		}
	}
	s.Blocks = append(s.Blocks, block{Heading: "Skipped"})
	skips := table{Head: []string{"part", "reason", "variants"}}
	for _, p := range r.Results.Parts {
		reasons := map[string][]study.Variant{}
		var order []string
		for _, v := range p.Part.Variants() {
			for _, k := range p.Skips {
				if slices.Equal(k.Variant, v) {
					if reasons[k.Reason] == nil {
						order = append(order, k.Reason)
					}
					reasons[k.Reason] = append(reasons[k.Reason], v)
				}
			}
		}
		for _, reason := range order {
			skips.Rows = append(skips.Rows, []string{p.Part.Name, reason, variantsText(p.Part, reasons[reason])})
		}
	}
	if len(skips.Rows) == 0 {
		s.Blocks = append(s.Blocks, say("Every level could be measured."))
	} else {
		s.Blocks = append(s.Blocks, block{Table: &skips})
	}
	s.Blocks = append(s.Blocks, block{Heading: "Void"})
	if len(r.Results.Rules) > 0 {
		s.Blocks = append(s.Blocks, say("A trial is void, whatever it measured, by:"), block{List: r.Results.Rules},
			say("%s", lab.AgainText()))
	}
	if t := r.voids(); len(t.Rows) == 0 {
		s.Blocks = append(s.Blocks, say("No trial was void."))
	} else {
		s.Blocks = append(s.Blocks, block{Table: &t})
	}
	return s
}

// maxVoids bounds the table; the raw data has all.
const maxVoids = 200

// voids by part, variant and reason, with their blocks.
func (r Report) voids() table {
	t := table{Head: []string{"part", "variant", "reason", "blocks"}}
	for _, p := range r.Results.Parts {
		type key struct{ variant, reason string }
		var keys []key
		blocks := map[key][]string{}
		for _, v := range p.Voids {
			k := key{variantText(p.Part, v.Variant), v.Reason}
			if blocks[k] == nil {
				keys = append(keys, k)
			}
			blocks[k] = append(blocks[k], strconv.Itoa(v.Block+1))
		}
		for _, k := range keys {
			t.Rows = append(t.Rows, []string{p.Part.Name, k.variant, k.reason, strings.Join(blocks[k], ", ")})
		}
	}
	if n := len(t.Rows); n > maxVoids {
		t.Rows = append(t.Rows[:maxVoids], []string{"", "", fmt.Sprintf("and %d more: see the raw data", n-maxVoids), ""})
	}
	return t
}

// variantsText names each factor once, with the levels that it takes, where the variants are all combinations of these.
func variantsText(p study.Part, variants []study.Variant) string {
	if len(variants) == len(p.Variants()) {
		return "all"
	}
	combinations := 1
	var factors []string
	for i, f := range p.Factors {
		var levels []string
		for _, l := range f.Levels {
			if slices.ContainsFunc(variants, func(v study.Variant) bool { return v[i] == l }) {
				levels = append(levels, l)
			}
		}
		combinations *= len(levels)
		factors = append(factors, f.Name+"="+strings.Join(levels, " "))
	}
	if combinations == len(variants) {
		return strings.Join(factors, ", ")
	}
	var each []string
	for _, v := range variants {
		each = append(each, variantText(p, v))
	}
	return strings.Join(each, "; ")
}

func variantText(p study.Part, v study.Variant) string {
	var s []string
	for i, f := range p.Factors {
		if i < len(v) {
			s = append(s, f.Name+"="+v[i])
		}
	}
	return strings.Join(s, ", ")
}

func (r Report) environment() section {
	x := r.Results
	t := table{Head: []string{"what", "value"}, Rows: [][]string{
		{"study", x.Study.Name + ", " + string(x.Mode)}, {"seed", strconv.FormatUint(x.Seed, 10)}, {"version", x.Version},
		{"started", clock(x.Started)}, {"last trial ended", clock(x.Ended)},
		{"lab's own CPU", fmt.Sprintf("%s cores on average, %s in the worst trial; the making of traffic is not counted", number(x.Overhead.CPU), number(x.Overhead.MaxCPU))},
		{"lab's own memory", number(x.Overhead.RSS) + " MiB at most"},
	}}
	for _, k := range slices.Sorted(maps.Keys(x.Environment)) {
		t.Rows = append(t.Rows, []string{k, x.Environment[k]})
	}
	method := "Randomized interleaved trials. Estimate: the median of each block's log-ratio to the baseline; interval: by ranks, 95 % (Hettmansperger and Sheather), whatever the noise looks like; " +
		"test: the one of that interval, corrected by Holm for the variants that are compared with one baseline, not for the many comparisons of a run; equivalent: the 90 % interval lies within the margin, " +
		"which the study sets beforehand (TOST). The baseline is compared with its own duplicate, too (A/A): one of twenty such comparisons tells them apart by chance."
	return section{ID: "environment", Title: "Method, environment, overhead", Blocks: []block{say("%s", method), {Table: &t}}}
}

// reference is the state of the art.
type reference struct{ what, figure, source string }

// references that are printed beside every study: per core, on their hardware.
func references() []reference {
	return []reference{
		{"XDP drop", "24 Mpps", "Høiland-Jørgensen et al., CoNEXT 2018"},
		{"DPDK drop", "43.5 Mpps", "Høiland-Jørgensen et al., CoNEXT 2018"},
		{"XDP redirect to another NIC", "8.65 Mpps", "Høiland-Jørgensen et al., CoNEXT 2018"},
		{"XDP FIB forwarding / Linux routing", "5.2 / 1.74 Mpps", "Høiland-Jørgensen et al., CoNEXT 2018"},
		{"frames generated by XDP (live frames)", "up to 9 Mpps", "T. Høiland-Jørgensen, Linux 5.18, BPF_F_TEST_XDP_LIVE_FRAMES"},
		{"senders in Go over a veth: AF_XDP / AF_PACKET / UDP", "2.62 / 1.16 / 0.69 Mpps", "A. Toonk: High-Speed Packet Transmission in Go, 2024"},
		{"VPP, memif to a container", "3.2 to 3.7 Mpps in both directions", "FD.io CSIT"},
		{"redirect / redirect_peer to a container, TCP_RR", "32,700 / 90,000 transactions/s", "D. Borkmann, Linux 5.10, commit 9aa1206e8f48"},
		{"ClickOS: boot; delay", "30 ms; 45 µs", "Martins et al., NSDI 2014"},
		{"OpenNetVM, chain of 2 (DPDK)", "32 Mpps", "Zhang et al., HotMiddlebox 2016"},
	}
}

func stateOfTheArt() section {
	t := table{Head: []string{"system", "figure", "source"}}
	for _, x := range references() {
		t.Rows = append(t.Rows, []string{x.what, x.figure, x.source})
	}
	return section{ID: "others", Title: "The state of the art, on other hardware", Blocks: []block{
		say("For orientation, mostly per core and with network cards: nothing here was measured in this run, and no comparison with it is claimed."), {Table: &t},
	}}
}
