package kept

import (
	"fmt"

	"weir.dev/weir/lab/stats"
)

// Place is where a run has a line's quantity, if that is not where the table's run has it: a part, and levels.
type Place struct {
	Part    string            `yaml:"part,omitempty"`
	At      map[string]string `yaml:"at,omitempty"`
	Against map[string]string `yaml:"against,omitempty"`
}

// agree is a row of a table that sets two runs side by side: what, the quantity in each with its 95 % interval, and whether the intervals overlap.
func (f *figures) agree(l Line, of, again string) ([]string, error) {
	there := l
	if o := l.Other; o != nil {
		there.Part = orElse(o.Part, l.Part)
		if o.At != nil {
			there.At = o.At
		}
		if o.Against != nil {
			there.Against = o.Against
		}
	}
	a, one, err := f.measured(l, of)
	if err != nil {
		return nil, err
	}
	b, two, err := f.measured(there, again)
	if err != nil {
		return nil, err
	}
	verdict := "agree"
	if one.High < two.Low || two.High < one.Low {
		verdict = "**differ**"
	}
	return []string{l.What, a, b, verdict}, nil
}

// measured is what a run has of a line: a value, or its ratio to that of other levels.
func (f *figures) measured(l Line, from string) (text string, in stats.Interval, err error) {
	r, err := f.run(from)
	if err != nil {
		return "", in, err
	}
	if r.journal == nil {
		return "", in, fmt.Errorf("run %s is none of a study", from)
	}
	p, err := r.part(l.Part)
	if err != nil {
		return "", in, err
	}
	v, err := variant(p.Part, l.At)
	if err != nil {
		return "", in, err
	}
	value, m, err := valueOf(p, l.Metric, v)
	if err != nil {
		return "", in, err
	}
	x := pick{run: r, line: l, part: p, metric: m, ours: v, value: value}
	cells := make([]string, 7)
	if l.Against == nil {
		if err := x.alone(cells, m.Metric.Unit); err != nil {
			return "", in, err
		}
		return cells[1], *value.Interval, nil
	}
	if err := x.compared(cells, m.Metric.Unit, true); err != nil {
		return "", in, err
	}
	peer, err := variant(p.Part, x.against())
	if err != nil {
		return "", in, err
	}
	theirs, _, err := valueOf(p, l.Metric, peer)
	if err != nil {
		return "", in, err
	}
	ratio, _, err := x.ratio(peer, theirs)
	return cells[3], ratio.Interval, err
}
