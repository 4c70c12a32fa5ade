package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A plan lists what would go and why the rest stays, and changes nothing; then exactly that goes.
func TestCollectSaysWhatGoesAndWhatStays(t *testing.T) {
	s := newStore(t, filepath.Join(t.TempDir(), "shipped"))
	if got, err := s.Collect(t.Context(), CollectOptions{Plan: true}); err != nil || len(got.Removed)+len(got.Kept) != 0 {
		t.Errorf("%+v, %v of a layout that is not there", got, err)
	}
	built(t, s.own, recipe(t, "fw", "1", "hello"))
	unused := strings.Repeat("a", 64)
	blob, half := filepath.Join(s.own, "blobs", "sha256", unused), filepath.Join(s.own, partialsDir, "half")
	killed := filepath.Join(s.own, partialsDir, halfPrefix+"killed")
	must(t, os.WriteFile(blob, []byte("12345"), 0o600))
	must(t, os.MkdirAll(killed, 0o700))
	must(t, os.WriteFile(half, []byte("123"), 0o600))
	must(t, os.WriteFile(filepath.Join(killed, "archive"), []byte("12"), 0o600))
	goesOn, err := writable(s.own).half(context.WithoutCancel(t.Context())) // and takes killed for what it is
	must(t, err)
	must(t, os.MkdirAll(killed, 0o700))
	must(t, os.WriteFile(filepath.Join(killed, "archive"), []byte("12"), 0o600))
	running := filepath.Base(goesOn.Name())
	before := leftIn(t, s.own)
	want := []Collectable{{"half", 3, whyHalf}, {halfPrefix + "killed", 2, whyKilled}, {"sha256:" + unused, 5, whyUnused}}
	for _, o := range []CollectOptions{{Plan: true, Now: true}, {Plan: true}, {Now: true}} {
		got, err := s.Collect(t.Context(), o)
		must(t, err)
		slices.SortFunc(got.Removed, func(a, b Collectable) int { return strings.Compare(a.Name, b.Name) })
		if d := cmp.Diff(want, got.Removed); d != "" || got.Freed != 10 {
			t.Errorf("%+v: %d bytes: %s", o, got.Freed, d)
		}
		if len(got.Kept) != 2 || got.Kept[0].Name != "fw:1" || got.Kept[0].Size < 100 || !strings.Contains(got.Kept[0].Why, "`weir image delete fw:1`") ||
			got.Kept[1] != (Collectable{running, 0, whyImporting}) {
			t.Errorf("%+v: kept %+v", o, got.Kept)
		}
		if after := leftIn(t, s.own); o.Plan && !slices.Equal(before, after) {
			t.Errorf("%+v: a plan has changed the layout:\n%s", o, cmp.Diff(before, after))
		}
	}
	for _, gone := range []string{blob, half, killed} {
		if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", gone, err)
		}
	}
	must(t, errors.Join(goesOn.Close(), os.Remove(filepath.Join(s.own, partialsDir, running))))
	if _, err := s.Verify(t.Context(), "fw"); err != nil {
		t.Error(err)
	}
	// While somebody adds an image, who does not wait is told so.
	use, err := writable(s.own).hold(t.Context(), useFile, unix.LOCK_SH)
	must(t, err)
	for _, plan := range []bool{true, false} {
		if _, err := s.Collect(t.Context(), CollectOptions{Plan: plan, Now: true}); !errors.Is(err, ErrBusy) {
			t.Errorf("plan %t: %v: want %v", plan, err, ErrBusy)
		}
	}
	must(t, use.Close())
}

// A signature of an image of another layout stays as long as that has the image; a plan says so, too.
func TestCollectKeepsWhatIsAboutImagesOfOtherLayouts(t *testing.T) {
	shipped := filepath.Join(t.TempDir(), "shipped")
	s := newStore(t, shipped)
	built(t, shipped, recipe(t, "fw", "1", "hello"))
	private, _ := keyPair(t)
	key, err := ReadPrivateKey(private, noPassword)
	must(t, err)
	_, err = s.Sign(t.Context(), "fw:1", "", key)
	must(t, err)
	got, err := s.Collect(t.Context(), CollectOptions{})
	if err != nil || len(got.Removed) != 0 || len(got.Kept) == 0 || !strings.Contains(got.Kept[0].Why, "image of another layout") {
		t.Fatalf("%+v, %v", got, err)
	}
	must(t, os.RemoveAll(shipped))
	for _, plan := range []bool{true, false} {
		if got, err = s.Collect(t.Context(), CollectOptions{Plan: plan}); err != nil || len(got.Kept) != 0 || len(got.Removed) == 0 || got.Freed == 0 {
			t.Errorf("plan %t: %+v, %v", plan, got, err)
		}
	}
	if all, err := readReferrers(s.own); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	if left := leftIn(t, filepath.Join(s.own, "blobs")); len(left) != 0 {
		t.Errorf("%v are left", left)
	}
}

// An archive names its image as the store does, also where it was asked for without the tag.
func TestAnArchiveHasTheTag(t *testing.T) {
	from := newStore(t)
	digest := built(t, from.own, recipe(t, "fw", "3", "hello"))
	for ref, want := range map[string]string{"fw": "fw:3", "fw:3": "fw:3", digest: digest} {
		var archive bytes.Buffer
		must(t, from.Export(t.Context(), ref, &archive))
		to := newStore(t)
		all, err := to.ImportFrom(t.Context(), io.Reader(&archive), "")
		if err != nil || len(all) != 1 || all[0].Ref != want {
			t.Errorf("%s: %+v, %v: want %s", ref, all, err, want)
		}
	}
}
