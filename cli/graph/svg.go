package graph

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"

	"weir.dev/weir/api"
)

// SVG draws the graph: who steers which traffic where, from left to right, and below it hosts and switches, if there are several.
func SVG(g api.Graph) string {
	underlay := func(n api.GraphNode) bool { return n.Kind == "host" || n.Kind == "switch" }
	part := func(keep func(api.GraphNode) bool, kinds ...api.EdgeKind) ([]placed, []drawn, point) {
		nodes := slices.DeleteFunc(slices.Clone(g.Nodes), func(n api.GraphNode) bool { return !keep(n) })
		edges := slices.DeleteFunc(slices.Clone(g.Edges), func(e api.GraphEdge) bool { return !slices.Contains(kinds, e.Kind) })
		return arrange(nodes, edges)
	}
	nodes, edges, size := part(func(n api.GraphNode) bool { return !underlay(n) }, api.EdgeSteers, api.EdgeCopies)
	if below, links, room := part(underlay, api.EdgeLink, api.EdgeTunnel); len(below) > 1 {
		for i := range below {
			below[i].at.y += size.y
		}
		for i := range links {
			for j := range links[i].through {
				links[i].through[j].y += size.y
			}
		}
		nodes, edges, size = append(nodes, below...), append(edges, links...), point{max(size.x, room.x), size.y + room.y}
	}
	var b strings.Builder
	size.x, size.y = max(size.x, 2*margin+boxWidth), max(size.y, 2*margin+boxHeight)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]g" height="%[2]g" viewBox="0 0 %[1]g %[2]g" font-family="sans-serif" font-size="12">
<style>
  .box { fill: #fff; stroke: #2b8a3e; stroke-width: 1.5 } .lacking { stroke: #c92a2a; stroke-width: 2.5 } .address { stroke: #868e96 }
  .name { font-weight: bold } .detail { fill: #495057; font-size: 10px }
  .edge { fill: none; stroke: #495057; stroke-width: 1.5 } .copies { stroke-dasharray: 6 4 } .tunnel { stroke-dasharray: 2 3 } .off { stroke: #c92a2a }
  .label { font-size: 10px; fill: #1864ab; paint-order: stroke; stroke: #fff; stroke-width: 3px }
</style>
<defs><marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="#495057"/></marker></defs>
<rect width="100%%" height="100%%" fill="#fff"/>
`, math.Ceil(size.x), math.Ceil(size.y))
	for _, e := range edges {
		drawEdge(&b, e)
	}
	for _, n := range nodes {
		drawNode(&b, n)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func drawNode(b *strings.Builder, n placed) {
	class, corner := "box", 4.0
	if n.Kind == "endpoint" || n.Kind == "address" {
		corner = boxHeight / 2
	}
	if n.Kind == "address" {
		class += " address"
	}
	if !n.Ready {
		class += " lacking"
	}
	title := n.ID
	for _, more := range []string{n.Detail, strings.ReplaceAll(n.On, "/", " "), n.State, n.Message} {
		if more != "" {
			title += "\n" + more
		}
	}
	fmt.Fprintf(b, `<g><title>%s</title><rect class="%s" x="%g" y="%g" width="%g" height="%g" rx="%g"/>`, html.EscapeString(title), class,
		n.at.x-boxWidth/2, n.at.y-boxHeight/2, boxWidth, boxHeight, corner)
	all := lines(n.GraphNode)
	if host, ok := strings.CutPrefix(n.On, "host/"); ok {
		all = append(all, "on "+host)
	}
	for i, text := range all {
		class := "detail"
		if i == 0 {
			class = "name"
		}
		fmt.Fprintf(b, `<text class="%s" x="%g" y="%g" text-anchor="middle">%s</text>`, class, n.at.x, n.at.y+4+15*(float64(i)-float64(len(all)-1)/2), html.EscapeString(fit(text, 24)))
	}
	b.WriteString("</g>\n")
}

// drawEdge draws a curve from one box's side to the other's.
func drawEdge(b *strings.Builder, e drawn) {
	way := slices.Clone(e.through)
	last := len(way) - 1
	side := boxWidth / 2
	if way[0].x > way[last].x {
		side = -side
	}
	way[0].x += side
	way[last].x -= side
	var d strings.Builder
	fmt.Fprintf(&d, "M%g %g", way[0].x, way[0].y)
	for i := 1; i < len(way); i++ {
		p, q := way[i-1], way[i]
		bend := (q.x - p.x) / 2
		if p.x == q.x { // in one layer, or to itself
			bend = boxWidth / 2
		}
		fmt.Fprintf(&d, " C%g %g %g %g %g %g", p.x+bend, p.y, q.x-bend, q.y, q.x, q.y)
	}
	class := "edge " + string(e.Kind)
	if !e.Ready {
		class += " off"
	}
	ends := ""
	if e.Kind == api.EdgeSteers || e.Kind == api.EdgeCopies {
		ends = ` marker-end="url(#to)"`
		if e.Both {
			ends += ` marker-start="url(#to)"`
		}
	}
	text := label(e.GraphEdge)
	title := text
	if e.Chain != "" {
		title += "\nchain " + e.Chain
	}
	p, q := way[(last-1)/2], way[(last-1)/2+1]
	fmt.Fprintf(b, `<g><title>%s</title><path class="%s" d="%s"%s/><text class="label" x="%g" y="%g" text-anchor="middle">%s</text></g>`+"\n",
		html.EscapeString(title), class, d.String(), ends, (p.x+q.x)/2, (p.y+q.y)/2-5, html.EscapeString(fit(text, 16)))
}

// fit shortens a text to so many characters.
func fit(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
