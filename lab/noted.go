package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/instance"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// ProgressFile is the file of a run's directory that says how far the run is.
const ProgressFile = "progress.json"

// maxProgress bounds that file in bytes; maxNoted is of how many variants it tells.
const (
	maxProgress = 1 << 20
	maxNoted    = 200
)

// Noted is progress that is written into the run's directory, for others to see, and handed on to another Progress. It is a help: a file that cannot be written
// ends no run. The file outlives the run, so that whoever looks later knows how far a run was that was cut off.
type Noted struct {
	Progress
	Dir string

	tally
	ended bool
}

func (n *Noted) Begin(planned, done int) {
	n.begin(planned, done)
	n.write()
	n.Progress.Begin(planned, done)
}

func (n *Noted) Part(p study.Part, trials int) {
	n.next(p)
	n.write()
	n.Progress.Part(p, trials)
}

func (n *Noted) Block(p study.Part, i, of int) {
	n.block(i, of)
	n.write()
	n.Progress.Block(p, i, of)
}

func (n *Noted) Setup(p study.Part, v study.Variant) {
	n.setup(v)
	n.write()
	n.Progress.Setup(p, v)
}

// Trial writes nothing: the trial begins now.
func (n *Noted) Trial(t study.Trial) {
	n.trial(t)
	n.Progress.Trial(t)
}

func (n *Noted) Done(p study.Part, r study.Record, left int) {
	n.record(p, r, left)
	n.write()
	n.Progress.Done(p, r, left)
}

func (n *Noted) End() {
	n.ended, n.now = true, ""
	n.write()
	n.Progress.End()
}

func (n *Noted) write() {
	b, err := json.Marshal(n.state(time.Now()))
	if err == nil {
		_ = instance.Replace(filepath.Join(n.Dir, ProgressFile), append(b, '\n'), 0o644) // see above
	}
}

func (n *Noted) state(now time.Time) api.LabProgress {
	s := api.LabProgress{
		Time: now.UTC(), Began: n.began.UTC(), PID: os.Getpid(), Planned: n.planned, Done: n.done, Part: n.part.Name, Question: n.part.Question, Now: n.now,
		PartLeftNs: n.left.now().Nanoseconds(), Values: []api.LabValue{}, Ended: n.ended,
	}
	if n.ended {
		s.PartLeftNs = 0
	}
	if len(n.part.Metrics) > 0 {
		s.Metric, s.Unit = n.part.Metrics[0].Name, n.part.Metrics[0].Unit
	}
	for _, k := range n.known() {
		if len(s.Values) == maxNoted {
			break
		}
		name, again := strings.CutSuffix(k, "'")
		v := api.LabValue{Variant: strings.ReplaceAll(name, ",", " "), Again: again, Void: n.voids[k]}
		if x := n.values[k]; len(x) > 0 {
			v.Median, v.Last, v.N = stats.Median(x), x[len(x)-1], len(x)
		}
		s.Values = append(s.Values, v)
	}
	return s
}

// ReadProgress reads what the lab wrote of a run. Runs of older versions have none: fs.ErrNotExist.
func ReadProgress(dir string) (p api.LabProgress, err error) {
	f, err := os.Open(filepath.Join(dir, ProgressFile))
	if err != nil {
		return p, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxProgress+1))
	if err == nil && len(b) > maxProgress {
		err = fmt.Errorf("%s has more than %d bytes", f.Name(), maxProgress)
	}
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	return p, err
}
