package kvm

import (
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// The guest's program that is committed is the one that its source gives.
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
	if info.GoVersion != runtime.Version() {
		t.Skipf("it was built by %s, and this is %s: another compiler gives other bytes", info.GoVersion, runtime.Version())
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
