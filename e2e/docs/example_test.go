package docs

import (
	"slices"
	"testing"

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
