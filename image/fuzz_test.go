package image

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/instance"
)

// Whatever stands in a layout's manifest, index or config, it is an image, or refused with the place and what would help.
func FuzzDocuments(f *testing.F) {
	const (
		zero   = `"sha256:0000000000000000000000000000000000000000000000000000000000000000"`
		config = `{"architecture":"amd64","rootfs":{"type":"layers","diff_ids":[` + zero + `]},"config":{"Labels":{"weir.ports":"in,out"}}}`
	)
	manifest := `{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":1,"digest":%q},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","size":1,"digest":` + zero + `}]}`
	f.Add([]byte(manifest), []byte(config), false)
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":`+zero+`,"size":1},{"platform":{"os":"linux","architecture":"amd64"}}]}`), []byte(config), true)
	for _, s := range []string{``, `null`, `{}`, `[]`, `{"layers":[null]}`, `{"config":null}`} {
		f.Add([]byte(s), []byte(s), false)
		f.Add([]byte(s), []byte(s), true)
		f.Add([]byte(manifest), []byte(s), false)
	}
	f.Add([]byte(strings.Replace(manifest, `,"digest":`+zero, "", 1)), []byte(config), false) // a layer without its digest
	f.Add([]byte(manifest), []byte(strings.Replace(config, zero, "null", 1)), false)
	f.Fuzz(func(t *testing.T, document, config []byte, index bool) {
		layout := t.TempDir()
		blob := func(content []byte) string {
			sum := sha256.Sum256(content)
			name := hex.EncodeToString(sum[:])
			must(t, os.MkdirAll(filepath.Join(layout, "blobs", "sha256"), 0o755))
			must(t, os.WriteFile(filepath.Join(layout, "blobs", "sha256", name), content, 0o644))
			return "sha256:" + name
		}
		document = []byte(strings.ReplaceAll(string(document), "%q", fmt.Sprintf("%q", blob(config))))
		kind := "application/vnd.oci.image.manifest.v1+json"
		if index {
			kind = "application/vnd.oci.image.index.v1+json"
		}
		must(t, os.WriteFile(filepath.Join(layout, "index.json"), fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[{"mediaType":%q,"size":%d,"digest":%q,"annotations":{%q:"x:1"}}]}`,
			kind, len(document), blob(document), refAnnotation), 0o644))
		s := Open(instance.Instance{Name: "fuzz", Root: filepath.Join(layout, "root"), Run: filepath.Join(layout, "run")}, layout)
		img, err := s.Resolve("x:1")
		switch {
		case err == nil:
			if len(img.Layers) == 0 || img.Digest == "" || slices.ContainsFunc(img.Layers, func(id string) bool { return len(id) != len("sha256:")+64 }) {
				t.Errorf("an image without layers or name: %+v", img)
			}
		case errors.Is(err, ErrCorrupt), errors.Is(err, ErrNotFound), strings.Contains(err.Error(), "built for"), strings.Contains(err.Error(), "label"):
		default:
			t.Errorf("an error that does not say what would help: %v", err)
		}
	})
}
