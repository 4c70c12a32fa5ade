package join

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/e2e/rig"
)

// An image that only the manager has runs on a host that lacks it: the host fetches it from there, over its own connection, and its traffic is steered.
func TestAHostFetchesImagesFromTheManager(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t)
	w.join(ctx, t, "h1")
	h2 := w.join(ctx, t, "h2")
	archive := filepath.Join(t.TempDir(), "fw.tar")
	for _, argv := range [][]string{{"image", "export", "firewall", archive}, {"image", "import", archive, "--as", "only-there:1"}} {
		if _, err := w.Weir(ctx, argv...); err != nil {
			t.Fatal(err)
		}
	}
	layout := filepath.Join(h2.root, "images", "layout", "index.json")
	if text, err := os.ReadFile(layout); err == nil && strings.Contains(string(text), "only-there") {
		t.Fatal("the host has the image before anybody has asked for it")
	}
	document := strings.Replace(w.document("h2"), "image: firewall", "image: only-there:1", 1)
	w.MustApply(ctx, t, document)
	if _, err := w.Ping(ctx, w.Alice(), rig.BobAddr, 5, "0.05"); err != nil {
		t.Fatal(err)
	}
	if n := w.steered(ctx, t, "h2"); n < 5 {
		t.Errorf("the function has taken %d packets", n)
	}
	if text, err := os.ReadFile(layout); err != nil || !strings.Contains(string(text), "only-there:1") {
		t.Errorf("the host's layout: %v: %s", err, text)
	}
	if out, err := w.Apply(ctx, strings.Replace(document, "only-there:1", "nowhere:1", 1)); err == nil || !strings.Contains(out+err.Error(), "the manager has no image nowhere:1") {
		t.Errorf("an image that nobody has: %v: %s", err, out)
	}
}
