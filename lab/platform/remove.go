package platform

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"weir.dev/weir/datapath/ebpf"
	"weir.dev/weir/datapath/ovs"
	"weir.dev/weir/netns"
)

// Remove takes away whatever the platforms of a run have left, after any crash. Nothing there: nil.
func Remove(ctx context.Context, name string) error {
	o := Options{Name: name}
	var errs []error
	for suffix, destroy := range map[string]func(w *weir) func(context.Context) error{
		suffixEBPF: func(w *weir) func(context.Context) error {
			return func(ctx context.Context) error { return ebpf.Destroy(ctx, ebpf.Options{Instance: w.inst}) }
		},
		suffixOVS: func(w *weir) func(context.Context) error {
			return func(ctx context.Context) error {
				return ovs.Destroy(ctx, ovs.Options{Instance: w.inst, OVSDB: ovs.Private})
			}
		},
	} {
		w, err := newWeir(o, suffix)
		if err != nil {
			return err
		}
		if !exists(w.inst.Run) && !exists(w.inst.Root) {
			continue
		}
		w.destroy = destroy(w)
		errs = append(errs, w.Close())
	}
	return errors.Join(append(errs, removeSpaces(dir(o, suffixBridges)), removeSpaces(dir(o, suffixVeth)), removeSpaces(dir(o, suffixXDP)), removeSpaces(dir(o, suffixLeast)), removeDaemons(o), newSwitched(o).Close(), removeDocker(o), removeHosts(ctx, o))...)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// removeSpaces takes a directory of namespaces away.
func removeSpaces(dir string) error {
	if !strings.HasPrefix(dir, Run+"/") {
		return errors.New("not a directory of the lab: " + dir)
	}
	var errs []error
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		errs = append(errs, netns.Delete(path))
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(append(errs, err, os.RemoveAll(dir))...)
}
