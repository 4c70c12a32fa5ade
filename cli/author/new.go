package author

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/solo"
)

// skeleton has the files of new functions: those of all, and those of each language. A file NAME.txt becomes NAME.
//
//go:embed skeleton
var skeleton embed.FS

// languages of new functions, and what the README says of their files.
var languages = map[string]string{
	"go":     "`main.go` is the program: the standard library and raw sockets. It wants Go to build.",
	"c":      "`main.c` is the program: freestanding, about 10 KB. It wants clang or gcc to build.",
	"python": "`main.py` is the program, in an image of Debian packages. It wants mmdebstrap to build; the first build fetches packages and takes a minute or two.",
	"shell":  "`main.sh` is the program: a bridge and nftables, in an image of Debian packages. It wants mmdebstrap to build; the first build fetches packages and takes a minute or two.",
}

// languageNames in the order of help.
var languageNames = []string{"go", "python", "c", "shell"}

// newName is what an image and a program may be called; "-" and "_" are fine, and others would need quotes somewhere.
var newName = regexp.MustCompile(`^[a-z][a-z0-9]*([_-][a-z0-9]+)*$`)

const (
	maxNewName  = 50
	placeholder = "@NAME@"
	filesAre    = "@FILES@"
)

func (a *author) new() *cobra.Command {
	var language string
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Make a folder with a function that builds and passes its tests",
		Long: `Make a folder with a new function: a recipe, a program, a schema of its config, cases with captures, a README, a Makefile. It drops TCP and UDP to one port,
hands everything else on and raises an event: change it to what you need. NAME may be a path; the folder must not be there, or be empty.`,
		Example: `  weir function new my-filter --lang go
  weir function test my-filter
  weir function new functions/counter --lang python`,
		Args: command.WantArgs(1, 1, "a name"),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, ok := languages[language]; !ok {
				return command.Usage("--lang %q: want %s", language, strings.Join(languageNames, ", "))
			}
			name := filepath.Base(filepath.Clean(args[0]))
			if !newName.MatchString(name) || len(name) > maxNewName {
				return command.Usage("name %q: want at most %d lower-case letters and digits that begin with a letter, joined by - or _", name, maxNewName)
			}
			if err := makeNew(args[0], name, language); err != nil {
				if errors.Is(err, fs.ErrExist) {
					return command.WithCode(command.ExitConflict, err)
				}
				return err
			}
			if a.Structured() {
				return a.Encode(map[string]string{"name": name, "folder": args[0], "lang": language})
			}
			fmt.Fprintf(a.Stdout, "%s is there; next: weir function test %s\n", args[0], args[0])
			return nil
		},
	}
	cmd.Flags().StringVar(&language, "lang", "go", "language: "+strings.Join(languageNames, ", "))
	_ = cmd.RegisterFlagCompletionFunc("lang", cobra.FixedCompletions(languageNames, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// makeNew makes the folder, whole or not at all: beside the place where it goes, then moved there.
func makeNew(dir, name, language string) (err error) {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is there and not empty: %w", dir, fs.ErrExist)
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(dir)), 0o755); err != nil {
		return err
	}
	half, err := os.MkdirTemp(filepath.Dir(filepath.Clean(dir)), "."+name+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(half))
		}
	}()
	for _, from := range []string{"common", language} {
		if err := copySkeleton(half, from, name, language); err != nil {
			return err
		}
	}
	if err := writeCases(filepath.Join(half, casesDir)); err != nil {
		return err
	}
	if err := os.Chmod(half, 0o755); err != nil {
		return err
	}
	if err := syscall.Rename(half, dir); err != nil { // over an empty folder, which os.Rename refuses
		return &os.LinkError{Op: "rename", Old: half, New: dir, Err: err}
	}
	return nil
}

func copySkeleton(to, from, name, language string) error {
	from = path.Join("skeleton", from)
	files, err := skeleton.ReadDir(from)
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := skeleton.ReadFile(path.Join(from, f.Name()))
		if err != nil {
			return err
		}
		file, mode := strings.TrimSuffix(f.Name(), ".txt"), fs.FileMode(0o644)
		if filepath.Ext(file) == ".sh" {
			mode = 0o755
		}
		whole := strings.NewReplacer(placeholder, name, filesAre, languages[language]).Replace(string(text))
		if err := os.WriteFile(filepath.Join(to, file), []byte(whole), mode); err != nil {
			return err
		}
	}
	return nil
}

// writeCases writes the cases that every new function passes: the port is that of a frame, or of none.
func writeCases(dir string) error {
	in, err := sample()
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name, port, events string
		expect             []solo.Frame
	}{
		{"blocked", "80", "PortBlocked\n", slices.Delete(slices.Clone(in), sampleWeb, sampleWeb+1)},
		{"open", "9", "", in},
	} {
		at := filepath.Join(dir, c.name)
		err := errors.Join(os.MkdirAll(at, 0o755), os.WriteFile(filepath.Join(at, fileConfig+".yaml"), []byte("port: "+c.port+"\n"), 0o644),
			solo.WriteFrames(filepath.Join(at, fileIn+".pcap"), in), solo.WriteFrames(filepath.Join(at, fileExpect+".pcap"), c.expect))
		if err == nil && c.events != "" {
			err = os.WriteFile(filepath.Join(at, fileEvents), []byte(c.events), 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
