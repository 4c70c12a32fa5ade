// Package web has the files of the web UI, as they were built when this program was compiled.
//
// The UI is built by Node into dist/app (`make build`): index.html, and beside it assets/ with a hash of its content in each name. dist/ is not kept in git
// but for placeholder.html, which is shown where dist/app is missing. In each page the server replaces NonceMark by a new nonce, under which the page may
// have style elements; scripts come from files only.
package web

import (
	"embed"
	"io/fs"
)

// NonceMark is what a page has where the nonce of its Content-Security-Policy is to be.
const NonceMark = "__CSP_NONCE__"

//go:embed all:dist
var dist embed.FS

// Files are those of dist.
func Files() fs.FS {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // the name is valid
	}
	return files
}
