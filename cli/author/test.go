package author

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/solo"
)

// casesDir is where a recipe's folder has its cases, a folder each.
const casesDir = "test"

// maxCases of a folder.
const maxCases = 1000

// files of a case, without their ends. A flag of weir function test is called like each.
const (
	fileIn            = "in"
	fileReverse       = "reverse"
	fileExpect        = "expect"
	fileExpectReverse = "expect-reverse"
	fileConfig        = "config"
	fileEvents        = "events"
)

// testFlags of the command.
type testFlags struct {
	flags
	in, reverse, expect, expectReverse string
	cases, events, ignore              []string
	interval, timeout                  time.Duration
	update                             bool
}

// testCase is one case, and the files that --update writes.
type testCase struct {
	solo.Case
	config                map[string]any
	expect, expectReverse string // "": none
}

func (a *author) test() *cobra.Command {
	var f testFlags
	cmd := &cobra.Command{
		Use:   "test IMAGE [--in FILE --expect FILE]",
		Short: "Send a function the frames of a file, and compare what comes out",
		Long: `Run a function by itself between two ports, without a daemon: the real image, in a container of any runtime, with its config, probe file and events.
Send it the frames of a capture (pcap or pcapng) and compare the frames that come out with those of another one, in order and byte for byte.

IMAGE is an image's name, a folder with an OCI layout, or a folder with an image.yaml, which is built first. Without --in and --reverse the cases are
those of the folder: IMAGE/test/CASE/ has in.pcap, expect.pcap, reverse.pcap and expect-reverse.pcap as the flags of these names, config.yaml, and
events with a reason a line. Frames of --in and --reverse are sent in the order of their times.

It ends with code 0 if all is as expected, with 11 if not, and with others if it could not be tried. All is removed at its end; what a killed run has left
goes with the next one.`,
		Example: `  weir function test examples/blocker
  weir function test firewall --config 'allow=[tcp/80]' --in in.pcap --expect out.pcap
  weir function test firewall --config fw.yaml --in in.pcap --reverse answers.pcap --expect out.pcap --expect-reverse back.pcap --ignore checksum
  weir function test monitor --in in.pcap --event ScanSeen
  weir function test . --case web --update`,
		Args: command.WantArgs(1, 1, "an image, or a folder with an image.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runTest(cmd.Context(), f, args[0]) },
	}
	s := cmd.Flags()
	s.StringVar(&f.in, fileIn, "", "frames that enter at port in, or tap")
	s.StringVar(&f.expect, fileExpect, "", "frames that are to come out at port out")
	s.StringVar(&f.reverse, fileReverse, "", "frames that enter at port out")
	s.StringVar(&f.expectReverse, fileExpectReverse, "", "frames that are to come out at port in")
	s.StringArrayVar(&f.cases, "case", nil, "only this case of the folder; may be repeated")
	s.StringArrayVar(&f.events, "event", nil, "reason of an event that the function is to raise; may be repeated")
	s.StringArrayVar(&f.ignore, "ignore", nil, "field that is not compared: "+strings.Join(solo.Ignorable(), ", ")+"; may be repeated")
	s.DurationVar(&f.interval, "interval", solo.DefaultInterval, "time between frames that are sent")
	s.DurationVar(&f.timeout, "timeout", solo.DefaultTimeout, "how long to wait for the function to start, and for what is expected")
	s.BoolVar(&f.update, "update", false, "write what comes out to the files of what is expected")
	f.add(cmd)
	return cmd
}

func (a *author) runTest(ctx context.Context, f testFlags, what string) (err error) {
	if err := solo.CheckIgnore(f.ignore); err != nil {
		return command.Usage("--ignore: %w", err)
	}
	if f.interval < 0 || f.timeout <= 0 {
		return command.Usage("--interval wants 0 or more, --timeout more than 0")
	}
	cases, err := a.cases(f, what)
	if err != nil {
		return err
	}
	o, end, err := a.prepare(ctx, f.flags, what)
	if err != nil {
		return err
	}
	defer end()
	if o.Session, err = solo.NewSession(); err != nil {
		return coded(err)
	}
	defer func() { err = errors.Join(err, o.Session.Close()) }()
	failed := 0
	results := []solo.Result{}
	for _, c := range cases {
		with := o
		if len(c.config) > 0 && len(f.config) == 0 {
			with.Config = c.config
		}
		r, err := solo.Try(ctx, with, c.Case)
		if err != nil {
			if c.Name != "" {
				err = fmt.Errorf("case %s: %w", c.Name, err)
			}
			return coded(err)
		}
		r.Image = what
		if f.update && len(r.Failures) == 0 {
			if err := update(c, r); err != nil {
				return err
			}
			r.Differences, r.Passed = []solo.Difference{}, true
		}
		if !r.Passed {
			failed++
		}
		results = append(results, r)
		if !a.Structured() {
			a.tell(r, f.update)
		}
	}
	if a.Structured() {
		if err := a.Encode(map[string]any{"passed": failed == 0, "items": results}); err != nil {
			return err
		}
	}
	if failed > 0 {
		return command.Silent(command.ExitDiffers)
	}
	return nil
}

// cases are the one that the flags make, or those of the folder.
func (a *author) cases(f testFlags, what string) ([]testCase, error) {
	base := solo.Case{Events: f.events, Ignore: f.ignore, Interval: f.interval, Timeout: f.timeout}
	if f.in != "" || f.reverse != "" {
		if len(f.cases) > 0 {
			return nil, command.Usage("--case is for the cases of a folder: want it without --in and --reverse")
		}
		c := testCase{Case: base, expect: f.expect, expectReverse: f.expectReverse}
		if f.update && c.expect == "" && c.expectReverse == "" {
			return nil, command.Usage("--update wants --expect or --expect-reverse, the files to write")
		}
		if !f.update && c.expect == "" && c.expectReverse == "" && len(f.events) == 0 {
			return nil, command.Usage("want what is expected: --expect, --expect-reverse or --event")
		}
		return []testCase{c}, c.read(f.in, f.reverse, f.update)
	}
	if f.expect != "" || f.expectReverse != "" {
		return nil, command.Usage("want frames to send: --in or --reverse")
	}
	if !recipe(what) {
		return nil, command.Usage("want frames to send: --in FILE; only a folder with an image.yaml has cases of its own, and %s is none", what)
	}
	dirs, err := filepath.Glob(filepath.Join(what, casesDir, "*"))
	if err != nil {
		return nil, err
	}
	var all []testCase
	var names []string
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			continue
		}
		names = append(names, filepath.Base(dir))
		if len(f.cases) > 0 && !slices.Contains(f.cases, filepath.Base(dir)) {
			continue
		}
		c, err := readCase(dir, base, f.update)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	for _, name := range f.cases {
		if len(names) > 0 && !slices.Contains(names, name) {
			return nil, command.WithCode(command.ExitNotFound, fmt.Errorf("%s has no case %q: want one of %s", what, name, strings.Join(names, ", ")))
		}
	}
	switch {
	case len(all) == 0:
		return nil, command.WithCode(command.ExitNotFound, fmt.Errorf("%s has no cases: want %s/%s/CASE/in.pcap, or --in FILE", what, what, casesDir))
	case len(all) > maxCases:
		return nil, command.Usage("%s has %d cases: want at most %d", what, len(all), maxCases)
	}
	return all, nil
}

// readCase reads the files of a case's folder.
func readCase(dir string, base solo.Case, update bool) (testCase, error) {
	c := testCase{Case: base}
	c.Name = filepath.Base(dir)
	find := func(name string, ends ...string) string {
		for _, end := range ends {
			if path := filepath.Join(dir, name+end); exists(path) {
				return path
			}
		}
		return ""
	}
	in, reverse := find(fileIn, ".pcap", ".pcapng"), find(fileReverse, ".pcap", ".pcapng")
	if in == "" && reverse == "" {
		return c, command.WithCode(command.ExitInvalid, fmt.Errorf("case %s: want %s.pcap or %s.pcap", dir, fileIn, fileReverse))
	}
	c.expect, c.expectReverse = find(fileExpect, ".pcap", ".pcapng"), find(fileExpectReverse, ".pcap", ".pcapng")
	if path := find(fileConfig, ".yaml", ".yml", ".json"); path != "" {
		var err error
		if c.config, err = command.ConfigFile(path); err != nil {
			return c, err
		}
	}
	if path := find(fileEvents, ""); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return c, command.WithCode(command.ExitInvalid, err)
		}
		c.Events = slices.Concat(c.Events, strings.Fields(string(text)))
	}
	if c.expect == "" && c.expectReverse == "" && len(c.Events) == 0 {
		if !update {
			return c, command.WithCode(command.ExitInvalid, fmt.Errorf("case %s: want what is expected: %s.pcap, %s.pcap or %s", dir, fileExpect, fileExpectReverse, fileEvents))
		}
		c.expect = filepath.Join(dir, fileExpect+".pcap")
	}
	return c, c.read(in, reverse, update)
}

// read the frames of a case.
func (c *testCase) read(in, reverse string, update bool) error {
	for _, f := range []struct {
		path string
		to   *[]solo.Frame
		out  bool
	}{{in, &c.In, false}, {reverse, &c.Out, false}, {c.expect, &c.AtOut, true}, {c.expectReverse, &c.AtIn, true}} {
		if f.path == "" || f.out && update {
			continue
		}
		frames, err := solo.ReadFrames(f.path)
		if errors.Is(err, fs.ErrNotExist) && f.out {
			return command.WithCode(command.ExitInvalid, fmt.Errorf("%w (--update writes it)", err))
		}
		if err != nil {
			return coded(err)
		}
		if *f.to = frames; frames == nil {
			*f.to = []solo.Frame{} // none, and that is compared
		}
	}
	return nil
}

// update writes what came out.
func update(c testCase, r solo.Result) error {
	for path, frames := range map[string][]solo.Frame{c.expect: r.AtOut, c.expectReverse: r.AtIn} {
		if path != "" {
			if err := solo.WriteFrames(path, frames); err != nil {
				return err
			}
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Bounds of what is shown to people; -o json has all.
const (
	shownDifferences = 20
	shownEvents      = 20
	shownLines       = 40
)

// tell a result to people.
func (a *author) tell(r solo.Result, updated bool) {
	var b strings.Builder
	word, colour := "PASS", command.Green
	switch {
	case !r.Passed:
		word, colour = "FAIL", command.Red
	case updated:
		word = "DONE"
	}
	if a.Colours(a.Stdout) {
		word = colour.Paint(word)
	}
	what := r.Image
	if r.Name != "" {
		what += " " + r.Name
	}
	fmt.Fprintf(&b, "%s  %s (%s): %s, %s\n", word, command.Printable(what), r.Runtime, counts(r), time.Duration(r.ElapsedNs).Round(10*time.Millisecond))
	for i, d := range r.Differences {
		if i == shownDifferences {
			fmt.Fprintf(&b, "  ... and %d more differences (-o json)\n", len(r.Differences)-i)
			break
		}
		difference(&b, d)
	}
	for _, text := range slices.Concat(r.Failures, r.Notes) {
		fmt.Fprintf(&b, "  %s\n", text)
	}
	if !r.Passed || a.Wide() {
		for i, e := range r.Events {
			if i == shownEvents {
				fmt.Fprintf(&b, "  ... and %d more events (-o json)\n", len(r.Events)-i)
				break
			}
			fmt.Fprintf(&b, "  event %s %s: %s\n", e.Severity, command.Printable(e.Reason), command.Printable(e.Message))
		}
		if lines := strings.Split(strings.TrimRight(r.Log, "\n"), "\n"); r.Log != "" {
			fmt.Fprintln(&b, "  log:")
			for _, l := range lines[max(0, len(lines)-shownLines):] {
				fmt.Fprintf(&b, "    %s\n", command.Printable(l))
			}
		}
	}
	_, _ = io.WriteString(a.Stdout, b.String())
}

func counts(r solo.Result) string {
	text := fmt.Sprintf("%d in, %d out", r.Sent.In, r.Received.Out)
	if r.Sent.Out > 0 || r.Received.In > 0 {
		text += fmt.Sprintf("; reverse %d in, %d out", r.Sent.Out, r.Received.In)
	}
	if n := len(r.Events); n > 0 {
		text += fmt.Sprintf("; %d event%s", n, map[bool]string{true: "s"}[n > 1])
	}
	return text
}

func difference(b *strings.Builder, d solo.Difference) {
	switch d.Kind {
	case solo.Missing:
		fmt.Fprintf(b, "  %s: frame %d of those expected did not come: %s\n", d.Port, d.Expected, d.ExpectedIs)
	case solo.Unexpected:
		fmt.Fprintf(b, "  %s: frame %d of those that came was not expected: %s\n", d.Port, d.Got, d.GotIs)
	default:
		fmt.Fprintf(b, "  %s: frame %d differs from byte %d on (%s)\n    expected %s\n             %s\n    got      %s\n             %s\n",
			d.Port, d.Expected, d.Offset, d.Field, d.ExpectedIs, d.ExpectedHex, d.GotIs, d.GotHex)
		if d.Got != d.Expected {
			fmt.Fprintf(b, "    (frame %d of those that came)\n", d.Got)
		}
	}
}
