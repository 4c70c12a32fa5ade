package cli_test

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir.dev/weir/cli"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func tree() *cobra.Command {
	return cli.New(cli.Options{Version: "test", Stdout: io.Discard, Stderr: io.Discard})
}

func each(c *cobra.Command, do func(*cobra.Command)) {
	do(c)
	for _, sub := range c.Commands() {
		each(sub, do)
	}
}

func TestEveryCommandHasHelpAndExamples(t *testing.T) {
	each(tree(), func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s has no short help", c.CommandPath())
		}
		if strings.TrimSpace(c.Example) == "" {
			t.Errorf("%s has no examples", c.CommandPath())
		}
		for _, line := range strings.Split(c.Example, "\n") {
			if !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: example line %q is not indented by two", c.CommandPath(), line)
			}
		}
	})
}

// Each example must name a command that exists, with flags that it has.
func TestExamplesParse(t *testing.T) {
	each(tree(), func(c *cobra.Command) {
		for _, line := range strings.Split(c.Example, "\n") {
			_, line, ok := strings.Cut(line, "weir ")
			if !ok || strings.HasPrefix(strings.TrimSpace(line), "|") {
				continue
			}
			line, _, _ = strings.Cut(line, " >")
			line, _, _ = strings.Cut(line, " | ")
			line, _, _ = strings.Cut(line, ";")
			line = strings.TrimSuffix(line, ")")
			line = strings.ReplaceAll(line, "[tcp/80, icmp]", "[tcp/80,icmp]")
			root := tree()
			cmd, args, err := root.Find(strings.Fields(line))
			if err != nil || cmd == root && len(args) > 0 {
				t.Errorf("%s: example %q names no command: %v", c.CommandPath(), line, err)
				continue
			}
			if err := cmd.ParseFlags(args); err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
				continue
			}
			if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
			}
		}
	})
}

var (
	inText = regexp.MustCompile("`weir ([^`]+)`")
	flags  = regexp.MustCompile(`(?:^| )--([a-z][a-z-]*)`)
)

// Each command that a page names in a sentence must be there, with its flags.
func TestPagesNameCommandsThatExist(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"../README.md", "../docs/*.md", "../catalogue/*/README.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		pages = append(pages, found...)
	}
	n := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range inText.FindAllStringSubmatch(strings.ReplaceAll(string(text), "\n", " "), -1) {
			line, _, _ := strings.Cut(m[1], " -- ")
			line, _, _ = strings.Cut(line, " | ")
			root := tree()
			root.InitDefaultHelpCmd()
			cmd, args, err := root.Find(strings.Fields(line))
			switch {
			case err != nil || cmd == root && len(args) > 0 && !strings.HasPrefix(args[0], "-"):
				t.Errorf("%s: `weir %s` is no command: %v", page, m[1], err)
				continue
			case cmd.HasSubCommands() && len(args) > 0 && regexp.MustCompile(`^[a-z]+$`).MatchString(args[0]):
				t.Errorf("%s: `weir %s`: %s has no command %s", page, m[1], cmd.CommandPath(), args[0])
			}
			for _, f := range flags.FindAllStringSubmatch(line, -1) {
				if cmd.Flag(f[1]) == nil {
					t.Errorf("%s: `weir %s`: %s has no flag --%s", page, m[1], cmd.CommandPath(), f[1])
				}
			}
			n++
		}
	}
	if n < 100 {
		t.Errorf("only %d commands were found", n)
	}
}

func variable(flag string) string {
	return "WEIR_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// ofOneDeed tells whether a flag is of one deed, which a variable would have done at each start, or with each object. The variables of the stations' addresses have their
// namespaces, for commands of weir function run.
func ofOneDeed(command, flag string) bool {
	if command == "weir function run" && (flag == "client" || flag == "server") {
		return true
	}
	return (command == "weir up" || command == "weir manager") && (flag == "restore" || flag == "replace") || strings.HasPrefix(command, "weir function ") && flag == "runtime"
}

func TestEveryFlagNamesItsEnvironmentVariable(t *testing.T) {
	each(tree(), func(c *cobra.Command) {
		check := func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			times := 1
			if ofOneDeed(c.CommandPath(), f.Name) {
				times = 0
			}
			if want := " [$" + variable(f.Name) + "]"; strings.Count(f.Usage, want) != times {
				t.Errorf("%s --%s: usage %q: want %q %d times", c.CommandPath(), f.Name, f.Usage, want, times)
			}
		}
		c.PersistentFlags().VisitAll(check)
		c.LocalNonPersistentFlags().VisitAll(check)
	})
}

// Every flag of every command really is set by its variable, and the command line wins.
func TestEveryFlagIsSetByItsEnvironmentVariable(t *testing.T) {
	for _, e := range os.Environ() { // those of who runs the tests
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "WEIR_") {
			t.Setenv(name, "") // put back at the end
			os.Unsetenv(name)
		}
	}
	samples := map[string]string{"bool": "true", "string": "x", "int": "7", "uint64": "7", "duration": "7s", "stringArray": "a,b"}
	special := map[string]string{"output": "json", "name": "abc", "url": "", "function-memory": "64M", "function-cpus": "50%", "function-disk": "8M", "function-rings": "8M"}
	var paths [][]string
	each(tree(), func(c *cobra.Command) { paths = append(paths, strings.Fields(c.CommandPath())[1:]) })
	for _, path := range paths {
		root := tree()
		cmd, _, err := root.Find(path)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		_ = cmd.ParseFlags(nil) // takes the global flags in
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" {
				names = append(names, f.Name)
			}
		})
		for _, name := range names {
			t.Run(strings.Join(append(path, name), "/"), func(t *testing.T) {
				f := cmd.Flags().Lookup(name)
				value, ok := special[name]
				if !ok {
					value, ok = samples[f.Value.Type()]
				}
				if !ok {
					t.Fatalf("type %s has no sample", f.Value.Type())
				}
				if value == "" {
					return
				}
				if f.DefValue == "true" {
					value = "false"
				}
				t.Setenv(variable(name), value)
				if err := root.PersistentPreRunE(cmd, nil); err != nil {
					t.Fatal(err)
				}
				want := value
				if f.Value.Type() == "stringArray" {
					want = "[" + value + "]"
				}
				if ofOneDeed(cmd.CommandPath(), name) {
					want = f.DefValue
				}
				if got := f.Value.String(); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			})
		}
	}
}

func TestDocsAreCurrent(t *testing.T) {
	const path = "../docs/cli.md"
	var got bytes.Buffer
	if err := writeDocs(&got, tree()); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.MkdirAll("../docs", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Errorf("%s is not what the commands say; run: go test ./cli -run Docs -update\n%s", path, d)
	}
}
