package report

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/container/nspawn"
	"weir.dev/weir/container/rkt"
	"weir.dev/weir/lab"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

// What a part on processors calls its factors, and the level that is bare metal.
const (
	factorRuntime = "runtime"
	factorPayload = "payload"
	factorNetwork = "network"
	bareMetal     = "bare"
	bareNetwork   = "host"
)

// processorFigures draws a metric of a part on processors as the paper does, one figure for each payload: rates as bars with a line of bare metal, latency
// from the least to the greatest with the mean marked. Least and greatest have no figure of their own then. drawn is false for other metrics and parts.
func processorFigures(p lab.PartResult, metric int, id string) (out []figure, drawn bool) {
	m := p.Part.Metrics[metric]
	if p.Part.Experiment != experiment.OfProcessors {
		return nil, false
	}
	spread := metricIndex(p.Part, "min") >= 0 && metricIndex(p.Part, "max") >= 0
	switch {
	case m.Unit == "pps", m.Name == "mean" && spread:
	case (m.Name == "min" || m.Name == "max") && metricIndex(p.Part, "mean") >= 0:
		return nil, true
	default:
		return nil, false
	}
	payloads := []string{""}
	if f, ok := p.Part.Factor(factorPayload); ok && p.Part.Compare != factorPayload {
		payloads = f.Levels
	}
	for _, payload := range payloads {
		f := figure{ID: id + "-bars", Part: p.Part.Name, Title: m.Name + ", bars", Table: valuesTable(p, metric)}
		if payload != "" {
			f.ID, f.Title = f.ID+"-"+payload, fmt.Sprintf("%s, %s bytes", f.Title, payload)
		}
		clusters := processorClusters(p, metric, payload)
		if len(clusters) == 0 {
			continue
		}
		f.About = fmt.Sprintf("Medians over the blocks with their 95 %% intervals; %s is better. The line is bare metal. A hollow mark is what was published, on other hardware.", m.Better)
		y, log := m.Name+", "+unitText(m.Unit), false
		if m.Name == "mean" {
			f.Title, log = strings.Replace(f.Title, m.Name, "latency", 1), true
			y = "latency, " + unitText(m.Unit)
			f.About = "Bars from the least to the greatest latency, the mean is marked: medians over the blocks. A hollow mark is the mean that was published, on other hardware."
		}
		axis := strings.Join(slices.DeleteFunc(factorNames(p.Part), func(n string) bool { return n == p.Part.Compare || n == factorPayload && payload != "" }), ", ")
		f.draw = func(width float64) *canvas { return bars(width, clusters, y, axis, log) }
		out = append(out, f)
	}
	return out, len(out) > 0
}

func metricIndex(p study.Part, name string) int {
	return slices.IndexFunc(p.Metrics, func(m study.Metric) bool { return m.Name == name })
}

// processorClusters of the groups of a payload; all groups if it is empty.
func processorClusters(p lab.PartResult, metric int, payload string) (out []cluster) {
	latency := p.Part.Metrics[metric].Name == "mean"
	for _, g := range p.Groups {
		if payload != "" && g.Levels[factorPayload] != payload {
			continue
		}
		var levels []string
		for _, f := range p.Part.Factors {
			if f.Name != p.Part.Compare && (f.Name != factorPayload || payload == "") {
				levels = append(levels, g.Levels[f.Name])
			}
		}
		c := clusterOf(p, g, metric)
		c.label = strings.Join(levels, " ")
		if latency {
			c.stretch(g.Metrics[metricIndex(p.Part, "min")], g.Metrics[metricIndex(p.Part, "max")])
		} else if v, ok := bareRate(p, g, metric); ok {
			c.line = v
		}
		if c.measured() {
			out = append(out, c)
		}
	}
	return out
}

// stretch the bars from the least to the greatest.
func (c *cluster) stretch(least, greatest lab.MetricResult) {
	for i := range c.bars {
		b := &c.bars[i]
		low, high := medianAt(least, b.level), medianAt(greatest, b.level)
		b.missing = b.missing || low == nil || high == nil
		if !b.missing {
			b.low, b.high = *low, *high
		}
	}
}

// medianAt a level, that of the duplicate aside; nil: not measured.
func medianAt(m lab.MetricResult, level string) *float64 {
	for _, v := range m.Values {
		if v.Level == level && !v.Duplicate {
			return v.Median
		}
	}
	return nil
}

// bareRate is what bare metal on the host's own network has where all else is as in a group.
func bareRate(p lab.PartResult, g lab.Group, metric int) (float64, bool) {
	if p.Part.Compare != factorRuntime {
		return 0, false
	}
	for _, x := range p.Groups {
		same := true
		for name, level := range g.Levels {
			if name == factorNetwork {
				level = bareNetwork
			}
			same = same && x.Levels[name] == level
		}
		if v := medianAt(x.Metrics[metric], bareMetal); same && v != nil {
			return *v, *v > 0
		}
	}
	return 0, false
}

//go:embed struye.csv
var struye string

// loss of throughput against bare metal that was published.
type loss struct {
	hosts, payload, processors, runtime string
	least, most                         float64 // percent
}

func publishedLosses() (out []loss, err error) {
	r := csv.NewReader(strings.NewReader(struye))
	r.Comment = '#'
	lines, err := r.ReadAll()
	for _, line := range lines {
		l := loss{hosts: line[0], payload: line[1], processors: line[2], runtime: line[3]}
		var bad [2]error
		l.least, bad[0] = strconv.ParseFloat(line[4], 64)
		l.most, bad[1] = strconv.ParseFloat(line[5], 64)
		if bad[0] != nil || bad[1] != nil {
			return nil, fmt.Errorf("struye.csv: %v: want percent", line)
		}
		out = append(out, l)
	}
	return out, err
}

// levelOf a factor in a group, or the setting that is the same for all.
func levelOf(p study.Part, g lab.Group, factor string) string {
	if level, ok := g.Levels[factor]; ok {
		return level
	}
	return p.Settings[factor]
}

// measured losses of the same kind as a published one, in percent, one for each network.
func (l loss) measured(p lab.PartResult, metric int) (out []float64) {
	for _, g := range p.Groups {
		if levelOf(p.Part, g, "hosts") != l.hosts || levelOf(p.Part, g, factorPayload) != l.payload || levelOf(p.Part, g, "processors") != l.processors {
			continue
		}
		bare, ok := bareRate(p, g, metric)
		v := medianAt(g.Metrics[metric], l.runtime)
		if ok && v != nil {
			out = append(out, (1-*v/bare)*100)
		}
	}
	return out
}

// tableOfLosses is the paper's table of losses from our figures, beside what was published.
func tableOfLosses(p lab.PartResult) (figure, bool) {
	metric := metricIndex(p.Part, "received")
	if p.Part.Experiment != experiment.OfProcessors || p.Part.Compare != factorRuntime || metric < 0 {
		return figure{}, false
	}
	f := figure{
		ID: p.Part.Name + "-loss", Part: p.Part.Name, Title: "Loss of throughput against bare metal",
		About: "From the least to the greatest loss over the networks, of the medians of what was received. Published: Struye, section VI, Table II, on other hardware. Below 0 is a gain.",
		Table: table{Head: []string{"hosts", "processors", "bytes", factorRuntime, "here", "networks measured", "published"}},
	}
	all, err := publishedLosses()
	if err != nil {
		return figure{}, false // a test reads the same file
	}
	var rows []row
	heading, any := "", false
	for _, l := range all {
		if l.hosts != p.Part.Settings["hosts"] {
			continue
		}
		if h := fmt.Sprintf("hosts %s, processors %s, %s bytes", l.hosts, l.processors, l.payload); h != heading {
			heading = h
			rows = append(rows, row{heading: h})
		}
		values, name := l.measured(p, metric), l.runtime
		if len(values) == 0 && l.runtime == rkt.Name { // its engine stands in for it
			at := l
			at.runtime = nspawn.Name
			values = at.measured(p, metric)
			if len(values) > 0 {
				name = nspawn.Name + " for " + rkt.Name
			}
		}
		here := row{label: name, colour: colourOf(p.Part, l.runtime), missing: true, missingBecause: "not measured"}
		ours := none
		if len(values) > 0 {
			any = true
			here = lossRow(name, here.colour, slices.Min(values), slices.Max(values))
			ours = here.text
		}
		there := lossRow(l.runtime+", published", here.colour, l.least, l.most)
		there.weak = true
		rows = append(rows, here, there)
		f.Table.Rows = append(f.Table.Rows, []string{l.hosts, l.processors, l.payload, name, ours, strconv.Itoa(len(values)), there.text})
	}
	f.draw = func(width float64) *canvas { return dots(width, rows, 0, "loss of throughput, %", false) }
	return f, any
}

func lossRow(label string, colour int, least, most float64) row {
	text := fmt.Sprintf("%s %%", whole(least))
	if whole(least) != whole(most) {
		text = fmt.Sprintf("%s %% to %s %%", whole(least), whole(most))
	}
	return row{label: label, colour: colour, value: (least + most) / 2, low: least, high: most, text: text}
}

func whole(v float64) string { return strconv.FormatFloat(math.Round(v)+0, 'f', 0, 64) }
