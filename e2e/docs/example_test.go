package docs

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/goccy/go-yaml"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
	"weir.dev/weir/image"
	"weir.dev/weir/router"
)

// The example that each image of the catalogue carries is a whole policy between alice and bob, with a function of the image whose config its schema takes.
func TestExamplesOfTheCatalogueAreAccepted(t *testing.T) {
	dirs, err := image.FindRecipes("../../catalogue")
	if err != nil || len(dirs) < 10 {
		t.Fatalf("%d recipes, %v", len(dirs), err)
	}
	for _, dir := range dirs {
		r, err := image.LoadRecipe(dir)
		if err != nil {
			t.Fatal(err)
		}
		text := r.Labels[image.LabelExample]
		if text == "" {
			t.Errorf("%s has no example", r.Name)
			continue
		}
		f, err := file.Parse(r.Name, []byte(text))
		if err != nil {
			t.Error(err)
			continue
		}
		d := f.Document
		if len(d.Endpoints) > 0 || len(d.Functions) == 0 || len(d.Chains) == 0 || len(d.Policies) == 0 {
			t.Errorf("%s: want functions, chains and policies, and no endpoints:\n%s", r.Name, text)
		}
		d.Endpoints = map[string]api.EndpointSpec{"alice": {Netns: "alice", Interface: "eth0"}, "bob": {Netns: "bob", Interface: "eth0"}}
		if problems := router.Validate(d); len(problems) > 0 {
			t.Errorf("%s: %v", r.Name, problems)
		}
		contract, err := image.ParseContract(r.Labels)
		if err != nil {
			t.Fatal(err)
		}
		var images []string
		for _, fn := range d.Functions {
			images = append(images, fn.Image)
			if problems := contract.CheckConfig(fn.Config); fn.Image == r.Name && len(problems) > 0 {
				t.Errorf("%s: config: %v", r.Name, problems)
			}
		}
		if !slices.Contains(images, r.Name) {
			t.Errorf("%s: its example is of %v", r.Name, images)
		}
	}
}

// What the catalogue's READMEs show in YAML can be copied: it is read as a file, and each config is one that the image's schema takes. A block of a config alone is of the README's image.
func TestConfigsInREADMEsAreAccepted(t *testing.T) {
	dirs, err := image.FindRecipes("../../catalogue")
	if err != nil {
		t.Fatal(err)
	}
	contracts := map[string]image.Contract{}
	for _, dir := range dirs {
		r, err := image.LoadRecipe(dir)
		if err != nil {
			t.Fatal(err)
		}
		if contracts[r.Name], err = image.ParseContract(r.Labels); err != nil {
			t.Fatal(err)
		}
	}
	found, err := filepath.Glob("../../catalogue/*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks, alone := 0, 0
	for _, path := range found {
		p, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range p.Blocks {
			if b.Language != "yaml" {
				continue
			}
			blocks++
			var only struct{ Config map[string]any }
			if err := yaml.Unmarshal([]byte(b.Text), &only); err != nil {
				t.Errorf("%s:%d: %v", path, b.Line, err)
				continue
			}
			configs := map[string]api.FunctionSpec{"": {Image: filepath.Base(filepath.Dir(path)), Config: only.Config}}
			if only.Config != nil {
				alone++
			} else {
				f, err := file.Parse(path, []byte(b.Text))
				if err != nil {
					t.Errorf("%s:%d: %v", path, b.Line, err)
					continue
				}
				configs = f.Document.Functions
			}
			for name, fn := range configs {
				contract, known := contracts[fn.Image]
				if problems := contract.CheckConfig(fn.Config); !known || len(problems) > 0 {
					t.Errorf("%s:%d: function %q of image %q, which is known: %t: config: %v", path, b.Line, name, fn.Image, known, problems)
				}
			}
		}
	}
	if blocks < 15 || alone == 0 {
		t.Errorf("%d blocks, %d of a config alone: the test looks in the wrong place", blocks, alone)
	}
}
