package api

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Metric is one number that a function tells of itself.
type Metric struct {
	Name   string            `json:"name"` // as the function says it; /metrics puts MetricPrefix before it
	Help   string            `json:"help"`
	Kind   MetricKind        `json:"kind"`
	Labels map[string]string `json:"labels,omitempty"`
	Value  float64           `json:"value"`
}

// MetricKind says how a number changes.
type MetricKind string

// Kinds of numbers.
const (
	MetricCounter MetricKind = "counter" // only grows, since the function's start
	MetricGauge   MetricKind = "gauge"
)

// FunctionMetrics is the answer of GET /v1/functions/NAME/metrics: what the function told last. Not stored.
type FunctionMetrics struct {
	Function string    `json:"function"`
	Host     string    `json:"host"`
	Time     time.Time `json:"time,omitzero"` // when it told them
	Metrics  []Metric  `json:"metrics"`
}

// Bounds of what a function may tell.
const (
	MetricPrefix     = "weir_nf_"
	MaxMetrics       = 200 // numbers of a function
	maxMetricLabels  = 4   // of a number
	maxMetricHelp    = 200 // bytes
	maxMetricValue   = 128 // bytes of a label's value
	maxMetricNameLen = 64
)

var (
	metricName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	// reservedLabels are set by Weir, or mean something in Prometheus.
	reservedLabels = []string{"function", "host", "instance", "job", "le", "quantile"}
)

// CheckMetrics says what is wrong with the numbers of one function; "": nothing.
func CheckMetrics(all []Metric) string {
	if len(all) > MaxMetrics {
		return fmt.Sprintf("%d numbers, want at most %d", len(all), MaxMetrics)
	}
	seen, helps := map[string]bool{}, map[string]string{}
	for _, m := range all {
		if wrong := m.check(); wrong != "" {
			return wrong
		}
		if help, ok := helps[m.Name]; ok && help != m.Help {
			return m.Name + ": two different HELP texts"
		}
		helps[m.Name] = m.Help
		id := m.ID()
		if seen[id] {
			return id + ": given twice"
		}
		seen[id] = true
	}
	return ""
}

// ID tells one number of a function from another: name{label="value"}.
func (m Metric) ID() string {
	var labels []string
	for name, value := range m.Labels {
		labels = append(labels, fmt.Sprintf("%s=%q", name, value))
	}
	if len(labels) == 0 {
		return m.Name
	}
	slices.Sort(labels)
	return m.Name + "{" + strings.Join(labels, ",") + "}"
}

func (m Metric) check() string {
	counts := strings.HasSuffix(m.Name, "_total")
	switch {
	case len(m.Name) > maxMetricNameLen || !metricName.MatchString(m.Name):
		return fmt.Sprintf("name %.80q: want at most %d of a-z, 0-9 and _, beginning with a letter", m.Name, maxMetricNameLen)
	case m.Kind != MetricCounter && m.Kind != MetricGauge:
		return fmt.Sprintf("%s: TYPE %.20q: want counter or gauge", m.Name, m.Kind)
	case counts != (m.Kind == MetricCounter):
		return m.Name + ": names of counters end in _total, and others do not"
	case m.Help == "" || len(m.Help) > maxMetricHelp || !utf8.ValidString(m.Help):
		return fmt.Sprintf("%s: want a HELP text of at most %d bytes", m.Name, maxMetricHelp)
	case math.IsNaN(m.Value) || math.IsInf(m.Value, 0) || counts && m.Value < 0:
		return fmt.Sprintf("%s: value %g: want a finite number, and of a counter none below 0", m.Name, m.Value)
	case len(m.Labels) > maxMetricLabels:
		return fmt.Sprintf("%s: %d labels, want at most %d", m.Name, len(m.Labels), maxMetricLabels)
	}
	for name, value := range m.Labels {
		switch {
		case len(name) > maxMetricNameLen || !metricName.MatchString(name) || strings.HasPrefix(name, "exported_"):
			return fmt.Sprintf("%s: label %.80q: want at most %d of a-z, 0-9 and _, beginning with a letter and not with exported_", m.Name, name, maxMetricNameLen)
		case slices.Contains(reservedLabels, name):
			return fmt.Sprintf("%s: label %s: it is reserved (%s)", m.Name, name, strings.Join(reservedLabels, ", "))
		case len(value) > maxMetricValue || !utf8.ValidString(value):
			return fmt.Sprintf("%s: value of label %s: want at most %d bytes of text", m.Name, name, maxMetricValue)
		}
	}
	return ""
}

// FunctionMetrics reads what a function told last of itself.
func (c *Client) FunctionMetrics(ctx context.Context, name string) (FunctionMetrics, error) {
	var out FunctionMetrics
	_, err := c.call(ctx, http.MethodGet, "/v1/functions/"+url.PathEscape(name)+"/metrics", nil, &out)
	return out, err
}
