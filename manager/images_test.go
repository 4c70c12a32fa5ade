package manager_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
	"weir.dev/weir/manager/images"
)

// stocked is a host with images.
type stocked struct {
	*node
	images []api.Image
	err    error
}

func (s stocked) ImageList(context.Context) ([]api.Image, error) { return s.images, s.err }

// shelf are images of the manager.
type shelf []api.Image

func (s shelf) List() ([]api.Image, error) { return s, nil }
func (shelf) Check(string, bool) error     { return nil }
func (shelf) Pull(context.Context, string, images.PullOptions) (api.Image, error) {
	return api.Image{}, errors.New("nothing is pulled here")
}
func (shelf) Import(context.Context, io.Reader, string) ([]api.Image, error) { return nil, nil }
func (shelf) Delete(context.Context, string) error                           { return nil }
func (shelf) Collect(context.Context, bool) (api.ImageGC, error)             { return api.ImageGC{}, nil }
func (shelf) Free() (int64, error)                                           { return 0, nil }

func TestImagesOfAllHosts(t *testing.T) {
	wire := api.Image{Name: "wire:1", Digest: "sha256:1", Description: "hands on", ConfigSchema: json.RawMessage(`{"type":"object"}`), Manager: true}
	other := api.Image{Name: "wire:1", Digest: "sha256:2"}
	long := api.Image{Name: strings.Repeat("x", 9_000), Description: strings.Repeat("y", 90_000), Capabilities: make([]string, 5_000), Example: strings.Repeat("e", 20_000), ConfigSchema: json.RawMessage(`"` + strings.Repeat("z", 90_000) + `"`)}
	many := make([]api.Image, 3_000)
	for i := range many {
		many[i] = api.Image{Name: "a", Digest: strings.Repeat("d", i%1_500)}
	}
	nodes := map[string]stocked{
		"h1": {images: []api.Image{wire, wire}}, "h2": {images: []api.Image{other, wire}}, "h3": {err: errors.New("its agent hangs")}, "h4": {images: []api.Image{long}}, "h5": {images: many},
	}
	b := start(t, manager.Options{Stock: shelf{{Name: "wire:1", Digest: "sha256:2"}, {Name: "own:1", Digest: "sha256:3"}}, Node: func(h string) ask.Node {
		if n, ok := nodes[h]; ok {
			return n
		}
		return nil
	}})
	hostUp(t, b, "h1", "h2", "h3", "h4", "h5", "h6")
	got := must(b.Images(ctx(t)))(t)
	of := map[string][]string{}
	of5 := 0
	for _, i := range got.Items {
		if own := i.Digest == "sha256:2" || i.Digest == "sha256:3"; i.Manager != own { // a host cannot say what the manager has
			t.Errorf("%s %s: the manager has it: %t", i.Name, i.Digest, i.Manager)
		}
		if len(i.Hosts) == 0 {
			of[i.Digest] = nil
			continue
		}
		switch i.Hosts[0] {
		case "h4":
			if len(i.Name) > 600 || len(i.Description) > 5_000 || len(i.Capabilities) > 100 || i.ConfigSchema != nil || i.Example != "" {
				t.Errorf("a name of %d, a description of %d, %d capabilities, a schema of %d", len(i.Name), len(i.Description), len(i.Capabilities), len(i.ConfigSchema))
			}
		case "h5":
			of5++
		default:
			of[i.Digest] = i.Hosts
		}
	}
	if d := cmp.Diff(map[string][]string{"sha256:1": {"h1", "h2"}, "sha256:2": {"h2"}, "sha256:3": nil}, of); d != "" {
		t.Error(d)
	}
	if of5 == 0 || of5 > api.MaxImages {
		t.Errorf("%d images of one host: want at most %d", of5, api.MaxImages)
	}
	if len(got.Warnings) != 2 || !strings.Contains(got.Warnings[0], "h3: its agent hangs") || !strings.Contains(got.Warnings[1], `agent of host "h6" cannot be asked`) {
		t.Errorf("warnings: %q", got.Warnings)
	}
}
