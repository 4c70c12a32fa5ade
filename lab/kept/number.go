package kept

import (
	"math"
	"strconv"
	"strings"
)

// digits that a figure shows.
const digits = 3

// number with three significant digits, thousands apart.
func number(v float64) string {
	if math.IsInf(v, 1) {
		return "∞"
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	if v == 0 {
		return "0"
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'e', digits-1, 64), 64) // what FormatFloat writes
	places := max(0, digits-1-int(math.Floor(math.Log10(math.Abs(rounded))+1e-9)))
	text := strconv.FormatFloat(rounded, 'f', places, 64)
	whole, fraction, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction == "" {
		return whole
	}
	return whole + "." + fraction
}
