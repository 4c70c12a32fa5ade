package study

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api/file"
)

// A study of any text is refused with a place, or has a schedule of a bounded length in which no key is there twice.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(strings.Replace(good, "      - {name: platform, levels: [ebpf, bridges, veth]}\n", factors(64), 1)))
	f.Add([]byte(strings.ReplaceAll(good, "bridges, veth", `bridges, "bridges'"`)))
	f.Add([]byte("name: x"))
	f.Fuzz(func(t *testing.T, text []byte) {
		parsed, err := Parse("s.yaml", text, []string{"tcp", "boot"})
		if err != nil {
			var where *file.Error
			if !errors.As(err, &where) || !strings.Contains(err.Error(), "s.yaml") {
				t.Fatalf("an error that names no place: %v", err)
			}
			return
		}
		s := parsed.Study
		if s.size(Quick)+s.size(Full) > 5000 {
			return // it would be right, and long
		}
		for _, m := range []Mode{Quick, Full} {
			schedule, seen := s.Schedule(m, 1), map[string]bool{}
			for _, trial := range schedule {
				if seen[trial.Key()] {
					t.Fatalf("trial %s is there twice", trial.Key())
				}
				seen[trial.Key()] = true
			}
			if len(schedule) < s.size(m) || len(schedule) > 2*s.size(m) {
				t.Fatalf("%d trials, by its size %d and duplicates", len(schedule), s.size(m))
			}
		}
	})
}

// A journal of any bytes is refused with a place, or is read; going on with it takes away an end that was cut off, and nothing else.
func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	j, err := Create(dir, Header{Study: mustLoad(f, good), Mode: Quick, Seed: 7})
	if err != nil {
		f.Fatal(err)
	}
	left := j.Left()
	if err := errors.Join(j.Add(Record{Trial: left[0], Values: map[string]float64{"rate": 1}}), j.AddStep(Step{Of: left[1]}), j.Close()); err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(dir, journalName)
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-5])
	f.Add(bytes.ReplaceAll(whole, []byte(`"blocks":6`), []byte(`"blocks":6000000000000`)))
	f.Add([]byte(`{"format":1}` + "\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		read, err := Read(dir)
		if err != nil {
			if !errors.Is(err, ErrJournal) || !strings.Contains(err.Error(), path) {
				t.Fatalf("an error that names no place: %v", err)
			}
			return
		}
		on, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := on.Close(); err != nil {
			t.Fatal(err)
		}
		kept, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if want := content[:bytes.LastIndexByte(content, '\n')+1]; !bytes.Equal(kept, want) {
			t.Fatalf("going on left %q of %q", kept, content)
		}
		again, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(read.Records, again.Records); diff != "" {
			t.Fatal(diff)
		}
	})
}
