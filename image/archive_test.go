package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

// leftIn are the files that a layout has, but for its index and locks.
func leftIn(t *testing.T, layout string) (all []string) {
	t.Helper()
	must(t, filepath.WalkDir(layout, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !slices.Contains([]string{"index.json", "oci-layout", useFile, indexFile}, d.Name()) {
			all = append(all, path)
		}
		return err
	}))
	return all
}

// What an archive says of its files is bounded before any of them is written or read into memory: a few bytes can stand for more than any machine has.
func TestArchivesThatSayTooMuchAreRefused(t *testing.T) {
	to := newStore(t)
	must(t, os.MkdirAll(to.own, 0o755))
	must(t, unix.Mount("tmpfs", to.own, "tmpfs", 0, "size=30m")) // or the test would fill the disk, if it failed
	defer unix.Unmount(to.own, unix.MNT_DETACH)
	blob := "blobs/sha256/" + strings.Repeat("a", 64)
	layers := strings.Repeat(`"l",`, maxLayers) + `"l"`
	docker := func(config, layers string) []byte {
		return tarEntry("0", dockerManifest, "", `[{"Config": "`+config+`", "RepoTags": ["fw:1"], "Layers": [`+layers+`]}]`)
	}
	big := tarEntry("0", "c.json", "", strings.Repeat(" ", maxDocument+1))
	tags, err := json.Marshal([]map[string]any{{"Config": "c", "RepoTags": slices.Repeat([]string{"fw:1"}, maxNames+1)}})
	must(t, err)
	for what, c := range map[string]struct {
		archive []byte
		want    string
	}{
		"a blob that is a hole":       {hole(blob, 64<<20), "more bytes than it has itself"},
		"an index that is a hole":     {hole("index.json", 64<<20), "more bytes than it has itself"},
		"a config that is a hole":     {append(hole("c.json", 64<<20), docker("c.json", "")...), "more bytes than it has itself"},
		"a manifest that is a hole":   {hole(dockerManifest, 1<<50), "more bytes than it has itself"},
		"a large manifest":            {tarEntry("0", dockerManifest, "", strings.Repeat(" ", maxDocument+1)), "manifest.json\" has 4194305 bytes, at most 4194304"},
		"a large config":              {append(big, docker("c.json", "")...), "c.json\" has 4194305 bytes"},
		"a link to a large config":    {slices.Concat(big, tarEntry("2", "d/link", "../c.json", ""), docker("d/link", "")), "has 4194305 bytes"},
		"links in a circle":           {slices.Concat(tarEntry("2", "x", "y", ""), tarEntry("2", "y", "x", ""), docker("x", "")), "link cycle"},
		"more layers than any image":  {docker("c", layers), "128 layers, at most 127"},
		"more names than anybody has": {tarEntry("0", dockerManifest, "", string(tags)), "1001 names, at most 1000"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := to.ImportFrom(t.Context(), bytes.NewReader(append(c.archive, make([]byte, 1024)...)), "")
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, unix.ENOSPC) {
				t.Errorf("%v: want %q", err, c.want)
			}
			if left := leftIn(t, to.own); len(left) != 0 {
				t.Errorf("%v are left", left)
			}
		})
	}
}

// An archive may name one file as a layer many times: each is read and compressed, which ends with who asked.
func TestLayersThatAreNamedManyTimes(t *testing.T) {
	c := contents{"a/l": {size: 1 << 30}, "l": {link: "a/l"}}
	if err := c.admit(tarball.Descriptor{Layers: slices.Repeat([]string{"./l"}, 32)}); err != nil {
		t.Error(err)
	}
	if err := c.admit(tarball.Descriptor{Layers: slices.Repeat([]string{"./l"}, 33)}); err == nil || !strings.Contains(err.Error(), "more than 32 GiB") {
		t.Errorf("33 GiB: %v", err)
	}
	tag, err := name.NewTag("fw:1")
	must(t, err)
	file := filepath.Join(t.TempDir(), "fw.tar")
	must(t, tarball.WriteToFile(file, tag, bigImage(t, 1, 1000)))
	to := newStore(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := to.importDocker(gone, file, "", contents{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v: want %v", err, context.Canceled)
	}
	if _, err := to.importDocker(t.Context(), file, "", contents{}); err != nil {
		t.Error(err)
	}
}

// An archive of docker save that says of a layer that it has a digest which it has not gives nobody that digest.
func TestAnArchiveThatLiesAboutLayersLeavesNothing(t *testing.T) {
	img := bigImage(t, 1, 1000)
	var archive bytes.Buffer
	tag, err := name.NewTag("fw:1")
	must(t, err)
	must(t, tarball.Write(tag, img, &archive))
	m, err := img.Manifest()
	must(t, err)
	c, err := img.ConfigFile()
	must(t, err)
	lie := m.Layers[0]
	lie.Digest = v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("a", 64)}
	said, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil })
	must(t, err)
	said[0].LayerSources = map[v1.Hash]v1.Descriptor{c.RootFS.DiffIDs[0]: lie}
	raw, err := json.Marshal(said)
	must(t, err)
	to := newStore(t)
	_, err = to.ImportFrom(t.Context(), bytes.NewReader(append(tarEntry("0", dockerManifest, "", string(raw)), archive.Bytes()...)), "")
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("%v: want %v", err, ErrCorrupt)
	}
	if names, err := In(to.own); len(names) != 0 || err != nil {
		t.Errorf("%v are there, %v", names, err)
	}
	if left := leftIn(t, to.own); len(left) != 0 {
		t.Errorf("%v are left", left)
	}
}

// An import that goes on is not collected, and holds up nobody who deletes images. What one left that was killed goes with the next.
func TestAnImportGoesOnWhileOthersCollect(t *testing.T) {
	from := newStore(t)
	built(t, from.own, recipe(t, "fw", "1", "hello"))
	var archive bytes.Buffer
	must(t, from.Export(t.Context(), "fw:1", &archive))
	to := newStore(t)
	killed := filepath.Join(to.own, partialsDir, halfPrefix+"killed")
	must(t, os.MkdirAll(killed, 0o700))
	must(t, os.WriteFile(filepath.Join(killed, "archive"), []byte("half"), 0o600))
	built(t, to.own, recipe(t, "other", "1", "x"))
	r, w := io.Pipe()
	over := make(chan error, 1)
	go func() {
		_, err := to.ImportFrom(context.WithoutCancel(t.Context()), r, "")
		over <- err
	}()
	_, err := w.Write(archive.Bytes()[:512]) // it has begun to read
	must(t, err)
	if _, err := os.Stat(killed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a killed import left is there: %v", err)
	}
	must(t, to.Delete(t.Context(), "other:1"))
	_, err = to.Collect(t.Context(), CollectOptions{})
	must(t, err)
	_, err = w.Write(archive.Bytes()[512:])
	must(t, errors.Join(err, w.Close(), <-over))
	if _, err := to.Resolve("fw:1"); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(to.own, partialsDir)); len(left) != 0 || err != nil {
		t.Errorf("%v are left, %v", left, err)
	}
}
