package desk

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/lab"
	"weir.dev/weir/lab/study"
)

func newDesk(t *testing.T) *Desk {
	t.Helper()
	d, err := New(Options{Dir: filepath.Join(t.TempDir(), "lab"), Program: "/bin/false", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// begin a run as weir lab run does, without its trials.
func begin(t *testing.T, dir string) *study.Journal {
	t.Helper()
	s, err := lab.Load("aa", nil)
	if err != nil {
		t.Fatal(err)
	}
	j, err := study.Create(dir, study.Header{Study: s, Mode: study.Quick, Seed: 7, Started: time.Now().UTC(), Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func statusOf(err error) int {
	var p *api.ProblemError
	if errors.As(err, &p) {
		return p.Status
	}
	return 0
}

// A run goes on while its journal is locked; cut off, it says how far it was; with results of all trials it is complete.
func TestStatesOfARun(t *testing.T) {
	d := newDesk(t)
	at := filepath.Join(d.Dir, "one")
	j := begin(t, at)
	planned := len(j.Left())
	noted := &lab.Noted{Progress: lab.Silent{}, Dir: at}
	noted.Begin(planned, 0)
	noted.Part(j.Header.Study.Parts[0], planned)
	get := func(want api.LabState, left int) api.LabRun {
		t.Helper()
		r, err := d.Get("one")
		if err != nil || r.State != want || r.Left != left || r.Planned != planned {
			t.Fatalf("%+v, %v: want %s with %d of %d left", r, err, want, left, planned)
		}
		return r
	}
	if r := get(api.LabRunning, planned); r.Progress == nil || r.Progress.Part != "idle" || r.Progress.PID != os.Getpid() {
		t.Errorf("progress %+v", r.Progress)
	}
	for _, refused := range []error{second(d.Resume(t.Context(), "one")), second(d.Cancel("one")), d.Delete("one"), third(d.Report(t.Context(), "one"))} {
		if statusOf(refused) != http.StatusConflict {
			t.Errorf("of a run that goes on: %v", refused)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if r := get(api.LabPartial, planned); !strings.Contains(r.Message, "killed") || !cutOff(r) {
		t.Errorf("cut off: %+v", r)
	}
	noted.End()
	if err := lab.Save(at, lab.Results{Planned: planned, Measured: planned - 1, Void: 1}); err != nil {
		t.Fatal(err)
	}
	if r := get(api.LabComplete, 0); r.Measured != planned-1 || r.Void != 1 || r.Progress != nil {
		t.Errorf("complete: %+v", r)
	}
	if _, err := d.Resume(t.Context(), "one"); statusOf(err) != http.StatusConflict {
		t.Errorf("resume of a complete run: %v", err)
	}
}

func second(_ api.LabRun, err error) error      { return err }
func third(_ []byte, _ string, err error) error { return err }

// What is no run is not listed; a run that cannot be read says why, and is in nobody's way.
func TestWhatIsNoRun(t *testing.T) {
	d := newDesk(t)
	if list, err := d.Runs(); err != nil || len(list.Items) != 0 {
		t.Fatalf("without a directory: %+v, %v", list, err)
	}
	if err := begin(t, filepath.Join(d.Dir, "good")).Close(); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := begin(t, outside).Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.Mkdir(filepath.Join(d.Dir, "bad"), 0o755), os.WriteFile(filepath.Join(d.Dir, "bad", study.JournalFile), []byte("{"), 0o644),
		os.Mkdir(filepath.Join(d.Dir, "empty"), 0o755), os.Symlink(outside, filepath.Join(d.Dir, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	list, err := d.Runs()
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, r := range list.Items {
		if want := map[string]api.LabState{"good": api.LabPartial, "bad": api.LabDamaged}[r.Name]; r.State != want || want == api.LabDamaged && r.Message == "" {
			t.Errorf("%+v, want %s", r, want)
		}
	}
	for _, name := range []string{"empty", "link", "none", "..", "../outside", "", "good/..", strings.Repeat("x", 200)} {
		if _, err := d.Get(name); statusOf(err) != http.StatusNotFound {
			t.Errorf("%q: %v", name, err)
		}
		if err := d.Delete(name); statusOf(err) != http.StatusNotFound {
			t.Errorf("delete %q: %v", name, err)
		}
	}
}

// Only what the lab wrote of a run is deleted.
func TestDeleteKeepsWhatTheLabDidNotWrite(t *testing.T) {
	d := newDesk(t)
	at := filepath.Join(d.Dir, "one")
	if err := begin(t, at).Close(); err != nil {
		t.Fatal(err)
	}
	notes := filepath.Join(at, "notes.txt")
	if err := os.WriteFile(notes, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := d.Delete("one"); statusOf(err) != http.StatusConflict || !strings.Contains(err.Error(), "stay") {
		t.Errorf("delete: %v", err)
	}
	if b, err := os.ReadFile(notes); err != nil || string(b) != "mine" {
		t.Errorf("notes: %q, %v", b, err)
	}
	if _, err := d.Get("one"); statusOf(err) != http.StatusNotFound {
		t.Errorf("it is still there: %v", err)
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	d := newDesk(t)
	for name, r := range map[string]api.LabRequest{
		"no study":    {},
		"a file":      {Study: "/etc/passwd"},
		"a selection": {Study: "aa", Only: "part"},
		"no part":     {Study: "aa", Only: "part=none"},
		"long":        {Study: "aa", Only: strings.Repeat("a=b,", maxOnly)},
		"seed":        {Study: "aa", Seed: -1},
	} {
		if _, err := d.Start(t.Context(), r); statusOf(err) != http.StatusUnprocessableEntity {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, err := os.ReadDir(d.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused request made %v, %v", entries, err)
	}
}

// A process that ends without a journal leaves no run, and its words are the answer.
func TestARunThatDoesNotBegin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run as root")
	}
	d := newDesk(t)
	program := filepath.Join(t.TempDir(), "weir")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho 'weir: no hands' >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.Program = program
	if _, err := d.Start(t.Context(), api.LabRequest{Study: "aa"}); statusOf(err) != http.StatusConflict || !strings.Contains(err.Error(), "no hands") {
		t.Errorf("start: %v", err)
	}
	if entries, err := os.ReadDir(d.Dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if list, err := d.Runs(); err != nil || list.Refused != "" {
		t.Errorf("then: %+v, %v", list, err)
	}
	if _, err := d.Doctor(context.Background()); err == nil || !strings.Contains(err.Error(), "no hands") {
		t.Errorf("doctor: %v", err)
	}
}

// A directory that others may write to is refused: what is in it is read by root.
func TestADirectoryOfOthersIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("%v", err)
	}
}

// A directory that others may write to, or that is another user's, is refused; a link in place of a run's log is not followed.
func TestDirectoriesOfOthers(t *testing.T) {
	for want, spoil := range map[string]func(dir string) error{
		"others may write":     func(dir string) error { return os.Chmod(dir, 0o777) },
		"belongs to user 1234": func(dir string) error { return os.Chown(dir, 1234, 0) },
	} {
		dir := t.TempDir()
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := New(Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	d := newDesk(t)
	at := filepath.Join(d.Dir, "one")
	if err := begin(t, at).Close(); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := errors.Join(os.WriteFile(other, []byte("kept"), 0o600), os.Symlink(other, filepath.Join(at, logFile))); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Resume(t.Context(), "one"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("resume over a link: %v", err)
	}
	if b, err := os.ReadFile(other); err != nil || string(b) != "kept" {
		t.Errorf("%q, %v", b, err)
	}
}
