package kept

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/goccy/go-yaml"
)

const selectionName = "figures.yaml"

// Selection says what the pages show of the runs that are kept.
type Selection struct {
	Tables []Table `yaml:"tables"`
}

// Table is shown by each page that has the markers of its name.
type Table struct {
	Name   string `yaml:"name"`
	Run    string `yaml:"run,omitempty"` // of lines and claims that name none
	Ours   string `yaml:"ours"`          // heading of the column
	Peer   string `yaml:"peer,omitempty"`
	Again  string `yaml:"again,omitempty"` // another run, in which the lines' quantities are sought, too: do the two agree?
	Lines  []Line `yaml:"lines,omitempty"`
	Claims []ID   `yaml:"claims,omitempty"`
	// Tell of more runs below the table than of those that it shows.
	Tell []string `yaml:"tell,omitempty"`
}

// ID of a claim of a run.
type ID struct {
	ID  string `yaml:"id"`
	Run string `yaml:"run,omitempty"`
}

// Line is a row of a table: a variant of a run beside another one.
type Line struct {
	What string `yaml:"what"`
	Run  string `yaml:"run,omitempty"`
	// of a run of the lab
	Part    string            `yaml:"part,omitempty"`
	Metric  string            `yaml:"metric,omitempty"`
	At      map[string]string `yaml:"at,omitempty"`      // levels of all factors that have several
	Against map[string]string `yaml:"against,omitempty"` // levels of the peer that differ; empty: the part's baseline
	Other   *Place            `yaml:"other,omitempty"`   // in the table's second run
	Lost    *Loss             `yaml:"lost,omitempty"`
	Says    []string          `yaml:"says,omitempty"` // conditions, as they were read back
	// of a run of the former harness: the name of its result
	Bench string `yaml:"bench,omitempty"`

	Peer   string  `yaml:"peer,omitempty"`   // what the peer is, if the levels do not say it well
	Alone  bool    `yaml:"alone,omitempty"`  // no peer
	Spread string  `yaml:"spread,omitempty"` // of the ratio: interval (95 %), quartiles
	Times  float64 `yaml:"times,omitempty"`  // both values, for another unit
	Unit   string  `yaml:"unit,omitempty"`
	Target string  `yaml:"target,omitempty"` // of the ratio, or of what has no peer: ">= 1.7", "<= 4"
}

// Loss is what was lost while a rate was measured: the median over the blocks of a value of the trials, or of their steps of a name.
type Loss struct {
	Value string  `yaml:"value"`
	Step  string  `yaml:"step,omitempty"`
	Times float64 `yaml:"times,omitempty"`
	Unit  string  `yaml:"unit"`
	// Stalls is the value of what was lost near stalls of a CPU; "": there is none.
	Stalls string `yaml:"stalls,omitempty"`
	No     string `yaml:"no,omitempty"` // instead of all: why nothing is known
}

const (
	spreadInterval  = "interval"
	spreadQuartiles = "quartiles"
)

func readSelection(dir string) (Selection, error) {
	var s Selection
	text, err := os.ReadFile(filepath.Join(dir, selectionName))
	if err != nil {
		return s, fmt.Errorf("selection of figures: %w", err)
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&s); err != nil {
		return s, fmt.Errorf("%s: %w", selectionName, err)
	}
	var all []error
	names := map[string]bool{tableRuns: true}
	for _, t := range s.Tables {
		if !nameForm.MatchString(t.Name) || names[t.Name] {
			all = append(all, fmt.Errorf("%s: table %q: want a name of its own, of letters, digits and -", selectionName, t.Name))
		}
		names[t.Name] = true
		if (len(t.Lines) == 0) == (len(t.Claims) == 0) {
			all = append(all, fmt.Errorf("%s: table %s: want lines, or claims", selectionName, t.Name))
		}
		for _, l := range t.Lines {
			if err := l.check(t.Again != ""); err != nil {
				all = append(all, fmt.Errorf("%s: table %s, %q: %w", selectionName, t.Name, l.What, err))
			}
		}
	}
	return s, errors.Join(all...)
}

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// check a line; again: of a table that sets two runs side by side.
func (l Line) check(again bool) error {
	switch {
	case l.What == "":
		return errors.New("want what it is")
	case !again && l.Other != nil:
		return errors.New("only tables with again have an other place")
	case again && (l.Bench != "" || l.Lost != nil || l.Says != nil || l.Target != "" || l.Alone || l.Times != 0 || l.Unit != "" || l.Spread != ""):
		return errors.New("a table with again wants part, metric, at, against and other alone")
	case (l.Bench == "") == (l.Part == ""):
		return errors.New("want part and metric of a run of the lab, or bench")
	case l.Bench != "" && (l.Metric != "" || l.At != nil || l.Against != nil || len(l.Says) > 0):
		return errors.New("bench stands alone")
	case !slices.Contains([]string{"", spreadInterval, spreadQuartiles}, l.Spread):
		return fmt.Errorf("spread %q: want %s or %s", l.Spread, spreadInterval, spreadQuartiles)
	case l.Alone && l.Against != nil:
		return errors.New("alone has no peer")
	}
	if l.Target != "" {
		_, err := parseTarget(l.Target)
		return err
	}
	return nil
}

// target is a bound that a figure is to keep.
type target struct {
	least bool // at least
	bound float64
}

var targetForm = regexp.MustCompile(`^([<>]=) ([0-9.]+)$`)

func parseTarget(text string) (target, error) {
	m := targetForm.FindStringSubmatch(text)
	if m == nil {
		return target{}, fmt.Errorf("target %q: want >= or <= and a number", text)
	}
	bound, err := strconv.ParseFloat(m[2], 64)
	return target{m[1] == ">=", bound}, err
}

// judge a figure in an interval: met or missed if the whole interval is, open otherwise.
func (t target) judge(low, high float64) string {
	sign, met, missed := "≤", high <= t.bound, low > t.bound
	if t.least {
		sign, met, missed = "≥", low >= t.bound, high < t.bound
	}
	verdict := "open"
	switch {
	case met:
		verdict = "met"
	case missed:
		verdict = "**missed**"
	}
	return sign + " " + strconv.FormatFloat(t.bound, 'g', -1, 64) + ": " + verdict
}
