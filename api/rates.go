package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Rate is how fast a Counter grows.
type Rate struct {
	PacketsPerS float64 `json:"packets_per_s"`
	BitsPerS    float64 `json:"bits_per_s"`
}

// Rates is the answer of GET /v1/rates: what all hosts' switches do now, from two readings of their counters about a second apart. It is not stored.
type Rates struct {
	Time      time.Time       `json:"time"` // of the later reading
	Hosts     []HostRates     `json:"hosts"`
	Functions []FunctionRates `json:"functions"`
	Ports     []PortRates     `json:"ports"`
	Rules     []RuleRates     `json:"rules"`
	Policies  []PolicyRates   `json:"policies"`
}

// PolicyRates of one policy: what its rules catch at hosts, each frame once, where it enters. What fabric switches catch is not counted here.
type PolicyRates struct {
	Name    string `json:"name"`
	Forward Rate   `json:"forward"`
	Reverse Rate   `json:"reverse"` // replies
}

// Traffic is the answer of GET /v1/traffic: what endpoints have sent in the last hour. It begins anew with the manager.
type Traffic struct {
	EveryNs int64          `json:"every_ns"` // between two points
	Points  []TrafficPoint `json:"points"`   // the oldest first
}

// TrafficPoint is the mean of the time since the point before.
type TrafficPoint struct {
	Time        time.Time `json:"time"`
	Hosts       int       `json:"hosts"` // that it is of
	PacketsPerS float64   `json:"packets_per_s"`
	BitsPerS    float64   `json:"bits_per_s"`
	DroppedPerS float64   `json:"dropped_per_s"` // packets, at any port
}

// HostRates says between which readings a host's rates are.
type HostRates struct {
	Host     string `json:"host"`
	PeriodNs int64  `json:"period_ns,omitempty"` // between both readings; 0: there are no rates
	Message  string `json:"message,omitempty"`   // why there are none
}

// PortRates of one switch port. Rx is what the switch receives there.
type PortRates struct {
	Host         string    `json:"host"`
	Name         string    `json:"name"` // endpoint/alice, function/fw/in
	Link         string    `json:"link,omitempty"`
	State        LinkState `json:"state,omitempty"`
	Rx           Rate      `json:"rx"`
	Tx           Rate      `json:"tx"`
	DroppedPerS  float64   `json:"dropped_per_s"`
	DroppedTotal uint64    `json:"dropped_total"`
}

// RuleRates of one installed rule.
type RuleRates struct {
	Host   string `json:"host"`
	Cookie string `json:"cookie"`
	Policy string `json:"policy,omitempty"`
	Chain  string `json:"chain,omitempty"`
	Note   string `json:"note,omitempty"`
	Hits   Rate   `json:"hits"`
}

// FunctionRates is what a function gets and gives at all of its ports, and how it is.
type FunctionRates struct {
	Name        string        `json:"name"`
	Host        string        `json:"host,omitempty"`
	Image       string        `json:"image,omitempty"`
	State       FunctionState `json:"state,omitempty"`
	Healthy     bool          `json:"healthy"`
	Restarts    int           `json:"restarts"`
	RTTns       int64         `json:"rtt_ns,omitempty"` // of the last probe
	In          Rate          `json:"in"`
	Out         Rate          `json:"out"`
	DroppedPerS float64       `json:"dropped_per_s"`
	CPUs        float64       `json:"cpus,omitempty"`         // processors that it keeps busy: 0.25 is a quarter of one
	MemoryBytes uint64        `json:"memory_bytes,omitempty"` // 0: not known
}

// Rates reads the rates once, which takes about a second.
func (c *Client) Rates(ctx context.Context) (Rates, error) {
	var out Rates
	_, err := c.call(ctx, http.MethodGet, "/v1/rates", nil, &out)
	return out, err
}

// Traffic of the last hour.
func (c *Client) Traffic(ctx context.Context) (Traffic, error) {
	var out Traffic
	_, err := c.call(ctx, http.MethodGet, "/v1/traffic", nil, &out)
	return out, err
}

// WatchRates hands on the rates about once a second until ctx ends, show fails or the connection does.
func (c *Client) WatchRates(ctx context.Context, show func(Rates) error) error {
	resp, err := c.do(ctx, http.MethodGet, "/v1/rates?watch=true", http.Header{"Accept": {"text/event-stream"}}, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxWatchLine)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var r Rates
		if err := json.Unmarshal(data, &r); err != nil {
			return fmt.Errorf("rates: %w", err)
		}
		if err := show(r); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := lines.Err(); err != nil {
		return c.unreachable(ctx, err)
	}
	return fmt.Errorf("%w: the manager ended the watch", ErrUnreachable)
}
