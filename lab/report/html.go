package report

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"strings"
)

//go:embed assets
var assets embed.FS

// asset that is compiled in.
func asset(name string) string {
	b, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // embedded
	}
	return string(b)
}

// page is what the template shows.
type page struct {
	Report   Report
	Sections []section
	Style    template.CSS
	Library  template.JS
	Licence  string
	Script   template.JS
	Data     []embedded
	Charts   map[string]*chart
	Subtitle string
}

// embedded is a file inside the page that can be saved.
type embedded struct{ Name, Type, Content string }

// html is one file that needs nothing else.
func (r Report) html(figures []figure) ([]byte, error) {
	t, err := template.New("page.html.tmpl").Funcs(template.FuncMap{
		"wide":   func(f *figure) template.HTML { return template.HTML(f.draw(wide).svg(*f, false)) },   // escapes its texts
		"narrow": func(f *figure) template.HTML { return template.HTML(f.draw(narrow).svg(*f, false)) }, // likewise
		"numeric": func(s string) bool {
			return len([]rune(s)) <= 28 && strings.Trim(s, "0123456789.,<±-–×% toe+\u00a0") == ""
		},
		"lines": func(s string) []string { return strings.SplitN(s, "\n", 2) },
		"mark":  mark2class,
	}).ParseFS(assets, "assets/page.html.tmpl")
	if err != nil {
		return nil, fmt.Errorf("html: %w", err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("html: %w", err)
	}
	x := r.Results
	p := page{
		Report: r, Sections: r.document(figures), Style: template.CSS(asset("uPlot.min.css") + asset("colours.css") + asset("figure.css") + asset("page.css")),
		Library: template.JS(asset("uPlot.iife.min.js")), Licence: asset("uPlot.LICENSE"), Script: template.JS(asset("page.js")),
		Data: []embedded{
			{"report.json", "application/json", string(raw)}, {"trials.csv", "text/csv", string(r.trialsCSV())},
			{"summary.csv", "text/csv", string(r.summaryCSV())}, {"benchstat.txt", "text/plain", string(r.benchstat())},
		},
		Charts:   map[string]*chart{},
		Subtitle: fmt.Sprintf("Study %s, %s run, seed %d, %s, version %s", x.Study.Name, x.Mode, x.Seed, clock(x.Started), x.Version),
	}
	for _, f := range figures {
		if f.Chart != nil {
			p.Charts[f.ID] = f.Chart
		}
	}
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return nil, fmt.Errorf("html: %w", err)
	}
	return b.Bytes(), nil
}

// ContentPolicy is the Content-Security-Policy by which a server shows a report of this version inside a page of its own. The report is in a sandbox, so it is of no
// origin and has no cookies; it loads nothing, and runs the two scripts of every report, known by their hashes: no others, whatever a name in the results says.
func ContentPolicy() string {
	return "sandbox allow-scripts allow-downloads; default-src 'none'; script-src " + strings.Join(scriptHashes(), " ") +
		"; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
}

// scriptHashes are the sources of a report's scripts as a Content-Security-Policy has them.
func scriptHashes() (out []string) {
	for _, name := range []string{"uPlot.iife.min.js", "page.js"} {
		sum := sha256.Sum256([]byte(asset(name)))
		out = append(out, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	return out
}

// IsCurrent tells whether a page is a report as this version makes it, as far as its scripts tell.
func IsCurrent(page []byte) bool {
	return bytes.Contains(page, []byte("<script>"+asset("uPlot.iife.min.js")+"</script>")) && bytes.Contains(page, []byte("<script>"+asset("page.js")+"</script>"))
}

// mark2class is how a verdict in a table is shown.
func mark2class(cell string) string {
	switch cell {
	case "reproduced", "better":
		return "good"
	case "contradicted", "worse", "differs from itself":
		return "bad"
	case "same shape", "same direction":
		return "fair"
	case "not testable here", "not testable", "not run", "equivalent", "inconclusive", "no ratio", "skipped", "too few blocks":
		return "quiet"
	}
	return ""
}
