package report

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strconv"
)

// Widths of a drawing in px: for a page, and for a telephone of 360 px. Text is never scaled.
const (
	wide   = 720
	narrow = 320
)

const (
	fontSize = 12.0
	charWide = 6.9 // of a sans-serif font of that size, on the safe side
)

// kind of a mark.
type kind int

const (
	kindLine kind = iota
	kindRect
	kindText
	kindMarker
	kindPath
)

// mark is something drawn. class decides its colours, see style: "grid", "axis", "text", "muted", "strong", "band", "one", "void", and s0 to s7
// for series.
type mark struct {
	kind         kind
	class        string
	x, y, x2, y2 float64 // from, to; of a rect its corners
	anchor       string  // of a text: start, middle, end
	text         string
	shape        int // of a marker
	points       [][2]float64
	width        float64
	dash         bool
	hint         string // shown on pointing
	solid        bool
}

// canvas is a drawing of W by H px.
type canvas struct {
	w, h  float64
	marks []mark
}

func (c *canvas) line(class string, x, y, x2, y2 float64) {
	c.marks = append(c.marks, mark{kind: kindLine, class: class, x: x, y: y, x2: x2, y2: y2, width: 1})
}

func (c *canvas) thick(class string, x, y, x2, y2, width float64, hint string) {
	c.marks = append(c.marks, mark{kind: kindLine, class: class, x: x, y: y, x2: x2, y2: y2, width: width, hint: hint})
}

func (c *canvas) rect(class string, x, y, x2, y2 float64) {
	c.marks = append(c.marks, mark{kind: kindRect, class: class, x: x, y: y, x2: x2, y2: y2})
}

func (c *canvas) text(class, anchor string, x, y float64, text string) {
	c.marks = append(c.marks, mark{kind: kindText, class: class, x: x, y: y, anchor: anchor, text: text})
}

func (c *canvas) marker(class string, shape int, x, y float64, solid bool, hint string) {
	c.marks = append(c.marks, mark{kind: kindMarker, class: class, shape: shape, x: x, y: y, solid: solid, hint: hint})
}

func (c *canvas) path(class string, dash bool, points [][2]float64) {
	c.marks = append(c.marks, mark{kind: kindPath, class: class, points: points, width: 1.75, dash: dash})
}

// shapes of markers, the corners around 0,0; nil is a circle. With the colour they tell series apart.
func shapes() [][][2]float64 {
	return [][][2]float64{
		nil,
		{{-4, -4}, {4, -4}, {4, 4}, {-4, 4}},
		{{0, -5}, {5, 4}, {-5, 4}},
		{{0, -5.5}, {5.5, 0}, {0, 5.5}, {-5.5, 0}},
		{{0, 5}, {5, -4}, {-5, -4}},
		{{-5, -1.7}, {-1.7, -1.7}, {-1.7, -5}, {1.7, -5}, {1.7, -1.7}, {5, -1.7}, {5, 1.7}, {1.7, 1.7}, {1.7, 5}, {-1.7, 5}, {-1.7, 1.7}, {-5, 1.7}},
		{{-5, -3}, {-3, -5}, {0, -2}, {3, -5}, {5, -3}, {2, 0}, {5, 3}, {3, 5}, {0, 2}, {-3, 5}, {-5, 3}, {-2, 0}},
	}
}

const circle = 4.2

func px(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// svg of a figure. A file of its own carries its styles; in a page they are there already.
func (c *canvas) svg(f figure, alone bool) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %s %s" role="img" class="figure"`, px(c.w), px(c.h), px(c.w), px(c.h))
	fmt.Fprintf(&b, ` aria-label="%s">`+"\n", html.EscapeString(f.Title+". "+f.About))
	if alone {
		fmt.Fprintf(&b, "<title>%s</title>\n<desc>%s</desc>\n<style>%s%s</style>\n<rect class=\"ground\" width=\"100%%\" height=\"100%%\"/>\n",
			html.EscapeString(f.Title), html.EscapeString(f.About), asset("colours.css"), asset("figure.css"))
	}
	for _, m := range c.marks {
		m.svg(&b)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func (m mark) svg(b *bytes.Buffer) {
	end := "/>\n"
	hint := ""
	if m.hint != "" {
		hint = "<title>" + html.EscapeString(m.hint) + "</title>"
	}
	style := ""
	if m.width != 0 && m.width != 1 {
		style = fmt.Sprintf(` stroke-width="%s"`, px(m.width))
	}
	if m.dash {
		style += ` stroke-dasharray="5 4"`
	}
	switch m.kind {
	case kindLine:
		if hint != "" {
			end = ">" + hint + "</line>\n"
		}
		fmt.Fprintf(b, `<line class="l %s" x1="%s" y1="%s" x2="%s" y2="%s"%s%s`, m.class, px(m.x), px(m.y), px(m.x2), px(m.y2), style, end)
	case kindRect:
		fmt.Fprintf(b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"%s`, m.class, px(min(m.x, m.x2)), px(min(m.y, m.y2)), px(math.Abs(m.x2-m.x)), px(math.Abs(m.y2-m.y)), end)
	case kindText:
		fmt.Fprintf(b, `<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`+"\n", m.class, px(m.x), px(m.y), m.anchor, html.EscapeString(m.text))
	case kindPath:
		b.WriteString(`<polyline class="l ` + m.class + `" points="`)
		for i, p := range m.points {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(px(p[0]) + "," + px(p[1]))
		}
		b.WriteString(`"` + style + end)
	case kindMarker:
		class := "m " + m.class
		if !m.solid {
			class = "m hollow " + m.class
		}
		corners := shapes()[m.shape%len(shapes())]
		tag := "polygon"
		if corners == nil {
			tag = "circle"
			fmt.Fprintf(b, `<circle class="%s" cx="%s" cy="%s" r="%s"`, class, px(m.x), px(m.y), px(circle))
		} else {
			fmt.Fprintf(b, `<polygon class="%s" points="`, class)
			for i, p := range corners {
				if i > 0 {
					b.WriteByte(' ')
				}
				b.WriteString(px(m.x+p[0]) + "," + px(m.y+p[1]))
			}
			b.WriteByte('"')
		}
		if hint != "" {
			end = ">" + hint + "</" + tag + ">\n"
		}
		b.WriteString(end)
	}
}

// scale maps values to px.
type scale struct {
	low, high float64 // of values
	from, to  float64 // px
	log       bool
}

// newScale holds all values with some room at both ends. Positive values that span a decade or more are shown on a logarithmic axis.
func newScale(values []float64, log bool, from, to float64) scale {
	s := scale{low: math.Inf(1), high: math.Inf(-1), from: from, to: to, log: log}
	for _, v := range values {
		if finite(v) && (!log || v > 0) {
			s.low, s.high = min(s.low, v), max(s.high, v)
		}
	}
	if s.low > s.high {
		s.low, s.high = 1, 2
	}
	if log {
		room := max(math.Pow(s.high/s.low, 0.05), 1.02)
		s.low, s.high = s.low/room, s.high*room
		return s
	}
	room := (s.high - s.low) * 0.05
	if room == 0 {
		room = max(math.Abs(s.high)*0.05, 1e-9)
	}
	if s.low >= 0 && s.low-room < 0 || s.low > 0 && s.low < s.high*0.4 {
		s.low = 0
	} else {
		s.low -= room
	}
	s.high += room
	return s
}

func spansDecade(values []float64) bool {
	low, high := math.Inf(1), 0.0
	for _, v := range values {
		if v <= 0 {
			return false
		}
		low, high = min(low, v), max(high, v)
	}
	return high >= 10*low
}

func (s scale) at(v float64) float64 {
	v = min(max(v, s.low), s.high)
	f := (v - s.low) / (s.high - s.low)
	if s.log {
		f = math.Log(v/s.low) / math.Log(s.high/s.low)
	}
	return s.from + f*(s.to-s.from)
}

func (s scale) holds(v float64) bool { return s.low <= v && v <= s.high }

// ticks are at most about n round values.
func (s scale) ticks(n int) (t []float64) {
	n = max(n, 2)
	if s.log && s.high/s.low >= 5 {
		for _, steps := range [][]float64{{1, 2, 5}, {1, 3}, {1}} {
			t = nil
			for e := math.Floor(math.Log10(s.low)); e <= math.Ceil(math.Log10(s.high)); e++ {
				for _, m := range steps {
					if v := m * math.Pow(10, e); s.holds(v) {
						t = append(t, v)
					}
				}
			}
			if len(t) <= n {
				return t
			}
		}
		stride := (len(t) + n - 1) / n
		var some []float64
		for i := 0; i < len(t); i += stride {
			some = append(some, t[i])
		}
		return some
	}
	raw := (s.high - s.low) / float64(n)
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * power
	for _, m := range []float64{1, 2, 5} {
		if m*power >= raw {
			step = m * power
			break
		}
	}
	for i := math.Ceil(s.low / step); i*step <= s.high*(1+1e-12); i++ {
		v, _ := strconv.ParseFloat(strconv.FormatFloat(i*step, 'g', 9, 64), 64) // 0.3, not 0.30000000000000004
		t = append(t, v)
	}
	return t
}

// tick is a value as short as it is exact.
func tick(v float64) string {
	if a := math.Abs(v); a >= 1e4 || a > 0 && a < 1e-3 {
		for _, u := range []struct {
			by   float64
			name string
		}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
			if a >= u.by {
				return strconv.FormatFloat(v/u.by, 'g', 4, 64) + u.name
			}
		}
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return strconv.FormatFloat(v, 'g', 6, 64)
}

// fitted cuts a text to a width in px.
func fitted(text string, width float64) string {
	r := []rune(text)
	n := int(width / charWide)
	if len(r) <= n {
		return text
	}
	return string(r[:max(n-1, 1)]) + "…"
}

func textWidth(s string) float64 { return float64(len([]rune(s))) * charWide }
