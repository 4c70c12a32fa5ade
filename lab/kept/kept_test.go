package kept

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/study"
)

const top = "../.." // of the repository

var published = filepath.Join(top, Dir)

func index(t *testing.T) Index {
	t.Helper()
	x, err := ReadIndex(published)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// Each run has a row, each row has its run, and the raw data are those of which the row has the digests.
func TestRunsThatAreKeptAreAsTheIndexSays(t *testing.T) {
	if err := index(t).Check(published); err != nil {
		t.Error(err)
	}
}

// What a row says of a run of the lab is what the run says of itself.
func TestRowsSayWhatTheirRunsSay(t *testing.T) {
	for _, r := range index(t).Runs {
		if r.Bench() {
			continue
		}
		headers, parts, err := headersOf(filepath.Join(published, r.Run))
		if err != nil {
			t.Errorf("%s: %v", r.Run, err)
			continue
		}
		for part, by := range parts {
			said := r.Version
			for _, l := range r.Later {
				if slices.Contains(l.Parts, part) {
					said = l.Version
				}
			}
			if !slices.Equal(by, []string{said}) {
				t.Errorf("%s: part %s was made by %v, its row says %s", r.Run, part, by, said)
			}
		}
		h := headers[0]
		m, err := machineOf(h.Environment)
		if err != nil || m != r.Machine || h.Study.Name != r.Study || string(h.Mode) != r.Mode || h.Version != r.Version || !h.Started.Equal(r.Started) {
			t.Errorf("%s: %v: the row is not of this run: %+v", r.Run, err, r)
		}
		if dirty(r.Version) {
			continue
		}
		if commit, err := commitOf(t.Context(), top, r.Version); err != nil || commit != r.Commit {
			t.Errorf("%s: version %s is commit %s, and the row has %s: %v", r.Run, r.Version, commit, r.Commit, err)
		}
	}
}

// No row that any commit has had vanished, or was changed.
func TestNoRowWasEverChanged(t *testing.T) {
	x := index(t)
	commits, err := git(t.Context(), top, "log", "--format=%H", "--", Dir+"/"+indexName)
	if err != nil {
		t.Fatal(err)
	}
	for commit := range strings.FieldsSeq(commits) {
		text, err := git(t.Context(), top, "show", commit+":"+Dir+"/"+indexName)
		if err != nil {
			t.Fatal(err)
		}
		older, err := parseIndex([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", commit, err)
		}
		if err := x.Unchanged(older); err != nil {
			t.Errorf("since %s: %v", commit, err)
		}
	}
}

func TestChangesOfTheIndexAreFound(t *testing.T) {
	older := index(t)
	for name, change := range map[string]func(*Index){
		"a row vanished":             func(x *Index) { x.Runs = x.Runs[1:] },
		"another digest":             func(x *Index) { x.Runs[1].Raw = map[string]string{"results.jsonl": strings.Repeat("0", 64)} },
		"another reason":             func(x *Index) { x.Runs[1].Why += ", they say" },
		"a mistake is not said more": func(x *Index) { x.Runs[1].Wrong = x.Runs[1].Wrong[1:] },
	} {
		x := index(t)
		change(&x)
		if x.Unchanged(older) == nil {
			t.Errorf("%s, and nobody says so", name)
		}
	}
	x := index(t)
	x.Runs[1].Wrong = append(slices.Clone(x.Runs[1].Wrong), "One more mistake.")
	x.Runs = append(x.Runs, Row{Run: "new"})
	if err := x.Unchanged(older); err != nil {
		t.Errorf("one more row, and one more mistake: %v", err)
	}
}

// repository is one with a single commit and an empty index of runs.
func repository(t *testing.T) (top, commit string) {
	t.Helper()
	top = t.TempDir()
	write(t, filepath.Join(top, Dir, indexName), "runs: []\n")
	run := func(args ...string) string {
		c := exec.Command("git", append([]string{"-C", top, "-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("init", "-q", "-b", "main")
	run("add", ".")
	run("commit", "-q", "-m", "first")
	run("checkout", "-q", "-b", "elsewhere")
	run("commit", "-q", "--allow-empty", "-m", "on another branch")
	run("checkout", "-q", "main")
	return top, run("rev-parse", "HEAD")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// finished run of study aa in a directory of its own; made has so many of its trials.
func finished(t *testing.T, h study.Header, seed uint64, made int) string {
	t.Helper()
	aa, err := lab.Load("aa", nil)
	if err != nil {
		t.Fatal(err)
	}
	h.Study, h.Mode, h.Seed, h.Started = aa, study.Quick, seed, time.Now().UTC()
	dir := filepath.Join(t.TempDir(), "run")
	j, err := study.Create(dir, h)
	if err != nil {
		t.Fatal(err)
	}
	for i, tr := range j.Left() {
		if i == made {
			break
		}
		if err := j.Add(study.Record{Trial: tr, Begun: h.Started, Values: map[string]float64{"rtt": 10 + float64(i%3), "rate": 20 + float64(i%5)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	// What lies beside it besides is not kept.
	for _, name := range []string{"report.html", "results.json", "notes.txt", "figures/rtt.svg"} {
		write(t, filepath.Join(dir, name), "not raw\n")
	}
	return dir
}

const all = 1 << 20 // trials: more than the study has

var here = map[string]string{"cpu": "Model 1", "cpus": "2", "kernel": "6.18", "memory_mib": "24105"}

func TestAFinishedRunIsKept(t *testing.T) {
	top, commit := repository(t)
	run := finished(t, study.Header{Version: commit[:7], Environment: here}, 1, all)
	row, err := Keep(t.Context(), Order{Top: top, Run: run, Why: "to test"})
	if err != nil {
		t.Fatal(err)
	}
	if want := (Machine{CPU: "Model 1", CPUs: 2, Kernel: "6.18", MemoryMiB: 24105}); row.Commit != commit || row.Machine != want || row.Study != "aa" || row.Mode != "quick" {
		t.Errorf("%+v", row)
	}
	dir := filepath.Join(top, Dir)
	x, err := ReadIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Check(dir); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, row.Run)); err != nil || len(entries) != 1 {
		t.Errorf("more than the journal was kept: %v %v", entries, err)
	}
	was, err := lab.Report(run)
	if err != nil {
		t.Fatal(err)
	}
	is, err := lab.Report(filepath.Join(dir, row.Run))
	if err != nil || is.Measured != was.Measured || is.Measured == 0 {
		t.Errorf("%d measured, and %d once it is kept: %v", was.Measured, is.Measured, err)
	}

	// The next one of the day gets a name of its own; none is replaced.
	second, err := Keep(t.Context(), Order{Top: top, Run: finished(t, study.Header{Version: commit[:7], Environment: here}, 2, all), Why: "again", AddsTo: row.Run})
	if err != nil || second.Run == row.Run {
		t.Fatalf("%+v: %v", second, err)
	}
	y, err := ReadIndex(dir)
	if err != nil || len(y.Runs) != 2 {
		t.Fatalf("%d rows: %v", len(y.Runs), err)
	}
	if err := errors.Join(y.Check(dir), y.Unchanged(x)); err != nil {
		t.Error(err)
	}

	// What is done to a run that is kept is found.
	for name, damage := range map[string]func() error{
		"the raw data vanished": func() error { return os.Remove(filepath.Join(dir, row.Run, study.JournalKept)) },
		"a run without a row":   func() error { return os.Mkdir(filepath.Join(dir, "mine"), 0o755) },
		"a file more":           func() error { return os.WriteFile(filepath.Join(dir, second.Run, "notes"), nil, 0o644) },
		"other raw data": func() error {
			to := filepath.Join(dir, second.Run)
			if err := os.Remove(filepath.Join(to, study.JournalKept)); err != nil {
				return err
			}
			return compress(finished(t, study.Header{Version: commit[:7], Environment: here}, 3, all), to)
		},
	} {
		before := x.Check(dir)
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if after := y.Check(dir); after == nil || before != nil && after.Error() == before.Error() {
			t.Errorf("%s, and nobody says so: %v", name, after)
		}
	}
}

func TestRunsThatNobodyCanRepeatAreRefused(t *testing.T) {
	top, commit := repository(t)
	elsewhere, err := git(t.Context(), top, "rev-parse", "elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	without := func(key string) map[string]string {
		e := map[string]string{}
		for k, v := range here {
			if k != key {
				e[k] = v
			}
		}
		return e
	}
	good := study.Header{Version: commit[:9], Environment: here}
	for name, x := range map[string]struct {
		header study.Header
		made   int
		why    string
		adds   string
		want   string
	}{
		"a tree with changes":           {study.Header{Version: commit[:7] + "-dirty", Environment: here}, all, "w", "", "a tree with changes"},
		"a tag and a tree with changes": {study.Header{Version: "v1.0-3-g" + commit[:7] + "-dirty", Environment: here}, all, "w", "", "a tree with changes"},
		"an unknown commit":             {study.Header{Version: "0123456", Environment: here}, all, "w", "", "no commit of this repository"},
		"no commit":                     {study.Header{Version: "dev", Environment: here}, all, "w", "", "make build"},
		"a branch of that name":         {study.Header{Version: "elsewhere", Environment: here}, all, "w", "", "make build"},
		"a commit of another branch":    {study.Header{Version: elsewhere[:8], Environment: here}, all, "w", "", "not in the history"},
		"no CPU model":                  {study.Header{Version: commit[:7], Environment: without("cpu")}, all, "w", "", "CPU's model"},
		"no kernel":                     {study.Header{Version: commit[:7], Environment: without("kernel")}, all, "w", "", "kernel"},
		"not over":                      {good, 5, "w", "", "not over"},
		"no reason":                     {good, all, " ", "", "WHY"},
		"adds to nothing":               {good, all, "w", "nothing", "no run \"nothing\""},
	} {
		_, err := Keep(t.Context(), Order{Top: top, Run: finished(t, x.header, 1, x.made), Why: x.why, AddsTo: x.adds})
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
	run := finished(t, good, 1, all)
	if _, err := Keep(t.Context(), Order{Top: top, Run: run, Why: "once"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Keep(t.Context(), Order{Top: top, Run: run, Why: "twice"}); !errors.Is(err, ErrRefused) {
		t.Errorf("the same run twice: %v", err)
	}
	entries, err := os.ReadDir(filepath.Join(top, Dir))
	if err != nil || len(entries) != 2 {
		t.Errorf("what was refused left something: %v %v", entries, err)
	}
}

// A run of which another version made some of a part is two runs.
func TestARunOfTwoVersionsIsRefused(t *testing.T) {
	top, commit := repository(t)
	run := finished(t, study.Header{Version: commit[:7], Environment: here}, 1, 5)
	j, err := study.Open(run)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.GoOn(study.Resumption{At: time.Now(), Version: "0123456", Environment: here}); err != nil {
		t.Fatal(err)
	}
	for _, tr := range j.Left() {
		if err := j.Add(study.Record{Trial: tr, Begun: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Keep(t.Context(), Order{Top: top, Run: run, Why: "w"}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "two runs") {
		t.Errorf("%v", err)
	}
}
