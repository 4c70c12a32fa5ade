package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	nbsp = "\u00a0"
	none = "–" // in tables: there is none
)

// number with three significant digits, thousands apart.
func number(v float64) string {
	if !finite(v) {
		return none
	}
	a := math.Abs(v)
	if a == 0 {
		return "0"
	}
	if a >= 999.5 {
		s := strconv.FormatFloat(a, 'f', 0, 64)
		if len(s) > 12 {
			return fmt.Sprintf("%.3g", v)
		}
		for i := len(s) - 3; i > 0; i -= 3 {
			s = s[:i] + nbsp + s[i:]
		}
		if v < 0 {
			s = "-" + s
		}
		return s
	}
	if a < 1e-4 {
		return fmt.Sprintf("%.2e", v)
	}
	return strconv.FormatFloat(v, 'f', max(0, 2-int(math.Floor(math.Log10(a)+1e-9))), 64)
}

func optional(v *float64) string {
	if v == nil {
		return none
	}
	return number(*v)
}

func quantity(v float64, unit string) string {
	return strings.TrimSpace(number(v) + nbsp + unitText(unit))
}

// unitText is a unit as it is printed: us is µs.
func unitText(unit string) string {
	if unit == "us" || strings.HasPrefix(unit, "us ") || strings.HasPrefix(unit, "us/") {
		return "µ" + unit[1:]
	}
	return unit
}

// times is a ratio: "3.10×".
func times(v float64) string {
	switch {
	case !finite(v) || v == 0:
		return none
	case v >= 100:
		return fmt.Sprintf("%.0f×", v)
	case v >= 10:
		return fmt.Sprintf("%.1f×", v)
	case v >= 0.1:
		return fmt.Sprintf("%.2f×", v)
	}
	return fmt.Sprintf("%.3g×", v)
}

func share(v float64) string { return fmt.Sprintf("%.1f%s%%", v*100, nbsp) }

// offText of a ratio above 1: "±2.1 %".
func offText(v float64) string {
	if v == 0 {
		return none
	}
	return "±" + share(v-1)
}

func pText(p float64) string {
	if p < 0.001 {
		return "<0.001"
	}
	return fmt.Sprintf("%.3f", p)
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

func clock(t time.Time) string {
	if t.IsZero() {
		return none
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

func spaced(group string) string { return strings.ReplaceAll(group, ",", ", ") }

func levelsText(levels map[string]string) string {
	var s []string
	for _, k := range slices.Sorted(maps.Keys(levels)) {
		s = append(s, k+"="+levels[k])
	}
	return strings.Join(s, ", ")
}
