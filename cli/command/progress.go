package command

import (
	"fmt"
	"io"
	"time"
)

// Progress is one line on a terminal's stderr that rewrites itself; elsewhere it says only what holds things up.
type Progress struct {
	w       io.Writer
	columns int
	on      bool
	begun   time.Time
	told    map[string]bool // see tell
}

// ShowEvery is how often what is waited for is looked at, to be shown.
const ShowEvery = 200 * time.Millisecond

// What a function waits for is said also where there is no terminal: not of a start that is only slow, and not for ever.
const (
	tellAfter = 4 * time.Second
	maxTold   = 5
)

func (a *App) Progress() *Progress {
	columns, tty := Terminal(a.Stderr)
	return &Progress{w: a.Stderr, columns: columns, on: tty, begun: time.Now(), told: map[string]bool{}}
}

// Tell says, once for each reason and in a line that stays, why something is not ready; on a terminal show does.
func (p *Progress) Tell(what, why string) {
	waited, line := time.Since(p.begun), what+": "+why
	if p.on || why == "" || waited < tellAfter || p.told[line] || len(p.told) >= maxTold {
		return
	}
	p.told[line] = true
	fmt.Fprintf(p.w, "weir: %s: not ready after %v: %s\n", Printable(what), waited.Truncate(time.Second), Printable(why))
}

func (p *Progress) Show(format string, args ...any) {
	if !p.on {
		return
	}
	text := []rune(Printable(fmt.Sprintf("%3ds  ", int(time.Since(p.begun).Seconds())) + fmt.Sprintf(format, args...)))
	if len(text) >= p.columns {
		text = text[:p.columns-1]
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", string(text))
}

func (p *Progress) Clear() {
	if p.on {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
