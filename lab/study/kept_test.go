package study

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// compress the journal of a directory, as a run that is over is kept. edit changes the compressed bytes.
func compress(t *testing.T, dir string, edit func([]byte) []byte) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, JournalFile))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, JournalKept), edit(b.Bytes()), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, JournalFile)); err != nil {
		t.Fatal(err)
	}
}

func finished(t *testing.T) (dir string, j *Journal) {
	t.Helper()
	dir = t.TempDir()
	j, err := Create(dir, Header{Study: mustLoad(t, good), Mode: Quick, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	for i, tr := range j.Left() {
		if err := j.Add(Record{Trial: tr, Values: map[string]float64{"rate": float64(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, j
}

// TestCompressedJournalsAreRead like others, and are never gone on with.
func TestCompressedJournalsAreRead(t *testing.T) {
	dir, j := finished(t)
	compress(t, dir, func(b []byte) []byte { return b })
	back, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(j.Records, back.Records); diff != "" || len(back.Left()) != 0 {
		t.Errorf("%d left: %s", len(back.Left()), diff)
	}
	if _, err := Open(dir); !errors.Is(err, ErrJournal) {
		t.Errorf("a compressed run was resumed: %v", err)
	}
	if _, err := Create(dir, Header{Study: j.Header.Study, Mode: Quick}); !errors.Is(err, ErrJournal) {
		t.Errorf("a run began beside a compressed one: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, JournalFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run that was refused left a journal: %v", err)
	}
}

func TestDamagedCompressedJournalsAreRefused(t *testing.T) {
	for name, edit := range map[string]func([]byte) []byte{
		"cut off":        func(b []byte) []byte { return b[:len(b)/2] },
		"a bit flipped":  func(b []byte) []byte { b[len(b)-6] ^= 1; return b }, // of its checksum
		"more behind it": func(b []byte) []byte { return append(b, "more"...) },
		"no gzip":        func([]byte) []byte { return []byte("{}\n") },
		"empty":          func([]byte) []byte { return nil },
	} {
		dir, _ := finished(t)
		compress(t, dir, edit)
		if j, err := Read(dir); err == nil {
			t.Errorf("%s: %d records were read", name, len(j.Records))
		}
	}
}

func TestCompressedJournalsAreBounded(t *testing.T) {
	dir, _ := finished(t)
	compress(t, dir, func(b []byte) []byte { return b })
	raw, _, err := OpenRaw(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	k := raw.(*keptJournal)
	k.left = 100
	j := &Journal{done: map[string]bool{}, steps: map[string][]Step{}}
	if _, err := j.read(k); !errors.Is(err, errTooLong) {
		t.Errorf("more than its bound was read: %v", err)
	}
}
