package nf

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program prints the line of each frame of its input, "-" for those without a flow. Frames end where memory ends.
const program = `
#include <stdlib.h>
#include <sys/mman.h>
#include "settle.h"

int main(void)
{
	static char hex[20000];
	char *end = (char *)mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 3 * 4096;

	mprotect(end, 4096, PROT_NONE);
	while (fgets(hex, sizeof(hex), stdin)) {
		char line[256] = "-\n";
		size_t i, n = strcspn(hex, "\n") / 2;
		unsigned char *frame = (unsigned char *)end - n;

		for (i = 0; i < n; i++)
			sscanf(hex + 2 * i, "%2hhx", frame + i);
		settle_flow(line, sizeof(line), "judge", frame, n);
		fputs(line, stdout);
	}
	return 0;
}
`

// The header for functions in C names flows as this package does, and reads no byte beyond a frame.
func TestTheHeaderForCNamesFlowsAlike(t *testing.T) {
	header, err := filepath.Abs("../../examples/settle")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "lines.c"), filepath.Join(dir, "lines")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("clang", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-fsanitize=undefined", "-fsanitize-trap=all",
		"-I", header, "-o", binary, source).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	udp := []byte(strings.Replace(string(ether(v4))+"\x0f\xa0\x00\x35\x00\x14\x00\x00"+strings.Repeat("x", 12), "\x40\x06", "\x40\x11", 1))
	seeds := [][]byte{tcpFrame("", ACK), tcpFrame("", SYN), tcpFrame("\x81\x00\x60\x07", ACK), udp, append(ether(v6), 128, 0, 0, 0, 0, 9, 0, 1),
		append(ether(v6), 129, 0, 0, 0, 0, 9, 0, 1), append(ether("\x81\x00\x60\x07"+v6), 129, 0, 0, 0, 0, 9, 0, 1)}
	frames, r := bytes.Clone(nil), rand.New(rand.NewPCG(1, 2))
	var all [][]byte
	for i := range 20000 {
		f := bytes.Clone(seeds[i%len(seeds)])
		if i >= len(seeds) {
			for range r.IntN(3) {
				f[12+r.IntN(len(f)-12)] = byte(r.IntN(256))
			}
			f = f[:len(f)-r.IntN(2)*r.IntN(len(f))]
		}
		if len(f) == 0 {
			continue
		}
		all = append(all, f)
		frames = append(append(frames, hex.EncodeToString(f)...), '\n')
	}
	cmd := exec.Command(binary)
	cmd.Stdin = bytes.NewReader(frames)
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines, named := bufio.NewScanner(bytes.NewReader(text)), 0
	for i, f := range all {
		if !lines.Scan() {
			t.Fatalf("%d lines for %d frames", i, len(all))
		}
		flow, ok := flowOf(f)
		if !ok { // C looks at less: the switch looks at all
			continue
		}
		named++
		if want := flow.line("judge"); lines.Text() != want {
			t.Errorf("%x: %q, want %q", f, lines.Text(), want)
		}
	}
	if named < len(all)/4 {
		t.Errorf("only %d of %d frames have a flow", named, len(all))
	}
}
