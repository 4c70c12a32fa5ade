package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// node is what an archive has at a path, without its time.
type node struct {
	kind     byte
	mode     int64
	uid, gid int
	link     string
	attrs    string
	content  [sha256.Size]byte
}

// nodes reads an archive. A hard link counts as the file that it is another name of; links says of which.
func nodes(ctx context.Context, r io.Reader) (out map[string]node, links map[string]string, err error) {
	out, links = map[string]node{}, map[string]string{}
	entries := tar.NewReader(r)
	for {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return out, links, ctx.Err()
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, nil, err
		}
		name := clean(h.Name)
		if h.Typeflag == tar.TypeLink {
			n, ok := out[clean(h.Linkname)]
			if !ok {
				return nil, nil, fmt.Errorf("%s: a link to %s, which does not come before it", h.Name, h.Linkname)
			}
			out[name], links[name] = n, clean(h.Linkname)
			continue
		}
		n := node{kind: h.Typeflag, mode: h.Mode, uid: h.Uid, gid: h.Gid, link: h.Linkname}
		for _, k := range slices.Sorted(maps.Keys(h.PAXRecords)) {
			if strings.HasPrefix(k, "SCHILY.xattr.") {
				n.attrs += k + "=" + h.PAXRecords[k] + "\n"
			}
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, entries); err != nil {
			return nil, nil, err
		}
		n.content = [sha256.Size]byte(sum.Sum(nil))
		out[name] = n
	}
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// writeDelta writes the layer that makes a base the root in a file; nil: of nothing. The same root gives the same bytes. The base gets mount points besides.
func writeDelta(ctx context.Context, base *cachedLayer, full string, to io.Writer) error {
	old := map[string]node{}
	if base != nil {
		plain, err := base.open()
		if err != nil {
			return err
		}
		old, _, err = nodes(ctx, plain)
		if err = errors.Join(err, plain.Close()); err != nil {
			return fmt.Errorf("base layer: %w", err)
		}
	}
	f, err := os.Open(full)
	if err != nil {
		return err
	}
	defer f.Close()
	all, links, err := nodes(ctx, f)
	if err != nil {
		return fmt.Errorf("root of packages: %w", err)
	}
	// What is new or other, and the directories above it: a layer gives all that it has of a path their modes.
	wanted := map[string]bool{}
	want := func(name string) {
		for ; name != "." && !wanted[name]; name = path.Dir(name) {
			wanted[name] = true
		}
	}
	for name, n := range all {
		if dropped(name) || name == "" {
			delete(all, name)
			continue
		}
		if o, ok := old[name]; ok && o == n {
			continue
		}
		want(name)
		if target, ok := links[name]; ok {
			want(target) // links do not reach into another layer
		}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	out := &delta{w: tar.NewWriter(to), ctx: ctx, wanted: wanted, all: all}
	if err := out.copy(tar.NewReader(f)); err != nil {
		return fmt.Errorf("write layer: %w", err)
	}
	if base == nil {
		out.put(&tar.Header{Typeflag: tar.TypeDir, Name: "etc/weir/", Mode: 0o755, ModTime: epoch, Format: tar.FormatPAX}, nil)
		out.put(&tar.Header{Typeflag: tar.TypeReg, Name: "etc/weir/config.json", Mode: 0o644, ModTime: epoch, Format: tar.FormatPAX}, nil)
	} else {
		out.remove(old)
	}
	if out.err != nil {
		return fmt.Errorf("write layer: %w", out.err)
	}
	return out.w.Close()
}

// delta is a layer that is being written.
type delta struct {
	ctx    context.Context
	w      *tar.Writer
	wanted map[string]bool
	all    map[string]node
	err    error
}

func (d *delta) put(h *tar.Header, content io.Reader) {
	if d.err == nil {
		d.err = d.ctx.Err()
	}
	if d.err != nil {
		return
	}
	if d.err = d.w.WriteHeader(h); d.err == nil && content != nil {
		_, d.err = io.Copy(d.w, content)
	}
}

// copy what is wanted, as it comes: the archive is sorted.
func (d *delta) copy(entries *tar.Reader) error {
	for d.err == nil {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return d.err
		}
		if err != nil {
			return err
		}
		name := clean(h.Name)
		if !d.wanted[name] {
			continue
		}
		o := &tar.Header{Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, Size: h.Size, ModTime: h.ModTime, Format: tar.FormatPAX,
			Devmajor: h.Devmajor, Devminor: h.Devminor}
		for k, v := range h.PAXRecords {
			if strings.HasPrefix(k, "SCHILY.xattr.") {
				if o.PAXRecords == nil {
					o.PAXRecords = map[string]string{}
				}
				o.PAXRecords[k] = v
			}
		}
		if h.Typeflag == tar.TypeDir {
			o.Name += "/"
		}
		if h.Typeflag == tar.TypeLink {
			o.Linkname = clean(h.Linkname)
		}
		d.put(o, entries)
	}
	return d.err
}

// remove what the base has and the root has not.
func (d *delta) remove(old map[string]node) {
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if _, ok := d.all[name]; ok || name == "" || strings.HasPrefix(name, "etc/weir") {
			continue
		}
		if _, ok := d.all[path.Dir(name)]; !ok && path.Dir(name) != "." {
			continue // goes with its directory
		}
		d.put(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(path.Dir(name), ".wh."+path.Base(name)), Mode: 0o644, ModTime: epoch, Format: tar.FormatPAX}, nil)
	}
}
