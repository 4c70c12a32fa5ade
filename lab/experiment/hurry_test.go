package experiment

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHurriedKernelIsSetBack(t *testing.T) {
	file, mark := filepath.Join(t.TempDir(), "rcu_expedited"), filepath.Join(t.TempDir(), "mark")
	value := func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	set := func(v string) {
		if err := os.WriteFile(file, []byte(v+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set("0")
	back, err := hurry(file, mark)
	if err != nil || value() != "1" {
		t.Fatalf("%v, and the file has %q, not 1", err, value())
	}
	other, err := hurry(file, filepath.Join(t.TempDir(), "mark")) // of another run meanwhile
	if err != nil {
		t.Fatal(err)
	}
	if err := other(); err != nil || value() != "1" {
		t.Fatalf("%v, and another run has set it to %q", err, value())
	}
	if err := back(); err != nil || value() != "0" {
		t.Fatalf("%v, and the file has %q, not 0", err, value())
	}
	if _, err := hurry(file, mark); err != nil || value() != "1" { // killed before it is set back
		t.Fatalf("%v, and the file has %q, not 1", err, value())
	}
	if err := calm(file, mark); err != nil || value() != "0" {
		t.Fatalf("%v, and the next run leaves %q", err, value())
	}
	set("1") // by the machine's owner
	if back, err = hurry(file, mark); err != nil {
		t.Fatal(err)
	}
	if err := back(); err != nil || value() != "1" {
		t.Fatalf("%v, and the owner's setting is %q now", err, value())
	}
	if err := calm(file, mark); err != nil || value() != "1" {
		t.Fatalf("%v, and the next run makes %q of the owner's setting", err, value())
	}
	if _, err := hurry(filepath.Join(t.TempDir(), "none"), mark); err != nil {
		t.Fatalf("a kernel without the file: %v", err)
	}
}
