package report

import (
	"fmt"
	"strings"
)

// markdown of the report; with images it refers to the SVG files beside it.
func (r Report) markdown(figures []figure, images bool) []byte {
	var b strings.Builder
	x := r.Results
	fmt.Fprintf(&b, "# %s\n\n", x.Study.Title)
	fmt.Fprintf(&b, "Study %s, %s, seed %d, %s, version %s.\n", x.Study.Name, x.Mode, x.Seed, clock(x.Started), x.Version)
	if x.Study.About != "" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(x.Study.About))
	}
	for _, s := range r.document(figures) {
		fmt.Fprintf(&b, "\n## %s\n", s.Title)
		for _, k := range s.Blocks {
			b.WriteByte('\n')
			k.markdown(&b, images)
		}
	}
	return []byte(b.String())
}

func (k block) markdown(b *strings.Builder, images bool) {
	switch {
	case k.Heading != "":
		fmt.Fprintf(b, "### %s\n", k.Heading)
	case k.Finding != nil:
		fmt.Fprintf(b, "**%s** (%s)\n\n%s\n", k.Finding.Question, k.Finding.Badge, k.Finding.Sentence)
		for _, m := range k.Finding.More {
			fmt.Fprintf(b, "- %s\n", m)
		}
	case k.List != nil:
		for _, l := range k.List {
			fmt.Fprintf(b, "- %s\n", l)
		}
	case k.Facts != nil:
		for _, f := range k.Facts {
			fmt.Fprintf(b, "- %s %s (%s)\n", f.Value, f.What, f.Note)
		}
	case k.Table != nil:
		k.Table.markdown(b)
	case k.Figure != nil:
		fmt.Fprintf(b, "### %s\n\n", k.Figure.Title)
		if images {
			fmt.Fprintf(b, "![%s](figures/%s.svg)\n\n", k.Figure.Title, k.Figure.ID)
		}
		fmt.Fprintf(b, "%s\n\n", k.Figure.About)
		k.Figure.Table.markdown(b)
	case k.Note == "bad":
		fmt.Fprintf(b, "> **%s**\n", k.Text)
	default:
		fmt.Fprintf(b, "%s\n", k.Text)
	}
}

func (t table) markdown(b *strings.Builder) {
	cell := strings.NewReplacer("|", `\|`, "\n", "; ", "<", "&lt;")
	line := func(cells []string) {
		for _, c := range cells {
			b.WriteString("| " + cell.Replace(c) + " ")
		}
		b.WriteString("|\n")
	}
	line(t.Head)
	b.WriteString(strings.Repeat("| --- ", len(t.Head)) + "|\n")
	for _, r := range t.Rows {
		line(r)
	}
}
