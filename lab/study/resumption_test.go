package study

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestAnotherVersionOrMachineIsKept: a journal tells where a run went on not as it was, and its trials are read as ever.
func TestAnotherVersionOrMachineIsKept(t *testing.T) {
	s := mustLoad(t, good)
	dir := t.TempDir()
	env := func(kernel string) map[string]string { return map[string]string{"kernel": kernel} }
	j, err := Create(dir, Header{Study: s, Mode: Quick, Version: "1", Environment: env("6.1")})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(100, 0).UTC()
	want := []Resumption{{at, "2", env("6.1")}, {at, "2", env("6.2")}, {at, "1", env("6.1")}}
	on := []Resumption{{at, "1", env("6.1")}, want[0], want[0], want[1], want[2], want[2]}
	for _, r := range on {
		if err := j.GoOn(r); err != nil {
			t.Fatal(err)
		}
		if err := j.Add(Record{Trial: j.Left()[0]}); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if j, err = Open(dir); err != nil {
			t.Fatal(err)
		}
	}
	defer j.Close()
	if d := cmp.Diff(want, j.Resumed); d != "" || len(j.Records) != len(on) {
		t.Errorf("%d records\n%s", len(j.Records), d)
	}
	for when, version := range map[time.Time]string{{}: "1", at.Add(-1): "1", at: "1"} { // the last resumption was by the first version again
		if got := j.VersionAt(when); got != version {
			t.Errorf("at %v it was made by version %s, want %s", when, got, version)
		}
	}
	j.Resumed = want[:1]
	if before, behind := j.VersionAt(at.Add(-1)), j.VersionAt(at); before != "1" || behind != "2" {
		t.Errorf("made by version %s before, by %s behind", before, behind)
	}
}
