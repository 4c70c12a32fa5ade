package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/instance"
)

// object at a manager.
type object struct {
	Kind api.Kind `json:"kind"`
	Name string   `json:"name"`
}

// record is what a run has made at a manager. It is on the disk before an object is made: whatever becomes of the run, the next one on this machine
// knows what to remove there, by whole names, and removes nothing else.
type record struct {
	API     API      `json:"api"`
	Objects []object `json:"objects"`
	path    string
}

func recordPath(o Options, suffix string) string {
	return filepath.Join(State, o.Name+suffix, "objects.json")
}

func readRecord(o Options, suffix string) (*record, error) {
	r := &record{path: recordPath(o, suffix)}
	text, err := os.ReadFile(r.path)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", r.path, err)
	}
	return r, nil
}

func (r *record) write() error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return instance.WriteFile(r.path, append(text, '\n'))
}

func (r *record) add(o object) error {
	r.Objects = append(r.Objects, o)
	return r.write()
}

func (r *record) drop(o object) error {
	r.Objects = slices.DeleteFunc(r.Objects, func(x object) bool { return x == o })
	return r.write()
}

// create makes an object that nobody else has made, or gives one of the run's own another spec.
func create[T, S any](ctx context.Context, r *record, kind api.Kind, at api.Resource[T, S], name string, spec S) error {
	o := object{kind, name}
	var conds []api.Cond
	if !slices.Contains(r.Objects, o) {
		conds = append(conds, api.IfAbsent())
		if err := r.add(o); err != nil {
			return err
		}
	}
	_, err := at.Put(ctx, name, spec, conds...)
	switch {
	case errors.Is(err, api.ErrPrecondition): // it is somebody else's
		return errors.Join(fmt.Errorf("%s: %w: %s", r.API, err, anotherName), r.drop(o))
	case err != nil: // it may be there all the same
		return fmt.Errorf("make %s %s at %s: %w", kind, name, r.API, err)
	}
	return nil
}

const anotherName = "the lab takes only what it has made itself; run it again, and it takes another name"

// remove takes away what is on record, and waits until it is gone: what needs others before these. What is gone already is no error.
func (r *record) remove(ctx context.Context, c *api.Client) error {
	for _, kind := range []api.Kind{api.KindPolicy, api.KindChain, api.KindFunction, api.KindEndpoint} {
		var left []object
		for _, o := range r.Objects {
			if o.Kind != kind {
				continue
			}
			left = append(left, o)
			if err := deleteObject(ctx, c, o); err != nil && !errors.Is(err, api.ErrNotFound) {
				return fmt.Errorf("delete %s %s at %s: %w", o.Kind, o.Name, r.API, err)
			}
		}
		for _, o := range left {
			if err := r.gone(ctx, c, o); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(filepath.Dir(r.path))
}

// gone waits until an object that is being deleted is not there any more, and takes it off the record.
func (r *record) gone(ctx context.Context, c *api.Client, o object) error {
	for {
		switch err := getObject(ctx, c, o); {
		case errors.Is(err, api.ErrNotFound):
			return r.drop(o)
		case err != nil:
			return fmt.Errorf("delete %s %s at %s: %w", o.Kind, o.Name, r.API, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s %s at %s is being deleted, and still there: %w", o.Kind, o.Name, r.API, context.Cause(ctx))
		case <-time.After(pollAPI):
		}
	}
}

func deleteObject(ctx context.Context, c *api.Client, o object) (err error) {
	switch o.Kind {
	case api.KindPolicy:
		_, err = c.Policies().Delete(ctx, o.Name)
	case api.KindChain:
		_, err = c.Chains().Delete(ctx, o.Name)
	case api.KindFunction:
		_, err = c.Functions().Delete(ctx, o.Name)
	case api.KindEndpoint:
		_, err = c.Endpoints().Delete(ctx, o.Name)
	default:
		err = fmt.Errorf("the lab makes no %s", o.Kind)
	}
	return err
}

func getObject(ctx context.Context, c *api.Client, o object) (err error) {
	switch o.Kind {
	case api.KindPolicy:
		_, err = c.Policies().Get(ctx, o.Name)
	case api.KindChain:
		_, err = c.Chains().Get(ctx, o.Name)
	case api.KindFunction:
		_, err = c.Functions().Get(ctx, o.Name)
	case api.KindEndpoint:
		_, err = c.Endpoints().Get(ctx, o.Name)
	}
	return err
}

// clearing bounds the removal of what a crashed run has left at a manager.
const clearing = 30 * time.Second

// suffixes are the ends of what a run has here of managers.
func suffixes(name string) (out []string) {
	for _, top := range []string{Run, State} {
		entries, _ := os.ReadDir(top) // it is not there: nothing is
		for _, e := range entries {
			end, ok := strings.CutPrefix(e.Name(), name)
			if ok && (end == suffixHosts || strings.HasPrefix(end, suffixRows)) && !slices.Contains(out, end) {
				out = append(out, end)
			}
		}
	}
	return out
}

// removeAtManagers takes away what a crashed run has left here and at managers.
func removeAtManagers(ctx context.Context, o Options) error {
	var errs []error
	for _, suffix := range suffixes(o.Name) {
		errs = append(errs, removeHosts(ctx, o, suffix))
	}
	return errors.Join(errs...)
}

// removeHosts takes away what one platform of the run has left. A manager that cannot be asked, or does not let go, keeps nobody from
// measuring: the record stays for the run after this one. See Owed.
func removeHosts(ctx context.Context, o Options, suffix string) error {
	r, err := readRecord(o, suffix)
	if err == nil {
		_ = r.clear(ctx) // the record tells
	} else if _, err := os.Lstat(recordPath(o, suffix)); errors.Is(err, fs.ErrNotExist) {
		if err := os.RemoveAll(filepath.Dir(recordPath(o, suffix))); err != nil { // it had made nothing yet
			return err
		}
	}
	return removeSpaces(dir(o, suffix))
}

func (r *record) clear(ctx context.Context) error {
	c, err := r.API.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := look(ctx, c, r.API.String()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, clearing)
	defer cancel()
	return r.remove(ctx, c)
}

// Owed says what a crashed run has left at a manager; empty: nothing.
func Owed(name string) string {
	var all []string
	for _, suffix := range suffixes(name) {
		switch r, err := readRecord(Options{Name: name}, suffix); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			all = append(all, err.Error())
		default:
			all = append(all, fmt.Sprintf("%s has left %d objects at %s; if that is gone for good, remove %s", name, len(r.Objects), r.API, filepath.Dir(r.path)))
		}
	}
	return strings.Join(all, "; ")
}
