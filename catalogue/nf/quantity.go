package nf

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Quantities of configurations. They are texts with a unit.
type (
	Duration time.Duration // "50ms", as time.ParseDuration reads it
	Rate     uint64        // bits a second: "10Mbit"
	Size     uint64        // bytes: "64KB"; K is 1000
	Share    float64       // 0 to 1: "0.5%"
)

var (
	rates  = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(|k|M|G)bit$`)
	sizes  = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(|K|M)B$`)
	shares = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)()%$`)
)

// UnmarshalJSON reads a text as "5s".
func (d *Duration) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return fmt.Errorf("%s: want a text as \"5s\"", raw)
	}
	v, err := time.ParseDuration(text)
	*d = Duration(v)
	return err
}

// UnmarshalJSON reads a text as "10Mbit"; more than 0.
func (r *Rate) UnmarshalJSON(raw []byte) error {
	v, err := quantity(raw, rates, "10Mbit")
	if err == nil && v == 0 {
		err = fmt.Errorf("%s: want more than 0", raw)
	}
	*r = Rate(v)
	return err
}

// UnmarshalJSON reads a text as "32KB"; more than 0.
func (s *Size) UnmarshalJSON(raw []byte) error {
	v, err := quantity(raw, sizes, "32KB")
	if err == nil && v == 0 {
		err = fmt.Errorf("%s: want more than 0", raw)
	}
	*s = Size(v)
	return err
}

// UnmarshalJSON reads a text as "0.5%".
func (s *Share) UnmarshalJSON(raw []byte) error {
	v, err := quantity(raw, shares, "0.5%")
	if err == nil && v > 100 {
		err = fmt.Errorf("%s: want at most 100%%", raw)
	}
	*s = Share(v / 100)
	return err
}

func quantity(raw []byte, form *regexp.Regexp, example string) (float64, error) {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return 0, fmt.Errorf("%s: want a text as %q", raw, example)
	}
	m := form.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("%q: want it as %q", text, example)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", text, err)
	}
	return v * map[string]float64{"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}[m[2]], nil
}

// Ports reads one port, "443", or a range, "5060-5061"; false: they are none of 1 to 65535, or the higher one is first.
func Ports(text string) (first, last uint16, ok bool) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	a, err1 := strconv.ParseUint(from, 10, 16)
	b, err2 := strconv.ParseUint(to, 10, 16)
	return uint16(a), uint16(b), err1 == nil && err2 == nil && a > 0 && a <= b
}
