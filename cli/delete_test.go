package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"weir.dev/weir/cli"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/store/mem"
)

// A file with more objects than the manager keeps operations is deleted, and waited for, without a word of operations.
func TestDeleteOfAFileWithThousandsOfObjects(t *testing.T) {
	dir, err := os.MkdirTemp("", "weir-cli-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	_, stop, err := serve(dir, mem.New())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	const n = 1500
	var text strings.Builder
	text.WriteString("endpoints:\n")
	for i := range n {
		fmt.Fprintf(&text, "  e%d: {netns: n%d, interface: eth0, address: 10.%d.%d.1/32}\n", i, i, i/256, i%256)
	}
	in := dir + "/in.yaml"
	if err := os.WriteFile(in, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	weir := func(args ...string) string {
		var out, errs bytes.Buffer
		args = append(args, "--socket", dir+"/api.sock")
		if code := cli.Main(cli.Options{Version: "test", Stdout: &out, Stderr: &errs}, args); code != 0 || strings.Contains(errs.String(), "operation") {
			t.Fatalf("weir %s: code %d: %.500s", strings.Join(args, " "), code, errs.String())
		}
		return out.String()
	}
	weir("apply", "-f", in)
	if got := strings.Count(weir("delete", "-f", in), "- endpoint/e"); got != n {
		t.Errorf("%d endpoints were deleted, want %d", got, n)
	}
	if left := weir("get", "endpoints", "-o", "table"); strings.Contains(left, "e1") {
		t.Errorf("left: %.200s", left)
	}
	weir("apply", "-f", in) // and by their names
	names := []string{"delete", "endpoint"}
	for i := range n {
		names = append(names, fmt.Sprint("e", i))
	}
	if got := strings.Count(weir(names...), "- endpoint/e"); got != n {
		t.Errorf("%d endpoints were deleted by name, want %d", got, n)
	}
	if left := weir("get", "endpoints", "-o", "table"); strings.Contains(left, "e1") {
		t.Errorf("left: %.200s", left)
	}
	var out, errs bytes.Buffer
	code := cli.Main(cli.Options{Version: "test", Stdout: &out, Stderr: &errs}, append(names, "--socket", dir+"/api.sock"))
	if code != command.ExitNotFound || !strings.Contains(errs.String(), `endpoint "e1499"`) {
		t.Errorf("of names that do not exist: code %d: %.300s", code, errs.String())
	}
	weir(append(names, "--ignore-not-found")...)
}
