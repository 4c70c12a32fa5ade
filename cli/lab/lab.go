// Package lab has the commands of `weir lab`: studies, runs, reports. What they do is in the package lab at the root.
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/lab"
	"weir.dev/weir/lab/claim"
	"weir.dev/weir/lab/desk"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/report"
	"weir.dev/weir/lab/study"
)

// labs is the commands of one run of the program.
type labs struct {
	*command.App
	Options
}

// Options are what the commands need of the program.
type Options struct {
	Version string
	Layouts func(dir string) []string // image layouts to search; dir is a further one; nil: none
}

// Command is the command `weir lab`.
func Command(app *command.App, o Options) *cobra.Command {
	a := &labs{app, o}
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Measure chains beside others' on this machine",
		Long: `Measure chains of network functions beside Linux bridges, Open vSwitch and others, on a machine that may be noisy. A study says what to compare.
Its trials take turns, in blocks of random order. The baseline is measured twice, to show what chance makes. Every trial is on the disk before
the next one begins: "weir lab resume" continues a run that was killed.`,
		Example: `  weir lab doctor
  weir lab run wires --quick
  weir lab report weir-lab-wires-20260102-150405`,
		Args: cobra.ArbitraryArgs,
		RunE: command.Group,
	}
	cmd.AddCommand(a.labList(), a.labDescribe(), a.labRun(), a.labResume(), a.labReport(), a.labSummary(), a.labCompare(), a.labRuns(), a.labSweep(), a.labDoctor(), a.labExperiments(), a.labSchema(), a.labSink())
	return cmd
}

func (a *labs) labList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the studies", Example: "  weir lab list\n  weir lab list -o json", Args: command.NoArgs(),
		RunE: func(*cobra.Command, []string) error {
			t := command.Table{Head: []string{"STUDY", "PARTS", "QUICK", "FULL", "TITLE"}}
			type item struct {
				Name  string `json:"name"`
				Title string `json:"title"`
				Parts int    `json:"parts"`
				Quick int    `json:"quick_trials"`
				Full  int    `json:"full_trials"`
			}
			items := []item{}
			for _, name := range lab.Studies() {
				s, err := lab.Load(name, nil)
				if err != nil {
					return err
				}
				i := item{s.Name, s.Title, len(s.Parts), len(s.Schedule(study.Quick, 0)), len(s.Schedule(study.Full, 0))}
				items = append(items, i)
				t.Add(i.Name, fmt.Sprint(i.Parts), fmt.Sprintf("%d trials", i.Quick), fmt.Sprintf("%d trials", i.Full), i.Title)
			}
			if a.Structured() {
				return a.Encode(map[string]any{"items": items})
			}
			return a.PrintTable(t)
		},
	}
}

// study by its name or file.
func (a *labs) study(name string) (study.Study, error) {
	s, err := lab.Load(name, a.Stdin)
	var path *fs.PathError
	switch {
	case errors.Is(err, lab.ErrNotFound):
		return s, command.WithCode(command.ExitNotFound, err)
	case errors.As(err, &path):
		return s, command.WithCode(command.ExitInvalid, fmt.Errorf("%s: %w", path.Path, path.Err))
	case err != nil:
		return s, command.WithCode(command.ExitInvalid, err)
	}
	return s, nil
}

func (a *labs) labDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe STUDY", Short: "Describe what a study measures",
		Long:    "Describe what a study measures: its questions, factors, levels, metrics, published figures and targets. STUDY is a name of \"weir lab list\", a file, or - for standard input.",
		Example: "  weir lab describe wires\n  weir lab describe my-study.yaml\n  weir lab describe wires -o yaml",
		Args:    command.WantArgs(1, 1, "a study"),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := a.study(args[0])
			if err != nil {
				return err
			}
			if a.Structured() {
				return a.Encode(s)
			}
			// Describe the study.
			var b strings.Builder
			fmt.Fprintf(&b, "%s: %s\n", s.Name, s.Title)
			for _, line := range []string{s.About, s.Source} {
				if line != "" {
					fmt.Fprintln(&b, strings.TrimSpace(line))
				}
			}
			experiments := experiment.All()
			// Describe each part: question, metrics, factors, settings, number of blocks, published figures.
			for _, p := range s.Parts {
				fmt.Fprintf(&b, "\n%s: %s\n  experiment  %s: %s\n", p.Name, p.Question, p.Experiment, experiments[p.Experiment].About())
				for _, m := range p.Metrics {
					fmt.Fprintf(&b, "  metric      %s in %s, %s is better\n", m.Name, m.Unit, m.Better)
				}
				for _, f := range p.Factors {
					note := ""
					if f.Name == p.Compare {
						note = " (compared with " + p.Baseline + ")"
					}
					fmt.Fprintf(&b, "  factor      %s: %s%s\n", f.Name, strings.Join(f.Levels, ", "), note)
				}
				for _, name := range slices.Sorted(maps.Keys(p.Settings)) {
					fmt.Fprintf(&b, "  setting     %s: %s\n", name, p.Settings[name])
				}
				if known, ok := experiment.Factors(experiments[p.Experiment]); ok {
					for _, f := range known {
						_, varied := p.Factor(f.Name)
						if _, set := p.Settings[f.Name]; !varied && !set && f.Default != "" && f.Name != "label" {
							fmt.Fprintf(&b, "  by default  %s: %s\n", f.Name, f.Default)
						}
					}
				}
				for _, mode := range []study.Mode{study.Quick, study.Full} {
					plan := p.Plan(mode)
					fmt.Fprintf(&b, "  --%-9s %d blocks", mode, plan.Blocks)
					if plan.Duration != "" {
						fmt.Fprintf(&b, ", trials of %s", plan.Duration)
					}
					for _, name := range slices.Sorted(maps.Keys(plan.Settings)) {
						fmt.Fprintf(&b, ", %s: %s", name, plan.Settings[name])
					}
					if len(plan.Leave) > 0 {
						fmt.Fprintf(&b, ", leaves out %d combinations of levels", len(plan.Leave))
					}
					fmt.Fprintln(&b)
				}
				for _, c := range p.Claims {
					describeClaim(&b, p, c)
				}
			}
			_, err = a.Stdout.Write([]byte(b.String()))
			return err
		},
	}
}

// describeClaim says what would contradict it: that is fixed before anything is measured.
func describeClaim(w io.Writer, p study.Part, c study.Claim) {
	word := "published"
	if c.IsTarget() {
		word = "target"
	}
	fmt.Fprintf(w, "  %-11s %s (%s)\n", word, c.Text, c.Source)
	if len(c.Systems) > 0 {
		text := "on " + strings.Join(c.Systems, ", then ")
		if len(c.Instead) > 0 {
			text += "; Weir instead: " + strings.Join(c.Instead, ", ")
		}
		fmt.Fprintf(w, "  %-11s %s\n", "", text)
	}
	for _, m := range p.Metrics {
		if m.Name == c.Metric {
			for _, line := range claim.RuleOf(c, m).Lines(c.IsTarget()) {
				fmt.Fprintf(w, "  %-11s %s\n", "", line)
			}
		}
	}
}

func (a *labs) layouts(dir string) []string {
	if a.Layouts == nil {
		return nil
	}
	return a.Layouts(dir)
}

// labProgress is progress as stderr can show it.
func (a *labs) labProgress() lab.Progress {
	columns, tty := command.Terminal(a.Stderr)
	if !tty || os.Getenv("TERM") == "dumb" {
		return &lab.Lines{W: a.Stderr}
	}
	rows := 24
	if f, ok := a.Stderr.(*os.File); ok {
		if _, n, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			rows = n
		}
	}
	return &lab.Live{W: a.Stderr, Columns: columns, Rows: rows}
}

func (a *labs) labRun() *cobra.Command {
	var quick, full bool
	var only, dir, images, before string
	var seed uint64
	var repeat, blocks int
	var quietWait time.Duration
	cmd := &cobra.Command{
		Use:   "run STUDY [--quick|--full] [--only FACTOR=LEVEL,...] [--seed N] [--repeat N] [--dir DIR]",
		Short: "Run a study",
		Long: `Run a study and print its results. STUDY is a name of "weir lab list" or a file. --quick (the default) makes fewer and shorter trials than
--full. --only keeps some levels; the factor "part" chooses parts; a baseline always stays. The same seed gives the same order of trials.
Ctrl-C ends the run in order. So does closing its terminal, unless it runs under nohup. The trials made so far are a valid partial result, and
"weir lab resume" continues the run.
Needs root. Everything is made in network namespaces of its own and removed at the end. The next run removes what a killed run left.
The platform "hosts" is a Weir that runs already (--socket, --url). This machine has to be one of its hosts: the stations are made here. Functions,
chains and policies are made through the API, under names that begin with the run's.`,
		Example: `  weir lab run wires --quick
  weir lab run wires --full --dir results/wires
  weir lab run wires --only part=throughput,platform=ebpf,wires=1,wires=9
  weir lab run my-study.yaml --seed 7
  weir lab run examples/study/hosts.yaml --url http://127.0.0.1:7411 --token-file token
  weir lab run aa --repeat 20
  weir lab run before --before ../weir-before`,
		Args: command.WantArgs(1, 1, "a study"),
		RunE: func(cmd *cobra.Command, args []string) error {
			// Choose what to run: mode, study, levels, seed, directory.
			if quick && full {
				return command.Usage("--quick and --full exclude each other")
			}
			mode := study.Quick
			if full {
				mode = study.Full
			}
			s, err := a.study(args[0])
			if err != nil {
				return err
			}
			if blocks < 0 {
				return command.Usage("--blocks %d: must be at least 1, or 0 for the study's own plan", blocks)
			}
			if blocks > 0 {
				s = s.AtMost(blocks, mode)
			}
			sel, err := study.ParseSelection(only)
			var chosen study.Study
			if err == nil {
				chosen, err = s.Select(sel)
			}
			if err != nil {
				return command.Usage("--only: %w", err)
			}
			if !cmd.Flags().Changed("seed") {
				seed = rand.Uint64N(1 << 32)
			}
			if dir == "" {
				dir = fmt.Sprintf("weir-lab-%s-%s", s.Name, time.Now().Format("20060102-150405"))
			}
			if repeat < 1 || repeat > lab.MaxRepeats {
				return command.Usage("--repeat %d: want 1 to %d", repeat, lab.MaxRepeats)
			}
			if err := checkQuietWait(quietWait); err != nil {
				return err
			}
			// Run it, once or repeatedly.
			where, err := a.labAPI()
			if err != nil {
				return err
			}
			fmt.Fprintf(a.Stderr, "study %s, %s, seed %d, results in %s\n", s.Name, mode, seed, dir)
			for _, text := range lab.FewBlocks(chosen, mode, nil) {
				fmt.Fprintf(a.Stderr, "%s\n", text)
			}
			o := lab.Options{
				Study: s, Selection: sel, Mode: mode, Seed: seed, Dir: dir, Version: a.Version, Images: a.layouts(images), API: where,
				Former: platform.Former(before), Progress: a.labProgress(), QuietWait: quietWait,
			}
			if repeat > 1 {
				r, err := lab.RunRepeated(cmd.Context(), o, repeat, a.labRepetition(repeat))
				return a.labRepeated(cmd.Context(), dir, r, err)
			}
			o.Progress = &lab.Noted{Progress: o.Progress, Dir: dir}
			r, err := lab.Run(cmd.Context(), o)
			return a.labOutcome(cmd.Context(), dir, r, err)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&quick, "quick", false, "few and short trials (default)")
	f.BoolVar(&full, "full", false, "more and longer trials, as many as the study's full plan has")
	f.StringVar(&only, "only", "", "levels to keep: factor=level, several with commas")
	f.Uint64Var(&seed, "seed", 0, "seed of the order of trials (default random)")
	f.IntVar(&blocks, "blocks", 0, "at most so many blocks in each part, to try a study out: one or two are soon made and too few to find a difference (default as the study's plan has)")
	f.IntVar(&repeat, "repeat", 1, "run the study so many times, each with new set-ups and the next seed; count the differences found in A/A comparisons, and pool all runs")
	f.StringVar(&dir, "dir", "", "directory of the results (default weir-lab-STUDY-TIME)")
	command.ImagesFlag(f, &images)
	beforeFlag(f, &before)
	quietWaitFlag(f, &quietWait)
	return cmd
}

// quietWaitFlag bounds the waiting for quiet moments.
func quietWaitFlag(f *pflag.FlagSet, d *time.Duration) {
	f.DurationVar(d, "quiet-wait", lab.QuietWait, "most time that the trials of a run wait for the machine to be quiet, taken together; 0s where it never is")
}

func checkQuietWait(d time.Duration) error {
	if d < 0 || d > lab.MostQuietWait {
		return command.Usage("--quiet-wait %s: must be from 0s to %s", d, lab.MostQuietWait)
	}
	return nil
}

// beforeFlag names another version of Weir.
func beforeFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "before", "", "directory of another version of Weir, for the platform former: a clone in which \"make build\" ran")
}

// labAPI is where platform hosts finds the Weir that runs; nothing is asked yet.
func (a *labs) labAPI() (platform.API, error) {
	i, err := a.Instance()
	if err != nil {
		return platform.API{}, err
	}
	if a.URL != "" {
		path, err := filepath.Abs(cmp.Or(a.TokenFile, i.TokenFile()))
		return platform.API{URL: a.URL, TokenFile: path}, err
	}
	path, err := filepath.Abs(cmp.Or(a.Socket, i.Socket()))
	return platform.API{Socket: path}, err
}

// labRepetition says which of the runs begins.
func (a *labs) labRepetition(of int) func(int, string) {
	return func(i int, dir string) { fmt.Fprintf(a.Stderr, "run %d of %d, in %s\n", i+1, of, dir) }
}

// labRepeated prints what several runs said, and how to go on if some are left.
func (a *labs) labRepeated(ctx context.Context, dir string, r lab.Repeats, err error) error {
	if r.Planned == 0 {
		return labCode(err)
	}
	if left := r.Planned - len(r.Runs); left > 0 {
		fmt.Fprintf(a.Stderr, "%d of %d runs are left: weir lab resume %s\n", left, r.Planned, dir)
	}
	if err != nil && ctx.Err() == nil {
		return labCode(err)
	}
	if a.Structured() {
		return errors.Join(labCode(err), a.Encode(r))
	}
	return errors.Join(labCode(err), r.Text(a.Stdout))
}

// labOutcome prints results, partial ones too, and says how to go on.
func (a *labs) labOutcome(ctx context.Context, dir string, r lab.Results, err error) error {
	if r.Planned == 0 { // nothing was begun
		return labCode(err)
	}
	if r.Left > 0 {
		fmt.Fprintf(a.Stderr, "%d of %d trials are left: weir lab resume %s\n", r.Left, r.Planned, dir)
	}
	if err != nil && ctx.Err() == nil {
		return labCode(err)
	}
	return errors.Join(labCode(err), a.writeReport(dir, dir, nil), a.printResults(r), nothingMeasured(r))
}

// nothingMeasured is an error: a run that skipped all its trials answers no question.
func nothingMeasured(r lab.Results) error {
	if r.Left > 0 || r.Measured+r.Void > 0 {
		return nil
	}
	var why []string
	for _, p := range r.Parts {
		for _, s := range p.Skips {
			if !slices.Contains(why, s.Reason) {
				why = append(why, s.Reason)
			}
		}
	}
	return command.WithCode(command.ExitFailure, fmt.Errorf("nothing could be measured: all %d trials were skipped: %s", r.Planned, strings.Join(why, "; ")))
}

// writeReport writes forms of the report (nil: all) of the results in a directory and says where the page is.
func (a *labs) writeReport(results, out string, forms []report.Output) error {
	r, err := report.Build(results)
	if err != nil {
		return labCode(err)
	}
	paths, err := r.Write(out, forms...)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Stderr, "report: %s\n", paths[max(0, slices.IndexFunc(paths, func(p string) bool { return strings.HasSuffix(p, ".html") }))])
	return nil
}

func (a *labs) printResults(r lab.Results) error {
	if a.Structured() {
		return a.Encode(r)
	}
	return lab.Text(a.Stdout, r)
}

// labCode gives errors their exit codes.
func labCode(err error) error {
	var program *exec.ExitError // its code is not ours
	switch {
	case err == nil:
		return nil
	case errors.As(err, &program):
		return command.WithCode(command.ExitFailure, err)
	case errors.Is(err, syscall.ENOSPC):
		return command.WithCode(command.ExitFull, err)
	case errors.Is(err, os.ErrPermission):
		return command.WithCode(command.ExitForbidden, err)
	case errors.Is(err, fs.ErrNotExist):
		return command.WithCode(command.ExitNotFound, err)
	case errors.Is(err, study.ErrJournal):
		return command.WithCode(command.ExitConflict, err)
	}
	return err
}

func (a *labs) labResume() *cobra.Command {
	var images, before string
	var quietWait time.Duration
	cmd := &cobra.Command{
		Use: "resume DIR", Short: "Continue a run that ended early",
		Long:    "Continue a run that ended early, by Ctrl-C, a crash or a full disk. The trials that are left are made in their planned order.",
		Example: "  weir lab resume weir-lab-wires-20260102-150405",
		Args:    command.WantArgs(1, 1, "a directory of results"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkQuietWait(quietWait); err != nil {
				return err
			}
			where, err := a.labAPI()
			if err != nil {
				return err
			}
			o := lab.Options{Dir: args[0], Version: a.Version, Images: a.layouts(images), API: where, Former: platform.Former(before), Progress: a.labProgress(), QuietWait: quietWait}
			if lab.Repeated(args[0]) {
				r, err := lab.ResumeRepeated(cmd.Context(), o, func(_ int, dir string) { fmt.Fprintf(a.Stderr, "run in %s\n", dir) })
				return a.labRepeated(cmd.Context(), args[0], r, err)
			}
			o.Progress = &lab.Noted{Progress: o.Progress, Dir: args[0]}
			r, err := lab.Resume(cmd.Context(), o)
			return a.labOutcome(cmd.Context(), args[0], r, err)
		},
	}
	beforeFlag(cmd.Flags(), &before)
	quietWaitFlag(cmd.Flags(), &quietWait)
	command.ImagesFlag(cmd.Flags(), &images)
	return cmd
}

func (a *labs) labReport() *cobra.Command {
	var format, out string
	cmd := &cobra.Command{
		Use: "report DIR... [--format html,md,...] [--out DIR]", Short: "Print the results of a run, or of several together",
		Long: `Print the results of a run, also of one that is not over: ratios to the baseline with their intervals, absolute values, published figures
beside ours, skipped and void trials. Also write the report into DIR, in several forms: html (one page that needs no other file), md, json, csv,
benchstat, svg and png.
Several directories with runs of the same study, or one of repeated runs ("weir lab run --repeat"), are pooled: for each comparison the ratio over all
runs, with an interval that includes the differences between runs, the size of these differences, and a verdict by the margin.`,
		Example: "  weir lab report weir-lab-wires-20260102-150405\n  weir lab report results/wires --format html,md --out /tmp/report\n  weir lab report results/wires -o json\n  weir lab report results/wires-1 results/wires-2 results/wires-3",
		Args:    command.WantArgs(1, lab.MaxRepeats, "directories of results"),
		RunE: func(cmd *cobra.Command, args []string) error {
			forms, err := report.ParseOutputs(format)
			if err != nil {
				return command.Usage("--format: %w", err)
			}
			if len(args) > 1 {
				if out != "" || cmd.Flags().Changed("format") {
					return command.Usage("--format and --out are for one run: of several together there is a table, or -o json")
				}
				return a.labPooled(args)
			}
			if lab.Repeated(args[0]) {
				r, err := lab.ReportRepeated(args[0])
				return a.labRepeated(cmd.Context(), args[0], r, err)
			}
			r, err := lab.Report(args[0])
			if err != nil {
				return labCode(err)
			}
			if out == "" {
				out = args[0]
			}
			return errors.Join(a.writeReport(args[0], out, forms), a.printResults(r))
		},
	}
	cmd.Flags().StringVar(&format, "format", "all", "forms to write: html, md, json, csv, benchstat, svg, png, several with commas, or all")
	cmd.Flags().StringVar(&out, "out", "", "directory of the report (default DIR)")
	return cmd
}

// labPooled prints what several runs say together.
func (a *labs) labPooled(dirs []string) error {
	p, err := lab.PoolDirs(dirs...)
	switch {
	case errors.Is(err, lab.ErrPool):
		return command.WithCode(command.ExitConflict, err)
	case err != nil:
		return labCode(err)
	case a.Structured():
		return a.Encode(p)
	}
	return p.Text(a.Stdout)
}

func (a *labs) labCompare() *cobra.Command {
	return &cobra.Command{
		Use: "compare A B", Short: "Compare two runs of a study",
		Long: `Compare two runs of a study: medians, their ratio with the range that both 95 % intervals leave it (wider than a 95 % interval), whether
the intervals are apart, and beside it what each run says of the level and its own baseline. Two runs are not interleaved, so the ratio includes
what changed on the machine between them; the ratios to the baseline do not. Other differences of the runs are listed. To claim a difference, put both variants into one study.`,
		Example: "  weir lab compare results/before results/after",
		Args:    command.WantArgs(2, 2, "two directories of results"),
		RunE: func(_ *cobra.Command, args []string) error {
			x, err := lab.Report(args[0])
			if err != nil {
				return labCode(err)
			}
			y, err := lab.Report(args[1])
			if err != nil {
				return labCode(err)
			}
			c := api.LabComparison{A: args[0], B: args[1], Items: lab.Beside(x, y), Differences: append([]string{}, lab.Differences(x, y)...)}
			if a.Structured() {
				return a.Encode(c)
			}
			if len(c.Items) == 0 {
				return command.WithCode(command.ExitNotFound, fmt.Errorf("%s and %s have no measured variant in common", args[0], args[1]))
			}
			t := command.Table{Head: []string{"PART", "GROUP", "LEVEL", "METRIC", filepath.Base(args[0]), filepath.Base(args[1]), "RATIO", "INTERVALS", "BY ITS BASELINE"}}
			for _, r := range c.Items {
				t.Add(r.Part, r.Group, r.Level, r.Metric+" "+r.Unit, lab.Figure(r.A.Median), lab.Figure(r.B.Median), fmt.Sprintf("%.3f%s", r.Ratio, within(r.Range)), apart(r), besides(r))
			}
			if err := a.PrintTable(t); err != nil {
				return err
			}
			for _, d := range c.Differences {
				fmt.Fprintf(a.Stderr, "they differ in %s\n", d)
			}
			return nil
		},
	}
}

// apart says whether the intervals of a level in two runs overlap.
func apart(r api.LabPair) string {
	switch {
	case r.TooFew:
		return "too few blocks"
	case r.Apart:
		return "apart"
	}
	return "overlap"
}

// within is a range behind a figure.
func within(r *api.LabRange) string {
	switch {
	case r == nil:
		return ""
	case r.High == nil:
		return fmt.Sprintf(" (%.3f to ∞)", r.Low)
	}
	return fmt.Sprintf(" (%.3f to %.3f)", r.Low, *r.High)
}

// besides says what each run says of a level and its own baseline.
func besides(r api.LabPair) string {
	say := func(s api.LabSide) string {
		if s.Ratio == 0 {
			return s.Verdict
		}
		return fmt.Sprintf("%.3f %s", s.Ratio, s.Verdict)
	}
	if a, b := say(r.A), say(r.B); a != b {
		return a + ", " + b
	}
	return say(r.A)
}

// labRuns lists the runs of a directory.
func (a *labs) labRuns() *cobra.Command {
	return &cobra.Command{
		Use: "runs [DIR]", Short: "List runs and how far they are",
		Long: `List the runs of a directory, the newest first: which goes on, how far it is, which ended early. Without DIR it is the directory of this
instance, which the web UI shows: give "weir lab run" a --dir in it, and the run is there too.`,
		Example: "  weir lab runs\n  weir lab runs results\n  weir lab runs -o json",
		Args:    command.WantArgs(0, 1, "a directory of runs"),
		RunE: func(_ *cobra.Command, args []string) error {
			i, err := a.Instance()
			if err != nil {
				return err
			}
			dir := desk.Home(i)
			if len(args) > 0 {
				dir = args[0]
			}
			list, err := desk.List(dir)
			if err != nil {
				return labCode(err)
			}
			if a.Structured() {
				return a.Encode(list)
			}
			t := command.Table{Head: []string{"RUN", "STATE", "STUDY", "MODE", "STARTED", "TRIALS", "VOID", "LEFT", "NOTE"}}
			for _, r := range list.Items {
				started := ""
				if !r.Started.IsZero() {
					started = r.Started.Local().Format(time.DateTime)
				}
				t.Add(r.Name, string(r.State), r.Study, r.Mode, started, fmt.Sprintf("%d of %d", r.Planned-r.Left, r.Planned), fmt.Sprint(r.Void), fmt.Sprint(r.Left), r.Message)
			}
			return a.PrintTable(t)
		},
	}
}

// labSweep removes what crashed runs have left.
func (a *labs) labSweep() *cobra.Command {
	return &cobra.Command{
		Use: "sweep", Short: "Remove what crashed runs have left",
		Long: `Remove the namespaces, containers, mounts and settings that runs have left whose process was killed. Each run does so when it begins, and
"weir up" when it finds a run of its own that was cut off. Runs that go on are not touched, results neither.`,
		Example: "  weir lab sweep",
		Args:    command.NoArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			names, err := experiment.Sweep(cmd.Context())
			if a.Structured() {
				return errors.Join(labCode(err), a.Encode(map[string]any{"removed": append([]string{}, names...)}))
			}
			for _, name := range names {
				fmt.Fprintf(a.Stdout, "removed %s\n", name)
			}
			return labCode(err)
		},
	}
}

func (a *labs) labDoctor() *cobra.Command {
	var images string
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check what this machine can measure",
		Long:    "Check what this machine can measure: what makes figures noisy here, which tools and kernel features are missing, and what each study can and cannot measure. Changes nothing.",
		Example: "  weir lab doctor\n  weir lab doctor -o json",
		Args:    command.NoArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			where, err := a.labAPI()
			if err != nil {
				return err
			}
			x, err := lab.Examine(cmd.Context(), a.layouts(images), where)
			if err != nil {
				return err
			}
			if a.Structured() {
				return a.Encode(x)
			}
			t := command.Table{Head: []string{"TOPIC", "STATE", "DETAIL"}, Coloured: []bool{false, true}}
			for _, f := range x.Findings {
				word := "ok"
				if !f.OK {
					word = "note"
				}
				t.Add(f.Topic, word, f.Detail)
			}
			if err := a.PrintTable(t); err != nil {
				return err
			}
			for _, name := range slices.Sorted(maps.Keys(x.Studies)) {
				s := command.Table{Head: []string{"STUDY", "PART", "LEVEL", "HERE", "WHY"}}
				for _, p := range x.Studies[name] {
					for _, l := range p.OK {
						s.Add(name, p.Part, l, "yes", "")
					}
					for _, l := range slices.Sorted(maps.Keys(p.Skipped)) {
						s.Add(name, p.Part, l, "no", p.Skipped[l])
					}
				}
				fmt.Fprintln(a.Stdout)
				if err := a.PrintTable(s); err != nil {
					return err
				}
			}
			return nil
		},
	}
	command.ImagesFlag(cmd.Flags(), &images)
	return cmd
}
