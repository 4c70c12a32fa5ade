package image

import "testing"

func TestName(t *testing.T) {
	for ref, want := range map[string]string{
		"wire": "wire", "wire:1": "wire", "registry:5000/x/y": "registry:5000/x/y", "registry:5000/x/y:2": "registry:5000/x/y",
		"ghcr.io/x/y@sha256:0123": "ghcr.io/x/y", "[::1]:5000/x:2": "[::1]:5000/x",
	} {
		if got := Name(ref); got != want {
			t.Errorf("%s: %s, want %s", ref, got, want)
		}
	}
}
