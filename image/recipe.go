package image

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
)

// RecipeFile is the name of a recipe in a function's folder.
const RecipeFile = "image.yaml"

// Recipe says how an image of the catalogue is made: the layers of its base, common to many, and a layer of its own with the files named here. A base is Debian's
// static busybox, or Debian's essential packages with those named here above them.
type Recipe struct {
	Name         string            `yaml:"name"`
	Tag          string            `yaml:"tag"`
	Description  string            `yaml:"description"`
	Entrypoint   []string          `yaml:"entrypoint"`
	Env          []string          `yaml:"env"`
	Labels       map[string]string `yaml:"labels"`        // the contract, weir.*
	ConfigSchema string            `yaml:"config_schema"` // file whose text becomes the label weir.config-schema
	Example      string            `yaml:"example"`       // file whose text becomes the label dev.weir.example; of a Markdown page the first block of YAML that has policies
	Base         string            `yaml:"base"`          // "busybox" (default); "debian", of this machine's release; "debian:SUITE"
	Packages     []string          `yaml:"packages"`      // of Debian, with what they depend on
	Files        []RecipeFileSpec  `yaml:"files"`
	Event        *bool             `yaml:"event"` // whether it has the program weir-event (default true)

	Say  func(string) `yaml:"-"` // told what takes long; nil: nobody is
	Anew bool         `yaml:"-"` // fetch packages that are in the cache, too: they may have newer versions

	dir string // where the recipe stands; relative paths start here
}

// RecipeFileSpec is one file of the image. Exactly one of Go, C and From says what it is.
type RecipeFileSpec struct {
	To   string `yaml:"to"`   // absolute path in the image
	Go   string `yaml:"go"`   // package directory, built static
	C    string `yaml:"c"`    // freestanding source, built static without a C library
	From string `yaml:"from"` // file, copied; a path in the recipe's folder, or an absolute one
	Mode uint32 `yaml:"mode"` // default 0755 for programs, 0644 for files
}

var (
	recipeName = regexp.MustCompile(`^[a-z0-9]+([._-][a-z0-9]+)*$`)
	recipeTag  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
)

// LoadRecipe reads and checks DIR/image.yaml. Errors carry line and column.
func LoadRecipe(dir string) (Recipe, error) {
	r, err := loadRecipe(dir)
	if err != nil {
		return Recipe{}, fmt.Errorf("%w: %w", ErrRecipe, err)
	}
	return r, nil
}

func loadRecipe(dir string) (Recipe, error) {
	file := filepath.Join(dir, RecipeFile)
	raw, err := os.ReadFile(file)
	if err != nil {
		return Recipe{}, err
	}
	r := Recipe{dir: dir}
	if err := yaml.NewDecoder(bytes.NewReader(raw), yaml.Strict()).Decode(&r); err != nil {
		return Recipe{}, fmt.Errorf("%s: %w", file, err)
	}
	if r.ConfigSchema != "" {
		schema, err := os.ReadFile(filepath.Join(dir, r.ConfigSchema))
		if err != nil {
			return Recipe{}, fmt.Errorf("%s: config_schema: %w", file, err)
		}
		if r.Labels == nil {
			r.Labels = map[string]string{}
		}
		r.Labels[LabelConfigSchema] = string(schema)
	}
	if r.Example != "" {
		text, err := exampleIn(filepath.Join(dir, r.Example))
		if err != nil {
			return Recipe{}, fmt.Errorf("%s: example: %w", file, err)
		}
		if r.Labels == nil {
			r.Labels = map[string]string{}
		}
		r.Labels[LabelExample] = text
	}
	if err := r.check(); err != nil {
		return Recipe{}, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// exampleIn reads an example: a file, or the first block of YAML with policies in a Markdown page.
func exampleIn(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	text := string(raw)
	if filepath.Ext(file) == ".md" {
		found := false
		for _, block := range markdownYAML.FindAllStringSubmatch(text, -1) {
			if found = strings.Contains("\n"+block[1], "\npolicies:"); found {
				text = block[1]
				break
			}
		}
		if !found {
			return "", fmt.Errorf("%s: want a block of YAML (```yaml) that has policies", file)
		}
	}
	switch {
	case len(text) > maxExample:
		return "", fmt.Errorf("%s: it has %d bytes, want at most %d", file, len(text), maxExample)
	case !utf8.ValidString(text):
		return "", fmt.Errorf("%s: want text in UTF-8", file)
	}
	return text, nil
}

// markdownYAML is a block of YAML in a Markdown page.
var markdownYAML = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

func (r Recipe) check() error {
	switch {
	case !recipeName.MatchString(r.Name):
		return fmt.Errorf("name %q: want lower-case letters and digits, joined by . _ or -", r.Name)
	case !recipeTag.MatchString(r.Tag):
		return fmt.Errorf("tag %q: want letters, digits, . _ and - (for example \"1\", quoted)", r.Tag)
	case len(r.Entrypoint) == 0:
		return fmt.Errorf("entrypoint: want at least the program")
	case r.Base != "" && r.Base != "busybox" && !debianBase.MatchString(r.Base):
		return fmt.Errorf("base %q: want busybox, debian, or debian with a release such as debian:trixie", r.Base)
	case len(r.Packages) > 0 && !r.Debian():
		return fmt.Errorf("packages: want base: debian with them")
	case len(r.Packages) > maxPackages:
		return fmt.Errorf("packages: want at most %d", maxPackages)
	case len(r.Files) == 0 && len(r.Packages) == 0:
		return fmt.Errorf("files: want at least one")
	}
	for i, p := range r.Packages {
		if !debianPackage.MatchString(p) {
			return fmt.Errorf("packages[%d]: %q is no name of a Debian package", i, p)
		}
	}
	for i, f := range r.Files {
		sources := 0
		for _, s := range []string{f.Go, f.C, f.From} {
			if s != "" {
				sources++
			}
		}
		if sources != 1 {
			return fmt.Errorf("files[%d]: want exactly one of go, c, from", i)
		}
		if !path.IsAbs(f.To) || path.Clean(f.To) != f.To || f.To == "/" {
			return fmt.Errorf("files[%d]: to %q: want an absolute path in the image", i, f.To)
		}
		if top, _, _ := strings.Cut(f.To[1:], "/"); r.Debian() && (top == "bin" || top == "sbin" || strings.HasPrefix(top, "lib")) {
			return fmt.Errorf("files[%d]: to %q: in Debian /%s is a link: want /usr%s", i, f.To, top, f.To)
		}
		if f.Mode > 0o777 {
			return fmt.Errorf("files[%d]: mode %d: want an octal number of at most 0777, with a 0 in front, such as 0755", i, f.Mode)
		}
		if f.To == r.Entrypoint[0] && f.From != "" && f.Mode&0o111 == 0 {
			return fmt.Errorf("files[%d]: %s is the entrypoint and not executable: want mode: 0755", i, f.To)
		}
	}
	if _, err := ParseContract(r.labels()); err != nil {
		return err
	}
	return nil
}

// Debian tells whether the image is made of Debian packages, which have to be fetched.
func (r Recipe) Debian() bool { return debianBase.MatchString(r.Base) }

// suite is the release of Debian that the recipe names; empty: this machine's.
func (r Recipe) suite() string {
	_, suite, _ := strings.Cut(r.Base, ":")
	return suite
}

func (r Recipe) labels() map[string]string {
	labels := maps.Clone(r.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	if r.Description != "" {
		labels[LabelDescription] = r.Description
	}
	return labels
}

// FindRecipes lists the folders directly below dir that hold a recipe, in order of their names.
func FindRecipes(dir string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "*", RecipeFile))
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(found))
	for _, f := range found {
		out = append(out, filepath.Dir(f))
	}
	slices.Sort(out)
	return out, nil
}
