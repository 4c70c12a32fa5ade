package kept

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/claim"
)

// python is Debian's, for which `make setup` installs numpy, scipy and yaml; another one on the PATH has not got them.
const python = "/usr/bin/python3"

// recompute prints what the other program says, and whether it agrees.
func recompute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(python, append([]string{"recompute.py"}, args...)...).CombinedOutput()
	if err != nil && !strings.Contains(string(out), " differ") {
		t.Fatalf("recompute.py %v: %v (numpy, scipy and yaml are installed by `make setup`)\n%s", args, err, out)
	}
	return string(out), err
}

// Every published figure, by another program from the raw data.
func TestFiguresAreRecomputed(t *testing.T) {
	t.Parallel()
	if out, err := recompute(t, "pages", top); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// written results, in a file.
func written(t *testing.T, r lab.Results) string {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "results.json")
	write(t, file, string(text))
	return file
}

// resultsOf a run, as the lab computes them.
func resultsOf(t *testing.T, dir string) lab.Results {
	t.Helper()
	r, err := lab.Report(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// toldOf is what the other program says of a file of results, which it names in each line.
func toldOf(out, file string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, file+": "); ok {
			b.WriteString(rest)
		}
	}
	return b.String()
}

// alterationsAreFound has the other program look at results of a run that were altered, each by another edit: it names what each altered.
func alterationsAreFound(t *testing.T, dir string, edits map[string]func(*lab.Results)) {
	t.Helper()
	text, err := json.Marshal(resultsOf(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	args, files := []string{"run"}, map[string]string{}
	for want, edit := range edits {
		var altered lab.Results
		if err := json.Unmarshal(text, &altered); err != nil {
			t.Fatal(err)
		}
		edit(&altered)
		files[want] = written(t, altered)
		args = append(args, dir, files[want])
	}
	out, err := recompute(t, args...)
	if err == nil {
		t.Error("altered results: no error")
	}
	for want, file := range files {
		if told := toldOf(out, file); !strings.Contains(told, want) || strings.HasSuffix(told, ": 0 differ\n") {
			t.Errorf("altered %q:\n%s", want, told)
		}
	}
}

// The lab's results of every run that is kept, by another program: medians, ratios, intervals, p-values, verdicts, claims, what is void.
func TestResultsAreRecomputed(t *testing.T) {
	t.Parallel()
	args, files := []string{"run"}, map[string]string{}
	for _, row := range index(t).Runs {
		dir := filepath.Join(published, row.Run)
		if row.Bench() {
			continue
		}
		if lab.Repeated(dir) {
			dir = filepath.Join(dir, "001")
		}
		files[row.Run] = written(t, resultsOf(t, dir))
		args = append(args, dir, files[row.Run])
	}
	out, err := recompute(t, args...)
	if err != nil {
		t.Error(err)
	}
	for run, file := range files {
		if told := toldOf(out, file); !strings.HasSuffix(told, ": 0 differ\n") {
			t.Errorf("%s:\n%s", run, told)
		}
	}
}

// The other program sees what is wrong: with results of the lab, and with a page.
func TestAlteredFiguresAreFound(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(published, "generator-2026-11-22")
	alterationsAreFound(t, dir, map[string]func(*lab.Results){
		"measured": func(r *lab.Results) { r.Measured++ },
		"median":   func(r *lab.Results) { *r.Parts[0].Groups[0].Metrics[0].Values[0].Median *= 1.00001 },
		"low":      func(r *lab.Results) { r.Parts[0].Groups[0].Metrics[0].Values[1].Interval.Low *= 0.9999 },
		"verdict": func(r *lab.Results) {
			alter(r, func(v *lab.MetricResult, level string) {
				x := v.Comparison.Variants[level]
				x.Verdict = "lower"
				v.Comparison.Variants[level] = x
			})
		},
		"ratio": func(r *lab.Results) {
			alter(r, func(v *lab.MetricResult, level string) {
				x := v.Comparison.Variants[level]
				x.Ratio *= 1.00001
				v.Comparison.Variants[level] = x
			})
		},
		" p": func(r *lab.Results) {
			alter(r, func(v *lab.MetricResult, level string) {
				x := v.Comparison.Variants[level]
				x.P *= 1.001
				v.Comparison.Variants[level] = x
			})
		},
		"claim":        func(r *lab.Results) { r.Parts[0].Claims[0].Systems[0].Interval.High *= 2 },
		"packet-frame": func(r *lab.Results) { r.Parts[0].Claims[1].Systems[0].Verdict = claim.Missed },
	})

	other := t.TempDir()
	abs, err := filepath.Abs(published)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(other, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(abs, filepath.Join(other, Dir)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(other, "README.md"), editFigure(t, readPage(t, "README.md"), "ping through 100"))
	if out, err := recompute(t, "pages", other); err == nil || !strings.Contains(out, "ping through 100") || !strings.Contains(out, ": 1 differ") {
		t.Errorf("an edited figure: %v\n%s", err, out)
	}
}

// What a shape is judged by is recomputed, too.
func TestAlteredShapesAreFound(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(published, "wires-2026-11-22")
	edits := map[string]func(*lab.Results){}
	for want, edit := range map[string]func(*lab.ClaimOn){
		"error of the law power": func(on *lab.ClaimOn) { on.Shape.Errors["power"] *= 1.00001 },
		"noise":                  func(on *lab.ClaimOn) { on.Shape.Noise *= 1.00001 },
		"misfit high":            func(on *lab.ClaimOn) { on.Shape.Misfit.High *= 1.00001 },
		"behind, quadratic low": func(on *lab.ClaimOn) {
			i := on.Shape.Behind["quadratic"]
			i.Low *= 1.00001
			on.Shape.Behind["quadratic"] = i
		},
		"exponent low": func(on *lab.ClaimOn) { on.Shape.ExponentInterval.Low *= 1.00001 },
		"slope":        func(on *lab.ClaimOn) { on.Shape.Slope *= 1.00001 },
		"gain high":    func(on *lab.ClaimOn) { on.Shape.GainInterval.High *= 1.00001 },
		"verdict":      func(on *lab.ClaimOn) { on.Verdict = claim.SameDirection },
	} {
		edits["claim linear-cost on ebpf "+want] = func(r *lab.Results) {
			for _, p := range r.Parts {
				for _, c := range p.Claims {
					if c.Claim.ID == "linear-cost" {
						edit(&c.Systems[0])
					}
				}
			}
		}
	}
	alterationsAreFound(t, dir, edits)
}

// alter the result of a level that is compared.
func alter(r *lab.Results, edit func(*lab.MetricResult, string)) {
	m := &r.Parts[0].Groups[0].Metrics[0]
	for level := range m.Comparison.Variants {
		if level == "xdp-frame" {
			edit(m, level)
		}
	}
}
