package kept

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"weir.dev/weir/instance"
)

// Dir is where the runs lie, below the top of the repository.
const Dir = "docs/results"

const indexName = "index.yaml"

// Papers is the file of Dir that says of every claim of the papers what the runs say; the tool writes it.
const Papers = "papers.md"

// notRuns are the files of Dir that are no runs.
var notRuns = []string{".gitignore", "README.md", "runs.md", Papers, indexName, selectionName}

// Index lists every run that is kept, the oldest first.
type Index struct {
	Runs []Row `yaml:"runs"`
}

// Row is one run. Nothing of it ever changes but Wrong.
type Row struct {
	Run     string    `yaml:"run"`               // its directory in Dir, or its file
	Study   string    `yaml:"study"`             // or the part of the former harness
	Mode    string    `yaml:"mode,omitempty"`    // of the study
	Started time.Time `yaml:"started"`           // when the run began; of the former harness, when it was written
	Version string    `yaml:"version,omitempty"` // of Weir, as the run says it
	Commit  string    `yaml:"commit,omitempty"`  // which that version is
	Later   []Later   `yaml:"later,omitempty"`   // versions by which the run went on, each with parts of its own
	Machine Machine   `yaml:"machine"`
	Why     string    `yaml:"why"`               // it was made
	AddsTo  string    `yaml:"adds_to,omitempty"` // an older run, which it repeats or comes after
	Wrong   []string  `yaml:"wrong,omitempty"`   // what is known to be wrong with it
	// Raw has the SHA-256 of its files, as they are once decompressed.
	Raw map[string]string `yaml:"raw"`
}

// Later is a version that made whole parts of a run which another one had begun.
type Later struct {
	Version string   `yaml:"version"`
	Commit  string   `yaml:"commit"`
	Parts   []string `yaml:"parts,flow"`
}

// Machine is where a run was made, as far as the run says it.
type Machine struct {
	CPU       string `yaml:"cpu,omitempty"` // model
	CPUs      int    `yaml:"cpus"`
	Kernel    string `yaml:"kernel"`
	MemoryMiB int    `yaml:"memory_mib,omitempty"`
}

// recorded is from when on a run has to say everything about itself: its version, a commit, and its machine. Older runs say in Wrong what they lack.
var recorded = time.Date(2026, time.November, 23, 20, 0, 0, 0, time.UTC)

const indexHead = `# The runs of this directory, the oldest first. "make keep" adds a row. A row and its run are never changed or removed; only "wrong" grows, when a
# mistake is found in a run.
`

// ReadIndex of a directory of runs.
func ReadIndex(dir string) (Index, error) {
	text, err := os.ReadFile(filepath.Join(dir, indexName))
	if err != nil {
		return Index{}, fmt.Errorf("index of runs: %w", err)
	}
	return parseIndex(text)
}

func parseIndex(text []byte) (Index, error) {
	var x Index
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&x); err != nil {
		return x, fmt.Errorf("%s: %w", indexName, err)
	}
	return x, nil
}

func (x Index) write(dir string) error {
	text, err := yaml.MarshalWithOptions(x, yaml.IndentSequence(true), yaml.UseLiteralStyleIfMultiline(true))
	if err != nil {
		return fmt.Errorf("index of runs: %w", err)
	}
	return instance.WriteShared(filepath.Join(dir, indexName), append([]byte(indexHead), text...))
}

// Row of a run.
func (x Index) Row(run string) (Row, error) {
	i := slices.IndexFunc(x.Runs, func(r Row) bool { return r.Run == run })
	if i < 0 {
		return Row{}, fmt.Errorf("%s has no run %q", indexName, run)
	}
	return x.Runs[i], nil
}

// Bench tells whether the run is of the former harness: one JSON file.
func (r Row) Bench() bool { return strings.HasSuffix(r.Run, ".json") }

// Check says everything that is wrong with a directory of runs: with the rows, and with the files beside them.
func (x Index) Check(dir string) error {
	var all []error
	seen, digests := map[string]bool{}, map[string]string{}
	for i, r := range x.Runs {
		problem := func(format string, args ...any) {
			all = append(all, fmt.Errorf("run %s: "+format, append([]any{r.Run}, args...)...))
		}
		if seen[r.Run] {
			problem("has two rows")
		}
		if i > 0 && r.Started.Before(x.Runs[i-1].Started) {
			problem("began before the run of the row above it")
		}
		if r.AddsTo != "" && !seen[r.AddsTo] {
			problem("adds to %q, which no row above it is", r.AddsTo)
		}
		seen[r.Run] = true
		for _, err := range r.incomplete() {
			problem("%w", err)
		}
		have, err := digestsOf(dir, r.Run)
		if err != nil {
			problem("%w", err)
			continue
		}
		for _, file := range both(have, r.Raw) {
			switch {
			case r.Raw[file] == "":
				problem("its row does not have its file %s", file)
			case have[file] == "":
				problem("its file %s is not there", file)
			case have[file] != r.Raw[file]:
				problem("its file %s is not what it was: SHA-256 %s, and the row has %s", file, have[file], r.Raw[file])
			}
			if other := digests[have[file]]; other != "" && other != r.Run {
				problem("its file %s is one of run %s", file, other)
			}
			digests[have[file]] = r.Run
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errors.Join(append(all, err)...)
	}
	for _, e := range entries {
		if !seen[e.Name()] && !slices.Contains(notRuns, e.Name()) {
			all = append(all, fmt.Errorf("%s: %s has no row: runs get there by `make keep`", filepath.Join(dir, e.Name()), indexName))
		}
	}
	return errors.Join(all...)
}

var commitForm = regexp.MustCompile(`^[0-9a-f]{40}$`)

// incomplete says what a row lacks.
func (r Row) incomplete() (all []error) {
	lacks := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if r.Run == "" || r.Run != filepath.Base(r.Run) || strings.HasPrefix(r.Run, ".") {
		lacks("%q is no name in %s", r.Run, Dir)
	}
	if r.Study == "" || r.Why == "" || r.Started.IsZero() || len(r.Raw) == 0 {
		lacks("its row lacks study, why, started or raw")
	}
	whole := !r.Bench() && commitForm.MatchString(r.Commit) && !dirty(r.Version) && r.Machine.whole()
	for _, l := range r.Later {
		whole = whole && commitForm.MatchString(l.Commit) && !dirty(l.Version) && len(l.Parts) > 0
	}
	switch {
	case whole:
	case r.Started.Before(recorded) && len(r.Wrong) == 0:
		lacks("its row lacks a commit or the machine, and says nothing under wrong")
	case !r.Started.Before(recorded):
		lacks("its row lacks the version, the commit (40 digits) of a tree without changes, or the machine (cpu, cpus, kernel, memory_mib)")
	}
	return all
}

func (m Machine) whole() bool { return m.CPU != "" && m.CPUs > 0 && m.Kernel != "" && m.MemoryMiB > 0 }

// Unchanged compares an index with an older one: every older row is still there and says what it said; under wrong, it says no less.
func (x Index) Unchanged(older Index) error {
	var all []error
	for _, was := range older.Runs {
		is, err := x.Row(was.Run)
		if err != nil {
			all = append(all, fmt.Errorf("run %s: its row vanished", was.Run))
			continue
		}
		for _, w := range was.Wrong {
			if !slices.Contains(is.Wrong, w) {
				all = append(all, fmt.Errorf("run %s: what was wrong with it is not said any more: %s", was.Run, w))
			}
		}
		is.Wrong, was.Wrong = nil, nil
		a, errA := yaml.Marshal(was)
		b, errB := yaml.Marshal(is)
		if err := errors.Join(errA, errB); err != nil {
			all = append(all, err)
		} else if !bytes.Equal(a, b) {
			all = append(all, fmt.Errorf("run %s: its row was changed; it was:\n%s", was.Run, a))
		}
	}
	return errors.Join(all...)
}
