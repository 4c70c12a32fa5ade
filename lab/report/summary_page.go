package report

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"unicode"

	"weir.dev/weir/lab/claim"
)

// summaryRow is a claim as one run says it.
type summaryRow struct {
	Claim, Theirs, Where  string // empty where the row goes on with the claim above
	Run, On, Ours, Within string
	Verdict               claim.Verdict
	Why                   string
	Data                  string // of its trials, relative to the summary
}

// rows of a paper. What one system of a claim says is a row, the nearest first, of the run that says most; then what other runs say.
func (s Summary) rows(p Paper, dir string) (rows []summaryRow) {
	for _, c := range p.Claims {
		first := summaryRow{Claim: c.Claim.Text, Where: c.Name + ": " + c.Claim.Source}
		if len(c.Runs) == 0 {
			first.Verdict, first.Why = NotRun, "no run of this claim is given: weir lab run "+p.Study+" --only part="+c.Name
			rows = append(rows, first)
			continue
		}
		first.Theirs = theirs(c.Runs[0].Says, c.Part)
		for i, run := range c.Runs {
			for k, on := range run.Says.Systems {
				if i > 0 && k > 0 {
					break // of other runs the verdict is enough
				}
				row := first
				first = summaryRow{}
				row.Run = filepath.Base(run.Dir) + " (" + string(run.Mode) + ")"
				row.On, row.Verdict, row.Why, row.Data = run.Says.SystemText(on), on.Verdict, on.Why, relative(dir, run.Data)
				row.Ours, row.Within, _ = strings.Cut(ours(c.Claim, on), "\n")
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// relative is a path as a link from a directory.
func relative(dir, path string) string {
	from, err := filepath.Abs(dir)
	to, err2 := filepath.Abs(path)
	if rel, err3 := filepath.Rel(from, to); cmp.Or(err, err2, err3) == nil {
		path = rel
	}
	return (&url.URL{Path: filepath.ToSlash(path)}).String()
}

const summaryAbout = "A claim's verdict is that of the run that tells most, a sound, complete and full one before others, on the system nearest to the published one; " +
	"where one run reproduces it and another one contradicts it, runs disagree. What would contradict a claim follows from its study alone, before anything is measured. Intervals are those of 95 %."

func (r SummaryRun) text() string {
	text := fmt.Sprintf("%s, %s, %s, version %s: %d of %d trials measured, %d void", r.Study, r.Mode, clock(r.Started), r.Version, r.Measured, r.Planned, r.Void)
	if r.Left > 0 {
		text += fmt.Sprintf(", %d yet to be made", r.Left)
	}
	if r.Outdated > 0 {
		text += fmt.Sprintf("; %s of it have changed in the study since, and are left out", count(r.Outdated, "claim", "claims"))
	}
	return text
}

// printable is a text of a journal, which may be another's, that does no harm to a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) && r != '\u00a0' {
			return '?'
		}
		return r
	}, text)
}

// plain is such a text in Markdown.
func plain(text string) string {
	return strings.NewReplacer("<", "&lt;", "[", `\[`, "]", `\]`, "`", "\\`").Replace(printable(text))
}

// Text writes the summary for a terminal.
func (s Summary) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	for _, p := range s.Papers {
		fmt.Fprintf(t, "%s: %s\n", printable(p.Study), p.VerdictsText())
		for _, c := range p.Claims {
			if len(c.Runs) == 0 {
				continue
			}
			on := c.Runs[0].Says.Headline()
			fmt.Fprintf(t, "  %s/%s\t%s\t%s\t%s\t%s (%s)\n", printable(c.Name), printable(c.Claim.ID), theirs(c.Runs[0].Says, c.Part), strings.ReplaceAll(ours(c.Claim, on), "\n", ", "), c.Verdict, printable(filepath.Base(c.Runs[0].Dir)), c.Runs[0].Mode)
		}
	}
	all := s.total()
	fmt.Fprintf(t, "%d claims: %s\n", len(all.Claims), all.VerdictsText())
	_ = t.Flush()
	for _, r := range s.Runs {
		fmt.Fprintf(t, "%s: %s. %s\n", printable(r.Dir), printable(r.text()), printable(r.Trust))
	}
	return t.Flush()
}

// Markdown is the page for a directory: its links are relative to it.
func (s Summary) Markdown(dir string) []byte {
	var b strings.Builder
	all := s.total()
	fmt.Fprintf(&b, "# What five papers say, and what we see\n\n%d claims: %s. %s\n", len(all.Claims), all.VerdictsText(), summaryAbout)
	for _, p := range s.Papers {
		fmt.Fprintf(&b, "\n## %s: %s\n\nPublished in: %s. %s.\n\n", plain(p.Study), plain(p.Title), plain(p.Source), p.VerdictsText())
		for _, r := range p.runs {
			for _, f := range r.Findings {
				fmt.Fprintf(&b, "- %s %s (%s)\n", plain(f.Question), plain(f.Sentence), plain(filepath.Base(r.Dir)))
			}
		}
		t := table{Head: []string{"published", "theirs", "run", "on", "ours", "95 %", "verdict", "trials"}}
		for _, x := range s.rows(p, dir) {
			text := x.Claim
			if text != "" {
				text += "\n" + x.Where
			}
			link := none
			if x.Data != "" {
				link = "[data](" + x.Data + ")"
			}
			t.Rows = append(t.Rows, []string{text, x.Theirs, x.Run, x.On, x.Ours, x.Within, string(x.Verdict) + "\n" + x.Why, link})
		}
		b.WriteByte('\n')
		t.markdown(&b)
	}
	b.WriteString("\n## Runs\n\n")
	for _, r := range s.Runs {
		fmt.Fprintf(&b, "- [%s](%s) %s. %s\n", plain(r.Dir), relative(dir, r.Data), plain(r.text()), plain(r.Trust))
	}
	return []byte(b.String())
}

// summaryPage is what the template shows.
type summaryPage struct {
	Style  template.CSS
	About  string
	Total  string
	Papers []summaryPaper
	Runs   []summaryLine
}

type summaryPaper struct {
	Paper
	Rows []summaryRow
	Runs []SummaryRun
}

type summaryLine struct{ Dir, Data, Text, Trust string }

// html is one file that needs nothing else; its links are relative to dir.
func (s Summary) html(dir string) ([]byte, error) {
	t, err := template.New("summary.html.tmpl").Funcs(template.FuncMap{
		"base": filepath.Base, "verdict": func(v claim.Verdict) string { return mark2class(string(v)) },
	}).ParseFS(assets, "assets/summary.html.tmpl")
	if err != nil {
		return nil, fmt.Errorf("summary: %w", err)
	}
	all := s.total()
	p := summaryPage{
		Style: template.CSS(asset("colours.css") + asset("page.css")), About: summaryAbout,
		Total: fmt.Sprintf("%d claims: %s", len(all.Claims), all.VerdictsText()),
	}
	for _, paper := range s.Papers {
		p.Papers = append(p.Papers, summaryPaper{Paper: paper, Rows: s.rows(paper, dir), Runs: paper.runs})
	}
	for _, r := range s.Runs {
		p.Runs = append(p.Runs, summaryLine{r.Dir, relative(dir, r.Data), r.text(), r.Trust})
	}
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return nil, fmt.Errorf("summary: %w", err)
	}
	return b.Bytes(), nil
}
