package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestImagesOfAHostAreListedOnce(t *testing.T) {
	for name, tt := range map[string]struct{ images, want []string }{
		"none":               {},
		"tagged and not":     {[]string{"wire:1", "wire", "wire-bridge:1", "wire-bridge"}, []string{"wire:1", "wire-bridge:1"}},
		"the name comes 1st": {[]string{"wire", "wire:1"}, []string{"wire:1"}},
		"two tags":           {[]string{"wire:1", "wire:2", "wire"}, []string{"wire:1", "wire:2"}},
		"without a tag":      {[]string{"wire", "wire-bridge:1"}, []string{"wire", "wire-bridge:1"}},
		"a digest":           {[]string{"wire@sha256:00", "wire"}, []string{"wire@sha256:00"}},
		"a registry's port":  {[]string{"example:5000/wire:1", "example:5000/wire", "example"}, []string{"example:5000/wire:1", "example"}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, eachOnce(tt.images)); d != "" {
				t.Error(d)
			}
		})
	}
}
