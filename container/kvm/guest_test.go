package kvm

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// The guest's program that is committed is the one that its source gives: the sums beside it are those of the source, and where this compiler is the one that
// built it, the bytes are the same. (Another compiler's bytes are others.)
func TestGuestIsBuiltFromItsSource(t *testing.T) {
	z, err := gzip.NewReader(bytes.NewReader(guest))
	if err != nil {
		t.Fatal(err)
	}
	have, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.Read(bytes.NewReader(have))
	if err != nil {
		t.Fatal(err)
	}
	sums(t)
	if info.GoVersion != runtime.Version() {
		return
	}
	out := filepath.Join(t.TempDir(), "guest")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", out, "./guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	want, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Error("guest_amd64.gz is not what ./guest gives: go generate ./container/kvm")
	}
}

// sums compares the source with guest_amd64.sum.
func sums(t *testing.T) {
	t.Helper()
	var files []string
	for _, pattern := range []string{"guest/*.go", "channel/*.go", "../kernel/launcher/*.go", "../kernel/launcher/*.elf"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	var want []string
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("%x  %s", sha256.Sum256(raw), f))
	}
	have, err := os.ReadFile("guest_amd64.sum")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(string(have)), "\n")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("guest_amd64.gz was built from other source: go generate ./container/kvm\n%s\nnow:\n%s", have, strings.Join(want, "\n"))
	}
}
