package rkt

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"weir.dev/weir/container/kernel/entry"
)

// manifest is an image manifest of the App Container specification 0.8.11, what of it is needed.
type manifest struct {
	Kind    string  `json:"acKind"`
	Version string  `json:"acVersion"`
	Name    string  `json:"name"`
	Labels  []label `json:"labels"`
	App     app     `json:"app"`
}

type label struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type app struct {
	Exec  []string `json:"exec"`
	User  string   `json:"user"`
	Group string   `json:"group"`
}

func manifestOf(name string) manifest {
	return manifest{Kind: "ImageManifest", Version: "0.8.11", Name: name, Labels: []label{{"os", "linux"}, {"arch", runtime.GOARCH}},
		App: app{Exec: entry.Apart{Inside: insideDir}.Command(), User: "0", Group: "0"}}
}

// writeImage writes an App Container image of a root file system: a tar of the manifest and the root's files. Extended attributes are left out.
func writeImage(path, name, root string) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar.NewWriter(f)
	text, err := json.Marshal(manifestOf(name))
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: "manifest", Mode: 0o644, Size: int64(len(text))}); err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return writeEntry(w, root, path, d)
	}); err != nil {
		return err
	}
	return w.Close()
}

func writeEntry(w *tar.Writer, root, path string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	if info.Mode().Type()&^(fs.ModeDir|fs.ModeSymlink) != 0 { // devices are rkt's, pipes and sockets of no use
		return nil
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name = strings.TrimSuffix("rootfs/"+strings.TrimPrefix(strings.TrimPrefix(path, root), "/"), "/")
	h.Uname, h.Gname = "", "" // names are this host's
	if info.IsDir() {
		h.Name += "/"
	}
	if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
