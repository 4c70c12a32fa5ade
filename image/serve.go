package image

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Handler serves every image of the store as a registry, to read only (OCI Distribution 1.1), with what refers to them. With a token it wants it as the password of any user, or as a
// bearer's.
func (s *Store) Handler(token string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v2/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Docker-Distribution-API-Version", "registry/2.0")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if token != "" && !admitted(r, token) {
			w.Header().Set("WWW-Authenticate", `Basic realm="weir"`)
			refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "want the registry's token as the password of any user")
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			refuse(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "this registry is to read only")
			return
		}
		s.serve(w, r, strings.TrimPrefix(r.URL.Path, "/v2/"))
	})
	return mux
}

func admitted(r *http.Request, token string) bool {
	_, got, ok := r.BasicAuth()
	if !ok {
		got = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(token)) // of one length
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// refuse a request as the protocol has it.
func refuse(w http.ResponseWriter, status int, code, message string) {
	reply(w, status, map[string]any{"errors": []map[string]string{{"code": code, "message": message}}})
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}

func (s *Store) serve(w http.ResponseWriter, r *http.Request, path string) {
	if path == "" {
		reply(w, http.StatusOK, struct{}{})
		return
	}
	if path == "_catalog" {
		names, err := s.repositories("")
		refs, rerr := s.references()
		answer(w, errors.Join(err, rerr), catalog{names, refs})
		return
	}
	if name, ok := strings.CutSuffix(path, "/tags/list"); ok {
		tags, err := s.repositories(name)
		if err == nil && len(tags) == 0 {
			refuse(w, http.StatusNotFound, "NAME_UNKNOWN", fmt.Sprintf("no image %s here", name))
			return
		}
		answer(w, err, map[string]any{"name": name, "tags": tags})
		return
	}
	for _, kind := range []string{"/manifests/", "/blobs/", "/referrers/"} {
		at := strings.LastIndex(path, kind)
		if at <= 0 {
			continue
		}
		switch what := path[at+len(kind):]; kind {
		case "/blobs/":
			s.serveBlob(w, r, what)
		case "/referrers/":
			s.serveReferrers(w, what, strings.ReplaceAll(r.URL.Query().Get("artifactType"), " ", "+")) // clients do not escape it
		default:
			s.serveManifest(w, r, path[:at], what)
		}
		return
	}
	refuse(w, http.StatusNotFound, "UNSUPPORTED", "want NAME/manifests/REFERENCE, NAME/blobs/DIGEST, NAME/referrers/DIGEST, NAME/tags/list or _catalog")
}

func answer(w http.ResponseWriter, err error, body any) {
	if err != nil {
		refuse(w, http.StatusInternalServerError, "UNKNOWN", err.Error())
		return
	}
	reply(w, http.StatusOK, body)
}

// references are the names of all images, with their tags.
func (s *Store) references() ([]string, error) {
	out := []string{}
	for _, dir := range s.dirs {
		refs, err := readIndex(dir)
		if err != nil {
			return nil, err
		}
		for _, r := range refs {
			out = append(out, r.name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// repositories are the names of all images, or the tags of one.
func (s *Store) repositories(of string) ([]string, error) {
	out := []string{}
	for _, dir := range s.dirs {
		refs, err := readIndex(dir)
		if err != nil {
			return nil, err
		}
		for _, r := range refs {
			name, tag, digest, err := splitRef(r.name)
			switch {
			case err != nil || digest != "":
			case of == "":
				out = append(out, name)
			case name == of && tag == "":
				out = append(out, "latest")
			case name == of:
				out = append(out, tag)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func (s *Store) serveManifest(w http.ResponseWriter, r *http.Request, name, reference string) {
	var raw []byte
	h, err := v1.NewHash(reference)
	if err == nil {
		raw, err = s.document(h)
	} else {
		raw, h, err = s.tagged(name, reference)
	}
	if err != nil {
		s.missing(w, err, "MANIFEST_UNKNOWN", name+":"+reference)
		return
	}
	var kind struct {
		MediaType string
		Manifests []json.RawMessage
	}
	if err := json.Unmarshal(raw, &kind); err != nil {
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN", reference+" is no manifest")
		return
	}
	if kind.MediaType == "" {
		kind.MediaType = "application/vnd.oci.image.manifest.v1+json"
		if kind.Manifests != nil {
			kind.MediaType = "application/vnd.oci.image.index.v1+json"
		}
	}
	w.Header().Set("Content-Type", kind.MediaType)
	w.Header().Set("Docker-Content-Digest", h.String())
	w.Header().Set("Content-Length", fmt.Sprint(len(raw)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(raw) // the client has gone
	}
}

// serveReferrers lists the manifests about an image. Of one that is not here there are none.
func (s *Store) serveReferrers(w http.ResponseWriter, digest, kind string) {
	h, err := v1.NewHash(digest)
	if err != nil {
		refuse(w, http.StatusBadRequest, "DIGEST_INVALID", "want sha256: and 64 hexadecimal digits")
		return
	}
	raw, err := s.referrersOf(h, kind)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "UNKNOWN", err.Error())
		return
	}
	if kind != "" {
		w.Header().Set("OCI-Filters-Applied", "artifactType")
	}
	w.Header().Set("Content-Type", string(types.OCIImageIndex))
	_, _ = w.Write(raw) // the client has gone
}

// referrersOf is an OCI index of the manifests about an image, those of one type or all.
func (s *Store) referrersOf(h v1.Hash, kind string) ([]byte, error) {
	all, err := s.referrers(h)
	if err != nil {
		return nil, err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{}}
	for _, r := range all {
		if kind == "" || r.desc.ArtifactType == kind {
			r.desc.Annotations = nil
			index.Manifests = append(index.Manifests, r.desc)
		}
	}
	return json.Marshal(index)
}

// referrerTag gives what clients without the API of referrers ask for: the tag sha256-DIGEST, and that of cosign's signatures.
func (s *Store) referrerTag(tag string) ([]byte, v1.Hash, error) {
	hex, ok := strings.CutPrefix(tag, "sha256-")
	hex, signatures := strings.CutSuffix(hex, ".sig")
	h, err := v1.NewHash("sha256:" + hex)
	if !ok || err != nil {
		return nil, v1.Hash{}, ErrNotFound
	}
	all, err := s.referrers(h)
	if err != nil {
		return nil, v1.Hash{}, err
	}
	if signatures {
		for _, r := range all {
			if r.desc.ArtifactType == signatureArtifact {
				raw, err := readBlob(r.layout, r.desc.Digest)
				return raw, r.desc.Digest, err
			}
		}
		return nil, v1.Hash{}, ErrNotFound
	}
	if len(all) == 0 {
		return nil, v1.Hash{}, ErrNotFound
	}
	raw, err := s.referrersOf(h, "")
	if err != nil {
		return nil, v1.Hash{}, err
	}
	sum, _, err := v1.SHA256(bytes.NewReader(raw))
	return raw, sum, err
}

// tagged is what a name and a tag stand for.
func (s *Store) tagged(name, tag string) ([]byte, v1.Hash, error) {
	for _, dir := range s.dirs {
		refs, err := readIndex(dir)
		if err != nil {
			return nil, v1.Hash{}, err
		}
		if d, ok := pick(refs, name, tag, ""); ok {
			raw, err := readBlob(dir, d.Digest)
			return raw, d.Digest, err
		}
	}
	return s.referrerTag(tag)
}

// document is a small blob of any layout.
func (s *Store) document(h v1.Hash) ([]byte, error) {
	for _, dir := range s.dirs {
		if _, err := os.Stat(blobPath(dir, h)); err == nil {
			return readBlob(dir, h)
		}
	}
	return nil, ErrNotFound
}

func (s *Store) serveBlob(w http.ResponseWriter, r *http.Request, digest string) {
	h, err := v1.NewHash(digest)
	if err != nil || h.Algorithm != "sha256" {
		refuse(w, http.StatusBadRequest, "DIGEST_INVALID", "want sha256: and 64 hexadecimal digits")
		return
	}
	for _, dir := range s.dirs {
		f, err := os.Open(blobPath(dir, h))
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			s.missing(w, err, "BLOB_UNKNOWN", digest)
			return
		}
		defer f.Close()
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Docker-Content-Digest", h.String())
		http.ServeContent(w, r, "", time.Time{}, f) // ranges, too
		return
	}
	s.missing(w, ErrNotFound, "BLOB_UNKNOWN", digest)
}

func (s *Store) missing(w http.ResponseWriter, err error, code, what string) {
	if errors.Is(err, ErrNotFound) {
		refuse(w, http.StatusNotFound, code, what+" is not here")
		return
	}
	refuse(w, http.StatusInternalServerError, "UNKNOWN", err.Error())
}
