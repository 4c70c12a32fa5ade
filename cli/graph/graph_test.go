package graph

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir.dev/weir/api"
)

// sample has what can be: copies, circles, an address, names that are markup.
func sample() api.Graph {
	return api.Graph{
		Nodes: []api.GraphNode{
			{ID: "address/any", Kind: "address", Name: "any", Ready: true},
			{ID: "endpoint/alice", Kind: "endpoint", Name: "alice", On: "host/h1", Detail: `<b>"x"&`, Ready: true},
			{ID: "function/fw", Kind: "function", Name: "fw", On: "host/h1", Detail: "firewall", Ready: true},
			{ID: "function/mon", Kind: "function", Name: "mon", On: "host/h2", State: "failed", Message: "no\nimage"},
			{ID: "host/h1", Kind: "host", Name: "h1", Ready: true},
			{ID: "host/h2", Kind: "host", Name: "h2", Ready: true},
		},
		Edges: []api.GraphEdge{
			{From: "endpoint/alice", To: "function/fw", Kind: api.EdgeSteers, Policies: []string{"p"}, Chain: "c", Both: true, Detail: "tcp/80", Ready: true},
			{From: "function/fw", To: "address/any", Kind: api.EdgeSteers, Policies: []string{"p"}, Chain: "c", Ready: true},
			{From: "function/fw", To: "function/mon", Kind: api.EdgeCopies, Policies: []string{"p"}, Chain: "c"},
			{From: "address/any", To: "endpoint/alice", Kind: api.EdgeSteers, Policies: []string{"q"}, Ready: true},
			{From: "host/h1", To: "host/h2", Kind: api.EdgeTunnel, Detail: "VXLAN", Ready: true},
			{From: "endpoint/alice", To: "function/gone", Kind: api.EdgeSteers},
		},
	}
}

func TestSVG(t *testing.T) {
	text := SVG(sample())
	d := xml.NewDecoder(strings.NewReader(text))
	count := map[string]int{}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("no XML: %v\n%s", err, text)
		}
		if e, ok := token.(xml.StartElement); ok {
			for _, a := range e.Attr {
				if a.Name.Local == "class" {
					count[strings.Fields(a.Value)[0]]++
				}
			}
		}
	}
	if count["box"] != 6 || count["edge"] != 5 {
		t.Errorf("%d boxes and %d edges, want 6 and 5 (one leads to what is not there)", count["box"], count["edge"])
	}
	if strings.Contains(text, "<b>") || strings.Contains(text, "NaN") {
		t.Error("a name became markup, or a place is no number")
	}
}

func TestTexts(t *testing.T) {
	mermaid := Mermaid(sample())
	for _, want := range []string{
		"flowchart LR\n", `  subgraph "host h1"`, `n1(["alice<br/>#lt;b#gt;#quot;x#quot;#amp;"])`, `n1 <-->|"p: tcp/80"| n2`, `n2 -.->|"p"| n3`, `n4 -.-|"VXLAN"| n5`, "style n3 stroke:#c92a2a",
	} {
		if !strings.Contains(mermaid, want) {
			t.Errorf("Mermaid lacks %q:\n%s", want, mermaid)
		}
	}
	dot := Dot(sample())
	for _, want := range []string{
		"digraph weir {\n", `label="host h1";`, `"endpoint/alice" [label="alice\n<b>\"x\"&", shape=ellipse];`, `"endpoint/alice" -> "function/fw" [label="p: tcp/80", dir=both];`, `style=dashed`,
	} {
		if !strings.Contains(dot, want) {
			t.Errorf("dot lacks %q:\n%s", want, dot)
		}
	}
}

// Whatever the graph: no two boxes overlap, all are inside of the picture, and without circles all edges go to the right.
func TestArrange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 30).Draw(t, "nodes")
		nodes := make([]api.GraphNode, n)
		for i := range nodes {
			nodes[i].ID = fmt.Sprint(i)
		}
		acyclic := rapid.Bool().Draw(t, "acyclic")
		var edges []api.GraphEdge
		for range rapid.IntRange(0, 60).Draw(t, "edges") {
			from, to := rapid.IntRange(0, n-1).Draw(t, "from"), rapid.IntRange(0, n-1).Draw(t, "to")
			if acyclic && from >= to {
				continue
			}
			edges = append(edges, api.GraphEdge{From: nodes[from].ID, To: nodes[to].ID})
		}
		at, lines, size := arrange(nodes, edges)
		for i, a := range at {
			if a.at.x < boxWidth/2 || a.at.x > size.x-boxWidth/2 || a.at.y < boxHeight/2 || a.at.y > size.y-boxHeight/2 {
				t.Fatalf("node %d at %v is outside of %v", i, a.at, size)
			}
			for j, b := range at[:i] {
				if dx, dy := a.at.x-b.at.x, a.at.y-b.at.y; max(dx, -dx) < boxWidth && max(dy, -dy) < boxHeight {
					t.Fatalf("nodes %d and %d overlap", i, j)
				}
			}
		}
		for _, l := range lines {
			for i := 1; acyclic && i < len(l.through); i++ {
				if l.through[i].x <= l.through[i-1].x {
					t.Fatalf("edge %s -> %s goes back: %v", l.From, l.To, l.through)
				}
			}
		}
	})
}
