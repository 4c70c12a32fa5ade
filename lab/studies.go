package lab

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"weir.dev/weir/api/file"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

//go:embed studies/*.yaml
var studies embed.FS

// ErrNotFound says that there is no such study.
var ErrNotFound = errors.New("not found")

// Studies that are part of the program.
func Studies() (names []string) {
	entries, err := fs.ReadDir(studies, "studies")
	if err != nil {
		panic(err) // embedded
	}
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// Load finds a study by its name, or in a file ("-" is stdin; anything with a slash or ".yaml").
func Load(name string, stdin io.Reader) (study.Study, error) {
	var f study.File
	var err error
	text, missing := fs.ReadFile(studies, "studies/"+name+".yaml")
	switch {
	case missing == nil:
		f, err = study.Parse(name, text, experiment.Names())
	case name == file.Stdin || strings.ContainsAny(name, "/.") || isFile(name):
		f, err = study.Load(name, stdin, experiment.Names())
	default:
		hint := file.Suggest(name, Studies())
		if hint == "" {
			hint = "want one of " + strings.Join(Studies(), ", ") + ", or a file"
		}
		return f.Study, fmt.Errorf("study %q: %w (%s)", name, ErrNotFound, hint)
	}
	if err != nil {
		return f.Study, err
	}
	return f.Study, f.Places.Explain(problems(f.Study, experiment.All()))
}

func isFile(name string) bool {
	st, err := os.Stat(name)
	return err == nil && !st.IsDir()
}
