package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"
)

// FlowVerdict is what a function has said of a flow.
type FlowVerdict string

const (
	FlowPass FlowVerdict = "pass" // its packets pass the function by
	FlowDrop FlowVerdict = "drop" // they are dropped before it
)

// SettledFlow is one direction of a flow that a function has settled, at the port where its packets would enter the function.
type SettledFlow struct {
	Verdict     FlowVerdict  `json:"verdict"`
	Rewrite     *FlowRewrite `json:"rewrite,omitempty"` // of pass: the switch rewrites its packets as the function would
	At          string       `json:"at"`                // port of the function: in, out or tap
	Protocol    string       `json:"protocol"`          // tcp, udp, icmp or icmpv6
	Source      string       `json:"source"`            // address
	Destination string       `json:"destination"`
	SourcePort  uint16       `json:"source_port,omitempty"`
	DestPort    uint16       `json:"destination_port,omitempty"`
	EchoID      *uint16      `json:"echo_id,omitempty"` // of icmp and icmpv6, which are echo
	Reply       bool         `json:"reply,omitempty"`   // of icmp and icmpv6: these are the replies
	VLAN        uint16       `json:"vlan,omitempty"`    // id of the tag; 0: none
	Since       time.Time    `json:"since"`             // the verdict
	IdleNs      int64        `json:"idle_ns"`           // since the last packet; up to half a second is not noticed
	Missed      Counter      `json:"missed"`            // did not enter the function, since the verdict
	Generation  uint32       `json:"generation"`        // of the function's verdicts: a new instance, a reset or another rule at the function ends all of the former ones
}

// FlowRewrite is how the packets of a settled flow leave: with another address and port at one end.
type FlowRewrite struct {
	End     string `json:"end"` // source or destination
	Address string `json:"address"`
	Port    uint16 `json:"port"`
	MAC     string `json:"mac,omitempty"` // of the destination from now on; empty: as it was
}

// SettledFlows is the answer of GET /v1/functions/NAME/flows: read live from the switch, not stored.
type SettledFlows struct {
	Function string        `json:"function"`
	Host     string        `json:"host"`
	Time     time.Time     `json:"time"`
	Total    int           `json:"total"` // directions that are settled now; flows has no more than were asked for
	Flows    []SettledFlow `json:"flows"`
}

// Bounds and order of what is asked for.
const (
	MaxFlows     = 1000
	DefaultFlows = 50
	FlowsBiggest = "bytes" // those with most bytes first
	FlowsNewest  = "newest"
)

// FlowOptions select from the flows that a function has settled.
type FlowOptions struct {
	Limit int    // so many at most; 0: DefaultFlows
	Sort  string // FlowsBiggest, or FlowsNewest; "": FlowsBiggest
}

// Query has the options that are not zero.
func (o FlowOptions) Query() url.Values {
	q := url.Values{}
	if o.Limit != 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	if o.Sort != "" {
		q.Set("sort", o.Sort)
	}
	return q
}

// ParseFlows reads what Query wrote, checks it and fills in the defaults.
func ParseFlows(q url.Values) (FlowOptions, error) {
	o := FlowOptions{Limit: DefaultFlows, Sort: FlowsBiggest}
	refuse := func(field, want string) error {
		return Refuse(http.StatusBadRequest, "flows: "+field+": want "+want, Problem{Path: "query." + field, Message: fmt.Sprintf("%q is no such value", q.Get(field)), Hint: "want " + want})
	}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > MaxFlows {
			return o, refuse("limit", fmt.Sprintf("1 to %d", MaxFlows))
		}
		o.Limit = n
	}
	switch text := q.Get("sort"); text {
	case "":
	case FlowsBiggest, FlowsNewest:
		o.Sort = text
	default:
		return o, refuse("sort", FlowsBiggest+" or "+FlowsNewest)
	}
	return o, nil
}

// Check says what no host may answer. Empty: nothing.
func (f SettledFlow) Check() string {
	echo := f.Protocol == "icmp" || f.Protocol == "icmpv6"
	switch {
	case f.Verdict != FlowPass && f.Verdict != FlowDrop:
		return fmt.Sprintf("verdict %.20q: want %s or %s", f.Verdict, FlowPass, FlowDrop)
	case f.At != "in" && f.At != "out" && f.At != "tap":
		return fmt.Sprintf("at %.20q: want in, out or tap", f.At)
	case !echo && f.Protocol != "tcp" && f.Protocol != "udp":
		return fmt.Sprintf("protocol %.20q: want tcp, udp, icmp or icmpv6", f.Protocol)
	case echo != (f.EchoID != nil):
		return f.Protocol + ": echo_id belongs to icmp and icmpv6"
	}
	addresses := []string{f.Source, f.Destination}
	if w := f.Rewrite; w != nil {
		if f.Verdict != FlowPass || echo || w.End != "source" && w.End != "destination" {
			return fmt.Sprintf("rewrite of end %.20q: want source or destination, of a flow of tcp or udp that passes", w.End)
		}
		if _, err := net.ParseMAC(w.MAC); w.MAC != "" && err != nil {
			return fmt.Sprintf("rewrite: MAC address %.40q: want one such as 02:00:00:00:00:01", w.MAC)
		}
		addresses = append(addresses, w.Address)
	}
	for _, text := range addresses {
		if a, err := netip.ParseAddr(text); err != nil || a.Zone() != "" {
			return fmt.Sprintf("address %.40q: want one such as 10.9.0.1 or fd57::1", text)
		}
	}
	return ""
}

// SettledFlows reads the flows that a function has settled, from the switch of its host.
func (c *Client) SettledFlows(ctx context.Context, function string, o FlowOptions) (SettledFlows, error) {
	var out SettledFlows
	_, err := c.call(ctx, http.MethodGet, "/v1/functions/"+url.PathEscape(function)+"/flows?"+o.Query().Encode(), nil, &out)
	return out, err
}
