// Command summary reads `go test -json` and prints what a person wants to know: a line per package, the output of what failed,
// every skip with its reason, the slowest packages and tests, and the totals. In CI (CI=true) a skip fails the run unless its reason names a feature that this machine lacks, as this
// program finds itself (lacks.go): only what the machine truly cannot do may be left out.
//
// Tests here use real clocks, kernels and packets on machines that others use, too. So a test that failed, if few did, is run again: it has
// to pass 3 times in a row then. Of a test whose subtests all run beside each other those that failed are run again. It is not forgotten: the output of its failure
// stays, and it is listed as unsteady, which is a defect.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// maxOutput bounds what is kept of one test's output.
const maxOutput = 256 << 10

// Of maxUnsteady tests that failed each is run again, times times; of more none: then something is broken.
const (
	maxUnsteady = 4
	times       = 3
)

// Of the slowest packages and tests that many are listed.
const (
	slowPackages = 15
	slowTests    = 10
)

func main() {
	drawn := flag.String("drawn", "", "packages whose tests draw examples, separated by white space")
	seed := flag.String("seed", "1", "where they begin")
	flag.Parse()
	packages := strings.Fields(*drawn)
	os.Exit(run(os.Stdin, func(pkg, test, pattern string) error {
		args := []string{"test", "-v", "-count", fmt.Sprint(times), "-failfast", "-timeout", "20m", "-run", pattern, pkg}
		if slices.Contains(packages, pkg) {
			args = append(args, "-rapid.seed="+*seed)
		}
		out, err := exec.Command("go", args...).CombinedOutput()
		if n := strings.Count(string(out), "\n--- PASS: "+test+" ("); err == nil && n != times {
			err = fmt.Errorf("it passed %d times of %d", n, times)
		}
		if err != nil {
			fmt.Printf("%s%v\n", out[:min(len(out), maxOutput)], err)
		}
		return err
	}))
}

// run reads events; again runs what a pattern names of a test of a package some times more.
func run(in io.Reader, again func(pkg, test, pattern string) error) int {
	output := map[string]*strings.Builder{}
	var failed []string
	var skipped []skip
	packages, tests := map[string]float64{}, map[string]float64{} // seconds; a test's without those of its subtests
	subtests := tree{map[string]string{}, map[string]bool{}, map[string]bool{}}
	passed, bad, broken := 0, 0, 0
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 1<<20), 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Action == "" {
			fmt.Println(lines.Text()) // a compiler's message
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output", "build-output":
			b := output[key]
			if b == nil {
				b = &strings.Builder{}
				output[key] = b
			}
			if e.Action == "build-output" {
				fmt.Print(e.Output)
			} else if b.Len() < maxOutput {
				b.WriteString(e.Output)
			}
		case "run":
			subtests.add(e.Package, e.Test)
		case "pause":
			subtests.beside[key] = true
		case "pass", "fail", "skip":
			if e.Test == "" {
				if e.Action == "fail" {
					bad++
					out := text(output[key])
					if strings.Contains(out, "panic:") || strings.Contains(out, "exit status") || strings.Contains(out, "signal:") {
						broken++ // it did not come to its end
					}
					fmt.Print(out)
				}
				if e.Action != "skip" {
					packages[e.Package] = e.Elapsed
					fmt.Printf("%-4s %-40s %6.1fs\n", map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action], e.Package, e.Elapsed)
				}
				continue
			}
			tests[key] += e.Elapsed
			if !subtests.beside[key] { // a test's time is without what runs beside each other below it
				tests[subtests.above[key]] -= e.Elapsed
			}
			switch {
			case e.Action == "fail":
				failed = append(failed, key)
				fmt.Printf("--- FAIL %s\n%s", key, text(output[key]))
			case e.Action == "skip":
				skipped = append(skipped, skip{key, reason(text(output[key]))})
			case !subtests.parents[key]:
				passed++
			}
			delete(output, key)
		}
	}
	slices.SortFunc(skipped, func(a, b skip) int { return strings.Compare(a.test, b.test) })
	unexcused := 0
	for _, s := range skipped {
		mark := "skipped"
		if os.Getenv("CI") == "true" && !excused(s.reason) {
			mark, unexcused = "SKIPPED IN CI", unexcused+1
		}
		fmt.Printf("%s %s: %s\n", mark, s.test, s.reason)
	}
	if unexcused > 0 {
		fmt.Printf("%d tests skipped for what this machine does not lack (e2e/summary/lacks.go): in CI that fails\n", unexcused)
	}
	if err := lines.Err(); err != nil {
		fmt.Println("summary:", err)
		bad++
	}
	var unsteady []string
	if tests := top(failed, subtests); len(tests) == bad && broken == 0 && unexcused == 0 {
		failed, unsteady = retry(tests, again)
	}
	for _, u := range unsteady {
		fmt.Printf("unsteady: %s failed, see above, and then passed %d times\n", u, times)
	}
	if bad > 0 && len(failed)+len(unsteady) == 0 {
		failed = append(failed, "a package that did not build or ended early")
	}
	fmt.Print(slowest("packages", packages, slowPackages))
	fmt.Print(slowest("tests", tests, slowTests))
	for _, f := range failed {
		fmt.Println("failed:", f)
	}
	fmt.Printf("%d passed, %d failed, %d skipped, %d unsteady\n", passed, len(failed)+unexcused, len(skipped)-unexcused, len(unsteady))
	if len(failed)+unexcused > 0 || passed == 0 {
		return 1
	}
	return 0
}

// slowest lists the n that took most seconds, without those below one second.
func slowest(what string, seconds map[string]float64, n int) string {
	names := slices.SortedFunc(maps.Keys(seconds), func(a, b string) int { return cmp.Or(cmp.Compare(seconds[b], seconds[a]), strings.Compare(a, b)) })
	var b strings.Builder
	for _, name := range names[:min(n, len(names))] {
		if seconds[name] >= 1 {
			fmt.Fprintf(&b, "%8.1f  %s\n", seconds[name], name)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "the slowest " + what + ", in seconds:\n" + b.String()
}

// tree is what is above each test, all by package and name.
type tree struct {
	above   map[string]string // the nearest test above one, "" if none
	parents map[string]bool   // those that have subtests
	beside  map[string]bool   // those that run beside their siblings (t.Parallel)
}

// add a test that begins. Names of subtests may have slashes, so a test above it is one that has begun.
func (t tree) add(pkg, test string) {
	above := ""
	for i := strings.LastIndex(test, "/"); i > 0 && above == ""; i = strings.LastIndex(test[:i], "/") {
		if _, begun := t.above[pkg+" "+test[:i]]; begun {
			above = pkg + " " + test[:i]
			t.parents[above] = true
		}
	}
	t.above[pkg+" "+test] = above
}

// alone is the subtest of a test (not of another subtest) that one belongs to, if it can run without its siblings: all of these run beside each other, so none
// needs what another has done. Else it is "".
func (t tree) alone(key string) string {
	for t.above[key] != "" && t.above[t.above[key]] != "" {
		key = t.above[key]
	}
	if t.above[key] == "" {
		return ""
	}
	for sibling, above := range t.above {
		if above == t.above[key] && !t.beside[sibling] {
			return ""
		}
	}
	return key
}

// failure is a test, and the pattern (go test -run) of what to run of it again.
type failure struct{ test, pattern string }

// top are the tests that failed ones belong to, by package.
func top(failed []string, subtests tree) map[string][]failure {
	parts := map[string]map[string][]string{} // subtests that failed, by package and test; "": all of it has to run again
	for _, f := range failed {
		pkg, name, _ := strings.Cut(f, " ")
		test, _, _ := strings.Cut(name, "/")
		if parts[pkg] == nil {
			parts[pkg] = map[string][]string{}
		}
		if part := subtests.alone(f); test != name || !subtests.parents[f] { // a test fails with its subtests
			parts[pkg][test] = append(parts[pkg][test], strings.TrimPrefix(part, pkg+" "))
		} else if parts[pkg][test] == nil {
			parts[pkg][test] = []string{}
		}
	}
	tests := map[string][]failure{}
	for pkg, of := range parts {
		for _, test := range slices.Sorted(maps.Keys(of)) {
			names := slices.Compact(slices.Sorted(slices.Values(of[test])))
			if len(names) == 0 || names[0] == "" {
				names = []string{test}
			}
			tests[pkg] = append(tests[pkg], failure{test, patternOf(names)})
		}
	}
	return tests
}

// patternOf names exactly those tests.
func patternOf(names []string) string {
	var all []string
	for _, name := range names {
		var levels []string
		for _, level := range strings.Split(name, "/") {
			levels = append(levels, "^"+regexp.QuoteMeta(level)+"$")
		}
		all = append(all, strings.Join(levels, "/"))
	}
	return strings.Join(all, "|")
}

// retry runs tests again, and tells which failed and which passed then.
func retry(tests map[string][]failure, again func(pkg, test, pattern string) error) (failed, passed []string) {
	n := 0
	for _, all := range tests {
		n += len(all)
	}
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		for _, f := range tests[pkg] {
			key := pkg + " " + f.test
			if n > maxUnsteady {
				failed = append(failed, key)
				continue
			}
			fmt.Printf("again: %s %s\n", pkg, f.pattern)
			if err := again(pkg, f.test, f.pattern); err != nil {
				failed = append(failed, key)
			} else {
				passed = append(passed, key)
			}
		}
	}
	return failed, passed
}

func text(b *strings.Builder) string {
	if b == nil {
		return ""
	}
	return b.String()
}

// skip is a test that was, and why.
type skip struct{ test, reason string }

// reason picks the message of t.Skip out of a test's output.
func reason(out string) string {
	for _, l := range strings.Split(out, "\n") {
		l = strings.TrimSpace(l)
		if l != "" && !strings.HasPrefix(l, "===") && !strings.HasPrefix(l, "---") {
			if _, after, ok := strings.Cut(l, ": "); ok {
				return after
			}
			return l
		}
	}
	return "no reason given"
}
