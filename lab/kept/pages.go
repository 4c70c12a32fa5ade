package kept

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"weir.dev/weir/instance"
)

// Pages have figures, between markers: <!-- figures NAME --> and <!-- end of figures -->.
var Pages = []string{"README.md", Dir + "/README.md", Dir + "/runs.md"}

var (
	block      = regexp.MustCompile(`(?s)<!-- figures (\S+) -->\n(.*?)<!-- end of figures -->`)
	blockBegin = regexp.MustCompile(`<!-- figures `)
	blockEnd   = regexp.MustCompile(`<!-- end of figures -->`)
)

// Generate writes the figures into the pages of the repository at top.
func Generate(top string) error {
	made, err := newFigures(filepath.Join(top, filepath.FromSlash(Dir)))
	if err != nil {
		return err
	}
	for _, name := range Pages {
		path := filepath.Join(top, filepath.FromSlash(name))
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		is, err := made.page(name, string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if is == string(text) {
			continue
		}
		if err := instance.Replace(path, []byte(is), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// page with its blocks filled.
func (f *figures) page(name, text string) (string, error) {
	if n := len(block.FindAllString(text, -1)); n != len(blockBegin.FindAllString(text, -1)) || n != len(blockEnd.FindAllString(text, -1)) {
		return "", fmt.Errorf("%w: want <!-- figures NAME --> and <!-- end of figures --> in turns", ErrPages)
	}
	link := func(target string) string {
		if path.Dir(name) == "." {
			return Dir + "/" + target
		}
		return strings.TrimPrefix(Dir+"/"+target, path.Dir(name)+"/")
	}
	var all []error
	out := block.ReplaceAllStringFunc(text, func(old string) string {
		table := block.FindStringSubmatch(old)[1]
		made, err := f.table(table, link)
		all = append(all, err)
		return "<!-- figures " + table + " -->\n" + made + "<!-- end of figures -->"
	})
	return out, errors.Join(all...)
}
