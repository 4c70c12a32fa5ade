package study

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Header is the first line of a journal: everything from which the schedule follows, and where it ran.
type Header struct {
	Format      int               `json:"format"`
	Study       Study             `json:"study"` // after the selection
	Mode        Mode              `json:"mode"`
	Seed        uint64            `json:"seed"`
	Schedule    string            `json:"schedule,omitempty"` // digest of the trials in their order
	Started     time.Time         `json:"started"`
	Version     string            `json:"version"`
	Environment map[string]string `json:"environment,omitempty"`
}

// Record is a finished trial. Values are by metric. A trial that could not be made has Skipped, one that does not count has Void: both say why.
type Record struct {
	Trial      Trial              `json:"trial"`
	Begun      time.Time          `json:"begun"`
	Took       time.Duration      `json:"took_ns"`
	Values     map[string]float64 `json:"values,omitempty"`
	Samples    []float64          `json:"samples,omitempty"` // of the first metric, where a trial has many
	Covariates map[string]float64 `json:"covariates,omitempty"`
	Conditions map[string]string  `json:"conditions,omitempty"` // under which it was made: congestion control, offloads, queues
	Void       string             `json:"void,omitempty"`
	Tries      []Try              `json:"tries,omitempty"` // before this one, which the machine disturbed
	Skipped    string             `json:"skipped,omitempty"`
	// Setup names what it was measured on: a bench, and which of its set-ups ("lab-1f2e/3"; several, with commas, if the run was cut off within the
	// trial). Trials of a block have the same one, but for the duplicate, whose bench is another. Empty: an older version's, which set up once a run.
	Setup string          `json:"setup,omitempty"`
	Raw   json.RawMessage `json:"raw,omitempty"`
}

// Try is a trial that did not count and was made again.
type Try struct {
	Begun      time.Time          `json:"begun"`
	Took       time.Duration      `json:"took_ns"`
	Covariates map[string]float64 `json:"covariates,omitempty"`
	Void       string             `json:"void"`
}

const (
	format      = 2
	journalName = "results.jsonl"
	maxLine     = 16 << 20
	maxResumed  = 1000  // times that a run goes on elsewhere
	maxSteps    = 10000 // of a trial
)

// FormatCounts is the first format of journals in which every trial that counts frames has its raw counts. The lab reads former ones, too.
const FormatCounts = 2

// ErrJournal says that a journal cannot be used.
var ErrJournal = errors.New("journal")

// Journal is a run on disk: a header, then one line a trial (before it one a step, if it is made of many) or a resumption, appended and synced one by one. A line
// that a crash cut off is taken away when it is opened again; nothing else is ever rewritten.
type Journal struct {
	Header  Header
	Records []Record
	Resumed []Resumption
	f       *os.File
	done    map[string]bool
	steps   map[string][]Step // by the key of their trial
	lines   int               // of steps
	planned map[string]bool   // keys of the schedule
}

// Create begins a journal in a directory that has none.
func Create(dir string, h Header) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err == nil && isKept(dir) {
		err = errors.Join(os.ErrExist, f.Close(), os.Remove(f.Name()))
	}
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%w: %s has results already: resume them, or choose another directory", ErrJournal, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	if err := alone(f, dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	h.Format, h.Schedule = format, digest(h.Study.Schedule(h.Mode, h.Seed))
	j := &Journal{Header: h, f: f, done: map[string]bool{}, steps: map[string][]Step{}}
	if err := j.append(h); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return j, nil
}

// Open reads a journal and goes on with it.
func Open(dir string) (*Journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) && isKept(dir) {
		return nil, fmt.Errorf("%w: %s has only %s, a run that is over: report it, or begin another one", ErrJournal, dir, JournalKept)
	}
	if err != nil {
		return nil, noResults(dir, err)
	}
	if err := alone(f, dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	j := &Journal{f: f, done: map[string]bool{}, steps: map[string][]Step{}}
	good, err := j.read(f)
	if err == nil {
		err = f.Truncate(good)
	}
	if err == nil {
		_, err = f.Seek(good, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", f.Name(), err), f.Close())
	}
	return j, nil
}

// alone locks a journal as long as it is open: two runs that go on with the same one would each make what is left, and it could not be read
// again. A file system without locks has none to ask.
func alone(f *os.File, dir string) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for range looks { // Busy looks at it for a moment
		if !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		time.Sleep(10 * time.Millisecond)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%w: a run is writing to %s now: wait until it ends, or end it; weir lab report tells of it meanwhile", ErrJournal, dir)
	}
	return nil
}

// looks is how often a lock is tried that somebody has who may only be looking.
const looks = 10

// Busy tells whether a run writes to the journal of a directory now.
func Busy(dir string) bool {
	f, err := os.Open(filepath.Join(dir, journalName))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Peek reads the header of a journal, compressed or not, and nothing else.
func Peek(dir string) (h Header, err error) {
	raw, name, err := OpenRaw(dir)
	if err != nil {
		return h, noResults(dir, err)
	}
	defer raw.Close()
	line, err := readLine(bufio.NewReaderSize(raw, 64<<10))
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: it has no header", ErrJournal)
	}
	if err == nil {
		err = json.Unmarshal(line, &h)
	}
	if err != nil {
		return h, fmt.Errorf("%s: %w", name, err)
	}
	return h, nil
}

// Read reads a journal for a report, compressed or not.
func Read(dir string) (*Journal, error) {
	raw, name, err := OpenRaw(dir)
	if err != nil {
		return nil, noResults(dir, err)
	}
	defer raw.Close()
	j := &Journal{done: map[string]bool{}, steps: map[string][]Step{}}
	if _, err := j.read(raw); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return j, nil
}

func noResults(dir string, err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("results: %w: %s is no directory of results, which weir lab run writes", err, dir)
	}
	return fmt.Errorf("results: %w", err)
}

// read gives the length of what is whole.
func (j *Journal) read(raw io.Reader) (good int64, err error) {
	r := bufio.NewReaderSize(raw, 1<<20)
	for n := 0; ; n++ {
		line, err := readLine(r)
		if errors.Is(err, io.EOF) {
			if n == 0 {
				return 0, fmt.Errorf("%w: it has no header", ErrJournal)
			}
			return good, nil // what comes behind the last newline was cut off
		}
		if err != nil {
			return 0, err
		}
		if n == 0 {
			err = json.Unmarshal(line, &j.Header)
			if err == nil && (j.Header.Format < 1 || j.Header.Format > format) {
				err = fmt.Errorf("format %d: this version reads 1 to %d", j.Header.Format, format)
			}
			if err == nil {
				err = j.checkHeader()
			}
		} else {
			err = j.take(line)
		}
		if err != nil {
			return 0, fmt.Errorf("%w: line %d: %w", ErrJournal, n+1, err)
		}
		good += int64(len(line)) + 1
	}
}

func (j *Journal) take(line []byte) error {
	var r struct {
		Record
		stepLine
		resumptionLine
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return err
	}
	if r.Resumed != nil && len(j.Resumed) == maxResumed {
		return fmt.Errorf("more than %d resumptions", maxResumed)
	}
	if r.Resumed != nil {
		j.Resumed = append(j.Resumed, *r.Resumed)
		return nil
	}
	if s := r.Step; s != nil {
		if err := errors.Join(j.checkTrial(s.Of), j.checkStep(*s)); err != nil {
			return err
		}
		j.keepStep(*s)
		return nil
	}
	if err := j.checkTrial(r.Trial); err != nil {
		return err
	}
	key := r.Trial.Key()
	if j.done[key] {
		return fmt.Errorf("trial %s is there twice", key)
	}
	j.done[key] = true
	j.Records = append(j.Records, r.Record)
	return nil
}

// readLine without its newline; io.EOF also for a last line without one.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(line, []byte("\n")), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(line) > maxLine:
			return nil, fmt.Errorf("%w: a line of more than %d bytes", ErrJournal, maxLine)
		}
	}
}

// Left are the trials of the schedule that are not there yet, in its order.
func (j *Journal) Left() []Trial {
	var left []Trial
	for _, t := range j.Header.Study.Schedule(j.Header.Mode, j.Header.Seed) {
		if !j.done[t.Key()] {
			left = append(left, t)
		}
	}
	return left
}

// Add writes a finished trial and returns when it is on the disk.
func (j *Journal) Add(r Record) error {
	key := r.Trial.Key()
	if j.done[key] {
		return fmt.Errorf("%w: trial %s is there already", ErrJournal, key)
	}
	if err := j.append(r); err != nil {
		return err
	}
	j.done[key] = true
	j.Records = append(j.Records, r)
	return nil
}

// append writes one line as a whole, or takes back what a full disk left of it.
func (j *Journal) append(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	at, err := j.f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = j.f.Write(append(b, '\n'))
	}
	if err == nil {
		err = j.f.Sync()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("results: %w", err), j.f.Truncate(at))
	}
	return nil
}

// Close lets the file go.
func (j *Journal) Close() error {
	if j.f == nil {
		return nil
	}
	return j.f.Close()
}
