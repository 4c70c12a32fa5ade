package ui

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

// Names in the folder of the built UI.
const (
	appDir      = "app"
	indexFile   = "index.html"
	assetsDir   = "assets/" // each file has a hash of its content in its name
	placeholder = "placeholder.html"
	nonceMark   = "__CSP_NONCE__"
	gzipFrom    = 1 << 10 // bytes: smaller files are not worth it
)

// file is one of the UI, in memory; what it is compressed is made once.
type file struct {
	content []byte
	kind    string // Content-Type
	tag     string
	gzipped func() []byte // nil: not worth it
}

// files are those of the built UI by path. index answers for all paths of the UI's own pages.
type files struct {
	all   map[string]*file
	index []byte
	built bool
}

// newFiles reads dist: the files of app, or the placeholder where that is missing.
func newFiles(dist fs.FS) (*files, error) {
	f := &files{all: map[string]*file{}, built: true}
	app, err := fs.Sub(dist, appDir)
	if err != nil {
		return nil, fmt.Errorf("files of the web UI: %w", err)
	}
	f.index, err = fs.ReadFile(app, indexFile)
	if errors.Is(err, fs.ErrNotExist) {
		f.built = false
		f.index, err = fs.ReadFile(dist, placeholder)
	}
	if err != nil {
		return nil, fmt.Errorf("files of the web UI: %w", err)
	}
	if !f.built {
		return f, nil
	}
	err = fs.WalkDir(app, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == indexFile || strings.HasSuffix(name, ".map") {
			return err
		}
		content, err := fs.ReadFile(app, name)
		f.all[name] = newFile(name, content)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("files of the web UI: %w", err)
	}
	return f, nil
}

func newFile(name string, content []byte) *file {
	sum := sha256.Sum256(content)
	f := &file{content: content, kind: cmp.Or(mime.TypeByExtension(path.Ext(name)), "application/octet-stream"), tag: base64.RawURLEncoding.EncodeToString(sum[:12])}
	switch path.Ext(name) {
	case ".js", ".mjs", ".css", ".svg", ".json", ".html", ".txt", ".webmanifest", ".wasm":
		if len(content) >= gzipFrom {
			f.gzipped = sync.OnceValue(func() []byte { return compressed(content) })
		}
	}
	return f
}

func compressed(content []byte) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid
	_, _ = z.Write(content)                               // a buffer takes everything
	_ = z.Close()
	return b.Bytes()
}

// fileTimeout bounds how long a client may take for a file.
const fileTimeout = time.Minute

func (f *files) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "files are only read", http.StatusMethodNotAllowed)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(fileTimeout)) // not possible on every kind of connection
	name := nameOf(r.URL.Path)
	file, ok := f.all[name]
	if !ok {
		if strings.HasPrefix(name, assetsDir) { // of another version: a page would not do
			http.Error(w, "no such file: reload the page", http.StatusNotFound)
			return
		}
		f.servePage(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-cache")
	if strings.HasPrefix(name, assetsDir) {
		h.Set("Cache-Control", "private, max-age=31536000, immutable")
	}
	h.Set("Content-Type", file.kind)
	content, tag := file.content, file.tag
	if file.gzipped != nil {
		h.Add("Vary", "Accept-Encoding")
		if takesGzip(r) {
			h.Set("Content-Encoding", "gzip")
			content, tag = file.gzipped(), tag+"-gzip"
		}
	}
	h.Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
}

// nameOf is the name that a file of a path would have.
func nameOf(at string) string { return strings.TrimPrefix(path.Clean("/"+at), "/") }

// has tells whether there is a file: all other paths are pages.
func (f *files) has(at string) bool { return f.all[nameOf(at)] != nil }

// servePage serves the one page of the UI, with a nonce of its own. The UI finds by the path what to show.
func (f *files) servePage(w http.ResponseWriter, r *http.Request) {
	nonce := newSecret()
	h := w.Header()
	h.Set("Content-Security-Policy", pagePolicy(nonce, r.Host))
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "text/html; charset=utf-8")
	page := bytes.ReplaceAll(f.index, []byte(nonceMark), []byte(nonce))
	if len(page) >= gzipFrom && takesGzip(r) {
		h.Set("Content-Encoding", "gzip")
		page = compressed(page)
	}
	h.Add("Vary", "Accept-Encoding")
	http.ServeContent(w, r, indexFile, time.Time{}, bytes.NewReader(page))
}

// takesGzip reads Accept-Encoding as browsers write it.
func takesGzip(r *http.Request) bool {
	for _, accepted := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(accepted), ";")
		if name == "gzip" {
			return strings.ReplaceAll(weight, " ", "") != "q=0"
		}
	}
	return false
}
