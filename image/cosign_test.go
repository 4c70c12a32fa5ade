package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// cosigned is a registry with the image of testdata/cosign and the signature that cosign made, unless edit changes the latter or what is signed.
func cosigned(t *testing.T, edit func(signature, signed []byte)) (ref, digest string) {
	t.Helper()
	read := func(name string) []byte {
		t.Helper()
		text, err := os.ReadFile("testdata/cosign/" + name)
		must(t, err)
		return text
	}
	sum := func(text []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(text)) }
	image, manifest, signed := read("image.json"), read("signature.json"), read("payload.json")
	encoded := regexp.MustCompile(`"dev.cosignproject.cosign/signature":"([^"]*)"`).FindSubmatch(manifest)[1]
	signature, err := base64.StdEncoding.DecodeString(string(encoded))
	must(t, err)
	was := sum(signed)
	edit(signature, signed)
	manifest = bytes.Replace(manifest, encoded, []byte(base64.StdEncoding.EncodeToString(signature)), 1)
	manifest = bytes.Replace(manifest, []byte(was), []byte(sum(signed)), 1)
	digest = sum(image)
	have := map[string][]byte{"1": image, digest: image, strings.Replace(digest, ":", "-", 1) + ".sig": manifest, sum(signed): signed}
	for _, name := range []string{"config.json", "layer.tar", "signature-config.json"} {
		text := read(name)
		have[sum(text)] = text
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := have[path.Base(r.URL.Path)]
		if !ok && r.URL.Path != "/v2/" {
			http.NotFound(w, r)
			return
		}
		if path.Base(path.Dir(r.URL.Path)) == "manifests" {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		}
		_, _ = w.Write(text)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://") + "/nf/tiny:1", digest
}

// What cosign has signed is good, for its name and its key. With another byte in the signature, or in what is signed, it is not.
func TestCosignsOwnSignature(t *testing.T) {
	const name = "registry.example.org/nf/tiny"
	key := publicKey(t, "testdata/cosign/cosign.pub")
	for what, tt := range map[string]struct {
		edit func(signature, signed []byte)
		good bool
	}{
		"as it is":                       {func(_, _ []byte) {}, true},
		"another byte in what is signed": {func(_, signed []byte) { signed[bytes.Index(signed, []byte(`"7"`))+1]++ }, false},
		"another byte in the signature":  {func(signature, _ []byte) { signature[len(signature)-1] ^= 1 }, false},
	} {
		t.Run(what, func(t *testing.T) {
			ref, digest := cosigned(t, tt.edit)
			s := newStore(t)
			_, err := s.Pull(t.Context(), ref, RemoteOptions{Warn: func(text string) { t.Error(text) }})
			must(t, err)
			sig, err := s.CheckSignature(ref, name, key)
			switch {
			case tt.good && (err != nil || sig.Name != name || sig.Digest != digest):
				t.Errorf("%+v, %v", sig, err)
			case !tt.good && (!errors.Is(err, ErrUnsigned) || !strings.Contains(err.Error(), "none of its 1 signatures is by the key")):
				t.Errorf("%v", err)
			}
			if _, err := s.CheckSignature(ref, "registry.example.org/nf/other", key); !errors.Is(err, ErrUnsigned) {
				t.Errorf("another name: %v", err)
			}
		})
	}
	k, err := ReadPrivateKey("testdata/cosign/cosign.key", func() ([]byte, error) { return []byte("tiny"), nil })
	if err != nil || !k.PublicKey.Equal(key) {
		t.Errorf("cosign's private key: %v", err)
	}
}
