package report

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"math"
	"strings"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// sharp is how many pixels of the picture a px of the drawing has.
const sharp = 2.0

// raster draws a canvas in light colours.
type raster struct {
	image *image.RGBA
	face  font.Face
}

func (c *canvas) png() ([]byte, error) {
	f, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return nil, fmt.Errorf("font: %w", err)
	}
	face, err := opentype.NewFace(f, &opentype.FaceOptions{Size: fontSize * sharp, DPI: 72, Hinting: font.HintingFull})
	if err != nil {
		return nil, fmt.Errorf("font: %w", err)
	}
	const margin = 8
	r := raster{image.NewRGBA(image.Rect(0, 0, int((c.w+2*margin)*sharp), int((c.h+2*margin)*sharp))), face}
	draw.Draw(r.image, r.image.Bounds(), image.White, image.Point{}, draw.Src)
	for _, m := range c.marks {
		m.move(margin)
		r.mark(m)
	}
	var b bytes.Buffer
	if err := png.Encode(&b, r.image); err != nil {
		return nil, fmt.Errorf("png: %w", err)
	}
	return b.Bytes(), nil
}

func (m *mark) move(by float64) {
	m.x, m.y, m.x2, m.y2 = m.x+by, m.y+by, m.x2+by, m.y2+by
	points := make([][2]float64, len(m.points))
	for i, p := range m.points {
		points[i] = [2]float64{p[0] + by, p[1] + by}
	}
	m.points = points
}

// light is the colour of a class, as colours.css has it.
func light(class string) color.Color {
	name := map[string]string{"text": "ink", "strong": "ink", "one": "ink", "muted": "soft", "axis": "soft", "dot": "s0"}[class]
	if name == "" {
		name = class
	}
	_, rest, ok := strings.Cut(asset("colours.css"), "--"+name+": #")
	if !ok || len(rest) < 6 {
		return color.Black
	}
	var c color.RGBA
	if _, err := fmt.Sscanf(rest[:6], "%02x%02x%02x", &c.R, &c.G, &c.B); err != nil {
		return color.Black
	}
	c.A = 255
	return c
}

func (r raster) mark(m mark) {
	ink := light(m.class)
	switch m.kind {
	case kindLine:
		r.stroke(ink, [][2]float64{{m.x, m.y}, {m.x2, m.y2}}, max(m.width, 1), m.dash)
	case kindPath:
		r.stroke(ink, m.points, m.width, m.dash)
	case kindRect:
		r.fill(ink, [][2]float64{{m.x, m.y}, {m.x2, m.y}, {m.x2, m.y2}, {m.x, m.y2}})
	case kindMarker:
		r.fill(ink, corners(m, 1))
		if !m.solid {
			r.fill(color.White, corners(m, 0.55))
		}
	case kindText:
		text := strings.ReplaceAll(m.text, nbsp, " ")
		d := font.Drawer{Dst: r.image, Src: image.NewUniform(ink), Face: r.face}
		w := float64(d.MeasureString(text)) / 64
		x := m.x * sharp
		switch m.anchor {
		case "middle":
			x -= w / 2
		case "end":
			x -= w
		}
		d.Dot = fixed.Point26_6{X: fixed.Int26_6(x * 64), Y: fixed.Int26_6(m.y * sharp * 64)}
		d.DrawString(text)
	}
}

func corners(m mark, size float64) (out [][2]float64) {
	shape := shapes()[m.shape%len(shapes())]
	if shape == nil {
		for i := range 24 {
			a := float64(i) / 24 * 2 * math.Pi
			shape = append(shape, [2]float64{circle * math.Cos(a), circle * math.Sin(a)})
		}
	}
	for _, p := range shape {
		out = append(out, [2]float64{m.x + p[0]*size, m.y + p[1]*size})
	}
	return out
}

func (r raster) fill(ink color.Color, points [][2]float64) { r.polygons(ink, [][][2]float64{points}) }

// polygons are filled together; only the part of the picture that they cover is touched.
func (r raster) polygons(ink color.Color, all [][][2]float64) {
	low, high := [2]float64{math.Inf(1), math.Inf(1)}, [2]float64{math.Inf(-1), math.Inf(-1)}
	for _, points := range all {
		for _, p := range points {
			for k := range 2 {
				low[k], high[k] = min(low[k], p[k]*sharp), max(high[k], p[k]*sharp)
			}
		}
	}
	if low[0] > high[0] {
		return
	}
	box := image.Rect(int(low[0])-1, int(low[1])-1, int(high[0])+2, int(high[1])+2).Intersect(r.image.Bounds())
	if box.Empty() {
		return
	}
	v := vector.NewRasterizer(box.Dx(), box.Dy())
	for _, points := range all {
		for i, p := range points {
			x, y := float32(p[0]*sharp-float64(box.Min.X)), float32(p[1]*sharp-float64(box.Min.Y))
			if i == 0 {
				v.MoveTo(x, y)
			} else {
				v.LineTo(x, y)
			}
		}
		v.ClosePath()
	}
	v.Draw(r.image, box, image.NewUniform(ink), image.Point{})
}

// stroke draws each piece of a line as a rectangle.
func (r raster) stroke(ink color.Color, points [][2]float64, width float64, dash bool) {
	var pieces [][][2]float64
	piece := func(ax, ay, bx, by float64) {
		length := math.Hypot(bx-ax, by-ay)
		if length == 0 {
			return
		}
		nx, ny := -(by-ay)/length*width/2, (bx-ax)/length*width/2
		pieces = append(pieces, [][2]float64{{ax + nx, ay + ny}, {bx + nx, by + ny}, {bx - nx, by - ny}, {ax - nx, ay - ny}})
	}
	const on, off = 5.0, 4.0
	at := 0.0 // along the whole line
	for i := 1; i < len(points); i++ {
		a, z := points[i-1], points[i]
		length := math.Hypot(z[0]-a[0], z[1]-a[1])
		if !dash {
			piece(a[0], a[1], z[0], z[1])
			continue
		}
		for done := 0.0; done < length; {
			phase := math.Mod(at+done, on+off)
			step := on - phase
			draw := phase < on
			if !draw {
				step = on + off - phase
			}
			step = min(max(step, 0.01), length-done)
			if draw {
				f, g := done/length, (done+step)/length
				piece(a[0]+(z[0]-a[0])*f, a[1]+(z[1]-a[1])*f, a[0]+(z[0]-a[0])*g, a[1]+(z[1]-a[1])*g)
			}
			done += step
		}
		at += length
	}
	r.polygons(ink, pieces)
}
