package nf

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"strings"
)

// MetricsFile is the socket that takes a function's numbers.
const MetricsFile = "/run/weir/metrics.sock"

// Numbers are what a function tells of itself: the platform shows them with the function's and the host's names. Names of counters end in _total; labels are given as
// name, value, name, value.
type Numbers struct {
	families []*family
	named    map[string]*family
}

type family struct{ head, samples bytes.Buffer }

// Counter only grows, as long as the process lives.
func (n *Numbers) Counter(name, help string, v float64, labels ...string) {
	n.add("counter", name, help, v, labels)
}

// Gauge goes up and down.
func (n *Numbers) Gauge(name, help string, v float64, labels ...string) {
	n.add("gauge", name, help, v, labels)
}

var (
	escape     = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	escapeHelp = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
)

func (n *Numbers) add(kind, name, help string, v float64, labels []string) {
	f := n.named[name]
	if f == nil {
		if n.named == nil {
			n.named = map[string]*family{}
		}
		f = &family{}
		n.named[name], n.families = f, append(n.families, f)
		fmt.Fprintf(&f.head, "# HELP %s %s\n# TYPE %s %s\n", name, escapeHelp.Replace(help), name, kind)
	}
	f.samples.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		fmt.Fprintf(&f.samples, `%s%s="%s"`, map[bool]string{true: "{", false: ","}[i == 0], labels[i], escape.Replace(shorten(labels[i+1])))
	}
	if len(labels) > 1 {
		f.samples.WriteByte('}')
	}
	fmt.Fprintf(&f.samples, " %s\n", strconv.FormatFloat(v, 'g', -1, 64))
}

// maxLabel bounds a label's value: with a longer one the platform takes none of a function's numbers.
const maxLabel = 128

// shorten a label's value to what may be. The end stands for what is left out, so different values stay different.
func shorten(v string) string {
	v = strings.ToValidUTF8(v, "?")
	if len(v) <= maxLabel {
		return v
	}
	sum := fnv.New64a()
	sum.Write([]byte(v))
	end := fmt.Sprintf("...%016x", sum.Sum64())
	return strings.ToValidUTF8(v[:maxLabel-len(end)], "") + end
}

// Text is Prometheus's text format.
func (n *Numbers) Text() []byte {
	var out bytes.Buffer
	for _, f := range n.families {
		out.Write(f.head.Bytes())
		out.Write(f.samples.Bytes())
	}
	return out.Bytes()
}

// Tell the platform at the socket, if it exists.
func (n *Numbers) Tell(ctx context.Context, socket string) error {
	if _, err := os.Stat(socket); err != nil {
		return nil
	}
	return post(ctx, socket, "text/plain; version=0.0.4", n.Text())
}

// tell the platform the numbers of now.
func (d *duty) tell(ctx context.Context) {
	if d.Numbers == nil || d.start.Metrics == "" {
		return
	}
	var n Numbers
	d.Numbers(&n)
	if err := n.Tell(ctx, d.start.Metrics); err != nil && ctx.Err() == nil {
		d.start.Log.Warn("tell numbers", "error", err)
	}
}
