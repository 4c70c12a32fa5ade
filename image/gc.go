package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// ErrBusy is about a layout to which images are being pulled or imported.
var ErrBusy = errors.New("images are being pulled or imported")

// CollectOptions are those of Collect.
type CollectOptions struct {
	Plan bool // remove nothing, only list
	Now  bool // ErrBusy while images are being pulled or imported; else Collect waits for the end of that
}

// Collected is what Collect removed, or with Plan would remove, and what stays.
type Collected struct {
	Removed, Kept []Collectable
	Freed         int64 // bytes of Removed
}

// Collectable is a part of a layout: a blob, what is left of a pull or an import, or an image.
type Collectable struct {
	Name string // of an image, else of a file: sha256:... of a blob
	Size int64  // bytes
	Why  string // it goes, or stays
}

// Reasons of Collectable.
const (
	whyUnused    = "no image uses it"
	whyHalf      = "an interrupted pull left it"
	whyKilled    = "an import that was killed left it"
	whyNamed     = "an image of the store: `weir image delete %s` takes it out"
	whyAbout     = "a signature or bill of materials of an image of another layout: sha256:%s"
	whyImporting = "its import goes on"
)

// Collect removes from the instance's own layout what no image uses, and what interrupted pulls left.
func (s *Store) Collect(ctx context.Context, o CollectOptions) (Collected, error) {
	own := writable(s.own)
	if _, err := os.Stat(s.own); errors.Is(err, fs.ErrNotExist) {
		return Collected{}, nil // nothing is there
	} else if err != nil {
		return Collected{}, err
	}
	how := unix.LOCK_EX
	if o.Now {
		how = unix.LOCK_SH
	}
	use, err := own.hold(ctx, useFile, how)
	if err != nil {
		return Collected{}, err
	}
	defer use.Close()
	if o.Now && unix.Flock(int(use.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return Collected{}, fmt.Errorf("%w: try again when that has ended", ErrBusy)
	}
	lost := func(r referrer) bool { // what is about an image that no layout has any more
		return !slices.ContainsFunc(s.dirs, func(dir string) bool { _, err := os.Stat(blobPath(dir, r.subject)); return err == nil })
	}
	c, err := own.survey(surveyOptions{full: true, lost: lost})
	if err == nil && !o.Plan {
		c, err = own.drop(c)
	}
	for _, r := range c.Removed {
		c.Freed += r.Size
	}
	return c.Collected, err
}

// survey is what of a layout goes, and how: its files, and entries of the list of what is about images.
type survey struct {
	Collected
	files []string // of Removed, in the same order
	gone  func(referrer) bool
	list  bool // some of the list is gone
}

// collect removes blobs that no image of the index uses. The caller has useFile for itself.
func (w writable) collect() error {
	c, err := w.survey(surveyOptions{lost: func(referrer) bool { return false }})
	if err == nil {
		_, err = w.drop(c)
	}
	return err
}

// drop removes what a survey found. What it gives back are those that it removed. The caller has useFile for itself.
func (w writable) drop(c survey) (survey, error) {
	all := c.Removed
	c.Removed = nil
	if c.list {
		err := w.changeReferrers(context.Background(), func(now []referrer) ([]referrer, error) { return slices.DeleteFunc(now, c.gone), nil })
		if err != nil {
			return c, err
		}
	}
	for i, file := range c.files {
		if err := os.RemoveAll(file); err != nil {
			return c, err
		}
		c.Removed = append(c.Removed, all[i])
	}
	return c, nil
}

type surveyOptions struct {
	full bool                // with what an interrupted pull would go on with, and with what stays
	lost func(referrer) bool // whether it is about an image that is gone
}

// survey finds blobs that no image of the index uses. The caller has useFile for itself.
func (w writable) survey(o surveyOptions) (c survey, err error) {
	refs, err := readIndex(string(w))
	if err != nil {
		return c, err
	}
	used := map[string]bool{}
	for _, r := range refs {
		if err := w.mark(r.desc, used); err != nil {
			return c, err
		}
		if o.full {
			c.Kept = append(c.Kept, Collectable{r.name, w.sizeOf(r.desc), fmt.Sprintf(whyNamed, r.name)})
		}
	}
	if err := w.surveyReferrers(&c, used, o); err != nil {
		return c, err
	}
	dirs := []string{filepath.Join("blobs", "sha256")}
	if o.full {
		dirs = append(dirs, partialsDir)
	}
	for _, dir := range dirs {
		files, err := os.ReadDir(filepath.Join(string(w), dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return c, err
		}
		for _, f := range files {
			path := filepath.Join(string(w), dir, f.Name())
			x := Collectable{Name: "sha256:" + f.Name(), Why: whyUnused}
			switch {
			case dir != partialsDir && used[f.Name()]:
				continue
			case dir == partialsDir && w.goesOn(f.Name()):
				c.Kept = append(c.Kept, Collectable{f.Name(), size(path), whyImporting})
				continue
			case dir == partialsDir && strings.HasPrefix(f.Name(), halfPrefix):
				x = Collectable{Name: f.Name(), Why: whyKilled}
			case dir == partialsDir:
				x = Collectable{Name: f.Name(), Why: whyHalf}
			}
			x.Size = size(path)
			c.Removed = append(c.Removed, x)
			c.files = append(c.files, path)
		}
	}
	return c, nil
}

// surveyReferrers marks the blobs of what is about images that are used, or outside. All else goes from the list.
func (w writable) surveyReferrers(c *survey, used map[string]bool, o surveyOptions) error {
	all, err := readReferrers(string(w))
	if err != nil {
		return err
	}
	images := maps.Clone(used)
	outside := func(r referrer) bool { return r.desc.Annotations[outsideAnnotation] != "" }
	c.gone = func(r referrer) bool { return o.lost(r) || !outside(r) && !images[r.subject.Hex] }
	for _, r := range all {
		if c.gone(r) {
			c.list = true
			continue
		}
		if err := w.mark(r.desc, used); err != nil {
			return err
		}
		if o.full && outside(r) {
			c.Kept = append(c.Kept, Collectable{r.desc.Digest.String(), w.sizeOf(r.desc), fmt.Sprintf(whyAbout, r.subject.Hex)})
		}
	}
	return nil
}

// sizeOf what a descriptor needs: of its blobs that are there.
func (w writable) sizeOf(d v1.Descriptor) (all int64) {
	blobs := map[string]bool{}
	if w.mark(d, blobs) != nil {
		return 0 // which is told where it is used
	}
	for hex := range blobs {
		all += size(filepath.Join(string(w), "blobs", "sha256", hex))
	}
	return all
}

// size of a file, or of all files of a directory. What is gone meanwhile has none.
func size(path string) (all int64) {
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			all += info.Size()
		}
		return nil
	})
	return all
}
