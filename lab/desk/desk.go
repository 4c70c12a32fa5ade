package desk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/lab"
	"weir.dev/weir/lab/report"
	"weir.dev/weir/lab/study"
)

// Bounds of what a daemon lets be measured. Who wants more uses weir lab run.
const (
	maxBytes     = 4 << 30          // of all runs: with more none is started
	maxRunBytes  = 1 << 30          // of one run: it is ended
	minFree      = 1 << 30          // bytes of the disk that stay free
	maxTime      = 3 * time.Hour    // of one run: it is ended, and can go on
	readTimeout  = 2 * time.Minute  // of a report, a comparison, a look at the machine
	startTimeout = 30 * time.Second // until a run has a journal; sweeping what others left comes before
	stopTimeout  = 8 * time.Second  // that a run has to end when the daemon does; then it goes on ending by itself
	watchEvery   = 2 * time.Second
	doctorFresh  = 10 * time.Minute
	maxOnly      = 4 << 10  // bytes of a selection
	maxReport    = 64 << 20 // bytes of a page
	maxAnswer    = 64 << 20 // bytes of what a process answers
	maxReaders   = 2        // processes that read results
	maxSeed      = 1 << 32  // as weir lab run chooses one
)

// Options say where the runs are, and how this program is started.
type Options struct {
	Dir     string   // of the runs; made with the first one
	Program string   // this program
	Args    []string // of every command: which instance it is
	Images  []string // further arguments of commands that need images
	Log     *slog.Logger
}

// Desk offers the lab of one machine. Make it with New; Run has to run.
type Desk struct {
	Options
	reader  reader
	studies func() (api.LabStudies, error)
	readers chan struct{}

	mu     sync.Mutex
	job    *job              // the run that goes on; nil: none
	said   map[string]string // how runs of this process ended, by name
	ending bool              // the daemon ends: nothing is started
	doctor api.LabDoctor
}

// New makes a desk. The directory must be nobody else's to write to: what is in it is read by root.
func New(o Options) (*Desk, error) {
	info, err := os.Stat(o.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("runs of the lab: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("runs of the lab: %s is no directory: give one with --lab, or none", o.Dir)
	case info.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("runs of the lab: others may write to %s (mode %04o): chmod go-w %s, or give another directory with --lab", o.Dir, info.Mode().Perm(), o.Dir)
	case owner(info) != os.Geteuid():
		return nil, fmt.Errorf("runs of the lab: %s belongs to user %d, who may write to it: chown it to user %d, or give another directory with --lab", o.Dir, owner(info), os.Geteuid())
	}
	return &Desk{Options: o, studies: sync.OnceValues(allStudies), readers: make(chan struct{}, maxReaders), said: map[string]string{}}, nil
}

func owner(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

// Run sweeps what a run has left that was cut off, and at the end of ctx ends the run that goes on.
func (d *Desk) Run(ctx context.Context) {
	if signal.Ignored(unix.SIGHUP) { // as with nohup: children would inherit it. What is caught is not inherited, and this process goes on ignoring it
		signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	}
	if list, err := d.reader.list(d.Dir); err != nil {
		d.Log.Warn("runs of the lab", "error", err)
	} else if slices.ContainsFunc(list.Items, cutOff) {
		if out, err := d.ask(ctx, "lab", "sweep"); err != nil {
			d.Log.Warn("sweep what a run of the lab has left", "error", err)
		} else if text := strings.TrimSpace(string(out)); text != "" {
			d.Log.Info("swept what a run of the lab had left", "removed", text)
		}
	}
	<-ctx.Done()
	d.mu.Lock()
	d.ending = true
	j := d.job
	d.mu.Unlock()
	if j == nil {
		return
	}
	j.end("the daemon ended")
	select {
	case <-j.done:
	case <-time.After(stopTimeout):
		d.Log.Warn("a run of the lab still takes down what it made; it ends by itself", "run", j.name, "process", j.cmd.Process.Pid)
	}
}

// cutOff tells whether a run's process was killed.
func cutOff(r api.LabRun) bool {
	return r.State == api.LabPartial && r.Progress != nil && !r.Progress.Ended
}

// allStudies that come with the program.
func allStudies() (out api.LabStudies, err error) {
	for _, name := range lab.Studies() {
		s, err := lab.Load(name, nil)
		if err != nil {
			return out, err
		}
		trials := map[string]int{}
		for _, t := range s.Schedule(study.Quick, 0) {
			trials[t.Part]++
		}
		x := api.LabStudy{Name: s.Name, Title: s.Title, About: strings.TrimSpace(s.About), Source: strings.TrimSpace(s.Source), Parts: []api.LabPart{}}
		for _, p := range s.Parts {
			takes, err := p.Plan(study.Quick).Time()
			if err != nil {
				return out, err
			}
			part := api.LabPart{Name: p.Name, Question: p.Question, Compare: p.Compare, Baseline: p.Baseline, Trials: trials[p.Name], TakesNs: takes.Nanoseconds(), Metrics: []string{}, Factors: []api.LabFactor{}}
			for _, m := range p.Metrics {
				part.Metrics = append(part.Metrics, fmt.Sprintf("%s in %s, %s is better", m.Name, m.Unit, m.Better))
			}
			for _, f := range p.Factors {
				part.Factors = append(part.Factors, api.LabFactor{Name: f.Name, Levels: f.Levels})
			}
			x.Parts = append(x.Parts, part)
		}
		out.Items = append(out.Items, x)
	}
	return out, nil
}

// Studies that a run can be started of.
func (d *Desk) Studies() (api.LabStudies, error) { return d.studies() }

// Runs of the directory, and whether another one can be started.
func (d *Desk) Runs() (api.LabRuns, error) {
	out, err := d.reader.list(d.Dir)
	if err != nil {
		return out, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range out.Items {
		d.tell(&out.Items[i])
	}
	out.MaxBytes = maxBytes
	if err := d.refusal(out); err != nil {
		out.Refused = err.Error()
	}
	return out, nil
}

// tell what only this process knows of a run.
func (d *Desk) tell(r *api.LabRun) {
	switch {
	case d.job != nil && d.job.name == r.Name:
		r.State, r.Message = api.LabRunning, d.job.why()
	case r.State != api.LabRunning && d.said[r.Name] != "":
		r.Message = d.said[r.Name]
	}
}

// Get is one run.
func (d *Desk) Get(name string) (api.LabRun, error) {
	at, err := d.at(name)
	if err != nil {
		return api.LabRun{}, err
	}
	r := d.reader.read(filepath.Dir(at), name)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tell(&r)
	return r, nil
}

// at is the directory of a run that is there.
func (d *Desk) at(name string) (string, error) {
	at := filepath.Join(d.Dir, name)
	if runName.MatchString(name) {
		if info, err := os.Lstat(at); err == nil && info.IsDir() {
			if _, err := stat(at, study.JournalFile, study.JournalKept); err == nil {
				return at, nil
			}
		}
	}
	return "", api.Refuse(http.StatusNotFound, fmt.Sprintf("there is no run %q in %s: see /v1/lab/runs", clip(name), d.Dir))
}

// refusal says why no run can be started now; d.mu is held.
func (d *Desk) refusal(list api.LabRuns) error {
	for _, r := range list.Items {
		if r.State == api.LabRunning {
			return fmt.Errorf("run %s goes on: one at a time, since two would measure each other", r.Name)
		}
	}
	var free unix.Statfs_t
	switch err := unix.Statfs(existing(d.Dir), &free); {
	case d.ending:
		return errors.New("the daemon ends")
	case d.job != nil:
		return fmt.Errorf("run %s goes on: one at a time, since two would measure each other", d.job.name)
	case os.Geteuid() != 0:
		return errors.New("measuring needs root: this daemon has another user")
	case len(list.Items) >= maxListed:
		return fmt.Errorf("%s holds %d runs, the most: delete some", d.Dir, len(list.Items)+list.More)
	case list.Bytes > maxBytes:
		return fmt.Errorf("the runs in %s take %d MiB, the most is %d: delete some", d.Dir, list.Bytes>>20, maxBytes>>20)
	case err == nil && int64(free.Bavail)*free.Bsize < minFree:
		return fmt.Errorf("the disk of %s has %d MiB free: want at least %d", d.Dir, int64(free.Bavail)*free.Bsize>>20, minFree>>20)
	}
	return nil
}

// existing is the directory, or the nearest one above it that is there.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// Start a quick run.
func (d *Desk) Start(ctx context.Context, r api.LabRequest) (api.LabRun, error) {
	problem := func(path, message, hint string) error {
		return api.Refuse(http.StatusUnprocessableEntity, "the run is refused", api.Problem{Path: path, Message: message, Hint: hint})
	}
	if !slices.Contains(lab.Studies(), r.Study) { // a path would be a file of the daemon's
		return api.LabRun{}, problem("study", fmt.Sprintf("there is no study %q", clip(r.Study)), "want one of "+strings.Join(lab.Studies(), ", "))
	}
	s, err := lab.Load(r.Study, nil)
	if err != nil {
		return api.LabRun{}, err
	}
	if len(r.Only) > maxOnly {
		return api.LabRun{}, problem("only", fmt.Sprintf("has %d bytes", len(r.Only)), fmt.Sprintf("at most %d", maxOnly))
	}
	sel, err := study.ParseSelection(r.Only)
	if err == nil {
		_, err = s.Select(sel)
	}
	if err != nil {
		return api.LabRun{}, problem("only", clip(err.Error()), "as --only of weir lab run: part=NAME,factor=level")
	}
	if r.Seed < 0 || r.Seed > maxSeed {
		return api.LabRun{}, problem("seed", fmt.Sprintf("is %d", r.Seed), fmt.Sprintf("want 1 to %d, or none", int64(maxSeed)))
	}
	if r.Seed == 0 {
		r.Seed = 1 + rand.Int64N(maxSeed)
	}
	name, err := d.newDir(r.Study)
	if err != nil {
		return api.LabRun{}, err
	}
	at := filepath.Join(d.Dir, name)
	args := []string{"lab", "run", r.Study, "--quick", "--seed", strconv.FormatInt(r.Seed, 10), "--dir", at}
	if r.Only != "" {
		args = append(args, "--only", r.Only)
	}
	if err := d.begin(ctx, name, append(args, d.Images...)); err != nil {
		removeRun(at, true)
		return api.LabRun{}, err
	}
	return d.Get(name)
}

// newDir makes a directory for a run.
func (d *Desk) newDir(study string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mayStart(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return "", fmt.Errorf("runs of the lab: %w", err)
	}
	name := study + "-" + time.Now().UTC().Format("20060102-150405")
	for i := 2; ; i++ {
		err := os.Mkdir(filepath.Join(d.Dir, name), 0o755)
		if errors.Is(err, fs.ErrExist) && i < maxListed {
			name = fmt.Sprintf("%s-%s-%d", study, time.Now().UTC().Format("20060102-150405"), i)
			continue
		}
		if err != nil {
			return "", fmt.Errorf("runs of the lab: %w", err)
		}
		return name, nil
	}
}

// mayStart refuses a run; d.mu is held.
func (d *Desk) mayStart() error {
	list, err := d.reader.list(d.Dir)
	if err != nil {
		return err
	}
	if err := d.refusal(list); err != nil {
		return api.Refuse(http.StatusConflict, err.Error())
	}
	return nil
}

// Resume goes on with a run that ended early.
func (d *Desk) Resume(ctx context.Context, name string) (api.LabRun, error) {
	r, err := d.Get(name)
	switch {
	case err != nil:
		return r, err
	case r.State == api.LabRunning:
		return r, api.Refuse(http.StatusConflict, fmt.Sprintf("run %s goes on already", name))
	case r.State == api.LabComplete:
		return r, api.Refuse(http.StatusConflict, fmt.Sprintf("run %s is complete: start another one", name))
	case r.State == api.LabDamaged:
		return r, api.Refuse(http.StatusConflict, fmt.Sprintf("run %s cannot go on: %s", name, r.Message))
	}
	if err := d.begin(ctx, name, append([]string{"lab", "resume", r.Directory}, d.Images...)); err != nil {
		return r, err
	}
	return d.Get(name)
}

// Cancel ends a run in order. It returns at once: taking down takes a while.
func (d *Desk) Cancel(name string) (api.LabRun, error) {
	r, err := d.Get(name)
	if err != nil {
		return r, err
	}
	d.mu.Lock()
	j := d.job
	d.mu.Unlock()
	switch {
	case j != nil && j.name == name:
		j.end("cancelled: what was measured is kept, and it can go on")
	case r.State == api.LabRunning:
		return r, api.Refuse(http.StatusConflict, fmt.Sprintf("run %s was started from a shell: end it there with Ctrl-C", name))
	default:
		return r, api.Refuse(http.StatusConflict, fmt.Sprintf("run %s does not go on: it is %s", name, r.State))
	}
	return d.Get(name)
}

// Delete removes what the lab wrote of a run.
func (d *Desk) Delete(name string) error {
	r, err := d.Get(name)
	if err != nil {
		return err
	}
	if r.State == api.LabRunning {
		return api.Refuse(http.StatusConflict, fmt.Sprintf("run %s goes on: cancel it first", name))
	}
	if err := removeRun(r.Directory, false); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.said, name)
	return nil
}

// files of a run's directory that the lab makes. The journal is the last one: a deletion that is cut off leaves a run that can be deleted.
var files = []string{
	"report.html", "report.md", "report.json", "report.schema.json", lab.ResultsFile, lab.ProgressFile, "trials.csv", "summary.csv", "benchstat.txt", "figures", logFile,
	study.JournalKept, study.JournalFile,
}

// removeRun removes a run's directory. What else is in it stays, and is told; of one in which a run has not begun only the log goes.
func removeRun(at string, unbegun bool) error {
	for _, name := range files {
		if unbegun && name != logFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(at, name)); err != nil {
			return fmt.Errorf("delete a run: %w", err)
		}
	}
	if err := os.Remove(at); errors.Is(err, unix.ENOTEMPTY) && !unbegun {
		return api.Refuse(http.StatusConflict, fmt.Sprintf("%s holds files that the lab did not write: they stay; the run is deleted", at))
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete a run: %w", err)
	}
	return nil
}

// Report is a run's page, and the Content-Security-Policy with which it may be shown.
func (d *Desk) Report(ctx context.Context, name string) (page []byte, policy string, err error) {
	r, err := d.Get(name)
	switch {
	case err != nil:
		return nil, "", err
	case r.State == api.LabRunning:
		return nil, "", api.Refuse(http.StatusConflict, fmt.Sprintf("run %s goes on: a report would take processors from what it measures. It is there when the run ends", name))
	case r.State == api.LabDamaged:
		return nil, "", api.Refuse(http.StatusConflict, fmt.Sprintf("run %s has no report: %s", name, r.Message))
	}
	if page, ok := d.current(r.Directory); ok {
		return page, report.ContentPolicy(), nil
	}
	if _, err := d.quietly(ctx, "lab", "report", r.Directory, "--format", "html", "-o", "json"); err != nil {
		return nil, "", err
	}
	page, ok := d.current(r.Directory)
	if !ok {
		return nil, "", fmt.Errorf("the report of run %s was not written", name)
	}
	return page, report.ContentPolicy(), nil
}

// current is the report that is there, if it is of this version and of the whole journal.
func (d *Desk) current(at string) ([]byte, bool) {
	path := filepath.Join(at, "report.html")
	journal, err := stat(at, study.JournalFile, study.JournalKept)
	if err != nil {
		return nil, false
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() > maxReport || info.ModTime().Before(journal.ModTime()) {
		return nil, false
	}
	page, err := os.ReadFile(path)
	return page, err == nil && report.IsCurrent(page)
}

// Compare sets two runs side by side.
func (d *Desk) Compare(ctx context.Context, a, b string) (out api.LabComparison, err error) {
	x, err := d.at(a)
	if err != nil {
		return out, err
	}
	y, err := d.at(b)
	if err != nil {
		return out, err
	}
	if a == b {
		return out, api.Refuse(http.StatusBadRequest, "the comparison is refused", api.Problem{Path: "query.b", Message: "is the same run as a", Hint: "want another one"})
	}
	text, err := d.quietly(ctx, "lab", "compare", x, y, "-o", "json")
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	out.A, out.B = a, b
	return out, err
}

// Doctor looks at the machine, unless that was done a short time ago.
func (d *Desk) Doctor(ctx context.Context) (api.LabDoctor, error) {
	d.mu.Lock()
	was := d.doctor
	d.mu.Unlock()
	if !was.Time.IsZero() && time.Since(was.Time) < doctorFresh {
		return was, nil
	}
	text, err := d.quietly(ctx, append([]string{"lab", "doctor", "-o", "json"}, d.Images...)...)
	if err != nil {
		if !was.Time.IsZero() { // a run goes on: what was seen before it
			return was, nil
		}
		return was, err
	}
	var x lab.Examination
	if err := json.Unmarshal(text, &x); err != nil {
		return was, fmt.Errorf("weir lab doctor: %w", err)
	}
	out := api.LabDoctor{Time: time.Now(), Findings: []api.LabFinding{}, Studies: []api.LabStudyFindings{}}
	for _, f := range x.Findings {
		out.Findings = append(out.Findings, api.LabFinding(f))
	}
	for _, name := range slices.Sorted(maps.Keys(x.Studies)) {
		s := api.LabStudyFindings{Study: name, Parts: []api.LabPartFindings{}}
		for _, p := range x.Studies[name] {
			part := api.LabPartFindings{Part: p.Part, OK: append([]string{}, p.OK...), Skipped: []api.LabLevel{}}
			for _, level := range slices.Sorted(maps.Keys(p.Skipped)) {
				part.Skipped = append(part.Skipped, api.LabLevel{Level: level, Reason: p.Skipped[level]})
			}
			s.Parts = append(s.Parts, part)
		}
		out.Studies = append(out.Studies, s)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.doctor = out
	return out, nil
}

// quietly asks this program something, unless a run goes on: it would take processors from what is measured.
func (d *Desk) quietly(ctx context.Context, args ...string) ([]byte, error) {
	d.mu.Lock()
	j := d.job
	d.mu.Unlock()
	if j != nil {
		return nil, api.Refuse(http.StatusConflict, fmt.Sprintf("run %s goes on: this would take processors from what it measures. Ask again when it has ended", j.name))
	}
	select {
	case d.readers <- struct{}{}:
		defer func() { <-d.readers }()
	default:
		return nil, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("%d others read results of the lab now: try again", maxReaders))
	}
	return d.ask(ctx, args...)
}

// ask this program something and wait for the answer.
func (d *Desk) ask(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	answer, err := os.CreateTemp("", "weir-lab-")
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	if err := os.Remove(answer.Name()); err != nil {
		return nil, err
	}
	var said tail
	c := d.command(args)
	c.Stdout, c.Stderr = answer, &said
	ended := make(chan error, 1)
	if err := start(c, func(err error) { ended <- err }); err != nil {
		return nil, err
	}
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = c.Process.Kill() // it changes nothing
		<-ended
		err = fmt.Errorf("weir %s: %w", strings.Join(args[:2], " "), context.Cause(ctx))
	}
	if err != nil {
		if text := said.last(); text != "" {
			return nil, api.Refuse(http.StatusConflict, clip(text))
		}
		return nil, err
	}
	if _, err := answer.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(answer, maxAnswer+1))
	if err == nil && len(b) > maxAnswer {
		err = fmt.Errorf("weir %s answers with more than %d bytes", strings.Join(args[:2], " "), maxAnswer)
	}
	return b, err
}
