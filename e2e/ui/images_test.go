package ui

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// largeBlob is more than what is about an image, and less than its layers, in bytes.
const largeBlob = 256 << 10

// TestImagesComeByThePage: a registry in the daemon's namespace, of Weir's own kind, whose layers come when the scenario wants; and an archive.
func TestImagesComeByThePage(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints())
	recipe, err := image.LoadRecipe("hostile")
	if err != nil {
		t.Fatal(err)
	}
	inst, err := instance.New(fmt.Sprintf("img%x", os.Getpid()&0xffff), filepath.Join(t.TempDir(), "root"))
	if err != nil {
		t.Fatal(err)
	}
	layout := filepath.Join(t.TempDir(), "layout")
	if _, err := recipe.Build(ctx, layout); err != nil {
		t.Fatal(err)
	}
	images := image.Open(inst, layout)
	archive := filepath.Join(t.TempDir(), "archive.tar")
	f, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Export(ctx, "markup:1", f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	open := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(open) })
	serves := images.Handler("")
	var at net.Listener
	if err := netns.Do(r.Netns, func() (err error) {
		at, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	registry := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, blob, _ := strings.Cut(q.URL.Path, "/blobs/sha256:")
		if info, err := os.Stat(filepath.Join(layout, "blobs", "sha256", blob)); err == nil && info.Size() > largeBlob {
			select {
			case <-open:
			case <-q.Context().Done():
				return
			}
		}
		serves.ServeHTTP(w, q)
	})}
	go func() { _ = registry.Serve(at) }()
	t.Cleanup(func() { goOn(); registry.Close() })
	do := links(ctx, r)
	do["registry"] = func(question) (any, error) {
		return map[string]string{"registry": at.Addr().String(), "archive": archive}, nil
	}
	do["go on"] = func(question) (any, error) { goOn(); return nil, nil }
	half := filepath.Join(r.Root, "images", "layout", ".partial", "half")
	do["leftover"] = func(question) (any, error) {
		return nil, errors.Join(os.MkdirAll(filepath.Dir(half), 0o700), os.WriteFile(half, []byte("half a layer"), 0o600))
	}
	do["leftover?"] = func(question) (any, error) {
		_, err := os.Stat(half)
		return map[string]bool{"there": err == nil}, nil
	}
	do["functions"] = func(q question) (any, error) {
		_, err := r.Apply(ctx, fmt.Sprintf("functions: {pulled: {image: %q}, imported: {image: 'mine:2'}}\n", q.Name))
		return nil, err
	}
	play(ctx, t, r, "images", do)
}
