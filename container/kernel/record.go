package kernel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/instance"
)

// phase is how far a container has come. A phase that ends in -ing was interrupted if no process of ours is at it.
type phase string

const (
	phaseCreating phase = "creating"
	phaseCreated  phase = "created"
	phaseStarting phase = "starting"
	phaseRunning  phase = "running" // or ended since: the process tells
)

// record is what is kept of a container beside its bundle, written before and after each step.
type record struct {
	Spec     container.Spec     `json:"spec"`
	Phase    phase              `json:"phase"`
	PID      int                `json:"pid,omitempty"`
	Ticks    uint64             `json:"ticks,omitempty"` // start time of PID in clock ticks since boot: tells a reused PID
	Started  time.Time          `json:"started,omitzero"`
	ExitCode int                `json:"exit_code"`
	Signal   int                `json:"signal,omitempty"`
	OOM      bool               `json:"oom,omitempty"`
	Short    container.Shortage `json:"short,omitempty"`
	Limits   container.Limits   `json:"limits,omitzero"`     // in force
	LogStart int64              `json:"log_start,omitempty"` // where in the log its own lines begin
}

// reach notes a phase. Started is the time of the first one in which nothing holds the process back.
func (rec *record) reach(p phase) {
	rec.Phase = p
	switch {
	case p == phaseCreating || p == phaseCreated:
		rec.Started = time.Time{}
	case rec.Started.IsZero():
		rec.Started = time.Now()
	}
}

const recordFile = "record.json"

func (rec record) write(bundle string) error {
	raw, err := json.Marshal(rec)
	if err == nil {
		err = exchange(filepath.Join(bundle, recordFile), raw)
	}
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// exchange is instance.Replace for a text that may end in white space. The former text's file stays beside it and takes the next text: to make and remove a file for
// each of a start's records takes a file system of a disk longer than all else of them.
func exchange(path string, text []byte) error {
	next := path + instance.FileNew
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err == nil { // not cut: ext4 would write to the disk at once
		text = append(text, bytes.Repeat([]byte{' '}, max(0, int(fi.Size())-len(text)))...)
		_, err = f.Write(text)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	if err != nil { // there is none yet, or the file system cannot exchange
		return os.Rename(next, path)
	}
	return nil
}

func readRecord(bundle string) (record, error) {
	raw, err := os.ReadFile(filepath.Join(bundle, recordFile))
	if err != nil {
		return record{}, err
	}
	var rec record
	if err := json.Unmarshal(raw, &rec); err != nil {
		return record{}, fmt.Errorf("record of %s: %w", bundle, err)
	}
	return rec, nil
}

// recover loads the records of an earlier process of this instance. Runtime calls that it left in flight are waited for; then
// every container is either known or removed.
func (r *Runtime) recover(ctx context.Context) error {
	if err := r.endStrayCalls(ctx); err != nil {
		return err
	}
	ids, err := r.everyID()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := r.inTurn(ctx, id, true, func(e *entry) error { return r.adopt(ctx, e, id) }); err != nil {
			return err
		}
	}
	return r.sweepRoot()
}

// adopt makes an entry from what is on disk, or removes that.
func (r *Runtime) adopt(ctx context.Context, e *entry, id string) error {
	rec, err := readRecord(r.Bundle(id))
	if err != nil || rec.Spec.ID != id {
		return r.purge(ctx, e, id, keepLog) // interrupted before the record, or while it was being removed
	}
	if rec.Phase == phaseCreating || rec.Phase == phaseStarting {
		known, err := r.ask(ctx, &rec)
		if err != nil {
			return err
		}
		if !known {
			return r.purge(ctx, e, id, keepLog)
		}
	}
	proc, ticks, err := OpenProcess(rec.PID, rec.Ticks)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	if proc != nil && rec.Phase == phaseRunning && rec.ExitCode != -1 { // it has ended; its parent has not collected it yet
		proc.Close()
		proc = nil
	}
	if rec.Ticks == 0 {
		rec.Ticks = ticks
	}
	if proc != nil && rec.Limits == (container.Limits{}) { // a former version did not record them
		rec.Limits, _ = r.readLimits(rec.Spec) // it runs already
	}
	if proc != nil {
		r.adoptedRings(&rec.Limits, rec.PID)
	}
	if proc == nil && r.machine != nil && rec.ExitCode == -1 && rec.Phase == phaseRunning { // it ended while nobody looked
		of := r.programsEnd(&rec, end{code: -1})
		rec.ExitCode, rec.Signal = of.code, of.signal
	}
	return r.keep(e, rec, proc)
}

// programsEnd tells how the program of a machine has ended, and notes whether that was for want of memory.
func (r *Runtime) programsEnd(rec *record, machine end) end {
	of := r.machine.Ended(r.container(rec.Spec, rec.PID), End{Code: machine.code, Signal: machine.signal, OOM: rec.OOM, Short: rec.Short})
	rec.OOM, rec.Short = of.OOM, of.Short
	return end{of.Code, of.Signal}
}

// ask lets the engine say what became of an interrupted step. False: there is no such container.
func (r *Runtime) ask(ctx context.Context, rec *record) (bool, error) {
	found, err := r.engine.Find(ctx, r.container(rec.Spec, rec.PID))
	if err != nil {
		return false, err
	}
	switch found.State {
	case container.Created:
		rec.reach(phaseCreated)
	case container.Running:
		if rec.Started.IsZero() {
			rec.Started = found.Started
		}
		rec.reach(phaseRunning)
	case container.Stopped: // it ended before we could look; without a process there is nothing to wait for
		rec.reach(phaseRunning)
		return rec.PID != 0, nil
	default:
		return false, nil
	}
	if !r.Member(found.PID, rec.Spec.ID) {
		return false, nil
	}
	if rec.PID != found.PID {
		rec.PID, rec.Ticks = found.PID, 0
	}
	return true, nil
}

const staleLog = 7 * 24 * time.Hour

// sweepRoot removes the logs of containers that no longer exist, after a week.
func (r *Runtime) sweepRoot() error {
	logs, err := os.ReadDir(r.logsDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	used := r.logs()
	for _, d := range logs {
		name, _, _ := strings.Cut(d.Name(), ".log")
		if used[name] > 0 {
			continue
		}
		info, err := d.Info()
		if err == nil && time.Since(info.ModTime()) > staleLog {
			if err := os.Remove(filepath.Join(r.logsDir(), d.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// everyID finds ids in every place where a container leaves something.
func (r *Runtime) everyID() ([]string, error) {
	set := map[string]bool{}
	left, err := r.engine.Left()
	if err != nil {
		return nil, err
	}
	for _, id := range left {
		set[id] = true
	}
	dirs := []string{r.bundlesDir(), r.writableDir()}
	for _, h := range r.cgroups {
		dirs = append(dirs, h.dir(r.CgroupPath("")))
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("find containers: %w", err)
		}
		for _, d := range entries {
			if d.IsDir() && idPattern.MatchString(d.Name()) {
				set[d.Name()] = true
			}
		}
	}
	ids := make([]string, 0, len(set))
	for id := range set {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

// leftover tells whether anything stands under the id.
func (r *Runtime) leftover(id string) bool {
	for _, p := range []string{r.Bundle(id), r.writable(id)} {
		if _, err := os.Lstat(p); err == nil {
			return true
		}
	}
	for _, h := range r.cgroups {
		if _, err := os.Lstat(h.dir(r.CgroupPath(id))); err == nil {
			return true
		}
	}
	return false
}

type logFate bool

const (
	keepLog logFate = false
	dropLog logFate = true
)

// purge removes whatever there is of a container, in whatever state it is. The caller holds its turn.
func (r *Runtime) purge(ctx context.Context, e *entry, id string, fate logFate) error {
	r.mu.Lock()
	proc := e.proc
	r.mu.Unlock()
	if err := r.kill(ctx, id, proc); err != nil {
		return err
	}
	if err := r.engine.Remove(ctx, id); err != nil {
		return err
	}
	if err := r.removeCgroup(ctx, id); err != nil {
		return err
	}
	if err := r.removeWritable(id); err != nil {
		return err
	}
	if err := os.RemoveAll(r.Bundle(id)); err != nil {
		return fmt.Errorf("remove bundle: %w", err)
	}
	r.mu.Lock()
	log := cmp.Or(e.rec.Spec.Log, id)
	r.mu.Unlock()
	if fate == dropLog && r.logs()[log] <= 1 {
		for _, f := range []string{r.LogFile(log), r.LogFile(log) + ".1"} {
			if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove log: %w", err)
			}
		}
	}
	r.mu.Lock()
	e.rec, e.proc = record{}, nil
	r.mu.Unlock()
	return nil
}
