package desk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/instance"
	"weir.dev/weir/lab"
	"weir.dev/weir/lab/study"
)

// Bounds of a directory of runs.
const (
	maxListed  = 200     // runs that are listed, the newest
	maxEntries = 10_000  // of the directory that are looked at
	maxResults = 1 << 30 // bytes of a results.json that is read
	maxText    = 1_000   // bytes of a message
	maxReasons = 20
)

// Dir is the name of the directory of runs in an instance's state.
const Dir = "lab"

// Home is where the runs of an instance are by default.
func Home(i instance.Instance) string { return filepath.Join(i.Root, Dir) }

var runName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// List lists the runs of a directory, the newest first. A directory that is not there has none.
func List(dir string) (api.LabRuns, error) { return new(reader).list(dir) }

// reader reads directories of results; what has not changed is not read again.
type reader struct {
	mu    sync.Mutex
	known map[string]known
}

// known is what was read of a run, when its files were as stamp says.
type known struct {
	stamp string
	run   api.LabRun
}

func (r *reader) list(dir string) (api.LabRuns, error) {
	out := api.LabRuns{Directory: dir, Items: []api.LabRun{}}
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("runs of the lab: %w", err)
	}
	defer f.Close()
	entries, err := f.ReadDir(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return out, fmt.Errorf("runs of the lab: %w", err)
	}
	type found struct {
		name string
		at   time.Time
	}
	var all []found
	for _, e := range entries {
		if !e.IsDir() || !runName.MatchString(e.Name()) { // nor a link to one
			continue
		}
		journal, err := stat(filepath.Join(dir, e.Name()), study.JournalFile, study.JournalKept)
		if err != nil {
			continue // no run
		}
		all = append(all, found{e.Name(), journal.ModTime()})
	}
	slices.SortFunc(all, func(a, b found) int { return b.at.Compare(a.at) })
	if len(all) > maxListed {
		out.More, all = len(all)-maxListed, all[:maxListed]
	}
	for _, a := range all {
		run := r.read(dir, a.name)
		out.Bytes += run.Bytes
		out.Items = append(out.Items, run)
	}
	slices.SortStableFunc(out.Items, func(a, b api.LabRun) int { return b.Started.Compare(a.Started) })
	return out, nil
}

// stat of the first of some files that is there.
func stat(dir string, names ...string) (info fs.FileInfo, err error) {
	for _, name := range names {
		if info, err = os.Stat(filepath.Join(dir, name)); err == nil {
			return info, nil
		}
	}
	return nil, err
}

// read what there is to say of one run.
func (r *reader) read(dir, name string) api.LabRun {
	at := filepath.Join(dir, name)
	busy := study.Busy(at)
	stamp := fmt.Sprint(busy)
	for _, file := range []string{study.JournalFile, study.JournalKept, lab.ResultsFile, lab.ProgressFile} {
		if info, err := os.Stat(filepath.Join(at, file)); err == nil {
			stamp += fmt.Sprintf(" %s %d %d", file, info.Size(), info.ModTime().UnixNano())
		}
	}
	r.mu.Lock()
	old, ok := r.known[at]
	r.mu.Unlock()
	if ok && old.stamp == stamp {
		return old.run
	}
	run := readRun(at, name, busy)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil || len(r.known) > 2*maxListed {
		r.known = map[string]known{}
	}
	r.known[at] = known{stamp, run}
	return run
}

func readRun(at, name string, busy bool) api.LabRun {
	run := api.LabRun{Name: name, Directory: at, State: api.LabPartial, Bytes: sizeOf(at)}
	h, err := study.Peek(at)
	if err != nil && !busy {
		run.State, run.Message = api.LabDamaged, clip(err.Error())
		return run
	}
	run.Study, run.Title, run.Mode, run.Seed, run.Version, run.Started = h.Study.Name, h.Study.Title, string(h.Mode), h.Seed, h.Version, h.Started
	for _, p := range h.Study.Parts {
		run.Parts = append(run.Parts, p.Name)
	}
	progress, perr := lab.ReadProgress(at)
	res, rerr := readResults(at)
	if busy {
		run.State = api.LabRunning
	}
	switch {
	case !busy && rerr == nil && (perr != nil || res.Planned-res.Left >= progress.Done):
		run.Planned, run.Measured, run.Void, run.Skipped, run.Left, run.Ended = res.Planned, res.Measured, res.Void, res.Skipped, res.Left, res.Ended
		for _, d := range res.Distrusted[:min(len(res.Distrusted), maxReasons)] {
			run.Distrusted = append(run.Distrusted, clip(d.Part+": "+d.Reason))
		}
		if run.Left == 0 {
			run.State = api.LabComplete
		}
	case perr == nil:
		run.Planned, run.Left = progress.Planned, progress.Planned-progress.Done
		run.Progress = &progress
		if !busy {
			run.Ended = progress.Time
			run.Message = "its process was killed: what was measured is kept, and it can go on"
		}
	case !busy:
		run.Message = "there are no results yet: its report counts its trials"
	}
	return run
}

// results are those members of a results.json that a list shows.
type results struct {
	Ended                                  time.Time
	Planned, Measured, Void, Skipped, Left int
	Distrusted                             []struct{ Part, Reason string }
}

func readResults(dir string) (r results, err error) {
	f, err := os.Open(filepath.Join(dir, lab.ResultsFile))
	if err != nil {
		return r, err
	}
	defer f.Close()
	// The members that count stand at the top level, before the parts: a decoder that is read token by token keeps nothing else.
	d := json.NewDecoder(io.LimitReader(f, maxResults))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return r, fmt.Errorf("%s: no object: %w", f.Name(), errors.Join(err, fs.ErrInvalid))
	}
	members := map[string]any{"ended": &r.Ended, "planned": &r.Planned, "measured": &r.Measured, "void": &r.Void, "skipped": &r.Skipped, "left": &r.Left, "distrusted": &r.Distrusted}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return r, err
		}
		text, _ := name.(string) // of an object the members' names are texts
		if text == "parts" || text == "timeline" {
			return r, nil
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return r, err
		}
		if into, ok := members[text]; ok {
			if err := json.NewDecoder(bytes.NewReader(raw)).Decode(into); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

// sizeOf a directory's files, in bytes.
func sizeOf(dir string) (n int64) {
	left := maxEntries
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if left--; err != nil || left < 0 {
			return fs.SkipAll
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return nil
	})
	return n
}

func clip(text string) string {
	text = strings.ToValidUTF8(strings.TrimSpace(text), "\ufffd")
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + " ..."
	}
	return text
}
