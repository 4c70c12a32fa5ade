package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The page of the papers' claims is what the kept runs say.
func TestPapersAreThoseOfTheRuns(t *testing.T) {
	const top = "../../.."
	is, err := papers(top)
	if err != nil {
		t.Fatal(err)
	}
	if page, err := os.ReadFile(filepath.Join(top, papersFile)); err != nil || string(page) != string(is) {
		t.Errorf("%s is not what the runs say (%v): `make generate` writes it", papersFile, err)
	}
}
