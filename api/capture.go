package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// CaptureType is the media type of captures: pcapng.
const CaptureType = "application/x-pcapng"

// Bounds of a capture.
const (
	MaxCaptureFilter   = 200 // instructions
	MaxCaptureSnaplen  = 256 << 10
	MaxCaptureDuration = 24 * time.Hour
	MaxCaptureBytes    = 64 << 30
	MaxCaptureRate     = 50_000 // frames a second; what is beyond is dropped from the capture
)

// CaptureDefaults are in force where CaptureOptions has zero.
var CaptureDefaults = CaptureOptions{Duration: 10 * time.Minute, Bytes: 1 << 30, Snaplen: MaxCaptureSnaplen}

// CaptureOptions say what of a port's frames is wanted.
type CaptureOptions struct {
	Port     string        // in, out or tap of a function; "": tap, or in
	Count    int           // frames; 0: as many as come
	Duration time.Duration // after which it ends
	Bytes    int64         // of frames, after which it ends
	Snaplen  int           // bytes of each frame
	Filter   string        // classic BPF as instructions "N,CODE JT JF K,...": what `tcpdump -ddd` prints, with commas for line ends; "" everything
}

// Query has the options that are not zero.
func (o CaptureOptions) Query() url.Values {
	q := url.Values{}
	set := func(name, value string, zero bool) {
		if !zero {
			q.Set(name, value)
		}
	}
	set("port", o.Port, o.Port == "")
	set("count", strconv.Itoa(o.Count), o.Count == 0)
	set("duration", o.Duration.String(), o.Duration == 0)
	set("bytes", strconv.FormatInt(o.Bytes, 10), o.Bytes == 0)
	set("snaplen", strconv.Itoa(o.Snaplen), o.Snaplen == 0)
	set("filter", o.Filter, o.Filter == "")
	return q
}

// ParseCapture reads what Query wrote, checks it and fills in the defaults.
func ParseCapture(q url.Values) (o CaptureOptions, err error) {
	refuse := func(field, want string) error {
		return Refuse(http.StatusBadRequest, "capture: "+field+": want "+want, Problem{Path: "query." + field, Message: fmt.Sprintf("%q is no such value", q.Get(field)), Hint: "want " + want})
	}
	number := func(field string, most, otherwise int64) int64 {
		text := q.Get(field)
		if text == "" {
			return otherwise
		}
		n, perr := strconv.ParseInt(text, 10, 64)
		if (perr != nil || n < 1 || n > most) && err == nil {
			err = refuse(field, fmt.Sprintf("1 to %d", most))
		}
		return n
	}
	o = CaptureOptions{Port: q.Get("port"), Filter: q.Get("filter")}
	o.Count = int(number("count", 1<<40, 0))
	o.Bytes = number("bytes", MaxCaptureBytes, CaptureDefaults.Bytes)
	o.Snaplen = int(number("snaplen", MaxCaptureSnaplen, int64(CaptureDefaults.Snaplen)))
	if err != nil {
		return o, err
	}
	o.Duration = CaptureDefaults.Duration
	if text := q.Get("duration"); text != "" {
		if o.Duration, err = time.ParseDuration(text); err != nil || o.Duration <= 0 || o.Duration > MaxCaptureDuration {
			return o, refuse("duration", fmt.Sprintf("a time of at most %s, such as 30s", MaxCaptureDuration))
		}
	}
	switch o.Port {
	case "", "in", "out", "tap":
	default:
		return o, refuse("port", "in, out or tap")
	}
	if _, ferr := ParseFilter(o.Filter); ferr != nil {
		return o, Refuse(http.StatusBadRequest, "capture: filter: "+ferr.Error(), Problem{Path: "query.filter", Message: ferr.Error(), Hint: "want classic BPF as `tcpdump -ddd` prints it, with commas for line ends"})
	}
	return o, nil
}

// FilterInstruction is one of classic BPF.
type FilterInstruction struct {
	Code   uint16
	JT, JF uint8
	K      uint32
}

// ParseFilter reads a filter as CaptureOptions has it; "" is none. The kernel checks what it does.
func ParseFilter(text string) (out []FilterInstruction, err error) {
	if text == "" {
		return nil, nil
	}
	lines := strings.Split(strings.Trim(text, ", \n"), ",")
	n, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || n != len(lines)-1 || n < 1 || n > MaxCaptureFilter {
		return nil, fmt.Errorf("want the number of instructions, 1 to %d, and then as many", MaxCaptureFilter)
	}
	for i, l := range lines[1:] {
		f := strings.Fields(l)
		if len(f) != 4 {
			return nil, fmt.Errorf("instruction %d: want CODE JT JF K", i+1)
		}
		var v [4]uint64
		for j, bits := range []int{16, 8, 8, 32} {
			if v[j], err = strconv.ParseUint(f[j], 10, bits); err != nil {
				return nil, fmt.Errorf("instruction %d: %q is no number of %d bits", i+1, f[j], bits)
			}
		}
		out = append(out, FilterInstruction{uint16(v[0]), uint8(v[1]), uint8(v[2]), uint32(v[3])})
	}
	return out, nil
}

// Capture streams the frames of a function's port, or of an endpoint's, as pcapng. The caller closes it.
func (c *Client) Capture(ctx context.Context, kind Kind, name string, o CaptureOptions) (io.ReadCloser, error) {
	resp, err := c.do(ctx, http.MethodGet, "/v1/"+string(kind)+"s/"+url.PathEscape(name)+"/capture?"+o.Query().Encode(), nil, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}
