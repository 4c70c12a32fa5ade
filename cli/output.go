package cli

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

// structured tells whether the output is API objects instead of text for people.
func (a *app) structured() bool { return a.output == asJSON || a.output == asYAML }

// encode writes an API object as -o wants it: JSON, or YAML with the same keys in the same order.
func (a *app) encode(v any) error {
	b, err := marshal(v, "  ")
	if err == nil && a.output == asYAML {
		b, err = yaml.JSONToYAML(b)
	}
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err = a.Stdout.Write(b)
	return err
}

// marshal is JSON as people read it, with a line's end: no \u003e for >.
func marshal(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	err := e.Encode(v)
	return b.Bytes(), err
}

// encodeItem writes one object of a stream: a JSON line, or a YAML document.
func (a *app) encodeItem(v any) error {
	if a.output == asYAML {
		if _, err := io.WriteString(a.Stdout, "---\n"); err != nil {
			return err
		}
		return a.encode(v)
	}
	b, err := marshal(v, "")
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err = a.Stdout.Write(b)
	return err
}

// terminal reports whether a stream is one, and with how many columns.
func terminal(w any) (columns int, ok bool) {
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

func (a *app) colours(w any) bool {
	_, tty := terminal(w)
	return tty && !a.noColor && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// colour is an SGR code. All are of equal length, so that coloured columns stay aligned.
type colour string

const (
	plain  colour = "39"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
	cyan   colour = "36"
)

func (c colour) paint(s string) string { return "\x1b[" + string(c) + "m" + s + "\x1b[39m" }

// stateColour is the colour of a state's word.
func stateColour(s string) colour {
	switch s {
	case "up", "started", "ready", "active", "connected", "installed", "COMPLETED", "info", "ok", "yes", "create", "+":
		return green
	case "pending", "starting", "created", "STARTING", "PROCESSING", "degraded", "partial", "deleting", "warning", "update", "~":
		return yellow
	case "error", "failed", "lost", "refused", "down", "FAILED", "FAILED_TEMP", "ROLLED_BACK", "no", "missing", "delete", "-":
		return red
	}
	return plain
}

// table collects rows and writes them aligned.
type table struct {
	head     []string
	coloured []bool // columns whose words are states
	rows     [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (a *app) printTable(t table) error {
	var out bytes.Buffer // one write: what follows an object must not tear its line
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	colours := a.colours(a.Stdout)
	line := func(cells []string) {
		for i, c := range cells {
			c = printable(c)
			if c == "" {
				c = "-"
			}
			if colours && i < len(t.coloured) && t.coloured[i] {
				c = stateColour(c).paint(c)
			}
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, c)
		}
		fmt.Fprintln(w)
	}
	if t.head != nil {
		line(t.head)
	}
	for _, r := range t.rows {
		line(r)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := a.Stdout.Write(out.Bytes())
	return err
}

// printable keeps what a function or a file says from steering the terminal.
func printable(s string) string {
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

// age is a time span in one or two units, as short as a column wants it.
func age(t, now time.Time) string {
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

// size is a number of bytes with a unit of powers of 1024.
func size(n int64) string {
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
