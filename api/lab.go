package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"
)

// LabState is how a run of the lab stands.
type LabState string

const (
	LabRunning  LabState = "running"  // a process makes its trials
	LabComplete LabState = "complete" // all trials are made
	LabPartial  LabState = "partial"  // it ended early: what was made counts, and it can go on
	LabDamaged  LabState = "damaged"  // its journal cannot be read: Message says why
)

// LabStudy is a study that comes with Weir.
type LabStudy struct {
	Name   string    `json:"name"`
	Title  string    `json:"title"`
	About  string    `json:"about,omitempty"`
	Source string    `json:"source,omitempty"` // of the published figures
	Parts  []LabPart `json:"parts"`
}

// LabPart is one question of a study.
type LabPart struct {
	Name     string      `json:"name"`
	Question string      `json:"question"`
	Metrics  []string    `json:"metrics"` // "rate in Gb/s, higher is better"
	Factors  []LabFactor `json:"factors"`
	Compare  string      `json:"compare"`            // the factor whose levels are compared
	Baseline string      `json:"baseline"`           // its level that all others are related to
	Trials   int         `json:"trials"`             // of a quick run
	TakesNs  int64       `json:"takes_ns,omitempty"` // of a quick run, as measured on a machine of two CPUs; 0: not known
}

// LabFactor is what varies in a part.
type LabFactor struct {
	Name   string   `json:"name"`
	Levels []string `json:"levels"`
}

// LabStudies is the answer of GET /v1/lab/studies.
type LabStudies struct {
	Items []LabStudy `json:"items"`
}

// LabDoctor is what the machine of the manager can measure: weir lab doctor.
type LabDoctor struct {
	Time     time.Time          `json:"time"` // when the machine was looked at
	Findings []LabFinding       `json:"findings"`
	Studies  []LabStudyFindings `json:"studies"`
}

// LabFinding is one line of the doctor.
type LabFinding struct {
	Topic  string `json:"topic"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// LabStudyFindings says which levels of a study can be measured.
type LabStudyFindings struct {
	Study string            `json:"study"`
	Parts []LabPartFindings `json:"parts"`
}

// LabPartFindings says which levels of a part's compared factor can be measured.
type LabPartFindings struct {
	Part    string     `json:"part"`
	OK      []string   `json:"ok"`
	Skipped []LabLevel `json:"skipped"`
}

// LabLevel is a level that cannot be measured, and why.
type LabLevel struct {
	Level  string `json:"level"`
	Reason string `json:"reason"`
}

// LabRequest is the body of POST /v1/lab/runs.
type LabRequest struct {
	Study string `json:"study"`
	// Only keeps some levels, as --only of weir lab run: "part=stream,wires=1". Empty: all.
	Only string `json:"only,omitempty"`
	Seed int64  `json:"seed,omitempty"` // of the order of trials; 0: random
}

// LabRun is a directory of results.
type LabRun struct {
	Name      string    `json:"name"` // of its directory
	Directory string    `json:"directory"`
	State     LabState  `json:"state"`
	Study     string    `json:"study,omitempty"`
	Title     string    `json:"title,omitempty"`
	Parts     []string  `json:"parts,omitempty"`
	Mode      string    `json:"mode,omitempty"` // quick, full
	Seed      uint64    `json:"seed,omitempty"`
	Version   string    `json:"version,omitempty"`
	Started   time.Time `json:"started,omitzero"`
	Ended     time.Time `json:"ended,omitzero"` // of the last trial
	Planned   int       `json:"planned"`        // trials; 0: not known
	Measured  int       `json:"measured"`       // trials that count
	Void      int       `json:"void"`
	Skipped   int       `json:"skipped"`
	Left      int       `json:"left"` // not made yet
	Bytes     int64     `json:"size_bytes"`
	// Distrusted are parts of which nothing is claimed, and why.
	Distrusted []string     `json:"distrusted,omitempty"`
	Message    string       `json:"message,omitempty"`  // why it ended early, or cannot be read
	Progress   *LabProgress `json:"progress,omitempty"` // of a run that goes on, or was cut off
}

// LabProgress is how far a run is. The lab writes it into the run's directory.
type LabProgress struct {
	Time       time.Time  `json:"time"`
	Began      time.Time  `json:"began"` // of the process that makes the trials
	PID        int        `json:"pid"`   // of that process
	Planned    int        `json:"planned"`
	Done       int        `json:"done"`
	Part       string     `json:"part,omitempty"`
	Question   string     `json:"question,omitempty"`
	Metric     string     `json:"metric,omitempty"` // the first one of the part
	Unit       string     `json:"unit,omitempty"`
	Now        string     `json:"now,omitempty"`          // "setting up ebpf 9"
	PartLeftNs int64      `json:"part_left_ns,omitempty"` // that this part takes more; 0: not known
	Values     []LabValue `json:"values"`                 // of the part's variants, those that have one
	Ended      bool       `json:"ended,omitempty"`        // the process ended in order
}

// LabValue is what was seen of a variant so far.
type LabValue struct {
	Variant string  `json:"variant"`
	Again   bool    `json:"again,omitempty"` // the duplicate of the baseline
	Median  float64 `json:"median"`
	Last    float64 `json:"last"`
	N       int     `json:"n"` // trials that count; 0: Median and Last are none
	Void    int     `json:"void,omitempty"`
}

// LabRuns is the answer of GET /v1/lab/runs.
type LabRuns struct {
	Directory string   `json:"directory"`
	Items     []LabRun `json:"items"`          // the newest first
	More      int      `json:"more,omitempty"` // directories that are not listed
	Bytes     int64    `json:"size_bytes"`
	MaxBytes  int64    `json:"max_bytes"` // with more than that no run is started
	// Refused says why no run can be started now; empty: one can.
	Refused string `json:"refused,omitempty"`
}

// LabComparison is the answer of GET /v1/lab/compare.
type LabComparison struct {
	A           string    `json:"a"`
	B           string    `json:"b"`
	Items       []LabPair `json:"items"`
	Differences []string  `json:"differences"` // of the runs: what else may be in the ratios
}

// LabPair is a metric of one level in two runs.
type LabPair struct {
	Part   string  `json:"part"`
	Group  string  `json:"group,omitempty"`
	Level  string  `json:"level"`
	Metric string  `json:"metric"`
	Unit   string  `json:"unit"`
	Better string  `json:"better"`
	A      LabSide `json:"a"`
	B      LabSide `json:"b"`
	Ratio  float64 `json:"ratio"` // B by A
	// Range is what the ratio is if both medians lie in their intervals: wider than a 95 % interval. It leaves out 1 where the intervals are apart.
	Range  *LabRange `json:"range,omitempty"`
	Apart  bool      `json:"apart"`             // the intervals do not overlap
	TooFew bool      `json:"too_few,omitempty"` // blocks for an interval, in one of them
}

// LabSide is one of two runs: the median of a level, and its ratio to the baseline of the same run.
type LabSide struct {
	Median   float64   `json:"median"`
	Interval *LabRange `json:"interval,omitempty"` // 95 %, of the median
	Ratio    float64   `json:"ratio,omitempty"`    // to the baseline of its run, of trials that took turns; 0: none, or this is the baseline
	RatioIn  *LabRange `json:"ratio_interval,omitempty"`
	Verdict  string    `json:"verdict"` // baseline, higher, lower, equivalent, inconclusive ...
}

// LabRange has both ends. High is absent where there is no upper end.
type LabRange struct {
	Low  float64  `json:"low"`
	High *float64 `json:"high,omitempty"`
}

// LabStudies lists the studies that a run can be started of.
func (c *Client) LabStudies(ctx context.Context) (out LabStudies, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/lab/studies", nil, &out)
	return out, err
}

// LabDoctor looks at what the manager's machine can measure. It takes some seconds, unless that was done a short time ago.
func (c *Client) LabDoctor(ctx context.Context) (out LabDoctor, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/lab/doctor", nil, &out)
	return out, err
}

// LabRuns lists runs.
func (c *Client) LabRuns(ctx context.Context) (out LabRuns, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/lab/runs", nil, &out)
	return out, err
}

// LabRun is one run, with its progress.
func (c *Client) LabRun(ctx context.Context, name string) (out LabRun, err error) {
	_, err = c.call(ctx, http.MethodGet, labRun(name), nil, &out)
	return out, err
}

// StartLab starts a quick run on the manager's machine.
func (c *Client) StartLab(ctx context.Context, r LabRequest) (out LabRun, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/lab/runs", r, &out)
	return out, err
}

// ResumeLab goes on with a run that ended early.
func (c *Client) ResumeLab(ctx context.Context, name string) (out LabRun, err error) {
	_, err = c.call(ctx, http.MethodPost, labRun(name)+"/resume", nil, &out)
	return out, err
}

// CancelLab ends a run in order. It returns at once.
func (c *Client) CancelLab(ctx context.Context, name string) (out LabRun, err error) {
	_, err = c.call(ctx, http.MethodPost, labRun(name)+"/cancel", nil, &out)
	return out, err
}

// DeleteLab deletes a run's directory.
func (c *Client) DeleteLab(ctx context.Context, name string) error {
	_, err := c.call(ctx, http.MethodDelete, labRun(name), nil, nil)
	return err
}

// CompareLab sets two runs side by side.
func (c *Client) CompareLab(ctx context.Context, a, b string) (out LabComparison, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/lab/compare?"+url.Values{"a": {a}, "b": {b}}.Encode(), nil, &out)
	return out, err
}

// maxLabReport bounds a report in bytes.
const maxLabReport = 64 << 20

// LabReport is the report of a run, an HTML page that needs no other file.
func (c *Client) LabReport(ctx context.Context, name string) ([]byte, error) {
	resp, err := c.do(ctx, http.MethodGet, labRun(name)+"/report", nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(io.LimitReader(resp.Body, maxLabReport))
}

func labRun(name string) string { return "/v1/lab/runs/" + url.PathEscape(name) }
