package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/goccy/go-yaml"
	"golang.org/x/term"
)

const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
)

var outputs = []string{asTable, asWide, asJSON, asYAML}

// Structured tells whether the output is API objects instead of text for people.
func (a *App) Structured() bool { return a.output == asJSON || a.output == asYAML }

// Wide tells whether a table has all its columns.
func (a *App) Wide() bool { return a.output == asWide }

// MoreOutputs annotates a command that knows formats of its own besides, with commas between.
const MoreOutputs = "weir.dev/outputs"

// Output is the format that was asked for.
func (a *App) Output() string { return a.output }

// With is the same run with another output, which shows the colours of this one.
func (a *App) With(out io.Writer) *App {
	other := *a
	other.Stdout, other.painted = out, a.Colours(a.Stdout)
	return &other
}

// Encode writes an API object as -o wants it: JSON, or YAML with the same keys in the same order.
func (a *App) Encode(v any) error {
	b, err := Marshal(v, "  ")
	if err == nil && a.output == asYAML {
		b, err = yaml.JSONToYAML(b)
	}
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err = a.Stdout.Write(b)
	return err
}

// Marshal is JSON as people read it, with a line's end: no \u003e for >.
func Marshal(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	err := e.Encode(v)
	return b.Bytes(), err
}

// EncodeItem writes one object of a stream: a JSON line, or a YAML document.
func (a *App) EncodeItem(v any) error {
	if a.output == asYAML {
		if _, err := io.WriteString(a.Stdout, "---\n"); err != nil {
			return err
		}
		return a.Encode(v)
	}
	b, err := Marshal(v, "")
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err = a.Stdout.Write(b)
	return err
}

// Terminal reports whether a stream is one, and with how many columns.
func Terminal(w any) (columns int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns <= 0 {
		columns = 80
	}
	return columns, true
}

func (a *App) Colours(w any) bool {
	_, tty := Terminal(w)
	return (tty || a.painted && w == a.Stdout) && !a.noColor && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// colour is an SGR code. All are of equal length, so that coloured columns stay aligned.
type colour string

const (
	plain  colour = "39"
	Red    colour = "31"
	Green  colour = "32"
	Yellow colour = "33"
	Cyan   colour = "36"
)

func (c colour) Paint(s string) string { return "\x1b[" + string(c) + "m" + s + "\x1b[39m" }

// StateColour is the colour of a state's word.
func StateColour(s string) colour {
	switch s {
	case "up", "started", "ready", "active", "connected", "installed", "COMPLETED", "info", "ok", "yes", "create", "+":
		return Green
	case "pending", "starting", "created", "STARTING", "PROCESSING", "degraded", "partial", "deleting", "warning", "update", "~":
		return Yellow
	case "error", "failed", "lost", "refused", "down", "FAILED", "FAILED_TEMP", "ROLLED_BACK", "no", "missing", "delete", "-":
		return Red
	}
	return plain
}

// Table collects rows and writes them aligned.
type Table struct {
	Head     []string
	Coloured []bool // columns whose words are states
	Rows     [][]string
}

func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

func (a *App) PrintTable(t Table) error {
	var out bytes.Buffer // one write: what follows an object must not tear its line
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	colours := a.Colours(a.Stdout)
	line := func(cells []string) {
		for i, c := range cells {
			c = Printable(c)
			if c == "" {
				c = "-"
			}
			if colours && i < len(t.Coloured) && t.Coloured[i] {
				c = StateColour(c).Paint(c)
			}
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, c)
		}
		fmt.Fprintln(w)
	}
	if t.Head != nil {
		line(t.Head)
	}
	for _, r := range t.Rows {
		line(r)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := a.Stdout.Write(out.Bytes())
	return err
}

// Printable keeps what a function or a file says from steering the terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Age is a time span in one or two units, as short as a column wants it.
func Age(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := now.Sub(t).Round(time.Second)
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// Size is a number of bytes with a unit of powers of 1024.
func Size(n int64) string {
	if n < 10<<10 {
		return fmt.Sprint(n)
	}
	units := "KMGTPE"
	f, i := float64(n)/1024, 0
	for f >= 10240 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return fmt.Sprintf("%.0f%c", f, units[i])
}

// ShortDigest is as much of a digest as people compare.
func ShortDigest(d string) string {
	d = strings.TrimPrefix(d, "sha256:")
	return d[:min(len(d), 12)]
}
