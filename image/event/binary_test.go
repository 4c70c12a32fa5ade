package event

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The committed binaries are what event.c gives: with the compiler that made them they are made again, with another one the source alone is compared.
func TestTheBinariesAreThoseOfTheSource(t *testing.T) {
	source, err := os.ReadFile("event.c")
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile("event.sum")
	if err != nil {
		t.Fatal(err)
	}
	compiler, rest, _ := strings.Cut(string(sum), "\n")
	if want := fmt.Sprintf("%x  event.c\n", sha256.Sum256(source)); rest != want {
		t.Errorf("the binaries were built from another event.c (%s): go generate ./image/event", strings.TrimSpace(rest))
	}
	version, err := exec.Command("clang", "--version").Output()
	if err != nil {
		t.Fatalf("%v (apt-get install clang lld)", err)
	}
	if here, _, _ := strings.Cut(string(version), "\n"); here != compiler {
		t.Logf("built by %s, here is %s", compiler, here)
		return
	}
	text, err := os.ReadFile("event.go")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^//go:generate (clang .*)$`).FindAllStringSubmatch(string(text), -1)
	if len(commands) != 2 {
		t.Fatalf("%d commands, want one for each processor", len(commands))
	}
	for _, c := range commands {
		args := strings.Fields(c[1])
		at := slices.Index(args, "-o") + 1
		committed := args[at]
		args[at] = filepath.Join(t.TempDir(), committed)
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		want, err := os.ReadFile(args[at])
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(committed)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s is not what event.c gives: go generate ./image/event", committed)
		}
	}
}

// It costs an image little.
func TestTheProgramIsSmall(t *testing.T) {
	const most = 8 << 10
	for _, file := range []string{"event_amd64.elf", "event_arm64.elf"} {
		if info, err := os.Stat(file); err != nil || info.Size() > most {
			t.Errorf("%s: %v, %v: want at most %d bytes", file, info, err, most)
		}
	}
}
