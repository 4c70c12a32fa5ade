package report

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"weir.dev/weir/instance"
	"weir.dev/weir/lab"
	"weir.dev/weir/lab/study"
)

// Format of the JSON report.
const Format = 1

// Report is a run for readers. It marshals to JSON as the schema of SchemaJSON says.
type Report struct {
	Schema        string         `json:"$schema"`
	Format        int            `json:"format"`
	Results       lab.Results    `json:"results"`
	Trust         Trust          `json:"trust"`
	Findings      []Finding      `json:"findings"` // one a part
	Laws          []Law          `json:"laws"`
	Distributions []Distribution `json:"distributions"`
	Limits        []Limit        `json:"limits"` // searches for the highest load

	trials []study.Record // in the order in which they were made
}

// Build reads the journal of a directory, complete or not.
func Build(dir string) (Report, error) {
	j, err := study.Read(dir)
	if err != nil {
		return Report{}, err
	}
	return Of(j), nil
}

// Of is the report of a journal. The same journal gives the same report.
func Of(j *study.Journal) Report {
	r := of(lab.Summarise(j), j.Records)
	r.Limits = limits(j)
	r.answer()
	return r
}

func of(r lab.Results, records []study.Record) Report {
	trials := slices.Clone(records)
	slices.SortStableFunc(trials, func(a, b study.Record) int { return a.Begun.Compare(b.Begun) })
	return Report{
		Schema: schemaName, Format: Format, Results: r, Trust: trust(r), Findings: findings(r), Laws: laws(r),
		Distributions: distributions(r, trials), trials: trials,
	}
}

// Output is a form of the report.
type Output string

const (
	HTML      Output = "html"
	Markdown  Output = "md"
	JSON      Output = "json"
	CSV       Output = "csv"
	Benchstat Output = "benchstat"
	SVG       Output = "svg"
	PNG       Output = "png"
)

// Outputs are all forms.
func Outputs() []Output { return []Output{HTML, Markdown, JSON, CSV, Benchstat, SVG, PNG} }

// ErrOutput says that there is no such form.
var ErrOutput = errors.New("no such form of the report")

// ParseOutputs reads "html,md"; "all" and the empty text are all of them.
func ParseOutputs(text string) ([]Output, error) {
	if text == "" || text == "all" {
		return Outputs(), nil
	}
	var out []Output
	for name := range strings.SplitSeq(text, ",") {
		o := Output(strings.TrimSpace(name))
		if !slices.Contains(Outputs(), o) {
			return nil, fmt.Errorf("%w: %q: want some of %s, or all", ErrOutput, name, joined(Outputs(), ", "))
		}
		out = append(out, o)
	}
	return out, nil
}

// Files of the forms, by path below the report's directory.
func (r Report) Files(outputs ...Output) (map[string][]byte, error) {
	files := map[string][]byte{}
	figures := r.figures()
	for _, o := range outputs {
		var err error
		switch o {
		case HTML:
			files["report.html"], err = r.html(figures)
		case Markdown:
			files["report.md"] = r.markdown(figures, slices.Contains(outputs, SVG))
		case JSON:
			files["report.json"], err = r.json()
			files[schemaName] = SchemaJSON()
		case CSV:
			files["trials.csv"], files["summary.csv"] = r.trialsCSV(), r.summaryCSV()
		case Benchstat:
			files["benchstat.txt"] = r.benchstat()
		case SVG:
			for _, f := range figures {
				files["figures/"+f.ID+".svg"] = f.draw(wide).svg(f, true)
			}
		case PNG:
			for _, f := range figures {
				if files["figures/"+f.ID+".png"], err = f.draw(wide).png(); err != nil {
					return nil, fmt.Errorf("figure %s: %w", f.ID, err)
				}
			}
		default:
			err = fmt.Errorf("%w: %q: want some of %s", ErrOutput, o, joined(Outputs(), ", "))
		}
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// Write puts the forms (all, if none is named) into a directory and gives the files' paths. A file is replaced as a whole or not at all.
func (r Report) Write(dir string, outputs ...Output) ([]string, error) {
	if len(outputs) == 0 {
		outputs = Outputs()
	}
	files, err := r.Files(outputs...)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	var paths []string
	for name, content := range files {
		if !filepath.IsLocal(filepath.FromSlash(name)) { // names of parts are the journal's
			return nil, fmt.Errorf("report: %w: file %q would be outside of %s", study.ErrJournal, name, dir)
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		paths = append(paths, path)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
			continue
		}
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = instance.Replace(path, content, 0o644)
		}
		if err != nil {
			return nil, fmt.Errorf("report: %w", err)
		}
	}
	slices.Sort(paths)
	return paths, nil
}

func joined[T ~string](list []T, sep string) string {
	var s []string
	for _, v := range list {
		s = append(s, string(v))
	}
	return strings.Join(s, sep)
}
