// Package graph draws a graph of the API: as SVG with a layout of its own, and as text for Mermaid and Graphviz.
package graph

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir.dev/weir/api"
)

// label says what an edge carries.
func label(e api.GraphEdge) string {
	if len(e.Policies) == 0 {
		return e.Detail
	}
	text := strings.Join(e.Policies, ", ")
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// lines are those of a node's box.
func lines(n api.GraphNode) []string {
	out := []string{n.Name}
	if n.Kind == "address" || n.Kind == "host" || n.Kind == "switch" {
		out = []string{n.Kind + " " + n.Name}
	}
	if n.Detail != "" {
		out = append(out, n.Detail)
	}
	return out
}

// byHost groups nodes by where they are; "" is nowhere. Hosts and switches that nothing joins are left out: they are the groups.
func byHost(g api.Graph) (groups map[string][]api.GraphNode, order []string) {
	groups = map[string][]api.GraphNode{}
	joined := map[string]bool{}
	for _, e := range g.Edges {
		joined[e.From], joined[e.To] = true, true
	}
	for _, n := range g.Nodes {
		if joined[n.ID] || n.Kind != "host" && n.Kind != "switch" {
			groups[n.On] = append(groups[n.On], n)
		}
	}
	return groups, slices.Sorted(maps.Keys(groups))
}

// Mermaid is the graph as a flowchart, as Markdown pages of many sites draw it.
func Mermaid(g api.Graph) string {
	var b strings.Builder
	b.WriteString("flowchart LR\n")
	ids := map[string]string{}
	for i, n := range g.Nodes {
		ids[n.ID] = fmt.Sprintf("n%d", i)
	}
	text := func(s string) string {
		return strings.NewReplacer("&", "#amp;", `"`, "#quot;", "<", "#lt;", ">", "#gt;", "\n", " ").Replace(s)
	}
	shapes := map[string][2]string{"endpoint": {"([", "])"}, "address": {"([", "])"}, "switch": {"[[", "]]"}, "host": {"[/", "/]"}}
	groups, order := byHost(g)
	for _, on := range order {
		indent := "  "
		if on != "" {
			fmt.Fprintf(&b, "  subgraph \"%s\"\n", text(strings.ReplaceAll(on, "/", " ")))
			indent = "    "
		}
		for _, n := range groups[on] {
			shape, ok := shapes[n.Kind]
			if !ok {
				shape = [2]string{"[", "]"}
			}
			all := lines(n)
			for i := range all {
				all[i] = text(all[i])
			}
			fmt.Fprintf(&b, "%s%s%s\"%s\"%s\n", indent, ids[n.ID], shape[0], strings.Join(all, "<br/>"), shape[1])
		}
		if on != "" {
			b.WriteString("  end\n")
		}
	}
	for _, e := range g.Edges {
		arrow := map[api.EdgeKind]string{api.EdgeSteers: "-->", api.EdgeCopies: "-.->", api.EdgeLink: "---", api.EdgeTunnel: "-.-"}[e.Kind]
		if e.Both {
			arrow = "<" + arrow
		}
		if l := text(label(e)); l != "" {
			arrow += `|"` + l + `"|`
		}
		fmt.Fprintf(&b, "  %s %s %s\n", ids[e.From], arrow, ids[e.To])
	}
	for _, n := range g.Nodes {
		if !n.Ready && slices.ContainsFunc(groups[n.On], func(x api.GraphNode) bool { return x.ID == n.ID }) {
			fmt.Fprintf(&b, "  style %s stroke:#c92a2a,stroke-width:2px\n", ids[n.ID])
		}
	}
	return b.String()
}

// Dot is the graph in the language of Graphviz.
func Dot(g api.Graph) string {
	var b strings.Builder
	quote := func(s string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
	}
	b.WriteString("digraph weir {\n  rankdir=LR;\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n  edge [fontname=\"sans-serif\", fontsize=10];\n")
	groups, order := byHost(g)
	for i, on := range order {
		indent := "  "
		if on != "" {
			fmt.Fprintf(&b, "  subgraph cluster_%d {\n    label=%s;\n", i, quote(strings.ReplaceAll(on, "/", " ")))
			indent = "    "
		}
		for _, n := range groups[on] {
			more := ""
			if !n.Ready {
				more = ", color=\"#c92a2a\""
			}
			if n.Kind == "endpoint" || n.Kind == "address" {
				more += ", shape=ellipse"
			}
			fmt.Fprintf(&b, "%s%s [label=%s%s];\n", indent, quote(n.ID), quote(strings.Join(lines(n), "\n")), more)
		}
		if on != "" {
			b.WriteString("  }\n")
		}
	}
	for _, e := range g.Edges {
		more := map[api.EdgeKind]string{api.EdgeCopies: ", style=dashed", api.EdgeLink: ", dir=none", api.EdgeTunnel: ", dir=none, style=dotted"}[e.Kind]
		if e.Both {
			more += ", dir=both"
		}
		fmt.Fprintf(&b, "  %s -> %s [label=%s%s];\n", quote(e.From), quote(e.To), quote(label(e)), more)
	}
	b.WriteString("}\n")
	return b.String()
}
