package api

import (
	"context"
	"net/http"
)

// Graph is the answer of GET /v1/graph: what steers which traffic where, and what it runs on.
type Graph struct {
	Nodes []GraphNode `json:"nodes"`
	Edges []GraphEdge `json:"edges"`
}

// GraphNode is an object, or an address that a policy names.
type GraphNode struct {
	ID      string `json:"id"`   // "function/fw", "address/10.0.0.0/8", "address/any"
	Kind    string `json:"kind"` // endpoint, function, host, switch, address
	Name    string `json:"name"`
	On      string `json:"on,omitempty"`     // ID of the host where it is; of a station of the fabric, of its switch
	Detail  string `json:"detail,omitempty"` // an image, an address
	State   string `json:"state,omitempty"`
	Ready   bool   `json:"ready"`
	Message string `json:"message,omitempty"` // why it is not ready
}

// EdgeKind is what an edge of a Graph means.
type EdgeKind string

const (
	EdgeSteers EdgeKind = "steers" // packets of policies go from one to the other
	EdgeCopies EdgeKind = "copies" // a copy of them does
	EdgeLink   EdgeKind = "link"   // a cable: between switches, or of a host's uplink or a station
	EdgeTunnel EdgeKind = "tunnel" // between hosts
)

// GraphEdge leads from one node to another. Links and tunnels have no direction.
type GraphEdge struct {
	From     string   `json:"from"`
	To       string   `json:"to"`
	Kind     EdgeKind `json:"kind"`
	Policies []string `json:"policies,omitempty"` // whose packets go here
	Chain    string   `json:"chain,omitempty"`
	Both     bool     `json:"both,omitempty"`   // replies go back the same way
	Detail   string   `json:"detail,omitempty"` // what is matched; ports at both ends of a link
	Ready    bool     `json:"ready"`            // of policies: all are in force
}

// GraphOptions say what a graph shows.
type GraphOptions struct {
	Underlay bool // only hosts and switches, and the cables and tunnels between them
}

// Graph reads what there is as a graph.
func (c *Client) Graph(ctx context.Context, o GraphOptions) (Graph, error) {
	path := "/v1/graph"
	if o.Underlay {
		path += "?underlay=true"
	}
	var out Graph
	_, err := c.call(ctx, http.MethodGet, path, nil, &out)
	return out, err
}
