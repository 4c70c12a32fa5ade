package cli_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/cli"
	"weir.dev/weir/cli/command"
)

// Each command that reads a file ends with the same code if the file cannot be used, whatever is wrong with it, before it asks a daemon (there is none here).
func TestUnusableFilesHaveOneCode(t *testing.T) {
	const (
		missing   = "missing"
		directory = "a directory"
		garbage   = "garbage"
		empty     = "empty"
	)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	bad := map[string]string{missing: path("nowhere"), directory: path("directory"), garbage: path("garbage"), empty: path("empty")}
	recipe, goodTargets := path("recipe"), path("targets.yaml")
	for file, text := range map[string]string{
		path("token.yaml"): "targets: [{name: hook, webhook: 'http://127.0.0.1:9/', token_file: " + bad[missing] + "}]\n",
		bad[garbage]:       "\x00\x01 {{ not: this", bad[empty]: "", goodTargets: "targets: [{name: hook, webhook: 'http://127.0.0.1:9/'}]\n",
		filepath.Join(bad[directory], "image.yaml"): "\x00 {{", filepath.Join(recipe, "image.yaml"): "name: x\ntag: \"1\"\nentrypoint: [/x]\nfiles:\n  - {to: /x, from: nowhere, mode: 0755}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	all := []string{missing, directory, garbage, empty}
	unreadable := []string{missing, directory}
	for _, c := range []struct {
		args  string // FILE is the file
		kinds []string
	}{
		{"apply -f FILE", all},
		{"apply -f FILE --plan", all},
		{"check -f FILE", all},
		{"check -f FILE -o json", unreadable},
		{"delete -f FILE", all},
		{"notify FILE", all},
		{"notify " + goodTargets + " --state FILE", []string{directory, garbage, empty}}, // a missing one is made
		{"notify " + path("token.yaml"), []string{missing}},                              // with a token that is missing
		{"secret set x --from FILE", []string{missing, directory, empty}},
		{"switch cert 1 --request FILE --out " + path("out"), unreadable},
		{"status --url http://127.0.0.1:9 --token-file FILE", unreadable},
		{"lab describe FILE", all},
		{"lab run FILE", all},
		{"testbed up FILE", all},
		{"testbed down FILE", all},
		{"testbed list FILE", all},
		{"image build FILE", all},
		{"image build " + recipe, []string{missing}}, // of a file that it names
		{"image import FILE", all},
		{"image sign wire --key FILE", all},
		{"image verify wire --key FILE", all},
		{"image serve --listen 127.0.0.1:0 --token-file FILE", all},
		{"image serve --listen 127.0.0.1:0 --tls-cert FILE --tls-key FILE", all},
		{"function run wire --config FILE -- true", []string{missing, directory, garbage}}, // an empty one configures nothing
		{"function test wire --in " + bad[empty] + " --event X --config FILE", []string{missing, directory, garbage, empty}},
		{"function test wire --in FILE --event X", all},
		{"function run FILE -- true", []string{directory}},
		{"function test " + recipe + " --in " + path("in.pcap") + " --event X", []string{missing}},
	} {
		for _, kind := range c.kinds {
			t.Run(c.args+"/"+kind, func(t *testing.T) {
				var says bytes.Buffer
				args := append([]string{"--root", path("root")}, strings.Fields(strings.ReplaceAll(c.args, "FILE", bad[kind]))...)
				if !slices.Contains(args, "--url") {
					args = append([]string{"--socket", path("no.sock")}, args...)
				}
				code := cli.Main(cli.Options{Version: "test", Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &says}, args)
				if code != command.ExitInvalid {
					t.Errorf("weir %s: code %d, want %d: %s", strings.Join(args, " "), code, command.ExitInvalid, says.String())
				}
			})
		}
	}
}

// An argument that may be a name and is neither a name nor a file is an object that is missing; one that can only be a file is a file.
func TestMissingNamesHaveAnotherCode(t *testing.T) {
	dir := t.TempDir()
	for args, want := range map[string]int{
		"lab describe wirse":                      command.ExitNotFound,
		"lab describe ./wirse":                    command.ExitInvalid,
		"lab report " + filepath.Join(dir, "no"):  command.ExitNotFound,
		"lab report " + dir:                       command.ExitNotFound,
		"image inspect nobody":                    command.ExitNotFound,
		"testbed list ./nobody":                   command.ExitInvalid,
		"function test ./nobody --in x --event X": command.ExitInvalid, // the frames are read first
		"function run ./nobody -- true":           command.ExitNotFound,
	} {
		var says bytes.Buffer
		code := cli.Main(cli.Options{Version: "test", Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &says}, append([]string{"--root", filepath.Join(dir, "root")}, strings.Fields(args)...))
		if code != want {
			t.Errorf("weir %s: code %d, want %d: %s", args, code, want, says.String())
		}
	}
}
