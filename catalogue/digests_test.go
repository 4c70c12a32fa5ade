package catalogue_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/catalogue"
	"weir.dev/weir/image"
)

// The images are bit by bit those of the list, so everybody can compare. With other tools than the list's only its names are compared.
func TestImagesAreThoseOfTheList(t *testing.T) {
	layout(t)
	want, err := catalogue.ReadDigests(catalogue.DigestsFile)
	if err != nil {
		t.Fatal(err)
	}
	if listed, made := slices.Sorted(maps.Keys(want.Images)), slices.Sorted(maps.Keys(built.digests)); !slices.Equal(listed, made) {
		t.Errorf("%s lists %v, the catalogue has %v: make generate", catalogue.DigestsFile, listed, made)
	}
	here, err := image.Tools(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	if other := want.OtherTools(here); len(other) > 0 {
		t.Skipf("machine lacks the tools of the catalogue's list of digests: %s", strings.Join(other, "; "))
	}
	for _, d := range want.Differ(catalogue.Digests{Images: built.digests}) {
		t.Errorf("%s: make generate writes the list anew", d)
	}
}

// What is written is read again, and lines that are neither an image nor a tool are refused.
func TestListOfDigests(t *testing.T) {
	file := t.TempDir() + "/list"
	one := catalogue.Digests{Tools: []string{"platform linux/vax", "Go go1.2"}, Images: map[string]string{"a:1": "sha256:1", "b:1": "sha256:2"}}
	if err := one.Write(file); err != nil {
		t.Fatal(err)
	}
	again, err := catalogue.ReadDigests(file)
	if err != nil || !slices.Equal(again.Tools, one.Tools) || !maps.Equal(again.Images, one.Images) {
		t.Errorf("%+v, %v: want %+v", again, err, one)
	}
	if other := one.OtherTools([]string{"platform linux/vax", "Go go1.3", "C"}); !slices.Equal(other, []string{"Go go1.2, here Go go1.3", "nothing, here C"}) {
		t.Errorf("%q", other)
	}
	differ := one.Differ(catalogue.Digests{Images: map[string]string{"a:1": "sha256:1", "b:1": "sha256:3", "c:1": "sha256:4"}})
	if want := []string{"b:1: sha256:2 is listed, sha256:3 was built", "c:1: none is listed, sha256:4 was built"}; !slices.Equal(differ, want) {
		t.Errorf("%q: want %q", differ, want)
	}
	if err := (catalogue.Digests{Images: map[string]string{"a:1": "nothing"}}).Write(file); err != nil {
		t.Fatal(err)
	}
	if d, err := catalogue.ReadDigests(file); err == nil {
		t.Errorf("%+v", d)
	}
}
